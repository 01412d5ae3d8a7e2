"""The lines about opening a session again: time beside reading it plainly, growth, memory.

The long session is opened in turns with plain reading, in this process. Growth and memory are
measured in processes of their own (``child.py``), in which nothing was loaded before.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING

import trio

from actors.session_log import open_session_log
from benchmarks.lines import Line, Result, compared
from benchmarks.raw import SESSION_ID, read_raw
from benchmarks.sessions import run_child, written_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.lines import Settings

RELOAD = Line("reload", "reload of 20,000 events", "plain read", 2.5, 1.5)
GROWTH = Line("reload-growth", "reload of ten times as many, an event's time", "times", 1.2, 1.0)
RESIDENT = Line("resident", "  the same: resident memory", "B/event", 1_500, 800)
SNAPSHOT = Line("snapshot", "snapshot() at 200,000 events", "µs", 2, 1)
SNAPSHOT_FIRST = Line("snapshot-first", "  the same: the first one after an append", "µs", 5, 2)
PROJECTION = Line(
    "projection", "a Step's projection at 20,000 events against 200", "times", 1.5, 1.0
)
LINES = (RELOAD, GROWTH, RESIDENT, SNAPSHOT, SNAPSHOT_FIRST, PROJECTION)


def reload_session(path: Path) -> float:
    """Open a session until its snapshot can be read; return the seconds."""

    async def reload() -> float:
        began = time.perf_counter()
        async with open_session_log(SESSION_ID, database=path) as log:
            log.snapshot()
            return time.perf_counter() - began

    return trio.run(reload)


def measure(settings: Settings) -> Iterator[Result]:
    """Write both sessions, and measure the lines one after the other."""
    long = written_session(settings, settings.events_n)
    yield _reload(settings, long)
    settings.say("reload: projections")
    yield _projection(settings, long)
    longest = written_session(settings, settings.events_n * 10)
    yield from _growth(settings, long, longest)
    settings.say("reload: snapshots")
    yield from _snapshots(longest)


def _reload(settings: Settings, path: Path) -> Result:
    ours: list[float] = []
    theirs: list[float] = []
    sides = [(reload_session, ours), (read_raw, theirs)]
    for side, _ in sides:
        side(path)  # once unmeasured: what only a first time costs is no event's cost
    for round_n in range(1, settings.rounds_n + 1):
        settings.say(f"reload: round {round_n} of {settings.rounds_n}")
        for side, taken in sides:
            gc.collect()
            taken.append(side(path))
        sides.reverse()
    notes = {"events": settings.events_n}
    return compared(RELOAD, ("reload [s]", ours), ("fetchall and json.loads [s]", theirs), notes)


def _growth(settings: Settings, long: Path, longest: Path) -> Iterator[Result]:
    """Yield two lines from the same processes."""
    short_s: list[float] = []
    long_s: list[float] = []
    resident_b: list[float] = []
    cpu_ratios: list[float] = []
    for round_n in range(1, settings.some(3, 1) + 1):
        settings.say(f"reload: round {round_n} of the longest")
        # The short one both before and after: the machine may slow down in between.
        before, measured, after = (run_child("reload", path) for path in (long, longest, long))
        short_s.append((before["s"][0] + after["s"][0]) / 2 / settings.events_n)
        long_s.append(measured["s"][0] / settings.events_n / 10)
        cpu_ratios.append(
            measured["cpu_s"][0] / 10 / ((before["cpu_s"][0] + after["cpu_s"][0]) / 2)
        )
        resident_b.append(measured["resident_b"][0] / settings.events_n / 10)
    sizes = {"events": settings.events_n * 10}
    notes = sizes | {"the same in processor time": statistics.median(cpu_ratios)}
    yield compared(GROWTH, ("longest [s/event]", long_s), ("long [s/event]", short_s), notes)
    yield Result(
        RESIDENT,
        statistics.median(resident_b),
        resident_b,
        {"resident [B/event]": resident_b},
        sizes,
    )


def _snapshots(longest: Path) -> Iterator[Result]:
    taken = run_child("snapshots", longest)
    for line, name in ((SNAPSHOT, "again_us"), (SNAPSHOT_FIRST, "first_us")):
        of_groups = [statistics.median(group) for group in _groups(taken[name])]
        samples = {f"{name[:-3]} [µs]": taken[name]}
        yield Result(line, statistics.median(taken[name]), of_groups, samples)


def _groups(samples: Sequence[float]) -> Iterator[Sequence[float]]:
    """Yield the samples in ten groups, in their order: of these small times one says nothing."""
    size = len(samples) // 10
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _projection(settings: Settings, long: Path) -> Result:
    short = written_session(settings, 200)
    taken: dict[Path, list[float]] = {long: [], short: []}
    copies: dict[Path, list[float]] = {long: [], short: []}
    for _ in range(settings.some(5, 1)):
        for path in (long, short):
            measured = run_child("projection", path)
            taken[path].append(statistics.median(measured["projection_us"]))
            copies[path].append(statistics.median(measured["copy_us"]))
    names = (f"at {settings.events_n} events [µs]", "at 200 events [µs]")
    copied = {
        f"one copy {name}": statistics.median(copies[path])
        for name, path in zip(names, (long, short), strict=True)
    }
    return compared(PROJECTION, (names[0], taken[long]), (names[1], taken[short]), copied)
