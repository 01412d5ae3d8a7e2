"""Hypothesis strategies: JSON values, payloads of every kind, and whole sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from log_support import Conversation

from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    Route,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from actors.events import Event

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
identifiers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", fullmatch=True)
counts = st.integers(1, 10**12)
turn_ids = counts.map(lambda n: f"turn-{n}")
step_ids = st.tuples(counts, counts).map(lambda pair: f"turn-{pair[0]}/step-{pair[1]}")

json_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
jsons = json_values.map(Json.of)

tool_calls = st.builds(ToolCall, names, names, texts)
user_messages = st.builds(UserMessage, texts)
assistant_messages = st.builds(AssistantMessage, texts, st.lists(tool_calls, max_size=3).map(tuple))
messages = user_messages | assistant_messages | st.builds(ToolMessage, texts, names)
errors = st.builds(ErrorInfo, names, texts)
tool_specs = st.builds(
    ToolSpec, names, texts, st.dictionaries(texts, json_values, max_size=3).map(Json.of)
)
history_refs = st.builds(
    HistoryRef, st.integers(1, 10**30), st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
)
inlines = st.builds(InlineMessages, st.lists(messages, max_size=3).map(tuple))

events_by_class: dict[type[Event], st.SearchStrategy[Any]] = {
    UserInputAccepted: st.builds(
        UserInputAccepted,
        turn_ids,
        identifiers,
        st.lists(user_messages, min_size=1, max_size=3).map(tuple),
    ),
    ModelRequestRecorded: st.builds(
        ModelRequestRecorded,
        turn_ids,
        step_ids,
        st.builds(Route, names, names),
        texts,
        st.lists(tool_specs, max_size=2).map(tuple),
        history_refs | inlines,
    ),
    ModelChunkRecorded: st.builds(ModelChunkRecorded, step_ids, jsons),
    AssistantMessageCommitted: st.builds(
        AssistantMessageCommitted,
        step_ids,
        assistant_messages,
        texts,
        st.none() | st.builds(Usage, st.integers(0, 10**30), st.integers(0, 10**9)),
    ),
    ToolExecutionStarted: st.builds(ToolExecutionStarted, step_ids, tool_calls),
    ToolExecutionCompleted: st.builds(
        ToolExecutionCompleted, step_ids, names, result=jsons, error=st.none()
    )
    | st.builds(ToolExecutionCompleted, step_ids, names, result=st.none(), error=errors),
    StepFailed: st.builds(StepFailed, step_ids, names, texts),
}
events = st.one_of(*events_by_class.values())


@st.composite
def sessions(draw: st.DrawFn, max_events: int = 30) -> list[Event]:
    """Return the events of a session as it may be at any instant, all rules kept."""
    conversation = Conversation()
    return [_next_event(draw, conversation) for _ in range(draw(st.integers(0, max_events)))]


def _next_event(draw: st.DrawFn, conversation: Conversation) -> Event:
    move = draw(st.sampled_from(conversation.moves()))
    if move == "input":
        return conversation.input(draw(texts))
    if move == "chunk":
        return conversation.chunk(draw(json_values))
    if move == "answer":
        calls_n = draw(st.integers(0, 3))
        return conversation.answer(draw(texts), calls_n)
    if move == "complete":
        return conversation.complete(draw(json_values))
    if move == "request" and draw(st.booleans()):
        return conversation.request(draw(inlines))
    plain = {
        "request": conversation.request,
        "start": conversation.start,
        "complete_with_error": conversation.complete_with_error,
        "fail": conversation.fail,
    }
    return plain[move]()
