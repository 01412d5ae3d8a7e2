"""How a command ends: the exit codes, and the one line that says why it failed."""

from __future__ import annotations

import os
import sys

import click

from actors.errors import ConfigurationError, SessiondError
from web.streams import STDOUT_DESCRIPTOR, printable

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE_CLOSED = 141  # 128 + SIGPIPE


class Commands(click.Group):
    """The commands, and what becomes of the exceptions that come out of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 # its parent's
        """Return the names as the help has them: in the order in which they were added."""
        return list(self.commands)

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
