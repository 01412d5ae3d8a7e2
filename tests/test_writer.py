"""The writer task: batches, order, and an answer for everyone whatever happens to the store."""

from __future__ import annotations

import hashlib
import threading
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from attrs import define, field
from log_support import SESSION, Conversation, chunk
from trio.testing import wait_all_tasks_blocked

import actors.writer
from actors.codec import encode_event, is_recorded_at
from actors.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    RejectedEvent,
    SequenceConflict,
    SessiondError,
    StoreStopped,
)
from actors.events import ModelChunkRecorded
from actors.snapshot import Timeline
from actors.writer import BATCH_EVENTS, Writer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from actors.events import Envelope, Event
    from actors.rows import Row
    from actors.writer import Answer

PATH = Path("session.sqlite3")
TIMEOUT_S = 30


class ScriptedStore:
    """A store whose next commits fail as told, and which can hold them in their thread."""

    def __init__(self, *failures: BaseException | None) -> None:
        self.failures = list(failures)
        self.tried: list[list[Row]] = []
        self.threads: set[int] = set()
        self.held = False
        self._entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    def commit(self, rows: Sequence[Row]) -> None:
        self.threads.add(threading.get_ident())
        self.tried.append(list(rows))
        if self.held:
            self._entered.release()
            assert self._permits.acquire(timeout=TIMEOUT_S), "nobody let the commit go"
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    async def held_one(self) -> None:
        """Wait until a commit is held that was not waited for before."""
        assert await trio.to_thread.run_sync(partial(self._entered.acquire, timeout=TIMEOUT_S))

    def let_one_go(self) -> None:
        self._permits.release()

    def let_go(self) -> None:
        """Let the held commit go, and hold none of those to come."""
        self.held = False
        self._permits.release(10)


@define
class Caller:
    """One append in a task of its own, and what it came to."""

    events: Sequence[Event]
    expected_sequence: int | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    returned: tuple[Envelope, ...] | None = None
    raised: SessiondError | None = None
    found_itself: bool = False
    """Whether the snapshot held the events when append returned."""

    async def run(self, bench: Bench) -> None:
        with self.scope:
            try:
                self.returned = await bench.append(*self.events, at=self.expected_sequence)
            except SessiondError as error:
                self.raised = error
            else:
                snapshot = bench.timeline.snapshot()
                self.found_itself = all(
                    snapshot[envelope.sequence - 1] == envelope for envelope in self.returned
                )

    @property
    def sequences(self) -> list[int]:
        assert self.returned is not None, self.raised
        return [envelope.sequence for envelope in self.returned]


@define
class Bench:
    """A running writer, with callers that are put in its queue one by one."""

    writer: Writer
    timeline: Timeline
    store: ScriptedStore
    nursery: trio.Nursery

    async def append(self, *events: Event, at: int | None = None) -> tuple[Envelope, ...]:
        return await self.writer.append([(e, encode_event(e)[1]) for e in events], at)

    async def queue(self, *callers: Caller) -> None:
        """Start the callers so that they arrive in this order, and wait until all are stuck."""
        for caller in callers:
            self.nursery.start_soon(caller.run, self)
            await wait_all_tasks_blocked()

    async def busy(self) -> Caller:
        """Put the writer into a commit that waits, so that what comes now gathers behind it."""
        self.store.held = True
        first = Caller([chunk("first")])
        await self.queue(first)
        await self.store.held_one()
        return first

    async def settle(self) -> None:
        """Let the store go and wait until every caller has its outcome."""
        self.store.let_go()
        while self.nursery.child_tasks:
            await wait_all_tasks_blocked()


@asynccontextmanager
async def bench(store: ScriptedStore, path: Path | None = PATH) -> AsyncGenerator[Bench, None]:
    timeline = Timeline(SESSION)
    writer = Writer(timeline, store, path)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as outer:
            outer.start_soon(writer.run)
            try:
                async with trio.open_nursery() as callers:
                    yield Bench(writer, timeline, store, callers)
                    store.let_go()
            finally:  # the writer is shielded: only this ends it, also when the test has failed
                store.let_go()
                writer.close()


def values(timeline: Timeline) -> list[object]:
    """Return the chunks of the snapshot, in order."""
    found: list[object] = []
    for envelope in timeline.snapshot():
        assert isinstance(envelope.event, ModelChunkRecorded)
        found.append(envelope.event.chunk.value())
    return found


# --- batches and order --------------------------------------------------------------------------


async def test_all_that_wait_share_one_transaction_in_their_order() -> None:
    """While a commit is under way appends gather, and the next commit takes them all."""
    callers = [Caller([chunk(number)]) for number in range(5)]
    async with bench(ScriptedStore()) as here:
        first = await here.busy()
        await here.queue(*callers)
        await here.settle()
    assert [len(rows) for rows in here.store.tried] == [1, 5]
    assert [caller.sequences for caller in [first, *callers]] == [[n] for n in range(1, 7)]
    assert values(here.timeline) == ["first", 0, 1, 2, 3, 4]
    assert all(caller.found_itself for caller in callers)


async def test_a_batch_is_bounded() -> None:
    """However many wait, one transaction takes no more than its bound, and the rest come next."""
    async with bench(ScriptedStore()) as here:
        await here.busy()
        for number in range(BATCH_EVENTS + 3):
            here.nursery.start_soon(here.append, chunk(number))
        await wait_all_tasks_blocked()
        await here.settle()
    assert [len(rows) for rows in here.store.tried] == [1, BATCH_EVENTS, 3]


async def test_nothing_is_visible_before_it_is_committed() -> None:
    """While the commit runs the snapshot is as it was, and a snapshot once taken stays so."""
    async with bench(ScriptedStore()) as here:
        first = await here.busy()
        early = here.timeline.snapshot()
        assert len(early) == 0
        assert first.returned is None
        await here.settle()
        assert first.sequences == [1]
        assert len(here.timeline.snapshot()) == 1
    assert list(early) == []
    assert early.digest is None


class Steps(trio.abc.Instrument):
    """Notes where the scheduler goes on to another step."""

    def __init__(self, trace: list[str]) -> None:
        self.trace = trace

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002
        self.trace.append("step")


async def test_a_reply_and_its_events_come_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply is followed by its own events, and no task runs until the batch is through."""
    trace: list[str] = []
    publish, reply = Timeline.publish, actors.writer._Request.reply  # pyright: ignore[reportPrivateUsage] # the step under test

    def traced_publish(timeline: Timeline, row: Row, event: Event | None) -> None:
        trace.append(f"publish {row.sequence}")
        publish(timeline, row, event)

    def traced_reply(request: Any, answer: Answer) -> None:
        trace.append("reply")
        reply(request, answer)

    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(
            Caller([chunk(2), chunk(3)]),
            Caller([chunk("late")], expected_sequence=1),
            Caller([chunk(4)]),
        )
        here.store.let_go()
        monkeypatch.setattr(Timeline, "publish", traced_publish)
        monkeypatch.setattr("actors.writer._Request.reply", traced_reply)
        trio.lowlevel.add_instrument(steps := Steps(trace))
        await here.settle()
        trio.lowlevel.remove_instrument(steps)
    effects = " ".join(trace)
    assert "reply publish 1 step" in effects
    assert "reply publish 2 publish 3 reply reply publish 4 step" in effects


async def test_the_rows_are_chained_and_dated_as_one_transaction() -> None:
    """All events of a transaction bear one time; each digest covers its row and the one before."""
    async with bench(ScriptedStore()) as here:
        await here.append(chunk("a"))
        await here.append(chunk("b"), chunk("c"), chunk("d"))
    assert [len({row.recorded_at for row in rows}) for rows in here.store.tried] == [1, 1]
    rows = [row for batch in here.store.tried for row in batch]
    previous = ""
    for row, envelope in zip(rows, here.timeline.snapshot(), strict=True):
        assert is_recorded_at(row.recorded_at)
        text = "\n".join([previous, *map(str, row[:6])])
        assert row.digest == envelope.digest == hashlib.sha256(text.encode()).digest()
        assert (row.sequence, row.recorded_at) == (envelope.sequence, envelope.recorded_at)
        previous = row.digest.hex()


async def test_a_file_is_committed_to_in_a_thread_and_memory_is_not() -> None:
    """The event loop's thread never waits for a disk."""
    for path, in_thread in ((PATH, True), (None, False)):
        async with bench(ScriptedStore(), path) as here:
            await here.append(chunk(1))
        assert (threading.get_ident() not in here.store.threads) is in_thread


# --- appends that fail alone --------------------------------------------------------------------


async def test_a_conflict_fails_its_own_append_alone() -> None:
    """The expected sequence is that of the first event, in the place that the queue gave it."""
    right = Caller([chunk("b"), chunk("c")], expected_sequence=2)
    wrong = Caller([chunk("d")], expected_sequence=2)
    after = Caller([chunk("e")], expected_sequence=4)
    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(right, wrong, after)
        await here.settle()
    assert (right.sequences, after.sequences) == ([2, 3], [4])
    assert isinstance(wrong.raised, SequenceConflict)
    assert (wrong.raised.expected, wrong.raised.actual) == (2, 4)
    assert values(here.timeline) == ["first", "b", "c", "e"]


@pytest.mark.parametrize("expected", [0, -1, 2, 10**30])
async def test_a_conflict_leaves_nothing(expected: int) -> None:
    """A refused append starts no transaction, and the sequence it did not get is still free."""
    async with bench(ScriptedStore()) as here:
        with pytest.raises(SequenceConflict):
            await here.append(chunk("x"), at=expected)
        assert here.store.tried == []
        (envelope,) = await here.append(chunk("y"), at=1)
    assert envelope.sequence == 1


async def test_one_broken_rule_refuses_all_events_of_its_append_and_no_others() -> None:
    """The rules see what the batch has reached so far, but nothing of an append that failed."""
    said, other = Conversation(after=1), Conversation(after=1)
    whole = Caller(said.turn(calls_n=1))
    broken = Caller([said.input(), said.request(), said.answer(), said.answer()])
    repeated = Caller([other.input()])
    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(whole, broken, repeated)
        await here.settle()
        assert isinstance(broken.raised, RejectedEvent)
        assert isinstance(repeated.raised, RejectedEvent)  # turn-1 was in the same batch
        assert len(here.timeline.snapshot()) == 1 + len(whole.events)
        await here.append(broken.events[0])  # its turn-2 and invocation id are still free


async def test_a_refusal_waits_for_the_events_that_it_rests_on() -> None:
    """Refused because of an event of the same batch, an append hears so after the commit."""
    said = Conversation()
    taken = Caller([said.input()])
    refused = Caller([Conversation().input()])
    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(taken, refused)
        here.store.let_one_go()
        await here.store.held_one()
        assert refused.raised is None
        await here.settle()
        assert isinstance(refused.raised, RejectedEvent)


# --- commits that fail --------------------------------------------------------------------------


async def test_a_failed_commit_writes_nothing_and_the_writer_goes_on() -> None:
    """Every append of the batch raises its own error, no sequence is used up, and all is well."""
    cause = AppendFailed("the disk is full", PATH)
    callers = [Caller([chunk(number)]) for number in range(3)]
    # This one conflicts with an event that will turn out not to exist.
    callers.append(Caller([chunk(3)], expected_sequence=2))
    async with bench(ScriptedStore(None, cause)) as here:
        await here.busy()
        await here.queue(*callers)
        await here.settle()
        assert here.writer.health == "degraded"
        assert values(here.timeline) == ["first"]
        errors = [caller.raised for caller in callers]
        assert all(type(error) is AppendFailed for error in errors)
        assert len(set(map(id, [*errors, cause]))) == len(errors) + 1
        assert all(error is not None and error.__cause__ is cause for error in errors)
        assert "disk is full" in str(errors[0])
        (envelope,) = await here.append(chunk("next"), at=2)
        assert here.writer.health == "ok"
    assert values(here.timeline) == ["first", "next"]
    assert here.store.tried[-1][0].digest == envelope.digest


async def test_a_failed_commit_leaves_the_rules_where_they_were() -> None:
    """What the rules had let into the failed batch is forgotten with it."""
    said = Conversation()
    turn = said.turn(calls_n=2)
    async with bench(ScriptedStore(AppendFailed("busy", PATH))) as here:
        with pytest.raises(AppendFailed):
            await here.append(*turn)
        assert here.timeline.snapshot().open_turn is None
        assert here.timeline.snapshot().turns_n == 0
        await here.append(*turn)
    assert [envelope.event for envelope in here.timeline.snapshot()] == turn


async def test_an_unknown_outcome_stops_the_writer() -> None:
    """Those in the transaction are in doubt; all others are told that they wrote nothing."""
    cause = OutcomeUnknown("fsync failed", PATH)
    doubtful = [Caller([chunk(number)]) for number in range(2)]
    refused = Caller([chunk("x")], expected_sequence=99)
    late = [Caller([chunk(number)]) for number in range(2, 5)]
    async with bench(ScriptedStore(None, cause)) as here:
        await here.busy()
        # As many as fill the batch, so that the late ones must wait for the next.
        await here.queue(*doubtful, refused, Caller([chunk("many")] * BATCH_EVENTS), *late)
        await here.settle()
        assert here.writer.health == "failed"
        assert [type(caller.raised) for caller in doubtful] == [OutcomeUnknown] * 2
        assert [type(caller.raised) for caller in [refused, *late]] == [StoreStopped] * 4
        errors = [caller.raised for caller in [*doubtful, refused, *late]]
        assert len(set(map(id, errors))) == len(errors)
        assert all(error is not None and error.__cause__ is cause for error in errors)
        with pytest.raises(StoreStopped):
            await here.append(chunk("later"))
        assert values(here.timeline) == ["first"]
    assert len(here.store.tried) == 2


class Bug(Exception):
    """Stands for a mistake in the code."""


async def test_a_bug_in_the_store_answers_everyone_and_comes_out() -> None:
    """Nobody hangs: those in the transaction are in doubt, those behind wrote nothing."""
    bug = Bug()
    taken = Caller([chunk("many")] * BATCH_EVENTS)
    waiting = Caller([chunk("waiting")])
    here = None
    with pytest.RaisesGroup(Bug):
        async with bench(ScriptedStore(None, bug)) as here:
            await here.busy()
            here.nursery.cancel_scope.shield = True  # against what the writer's end cancels
            await here.queue(taken, waiting)
            here.store.let_go()
    assert isinstance(taken.raised, OutcomeUnknown)
    assert isinstance(waiting.raised, StoreStopped)
    assert taken.raised.__cause__ is waiting.raised.__cause__ is bug
    assert here is not None
    assert here.writer.health == "failed"


async def test_a_bug_before_the_commit_leaves_nobody_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What never reached the store was not written, and its callers are told just that."""

    def broken_digest(*_args: object) -> bytes:
        raise Bug

    taken = [Caller([chunk(number)]) for number in range(2)]
    store = ScriptedStore()
    with pytest.RaisesGroup(Bug):
        async with bench(store) as here:
            await here.busy()
            here.nursery.cancel_scope.shield = True  # against what the writer's end cancels
            await here.queue(*taken)
            monkeypatch.setattr(actors.writer, "row_digest", broken_digest)
            here.store.let_go()
    assert [type(caller.raised) for caller in taken] == [StoreStopped] * 2
    assert len(store.tried) == 1


# --- cancellation and the end -------------------------------------------------------------------


async def test_cancelled_in_the_queue_an_append_wrote_nothing() -> None:
    """A sender that gives up takes its request along; the others keep their order."""
    callers = [Caller([chunk(number)]) for number in range(3)]
    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(*callers)
        callers[1].scope.cancel()
        await wait_all_tasks_blocked()
        assert callers[1].scope.cancelled_caught
        await here.settle()
    assert values(here.timeline) == ["first", 0, 2]


@pytest.mark.parametrize("failure", [None, AppendFailed("full"), OutcomeUnknown("fsync")])
async def test_cancelled_once_taken_an_append_learns_its_outcome(
    failure: SessiondError | None,
) -> None:
    """The wait for the outcome is shielded, so that nobody is left guessing."""
    async with bench(ScriptedStore(failure)) as here:
        taken = await here.busy()
        taken.scope.cancel()
        await wait_all_tasks_blocked()
        assert (taken.returned, taken.raised) == (None, None)
        await here.settle()
    assert not taken.scope.cancelled_caught
    assert type(taken.raised) is type(failure)
    if failure is None:
        assert taken.sequences == [1]
        assert taken.found_itself


async def test_an_append_already_cancelled_writes_nothing() -> None:
    """The first thing an append does is to look whether it is still wanted."""
    async with bench(ScriptedStore()) as here:
        with trio.CancelScope() as scope:
            scope.cancel()
            await here.append(chunk("unwanted"))
        assert scope.cancelled_caught
        assert here.store.tried == []


async def test_closing_lets_the_queue_through_and_nobody_else() -> None:
    """Whoever waits at the close is served, whoever comes after it is refused."""
    callers = [Caller([chunk(number)]) for number in range(3)]
    async with bench(ScriptedStore()) as here:
        await here.busy()
        await here.queue(*callers)
        here.writer.close()
        with pytest.raises(LogClosed):
            await here.append(chunk("late"))
        await here.settle()
    assert [caller.sequences for caller in callers] == [[2], [3], [4]]
    assert here.writer.health == "ok"


async def test_the_writer_outlives_its_callers_cancellation() -> None:
    """All around is cancelled, and a caller that must can still append its last event."""
    timeline, store = Timeline(SESSION), ScriptedStore()
    writer = Writer(timeline, store, PATH)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                event = chunk("owed")
                await writer.append([(event, encode_event(event)[1])], None)
            writer.close()
    assert values(timeline) == ["owed"]
