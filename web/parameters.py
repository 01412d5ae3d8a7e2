"""Kinds of parameters, and those that several commands share."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from actors.errors import ConfigurationError, SessiondError
from actors.strict_json import is_text
from actors.values import is_identifier
from web.ending import called_in, variable_of

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_SESSION_ID = "default"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765


# --- what a value must be ---------------------------------------------------------------------


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


def as_some_text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Take Unicode text that is not empty."""
    if value == "":
        raise click.BadParameter("is empty")
    return as_text(ctx, param, value)


def as_text_or_file(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Take text, or ``@FILE`` for the text of a file."""
    if not value.startswith("@"):
        as_text(ctx, param, value)
        return value
    if value == "@":
        raise click.BadParameter("'@' names no file: @FILE, or text that does not begin with @")
    path = Path(value[1:])
    option = called_in(ctx, param.name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option} {value}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{option} {value}: is not UTF-8 text") from error


class WholeNumber(click.IntRange):
    """A whole number within bounds, which are told where it is none."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 # as its parent has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Return the number."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            bounds = (
                f"of {self.min} or more" if self.max is None else f"from {self.min} to {self.max}"
            )
            self.fail(f"{value!r:.80} is not a whole number {bounds}", param, ctx)


class Seconds(click.FloatRange):
    """A time that is more than nothing; ``inf`` is one, ``nan`` is not."""

    def __init__(self) -> None:
        """Take any time more than zero."""
        super().__init__(min=0, min_open=True)

    def convert(
        self,
        value: Any,  # noqa: ANN401 # as its parent has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number of seconds."""
        try:
            seconds = float(super().convert(value, param, ctx))
        except click.BadParameter:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"{value!r:.80} is not a number of seconds, more than 0", param, ctx)
        return seconds


class PathName(click.Path):
    """A path, whatever is there: to say what it must be is for the reader and the store."""

    def __init__(self) -> None:
        """Take any path but the empty one, which would stand for the working directory."""
        # click's own checks would answer with exit code 2.
        super().__init__(readable=False, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 # as its parent has it
        """Return the path."""
        if not os.fspath(value):
            self.fail("is empty: it must name a file", param, ctx)
        return super().convert(value, param, ctx)


# --- completion -------------------------------------------------------------------------------


def complete_session_id(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the sessions of the database that the command line names so far.

    Empty where there is none to read: a shell that completes shows no errors.
    """
    from web.offline import peek_session_ids

    place = ctx.params.get("path") or ctx.params.get("session_db") or next(iter(ctx.args), None)
    if place is None:
        return []
    try:
        found = peek_session_ids(Path(place))
    except SessiondError:
        return []
    return [CompletionItem(each) for each in found if each.startswith(incomplete)]


# --- options ----------------------------------------------------------------------------------


class Option(click.Option):
    """An option whose help shows its default and the environment variable of its name."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return what an error calls the option: also its variable, if the value came from it."""
        # Not its parent's words: those name some variables whether they were used or not.
        variable = None if ctx is None else variable_of(ctx, self.name)
        return f"'{self.opts[0]}'" if variable is None else f"'{self.opts[0]}' (from {variable})"


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:  # noqa: ANN401 # click's own
    """Declare an option, see :class:`Option`."""
    return click.option(*names, cls=Option, show_default=True, show_envvar=True, **settings)


ANY_PATH = PathName()
DATABASE = click.argument("path", type=ANY_PATH)
SESSION_ID = option(
    "--session-id",
    metavar="ID",
    callback=as_identifier,
    default=DEFAULT_SESSION_ID,
    shell_complete=complete_session_id,
    help="The session.",
)
URL = option(
    "--url",
    metavar="URL",
    default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
    help="Where the Host listens.",
)
