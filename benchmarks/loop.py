"""What watches an event loop, and what keeps one busy."""

from __future__ import annotations

import time

import trio
from attrs import define

TICK_S = 0.001


@define
class Ticker:
    """Wants to run every millisecond, and remembers by how much it was late at most."""

    longest_s: float = 0.0

    async def run(self) -> None:
        """Tick until cancelled.

        On Linux the loop's own timer counts whole milliseconds: up to one of them is always there.
        """
        while True:
            due = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - due)


@define
class BusyTask:
    """Runs Python code in slices, for so large a share of the time as it was told."""

    share: float
    slice_s: float
    busy_s: float = 0.0

    async def run(self) -> None:
        """Keep the loop busy until cancelled; others get their turn after each slice.

        It sleeps only when it is ahead of its share, so that the share holds although a sleep
        takes longer than asked for.
        """
        began = time.perf_counter()
        while True:
            now = time.perf_counter()
            if self.busy_s > self.share * (now - began):
                await trio.sleep(self.slice_s / 4)
                continue
            until = now + self.slice_s
            while time.perf_counter() < until:
                pass
            self.busy_s += time.perf_counter() - now
            await trio.lowlevel.checkpoint()
