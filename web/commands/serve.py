"""``sessiond serve``: its options, and the Host that they make."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from actors.errors import ConfigurationError, ListenError
from web.ending import Command, called_in
from web.manual import epilog
from web.parameters import (
    ANY_PATH,
    DEFAULT_HOST,
    DEFAULT_PORT,
    SESSION_ID,
    Seconds,
    WholeNumber,
    as_some_text,
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
    cls=Command,
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
    ),
)
@option(
    "--session-db",
    metavar="PATH",
    type=ANY_PATH,
    help="The database, made where there is none.  [default: none, process memory]",
)
@SESSION_ID
@option(
    "--host",
    metavar="ADDR",
    callback=as_some_text,
    default=DEFAULT_HOST,
    help="A loopback address.",
)
@option(
    "--port",
    metavar="N",
    type=WholeNumber(0, 65535),
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
    "--model-key-env",
    metavar="VAR",
    callback=as_some_text,
    help="The environment variable that holds the provider's key.",
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
    type=WholeNumber(min=1),
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
@click.pass_context
def serve(
    ctx: click.Context,
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
    _require_whole_model(ctx)
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
        raise ConfigurationError(_naming_its_option(ctx, str(error))) from error
    except ListenError as error:
        port_option, host_option = called_in(ctx, "port"), called_in(ctx, "host")
        raise ListenError(
            f"{error}; another {port_option} or {host_option} may be free, "
            "--port 0 lets the system choose"
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


def _require_whole_model(ctx: click.Context) -> None:
    """Refuse options that make sense only together, or only apart."""
    given = {name for name, value in ctx.params.items() if value is not None}
    called = {name: called_in(ctx, name) for name in ("model", "model_key_env", "model_replay")}
    url = called_in(ctx, "model_url")
    for name in ("model", "model_key_env"):
        if name in given and "model_url" not in given:
            raise click.UsageError(f"{called[name]} needs --model-url")
    if "model_url" in given and "model" not in given:
        raise click.UsageError(f"{url} needs --model")
    if ctx.params["model"] == "":
        raise ConfigurationError("--model: the model's name must not be empty")
    if {"model_replay", "model_url"} <= given:
        raise click.UsageError(f"{called['model_replay']} and {url} exclude each other")


def _naming_its_option(ctx: click.Context, fault: str) -> str:
    """Return a fault of the model's settings, which know no options, with the option to change."""
    for start, option_name in (
        ("the model URL ", "--model-url:"),
        ("the key of the model provider ", f"--model-key-env {ctx.params['model_key_env']}:"),
        (str(ctx.params["model_replay"]), "--model-replay"),
    ):
        if fault.startswith(start):
            return f"{option_name} {fault}"
    return fault


def _key_in(variable: str) -> str:
    """Return the key that an environment variable holds."""
    key = os.environ.get(variable)
    if key is None:
        raise ConfigurationError(f"--model-key-env {variable}: no such variable is set")
    if not key.strip():
        raise ConfigurationError(f"--model-key-env {variable}: the variable is blank")
    return key
