"""A session as a chatty agent writes it, prepared before any clock runs."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    ModelChunkRecorded,
    ModelRequestRecorded,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
    step_id_for,
    turn_id_for,
)
from actors.history import HistoryHash, messages_entering
from actors.values import AssistantMessage, Json, Route, ToolCall, ToolSpec, Usage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.events import Event

CHUNKS_A_STEP = 8
ROUTE = Route("bench", "chatty")
SYSTEM_PROMPT = "Answer in one sentence. Look the weather up before you speak of it."
TOOLS = (
    ToolSpec(
        "weather",
        "The weather of a place, now.",
        Json.of({"type": "object", "properties": {"place": {"type": "string"}}}),
    ),
)


def session_events(events_n: int) -> tuple[Event, ...]:
    """Return the first ``events_n`` events of an endless, rule-abiding session.

    Each Turn asks for one tool call and then answers; both Steps stream
    :data:`CHUNKS_A_STEP` chunks. The last Turn may be cut short.
    """
    return tuple(islice(_session(), events_n))


def _session() -> Iterator[Event]:
    history = HistoryHash()
    sequence = 0
    for turn_n in count(1):
        for event in _turn(turn_n):
            if type(event) is ModelRequestRecorded:
                # Only now is it known what the history holds.
                reference = HistoryRef(sequence, history.hexdigest())
                yield _request(event.turn_id, event.step_id, reference)
            else:
                yield event
            sequence += 1
            for message in messages_entering(event):
                history = history.followed_by(message)


def _turn(turn_n: int) -> Iterator[Event]:
    turn_id = turn_id_for(turn_n)
    first, second = step_id_for(turn_id, 1), step_id_for(turn_id, 2)
    to_be_known = HistoryRef(1, "0" * 64)
    call = ToolCall(f"call-{turn_n}", "weather", '{"place":"København"}')
    question = UserMessage(f"What is the weather in København, for the {turn_n}th time?")
    yield UserInputAccepted(turn_id, f"bench-{turn_n}", (question,))
    yield _request(turn_id, first, to_be_known)
    yield from _chunks(first)
    yield AssistantMessageCommitted(first, AssistantMessage("", (call,)), "tool_calls")
    yield ToolExecutionStarted(first, call)
    yield ToolExecutionCompleted(first, call.id, Json.of({"sky": "grey", "celsius": 4.5}))
    yield _request(turn_id, second, to_be_known)
    yield from _chunks(second)
    answer = AssistantMessage("Grey, and four and a half degrees: take a coat along.")
    yield AssistantMessageCommitted(second, answer, "stop", Usage(180, 16))


def _request(turn_id: str, step_id: str, reference: HistoryRef) -> ModelRequestRecorded:
    return ModelRequestRecorded(turn_id, step_id, ROUTE, SYSTEM_PROMPT, TOOLS, reference)


def _chunks(step_id: str) -> Iterator[Event]:
    for index in range(CHUNKS_A_STEP):
        delta = {"index": 0, "delta": {"content": f" word{index}"}, "finish_reason": None}
        yield ModelChunkRecorded(step_id, Json.of({"id": "bench", "choices": [delta]}))
