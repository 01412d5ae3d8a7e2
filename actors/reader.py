"""The database file, read-only: while a Host runs on it, after one was killed, wherever it is.

Nothing here changes the file, takes its owner's lock, or holds a transaction for longer than a
page takes: a reader that lingers would keep the ``-wal`` from being emptied.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NoReturn

from actors.companions import (
    COLUMN_TYPES,
    GREATEST_SEQUENCE,
    SESSIONS,
    connect,
    open_file,
    stored_text,
)
from actors.errors import StoreError
from actors.layout import Contents, first_look, refuse_orphans
from actors.rows import Row, describe, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PAGE_ROWS = 1000

_TYPES = (), tuple({kind} for kind in COLUMN_TYPES)  # of no rows, of some
_PAGE = """SELECT session_id, sequence, format_version, recorded_at, event_type, payload, digest
           FROM session_events WHERE session_id = ? AND sequence >= ? ORDER BY sequence LIMIT ?"""
_LAST = "SELECT coalesce(max(sequence), 0) FROM session_events WHERE session_id = ?"
# (session id, last sequence) of each session, by the same steps.
_ENDS = f"""SELECT id, (SELECT max(sequence) FROM session_events WHERE session_id = id)
            FROM ({SESSIONS})"""  # noqa: S608 (a constant of this module)
_LEAST_SEQUENCE = -(2**63)
_BACKUP_PAGES = 1024


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
        return tuple(str(session_id) for (session_id,) in self._fetch(SESSIONS))

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
        if start > GREATEST_SEQUENCE:
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
        # Python decodes by itself what is plain UTF-8; a function of ours for each text would
        # take as long as all the rest.
        self._connection.text_factory = str
        try:
            return self._connection.execute(query, parameters).fetchall()
        finally:
            self._connection.text_factory = stored_text

    def _refuse_types(self, rows: Iterable[tuple[Any, ...]]) -> NoReturn:
        columns = next(columns for columns in rows if tuple(map(type, columns)) != COLUMN_TYPES)
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
            if open_file(real, "ro", owned).execute(_ENDS).fetchall() != ends:
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
        _, contents = connect(real, path, owned)
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
        connection, contents = connect(real, path, owned)
        if contents is not Contents.OURS:
            raise StoreError("there is nothing in the database yet", path)
        _check_integrity(connection, path)
        return Reader(connection, path, owned.pop_all())


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    # Not quick_check: that does not see a row which the key's index has lost, and reading goes
    # by the index.
    try:
        ((verdict,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"is damaged: {describe(error)}", path) from error
    if verdict != "ok":
        raise StoreError(f"is damaged: {' '.join(str(verdict).split())}", path)
