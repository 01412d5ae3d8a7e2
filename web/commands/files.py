"""The commands on a database file: ``show``, ``verify``, ``export``, ``backup``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from web.ending import EXIT_FAILURE, Command, tell_failure
from web.manual import epilog
from web.parameters import ANY_PATH, DATABASE, SESSION_ID, as_step_id, option
from web.progress import progress_bar
from web.streams import output_is_terminal, printable, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from web.offline import SessionReport
    from web.show import Render


@click.command(
    cls=Command,
    epilog=epilog(
        """
        sessiond show sessiond.sqlite3 | less
        sessiond show sessiond.sqlite3 --follow
        sessiond show sessiond.sqlite3 --json | jq '.transcript[-1]'
        sessiond show sessiond.sqlite3 --follow --json | jq .text
        sessiond show sessiond.sqlite3 --request turn-2/step-1 | jq .messages
        sessiond show sessiond.sqlite3 --request turn-2/step-1 | jq .sent
        """,
        (1, "no such file, session or step, or the session is not sound"),
        (130, "interrupted: the normal end of --follow"),
        (141, "nobody reads the output any more"),
    ),
)
@DATABASE
@SESSION_ID
@option(
    "--json",
    "as_json",
    envvar="SESSIOND_SHOW_JSON",
    is_flag=True,
    help="One JSON document; with --follow one transcript entry a line.",
)
@option(
    "--follow",
    is_flag=True,
    help="Then print each entry as it is committed, until Ctrl-C.",
)
@option(
    "--request",
    "step_id",
    envvar="SESSIOND_SHOW_REQUEST",
    callback=as_step_id,
    metavar="STEP_ID",
    help="Instead, what the model was given in a step such as turn-1/step-1, as JSON: the "
    "messages as recorded and, where the model was a provider's, under 'sent' the body that it "
    "got (user messages in a row joined by a blank line).",
)
def show(path: Path, session_id: str, step_id: str | None, *, as_json: bool, follow: bool) -> None:
    """Print the transcript of a session in the database at PATH.

    Each entry has a line of its own, with its sequence, its kind and the ids it goes by; below
    it, indented, is what was said. On a terminal it is coloured (not with NO_COLOR set) and
    wrapped; written to a file or a pipe it is plain text.

    All of the session is checked before any of it is printed. The file is never changed; a Host
    may be running on it, and with --follow may also be killed and started again.
    """
    if follow and step_id is not None:
        raise click.UsageError("--follow and --request exclude each other")
    if follow:
        _follow(path, session_id, as_json=as_json)
        return
    from actors.reader import open_reader
    from web.offline import load
    from web.show import session_document, shown_transcript

    with progress_bar("loading") as on_progress, open_reader(path) as reader:
        snapshot = load(reader, session_id, on_progress)
    if step_id is not None:
        from web.requests import find_request, request_document

        write(request_document(find_request(snapshot, step_id, path)))
    elif as_json:
        write(session_document(snapshot))
    else:
        write(shown_transcript(snapshot, _render()))


def _render() -> Render:
    from web.show import plain_entry, styled_entries

    return styled_entries() if output_is_terminal() else plain_entry


def _follow(path: Path, session_id: str, *, as_json: bool) -> None:
    from contextlib import closing

    from web.follow import followed
    from web.show import json_line

    render = json_line if as_json else _render()
    with progress_bar("loading") as on_progress:
        parts = followed(path, session_id, on_progress=on_progress)
        with closing(parts):
            for entries in parts:
                write(map(render, entries))


@click.command(
    cls=Command,
    epilog=epilog(
        """
        sessiond verify sessiond.sqlite3
        sessiond verify sessiond.sqlite3 >/dev/null || echo unsound
        """,
        (1, "the file cannot be read, or a session in it is not sound"),
    ),
)
@DATABASE
@click.pass_context
def verify(ctx: click.Context, path: Path) -> None:
    """Check every session in the database at PATH.

    SQLite's own integrity check comes first; then, of each session, that no event is missing or
    was changed (the chain of digests), that each fits its schema, and that each may follow those
    before it.

    Prints one line that begins with "ok:", or else a line for each session that is not sound: it
    begins with "fault:" and names the session, the sequence of the first event at fault, what is
    wrong, what that means, and what to do. An unfinished turn is sound.
    """
    from actors.reader import open_reader
    from web.offline import verify_sessions

    with progress_bar("verifying") as on_progress, open_reader(path) as reader:
        reports = list(verify_sessions(reader, on_progress))
    ctx.exit(_tell_reports(path, reports))


def _tell_reports(path: Path, reports: list[SessionReport]) -> int:
    """Print how the sessions of a file are, and return the exit code that it comes to."""
    from web.offline import summary

    faulty_n = sum(report.fault is not None for report in reports)
    if not faulty_n:
        write([f"ok: {printable(f'{path}: {summary(reports)}', keep='')}\n"])
        return 0
    write(_fault_lines(path, reports))
    tell_failure(f"{path}: {faulty_n} of {len(reports)} sessions unsound")
    return EXIT_FAILURE


def _fault_lines(path: Path, reports: list[SessionReport]) -> Iterator[str]:
    """Yield a line a fault, for programs too; on a terminal what to do has lines of its own."""
    from web.advice import session_advice

    apart = "\n    {}\n    {}\n" if output_is_terminal() else "; {}; {}\n"
    for report in reports:
        if report.fault is not None:
            advice = (printable(each, keep="") for each in session_advice(report, path))
            yield f"fault: {printable(report.fault, keep='')}{apart.format(*advice)}"


@click.command(
    cls=Command,
    short_help="Print the events of a session, one JSON document a line.",
    epilog=epilog(
        """
        sessiond export sessiond.sqlite3 > session.jsonl
        sessiond export sessiond.sqlite3 | jq -c 'select(.type == "step_failed")'
        sessiond serve --model-replay session.jsonl
        """,
        (1, "no such file or session, or an event is not sound"),
        (141, "nobody reads the output any more"),
    ),
)
@DATABASE
@SESSION_ID
def export(path: Path, session_id: str) -> None:
    """Print the events of a session in the database at PATH, one JSON document a line.

    Each line is an envelope (session_id, sequence, recorded_at, type, payload) and fits
    schemas/session-event.schema.json. It is UTF-8, whatever the locale.

    Of an unsound session the events before the first fault are printed.
    """
    from actors.reader import open_reader
    from web.offline import exported_lines

    if output_is_terminal():  # once the file is checked, the lines themselves move there
        with progress_bar("exporting"):
            reader = open_reader(path)
        with reader:
            write(exported_lines(reader, session_id))
        return
    with progress_bar("exporting") as on_progress, open_reader(path) as reader:
        write(exported_lines(reader, session_id, on_progress))


@click.command(
    cls=Command,
    short_help="Copy the database at PATH to DEST, and verify the copy.",
    epilog=epilog(
        """
        sessiond backup sessiond.sqlite3 "backup-$(date +%F).sqlite3"
        sessiond backup sessiond.sqlite3 /mnt/backup/sessiond.sqlite3
        """,
        (1, "DEST exists or cannot be written, or the copy is not sound"),
    ),
)
@DATABASE
@click.argument("destination", metavar="DEST", type=ANY_PATH)
@click.pass_context
def backup(ctx: click.Context, path: Path, destination: Path) -> None:
    """Copy the database at PATH to DEST, which must not exist, and verify the copy.

    A Host may be running on PATH. The copy is one consistent file of mode 0600 (a plain copy of
    the file would lose what still stands in the -wal beside it). To go back to a backup, stop the
    Host, move PATH and its -wal away, and copy the backup to PATH.

    Prints what `verify` prints of the copy. One that is not sound is kept: it may be the last.
    """
    from actors.reader import open_reader
    from web.offline import back_up, verify_sessions

    with progress_bar("copying", "pages") as on_progress:
        back_up(path, destination, on_progress)
    with progress_bar("verifying") as on_progress, open_reader(destination) as copy:
        reports = list(verify_sessions(copy, on_progress))
    ctx.exit(_tell_reports(destination, reports))
