"""The session log against the simplest model there is: a list.

One machine drives a log on disk and one in memory through the same appends, restarts the one on
disk whenever hypothesis likes, and compares both with a plain list of the events accepted.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import AsyncExitStack
from copy import deepcopy
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from log_support import SESSION, Conversation, assert_same, assert_stored, chunk

from actors.errors import RejectedEvent, SequenceConflict
from actors.events import Event, UserInputAccepted
from actors.session_log import SessionLog, open_session_log
from actors.values import UserMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.snapshot import Snapshot

T = TypeVar("T")
TIMEOUT_S = 30


class Loop:
    """A trio loop in a thread, so that logs stay open from one rule of the machine to the next."""

    def __init__(self) -> None:
        started: SimpleQueue[tuple[trio.lowlevel.TrioToken, trio.Event]] = SimpleQueue()

        async def main() -> None:
            stop = trio.Event()
            started.put((trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

        self._thread = threading.Thread(target=trio.run, args=(main,))
        self._thread.start()
        self._token, self._stop = started.get(timeout=TIMEOUT_S)

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            with trio.fail_after(TIMEOUT_S):
                return await call()

        return trio.from_thread.run(bounded, trio_token=self._token)

    def stop(self) -> None:
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


class OpenLog:
    """A log held open in a task of the loop's system nursery, until it is told to leave."""

    def __init__(self, loop: Loop, database: Path | None) -> None:
        self._loop = loop
        self._leave: trio.Event
        self._left: trio.Event
        self.log: SessionLog = loop.run(lambda: self._enter(database))

    async def _enter(self, database: Path | None) -> SessionLog:
        self._leave, self._left = trio.Event(), trio.Event()
        opened: list[SessionLog] = []
        entered = trio.Event()

        async def hold() -> None:
            async with AsyncExitStack() as stack:
                stack.callback(self._left.set)
                opened.append(await stack.enter_async_context(open_session_log(SESSION, database)))
                entered.set()
                await self._leave.wait()

        trio.lowlevel.spawn_system_task(hold)
        await entered.wait()
        return opened[0]

    def close(self) -> None:
        async def leave() -> None:
            self._leave.set()
            await self._left.wait()

        self._loop.run(leave)


class LogMachine(RuleBasedStateMachine):
    """Appends of all kinds, in any order, with restarts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.directory = Path(tempfile.mkdtemp(prefix="sessiond-test-"))
        self.path = self.directory / "session.sqlite3"
        self.open_logs: list[OpenLog] = []
        self.model: list[Event] = []
        self.said = Conversation()
        self.earlier: list[Snapshot] = []

    @initialize()
    def open(self) -> None:
        self.open_logs = [OpenLog(self.loop, self.path), OpenLog(self.loop, None)]

    @property
    def logs(self) -> list[SessionLog]:
        return [opened.log for opened in self.open_logs]

    def append(self, events: list[Event], expected_sequence: int | None = None) -> None:
        """Append on both logs; a single event goes the way of single events."""
        for log in self.logs:
            if len(events) == 1:
                event = events[0]
                envelope = self.loop.run(lambda: log.append(event, expected_sequence))  # noqa: B023
                envelopes = (envelope,)
            else:
                envelopes = self.loop.run(lambda: log.append_many(events, expected_sequence))  # noqa: B023
            assert [envelope.event for envelope in envelopes] == events
            first = len(self.model) + 1
            assert [e.sequence for e in envelopes] == list(range(first, first + len(events)))
        self.model += events

    def refused(self, kind: type[Exception], events: list[Event], expected: int | None) -> None:
        for log in self.logs:
            with pytest.raises(kind):
                self.loop.run(lambda: log.append_many(events, expected))  # noqa: B023

    def say(self, said: Conversation, data: st.DataObject) -> Event:
        move = data.draw(st.sampled_from(said.moves()))
        if move == "answer":
            return said.answer(
                data.draw(st.sampled_from(["", "text"])), data.draw(st.integers(0, 2))
            )
        event: Event = getattr(said, move)()
        return event

    @rule(data=st.data(), events_n=st.integers(1, 6), named=st.booleans())
    def append_what_fits(self, data: st.DataObject, events_n: int, named: bool) -> None:
        events = [self.say(self.said, data) for _ in range(events_n)]
        self.append(events, len(self.model) + 1 if named else None)

    @rule()
    def append_nothing(self) -> None:
        for log in self.logs:
            assert self.loop.run(lambda: log.append_many([])) == ()  # noqa: B023

    @rule(data=st.data(), fitting_n=st.integers(0, 3), after_n=st.integers(0, 2))
    def append_what_breaks_a_rule(self, data: st.DataObject, fitting_n: int, after_n: int) -> None:
        said = deepcopy(self.said)
        events = [self.say(said, data) for _ in range(fitting_n)]
        # Never the next Turn, whatever came before.
        skipping = UserInputAccepted(f"turn-{said.turn_n + 2}", "unheard", (UserMessage("x"),))
        again = [event for event in self.model[:1] if isinstance(event, UserInputAccepted)]
        events.append(data.draw(st.sampled_from([skipping, *again])))
        events += [chunk("after") for _ in range(after_n)]
        self.refused(RejectedEvent, events, None)

    @rule(data=st.data(), by=st.integers(-3, 3).filter(bool))
    def append_at_another_sequence(self, data: st.DataObject, by: int) -> None:
        event = self.say(deepcopy(self.said), data)
        self.refused(SequenceConflict, [event, chunk(1)], len(self.model) + 1 + by)

    @rule()
    def keep_a_snapshot(self) -> None:
        self.earlier.append(self.logs[0].snapshot())

    @precondition(lambda self: self.model)
    @rule()
    def restart(self) -> None:
        before = self.logs[0].snapshot()
        self.open_logs[0].close()
        self.open_logs[0] = OpenLog(self.loop, self.path)
        assert_same(self.logs[0].snapshot(), before)

    @invariant()
    def both_logs_are_the_model(self) -> None:
        if not self.open_logs:
            return
        on_disk, in_memory = (log.snapshot() for log in self.logs)
        for snapshot in (on_disk, in_memory):
            assert [envelope.event for envelope in snapshot] == self.model
            assert len(snapshot) == snapshot.last_sequence == len(self.model)
        assert on_disk.model_history() == in_memory.model_history()
        assert on_disk.transcript() == in_memory.transcript()
        assert on_disk.open_turn == in_memory.open_turn

    @invariant()
    def snapshots_stay_as_they_were(self) -> None:
        for snapshot in self.earlier:
            assert [e.event for e in snapshot] == self.model[: snapshot.last_sequence]

    def teardown(self) -> None:
        try:
            if self.open_logs:
                assert_stored(self.path, self.logs[0])
            for opened in self.open_logs:
                opened.close()
        finally:
            self.loop.stop()
            shutil.rmtree(self.directory)


def test_the_log_is_a_list() -> None:
    """Whatever is appended, refused and restarted, the log holds what a list would hold."""
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=20, stateful_step_count=25)
    )


@pytest.mark.stress
def test_the_log_is_a_list_for_long() -> None:
    """The same, for many and longer histories."""
    run_state_machine_as_test(
        LogMachine, settings=settings(max_examples=400, stateful_step_count=80)
    )
