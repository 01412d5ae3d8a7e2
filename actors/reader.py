"""The database file, read-only: while a Host runs on it, after one was killed, wherever it is.

Nothing here changes the file, takes its owner's lock, or holds a transaction for longer than a
page takes: a reader that lingers would keep the ``-wal`` from being emptied.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from actors.codec import row_digest
from actors.errors import StoreError
from actors.layout import Contents, check_layout, first_look, refuse_orphans
from actors.rows import Row, describe, primary_code, sync
from actors.strict_json import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

PAGE_ROWS = 1000

_COLUMN_TYPES = (str, int, int, str, str, str, bytes)
_TYPES = (), tuple({kind} for kind in _COLUMN_TYPES)  # of no rows, of some
_PAGE = """SELECT session_id, sequence, format_version, recorded_at, event_type, payload, digest
           FROM session_events WHERE session_id = ? AND sequence >= ? ORDER BY sequence LIMIT ?"""
_LAST = "SELECT coalesce(max(sequence), 0) FROM session_events WHERE session_id = ?"
# One step of the index a session, rather than a look at every row.
_SESSIONS = """WITH RECURSIVE ids(id) AS (
                 SELECT min(session_id) FROM session_events
                 UNION ALL
                 SELECT (SELECT min(session_id) FROM session_events WHERE session_id > id)
                 FROM ids WHERE id IS NOT NULL)
               SELECT id FROM ids WHERE id IS NOT NULL"""
# (session id, last sequence) of each session, by the same steps.
_ENDS = f"""SELECT id, (SELECT max(sequence) FROM session_events WHERE session_id = id)
            FROM ({_SESSIONS})"""  # noqa: S608 (a constant of this module)
_LEAST_SEQUENCE, _GREATEST_SEQUENCE = -(2**63), 2**63 - 1
# A session's last row up to a sequence, and the one before it.
_UP_TO = """SELECT session_id, sequence, format_version, recorded_at, event_type, payload, digest
            FROM session_events WHERE session_id = ? AND sequence <= ?
            ORDER BY sequence DESC LIMIT 2"""
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # sqlite.org/fileformat.html, section 3
_BACKUP_PAGES = 1024
# What SQLite says where it may not make its -shm; a busy file is another matter.
_NO_SHM = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


class Reader:
    """An open, checked database. Each method is one short read transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path, owned: ExitStack) -> None:
        self._connection = connection
        self._owned = owned
        self.path = path
        """The file as the caller named it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and drop the private copy if there was one."""
        self._owned.close()

    def session_ids(self) -> tuple[str, ...]:
        """Return the ids of all sessions in the file, in order.

        Raises:
            StoreError: the file cannot be read.
        """
        return tuple(str(session_id) for (session_id,) in self._fetch(_SESSIONS))

    def last_sequence(self, session_id: str) -> int:
        """Return the session's greatest sequence, 0 if there is no such session.

        Raises:
            StoreError: the file cannot be read.
        """
        ((sequence,),) = self._fetch(_LAST, session_id)
        return int(sequence)

    def rows(self, session_id: str, after: int | None = None, limit: int = PAGE_ROWS) -> list[Row]:
        """Return up to ``limit`` rows, 1,000 at most, with a sequence above ``after``, in order.

        None starts at the least there is, which in a sound session is 1. The rows are as
        stored; bytes that are no UTF-8 come as lone surrogates.

        Raises:
            StoreError: the file cannot be read, or a column has another type than it must.
        """
        start = _LEAST_SEQUENCE if after is None else after + 1
        if start > _GREATEST_SEQUENCE:
            return []
        page = session_id, start, min(limit, PAGE_ROWS)
        try:
            rows = self._fetch_text(_PAGE, *page)
        except (sqlite3.Error, UnicodeDecodeError):
            rows = self._fetch(_PAGE, *page)  # as it is, or to say what is wrong
        # By the column: one set of types each, whatever the number of rows.
        if tuple(set(map(type, column)) for column in zip(*rows, strict=True)) not in _TYPES:
            self._refuse_types(rows)
        return list(map(Row._make, rows))

    def _fetch_text(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        # Python decodes by itself what is plain UTF-8; to ask _text takes as long as all the rest.
        self._connection.text_factory = str
        try:
            return self._connection.execute(query, parameters).fetchall()
        finally:
            self._connection.text_factory = _text

    def _refuse_types(self, rows: Iterable[tuple[Any, ...]]) -> NoReturn:
        columns = next(columns for columns in rows if tuple(map(type, columns)) != _COLUMN_TYPES)
        raise StoreError(f"row {columns[1]!r:.40} has a column of a wrong type", self.path)

    def backup(self, destination: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Write a consistent copy of the whole file to ``destination``, mode 0600.

        All in one read transaction, however long it takes: a copy that let go between its
        pieces would begin anew whenever a Host commits. ``progress`` is called after each
        piece with the pages copied and the pages there are.

        Raises:
            StoreError: the destination exists, or the copy cannot be written or is not
                complete; what was begun is removed.
        """
        try:
            real = destination.resolve()
            refuse_orphans(real, destination)
            os.close(os.open(destination, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise StoreError(f"cannot be made: {error.strerror}", destination) from error
        with ExitStack() as begun:
            begun.callback(real.unlink, missing_ok=True)
            try:
                self._copy_to(real, destination, progress)
                sync(real.parent, os.O_RDONLY)
            except sqlite3.Error as error:
                raise StoreError(f"cannot be copied to: {describe(error)}", destination) from error
            except OSError as error:
                raise StoreError(f"cannot be written: {error.strerror}", destination) from error
            begun.pop_all()

    def _copy_to(
        self, real: Path, destination: Path, progress: Callable[[int, int], None] | None
    ) -> None:
        def report(_status: int, remaining: int, total: int) -> None:
            if progress is not None:
                progress(total - remaining, total)

        source = self._connection
        with closing(sqlite3.connect(f"{real.as_uri()}?mode=rw", uri=True)) as copy:
            source.execute("BEGIN")
            try:
                ends = source.execute(_ENDS).fetchall()
                source.backup(copy, pages=_BACKUP_PAGES, progress=report)
            finally:
                source.execute("ROLLBACK")
            # One file that is read without a -wal or a -shm beside it, and so is easily moved;
            # a Host that opens it switches the WAL on again.
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        # Opened anew: what matters is what the next program finds.
        with ExitStack() as owned:
            if _open(real, "ro", owned).execute(_ENDS).fetchall() != ends:
                raise StoreError("the copy is not complete", destination)

    def _fetch(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot be read: {describe(error)}", self.path) from error


def is_fresh(path: Path) -> bool:
    """Tell whether there is nothing at ``path`` yet: no file, an empty one, or an empty database.

    Raises:
        StoreError: what is there is not ours, or cannot be read.
    """
    real, contents = first_look(path)
    if contents is Contents.NOTHING:
        return True
    # Beyond the header: the news may still be in the -wal, or a -journal may take them back.
    with ExitStack() as owned:
        _, contents = _connect_and_look(real, path, owned)
        return contents is Contents.EMPTY_DATABASE


def open_reader(path: Path) -> Reader:
    """Open a database of ours for reading, checking what it is and its integrity.

    Raises:
        StoreError: there is none, it is not ours, or it is damaged.
    """
    real, contents = first_look(path)
    if contents is Contents.NOTHING:
        raise StoreError("there is no database", path)
    with ExitStack() as owned:
        connection, contents = _connect_and_look(real, path, owned)
        if contents is not Contents.OURS:
            raise StoreError("there is nothing in the database yet", path)
        _check_integrity(connection, path)
        return Reader(connection, path, owned.pop_all())


def _connect_and_look(
    real: Path, path: Path, owned: ExitStack
) -> tuple[sqlite3.Connection, Contents]:
    try:
        with ExitStack() as beside:
            # Before all else: a Host may go on meanwhile, and what it commits only adds to it.
            alone = _open_alone(real, beside)
            marks = [] if alone is None else _marks(alone)
            connection = _connect(real, path, owned)
            contents = check_layout(connection, path)
            if alone is not None:
                together = connection if contents is Contents.OURS else None
                _refuse_foreign_companions(marks, alone, together, real, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"cannot be read: {describe(error)}", path) from error
    except OSError as error:  # from making a private copy
        raise StoreError(f"cannot be read: {error.strerror}", path) from error
    return connection, contents


def _connect(real: Path, path: Path, owned: ExitStack) -> sqlite3.Connection:
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
        return _open(_private_copy(real, ("-journal", "-wal"), owned), "rw", owned)
    try:
        return _open(real, "ro", owned)
    except sqlite3.OperationalError as error:
        if primary_code(error) not in _NO_SHM:
            raise
        if _size(real, "-wal") == 0:
            return _open(real, "ro&immutable=1", owned)
        if not real.with_name(real.name + "-shm").exists():
            return _open(_private_copy(real, ("-wal",), owned), "rw", owned)
        raise StoreError(
            f"cannot be read ({describe(error)}): it is open elsewhere, and its directory "
            "cannot be written here",
            path,
        ) from error


def _open(real: Path, mode: str, owned: ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{real.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.text_factory = _text
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # opening is lazy
    except BaseException:
        connection.close()
        raise
    owned.callback(connection.close)
    return connection


def _text(stored: bytes) -> str:
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
        return _open(real, "ro&immutable=1", owned)
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # a kill in the middle of a checkpoint leaves the file alone torn


def _marks(alone: sqlite3.Connection) -> list[Row]:
    """Return what the file by itself shows of each session: its last row, or else its first.

    A row that is torn is none of them, nor one that cannot be reached.
    """
    try:
        session_ids = [session_id for (session_id,) in alone.execute(_SESSIONS).fetchall()]
    except (sqlite3.Error, UnicodeDecodeError):
        return []
    marks = [
        _chained_row(alone, session_id, _GREATEST_SEQUENCE) or _chained_row(alone, session_id, 1)
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
    if not rows or any(tuple(map(type, row)) != _COLUMN_TYPES for row in rows):
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


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    # Not quick_check: that does not see a row which the key's index has lost, and reading goes
    # by the index.
    try:
        ((verdict,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"is damaged: {describe(error)}", path) from error
    if verdict != "ok":
        raise StoreError(f"is damaged: {' '.join(str(verdict).split())}", path)
