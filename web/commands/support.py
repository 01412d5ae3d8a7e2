"""``sessiond doctor`` and ``sessiond completion``: help with the installation itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from web.ending import EXIT_FAILURE, Command, tell_failure
from web.manual import epilog
from web.parameters import ANY_PATH, option
from web.progress import progress_bar
from web.streams import printable, write

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_SESSIOND_COMPLETE"
"""click's own: set, the command answers its shell instead of running."""


@click.command(
    cls=Command,
    short_help="Run all checks on a database; print what a bug report needs.",
    epilog=epilog(
        """
        sessiond doctor sessiond.sqlite3
        sessiond doctor sessiond.sqlite3 --json | jq .faults
        sessiond doctor
        """,
        (1, "a check found a fault; all of them are printed"),
    ),
)
@click.argument("path", required=False, type=ANY_PATH)
@option(
    "--json",
    "as_json",
    envvar="SESSIOND_DOCTOR_JSON",
    is_flag=True,
    help="The same as one JSON document.",
)
@click.pass_context
def doctor(ctx: click.Context, path: Path | None, *, as_json: bool) -> None:
    """Run all checks on the database at PATH, and print what a bug report needs.

    The versions of everything involved; the file, what stands beside it, and where it lies; the
    Host that has it open, if one has; SQLite's settings and its integrity check; and every
    session, verified. Each check reports, also on a file that no other command would read.
    Without PATH the versions alone are printed.

    Nothing is changed, and nothing of what was said in a session is printed: names, numbers and
    sizes only. The block can be pasted as it stands.
    """
    from web.doctor import examine, report_document, report_text
    from web.offline import counted

    with progress_bar("verifying") as on_progress:
        report = examine(path, on_progress)
    write([report_document(report) if as_json else printable(report_text(report))])
    if report.faults:
        tell_failure(f"{path}: {counted(len(report.faults), 'fault')}")
        ctx.exit(EXIT_FAILURE)


@click.command(
    cls=Command,
    short_help="Print the script that teaches a shell to complete.",
    epilog=epilog(
        """
        eval "$(sessiond completion bash)"                      # in ~/.bashrc
        eval "$(sessiond completion zsh)"                       # in ~/.zshrc
        sessiond completion fish > ~/.config/fish/completions/sessiond.fish
        """
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that teaches a shell to complete this command.

    It completes commands, options, files, and the ids of the sessions in the database that the
    command line names.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click knows those three
    root = cast("click.Group", ctx.find_root().command)
    script = kind(root, {}, "sessiond", COMPLETE_VARIABLE)
    write([script.source_template % script.source_vars(), "\n"])
