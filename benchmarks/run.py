"""Measure the durable log against plain SQLite doing the same work, in the same run.

A figure alone says more about the disk than about the code; the ratio to SQLite on the same
disk, taken in turns, is what can be compared from one machine or day to another.
"""

from __future__ import annotations

import json
import platform
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import click
import trio
from attrs import frozen

from actors.codec import encode_event, rfc3339_now, row_digest
from actors.session_log import open_session_log
from benchmarks.workload import session_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.events import Event

SESSION_ID = "bench"
BATCH_EVENTS_N = 256

_Row = tuple[str, int, int, str, str, str, bytes]

CREATE = """
CREATE TABLE session_events (
    session_id TEXT NOT NULL, sequence INTEGER NOT NULL, format_version INTEGER NOT NULL,
    recorded_at TEXT NOT NULL, event_type TEXT NOT NULL, payload TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (session_id, sequence)
) STRICT
"""
INSERT = "INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)"
SELECT = "SELECT * FROM session_events WHERE session_id = ? ORDER BY sequence"


@frozen
class Case:
    """The same work twice: each side is given a path and returns the seconds that it took."""

    name: str
    events_n: int
    log_s: Callable[[Path], float]
    sqlite_s: Callable[[Path], float]


@frozen
class Result:
    """One line of the report."""

    case: str
    events_n: int
    log_us: float
    """Median over the rounds, in microseconds an event."""
    sqlite_us: float
    ratio: float
    """Median over the rounds of log to SQLite, each pair measured back to back."""
    ratio_least: float
    ratio_most: float


def prepared_rows(events: Sequence[Event]) -> list[_Row]:
    """Return the rows that the log would store, made before any clock runs."""
    rows: list[_Row] = []
    digest: bytes | None = None
    for sequence, event in enumerate(events, 1):
        event_type, payload = encode_event(event)
        at = rfc3339_now()
        digest = row_digest(digest, SESSION_ID, sequence, 0, at, event_type, payload)
        rows.append((SESSION_ID, sequence, 0, at, event_type, payload, digest))
    return rows


def write_with_log(path: Path, events: Sequence[Event], batch_n: int) -> float:
    """Append ``events``, ``batch_n`` a call, one call after the other; return the seconds."""

    async def write() -> float:
        async with open_session_log(SESSION_ID, database=path) as log:
            began = time.perf_counter()
            if batch_n == 1:
                for event in events:
                    await log.append(event)
            else:
                for start in range(0, len(events), batch_n):
                    await log.append_many(events[start : start + batch_n])
            return time.perf_counter() - began

    return trio.run(write)


def write_with_sqlite(path: Path, rows: Sequence[_Row], batch_n: int) -> float:
    """Insert ``rows`` as durably, ``batch_n`` a transaction; return the seconds."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(CREATE)
        began = time.perf_counter()
        for start in range(0, len(rows), batch_n):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(INSERT, rows[start : start + batch_n])
            connection.execute("COMMIT")
        return time.perf_counter() - began


def reload_with_log(path: Path) -> float:
    """Open a written session until its snapshot can be read; return the seconds."""

    async def reload() -> float:
        began = time.perf_counter()
        async with open_session_log(SESSION_ID, database=path) as log:
            log.snapshot()
            return time.perf_counter() - began

    return trio.run(reload)


def reload_with_sqlite(path: Path) -> float:
    """Open the same file and fetch its rows, unchecked and unread; return the seconds."""
    began = time.perf_counter()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(SELECT, (SESSION_ID,)).fetchall()
        return time.perf_counter() - began


def cases(events_n: int, written: Path) -> Iterator[Case]:
    """Prepare the three cases; ``written`` becomes the file that the last one reloads."""
    events = session_events(events_n)
    rows = prepared_rows(events)
    for name, batch_n, most_n in (
        ("append", 1, 512),
        (f"append_many({BATCH_EVENTS_N})", BATCH_EVENTS_N, events_n),
    ):
        some_n = min(events_n, most_n)
        yield Case(
            name,
            some_n,
            lambda path, n=some_n, b=batch_n: write_with_log(path, events[:n], b),
            lambda path, n=some_n, b=batch_n: write_with_sqlite(path, rows[:n], b),
        )
    write_with_log(written, events, BATCH_EVENTS_N)
    yield Case(
        "reload",
        events_n,
        lambda _: reload_with_log(written),
        lambda _: reload_with_sqlite(written),
    )


def measure(case: Case, rounds_n: int, directory: Path) -> Result:
    """Run both sides ``rounds_n`` times in turns, each going first every other round."""
    log_s: list[float] = []
    sqlite_s: list[float] = []
    sides = [(case.log_s, log_s), (case.sqlite_s, sqlite_s)]
    for _ in range(rounds_n):
        for work, times in sides:
            with TemporaryDirectory(dir=directory) as fresh:
                times.append(work(Path(fresh) / "session.sqlite3"))
        sides.reverse()
    ratios = [ours / theirs for ours, theirs in zip(log_s, sqlite_s, strict=True)]
    return Result(
        case.name,
        case.events_n,
        statistics.median(log_s) / case.events_n * 1e6,
        statistics.median(sqlite_s) / case.events_n * 1e6,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def report(results: Sequence[Result]) -> str:
    """Return the results as a table for a person."""
    lines = [f"{'':<18}{'events':>8}{'log':>12}{'sqlite':>12}{'ratio':>8}   least … most"]
    lines += [
        f"{result.case:<18}{result.events_n:>8}{result.log_us:>9.1f} µs{result.sqlite_us:>9.1f} µs"
        f"{result.ratio:>8.2f}   {result.ratio_least:.2f} … {result.ratio_most:.2f}"
        for result in results
    ]
    return "\n".join(lines)


@click.command()
@click.option("--events", "events_n", type=click.IntRange(min=1), default=4096, show_default=True)
@click.option("--rounds", "rounds_n", type=click.IntRange(min=1), default=7, show_default=True)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Where the databases are written: the disk that is measured.  [default: here]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def main(events_n: int, rounds_n: int, directory: Path, *, as_json: bool) -> None:
    """Measure the durable log against plain SQLite on the same disk; times are an event's."""
    with TemporaryDirectory(prefix="bench-", dir=directory) as name:
        place = Path(name)
        prepared = cases(events_n, place / "written.sqlite3")
        results = [measure(case, rounds_n, place) for case in prepared]
    if as_json:
        setting = {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "platform": platform.platform(),
            "rounds": rounds_n,
        }
        print(json.dumps({**setting, "results": [attrs.asdict(result) for result in results]}))
    else:
        print(report(results))


if __name__ == "__main__":
    main()
