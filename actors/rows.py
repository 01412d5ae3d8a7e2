"""A stored row, SQLite's errors, a sync to disk: what reading and writing the file share."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


# What SQLite calls "disk I/O error" though the disk is well: a write that a quota or a limit on the
# file's size cuts short, and a -shm that cannot grow. A full disk itself it tells by its name.
_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})


class Row(NamedTuple):
    """One row as it is stored, its columns in their order."""

    session_id: str
    sequence: int
    format_version: int
    recorded_at: str
    event_type: str
    payload: str
    digest: bytes


def describe(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """Return SQLite's words for an error in one line, with its symbolic name where it has one.

    Words that quote a damaged file may not even be text: Python then has an error of its own.
    """
    if isinstance(error, UnicodeDecodeError):
        return "it holds text that is no UTF-8"
    name = getattr(error, "sqlite_errorname", None)
    words = " ".join(str(error).split())
    if not name:
        return words
    hint = ": the disk or a quota may be full" if name in _NO_ROOM else ""
    return f"{words} ({name}){hint}"


def primary_code(error: sqlite3.Error) -> int:
    """Return which kind of error it is, without the detail of an extended result code.

    The kind is in the low eight bits (sqlite.org/rescode.html). What Python's own layer raises
    has no code and counts as ``SQLITE_ERROR``.
    """
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def sync(path: Path, flags: int) -> None:
    """Have the disk keep a file's content, or with ``O_RDONLY`` a directory's names.

    Raises:
        OSError: it did not.
    """
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
