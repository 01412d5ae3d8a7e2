"""One session's life on a disk that fails at one chosen point, judged as it goes.

As a program it runs one trial a line, under the library of :mod:`disk_support`. Whatever fails,
when, and for how long, these hold, and a trial ends with an AssertionError where one does not:

- An append returns, or raises AppendFailed, OutcomeUnknown or StoreStopped; opening and closing
  raise StoreError; nothing else comes out.
- What a kill at that instant would leave behind holds all that was acknowledged, nothing of what
  failed, and of what is in doubt all or nothing.
- A failed append changes no snapshot and uses up no sequence. Once the fault has gone writing
  goes on, unless an outcome is unknown: then it stops, and a restart goes on with it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen
from disk_support import ALWAYS, COUNT, Disk, Faults
from log_support import SESSION, chunk

import actors.store
from actors.errors import AppendFailed, OutcomeUnknown, StoreError, StoreStopped
from actors.events import ModelChunkRecorded
from actors.reader import open_reader
from actors.replay import replay_rows
from actors.session_log import open_session_log
from actors.snapshot import Timeline

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from actors.events import Envelope
    from actors.session_log import SessionLog

NAME = "s.sqlite3"
SMALL, LARGE = 20, 30_000
"""Characters of a value: within a page, and more than the connection below may keep in memory."""
BATCHES = ((SMALL,), (SMALL, SMALL), (LARGE, SMALL), (SMALL,), (LARGE, LARGE), (SMALL,), (SMALL,))
"""What a trial appends: the sizes of the values of each append."""


@frozen
class Plan:
    """Which call fails, how, and until when."""

    call: str = "write"
    file: str = NAME + "*"
    action: int = COUNT
    error: int = 0
    skip: int = 0
    times: int = ALWAYS
    start: str = "new"
    """What is there before: ``new`` (nothing), ``clean`` or ``killed``."""
    lifted_after: int = 1
    """After so many failed appends the fault goes away."""
    lifted_before_close: bool = True


@define
class Trial:
    """The books of one trial."""

    plan: Plan
    disk: Faults
    database: Path
    acknowledged: list[str] = field(factory=list[str])
    doubtful: list[str] = field(factory=list[str])
    """The values of the one append whose outcome is unknown."""
    came_to: list[str] = field(factory=list[str])
    failed_n: int = 0
    line: str | None = None
    """What the opening or the closing failed with."""

    async def run(self) -> None:
        """Live through it: open, append, close, and start again."""
        await self.prepare()
        plan = self.plan
        self.disk.arm(
            plan.call, plan.file, plan.action, error=plan.error, skip=plan.skip, times=plan.times
        )
        try:
            async with open_session_log(SESSION, self.database) as log:
                self.came_to.append("opened")
                assert values(log.snapshot()) == self.acknowledged
                for number, sizes in enumerate(BATCHES):
                    wanted = [f"{number}.{n}:{'x' * size}" for n, size in enumerate(sizes)]
                    await self.append(log, wanted)
                if plan.lifted_before_close:
                    self.lift()
            self.came_to.append("closed")
        except StoreError as error:
            self.came_to.append("StoreError")
            self.line = str(error)
        assert self.line is None or (self.line.count("\n") == 0 and NAME in self.line)
        self.judge_image()
        self.lift()
        await self.start_again()

    async def prepare(self) -> None:
        """Make what is to be there before, without a fault."""
        if self.plan.start == "new":
            return
        async with open_session_log(SESSION, self.database) as log:
            for n in range(3):
                await log.append(chunk(f"before {n}"))
                self.acknowledged.append(f"before {n}")
            files = self.image()
        if self.plan.start == "killed":
            for name, content in files.items():
                self.database.with_name(name).write_bytes(content)

    async def append(self, log: SessionLog, wanted: list[str]) -> None:
        """Append and judge what comes of it."""
        before, was_failed = log.snapshot(), log.health == "failed"
        was_lifted = self.failed_n >= self.plan.lifted_after
        failure: AppendFailed | OutcomeUnknown | StoreStopped | None = None
        try:
            await log.append_many(
                [chunk(value) for value in wanted], expected_sequence=before.last_sequence + 1
            )
        except (AppendFailed, OutcomeUnknown, StoreStopped) as error:
            failure = error
        if failure is None:
            assert not list(self.database.parent.glob("*.away")), "no name leads to it"
            assert (log.health, log.fault) == ("ok", None)
            self.acknowledged += wanted
            self.came_to.append("ok")
        else:
            assert log.snapshot() is before
            assert was_failed is isinstance(failure, StoreStopped)
            assert log.health == ("degraded" if isinstance(failure, AppendFailed) else "failed")
            self.came_to.append(type(failure).__name__)
            if not was_failed:
                assert not was_lifted, f"the fault is gone, and yet {failure}"
                assert log.fault == failure.fault
                self.failed_n += 1
            if isinstance(failure, OutcomeUnknown):
                self.doubtful = wanted
        assert values(log.snapshot()) == self.acknowledged
        self.judge_image()
        if self.failed_n >= self.plan.lifted_after:
            self.lift()

    def lift(self) -> None:
        """Have no fault any more; what was moved away comes back."""
        self.disk.mend()
        for away in self.database.parent.glob("*.away"):
            away.rename(away.with_suffix(""))

    def image(self) -> dict[str, bytes]:
        """Return the files as a kill at this instant would leave them to the next start."""
        with self.disk.set_aside():
            content: dict[str, bytes] = {}
            for name in (NAME, f"{NAME}-wal"):
                for place in (f"{name}.away", name):
                    # Closing these drops SQLite's locks, which nobody else asks for here.
                    with suppress(FileNotFoundError):
                        content.setdefault(name, (self.database.parent / place).read_bytes())
            return content

    def judge_image(self) -> None:
        """Check what a kill now would leave behind."""
        files = self.image()
        if not files.get(NAME):
            assert not self.acknowledged
            return
        with self.disk.set_aside(), tempfile.TemporaryDirectory() as elsewhere:
            for name, content in files.items():
                (Path(elsewhere) / name).write_bytes(content)
            timeline = Timeline(SESSION)
            with open_reader(Path(elsewhere) / NAME) as reader:
                replay_rows(timeline, reader.rows(SESSION), self.database)
        self.judge(values(timeline.snapshot()))

    def judge(self, found: list[str]) -> None:
        both = self.acknowledged + self.doubtful
        assert found in (self.acknowledged, both), (brief(found), brief(self.acknowledged))

    async def start_again(self) -> None:
        """Check that the next start finds what it must, and goes on."""
        async with open_session_log(SESSION, self.database) as log:
            self.judge(values(log.snapshot()))
            await log.append(chunk("after"))
        left = {place.name for place in self.database.parent.iterdir()}
        assert left == {NAME, f"{NAME}-lock"}, left


def values(snapshot: Iterable[Envelope]) -> list[str]:
    """Return the values of a session of chunks."""
    return [str(e.event.chunk.value()) for e in snapshot if isinstance(e.event, ModelChunkRecorded)]


def brief(found: list[str]) -> list[str]:
    return [value.partition(":")[0] for value in found]


def tight(connect: Callable[[Path], sqlite3.Connection], real: Path) -> sqlite3.Connection:
    """Connect so that a large row is written at its INSERT and a checkpoint comes often."""
    connection = connect(real)
    try:
        connection.execute("PRAGMA cache_size=4")
        connection.execute("PRAGMA wal_autocheckpoint=8").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def main() -> None:
    """Run one trial a line of standard input; answer each with a line."""
    disk = Disk(Path(sys.argv[1]))
    actors.store.connect = partial(tight, actors.store.connect)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(dir=sys.argv[2]) as directory:
            trial = Trial(Plan(**json.loads(line)), disk, Path(directory) / NAME)
            fault = None
            try:
                trio.run(trial.run)
            except BaseException:  # noqa: BLE001 # told to the test, which fails with it
                fault = traceback.format_exc()
            hits_n = disk.hits_n
            disk.mend()
        print(json.dumps({"came_to": trial.came_to, "hits_n": hits_n, "fault": fault}), flush=True)


if __name__ == "__main__":
    main()
