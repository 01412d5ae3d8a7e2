"""What stands beside the database file, and which connection sees all that is committed.

After a kill the newest rows may be in the ``-wal`` alone, and a ``-journal`` may have to take some
back. SQLite plays in whatever fits; that it belongs to this file is checked here. Nothing here
changes the file: what cannot be read without a change is read on a private copy.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from actors.codec import row_digest
from actors.errors import StoreError
from actors.layout import Contents, check_layout
from actors.rows import Row, describe, primary_code
from actors.strict_json import is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLUMN_TYPES = (str, int, int, str, str, str, bytes)
"""The types of a sound row's columns."""
GREATEST_SEQUENCE = 2**63 - 1
# One step of the index a session, rather than a look at every row.
SESSIONS = """WITH RECURSIVE ids(id) AS (
                 SELECT min(session_id) FROM session_events
                 UNION ALL
                 SELECT (SELECT min(session_id) FROM session_events WHERE session_id > id)
                 FROM ids WHERE id IS NOT NULL)
               SELECT id FROM ids WHERE id IS NOT NULL"""
# A session's last row up to a sequence, and the one before it.
_UP_TO = """SELECT session_id, sequence, format_version, recorded_at, event_type, payload, digest
            FROM session_events WHERE session_id = ? AND sequence <= ?
            ORDER BY sequence DESC LIMIT 2"""
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat.html, section 3
# What SQLite says where it may not make its -shm; a busy file is another matter.
_NO_SHM = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


def connect(real: Path, path: Path, owned: ExitStack) -> tuple[sqlite3.Connection, Contents]:
    """Return a read-only connection that sees all committed rows, and what the file is.

    ``owned`` closes it, and drops the private copy where one was needed. ``path`` is how the
    caller names the file.

    Raises:
        StoreError: it is not ours, cannot be read, or something beside it is not its own.
    """
    try:
        with ExitStack() as beside:
            # Before all else: a Host may go on meanwhile, and what it commits only adds to it.
            alone = _open_alone(real, beside)
            marks = [] if alone is None else _marks(alone)
            connection = _connection(real, path, owned)
            contents = check_layout(connection, path)
            if alone is not None:
                together = connection if contents is Contents.OURS else None
                _refuse_foreign_companions(marks, alone, together, real, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"cannot be read: {describe(error)}", path) from error
    except OSError as error:  # from making a private copy
        raise StoreError(f"cannot be read: {error.strerror}", path) from error
    return connection, contents


def _connection(real: Path, path: Path, owned: ExitStack) -> sqlite3.Connection:
    """Return a read-only connection that sees all committed rows, closed by ``owned``.

    ``mode=ro`` is right wherever it works. It does not where SQLite may not make its ``-shm``,
    and a hot ``-journal`` it can only report. Then, in this order: roll back, or recover the
    ``-wal`` that nobody has open, on a private copy; read the file alone if there is nothing
    beside it. (That last first would be wrong: it does not look at the ``-wal``.)
    """
    if _size(real, "-journal") > 0:
        if _size(real, "-wal") > 0 and _has_journal(real):
            raise StoreError(
                "has both a -journal and a -wal: one of them is not its own; move it away", path
            )
        return open_file(_private_copy(real, ("-journal", "-wal"), owned), "rw", owned)
    try:
        return open_file(real, "ro", owned)
    except sqlite3.OperationalError as error:
        if primary_code(error) not in _NO_SHM:
            raise
        if _size(real, "-wal") == 0:
            return open_file(real, "ro&immutable=1", owned)
        if not real.with_name(real.name + "-shm").exists():
            return open_file(_private_copy(real, ("-wal",), owned), "rw", owned)
        raise StoreError(
            f"cannot be read ({describe(error)}): it is open elsewhere, and its directory "
            "cannot be written here",
            path,
        ) from error


def open_file(real: Path, mode: str, owned: ExitStack) -> sqlite3.Connection:
    """Return a connection in a mode of SQLite's URIs, such as ``ro``; ``owned`` closes it.

    Raises:
        sqlite3.Error: the file cannot be opened or read in this mode.
    """
    connection = sqlite3.connect(
        f"{real.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = stored_text
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # opening is lazy
    except BaseException:
        connection.close()
        raise
    owned.callback(connection.close)
    return connection


def stored_text(stored: bytes) -> str:
    """Return a stored text; bytes that are no UTF-8 become lone surrogates."""
    return stored.decode("utf-8", "surrogateescape")


def _size(real: Path, suffix: str) -> int:
    try:
        return real.with_name(real.name + suffix).stat().st_size
    except FileNotFoundError:
        return 0


def _has_journal(real: Path) -> bool:
    """Tell whether there is a ``-journal`` that SQLite would play back, and not just bytes."""
    if _size(real, "-journal") == 0:
        return False
    with real.with_name(real.name + "-journal").open("rb") as file:
        return file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC


def _open_alone(real: Path, owned: ExitStack) -> sqlite3.Connection | None:
    """Open the file without what is beside it; None if nothing is, or if that cannot be done."""
    if _size(real, "-wal") == 0 and not _has_journal(real):
        return None
    try:
        return open_file(real, "ro&immutable=1", owned)
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # a kill in the middle of a checkpoint leaves the file alone torn


def _marks(alone: sqlite3.Connection) -> list[Row]:
    """Return what the file by itself shows of each session: its last row, or else its first.

    A row that is torn is none of them, nor one that cannot be reached.
    """
    try:
        session_ids = [session_id for (session_id,) in alone.execute(SESSIONS).fetchall()]
    except (sqlite3.Error, UnicodeDecodeError):
        return []
    marks = [
        _chained_row(alone, session_id, GREATEST_SEQUENCE) or _chained_row(alone, session_id, 1)
        for session_id in session_ids
    ]
    return [mark for mark in marks if mark is not None]


def _chained_row(alone: sqlite3.Connection, session_id: object, up_to: int) -> Row | None:
    """Return the session's last row up to a sequence, if its digest follows from the row before.

    Then it was once committed as it is, however torn the file is. (Pages that a checkpoint had
    not written yet when it was cut short may read as any bytes.)
    """
    try:
        rows = [Row(*columns) for columns in alone.execute(_UP_TO, (session_id, up_to))]
    except (sqlite3.Error, UnicodeError):  # the latter also of an id that is no text
        return None
    if not rows or any(tuple(map(type, row)) != COLUMN_TYPES for row in rows):
        return None
    row, *before = rows
    if not all(is_text(column) for column in row if isinstance(column, str)):
        return None
    expected = row_digest(before[0].digest if before else None, *row[:-1])
    return row if row.digest == expected else None


def _refuse_foreign_companions(
    marks: Sequence[Row],
    alone: sqlite3.Connection,
    together: sqlite3.Connection | None,
    real: Path,
    path: Path,
) -> None:
    """Refuse a ``-wal`` or ``-journal`` of another database, or of a copy that went another way.

    SQLite plays in whatever fits the page size, and what comes of it may be sound. But what a
    checkpoint has copied is still in the ``-wal``: the whole, ``together`` (None if it has no
    table), lacks no row that the file shows by itself. A ``-journal`` may take rows back; those
    that it leaves must be the file's.
    """
    journal = _has_journal(real)
    found = [_last_row(together, mark) for mark in marks]
    pairs = list(zip(marks, found, strict=True))
    if journal and any(found):
        left = [row for row in found if row is not None]
        own = (_chained_row(alone, row.session_id, row.sequence) for row in left)
        pairs = [
            (mark, row)
            for mark, row in zip(own, left, strict=True)
            if mark is not None and mark.sequence == row.sequence
        ]
    for mark, row in pairs:
        if row != mark:
            raise StoreError(
                f"{real.name}{'-journal' if journal else '-wal'} beside it is not its own or is "
                f"damaged: with it, event {mark.sequence} of session {mark.session_id!r:.80} is "
                "another or none; bring back the right one or move that file away",
                path,
            )


def _last_row(together: sqlite3.Connection | None, mark: Row) -> Row | None:
    """Return the last row of a mark's session up to the mark; None if there is none."""
    if together is None:
        return None
    columns = together.execute(_UP_TO, (mark.session_id, mark.sequence)).fetchone()
    return None if columns is None else Row(*columns)


def _private_copy(real: Path, suffixes: Iterable[str], owned: ExitStack) -> Path:
    directory = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="sessiond-")))
    for suffix in ("", *suffixes):
        source = real.with_name(real.name + suffix)
        if source.exists():
            shutil.copyfile(source, directory / source.name)
    return directory / real.name
