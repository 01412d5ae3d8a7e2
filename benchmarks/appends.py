"""The lines about appending: throughput beside plain SQLite, and what the event loop notices."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen

from actors.session_log import open_session_log
from benchmarks.lines import Line, Result, compared
from benchmarks.loop import BusyTask, Ticker
from benchmarks.raw import RAW_BATCH_N, SESSION_ID, prepared_rows, write_raw
from benchmarks.workload import chunk_events, session_events
from web import interpreter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence

    from actors.events import Event
    from actors.session_log import SessionLog
    from benchmarks.lines import Settings
    from benchmarks.raw import RawRow

SEQUENTIAL = Line("append", "sequential durable append", "raw1", 0.35, 0.5, True)
CONCURRENT_64 = Line("appenders-64", "64 concurrent appenders", "raw1", 1.7, 2.5, True)
CONCURRENT_512 = Line("appenders-512", "512 concurrent appenders", "raw1", 1.5, 2.3, True)
MANY = Line("append-many", "append_many, 256 events", "raw256", 0.3, 0.5, True)
TICKER = Line("ticker", "longest hold-up of a 1 ms ticker during these", "ms", 10, 3)
BUSY_80 = Line("busy-80", "64 appenders, the loop kept 80 % busy", "raw1", 0.5, 1.0, True)
BUSY_80_P99 = Line("busy-80-p99", "  the same: p99 latency of an append", "ms", 50)
BUSY_100 = Line("busy-100", "64 appenders, the loop kept 100 % busy", "raw1", 0.02, 0.5, True)
LINES = (
    SEQUENTIAL, CONCURRENT_64, CONCURRENT_512, MANY, TICKER, BUSY_80, BUSY_80_P99, BUSY_100,
)  # fmt: skip

CALIBRATION_ROWS_N = 200
BUSY_SLICES_S = {0.8: 0.0008, 1.0: 0.001}


@frozen
class Run:
    """What one run of appends on a new log came to."""

    events_n: int
    seconds: float
    held_up_s: float = 0.0
    """By how much the ticker was late at most; 0 where there was none."""
    latencies_s: Sequence[float] = ()
    busy_share: float = 0.0

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events_n / self.seconds


@define
class _Appenders:
    """So many tasks, each appending its share one event after the other."""

    log: SessionLog
    events: Sequence[Event]
    tasks_n: int
    deadline_s: float
    """After this no further append begins."""
    latencies_s: list[float] = field(factory=list[float])

    async def run(self) -> float:
        """Return the seconds from the first append to the last one's return."""
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for first in range(self.tasks_n):
                nursery.start_soon(self._append_each, self.events[first :: self.tasks_n], began)
        return time.perf_counter() - began

    async def _append_each(self, events: Sequence[Event], began: float) -> None:
        until = began + self.deadline_s
        for event in events:
            asked = time.perf_counter()
            if asked > until:
                return
            await self.log.append(event)
            self.latencies_s.append(time.perf_counter() - asked)


def append_concurrently(path: Path, tasks_n: int, events_n: int) -> Run:
    """Append chunks from so many tasks at once, beside a ticker."""

    async def run(log: SessionLog) -> float:
        return await _Appenders(log, events, tasks_n, deadline_s=60.0).run()

    events = chunk_events(events_n)
    return _with_ticker(path, events_n, run)


def append_sequentially(path: Path, events: Sequence[Event], batch_n: int) -> Run:
    """Append the session in order, ``batch_n`` events a call, beside a ticker."""

    async def run(log: SessionLog) -> float:
        began = time.perf_counter()
        if batch_n == 1:
            for event in events:
                await log.append(event)
        else:
            for start in range(0, len(events), batch_n):
                await log.append_many(events[start : start + batch_n])
        return time.perf_counter() - began

    return _with_ticker(path, len(events), run)


def append_beside_busy_task(
    path: Path, tasks_n: int, events_n: int, share: float, seconds: float
) -> Run:
    """Append chunks from so many tasks, for so long at most, on a loop that is kept busy.

    By time and not by number: an append that starves must not keep the benchmark waiting.
    """

    async def run() -> Run:
        async with (
            open_session_log(SESSION_ID, database=path) as log,
            trio.open_nursery() as nursery,
        ):
            appenders = _Appenders(log, events, tasks_n, seconds)
            nursery.start_soon(busy.run)
            took = await appenders.run()
            nursery.cancel_scope.cancel()
        latencies_s = appenders.latencies_s
        return Run(len(latencies_s), took, latencies_s=latencies_s, busy_share=busy.busy_s / took)

    busy = BusyTask(share, BUSY_SLICES_S[share])
    events = chunk_events(events_n)
    with _as_in_a_host():
        return trio.run(run)


def _with_ticker(
    path: Path, events_n: int, append: Callable[[SessionLog], Awaitable[float]]
) -> Run:
    async def run() -> Run:
        ticker = Ticker()
        async with (
            open_session_log(SESSION_ID, database=path) as log,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(ticker.run)
            took = await append(log)
            nursery.cancel_scope.cancel()
        return Run(events_n, took, ticker.longest_s)

    with _as_in_a_host():
        return trio.run(run)


@contextmanager
def _as_in_a_host() -> Generator[None, None, None]:
    """Set Python as a Host does; what was prepared here stays out of the collector's sight too."""
    usual_s = sys.getswitchinterval()
    interpreter.share_evenly()
    interpreter.settle()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(usual_s)


@frozen
class _Sizes:
    """How many events each side takes, so that a run is neither too short nor tedious."""

    single_n: int
    concurrent_n: int
    many_n: int
    busy_s: float


def _sizes(settings: Settings) -> _Sizes:
    rows = prepared_rows(session_events(CALIBRATION_ROWS_N))
    with TemporaryDirectory(dir=settings.place) as fresh:
        row_s = write_raw(Path(fresh) / "raw.sqlite3", rows, 1) / len(rows)
    seconds = settings.some(40, 15) / 100
    single_n = min(max(int(seconds / row_s), CALIBRATION_ROWS_N), 20_000)
    return _Sizes(
        single_n=single_n,
        concurrent_n=512 * max(4, single_n * 6 // 512),
        many_n=RAW_BATCH_N * settings.some(48, 8),
        busy_s=settings.some(60, 30) / 100,
    )


def _raw(path: Path, rows: Sequence[RawRow], batch_n: int) -> Run:
    return Run(len(rows), write_raw(path, rows, batch_n))


def _sides(sizes: _Sizes) -> dict[str, Callable[[Path], Run]]:
    """Return every side by name. Events are made anew for each run: none may know its text yet."""
    in_order = prepared_rows(session_events(max(sizes.single_n, sizes.many_n)))
    chunks = prepared_rows(chunk_events(sizes.single_n))
    busy_n = sizes.concurrent_n * 4
    return {
        "raw1": lambda path: _raw(path, in_order[: sizes.single_n], 1),
        "append": lambda path: append_sequentially(path, session_events(sizes.single_n), 1),
        "raw1 of chunks": lambda path: _raw(path, chunks, 1),
        "64 appenders": lambda path: append_concurrently(path, 64, sizes.concurrent_n),
        "512 appenders": lambda path: append_concurrently(path, 512, sizes.concurrent_n),
        "busy 80 %": lambda path: append_beside_busy_task(path, 64, busy_n, 0.8, sizes.busy_s),
        "busy 100 %": lambda path: append_beside_busy_task(path, 64, busy_n, 1.0, sizes.busy_s),
        "raw256": lambda path: _raw(path, in_order[: sizes.many_n], RAW_BATCH_N),
        "append_many": lambda path: append_sequentially(
            path, session_events(sizes.many_n), RAW_BATCH_N
        ),
    }


def measure(settings: Settings) -> Iterator[Result]:
    """Run all sides in turns, from the other end in every other round, and compare them."""
    sizes = _sizes(settings)
    sides = _sides(sizes)
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    names = list(sides)
    for round_n in range(1, settings.rounds_n + 1):
        for name in names:
            settings.say(f"appends, round {round_n} of {settings.rounds_n}: {name}")
            with TemporaryDirectory(dir=settings.place) as fresh:
                runs[name].append(sides[name](Path(fresh) / "session.sqlite3"))
        names.reverse()
    yield from _results(runs)


def _results(runs: dict[str, list[Run]]) -> Iterator[Result]:
    chunks = "raw1 of chunks"
    yield _throughput(SEQUENTIAL, "append", "raw1", runs)
    yield _throughput(CONCURRENT_64, "64 appenders", chunks, runs)
    yield _throughput(CONCURRENT_512, "512 appenders", chunks, runs)
    yield _throughput(MANY, "append_many", "raw256", runs)
    yield _hold_up(runs)
    yield _throughput(BUSY_80, "busy 80 %", chunks, runs)
    yield _p99(runs["busy 80 %"])
    yield _throughput(BUSY_100, "busy 100 %", chunks, runs)


def _throughput(line: Line, name: str, base: str, runs: dict[str, list[Run]]) -> Result:
    rates = {side: [run.rate for run in runs[side]] for side in (name, base)}
    notes: dict[str, float] = {"events a run": runs[name][0].events_n}
    shares = [run.busy_share for run in runs[name] if run.busy_share]
    if shares:
        notes["busy share of the time"] = round(statistics.median(shares), 3)
    return compared(
        line, (f"{name} [events/s]", rates[name]), (f"{base} [events/s]", rates[base]), notes
    )


def _hold_up(runs: dict[str, list[Run]]) -> Result:
    names = ("append", "64 appenders", "512 appenders", "append_many")
    samples = {f"{name} [ms]": [run.held_up_s * 1e3 for run in runs[name]] for name in names}
    longest = [max(of_round) for of_round in zip(*samples.values(), strict=True)]
    return Result(TICKER, statistics.median(longest), longest, samples)


def _p99(runs: Sequence[Run]) -> Result:
    taken = [
        statistics.quantiles(run.latencies_s, n=100)[98] * 1e3 if len(run.latencies_s) > 1 else 1e9
        for run in runs
    ]
    return Result(BUSY_80_P99, statistics.median(taken), taken, {"p99 [ms]": taken})
