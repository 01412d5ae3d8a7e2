"""What a database of ours looks like from outside and inside; nothing here writes."""

from __future__ import annotations

import enum
import sqlite3
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from actors.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

APPLICATION_ID = 0x53455353
SCHEMA_VERSION = 1
"""``PRAGMA user_version``; a change of the table or its triggers counts it up."""

# A rowid table, though its key is another: rows are only ever added at the end, and there
# SQLite fills the pages of a rowid table to the brim but splits those of a key-ordered one.
CREATE_STATEMENTS = (
    """CREATE TABLE session_events (
  session_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  format_version INTEGER NOT NULL,
  recorded_at TEXT NOT NULL,
  event_type TEXT NOT NULL,
  payload TEXT NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (session_id, sequence)
) STRICT""",
    # Also what stops REPLACE, UPSERT and OR IGNORE: they come with a sequence that is not next.
    """CREATE TRIGGER session_events_in_sequence BEFORE INSERT ON session_events
WHEN NEW.sequence IS NOT 1 + coalesce(
  (SELECT max(sequence) FROM session_events WHERE session_id = NEW.session_id), 0)
BEGIN SELECT RAISE(ABORT, 'the sequence is not the next of its session'); END""",
    """CREATE TRIGGER session_events_no_update BEFORE UPDATE ON session_events
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
    """CREATE TRIGGER session_events_no_delete BEFORE DELETE ON session_events
BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END""",
)

_MAGIC = b"SQLite format 3\x00"  # this and the offsets: sqlite.org/fileformat.html, section 1.3
_VERSION_AT, _APPLICATION_AT, _HEADER_BYTES = 60, 68, 100


class Contents(enum.Enum):
    """What stands at a path."""

    NOTHING = "no file, or one without a byte"
    EMPTY_DATABASE = "a SQLite database with no tables that nobody has put a name to"
    OURS = "a database of this schema version"


def first_look(real: Path) -> Contents:
    """Return what the file's header says it is, before SQLite opens it.

    Never to be called while this process has the file open: closing any descriptor of it
    drops the POSIX locks that SQLite holds. ``EMPTY_DATABASE`` is only what the header does
    not rule out; :func:`check_layout` looks inside.

    Raises:
        StoreError: a directory, not SQLite, not ours, of another schema version, or a -wal or
            -journal that has lost its database.
        OSError: it cannot be read.
    """
    if real.is_dir():
        raise StoreError("is a directory", real)
    try:
        with real.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        header = b""
    if not header:
        _refuse_orphans(real)
        return Contents.NOTHING
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StoreError("is not a SQLite file", real)
    return judge(
        int.from_bytes(header[_APPLICATION_AT : _APPLICATION_AT + 4], "big"),
        int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big"),
        real,
    )


def _refuse_orphans(real: Path) -> None:
    # SQLite would play them into the database that is about to be made here.
    for suffix in ("-wal", "-journal"):
        orphan = real.with_name(real.name + suffix)
        if orphan.exists() and orphan.stat().st_size > 0:
            raise StoreError(
                f"is missing or empty, but {orphan.name} beside it holds data: "
                "bring the database back or move that file away",
                real,
            )


def judge(application_id: int, version: int, path: Path) -> Contents:
    """Return what a SQLite file with these two numbers is.

    Raises:
        StoreError: not ours, or of another schema version.
    """
    if application_id == 0 and version == 0:
        return Contents.EMPTY_DATABASE
    if application_id != APPLICATION_ID:
        raise StoreError(
            f"is a SQLite file of another application (application_id {application_id:#x})", path
        )
    if version != SCHEMA_VERSION:
        raise StoreError(f"has schema version {version}, this program knows {SCHEMA_VERSION}", path)
    return Contents.OURS


def check_layout(connection: sqlite3.Connection, path: Path) -> Contents:
    """Return what an open database is, by its numbers and by what it defines.

    Raises:
        StoreError: not ours, of another version, or its table or triggers were altered.
        sqlite3.Error: it cannot be read.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    contents = judge(application_id, version, path)
    found = _definitions(connection)
    if contents is Contents.EMPTY_DATABASE:
        if found:
            raise StoreError("is a SQLite file of another application (it has tables)", path)
        return contents
    if found != _our_definitions():
        raise StoreError("its table or triggers are not as this program makes them", path)
    return contents


def _definitions(connection: sqlite3.Connection) -> frozenset[tuple[str, str, str | None]]:
    # What ANALYZE leaves behind is harmless; any other addition could change what an INSERT does.
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'"
    )
    return frozenset(rows.fetchall())


@cache
def _our_definitions() -> frozenset[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in CREATE_STATEMENTS:
            connection.execute(statement)
        return _definitions(connection)
