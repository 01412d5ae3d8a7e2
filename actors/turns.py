"""The rules that tie a session's events together, and what an unfinished Turn still owes.

The rules, and the reason each is there:

- Turns and Steps are numbered without gaps, so that an id alone says what came before.
- A Turn is finished by an assistant message without tool calls or by ``step_failed``. Until
  then no input is accepted, and after it nothing more of that Turn is.
- A request comes only when no call is open and the Step before has its answer: a provider
  refuses a history in which a call is unanswered, and would do so for ever.
- A request that names the history must name the one there is, by position and by hash.
- A call is started at most once and completed once, started or not.
- Chunks are evidence. They enter no projection and are under no rule.

:class:`Ledger` applies them to one session. It is asked before an event is written and when one
is loaded, so that nothing can be written that would not load. A batch that may yet fail is
judged on an overlay (:meth:`Ledger.overlay`), which sees what the batch has reached so far and
is merged only once the batch is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import evolve, field, frozen

from actors.errors import RejectedEvent
from actors.events import (
    AssistantMessageCommitted,
    Event,
    HistoryRef,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
    step_id_for,
    turn_id_for,
)
from actors.history import HistoryHash, messages_entering
from actors.values import ErrorInfo, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class TurnRecord:
    """One Turn as its session knows it."""

    turn_id: str
    invocation_id: str
    accepted_at: int
    """Sequence of the input."""
    steps_n: int = 0
    """Requests recorded so far."""
    ended_at: int | None = None
    """Sequence of the event that finished the Turn; None while it is unfinished."""


@frozen
class OpenTurn:
    """The Turn that is not finished yet, at one instant. A new one is made at each step."""

    turn_id: str
    invocation_id: str
    steps_n: int = 0
    answered: bool = False
    """Whether the last Step requested has its assistant message."""
    open_calls: Mapping[str, ToolCall] = field(factory=dict[str, ToolCall])
    """The calls without an answer by id, in the model's order. Never changed in place."""
    started: frozenset[str] = frozenset()
    """Ids of the open calls that were started."""

    @property
    def step_id(self) -> str:
        """The last Step requested; the first one's id where none was."""
        return step_id_for(self.turn_id, max(self.steps_n, 1))

    def closing_events(self, code: str, message: str) -> tuple[Event, ...]:
        """Return what this Turn owes: an answer to each open call, and its failure.

        A call that was started may have had its effect; one that was not has had none. The
        model is told which.
        """
        answers = (
            ToolExecutionCompleted(
                self.step_id,
                call_id,
                error=ErrorInfo("interrupted", "stopped while it ran; its effect is unknown")
                if call_id in self.started
                else ErrorInfo("not_executed", "the turn ended before this call was run"),
            )
            for call_id in self.open_calls
        )
        return (*answers, StepFailed(self.step_id, code, message))


class _HasOpenTurn(Protocol):
    @property
    def open_turn(self) -> OpenTurn | None: ...


def closing_events(snapshot: _HasOpenTurn, code: str, message: str) -> tuple[Event, ...]:
    """Return what the session's last Turn owes in a snapshot; empty when it is finished.

    Pure: once these events are appended, the next snapshot owes nothing.
    """
    turn = snapshot.open_turn
    return () if turn is None else turn.closing_events(code, message)


class Ledger:
    """A session's rules and the state they need, or an overlay of another ledger."""

    def __init__(self, base: Ledger | None = None) -> None:
        self._base = base
        self._call_ids: set[str] = set()
        self._turns: dict[str, TurnRecord] = {}
        if base is None:
            self.turns_n = 0
            """Inputs accepted so far."""
            self.open_turn: OpenTurn | None = None
            self.history_hash = HistoryHash()
            """Of the model history so far."""
            self._last_message_at = 0
        else:
            self._take_over(base)

    def _take_over(self, other: Ledger) -> None:
        self.turns_n = other.turns_n
        self.open_turn = other.open_turn
        self.history_hash = other.history_hash
        self._last_message_at = other._last_message_at

    def overlay(self) -> Ledger:
        """Return a ledger that sees all this one holds and keeps what is new to itself."""
        return Ledger(self)

    def merge(self) -> None:
        """Hand all that is new in this overlay to the ledger it was made of."""
        if self._base is None:
            raise ValueError("only an overlay can be merged")
        self._base._call_ids |= self._call_ids
        self._base._turns |= self._turns
        self._base._take_over(self)

    def find_turn(self, invocation_id: str) -> TurnRecord | None:
        """Return the Turn that the invocation's input became, None where there is none."""
        record = self._turns.get(invocation_id)
        if record is None and self._base is not None:
            return self._base.find_turn(invocation_id)
        return record

    def admit(self, event: Event, sequence: int) -> None:
        """Take ``event`` as the session's ``sequence``-th, if the rules allow it.

        Raises:
            RejectedEvent: a rule forbids it. Nothing has changed then.
        """
        if type(event) is ModelChunkRecorded:
            return
        if type(event) is UserInputAccepted:
            self._admit_input(event, sequence)
        elif type(event) is ModelRequestRecorded:
            self._admit_request(event, sequence)
        elif type(event) is AssistantMessageCommitted:
            self._admit_answer(event, sequence)
        elif type(event) is ToolExecutionStarted:
            self._admit_started(event)
        elif type(event) is ToolExecutionCompleted:
            self._admit_completed(event)
        else:
            assert type(event) is StepFailed
            self._admit_failed(event, sequence)
        for message in messages_entering(event):
            self.history_hash = self.history_hash.followed_by(message)
            self._last_message_at = sequence

    # Each of these checks everything first and changes state last.

    def _admit_input(self, event: UserInputAccepted, sequence: int) -> None:
        if self.open_turn is not None:
            raise RejectedEvent(f"input while {self.open_turn.turn_id} is unfinished")
        expected = turn_id_for(self.turns_n + 1)
        if event.turn_id != expected:
            raise RejectedEvent(f"input as {event.turn_id}, but the next Turn is {expected}")
        if self.find_turn(event.invocation_id) is not None:
            raise RejectedEvent(f"invocation {event.invocation_id!r} was accepted before")
        self.turns_n += 1
        self.open_turn = OpenTurn(event.turn_id, event.invocation_id)
        self._turns[event.invocation_id] = TurnRecord(event.turn_id, event.invocation_id, sequence)

    def _admit_request(self, event: ModelRequestRecorded, sequence: int) -> None:
        turn = self._require_open(event)
        if event.turn_id != turn.turn_id:
            raise RejectedEvent(f"request of {event.turn_id} during {turn.turn_id}")
        expected = step_id_for(turn.turn_id, turn.steps_n + 1)
        if event.step_id != expected:
            raise RejectedEvent(f"request of {event.step_id}, but the next Step is {expected}")
        if turn.steps_n > 0 and not turn.answered:
            raise RejectedEvent(f"request while {turn.step_id} has no assistant message")
        if turn.open_calls:
            raise RejectedEvent(f"request while {_names(turn.open_calls)} is unanswered")
        if isinstance(event.messages, HistoryRef):
            self._check_history_ref(event.messages, sequence)
        self.open_turn = evolve(turn, steps_n=turn.steps_n + 1, answered=False)
        record = self.find_turn(turn.invocation_id)
        assert record is not None
        self._turns[turn.invocation_id] = evolve(record, steps_n=turn.steps_n + 1)

    def _check_history_ref(self, ref: HistoryRef, sequence: int) -> None:
        if ref.through >= sequence:
            raise RejectedEvent(f"request through {ref.through}, which is not before it")
        if ref.through < self._last_message_at:
            raise RejectedEvent(
                f"request through {ref.through}, but a message came at {self._last_message_at}"
            )
        if ref.sha256 != self.history_hash.hexdigest():
            raise RejectedEvent(f"request whose sha256 is not of the history at {ref.through}")

    def _admit_answer(self, event: AssistantMessageCommitted, sequence: int) -> None:
        turn = self._require_step(event)
        if turn.steps_n == 0:
            raise RejectedEvent(f"assistant message of {event.step_id}, which was not requested")
        if turn.answered:
            raise RejectedEvent(f"a second assistant message of {event.step_id}")
        calls: dict[str, ToolCall] = {}
        for call in event.message.tool_calls:
            if call.id in calls or self.knows_call(call.id):
                raise RejectedEvent(f"tool call id {call.id!r:.80} is not new in its session")
            calls[call.id] = call
        if not calls:
            self._finish(turn, sequence)
            return
        self._call_ids.update(calls)
        self.open_turn = evolve(turn, answered=True, open_calls=calls)

    def _admit_started(self, event: ToolExecutionStarted) -> None:
        turn = self._require_step(event)
        if event.call.id in turn.started:
            raise RejectedEvent(f"tool call {event.call.id!r:.80} was started before")
        if turn.open_calls.get(event.call.id) != event.call:
            raise RejectedEvent(f"tool call {event.call.id!r:.80} is not open as it stands there")
        self.open_turn = evolve(turn, started=turn.started | {event.call.id})

    def _admit_completed(self, event: ToolExecutionCompleted) -> None:
        turn = self._require_step(event)
        if event.call_id not in turn.open_calls:
            raise RejectedEvent(f"answer to tool call {event.call_id!r:.80}, which is not open")
        still_open = {key: call for key, call in turn.open_calls.items() if key != event.call_id}
        self.open_turn = evolve(turn, open_calls=still_open, started=turn.started - {event.call_id})

    def _admit_failed(self, event: StepFailed, sequence: int) -> None:
        turn = self._require_step(event)
        if turn.open_calls:
            raise RejectedEvent(f"step_failed while {_names(turn.open_calls)} is unanswered")
        self._finish(turn, sequence)

    def _require_open(self, event: Event) -> OpenTurn:
        if self.open_turn is None:
            raise RejectedEvent(f"{event.tag} outside of any unfinished Turn")
        return self.open_turn

    def _require_step(
        self,
        event: AssistantMessageCommitted
        | ToolExecutionStarted
        | ToolExecutionCompleted
        | StepFailed,
    ) -> OpenTurn:
        turn = self._require_open(event)
        if event.step_id != turn.step_id:
            raise RejectedEvent(f"{event.tag} of {event.step_id} during {turn.step_id}")
        return turn

    def _finish(self, turn: OpenTurn, sequence: int) -> None:
        record = self.find_turn(turn.invocation_id)
        assert record is not None
        self._turns[turn.invocation_id] = evolve(record, ended_at=sequence)
        self.open_turn = None

    def knows_call(self, call_id: str) -> bool:
        """Tell whether the id was a tool call's before."""
        if call_id in self._call_ids:
            return True
        return self._base is not None and self._base.knows_call(call_id)


def _names(calls: Mapping[str, ToolCall]) -> str:
    return ", ".join(f"tool call {call_id!r:.80}" for call_id in list(calls)[:3])
