"""The lines about bytes on disk.

The second one is written by the agent itself, so that its requests are recorded as it records
them: a session whose requests held their history would grow with the square of its Turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.codec import encode_event
from benchmarks.lines import Line, Result
from benchmarks.sessions import run_child, written_session
from benchmarks.workload import session_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.lines import Settings

ON_DISK = Line("bytes", "bytes on disk an event", "payload text", 1.75, 1.5)
DOUBLED = Line("bytes-doubled", "bytes of 2N turns, by the agent", "N turns", 2.1, 2.0)
LINES = (ON_DISK, DOUBLED)

TURNS_N, QUICK_TURNS_N = 60, 20


def measure(settings: Settings) -> Iterator[Result]:
    """Weigh the long session, then one of N Turns and of twice as many."""
    events_n = settings.events_n
    on_disk_b = written_session(settings, events_n).stat().st_size
    payload_b = sum(len(encode_event(event)[1].encode()) for event in session_events(events_n))
    yield Result(
        ON_DISK,
        on_disk_b / payload_b,
        samples={
            "on disk [B/event]": [on_disk_b / events_n],
            "payload text [B/event]": [payload_b / events_n],
        },
        notes={"events": events_n},
    )
    turns_n = settings.some(TURNS_N, QUICK_TURNS_N)
    settings.say(f"sizes: {2 * turns_n} turns by the agent")
    path = settings.place / "by-agent.sqlite3"
    sizes: list[int] = []
    for _ in range(2):
        run_child("add_turns", path, turns_n)
        sizes.append(path.stat().st_size)
    once, twice = sizes
    yield Result(
        DOUBLED,
        twice / once,
        samples={"N turns [B]": [once], "2N turns [B]": [twice]},
        notes={"N": turns_n},
    )
