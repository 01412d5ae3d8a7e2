"""A stored row, and SQLite's errors in words: what reading and writing the file share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3


class Row(NamedTuple):
    """One stored row, its columns in their order."""

    session_id: str
    sequence: int
    format_version: int
    recorded_at: str
    event_type: str
    payload: str
    digest: bytes


def describe(error: sqlite3.Error) -> str:
    """Return SQLite's words for an error, with its symbolic name where it has one."""
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error)
