"""The rules: what may follow what, and what an unfinished Turn owes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_support import Conversation
from strategies import sessions

from actors.codec import encode_event, row_digest
from actors.errors import RejectedEvent
from actors.events import (
    AssistantMessageCommitted,
    Event,
    HistoryRef,
    ModelChunkRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.rows import Row
from actors.snapshot import Timeline
from actors.turns import Ledger, closing_events
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STAMP = "2026-12-01T09:30:00.123456Z"


def published(events: Iterable[Event], timeline: Timeline | None = None) -> Timeline:
    """Return a timeline that holds the events, each admitted by the rules."""
    timeline = timeline or Timeline("default")
    for event in events:
        sequence = timeline.next_sequence
        timeline.ledger.admit(event, sequence)
        tag, text = encode_event(event)
        digest = row_digest(timeline.last_digest, "default", sequence, 0, STAMP, tag, text)
        timeline.publish(Row("default", sequence, 0, STAMP, tag, text, digest), event)
    return timeline


def state_of(ledger: Ledger, events: Iterable[Event]) -> object:
    """Return all that can be asked of a ledger, given the events it was fed."""
    ids = [event.invocation_id for event in events if isinstance(event, UserInputAccepted)]
    return (
        ledger.turns_n,
        ledger.open_turn,
        ledger.history_hash.hexdigest(),
        [ledger.find_turn(invocation_id) for invocation_id in ids],
    )


def fed(events: Iterable[Event], ledger: Ledger | None = None, start: int = 1) -> Ledger:
    """Return a ledger that has admitted the events."""
    ledger = ledger or Ledger()
    for sequence, event in enumerate(events, start):
        ledger.admit(event, sequence)
    return ledger


def unanswered_calls(history: Iterable[Message]) -> list[str]:
    """Return what is wrong with a history as a strict provider would see it; empty if nothing.

    Each tool call is answered exactly once, right after its message, before anything else.
    """
    faults: list[str] = []
    waiting: list[str] = []
    for message in history:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in waiting:
                waiting.remove(message.tool_call_id)
            else:
                faults.append(f"orphan answer {message.tool_call_id}")
            continue
        faults += [f"unanswered {call_id}" for call_id in waiting]
        waiting = []
        if isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.tool_calls]
    return faults + [f"unanswered {call_id}" for call_id in waiting]


@given(sessions())
def test_every_prefix_can_be_closed(events: list[Event]) -> None:
    """Cut anywhere and closed, a session has a history that every provider accepts.

    Closing it a second time adds nothing, and the next Turn may begin.
    """
    for length in range(len(events) + 1):
        timeline = published(events[:length])
        published(closing_events(timeline.snapshot(), "interrupted", "killed"), timeline)
        snapshot = timeline.snapshot()
        assert unanswered_calls(snapshot.model_history()) == []
        assert closing_events(snapshot, "interrupted", "killed") == ()
        following = UserInputAccepted(
            f"turn-{snapshot.turns_n + 1}", "the-next-one", (UserMessage("on"),)
        )
        published([following], timeline)


@given(sessions())
def test_started_calls_are_in_doubt_and_others_were_not_run(events: list[Event]) -> None:
    """Closing answers a call that was started with interrupted, another with not_executed."""
    snapshot = published(events).snapshot()
    started = {event.call.id for event in events if isinstance(event, ToolExecutionStarted)}
    for event in closing_events(snapshot, "cancelled", "x"):
        if isinstance(event, ToolExecutionCompleted):
            assert event.error is not None
            expected = "interrupted" if event.call_id in started else "not_executed"
            assert event.error.code == expected
        else:
            assert isinstance(event, StepFailed)
            assert (event.code, event.message) == ("cancelled", "x")


@given(sessions(), st.data())
def test_an_overlay_is_the_ledger_ahead_of_time(events: list[Event], data: st.DataObject) -> None:
    """Judging on an overlay and merging it is judging directly; dropping it is nothing."""
    cut = data.draw(st.integers(0, len(events)))
    ledger = fed(events[:cut])
    before = state_of(ledger, events)
    overlay = fed(events[cut:], ledger.overlay(), cut + 1)
    assert state_of(ledger, events) == before
    assert state_of(overlay, events) == state_of(fed(events), events)
    overlay.merge()
    assert state_of(ledger, events) == state_of(fed(events), events)


@given(sessions(), st.data())
def test_overlays_nest(events: list[Event], data: st.DataObject) -> None:
    """An overlay of an overlay merges into its own base alone."""
    cut = data.draw(st.integers(0, len(events)))
    ledger = Ledger()
    outer = fed(events[:cut], ledger.overlay())
    inner = fed(events[cut:], outer.overlay(), cut + 1)
    inner.merge()
    assert state_of(ledger, events) == state_of(Ledger(), events)
    outer.merge()
    assert state_of(ledger, events) == state_of(fed(events), events)


def test_only_an_overlay_can_be_merged() -> None:
    """A session's own ledger has nothing to be merged into."""
    with pytest.raises(ValueError, match="overlay"):
        Ledger().merge()


# --- one breach a rule ------------------------------------------------------------------------


def idle() -> Conversation:
    """Return a conversation between two Turns; the events said so far are in ``said``."""
    conversation = Conversation()
    SAID[:] = conversation.turn()
    return conversation


SAID: list[Event] = []


def say(conversation: Conversation, *names: str) -> Conversation:
    """Say the named events; a number behind ``answer`` is how many tools it calls."""
    for name in names:
        if name.startswith("answer"):
            SAID.append(conversation.answer("text", int(name.removeprefix("answer") or 0)))
        else:
            SAID.append(getattr(conversation, name)())
    return conversation


def asked(*names: str) -> Conversation:
    """Return a conversation within its second Turn, after an input, a request, and ``names``."""
    return say(idle(), "input", "request", *names)


def other_call(conversation: Conversation) -> ToolExecutionStarted:
    call = next(iter(conversation.open.values()))
    return ToolExecutionStarted(conversation.step_id, ToolCall(call.id, call.name, "{}"))


def _input(turn_id: str, invocation_id: str) -> UserInputAccepted:
    return UserInputAccepted(turn_id, invocation_id, (UserMessage("x"),))


def _answer(step_id: str, *call_ids: str) -> AssistantMessageCommitted:
    calls = tuple(ToolCall(call_id, "tool", "{}") for call_id in call_ids)
    return AssistantMessageCommitted(step_id, AssistantMessage("x", calls), "stop")


def _error(step_id: str, call_id: str) -> ToolExecutionCompleted:
    return ToolExecutionCompleted(step_id, call_id, error=ErrorInfo("code", ""))


BREACHES: dict[str, Callable[[], Event]] = {
    "input during a Turn": lambda: (asked(), _input("turn-3", "x"))[1],
    "input that skips a number": lambda: (idle(), _input("turn-3", "x"))[1],
    "input that repeats a number": lambda: (idle(), _input("turn-1", "x"))[1],
    "invocation id used again": lambda: (idle(), _input("turn-2", "invocation-1"))[1],
    "request outside of a Turn": lambda: idle().request(),
    "request of a finished Step's number": lambda: (
        c := say(idle(), "input"),
        setattr(c, "step_n", 1),
        c.request(),
    )[2],
    "request while a call is open": lambda: asked("answer2").request(),
    "request while one of two calls is open": lambda: asked("answer2", "complete").request(),
    "request without the answer before": lambda: asked().request(),
    "request through itself": lambda: (
        c := say(idle(), "input"),
        c.request(HistoryRef(c.sequence + 1, c.history_ref().sha256)),
    )[1],
    "request through before a message": lambda: (
        c := say(idle(), "input"),
        c.request(HistoryRef(c.sequence - 1, c.history_ref().sha256)),
    )[1],
    "request with another hash": lambda: (
        c := say(idle(), "input"),
        c.request(HistoryRef(c.sequence, "0" * 64)),
    )[1],
    "answer outside of a Turn": lambda: (idle(), _answer("turn-1/step-1"))[1],
    "answer without a request": lambda: (say(idle(), "input"), _answer("turn-2/step-1"))[1],
    "answer of another Step": lambda: (asked(), _answer("turn-2/step-2"))[1],
    "second answer": lambda: asked("answer1").answer(),
    "call id twice in a message": lambda: (asked(), _answer("turn-2/step-1", "a", "a"))[1],
    "call id twice in a session": lambda: (
        asked("answer1", "complete", "request"),
        _answer("turn-2/step-2", "call-1"),
    )[1],
    "start of an unknown call": lambda: (
        asked("answer1"),
        ToolExecutionStarted("turn-2/step-1", ToolCall("other", "lookup", "{}")),
    )[1],
    "start of a changed call": lambda: other_call(asked("answer1")),
    "second start": lambda: (
        c := asked("answer1", "start"),
        ToolExecutionStarted(c.step_id, next(iter(c.open.values()))),
    )[1],
    "start in another Step": lambda: (
        c := asked("answer1"),
        ToolExecutionStarted("turn-2/step-2", next(iter(c.open.values()))),
    )[1],
    "start after the answer": lambda: (
        c := asked("answer1"),
        call := next(iter(c.open.values())),
        say(c, "complete"),
        ToolExecutionStarted(c.step_id, call),
    )[3],
    "answer to an unknown call": lambda: (asked("answer1"), _error("turn-2/step-1", "other"))[1],
    "second answer to a call": lambda: (
        asked("answer2", "complete"),
        _error("turn-2/step-1", "call-1"),
    )[1],
    "answer to a call in another Step": lambda: (
        asked("answer1"),
        _error("turn-2/step-2", "call-1"),
    )[1],
    "failure while a call is open": lambda: asked("answer1", "start").fail(),
    "failure of another Step": lambda: (asked(), StepFailed("turn-2/step-2", "x", ""))[1],
    "failure outside of a Turn": lambda: (idle(), StepFailed("turn-1/step-1", "x", ""))[1],
    "failure after a failure": lambda: (
        asked("fail"),
        StepFailed("turn-2/step-1", "x", ""),
    )[1],
}


@pytest.mark.parametrize("breach", BREACHES)
def test_breach_is_refused_and_changes_nothing(breach: str) -> None:
    """Each rule refuses what breaks it, and a refusal leaves the ledger as it was."""
    event = BREACHES[breach]()
    ledger = fed(SAID)
    before = state_of(ledger, SAID)
    with pytest.raises(RejectedEvent):
        ledger.admit(event, len(SAID) + 1)
    assert state_of(ledger, SAID) == before


def test_chunks_are_under_no_rule() -> None:
    """A chunk fits anywhere, whatever Step it names."""
    chunk = ModelChunkRecorded("turn-9/step-9", Json.of(None))
    assert state_of(fed([chunk, chunk]), []) == state_of(Ledger(), [])


def test_failure_before_any_request_names_the_first_step() -> None:
    """A Turn that never came to a request fails as its first Step."""
    say(idle(), "input", "fail")
    assert SAID[-1] == StepFailed("turn-2/step-1", "cancelled", "the end")
    assert fed(SAID).open_turn is None


def test_a_turn_is_known_by_its_invocation() -> None:
    """What a Turn came to is found by its invocation id: input, requests, end."""
    conversation = Conversation()
    ledger = fed(conversation.turn(calls_n=2))
    record = ledger.find_turn("invocation-1")
    assert record is not None
    assert (record.accepted_at, record.steps_n, record.ended_at) == (1, 2, conversation.sequence)
    assert ledger.find_turn("other") is None
