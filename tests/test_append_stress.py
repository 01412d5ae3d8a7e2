"""Many appenders at once, cancelled at random, on a disk that fails at random.

Afterwards the books must balance: what was acknowledged is there exactly once, what was refused
or cancelled is not there at all, and memory, file and reload agree.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest
import trio
from log_support import SESSION, Conversation, assert_same, assert_stored, chunk

import actors.store
from actors.errors import (
    AppendFailed,
    OutcomeUnknown,
    SequenceConflict,
    StoreStopped,
)
from actors.events import ModelChunkRecorded
from actors.session_log import open_session_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from actors.events import Envelope, Event
    from actors.session_log import SessionLog
    from actors.snapshot import Snapshot

SIZES = [
    pytest.param(150, 8, id="small"),
    pytest.param(600, 60, id="large", marks=[pytest.mark.stress, pytest.mark.timeout(600)]),
]


class UnreliableConnection(sqlite3.Connection):
    """A real connection on which some statements of a transaction fail, as if by the disk."""

    chance: random.Random | None = None
    """Decides which statements fail; None while none does."""
    failures_n = 0
    last_commit: str | None = None
    """What is done instead of the COMMIT that is the last for an fsync fails; None for not yet."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.last_commit is not None:
            super().execute(self.last_commit)
            raise io_error(sqlite3.SQLITE_IOERR_FSYNC)
        begins_or_ends = sql in {"BEGIN IMMEDIATE", "COMMIT"}
        # The first one always: then no run is without a failure, whatever the chances.
        fails = self.chance is not None and (self.failures_n == 0 or self.chance.random() < 0.1)
        if fails and begins_or_ends:
            self.failures_n += 1
            raise io_error(sqlite3.SQLITE_IOERR_WRITE)
        return super().execute(sql, *parameters)


def io_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[UnreliableConnection]:
    """Gather the writing connections that are opened from now on."""
    opened: list[UnreliableConnection] = []

    def connect(real: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            real, isolation_level=None, check_same_thread=False, factory=UnreliableConnection
        )
        opened.append(connection)
        return connection

    monkeypatch.setattr(actors.store, "connect", connect)
    return opened


@pytest.fixture
def chance() -> random.Random:
    # pytest-randomly seeds the global generator and prints the seed.
    return random.Random(random.random())  # noqa: S311


class Books:
    """What each append came to, by the unique values of its chunks."""

    def __init__(self, log: SessionLog, chance: random.Random) -> None:
        self.log = log
        self.chance = chance
        self.acknowledged: dict[int, Envelope] = {}
        self.in_doubt: list[tuple[int, ...]] = []
        self.came_to: Counter[str] = Counter()
        self.cancellable: list[trio.CancelScope] = []
        self.values = count()
        self.appenders_n = 0

    async def append_often(self, rounds_n: int) -> None:
        """Append single events and several, at times with an expectation, at times cancelled."""
        self.appenders_n += 1
        for _ in range(rounds_n):
            with trio.CancelScope() as scope:
                if self.chance.random() < 0.3:
                    self.cancellable.append(scope)
                await self.append_once()
            self.came_to["Cancelled"] += scope.cancelled_caught
        self.appenders_n -= 1

    async def append_once(self) -> None:
        values = tuple(islice(self.values, self.chance.choice([1, 1, 1, 2, 5])))
        last = self.log.snapshot().last_sequence
        expected = last + self.chance.choice([1, 2]) if self.chance.random() < 0.2 else None
        try:
            envelopes = await self.log.append_many(list(map(chunk, values)), expected)
        except (AppendFailed, SequenceConflict, StoreStopped) as refusal:
            self.came_to[type(refusal).__name__] += 1
        except OutcomeUnknown:
            self.came_to["OutcomeUnknown"] += 1
            self.in_doubt.append(values)
        else:
            first = envelopes[0].sequence
            assert expected in {None, first}
            # All of it, side by side, and already to be seen.
            seen = self.log.snapshot()[first - 1 : first - 1 + len(envelopes)]
            assert seen == envelopes
            assert chunk_values(envelopes) == list(values)
            self.acknowledged.update(zip(values, envelopes, strict=True))

    async def cancel_at_random(self) -> None:
        """Cancel some of the appends under way, wherever they are, at each turn of the loop."""
        await trio.lowlevel.checkpoint()  # lets the appenders begin
        while self.appenders_n:
            for scope in self.chance.sample(self.cancellable, min(3, len(self.cancellable))):
                scope.cancel()
            await trio.lowlevel.checkpoint()

    async def converse(self, turns_n: int) -> None:
        """Hold a whole conversation in the middle of all this, repeating what fails."""
        said = Conversation()
        for _ in range(turns_n):
            await self.say(said.input())
            for calls_n in (2, 0):
                # A snapshot of now names the history well, whatever comes in between.
                await self.say(said.request(self.log.snapshot().history_ref()))
                await self.say(said.answer("answer", calls_n))
                for _ in range(calls_n):
                    await self.say(said.start())
                    await self.say(said.complete())

    async def say(self, event: Event) -> None:
        while True:
            try:
                await self.log.append(event)
            except AppendFailed:
                continue
            return

    def balance(self, snapshot: Snapshot) -> list[object]:
        """Check that what was acknowledged is there, once and in order; return what is besides.

        Sequences have no gaps, and whatever else there is comes after all that was acknowledged.
        """
        envelopes = tuple(snapshot)
        assert [envelope.sequence for envelope in envelopes] == list(range(1, len(envelopes) + 1))
        assert all(envelopes[e.sequence - 1] == e for e in self.acknowledged.values())
        in_order = sorted(self.acknowledged, key=lambda value: self.acknowledged[value].sequence)
        found = chunk_values(envelopes)
        assert found[: len(in_order)] == in_order
        return found[len(in_order) :]


def chunk_values(envelopes: Sequence[Envelope]) -> list[object]:
    return [e.event.chunk.value() for e in envelopes if isinstance(e.event, ModelChunkRecorded)]


@pytest.mark.parametrize(("appenders_n", "rounds_n"), SIZES)
async def test_the_books_balance(
    appenders_n: int,
    rounds_n: int,
    tmp_path: Path,
    chance: random.Random,
    connections: list[UnreliableConnection],
) -> None:
    """Through cancellations, conflicts and failed commits nothing is lost, doubled or invented."""
    path = tmp_path / "session.sqlite3"
    async with open_session_log(SESSION, path) as log:
        connections[-1].chance = chance
        books = Books(log, chance)
        async with trio.open_nursery() as nursery:
            for _ in range(appenders_n):
                nursery.start_soon(books.append_often, rounds_n)
            nursery.start_soon(books.converse, rounds_n)
            nursery.start_soon(books.cancel_at_random)
        final = log.snapshot()
        assert books.balance(final) == []
        assert final.turns_n == rounds_n
        assert_stored(path, log)
        assert connections[-1].failures_n > 0
        assert {"AppendFailed", "SequenceConflict", "Cancelled"} <= set(+books.came_to)
        assert books.in_doubt == []
    async with open_session_log(SESSION, path) as log:
        assert_same(log.snapshot(), final)


@pytest.mark.parametrize("last_commit", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(("appenders_n", "rounds_n"), SIZES)
async def test_after_an_unknown_outcome_only_the_doubtful_may_differ(
    appenders_n: int,
    rounds_n: int,
    last_commit: str,
    tmp_path: Path,
    chance: random.Random,
    connections: list[UnreliableConnection],
) -> None:
    """The next start finds all that was acknowledged, and of what is in doubt all or nothing."""
    path = tmp_path / "session.sqlite3"

    async def fail_in_the_middle() -> None:
        while log.snapshot().last_sequence < appenders_n * rounds_n // 2:
            await trio.lowlevel.checkpoint()
        connections[-1].last_commit = last_commit

    async with open_session_log(SESSION, path) as log:
        books = Books(log, chance)
        async with trio.open_nursery() as nursery:
            for _ in range(appenders_n):
                nursery.start_soon(books.append_often, rounds_n)
            nursery.start_soon(fail_in_the_middle)
        assert log.health == "failed"
        assert books.balance(log.snapshot()) == []
        assert {"OutcomeUnknown", "StoreStopped"} <= set(+books.came_to)
    async with open_session_log(SESSION, path) as log:
        found = books.balance(log.snapshot())
        doubtful = {value for values in books.in_doubt for value in values}
        assert len(found) == len(set(found))
        assert set(found) == (doubtful if last_commit == "COMMIT" else set())
        await log.append(chunk("and on"))
