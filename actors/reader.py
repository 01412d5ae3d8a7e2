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
from typing import TYPE_CHECKING, Any

from actors.errors import StoreError
from actors.layout import Contents, check_layout, first_look, refuse_orphans
from actors.rows import Row, describe, primary_code, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

PAGE_ROWS = 1000

_COLUMN_TYPES = (str, int, int, str, str, str, bytes)
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
# (session id, digest of its first row) of each session.
_FIRSTS = f"""SELECT id, (SELECT digest FROM session_events WHERE session_id = id AND sequence = 1)
              FROM ({_SESSIONS})"""  # noqa: S608 (a constant of this module)
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
        rows = [
            Row(*columns)
            for columns in self._fetch(_PAGE, session_id, start, min(limit, PAGE_ROWS))
        ]
        for row in rows:
            if tuple(map(type, row)) != _COLUMN_TYPES:
                raise StoreError(
                    f"row {row.sequence!r:.40} has a column of a wrong type", self.path
                )
        return rows

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
        connection = _connect(real, path, owned)
        contents = check_layout(connection, path)
        if contents is Contents.OURS:
            _refuse_foreign_companions(connection, real, path)
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
        if _size(real, "-wal") > 0 and _is_journal(real):
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


def _is_journal(real: Path) -> bool:
    """Tell whether the ``-journal`` is one that SQLite would play back, and not just bytes."""
    with real.with_name(real.name + "-journal").open("rb") as file:
        return file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC


def _refuse_foreign_companions(connection: sqlite3.Connection, real: Path, path: Path) -> None:
    """Refuse a ``-wal`` or ``-journal`` that makes another database of the file.

    SQLite plays in whatever fits the page size, and the other database may be as sound as this
    one. But the first row of a session never changes: the file alone, as far as it can be read
    without what is beside it, must agree with both together on one at least.
    """
    if _size(real, "-wal") == 0 and _size(real, "-journal") == 0:
        return
    try:
        with ExitStack() as owned:
            alone = dict(_open(real, "ro&immutable=1", owned).execute(_FIRSTS).fetchall())
    except (sqlite3.Error, UnicodeDecodeError):
        return  # a kill in the middle of a checkpoint leaves the file alone torn
    together = dict(connection.execute(_FIRSTS).fetchall())
    if alone and not alone.items() & together.items():
        raise StoreError("the -wal or -journal beside it belongs to another database", path)


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
