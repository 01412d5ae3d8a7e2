"""Where a run took place: the machine, the disk, and what durability was in effect."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import trio

from actors.session_log import open_session_log
from benchmarks.raw import SESSION_ID, open_raw
from benchmarks.workload import chunk_events

if TYPE_CHECKING:
    from collections.abc import Generator

_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
FSYNCS_N = 101
PAGE = b"\0" * 4096
FSYNC_NOT_REAL_US = 20.0
"""No disk is as fast as this: the file system keeps its files in memory, or does not sync."""


def environment(place: Path) -> dict[str, Any]:
    """Return what a reader of the figures must know, as a JSON object."""
    fsync_us = _fsync_us(place)
    return {
        "durability": {
            "log": _durability_of_log(place),
            "sqlite": _durability_of_raw(place),
            "fsync_us": round(fsync_us, 1),
            "fsync_is_real": fsync_us >= FSYNC_NOT_REAL_US,
            "file_system": _file_system(place),
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def heading(setting: dict[str, Any]) -> str:
    """Return the same in lines for a person, durability first."""
    durable = setting["durability"]
    real = "real" if durable["fsync_is_real"] else "NOT REAL: only the code is measured"
    fsync = f"median {durable['fsync_us']} µs ({real})"
    software = f"{setting['python']}, SQLite {setting['sqlite']}, {setting['platform']}"
    load = setting["load_average_at_start"][0]
    return f"""\
durability  the log:      {_told(durable["log"])}
            plain SQLite: {_told(durable["sqlite"])}
            fsync of a page on {durable["file_system"]}: {fsync}
machine     {software}
            {setting["cpus"]} CPUs, load average at the start {load:.2f}"""


def _told(pragmas: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pragmas.items())


def _fsync_us(place: Path) -> float:
    """Return how long a page takes to the disk, in microseconds, the median of many."""
    taken: list[float] = []
    with TemporaryDirectory(dir=place) as fresh, (Path(fresh) / "pages").open("wb", 0) as file:
        for _ in range(FSYNCS_N):
            file.write(PAGE)
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def _file_system(place: Path) -> str:
    """Return the type of the file system that holds ``place``, as the system names it."""
    if sys.platform != "linux":
        return "a file system of unknown type"
    found = ("", "unknown")
    for entry in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mounted_at, kind, *_ = entry.split()
        if place.resolve().is_relative_to(mounted_at) and len(mounted_at) >= len(found[0]):
            found = (mounted_at, kind)
    return found[1]


def _pragmas(connection: sqlite3.Connection) -> dict[str, str]:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return {"journal_mode": str(mode).upper(), "synchronous": _SYNCHRONOUS[level]}


def _durability_of_raw(place: Path) -> dict[str, str]:
    with (
        TemporaryDirectory(dir=place) as fresh,
        closing(open_raw(Path(fresh) / "raw.sqlite3")) as connection,
    ):
        return _pragmas(connection)


def _durability_of_log(place: Path) -> dict[str, str]:
    """Ask the connection that an open log writes through, whoever holds it."""

    async def ask(path: Path) -> dict[str, str]:
        with _connections_seen() as connections:
            async with open_session_log(SESSION_ID, database=path) as log:
                await log.append(chunk_events(1)[0])
                # Of those it has opened it keeps the one that it writes through.
                for connection in reversed(connections):
                    with suppress(sqlite3.ProgrammingError):  # closed, or of another thread
                        return _pragmas(connection)
        return {"journal_mode": "unknown", "synchronous": "unknown"}

    with TemporaryDirectory(dir=place) as fresh:
        return trio.run(ask, Path(fresh) / "session.sqlite3")


@contextmanager
def _connections_seen() -> Generator[list[sqlite3.Connection], None, None]:
    """Collect the connections that are opened meanwhile."""
    seen: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def seeing(*arguments: Any, **options: Any) -> sqlite3.Connection:  # noqa: ANN401 # its own
        connection = connect(*arguments, **options)
        seen.append(connection)
        return connection

    sqlite3.connect = seeing
    try:
        yield seen
    finally:
        sqlite3.connect = connect
