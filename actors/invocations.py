"""The queue of Turns: first come, first served, one running, cancel by id.

One task, the actor, runs the Turns. Everything else here is synchronous: deciding about an
invocation and putting it into its place happen with no checkpoint between, so two callers can
never both win.

What an invocation came to is never kept here. It is read from the log, each time it is asked
for, so an id answers the same whether the process was restarted in between or not, and a settled
invocation costs no memory but the log's. The exception is an id that was cancelled before its
input was recorded: the log knows nothing of it, so this process remembers that much.

The states, with the only moves there are::

    queued ──▶ running ──▶ completed | failed | cancelled
       └─────▶ cancelled

Order matters in three places:

- What an earlier Turn still owes is recorded before the next one begins. If that fails the next
  one does not begin, and leaves no event.
- An id is looked up among the live, then in the log, then among the remembered: a Turn that is
  recorded has a stronger claim to its id than one that never ran.
- At a stop intake closes first, then the queue is answered, then the running Turn is cancelled:
  nothing can slip in between.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias

import structlog
import trio
from attrs import define, field, frozen

from actors.agent import CANCELLED, INTERRUPTED, recover
from actors.errors import (
    InvocationLive,
    InvocationMismatch,
    InvocationSettled,
    InvocationUnknown,
    SessiondError,
    ShuttingDown,
)
from actors.events import AssistantMessageCommitted, StepFailed, UserInputAccepted
from actors.tasks import running_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from structlog.typing import FilteringBoundLogger

    from actors.agent import Agent
    from actors.session_log import SessionLog
    from actors.snapshot import Snapshot
    from actors.turns import TurnRecord
    from actors.values import AssistantMessage, ErrorInfo, Route

_log: FilteringBoundLogger = structlog.get_logger()

State: TypeAlias = Literal["queued", "running", "completed", "failed", "cancelled"]

LEGAL_MOVES: Mapping[State, frozenset[State]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"completed", "failed", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


@frozen
class InvocationResult:
    """A Turn that came to its final message."""

    invocation_id: str
    session_id: str
    turn_id: str
    steps: int
    """Requests made of the model."""
    message: AssistantMessage
    finish_reason: str
    last_sequence: int
    """The sequence of the final message."""


@frozen
class InvocationFailure:
    """A Turn that came to none: a stable code, and a sentence for people."""

    code: str
    message: str


@frozen
class InvocationState:
    """Where an invocation stands; with its result once completed, its failure once it has one."""

    invocation_id: str
    state: State
    result: InvocationResult | None = None
    failure: InvocationFailure | None = None

    @property
    def outcome(self) -> InvocationResult | InvocationFailure | None:
        """The one or the other; None while the invocation is live."""
        return self.result or self.failure


_CANCELLED = InvocationFailure(CANCELLED.code, CANCELLED.message)
_STORE_FAILED = InvocationFailure(
    "store_failed", "the store failed, and the turn's outcome is not on record"
)

Outcome: TypeAlias = InvocationResult | InvocationFailure


@define(eq=False)
class Invocation:
    """One live invocation, with the slot for its own answer."""

    invocation_id: str
    text: str
    route: Route | None
    state: State = "queued"
    why_cut: ErrorInfo = INTERRUPTED
    """What is recorded if the Turn is cut short."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    settled: trio.Event = field(factory=trio.Event)
    answer: Outcome | SessiondError | None = None

    def move(self, state: State) -> None:
        """Go on to ``state``.

        Raises:
            ValueError: that is not a legal move; nothing has changed.
        """
        if state not in LEGAL_MOVES[self.state]:
            raise ValueError(f"invocation {self.invocation_id!r}: {self.state} -> {state}")
        self.state = state

    def settle(self, state: State, answer: Outcome | SessiondError) -> None:
        """Go on to a last state and wake the caller."""
        self.move(state)
        self.answer = answer
        self.settled.set()

    async def wait(self) -> Outcome:
        """Return the answer, or raise it. Cancelled, only the wait ends."""
        await self.settled.wait()
        if isinstance(self.answer, SessiondError):
            raise self.answer
        assert self.answer is not None  # settle came with one
        return self.answer


class Invocations:
    """The queue of one session. Made by :func:`open_invocations`."""

    def __init__(self, log: SessionLog, agent: Agent) -> None:
        self._log = log
        self._agent = agent
        self._live: OrderedDict[str, Invocation] = OrderedDict()
        """By id, in order of arrival. The running one, if any, is the first."""
        self._unrecorded: dict[str, bytes] = {}
        """Ids cancelled before their input was recorded -> the digest of their text."""
        self._arrived = trio.Event()
        self._ended = trio.Event()
        self.stopping = False
        """Whether intake has closed."""

    async def submit(self, invocation_id: str, text: str, route: Route | None = None) -> Outcome:
        """Have one Turn run, in its turn, and return what it came to.

        An id that has its outcome answers it again, and nothing runs. The invocation is in the
        queue before the first checkpoint; a caller that is cancelled while it waits does not
        stop its Turn. Always a checkpoint unless it raises.

        Raises:
            InvocationMismatch: the id was used with another text.
            InvocationLive: the id is queued or running.
            RouteUnavailable: there is no such route.
            ShuttingDown: the Host stops, or did while this was in the queue.
            StoreError: the store fails and the input was not recorded; the id stays free.
            RejectedEvent: the input cannot be recorded.
        """
        known = self._known_outcome(invocation_id, text)
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        self._agent.routes.resolve(route)
        if self.stopping:
            raise _shutting_down(invocation_id)
        invocation = Invocation(invocation_id, text, route)
        self._live[invocation_id] = invocation
        _log.info(
            "invocation queued",
            session=self._log.session_id,
            invocation=invocation_id,
            before=len(self._live) - 1,
        )
        self._arrived.set()
        return await invocation.wait()

    def state(self, invocation_id: str) -> InvocationState:
        """Return where the invocation stands.

        Raises:
            InvocationUnknown: neither live nor recorded.
        """
        live = self._live.get(invocation_id)
        if live is not None:
            return InvocationState(invocation_id, live.state)
        outcome = self._settled_outcome(invocation_id)
        if outcome is None:
            raise InvocationUnknown(f"no invocation {invocation_id!r}", invocation_id)
        if isinstance(outcome, InvocationResult):
            return InvocationState(invocation_id, _state_after(outcome), result=outcome)
        return InvocationState(invocation_id, _state_after(outcome), failure=outcome)

    def cancel(self, invocation_id: str) -> None:
        """Ask for an invocation to be cancelled; a Turn about to end may still end as it would.

        Raises:
            InvocationUnknown: neither live nor recorded.
            InvocationSettled: it has its outcome.
        """
        live = self._live.get(invocation_id)
        if live is None:
            self.state(invocation_id)  # or it is unknown
            raise InvocationSettled(f"invocation {invocation_id!r} has settled", invocation_id)
        if live.state == "queued":
            self._withdraw(live, _CANCELLED)
        elif not self.stopping:  # a stop has cancelled it already, and gave its own reason
            live.why_cut = CANCELLED
            live.scope.cancel()

    async def shut_down(self) -> bool:
        """Close intake, cancel and settle everything, and tell whether nothing is owed.

        The queue is answered :class:`ShuttingDown` at once; the running Turn records that it was
        interrupted. False means that the store did not take what a Turn owes. Cancelled, only
        the wait ends. May be called again.
        """
        self.close_intake()
        await self._ended.wait()
        return self._log.snapshot().open_turn is None

    def close_intake(self) -> None:
        """Take nothing more, answer the queue, cancel what runs; the rest of a stop follows."""
        self.stopping = True
        for invocation in list(self._live.values()):
            if invocation.state == "queued":
                self._withdraw(invocation, _shutting_down(invocation.invocation_id))
            else:
                invocation.scope.cancel()
        self._arrived.set()

    async def run(self) -> None:
        """Be the actor: run what is queued, one by one, until :meth:`shut_down`.

        Shielded, so that a Turn ends by its own scope and with its own reason, and every caller
        is answered.
        """
        with trio.CancelScope(shield=True):
            try:
                while (invocation := await self._next()) is not None:
                    await self._run_one(invocation)
                await self._record_owed()
            finally:
                # After a bug too: nobody may wait for an answer that cannot come.
                self.close_intake()
                self._ended.set()

    # --- what is known of an id ---------------------------------------------------------------

    def _known_outcome(self, invocation_id: str, text: str) -> Outcome | None:
        """Return the outcome to answer again; None where the id is free, or its Turn is owed."""
        live = self._live.get(invocation_id)
        snapshot = self._log.snapshot()
        record = snapshot.find_turn(invocation_id)
        if live is not None:
            same = live.text == text
        elif record is not None:
            same = _recorded_text(snapshot, record) == text
        else:
            same = self._unrecorded.get(invocation_id) in (None, _digest(text))
        if not same:
            raise InvocationMismatch(
                f"invocation {invocation_id!r} was used with another input", invocation_id
            )
        if live is not None:
            raise InvocationLive(f"invocation {invocation_id!r} is {live.state}", invocation_id)
        if record is not None and record.ended_at is None:
            return None
        return self._settled_outcome(invocation_id)

    def _settled_outcome(self, invocation_id: str) -> Outcome | None:
        snapshot = self._log.snapshot()
        record = snapshot.find_turn(invocation_id)
        if record is not None:
            return _recorded_outcome(snapshot, record)
        return _CANCELLED if invocation_id in self._unrecorded else None

    # --- the actor ----------------------------------------------------------------------------

    async def _next(self) -> Invocation | None:
        """Wait for the first in the queue; None when there will be no more."""
        while not self._live:
            if self.stopping:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        return next(iter(self._live.values()))

    async def _run_one(self, invocation: Invocation) -> None:
        invocation.move("running")
        error: SessiondError | None = None
        try:
            with invocation.scope:
                await self._serve(invocation)
        except SessiondError as caught:
            error = caught
            _log.warning(
                "invocation failed",
                session=self._log.session_id,
                invocation=invocation.invocation_id,
                error=str(caught),
            )
        finally:
            self._settle(invocation, error)

    async def _serve(self, invocation: Invocation) -> None:
        await recover(self._log)
        # An id whose Turn was owed has its outcome now.
        if self._log.snapshot().find_turn(invocation.invocation_id) is None:
            await self._agent.run_turn(
                invocation.invocation_id,
                invocation.text,
                invocation.route,
                lambda: invocation.why_cut,
            )

    def _settle(self, invocation: Invocation, error: SessiondError | None) -> None:
        """Answer the one that ran from the log, however its code ended."""
        snapshot = self._log.snapshot()
        record = snapshot.find_turn(invocation.invocation_id)
        if record is None and error is None:
            # Cut short before its input was recorded: as though it were in the queue still.
            stopped = invocation.why_cut != CANCELLED
            answer = _shutting_down(invocation.invocation_id) if stopped else _CANCELLED
            self._withdraw(invocation, answer)
            return
        del self._live[invocation.invocation_id]
        if record is not None:
            outcome = _recorded_outcome(snapshot, record)
            invocation.settle(_state_after(outcome), outcome)
        else:
            assert error is not None  # the first branch took the rest
            invocation.settle("failed", error)
        self._tell_settled(invocation, record)

    def _withdraw(self, invocation: Invocation, answer: InvocationFailure | ShuttingDown) -> None:
        """Settle one that left no event as cancelled, and remember its id."""
        del self._live[invocation.invocation_id]
        self._unrecorded[invocation.invocation_id] = _digest(invocation.text)
        invocation.settle("cancelled", answer)
        self._tell_settled(invocation, None)

    def _tell_settled(self, invocation: Invocation, record: TurnRecord | None) -> None:
        """Log how an invocation ended: where its Turn stands, and no word of what was said."""
        told: dict[str, str | int | None] = {}
        if record is not None:
            told = {"turn": record.turn_id, "sequence": record.ended_at, "steps": record.steps_n}
        if isinstance(invocation.answer, InvocationFailure):
            told["code"] = invocation.answer.code
        _log.info(
            "invocation settled",
            session=self._log.session_id,
            invocation=invocation.invocation_id,
            state=invocation.state,
            **told,
        )

    async def _record_owed(self) -> None:
        """Try once more to record what is owed; :meth:`shut_down` tells whether it worked."""
        try:
            await recover(self._log)
        except SessiondError as error:
            _log.error(
                "what a turn owes could not be recorded",
                session=self._log.session_id,
                error=str(error),
            )


def _recorded_text(snapshot: Snapshot, record: TurnRecord) -> str:
    event = snapshot[record.accepted_at - 1].event
    assert isinstance(event, UserInputAccepted)  # that is what a record's accepted_at names
    return "\n\n".join(message.content for message in event.messages)


def _recorded_outcome(snapshot: Snapshot, record: TurnRecord) -> Outcome:
    if record.ended_at is None:
        return _STORE_FAILED  # not live and not ended: its end could not be recorded
    event = snapshot[record.ended_at - 1].event
    if isinstance(event, StepFailed):
        return InvocationFailure(event.code, event.message)
    assert isinstance(event, AssistantMessageCommitted)  # nothing else ends a Turn
    return InvocationResult(
        record.invocation_id,
        snapshot.session_id,
        record.turn_id,
        record.steps_n,
        event.message,
        event.finish_reason,
        record.ended_at,
    )


def _state_after(outcome: Outcome) -> State:
    if isinstance(outcome, InvocationResult):
        return "completed"
    return "cancelled" if outcome.code == CANCELLED.code else "failed"


def _shutting_down(invocation_id: str) -> ShuttingDown:
    return ShuttingDown("the host is shutting down", invocation_id)


def _digest(text: str) -> bytes:
    # Not the text: of cancelled invocations nothing that grows with their input is kept.
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


@asynccontextmanager
async def open_invocations(log: SessionLog, agent: Agent) -> AsyncGenerator[Invocations, None]:
    """Serve invocations on ``log`` with ``agent`` while the block runs.

    Leaving the block shuts down, shielded: every Turn is settled and every caller answered
    before the log can close. An exception of the block's own comes out as it is.
    """
    invocations = Invocations(log, agent)
    async with running_beside(invocations.run, invocations.close_intake):
        yield invocations
