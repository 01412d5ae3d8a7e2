"""The command line. Each command imports what it needs when it runs.

So ``show`` costs neither an event loop nor a web stack. How a failure is told is decided in one
place, :class:`Commands`: one line, no traceback, and the exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from actors.errors import ConfigurationError, SessiondError
from actors.strict_json import is_text
from actors.values import is_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from web.client import HostClient, Outcome
    from web.logs import LogFormat
    from web.offline import SessionReport

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE
STDOUT_DESCRIPTOR = 1

DEFAULT_SESSION_ID = "default"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765
DEFAULT_MAX_STEPS = 8
DEFAULT_CONNECT_TIMEOUT_S = 10.0
DEFAULT_REQUEST_TIMEOUT_S = 300.0


# --- how a command ends -----------------------------------------------------------------------


class Commands(click.Group):
    """The commands, and what becomes of the exceptions that come out of them."""

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; leave with the exit code that its failure stands for."""
        try:
            _require_standard_output()
            super().invoke(ctx)
        except BrokenPipeError:
            _drop_unwritten()  # whoever read has enough: nothing to tell
            ctx.exit(EXIT_PIPE_CLOSED)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except SessiondError as error:
            tell_failure(str(error))
            ctx.exit(EXIT_FAILURE)
        except OSError as error:
            _drop_unwritten()
            reason = error.strerror or str(error)
            tell_failure(f"{error.filename}: {reason}" if error.filename else reason)
            ctx.exit(EXIT_FAILURE)


def _require_standard_output() -> None:
    # A shell's `>&-` leaves none behind, and what a command says would go nowhere.
    if sys.stdout is None:
        raise ConfigurationError("standard output is closed")


def _drop_unwritten() -> None:
    # Python would try once more at its end, complain, and leave with a code of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT_DESCRIPTOR)


def tell_failure(reason: str) -> None:
    """Print the one line that says why a command failed."""
    click.echo(f"sessiond: error: {printable(reason, keep='')}", err=True)


def printable(text: str, keep: str = "\n\t") -> str:
    """Return ``text`` with control characters escaped, save those to ``keep``.

    Text comes from models and files: on a terminal it must not move the cursor or retitle the
    window.
    """
    return "".join(
        character
        if character.isprintable() or character in keep or character == " "
        else character.encode("unicode_escape").decode()
        for character in text
    )


# --- kinds of parameters ----------------------------------------------------------------------


def as_identifier(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Take a session id or an invocation id and nothing else."""
    if value is not None and not is_identifier(value):
        raise click.BadParameter(f"{value!r} is not an id: letters, digits, . _ ~ -; at most 128")
    return value


def as_step_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Take the id of a Step, whether there is one or not."""
    if value is not None:
        from web.requests import is_step_id

        if not is_step_id(value):
            raise click.BadParameter(f"{value!r} is not a step's id, such as turn-1/step-1")
    return value


def as_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Take Unicode text: bytes of the command line that are no UTF-8 are refused."""
    if value is not None and not is_text(value):
        raise click.BadParameter("is not UTF-8 text")
    return value


def as_text_or_file(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Take text, or ``@FILE`` for the text of a file."""
    if not value.startswith("@"):
        as_text(ctx, param, value)
        return value
    path = Path(value[1:])
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from error


# What a path must be is for the reader and the store to say: click would answer with code 2.
ANY_PATH = click.Path(readable=False, path_type=Path)
DATABASE = click.argument("path", type=ANY_PATH)
SESSION_ID = click.option(
    "--session-id",
    callback=as_identifier,
    default=DEFAULT_SESSION_ID,
    show_default=True,
    help="The session.",
)
URL = click.option(
    "--url",
    default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
    show_default=True,
    help="Where the Host listens.",
)


# --- commands ---------------------------------------------------------------------------------


@click.group(cls=Commands, context_settings={"auto_envvar_prefix": "SESSIOND"})
@click.version_option(
    package_name="sessiond",
    message="sessiond %(version)s",
    allow_from_autoenv=False,  # SESSIOND_VERSION is anybody's name for something else
)
def cli() -> None:
    """Run an agent's session durably: every event of it is kept in SQLite.

    Each option can also be set in the environment, as SESSIOND_<COMMAND>_<OPTION>.
    """


@cli.command()
@click.option(
    "--session-db",
    type=ANY_PATH,
    help="The database, made where there is none.  [default: none, process memory]",
)
@SESSION_ID
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="A loopback address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 lets the system choose.",
)
@click.option(
    "--model-url",
    metavar="URL",
    help="An OpenAI-compatible provider: requests go to URL/chat/completions.",
)
@click.option("--model", metavar="NAME", callback=as_text, help="The provider's model to use.")
@click.option(
    "--model-key-env", metavar="VAR", help="The environment variable that holds the provider's key."
)
@click.option(
    "--model-replay",
    metavar="FILE",
    type=ANY_PATH,
    help="Play the model's part of a session again, from what `sessiond export` wrote of it.",
)
@click.option(
    "--connect-timeout",
    "connect_timeout_s",
    envvar="SESSIOND_SERVE_CONNECT_TIMEOUT",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_CONNECT_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Seconds to wait for a connection to the provider.",
)
@click.option(
    "--request-timeout",
    "request_timeout_s",
    envvar="SESSIOND_SERVE_REQUEST_TIMEOUT",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_REQUEST_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="The longest silence of the provider, in seconds.",
)
@click.option(
    "--system-prompt",
    callback=as_text_or_file,
    default="",
    metavar="TEXT|@FILE",
    help="What the model is told before all else.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_STEPS,
    show_default=True,
    help="Model requests in a turn.",
)
@click.option(
    "--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def serve(
    session_db: Path | None,
    session_id: str,
    host: str,
    port: int,
    model_url: str | None,
    model: str | None,
    model_key_env: str | None,
    model_replay: Path | None,
    connect_timeout_s: float,
    request_timeout_s: float,
    system_prompt: str,
    max_steps: int,
    log_format: LogFormat,
    log_level: str,
) -> None:
    """Serve a session over HTTP until a signal stops it.

    One line on standard output says where, once connections are accepted; logs go to standard
    error. Any user of this machine can reach the API.
    """
    _require_whole_model(model_url, model, model_key_env, model_replay)
    key = None if model_key_env is None else _key_in(model_key_env)
    import trio

    from actors.plugins import ModelsConfig, OpenAIConfig
    from web.host import SIGNALS, HostConfig, run_host

    openai = None
    if model_url is not None and model is not None:
        openai = OpenAIConfig(model_url, model, key, connect_timeout_s, request_timeout_s)
    config = HostConfig(
        session_db=session_db,
        session_id=session_id,
        host=host,
        port=port,
        system_prompt=system_prompt,
        max_steps=max_steps,
        models=ModelsConfig(openai, model_replay),
        log_format=log_format,
        log_level=log_level,
    )
    try:
        trio.run(run_host, config)
    finally:
        # The outcome stands; a signal that comes only now must not change the exit code.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _require_whole_model(
    url: str | None, model: str | None, key_env: str | None, replay: Path | None
) -> None:
    """Refuse options that make sense only together, or only apart."""
    if (url is None) != (model is None):
        raise click.UsageError("--model-url and --model go together")
    if key_env is not None and url is None:
        raise click.UsageError("--model-key-env needs --model-url")
    if replay is not None and url is not None:
        raise click.UsageError("--model-replay and --model-url exclude each other")


def _key_in(variable: str) -> str:
    """Return the key that an environment variable holds."""
    key = os.environ.get(variable)
    if not key:
        raise ConfigurationError(f"--model-key-env {variable}: no such variable is set")
    return key


@cli.command()
@URL
@click.option(
    "--id",
    "invocation_id",
    envvar="SESSIOND_INVOKE_ID",
    callback=as_identifier,
    help="The invocation's id, to ask again without running anything twice.  [default: a new one]",
)
@click.argument("text", callback=as_text, required=False)
@click.pass_context
def invoke(ctx: click.Context, url: str, invocation_id: str | None, text: str | None) -> None:
    """Ask a running Host for a turn and print the answer.

    Without TEXT, or with -, the text is read from standard input. A new invocation's id is
    printed on standard error. Ctrl-C cancels the turn.
    """
    said = _said(text)
    from web.client import HostClient

    with HostClient(url) as client:
        if invocation_id is None:
            import uuid

            invocation_id = str(uuid.uuid4())
            click.echo(invocation_id, err=True)
        try:
            outcome = client.invoke(invocation_id, said)
        except KeyboardInterrupt:
            _cancel(client, invocation_id)
            ctx.exit(EXIT_INTERRUPTED)
    ctx.exit(_tell_outcome(outcome))


@cli.command()
@URL
@click.pass_context
def plugins(ctx: click.Context, url: str) -> None:
    """Print the plugins of a running Host: where each stands, and why it does not run."""
    from web.client import HostClient
    from web.runtime import plugin_table

    with HostClient(url) as client:
        answer = client.plugins()
    if not isinstance(answer, list):
        ctx.exit(_tell_outcome(answer))
    _write(printable(line, keep="\n") for line in plugin_table(answer))


def _said(text: str | None) -> str:
    """Return what is to be said; standard input's last line end is not part of it."""
    if text is None or text == "-":
        if sys.stdin is None or (text is None and sys.stdin.isatty()):
            raise click.UsageError("TEXT is missing: give it, or pipe it in")
        try:
            text = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise click.UsageError("standard input is not UTF-8 text") from error
    if not text:
        raise click.UsageError("TEXT is empty")
    return text


def _tell_outcome(outcome: Outcome) -> int:
    from web.client import Answered, Refused

    match outcome:
        case Answered(text):
            _write([printable(text) if sys.stdout.isatty() else text, "\n"])
            return 0
        case Refused(code, detail):
            tell_failure(f"{code}: {detail}")
        case unanswered:
            tell_failure(unanswered.reason)
    return EXIT_FAILURE


def _cancel(client: HostClient, invocation_id: str) -> None:
    from web.client import Refused

    match client.cancel(invocation_id):
        case None:
            pass
        case Refused(code, detail):
            tell_failure(f"not cancelled: {code}: {detail}")
        case unanswered:
            tell_failure(f"not cancelled: {unanswered.reason}")


@cli.command()
@DATABASE
@SESSION_ID
@click.option(
    "--json", "as_json", envvar="SESSIOND_SHOW_JSON", is_flag=True, help="One JSON document."
)
@click.option(
    "--request",
    "step_id",
    envvar="SESSIOND_SHOW_REQUEST",
    callback=as_step_id,
    metavar="STEP_ID",
    help="Instead, what the model was given in a step such as turn-1/step-1, as JSON.",
)
def show(path: Path, session_id: str, step_id: str | None, *, as_json: bool) -> None:
    """Print the transcript of a session in the database at PATH."""
    from actors.reader import open_reader
    from web.offline import load, readable_transcript, session_document

    with open_reader(path) as reader:
        snapshot = load(reader, session_id)
    if step_id is not None:
        from web.requests import find_request, request_document

        _write(request_document(find_request(snapshot, step_id, path)))
    elif as_json:
        _write(session_document(snapshot))
    else:
        _write(map(printable, readable_transcript(snapshot)))


@cli.command()
@DATABASE
@click.pass_context
def verify(ctx: click.Context, path: Path) -> None:
    """Check every session in the database at PATH.

    Prints a line for each fault, or one line beginning with ok.
    """
    from actors.reader import open_reader
    from web.offline import verify_sessions

    with open_reader(path) as reader:
        reports = list(verify_sessions(reader))
    ctx.exit(_tell_reports(path, reports))


def _tell_reports(path: Path, reports: list[SessionReport]) -> int:
    from web.offline import summary

    faults = [report.fault for report in reports if report.fault is not None]
    if not faults:
        _write([f"ok: {printable(f'{path}: {summary(reports)}', keep='')}\n"])
        return 0
    _write(f"fault: {printable(fault, keep='')}\n" for fault in faults)
    tell_failure(f"{path}: {len(faults)} of {len(reports)} sessions unsound")
    return EXIT_FAILURE


@cli.command()
@DATABASE
@SESSION_ID
def export(path: Path, session_id: str) -> None:
    """Print the events of a session in the database at PATH, one JSON document a line.

    Of an unsound session the events before the first fault are printed.
    """
    from actors.reader import open_reader
    from web.offline import exported_lines

    with open_reader(path) as reader:
        _write(exported_lines(reader, session_id))


@cli.command()
@DATABASE
@click.argument("destination", metavar="DEST", type=ANY_PATH)
@click.pass_context
def backup(ctx: click.Context, path: Path, destination: Path) -> None:
    """Copy the database at PATH to DEST, which must not exist, and verify the copy.

    A Host may be running on PATH.
    """
    from web.offline import back_up

    ctx.exit(_tell_reports(destination, back_up(path, destination)))


def _write(pieces: Iterable[str]) -> None:
    """Write text to standard output as UTF-8, whatever the locale says: programs read it."""
    out = sys.stdout.buffer
    try:
        out.writelines(piece.encode() for piece in pieces)
    finally:
        out.flush()  # here, where a full disk can be told, and before any failure is
