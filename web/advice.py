"""What a fault means, and what to do about it: for people who have never seen one."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from actors.errors import UnsoundSession
from actors.values import is_identifier
from web.streams import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
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

_DAMAGED = (
    "go back to a backup, or let `sqlite3 {file} .recover` save what it can; "
    "`sessiond verify` tells whether what you have then is sound"
)
_UNSOUND = "`sessiond verify {file}` says what that means and what to do"
_ANOTHER = "name another {path}"
_NO_STEP = re.compile("session [^ ]+ has no turn-")

# How the fault of a file begins -> what to do, where the fault does not say that itself.
# {path} is what the command line calls the file's parameter, {file} the file as a shell takes it.
_ADVICE = (
    ("there is no database", "name another {path}; a Host makes the file, with --session-db"),
    ("there is nothing in the database", "a Host that is started on it goes on from here"),
    ("there is no session ", "name one of them with {session_id}"),
    ("is a directory", "name a file in it as {path}"),
    ("is not a regular file", _ANOTHER),
    ("a parent is not a directory", _ANOTHER),
    ("is a loop of symbolic links", _ANOTHER),
    ("cannot be reached", _ANOTHER),
    ("is not a SQLite file", "name another {path}, or go back to a backup"),
    ("is a SQLite file of another application", _ANOTHER),
    ("was written by a SQLite that is newer", "use a Python with a newer SQLite"),
    ("has schema version", "use the version of sessiond that wrote it"),
    ("its table or triggers", "go back to a backup: another program has altered the file"),
    ("is damaged", _DAMAGED),
    ("row ", _UNSOUND),
    ("is owned by another Host", "stop that one, or name another {path}"),
    ("its lock file ", "move {file}-lock away"),
    (
        "cannot write the lock file: Permission denied",
        "let this user write its directory, or name another {path}",
    ),
    ("cannot be made", "DEST must be a new file, in a directory that this user can write"),
    ("cannot be copied to", "make room for it, or name another DEST"),
)
# What stands within a fault, mostly SQLite's name of an error -> what to do. The first that is
# in it counts.
_ADVICE_WITHIN = (
    ("hard links; a database must", "remove all but one"),
    ("(SQLITE_CORRUPT", _DAMAGED),
    ("(SQLITE_NOTADB)", _DAMAGED),
    ("(SQLITE_BUSY", "another program holds it: try again once that has let go"),
    ("(SQLITE_READONLY", "let this user write it and its directory, or name another {path}"),
    ("(SQLITE_CANTOPEN", "let this user open it and its directory, or name another {path}"),
    ("(SQLITE_IOERR", "`sessiond doctor {file}` shows where it lies and how much room there is"),
)
# The system's words at the end of a fault -> what to do.
_ADVICE_AT_END = (
    (": Not a directory", _ANOTHER),
    (": Permission denied", "let this user reach it, or name another {path}"),
    (": Read-only file system", _ANOTHER),
    (": No space left on device", "make room, or name another {path}"),
    (": File name too long", _ANOTHER),
)


def as_typed(path: Path | str | None) -> str:
    """Return a path as a shell takes it: where it cannot be shown as it is, in ``$'...'``."""
    text = str(path)
    if text.startswith("-"):
        text = f"./{text}"  # or it would be taken for an option
    if text == printable(text, keep=""):
        return shlex.quote(text)
    plain = set(range(ord(" "), ord("~") + 1)) - set(b"\\'")
    told = (chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(text))
    return f"$'{''.join(told)}'"


def kind_of(reason: str) -> str:
    """Return what kind of fault a reason names, in words that quote nothing of what is stored."""
    return next((kind for start, kind in _KINDS if reason.startswith(start)), _ANY_OTHER)


def session_advice(report: SessionReport, path: Path) -> tuple[str, str]:
    """Return what a session's fault means, and what to do about it, a sentence each."""
    assert report.reason is not None  # it is asked for faults alone
    meaning = kind_of(report.reason)
    if report.events_n == 0 or not is_identifier(report.session_id):
        return meaning, "go back to a backup of the file"
    command = f"sessiond export {as_typed(path)} --session-id {report.session_id}"
    sound = "event before it is" if report.events_n == 1 else "events before it are"
    return meaning, (
        f"go back to a backup of the file, or keep what is sound: the {report.events_n} {sound} "
        f"what `{command}` prints"
    )


def store_advice(error: StoreError, called: Mapping[str, str]) -> str | None:
    """Return what to do about a file's fault, None where its own words say it.

    ``called`` has what the command line calls the parameters ``path``, ``session_id`` and
    ``step_id``, as far as there are any.
    """
    if isinstance(error, UnsoundSession):
        advice = _UNSOUND
    elif error.fault.endswith(("it holds none", "has no step")):
        return None  # there is no other
    elif "step_id" in called and _NO_STEP.match(error.fault):
        advice = "name another one with {step_id}"
    else:
        found = [each for start, each in _ADVICE if error.fault.startswith(start)]
        found += [each for name, each in _ADVICE_WITHIN if name in error.fault]
        found += [each for end, each in _ADVICE_AT_END if error.fault.endswith(end)]
        if not found:
            return None
        advice = found[0]
    return advice.format(file=as_typed(error.path), **called)
