"""What is measured in a process of its own: ``python -m benchmarks.child TASK DATABASE …``.

Prints one JSON object, of samples by name.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import structlog
import trio

from actors.session_log import open_session_log
from benchmarks import by_agent
from benchmarks.raw import SESSION_ID
from benchmarks.sessions import copied, write_session
from benchmarks.workload import chunk_events, session_events

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Samples = dict[str, list[float]]

WARM_UP_EVENTS_N = 300
CALLS_N = 1_000
SAMPLES_N = 200


def resident_bytes() -> int:
    """Return how much memory this process has in RAM, in bytes."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    ps = ["/bin/ps", "-o", "rss=", "-p", str(os.getpid())]
    return int(subprocess.check_output(ps)) * 1024  # noqa: S603 # nothing from outside


async def reload(path: Path) -> Samples:
    """Time the opening of a session, and weigh what then stays in memory."""
    with TemporaryDirectory(dir=path.parent) as fresh:
        # What only a first time loads and compiles belongs to no event.
        small = Path(fresh) / "small.sqlite3"
        await trio.to_thread.run_sync(write_session, small, session_events(WARM_UP_EVENTS_N))
        async with open_session_log(SESSION_ID, database=small):
            pass
    gc.collect()
    before = resident_bytes()
    began, began_cpu = time.perf_counter(), time.process_time()
    async with open_session_log(SESSION_ID, database=path) as log:
        log.snapshot()
        took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        gc.collect()
        return {"s": [took], "cpu_s": [took_cpu], "resident_b": [resident_bytes() - before]}


async def snapshots(path: Path) -> Samples:
    """Time ``snapshot()``: again and again, and the first one after an append."""
    again: list[float] = []
    first: list[float] = []
    with copied(path) as copy:
        async with open_session_log(SESSION_ID, database=copy) as log:
            for event in chunk_events(SAMPLES_N):
                await log.append(event)
                began = time.perf_counter()
                log.snapshot()
                first.append((time.perf_counter() - began) * 1e6)
            for _ in range(SAMPLES_N):
                began = time.perf_counter()
                for _ in range(CALLS_N):
                    log.snapshot()
                again.append((time.perf_counter() - began) / CALLS_N * 1e6)
    return {"again_us": again, "first_us": first}


async def projection(path: Path) -> Samples:
    """Time what a Step does to know its history: a snapshot, the messages, and their hash.

    The messages come as a tuple of the caller's own, which goes to the provider as it is. One
    such copy is timed beside it and taken off.
    """
    projected: list[float] = []
    copies: list[float] = []
    with copied(path) as copy:
        async with open_session_log(SESSION_ID, database=copy) as log:
            for event in chunk_events(SAMPLES_N):
                await log.append(event)  # so that the snapshot is not the one before
                began = time.perf_counter()
                snapshot = log.snapshot()
                history = snapshot.model_history()
                snapshot.history_ref()
                took = time.perf_counter() - began
                messages = list(history)
                began = time.perf_counter()
                tuple(messages)
                copy_s = time.perf_counter() - began
                projected.append((took - copy_s) * 1e6)
                copies.append(copy_s * 1e6)
    return {"projection_us": projected, "copy_us": copies}


async def add_turns(path: Path, turns_n: int) -> Samples:
    """Have the agent add Turns to a session."""
    await by_agent.add_turns(path, turns_n)
    return {}


TASKS: dict[str, Callable[..., Awaitable[Samples]]] = {
    task.__name__: task for task in (reload, snapshots, projection, add_turns)
}


def main() -> None:
    """Run the task that the command line names."""
    _, task, path, *numbers = sys.argv
    # What the agent tells of its Turns would be most of what is measured, and end in the JSON.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(trio.run(TASKS[task], Path(path), *map(int, numbers))))


if __name__ == "__main__":
    main()
