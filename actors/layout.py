"""What a database of ours looks like from outside and inside; nothing here writes."""

from __future__ import annotations

import enum
import sqlite3
import stat
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from actors.errors import StoreError

if TYPE_CHECKING:
    import os
    from pathlib import Path

APPLICATION_ID = 0x53455353
SCHEMA_VERSION = 1
"""``PRAGMA user_version``; a change of the table or its triggers counts it up."""

# A rowid table, though its key is another. Appended in sequence, rows with 230-byte payloads
# take 364 bytes each, and 373 WITHOUT ROWID; with 1,500-byte payloads 2,074 and 4,682, because
# there every row of more than about a quarter page spills into overflow pages of its own.
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
_FORMATS_AT, _VERSION_AT, _APPLICATION_AT, _HEADER_BYTES = 18, 60, 68, 100
_KNOWN_FORMATS = {1, 2}  # rollback journal, WAL; SQLite does not write what says more
_JOURNAL_PAGES_AT = 16  # the same page, section 3


class Contents(enum.Enum):
    """What stands at a path."""

    NOTHING = "no file, or one without a byte"
    EMPTY_DATABASE = "a SQLite database with no tables that nobody has put a name to"
    OURS = "a database of this schema version"


def first_look(path: Path) -> tuple[Path, Contents]:
    """Return the file's real path and what its header says it is, before SQLite opens it.

    Never to be called while this process has the file open: closing any descriptor of it
    drops the POSIX locks that SQLite holds. ``EMPTY_DATABASE`` is only what the header does
    not rule out; :func:`check_layout` looks inside.

    Raises:
        StoreError: it cannot be read, is no regular file or has several names, is not SQLite,
            not ours or of another schema version, or left a -wal or -journal behind.
    """
    try:
        real = path.resolve()
        header = _header(real, path)
        _refuse_odd_companions(real, path)
        if not header:
            refuse_orphans(real, path)
            return real, Contents.NOTHING
    except RuntimeError as error:  # what resolve() made of a loop before Python 3.13
        raise StoreError("is a loop of symbolic links", path) from error
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path) from error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StoreError("is not a SQLite file", path)
    if not set(header[_FORMATS_AT : _FORMATS_AT + 2]) <= _KNOWN_FORMATS:
        raise StoreError("was written by a SQLite that is newer than this one", path)
    application_id = int.from_bytes(header[_APPLICATION_AT : _APPLICATION_AT + 4], "big")
    version = int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big")
    return real, judge(application_id, version, path)


def _header(real: Path, path: Path) -> bytes:
    """Return the first bytes of a file that SQLite may be let near, none if there is no file."""
    try:
        status = real.stat()
    except FileNotFoundError:
        return b""
    if stat.S_ISDIR(status.st_mode):
        raise StoreError("is a directory", path)
    if not stat.S_ISREG(status.st_mode):  # only to open a pipe would wait for its other end
        raise StoreError("is not a regular file", path)
    refuse_hard_links(status, path)
    with real.open("rb") as file:
        return file.read(_HEADER_BYTES)


def _refuse_odd_companions(real: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        beside = real.with_name(real.name + suffix)
        try:
            mode = beside.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):  # a pipe would be waited for, a link lead elsewhere
            raise StoreError(f"{beside.name} beside it is not a regular file", path)


def refuse_hard_links(status: os.stat_result, path: Path) -> None:
    """Refuse a file with several names: SQLite would keep a ``-wal`` beside each of them.

    Raises:
        StoreError: it has.
    """
    if status.st_nlink > 1:
        raise StoreError(f"has {status.st_nlink} hard links; a database must have one name", path)


def refuse_orphans(real: Path, path: Path) -> None:
    """Refuse a place without a database where another one's ``-wal`` or ``-journal`` was left.

    SQLite would play it into a database that is made there, or delete it.

    Raises:
        StoreError: such a file holds data.
        OSError: it cannot be read.
    """
    for suffix, holds_data in (("-wal", _size), ("-journal", _pages_to_restore)):
        orphan = real.with_name(real.name + suffix)
        if holds_data(orphan):
            raise StoreError(
                f"is missing or empty, but {orphan.name} beside it holds data: "
                "bring the database back or move that file away",
                path,
            )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _pages_to_restore(journal: Path) -> int:
    """Return how many pages the database had before a journal's transaction.

    That is 0 where a kill cut short the transaction that made the file.
    """
    try:
        with journal.open("rb") as file:
            head = file.read(_JOURNAL_PAGES_AT + 4)
    except FileNotFoundError:
        return 0
    return int.from_bytes(head[_JOURNAL_PAGES_AT:], "big")


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


def _definitions(connection: sqlite3.Connection) -> frozenset[tuple[bytes | None, ...]]:
    # In a damaged file these columns may be of any type, and hold no text of any encoding.
    before, connection.text_factory = connection.text_factory, bytes
    try:
        # What ANALYZE leaves behind is harmless; any other addition could change what an INSERT
        # does.
        rows = connection.execute(
            """SELECT type, name, typeof(sql), sql FROM sqlite_schema
               WHERE NOT (type = 'table' AND name IN ('sqlite_stat1', 'sqlite_stat4'))"""
        ).fetchall()
    finally:
        connection.text_factory = before
    # Another layout of the same text means the same.
    return frozenset((*head, sql and b" ".join(sql.split())) for *head, sql in rows)


@cache
def _our_definitions() -> frozenset[tuple[bytes | None, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in CREATE_STATEMENTS:
            connection.execute(statement)
        return _definitions(connection)
