"""The queue of Turns: order, ids, cancellation, stops, and stores that fail."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, get_args

import pytest
import trio
from agent_support import (
    TIMEOUT_S,
    FailingCommits,
    Gate,
    Script,
    ScriptedAdapter,
    assert_nothing_owed,
    calling_at,
    calls,
    chunk,
    fails,
    full_disk,
    recorded_code,
    routes_to,
    says,
    scripted,
)
from structlog.testing import capture_logs
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from actors.agent import Agent, recover
from actors.errors import (
    AppendFailed,
    InvocationLive,
    InvocationMismatch,
    InvocationSettled,
    InvocationUnknown,
    OutcomeUnknown,
    RejectedEvent,
    RouteUnavailable,
    SessiondError,
    ShuttingDown,
    StoreError,
    StoreStopped,
)
from actors.events import UserInputAccepted
from actors.invocations import (
    LEGAL_MOVES,
    Invocation,
    InvocationFailure,
    InvocationResult,
    Invocations,
    InvocationState,
    State,
    open_invocations,
)
from actors.session_log import SessionLog, open_session_log
from actors.values import AssistantMessage, Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from pathlib import Path

    from structlog.typing import EventDict

    from actors.snapshot import Snapshot

STATES: tuple[State, ...] = get_args(State)
NOWHERE = Route("no", "where")


@pytest.fixture(autouse=True)
def logs() -> Generator[list[EventDict], None, None]:
    """What is logged, which also keeps it out of the captured output while a disk is full."""
    with capture_logs() as captured:
        yield captured


@asynccontextmanager
async def serving(
    adapter: ScriptedAdapter, database: Path | None = None
) -> AsyncGenerator[tuple[SessionLog, Invocations], None]:
    """Open a session and its queue, recovered as a Host does it; a hang becomes a failure."""
    with trio.fail_after(TIMEOUT_S):
        async with open_session_log("default", database) as log:
            await recover(log)
            async with open_invocations(log, Agent(log, routes_to(adapter))) as invocations:
                yield log, invocations


class Caller:
    """Submits one invocation and keeps what it was answered, or what was raised."""

    def __init__(self, invocations: Invocations, invocation_id: str, text: str = "hello") -> None:
        self._invocations = invocations
        self.invocation_id = invocation_id
        self.text = text
        self.scope = trio.CancelScope()
        self.answer: InvocationResult | InvocationFailure | SessiondError | None = None

    async def run(self) -> None:
        with self.scope:
            try:
                self.answer = await self._invocations.submit(self.invocation_id, self.text)
            except SessiondError as error:
                self.answer = error

    @property
    def code(self) -> str | None:
        return self.answer.code if isinstance(self.answer, InvocationFailure) else None


async def call(nursery: trio.Nursery, invocations: Invocations, invocation_id: str) -> Caller:
    """Start a caller and return when it is in the queue."""
    caller = Caller(invocations, invocation_id)
    nursery.start_soon(caller.run)
    await wait_all_tasks_blocked()
    return caller


def accepted_ids(snapshot: Snapshot) -> list[str]:
    return [e.event.invocation_id for e in snapshot if isinstance(e.event, UserInputAccepted)]


# --- one after the other ------------------------------------------------------------------------


async def test_a_turn_is_answered_with_its_result() -> None:
    """The result says what the log says: Turn, steps, message, and the message's sequence."""
    adapter = scripted([chunk(), calls("one")], [says("done")])
    async with serving(adapter) as (log, invocations):
        with assert_checkpoints():
            result = await invocations.submit("a", "hello")
        assert isinstance(result, InvocationResult)
        last = log.snapshot().last_sequence
        assert result == InvocationResult(
            "a", "default", "turn-1", 2, AssistantMessage("done"), "stop", last
        )
        assert invocations.state("a") == InvocationState("a", "completed", result=result)
        assert invocations.state("a").outcome == result


async def test_turns_run_one_at_a_time_in_the_order_of_their_arrival() -> None:
    """While one runs the others wait without an event; then they follow as they came."""
    gate = Gate()
    ids = [f"invocation-{n}" for n in range(20)]
    async with serving(scripted([gate, says("x")], [says("x")])) as (log, invocations):
        async with trio.open_nursery() as nursery:
            callers = [await call(nursery, invocations, each) for each in ids]
            states = [invocations.state(each).state for each in ids]
            assert states == ["running"] + ["queued"] * 19
            assert accepted_ids(log.snapshot()) == ids[:1]
            gate.go.set()
        assert accepted_ids(log.snapshot()) == ids
        assert_nothing_owed(log.snapshot())
        answers = [caller.answer for caller in callers]
        assert [a.turn_id for a in answers if isinstance(a, InvocationResult)] == [
            f"turn-{n}" for n in range(1, 21)
        ]


async def test_a_route_that_is_not_there_is_refused_at_once() -> None:
    """Not in its turn but now, and nothing is recorded; the id is free."""
    gate = Gate()
    async with (
        serving(scripted([gate, says("x")])) as (log, invocations),
        trio.open_nursery() as nursery,
    ):
        await call(nursery, invocations, "a")
        with pytest.raises(RouteUnavailable):
            await invocations.submit("b", "hello", NOWHERE)
        with pytest.raises(InvocationUnknown):
            invocations.state("b")
        assert accepted_ids(log.snapshot()) == ["a"]
        gate.go.set()


async def test_an_input_that_cannot_be_recorded_is_refused() -> None:
    """The caller learns why, the id stays free, and the next Turn runs."""
    async with serving(scripted([says("x")])) as (log, invocations):
        with pytest.raises(RejectedEvent):
            await invocations.submit("a", "\ud800")
        with pytest.raises(InvocationUnknown):
            invocations.state("a")
        assert isinstance(await invocations.submit("a", "text"), InvocationResult)
        assert accepted_ids(log.snapshot()) == ["a"]


async def test_a_caller_that_hangs_up_does_not_stop_its_turn() -> None:
    """Neither the running one's nor one's in the queue; the outcome can be asked for later."""
    gate = Gate()
    async with serving(scripted([gate, says("first")], [says("second")])) as (log, invocations):
        async with trio.open_nursery() as nursery:
            for caller in [await call(nursery, invocations, each) for each in "ab"]:
                caller.scope.cancel()
        assert [invocations.state(each).state for each in "ab"] == ["running", "queued"]
        gate.go.set()
        await wait_all_tasks_blocked()
        answers = [await invocations.submit(each, "hello") for each in "ab"]
        assert [a.message.content for a in answers if isinstance(a, InvocationResult)] == [
            "first",
            "second",
        ]
        assert accepted_ids(log.snapshot()) == ["a", "b"]


async def test_a_settled_invocation_is_kept_in_the_log_alone() -> None:
    """The queue holds on to nothing of what it has answered."""
    async with serving(scripted([says("x")], [fails()], [says("x")])) as (_, invocations):
        for n in range(10):
            await invocations.submit(f"invocation-{n}", "hello")
        await wait_all_tasks_blocked()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, Invocation)]
        assert len(kept) <= 1  # the actor's last, until the next


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("to", STATES)
def test_only_legal_moves_can_be_made(state: State, to: State) -> None:
    """Any other raises and changes nothing; what has settled never moves again."""
    invocation = Invocation("a", "hello", None, state)
    if to in LEGAL_MOVES[state]:
        invocation.move(to)
        assert invocation.state == to
        assert state in {"queued", "running"}
    else:
        with pytest.raises(ValueError, match=f"{state} -> {to}"):
            invocation.settle(to, InvocationFailure("code", "message"))
        assert invocation.state == state
        assert not invocation.settled.is_set()
        assert invocation.answer is None


# --- an id is an idempotency key ------------------------------------------------------------------


async def test_an_id_in_use_is_refused_and_a_wrong_text_before_that() -> None:
    """Queued and running alike: 409 for the same text, 422 for another."""
    gate = Gate()
    async with (
        serving(scripted([gate, says("x")], [says("x")])) as (_, invocations),
        trio.open_nursery() as nursery,
    ):
        for invocation_id in "ab":
            await call(nursery, invocations, invocation_id)
            with pytest.raises(InvocationLive):
                await invocations.submit(invocation_id, "hello")
            with pytest.raises(InvocationMismatch):
                await invocations.submit(invocation_id, "other")
        gate.go.set()


@pytest.mark.parametrize(
    ("script", "state", "code"),
    [
        ([says("x")], "completed", None),
        ([fails("provider_timeout")], "failed", "provider_timeout"),
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_id_answers_its_outcome_again(
    tmp_path: Path, script: Script, state: str, code: str | None, restarted: bool
) -> None:
    """Without another event, whatever the route; with another text it is refused."""
    path = tmp_path / "s.sqlite3"
    adapter = scripted(script)
    async with serving(adapter, path) as (log, invocations):
        first = await invocations.submit("a", "hello")
        if not restarted:
            await expect_again(log, invocations, first)
    if restarted:
        async with serving(adapter, path) as (log, invocations):
            await expect_again(log, invocations, first)
            assert invocations.state("a").state == state
    assert len(adapter.requests) == 1
    assert getattr(first, "code", None) == code


async def expect_again(
    log: SessionLog, invocations: Invocations, first: InvocationResult | InvocationFailure
) -> None:
    before = log.snapshot()
    with assert_checkpoints():
        assert await invocations.submit("a", "hello") == first
    assert await invocations.submit("a", "hello", NOWHERE) == first
    with pytest.raises(InvocationMismatch):
        await invocations.submit("a", "hello ")
    with pytest.raises(InvocationSettled):
        invocations.cancel("a")
    assert invocations.state("a").outcome == first
    assert log.snapshot() is before


async def test_an_id_nobody_used_is_unknown() -> None:
    """Neither its state can be read nor can it be cancelled."""
    async with serving(scripted([says("x")])) as (_, invocations):
        with pytest.raises(InvocationUnknown):
            invocations.state("a")
        with pytest.raises(InvocationUnknown):
            invocations.cancel("a")


# --- cancellation ---------------------------------------------------------------------------------


async def test_cancelled_in_the_queue_an_invocation_leaves_no_event(tmp_path: Path) -> None:
    """Its caller is told at once, its id answers so in this process and is free in the next."""
    path = tmp_path / "s.sqlite3"
    gate = Gate()
    adapter = scripted([gate, says("x")], [says("x")])
    async with serving(adapter, path) as (log, invocations):
        async with trio.open_nursery() as nursery:
            await call(nursery, invocations, "a")
            caller = await call(nursery, invocations, "b")
            third = await call(nursery, invocations, "c")
            invocations.cancel("b")
            await wait_all_tasks_blocked()
            assert caller.code == "cancelled"
            assert third.answer is None
            gate.go.set()
        assert invocations.state("b").state == "cancelled"
        assert await invocations.submit("b", "hello") == caller.answer
        with pytest.raises(InvocationMismatch):
            await invocations.submit("b", "other")
        with pytest.raises(InvocationSettled):
            invocations.cancel("b")
        assert accepted_ids(log.snapshot()) == ["a", "c"]
    async with serving(adapter, path) as (_, invocations):
        with pytest.raises(InvocationUnknown):
            invocations.state("b")
        assert isinstance(await invocations.submit("b", "other"), InvocationResult)


async def test_cancelled_while_it_runs_a_turn_records_so(tmp_path: Path) -> None:
    """The recorded failure is `cancelled`, also after a restart; asking twice changes nothing."""
    path = tmp_path / "s.sqlite3"
    gate = Gate()
    adapter = scripted([chunk(), gate], [says("x")])
    async with serving(adapter, path) as (log, invocations):
        async with trio.open_nursery() as nursery:
            caller = await call(nursery, invocations, "a")
            await gate.reached.wait()
            invocations.cancel("a")
            invocations.cancel("a")
        assert caller.code == recorded_code(log.snapshot()) == "cancelled"
        assert isinstance(await invocations.submit("b", "next"), InvocationResult)
    async with serving(adapter, path) as (_, invocations):
        assert await invocations.submit("a", "hello") == caller.answer
        assert invocations.state("a").state == "cancelled"


SWEEP_SCRIPT: Script = [chunk(), chunk(), says("x")]


async def sweep(step_n: int, act: Callable[[Invocations], None]) -> bool:
    """Act at one point of two queued Turns; check all that must hold; tell if there was one."""
    adapter = scripted(SWEEP_SCRIPT)
    async with serving(adapter) as (log, invocations):
        callers = [Caller(invocations, each) for each in "ab"]
        with calling_at(step_n, lambda: act(invocations)) as acting:
            async with trio.open_nursery() as nursery:
                for caller in callers:
                    nursery.start_soon(caller.run)
        assert_nothing_owed(log.snapshot())
        for caller in callers:
            assert_consistent(log.snapshot(), invocations, caller)
        if not invocations.stopping:
            assert isinstance(await invocations.submit("c", "next"), InvocationResult)
    return acting.called


def assert_consistent(snapshot: Snapshot, invocations: Invocations, caller: Caller) -> None:
    """Check that a caller was told what its id answers, and what the log holds of it."""
    recorded = snapshot.find_turn(caller.invocation_id) is not None
    if isinstance(caller.answer, ShuttingDown):
        assert not recorded
        return
    state = invocations.state(caller.invocation_id)
    assert state.outcome == caller.answer
    if state.state == "completed":
        assert recorded
    else:
        assert caller.code in {"cancelled", "interrupted"}
        assert recorded or caller.code == "cancelled"


@pytest.mark.parametrize("invocation_id", ["a", "b"])
async def test_cancelled_at_any_point_the_answer_is_what_the_log_says(invocation_id: str) -> None:
    """Between any two steps of any tasks: the caller, the id and the log agree."""

    def cancel(invocations: Invocations) -> None:
        with suppress(InvocationUnknown, InvocationSettled):
            invocations.cancel(invocation_id)

    step_n = 1
    while await sweep(step_n, cancel):
        step_n += 1
    assert step_n > 20


async def test_stopped_at_any_point_everyone_is_answered() -> None:
    """Between any two steps: nothing stays open, and what was not recorded was not run."""
    step_n = 1
    while await sweep(step_n, Invocations.close_intake):
        step_n += 1
    assert step_n > 20


# --- a stop ---------------------------------------------------------------------------------------


async def test_a_stop_settles_what_runs_and_what_waits(tmp_path: Path) -> None:
    """The running Turn records `interrupted`, the queue leaves nothing, intake is closed."""
    path = tmp_path / "s.sqlite3"
    gate = Gate()
    adapter = scripted([says("x")], [chunk(), gate], [says("x")])
    async with serving(adapter, path) as (log, invocations):
        done = await invocations.submit("done", "hello")
        async with trio.open_nursery() as nursery:
            running = await call(nursery, invocations, "a")
            queued = await call(nursery, invocations, "b")
            await gate.reached.wait()
            assert not invocations.stopping
            assert await invocations.shut_down()
            assert invocations.stopping
        assert running.code == recorded_code(log.snapshot()) == "interrupted"
        assert isinstance(queued.answer, ShuttingDown)
        assert accepted_ids(log.snapshot()) == ["done", "a"]
        assert invocations.state("b").state == "cancelled"
        with pytest.raises(ShuttingDown):
            await invocations.submit("c", "hello")
        assert await invocations.submit("done", "hello") == done
        assert await invocations.shut_down()
    async with serving(adapter, path) as (_, invocations):
        assert await invocations.submit("a", "hello") == running.answer
        assert isinstance(await invocations.submit("b", "anything"), InvocationResult)


async def test_who_cancelled_first_gives_the_reason() -> None:
    """A DELETE that is on its way stays `cancelled` at a stop, and the other way round."""
    for delete_first in (True, False):
        gate = Gate()
        async with serving(scripted([gate])) as (_, invocations):
            async with trio.open_nursery() as nursery:
                caller = await call(nursery, invocations, "a")
                await gate.reached.wait()
                acts = [lambda i=invocations: i.cancel("a"), invocations.close_intake]
                for act in acts if delete_first else reversed(acts):
                    act()
            assert caller.code == ("cancelled" if delete_first else "interrupted")


async def test_leaving_the_block_is_a_stop() -> None:
    """By an exception, which comes out as it is, or by a cancellation from outside."""
    for cancelled in (False, True):
        gate = Gate()
        async with open_session_log("default") as log, trio.open_nursery() as nursery:
            caller: Caller | None = None
            with trio.CancelScope() as scope, suppress(LookupError):
                async with open_invocations(
                    log, Agent(log, routes_to(scripted([gate])))
                ) as invocations:
                    caller = await call(nursery, invocations, "a")
                    if not cancelled:
                        raise LookupError
                    scope.cancel()
                    await trio.sleep_forever()
            assert recorded_code(log.snapshot()) == "interrupted"
        assert caller is not None
        assert caller.code == "interrupted"


async def test_a_bug_in_the_actor_answers_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out of the actor's task as itself, and nobody waits for ever."""

    async def broken(*_: object) -> None:
        await wait_all_tasks_blocked()
        raise ZeroDivisionError

    monkeypatch.setattr(Agent, "run_turn", broken)
    with trio.fail_after(TIMEOUT_S):
        async with open_session_log("default") as log, trio.open_nursery() as nursery:
            invocations = Invocations(log, Agent(log, routes_to(scripted([]))))
            callers = [await call(nursery, invocations, each) for each in "ab"]
            with pytest.raises(ZeroDivisionError):
                await invocations.run()
            await wait_all_tasks_blocked()
            assert all(isinstance(caller.answer, ShuttingDown) for caller in callers)
            with pytest.raises(ShuttingDown):
                await invocations.submit("c", "hello")


async def test_a_cancellation_from_outside_is_a_stop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor is shielded: it still makes up for what is owed before the block is left."""
    commits = FailingCommits(monkeypatch)
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(scripted(SWEEP_SCRIPT)))
        with trio.CancelScope() as scope:
            async with open_invocations(log, agent) as invocations:
                commits.all_from = (3, AppendFailed)
                await invocations.submit("a", "hello")
                commits.mend()
                scope.cancel()
                await trio.sleep_forever()
        assert recorded_code(log.snapshot()) == "interrupted"


# --- a store that fails ---------------------------------------------------------------------------


async def test_after_a_failed_append_the_next_invocation_finds_all_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever appends fail from: told, owed, made up for, and the id answers consistently."""
    failing_n = 0
    while True:
        failing_n += 1
        with monkeypatch.context() as patched:
            commits = FailingCommits(patched)
            adapter = scripted(SWEEP_SCRIPT)
            async with serving(adapter) as (log, invocations):
                commits.all_from = (failing_n, AppendFailed)
                caller = Caller(invocations, "a")
                await caller.run()
                if isinstance(caller.answer, InvocationResult):
                    break
                await expect_failing(log, invocations, caller)
                commits.mend()
                await expect_mended(log, invocations, owed=caller.code is not None)
    assert failing_n == 6, "an append each: input, request, two chunks, message"


async def expect_failing(log: SessionLog, invocations: Invocations, caller: Caller) -> None:
    """Check what is answered while no append works."""
    before = log.snapshot()
    if caller.code is None:
        assert isinstance(caller.answer, AppendFailed)
        with pytest.raises(InvocationUnknown):
            invocations.state("a")
    else:
        assert caller.code == "store_failed"
        state = invocations.state("a")
        assert (state.state, state.outcome) == ("failed", caller.answer)
        assert await invocations.submit("a", "hello") == caller.answer
        with pytest.raises(InvocationSettled):
            invocations.cancel("a")
    with pytest.raises(AppendFailed):
        await invocations.submit("b", "hello")
    with pytest.raises(InvocationUnknown):
        invocations.state("b")
    assert log.snapshot() is before


async def expect_mended(log: SessionLog, invocations: Invocations, *, owed: bool) -> None:
    """Check that what was owed comes first once appends work again."""
    assert isinstance(await invocations.submit("b", "other"), InvocationResult)
    assert_nothing_owed(log.snapshot())
    again = await invocations.submit("a", "hello")
    if owed:
        assert isinstance(again, InvocationFailure)
        assert again.code == "interrupted"
        assert accepted_ids(log.snapshot()) == ["a", "b"]
    else:
        assert isinstance(again, InvocationResult)
        assert accepted_ids(log.snapshot()) == ["b", "a"]


async def test_an_owed_turn_is_made_up_for_before_its_own_id_is_answered(
    monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    """POST of the very id whose end is owed records that end, and runs nothing again."""
    commits = FailingCommits(monkeypatch)
    adapter = scripted(SWEEP_SCRIPT)
    async with serving(adapter) as (log, invocations):
        commits.all_from = (3, AppendFailed)
        assert getattr(await invocations.submit("a", "hello"), "code", None) == "store_failed"
        commits.mend()
        logs.clear()
        with pytest.raises(InvocationMismatch):
            await invocations.submit("a", "other")
        assert getattr(await invocations.submit("a", "hello"), "code", None) == "interrupted"
        assert recorded_code(log.snapshot()) == "interrupted"
        assert [entry["event"] for entry in logs] == [
            "invocation queued",
            "commits succeed again",
            "turn failed",
            "invocation settled",
        ]
    assert len(adapter.requests) == 1


async def test_a_single_failed_append_is_recorded_as_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the end can be recorded right away, that is the outcome, for the caller too."""
    commits = FailingCommits(monkeypatch)
    async with serving(scripted(SWEEP_SCRIPT)) as (log, invocations):
        commits.failing = {4: AppendFailed}
        outcome = await invocations.submit("a", "hello")
        assert getattr(outcome, "code", None) == recorded_code(log.snapshot()) == "interrupted"


async def test_a_store_that_has_stopped_refuses_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an unknown outcome nothing is recorded any more; reads go on; the stop tells."""
    commits = FailingCommits(monkeypatch)
    async with serving(scripted([says("x")], SWEEP_SCRIPT)) as (log, invocations):
        done = await invocations.submit("done", "hello")
        commits.failing = {commits.tried_n + 3: OutcomeUnknown}
        outcome = await invocations.submit("a", "hello")
        assert getattr(outcome, "code", None) == "store_failed"
        assert "/secret" not in repr(outcome)
        assert log.health == "failed"
        tried_n = commits.tried_n
        with pytest.raises(StoreStopped):
            await invocations.submit("b", "hello")
        assert invocations.state("a").state == "failed"
        assert await invocations.submit("done", "hello") == done
        assert not await invocations.shut_down()
        assert commits.tried_n == tried_n


async def test_a_stop_tries_once_more_to_record_what_is_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If there is room by then, the stop is clean; if not, it says so."""
    for mended in (True, False):
        with monkeypatch.context() as patched:
            commits = FailingCommits(patched)
            async with serving(scripted(SWEEP_SCRIPT)) as (log, invocations):
                commits.all_from = (3, AppendFailed)
                await invocations.submit("a", "hello")
                if mended:
                    commits.mend()
                assert await invocations.shut_down() is mended
                assert (recorded_code(log.snapshot()) == "interrupted") is mended


async def test_a_full_disk_fails_turns_until_there_is_room(tmp_path: Path) -> None:
    """The same on a real file that cannot grow, with callers in the queue."""
    path = tmp_path / "s.sqlite3"
    gate = Gate()
    adapter = scripted([gate, chunk(), says("x")], [says("x")])
    async with serving(adapter, path) as (log, invocations):
        async with trio.open_nursery() as nursery:
            callers = [await call(nursery, invocations, each) for each in "ab"]
            await gate.reached.wait()
            with full_disk():
                gate.go.set()
                while any(caller.answer is None for caller in callers):
                    await trio.lowlevel.checkpoint()
        assert callers[0].code == "store_failed"
        assert isinstance(callers[1].answer, StoreError)
        assert accepted_ids(log.snapshot()) == ["a"]
        assert isinstance(await invocations.submit("b", "hello"), InvocationResult)
        assert getattr(await invocations.submit("a", "hello"), "code", None) == "interrupted"
    async with open_session_log("default", path) as log:
        assert_nothing_owed(log.snapshot())
        assert accepted_ids(log.snapshot()) == ["a", "b"]
