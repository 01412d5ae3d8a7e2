"""``sessiond serve``: its options, and the Host that they make."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from actors.errors import ConfigurationError, ListenError
from web.manual import epilog
from web.parameters import (
    ANY_PATH,
    DEFAULT_HOST,
    DEFAULT_PORT,
    SESSION_ID,
    Seconds,
    as_text,
    as_text_or_file,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from web.logs import LogFormat

DEFAULT_MAX_STEPS = 8
DEFAULT_CONNECT_TIMEOUT_S = 10.0
DEFAULT_REQUEST_TIMEOUT_S = 300.0


@click.command(
    epilog=epilog(
        """
        sessiond serve --session-db sessiond.sqlite3
        sessiond serve --session-db s.sqlite3 --log-format json 2>host.log
        PROVIDER_KEY=... sessiond serve --session-db s.sqlite3 \\
            --model-url https://provider.example/v1 --model some-model \\
            --model-key-env PROVIDER_KEY --system-prompt @prompt.txt
        """,
        (1, "it could not start, or could not stop cleanly; one line says why"),
        done="stopped cleanly by SIGINT, SIGTERM or SIGHUP",
    )
)
@option(
    "--session-db",
    metavar="PATH",
    type=ANY_PATH,
    help="The database, made where there is none.  [default: none, process memory]",
)
@SESSION_ID
@option("--host", metavar="ADDR", default=DEFAULT_HOST, help="A loopback address.")
@option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    help="0 lets the system choose.",
)
@option(
    "--model-url",
    metavar="URL",
    help="An OpenAI-compatible provider: requests go to URL/chat/completions.",
)
@option("--model", metavar="NAME", callback=as_text, help="The provider's model to use.")
@option(
    "--model-key-env", metavar="VAR", help="The environment variable that holds the provider's key."
)
@option(
    "--model-replay",
    metavar="FILE",
    type=ANY_PATH,
    help="Play the model's part of a session again, from what `sessiond export` wrote of it.",
)
@option(
    "--connect-timeout",
    "connect_timeout_s",
    envvar="SESSIOND_SERVE_CONNECT_TIMEOUT",
    type=Seconds(),
    default=DEFAULT_CONNECT_TIMEOUT_S,
    metavar="S",
    help="Seconds to wait for a connection to the provider.",
)
@option(
    "--request-timeout",
    "request_timeout_s",
    envvar="SESSIOND_SERVE_REQUEST_TIMEOUT",
    type=Seconds(),
    default=DEFAULT_REQUEST_TIMEOUT_S,
    metavar="S",
    help="The longest silence of the provider, in seconds.",
)
@option(
    "--system-prompt",
    callback=as_text_or_file,
    default="",
    metavar="TEXT|@FILE",
    help="What the model is told before all else.",
)
@option(
    "--max-steps",
    metavar="N",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_STEPS,
    help="Model requests in a turn.",
)
@option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    help="How a line of the log looks.",
)
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="The least that is logged. From info on a line says where and how much, never what.",
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

    The file is checked, and what an earlier process left unfinished is recorded, before anybody
    can connect. A file that is not sound is refused, and left as it was.
    """
    _require_whole_model(model_url, model, model_key_env, model_replay)
    key = None if model_key_env is None else _key_in(model_key_env)
    import trio

    with kept_out("rich"):  # structlog would load it, for tracebacks that are told plainly here
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
    except ConfigurationError as error:
        raise ConfigurationError(_naming_its_option(str(error), model_key_env)) from error
    except ListenError as error:
        raise ListenError(
            f"{error}; another --port or --host may be free, --port 0 lets the system choose"
        ) from error
    finally:
        # The outcome stands; a signal that comes only now must not change the exit code.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def kept_out(package: str) -> Generator[None, None, None]:
    """Have modules that are imported in the block not find a package that they can do without."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault(package, None)  # by which an import knows what is not to be found
    try:
        yield
    finally:
        if modules[package] is None:
            del modules[package]


def _require_whole_model(
    url: str | None, model: str | None, key_env: str | None, replay: Path | None
) -> None:
    """Refuse options that make sense only together, or only apart."""
    if (url is None) != (model is None):
        raise click.UsageError("--model-url and --model go together")
    if model == "":
        raise ConfigurationError("--model: the model's name must not be empty")
    if key_env is not None and url is None:
        raise click.UsageError("--model-key-env needs --model-url")
    if replay is not None and url is not None:
        raise click.UsageError("--model-replay and --model-url exclude each other")


def _naming_its_option(fault: str, key_env: str | None) -> str:
    """Return a fault of the model's settings, which know no options, with the option to change."""
    for start, option_name in (
        ("the model URL ", "--model-url"),
        ("the key of the model provider ", f"--model-key-env {key_env}"),
    ):
        if fault.startswith(start):
            return f"{option_name}: {fault}"
    return fault


def _key_in(variable: str) -> str:
    """Return the key that an environment variable holds."""
    key = os.environ.get(variable)
    if key is None:
        raise ConfigurationError(f"--model-key-env {variable}: no such variable is set")
    if not key.strip():
        raise ConfigurationError(f"--model-key-env {variable}: the variable is blank")
    return key
