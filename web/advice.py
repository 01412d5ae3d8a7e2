"""What a fault means, and what to do about it: for people who have never seen one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from actors.values import is_identifier

if TYPE_CHECKING:
    from pathlib import Path

    from actors.errors import StoreError
    from web.offline import SessionReport

# How the reason begins -> what kind of fault that is. Faults that quote what is stored are told
# apart from it here, where nothing that was said may be shown.
_KINDS = (
    ("the digest does not match", "a row was changed, by another program or by the disk"),
    ("the row belongs to session", "a row of another session stands in this one"),
    ("sequence ", "rows are missing, doubled or out of order"),
    ("a column holds bytes", "a row holds bytes that are no text"),
    ("row ", "a row has a column of a wrong type"),
    ("format_version ", "a newer sessiond wrote it, or another program did"),
    ("recorded_at ", "a row has no valid time"),
    ("unknown event type", "a row is of no kind that sessiond writes"),
    ("not a session id", "no sessiond wrote rows under this id"),
    ("cannot be read", "the rows cannot be read from the disk"),
)
_ANY_OTHER = "an event is none that sessiond would have written in this place"

# How the fault of a whole file begins -> what to do.
_FILE_ADVICE = (
    ("there is no database", "name another PATH; a Host makes the file, with --session-db"),
    ("there is nothing in the database", "a Host that is started on it goes on from here"),
    ("is a directory", "name the file in it"),
    ("is damaged", "go back to a backup, or let `sqlite3 {path} .recover` save what it can"),
    ("is not a SQLite file", "name another PATH, or go back to a backup"),
    ("is a SQLite file of another application", "name another PATH"),
    ("was written by a SQLite that is newer", "use a Python with a newer SQLite"),
    ("has schema version", "use the version of sessiond that wrote it"),
    ("its table or triggers", "go back to a backup: another program has altered the file"),
)


def kind_of(reason: str) -> str:
    """Return what kind of fault a reason names, in words that quote nothing of what is stored."""
    return next((kind for start, kind in _KINDS if reason.startswith(start)), _ANY_OTHER)


def session_advice(report: SessionReport, path: Path) -> tuple[str, str]:
    """Return what a session's fault means, and what to do about it, a sentence each."""
    assert report.reason is not None  # it is asked for faults alone
    meaning = kind_of(report.reason)
    if report.events_n == 0 or not is_identifier(report.session_id):
        return meaning, "go back to a backup of the file"
    command = f"sessiond export {shlex.quote(str(path))} --session-id {report.session_id}"
    sound = "event before it is" if report.events_n == 1 else "events before it are"
    return meaning, (
        f"go back to a backup of the file, or keep what is sound: the {report.events_n} {sound} "
        f"what `{command}` prints"
    )


def file_advice(error: StoreError) -> str | None:
    """Return what to do about the fault of a whole file, None where its own words say it."""
    for start, advice in _FILE_ADVICE:
        if error.fault.startswith(start):
            return advice.format(path=shlex.quote(str(error.path)))
    return None
