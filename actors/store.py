"""The database file, opened for writing: made, checked, and given one transaction at a time.

Opening is a fixed sequence of steps, each a function here: make the file if there is nothing
yet, connect, switch and read back what durability rests on, and see that the file still ends
where it was loaded to. Synchronous; knows rows, not events.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing, suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from actors.errors import AppendFailed, OutcomeUnknown, StoreError
from actors.layout import (
    APPLICATION_ID,
    CREATE_STATEMENTS,
    SCHEMA_VERSION,
    Contents,
    check_layout,
    first_look,
)
from actors.rows import describe, primary_code, sync

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from actors.rows import Row

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for a foreign tool that holds the file, before it fails."""

_ROWS_A_STATEMENT = 256
_LAST = """SELECT sequence, digest FROM session_events
           WHERE session_id = ? ORDER BY sequence DESC LIMIT 1"""
# Extended result codes, from the list at sqlite.org/rescode.html.
_FSYNC_FAILURES = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
# A COMMIT that fails with one of these has written and synced its frames: what it then did not
# get is room for their index, in memory that is shared by way of the -shm file.
_INDEX_FAILURES = frozenset({sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP})
_HELD_BY_ANOTHER = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class MemoryStore:
    """Stands where the file would: keeps nothing, so nothing outlives the process."""

    def commit(self, rows: Sequence[Row]) -> None:
        """Do nothing: what is published is all there is."""

    def close(self) -> None:
        """Do nothing."""


class Store:
    """The open file. One call at a time, from whichever thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        session_id: str,
        last: tuple[int, bytes | None],
        real: Path,
    ) -> None:
        self._connection = connection
        self._path = path
        self._real = real
        self._files = str(real), f"{real}-wal"
        self._identity = file_identity(real)
        self._wal_identity = file_identity(self._files[1])
        """None where there is none yet: SQLite makes the file when it needs it."""
        self._session_id = session_id
        self._last = last

    def commit(self, rows: Sequence[Row]) -> None:
        """Write the rows in one transaction; when this returns they survive power loss.

        Raises:
            AppendFailed: nothing was written, and a later commit may succeed.
            OutcomeUnknown: it cannot be told whether they were written.
        """
        connection = self._connection
        moved = self._moved_file()
        if moved is not None:
            # Through its descriptors SQLite would go on writing to what no name leads to.
            raise AppendFailed(f"{moved} was moved, deleted or replaced", self._path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._insert(rows)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._account_for(error) from error
        if self._wal_identity is None:
            self._wal_identity = file_identity(self._files[1])
        moved = self._moved_file()
        if moved is not None or self._wal_identity is None:
            # It is committed to whatever the file is called now, if it is called anything.
            what = moved or "the -wal file of the database"
            raise OutcomeUnknown(f"{what} was moved, deleted or replaced meanwhile", self._path)
        self._last = (rows[-1].sequence, rows[-1].digest)

    def _insert(self, rows: Sequence[Row]) -> None:
        # Not row by row: after each statement this thread must get Python's lock back, and beside
        # an event loop that is busy without a pause it waits milliseconds for it every time. In
        # powers of two, so that a handful of prepared statements serve every length.
        done_n = 0
        while done_n < len(rows):
            some_n = min(_ROWS_A_STATEMENT, 1 << (len(rows) - done_n).bit_length() - 1)
            some = rows[done_n : done_n + some_n]
            self._connection.execute(_insert_statement(some_n), list(chain.from_iterable(some)))
            done_n += some_n

    def _moved_file(self) -> str | None:
        """Return which file of ours is not in its place, None if all are."""
        database, wal = self._files
        if self._identity is None or file_identity(database) != self._identity:
            return "the database file"
        if self._wal_identity is not None and file_identity(wal) != self._wal_identity:
            return "the -wal file of the database"
        return None

    def _account_for(self, error: sqlite3.Error) -> StoreError:
        """Make sure that no transaction is open, and find out what became of the failed one."""
        fault = f"the database cannot be written: {describe(error)}"
        try:
            # Some errors (a full disk) have rolled back by themselves, some have not.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if getattr(error, "sqlite_errorcode", None) in _INDEX_FAILURES:
                self._overwrite_frames()
            last = read_last(self._connection, self._session_id)
        except sqlite3.Error as second:
            return OutcomeUnknown(
                f"{fault}; then it could not be read: {describe(second)}", self._path
            )
        if getattr(error, "sqlite_errorcode", None) in _FSYNC_FAILURES:
            # Whatever was just read: the frames may be on the disk or not, and a crash may yet
            # bring them back.
            return OutcomeUnknown(fault, self._path)
        if last != self._last:
            return OutcomeUnknown(
                f"{fault}; its last event is {last[0]} where {self._last[0]} was committed last",
                self._path,
            )
        if primary_code(error) not in _HELD_BY_ANOTHER:  # that one would be waited for again
            # If it was only the -wal that could not grow, emptying it makes room. It is no fault
            # if that fails too: the append has failed already, and the next one tries again.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return AppendFailed(fault, self._path)

    def _overwrite_frames(self) -> None:
        """Take the rows of a failed COMMIT out of the ``-wal``, where a kill would leave them.

        This connection has forgotten them, and so writes in their place: a transaction that
        changes nothing. Its own COMMIT may fail as that one did, which is just as good, since
        it is on the disk by then.

        Raises:
            sqlite3.Error: they may still be there.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) not in _INDEX_FAILURES:
                raise
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Move all that is in the ``-wal`` into the file, and close it.

        The ``-wal`` goes with that, unless another program has the file open. One that is in
        the middle of reading keeps what it needs: its rows are safe there, and that is no error.

        Raises:
            StoreError: it could not be moved. It is safe where it is; the next start reads it.
                Or the file is not in its place, and what it holds is found where it now is.
        """
        with closing(self._connection) as connection:
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as error:
                raise StoreError(
                    f"the database could not be checkpointed: {describe(error)}", self._path
                ) from error
        # The -wal, if that was what had gone, is not needed any more.
        if self._identity is None or file_identity(self._real) != self._identity:
            raise StoreError("the database file was moved, deleted or replaced", self._path)


@cache
def _insert_statement(rows_n: int) -> str:
    places = ",".join(["(?,?,?,?,?,?,?)"] * rows_n)
    return f"INSERT INTO session_events VALUES {places}"  # noqa: S608 (question marks alone)


def open_store(path: Path, session_id: str, last: tuple[int, bytes | None]) -> Store:
    """Open the file for writing, making it if there is nothing yet.

    The owner's lock must be held and the file must have been read. ``last`` is the sequence
    and digest of the session's last row as it was read, ``(0, None)`` for a new session.

    Raises:
        StoreError: the file is not ours, cannot be made or written, is not durable as asked, or
            ends elsewhere than at ``last``.
    """
    real, contents = first_look(path)
    with ExitStack() as beside:
        try:
            _require_writable(real)
            if contents is Contents.NOTHING:
                create(real)
            identity = file_identity(real)
            if not real.with_name(real.name + "-journal").exists():  # that must be rolled back
                beside.enter_context(closing(_onlooker(real)))
            connection = connect(real)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"cannot be opened for writing: {describe(error)}", path) from error
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", path) from error
        try:
            if check_layout(connection, path) is Contents.EMPTY_DATABASE:
                _define(connection)
            _make_durable(connection, path)
            _check_last(connection, session_id, last, path)
            _require_in_place(real, identity, path)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            connection.close()
            raise StoreError(f"cannot be opened for writing: {describe(error)}", path) from error
        except BaseException:
            connection.close()
            raise
    return Store(connection, path, session_id, last, real)


def tidy_up(path: Path) -> None:
    """Take the empty ``-wal`` away that reading has made beside a file, if nobody has it open.

    SQLite does so when it closes what it might have written. Nothing is written here: a ``-wal``
    that holds anything, or a ``-journal``, is for the next start. The owner's lock must be held.
    """
    real = path.resolve()
    wal, journal = (real.with_name(real.name + suffix) for suffix in ("-wal", "-journal"))
    if wal.exists() and wal.stat().st_size == 0 and not journal.exists():
        # Where it cannot be, as in a directory that may only be read, an empty one says nothing.
        with suppress(sqlite3.Error), closing(connect(real)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()


def file_identity(path: Path | str) -> tuple[int, int] | None:
    """Return what tells the file at ``path`` from any other, None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 # four times a commit: Path.stat takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _onlooker(real: Path) -> sqlite3.Connection:
    """Return a connection that only reads, to be open while another one is opened for writing.

    Closed as the last one, a connection deletes the ``-wal``; so does one that never came to read
    it, if its ``-shm`` could not be opened at first and then could for reading alone.
    """
    connection = sqlite3.connect(f"{real.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _require_in_place(real: Path, identity: tuple[int, int] | None, path: Path) -> None:
    if identity is None or file_identity(real) != identity:
        raise StoreError("was moved, deleted or replaced while it was opened", path)


def _require_writable(real: Path) -> None:
    # Asked of the system: SQLite opens a file that may only be read without a word, and a
    # rename goes over one.
    with suppress(FileNotFoundError):
        os.close(os.open(real, os.O_RDWR))


def create(real: Path) -> None:
    """Make a complete, empty database at ``real``, or nothing at all if killed on the way.

    It is built beside its place and renamed into it: whoever looks, also after a kill at any
    instant, finds either no database or one that needs no roll-back.
    """
    draft = real.with_name(real.name + "-new")
    for suffix in ("", "-journal", "-wal", "-shm"):  # what a start left behind that was killed
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with closing(connect(draft)) as connection:
        _define(connection)
        # Only now: the switch alone would leave a database behind that is not ours yet.
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
    sync(draft, os.O_RDWR)
    # Only one that restores nothing was let through; beside a database it would truncate that.
    real.with_name(real.name + "-journal").unlink(missing_ok=True)
    draft.rename(real)
    sync(real.parent, os.O_RDONLY)


def connect(real: Path) -> sqlite3.Connection:
    """Return a connection that begins no transaction by itself and serves any one thread."""
    connection = sqlite3.connect(
        f"{real.as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    # Each fsync as strong as the platform has it; only macOS knows a stronger one.
    connection.execute("PRAGMA fullfsync=1")
    return connection


def _define(connection: sqlite3.Connection) -> None:
    """Give an empty database its table, triggers, application id and version, or none of it."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in CREATE_STATEMENTS:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _make_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Switch on what an acknowledgement rests on, and read it back: a build may differ."""
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute("PRAGMA synchronous=FULL")
    for pragma, wanted in (("journal_mode", "wal"), ("synchronous", 2)):
        (found,) = connection.execute(f"PRAGMA {pragma}").fetchone()
        if found != wanted:
            raise StoreError(f"{pragma} is {found!r} and cannot be made {wanted!r} here", path)


def _check_last(
    connection: sqlite3.Connection, session_id: str, last: tuple[int, bytes | None], path: Path
) -> None:
    # As a write: a -wal that may only be read opens without a word, and so does a database that
    # for a moment could not be opened for writing. Both are found out here, and nothing changes.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    found = read_last(connection, session_id)
    connection.execute("ROLLBACK")
    if found != last:
        raise StoreError(
            f"was written by another program while it was opened: its last event is {found[0]}, "
            f"not {last[0]}",
            path,
        )


def read_last(connection: sqlite3.Connection, session_id: str) -> tuple[int, bytes | None]:
    """Return the sequence and digest of the session's last row, ``(0, None)`` for none."""
    row = connection.execute(_LAST, (session_id,)).fetchone()
    return (0, None) if row is None else (row[0], row[1])
