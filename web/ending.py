"""How a command ends: the exit codes, and the one line that says why it failed."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actors.errors import ConfigurationError, SessiondError, StoreError
from web.advice import store_advice
from web.streams import STDOUT_DESCRIPTOR, output_named, printable

if TYPE_CHECKING:
    from collections.abc import Generator

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


_OPTION = re.compile("--[a-z][a-z-]*")


class Command(click.Command):
    """A command whose failures say what to change or to do, in the words of its command line."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:  # noqa: ANN401 # its parent's
        """Parse its options, of which ``--help`` prints."""
        with output_named():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 # as its parent has it
        """Run it; what it raises is raised with that added."""
        try:
            return super().invoke(ctx)
        except StoreError as error:
            advice = self._advice(ctx, error)
            if advice is None:
                raise
            raise StoreError(f"{error.fault}; {advice}", error.path) from error
        except ConfigurationError as error:
            raise ConfigurationError(self._with_variables(ctx, str(error))) from error

    def _advice(self, ctx: click.Context, error: StoreError) -> str | None:
        names = {"session_id", "step_id"} & ctx.params.keys()
        called = {name: called_in(ctx, name) for name in names}
        for param in self.params:
            place = ctx.params.get(param.name)
            if isinstance(place, Path) and error.path in {place, place.absolute()}:
                called["path"] = called_in(ctx, param.name)
                return store_advice(error, called)
        return None

    def _with_variables(self, ctx: click.Context, fault: str) -> str:
        """Return a fault that names options with the variables that their values came from."""
        names = {option: param.name for param in self.params for option in param.opts}

        def called(found: re.Match[str]) -> str:
            return called_in(ctx, names[found[0]]) if found[0] in names else found[0]

        # The first one alone: what follows may quote what somebody wrote.
        return _OPTION.sub(called, fault, count=1)


def variable_of(ctx: click.Context, name: str) -> str | None:
    """Return the environment variable that a parameter's value came from; None if from none."""
    if ctx.get_parameter_source(name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    param = next(param for param in ctx.command.params if param.name == name)
    variable = param.envvar or f"{ctx.auto_envvar_prefix}_{name.upper()}"
    return variable if isinstance(variable, str) else variable[0]


def called_in(ctx: click.Context, name: str) -> str:
    """Return what a parameter is called where its value came from: the variable too, if one."""
    param = next(param for param in ctx.command.params if param.name == name)
    called = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx)
    variable = variable_of(ctx, name)
    return called if variable is None else f"{called} (from {variable})"


class Commands(click.Group):
    """The commands, and what becomes of the exceptions that come out of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # its parent's
        """Return the names as the help has them: in the order in which they were added."""
        return list(self.commands)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:  # noqa: ANN401 # its parent's
        """Parse the options of the whole, of which ``--help`` and ``--version`` print."""
        with _failures_told(), output_named():
            _require_standard_output()
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; leave with the exit code that its failure stands for."""
        with _failures_told():
            super().invoke(ctx)


@contextmanager
def _failures_told() -> Generator[None, None, None]:
    """Tell what comes out of the block in one line, and leave with its exit code.

    Raises:
        Exit: in place of what came out.
    """
    try:
        yield
    except BrokenPipeError:
        _drop_unwritten()  # whoever read has enough: nothing to tell
        raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except SessiondError as error:
        tell_failure(str(error))
        raise click.exceptions.Exit(EXIT_FAILURE) from error
    except OSError as error:
        _drop_unwritten()
        reason = error.strerror or str(error)
        tell_failure(f"{error.filename}: {reason}" if error.filename else reason)
        raise click.exceptions.Exit(EXIT_FAILURE) from error


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
