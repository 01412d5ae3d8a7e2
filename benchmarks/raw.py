"""Plain SQLite: the same rows, as durable, with nothing else done to them.

Texts and digests are made before any clock runs, there are no triggers, and everything happens in
the main thread. So what a ratio to this shows is all that the log adds.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from actors.codec import encode_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from actors.events import Event

SESSION_ID = "bench"
RAW_BATCH_N = 256

_CREATE = """
CREATE TABLE session_events (
    session_id TEXT NOT NULL, sequence INTEGER NOT NULL, format_version INTEGER NOT NULL,
    recorded_at TEXT NOT NULL, event_type TEXT NOT NULL, payload TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (session_id, sequence)
) STRICT
"""
_INSERT = "INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT * FROM session_events WHERE session_id = ? ORDER BY sequence"
_AT = "2026-01-01T00:00:00.000000Z"

RawRow = tuple[str, int, int, str, str, str, bytes]


def prepared_rows(events: Iterable[Event]) -> list[RawRow]:
    """Return rows with the columns of the log's, ready to be inserted.

    The digest is as long as the log's; nobody checks this one, so it chains nothing.
    """
    rows: list[RawRow] = []
    for sequence, event in enumerate(events, 1):
        event_type, payload = encode_event(event)
        digest = hashlib.sha256(payload.encode()).digest()
        rows.append((SESSION_ID, sequence, 0, _AT, event_type, payload, digest))
    return rows


def open_raw(path: Path) -> sqlite3.Connection:
    """Return a connection to a new database, as durable as the log's."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(_CREATE)
    return connection


def write_raw(path: Path, rows: Sequence[RawRow], batch_n: int) -> float:
    """Insert the rows into a new file, ``batch_n`` a transaction; return the seconds it took."""
    with closing(open_raw(path)) as connection:
        execute = connection.execute
        began = time.perf_counter()
        if batch_n == 1:
            for row in rows:
                execute("BEGIN IMMEDIATE")
                execute(_INSERT, row)
                execute("COMMIT")
        else:
            for start in range(0, len(rows), batch_n):
                execute("BEGIN IMMEDIATE")
                connection.executemany(_INSERT, rows[start : start + batch_n])
                execute("COMMIT")
        return time.perf_counter() - began


def read_raw(path: Path) -> float:
    """Fetch a session's rows and parse each payload, unchecked; return the seconds it took."""
    began = time.perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(_SELECT, (SESSION_ID,)).fetchall()
        payloads = [json.loads(row[5]) for row in rows]
        took = time.perf_counter() - began
    assert len(payloads) == len(rows) > 0
    return took
