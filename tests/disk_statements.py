"""A real SQLite connection on which chosen statements fail: a bad disk on any machine."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from disk_support import ALWAYS, COUNT, DONE, FAIL, TEAR, VANISH

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

# The code of an error -> its name and SQLite's words for it.
ERRORS = {
    sqlite3.SQLITE_FULL: ("SQLITE_FULL", "database or disk is full"),
    sqlite3.SQLITE_READONLY: ("SQLITE_READONLY", "attempt to write a readonly database"),
    sqlite3.SQLITE_CANTOPEN: ("SQLITE_CANTOPEN", "unable to open database file"),
    sqlite3.SQLITE_IOERR_WRITE: ("SQLITE_IOERR_WRITE", "disk I/O error"),
    sqlite3.SQLITE_IOERR_FSYNC: ("SQLITE_IOERR_FSYNC", "disk I/O error"),
    sqlite3.SQLITE_IOERR_SHMSIZE: ("SQLITE_IOERR_SHMSIZE", "disk I/O error"),
}


class StatementFaults:
    """Decides which statements fail, of connections made by :meth:`connect`."""

    def __init__(self) -> None:
        self._start: str | None = None
        self._match, self._action, self._error, self._skip, self._times = "", COUNT, 0, 0, 0
        self.hits_n = 0

    def connect(self, real: Path) -> sqlite3.Connection:
        """Connect as the store does; to be put in its place."""
        connection = sqlite3.connect(
            f"{real.as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            factory=FaultyConnection,
        )
        connection.faults, connection.directory = self, real.parent
        return connection

    def arm(
        self,
        call: str,
        match: str,
        action: int = FAIL,
        *,
        error: int = sqlite3.SQLITE_IOERR_WRITE,
        skip: int = 0,
        times: int = ALWAYS,
    ) -> None:
        """Have statements that begin with ``call`` fail; ``match`` is the file that vanishes."""
        self._match, self._action, self._error = match, action, error
        self._skip, self._times, self._start, self.hits_n = skip, times, call, 0

    def mend(self) -> None:
        """Let every statement through from now on."""
        self._start = None

    @contextmanager
    def set_aside(self) -> Generator[None, None, None]:
        """Do nothing: only statements of the store's own connection fail."""
        yield

    def fate(self, sql: str) -> int:
        """Return what is to happen to this statement."""
        if self._start is None or not sql.startswith(self._start):
            return COUNT
        self._skip -= 1
        if self._skip >= 0 or self._times <= 0:
            return COUNT
        self._times -= 1
        self.hits_n += 1
        return self._action

    def vanish(self, directory: Path) -> None:
        """Take the file from its place."""
        file = directory / self._match
        if file.exists():
            file.rename(f"{file}.away")

    def error(self) -> sqlite3.OperationalError:
        """Return the error that SQLite would raise."""
        name, words = ERRORS[self._error]
        error = sqlite3.OperationalError(words)
        error.sqlite_errorcode, error.sqlite_errorname = self._error, name
        return error


class FaultyConnection(sqlite3.Connection):
    """A real connection on which chosen statements fail."""

    faults: StatementFaults
    directory: Path

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute it, or half of it, or not."""
        action = self.faults.fate(sql)
        if action == VANISH:
            self.faults.vanish(self.directory)
        if action == DONE:
            super().execute(sql, parameters)
        if action == TEAR and self.in_transaction:
            super().execute("ROLLBACK")  # as SQLite does by itself for some errors
        if action in {FAIL, TEAR, DONE}:
            raise self.faults.error()
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        """Execute it for all, for the first, or for none."""
        action, rows = self.faults.fate(sql), list(parameters)
        if action == VANISH:
            self.faults.vanish(self.directory)
        if action in {TEAR, DONE}:
            super().executemany(sql, rows[:1] if action == TEAR else rows)
        if action in {FAIL, TEAR, DONE}:
            raise self.faults.error()
        return super().executemany(sql, rows)
