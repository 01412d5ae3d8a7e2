"""Events to text and back: both directions, and what neither lets through."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from strategies import events, events_by_class, json_values

from actors.codec import (
    decode_event,
    encode_event,
    envelope_json,
    envelope_value,
    is_recorded_at,
    payload_value,
    rfc3339_now,
    row_digest,
)
from actors.errors import NotStrictJson, RejectedEvent
from actors.events import (
    EVENT_CLASSES,
    Envelope,
    Event,
    HistoryRef,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    UserInputAccepted,
)
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    Route,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = "turn-1/step-1"


@given(events)
def test_whatever_can_be_built_comes_back_equal(event: Event) -> None:
    """An event that its constructor accepts is encoded, and decodes to an equal one."""
    tag, text = encode_event(event)
    assert tag == event.tag
    assert decode_event(tag, text) == event


@given(events)
def test_text_is_stable(event: Event) -> None:
    """Decoding and encoding again gives the same text: there is one text an event."""
    tag, text = encode_event(event)
    assert encode_event(decode_event(tag, text)) == (tag, text)


@given(events)
def test_wire_form_is_the_same_both_ways(event: Event) -> None:
    """An envelope's text and its value say the same, with the keys in the same order."""
    envelope = Envelope("default", 7, "2026-12-01T09:30:00.123456Z", event, b"\x00" * 32)
    pairs = json.loads(envelope_json(envelope), object_pairs_hook=list)
    assert pairs == json.loads(json.dumps(envelope_value(envelope)), object_pairs_hook=list)


def test_every_class_has_a_strategy() -> None:
    """The laws above range over all seven events."""
    assert set(events_by_class) == set(EVENT_CLASSES)


@given(json_values)
def test_what_a_reader_changes_stays_with_the_reader(value: object) -> None:
    """A chunk hands out copies: changing one does not change the event."""
    chunk = Json.of({"value": value})
    mine = chunk.value()
    assert isinstance(mine, dict)
    mine.clear()
    assert chunk.value() == {"value": value}


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a":1e2}', "[1,]", "NaN", ""])
def test_json_is_its_compact_text_or_nothing(text: str) -> None:
    """A Json cannot be built of any other text than the one that would be stored."""
    with pytest.raises(NotStrictJson):
        Json(text)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("nonsense", "{}"),
        ("step_failed", "[]"),
        ("step_failed", "{}"),
        ("step_failed", '{"step_id":"turn-1/step-1","code":"x","message":"y","more":1}'),
        ("step_failed", '{"step_id":"turn-1/step-1\\n","code":"x","message":"y"}'),
        ("step_failed", '{"step_id":"turn-0/step-1","code":"x","message":"y"}'),
        ("step_failed", '{"step_id":"turn-1/step-1","code":"x","message":"y","code":"z"}'),
        ("step_failed", '{"step_id":"turn-1/step-1","code":"x","message":"\\ud800"}'),
        ("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":1e400}'),
        ("model_chunk_recorded", '{"step_id":"turn-1/step-1"}'),
        ("tool_execution_completed", '{"step_id":"turn-1/step-1","call_id":"a"}'),
        (
            "tool_execution_completed",
            '{"step_id":"turn-1/step-1","call_id":"a","result":1,"error":{"code":"a","message":""}}',
        ),
        ("user_input_accepted", '{"turn_id":"turn-1","invocation_id":"a","messages":[]}'),
    ],
)
def test_decoding_refuses(tag: str, text: str) -> None:
    """What is not a strict JSON payload of a known tag is refused in one class of error."""
    with pytest.raises(RejectedEvent):
        decode_event(tag, text)


def test_a_refusal_is_short() -> None:
    """A refused payload is not repeated in full by its error."""
    text = json.dumps({"step_id": "x" * 100_000, "code": "x", "message": "y"})
    with pytest.raises(RejectedEvent) as refused:
        decode_event("step_failed", text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "build",
    [
        lambda: UserInputAccepted("turn-01", "a", (UserMessage("x"),)),
        lambda: UserInputAccepted("turn-1", "a\n", (UserMessage("x"),)),
        lambda: UserInputAccepted("turn-1", "a", ()),
        lambda: UserMessage("\ud800"),
        lambda: ToolCall("", "name", "{}"),
        lambda: Route("", "model"),
        lambda: Usage(-1, 0),
        lambda: Usage(True, 0),
        lambda: Usage(10**4300, 0),
        lambda: HistoryRef(0, "0" * 64),
        lambda: HistoryRef(1, "0" * 63 + "G"),
        lambda: ToolSpec("name", "", Json.of([])),
        lambda: ToolExecutionCompleted(STEP, "a"),
        lambda: ToolExecutionCompleted(STEP, "a", Json.of(1), ErrorInfo("a", "")),
        lambda: StepFailed(STEP, "", ""),
        lambda: StepFailed("turn-1", "code", ""),
    ],
)
def test_an_invalid_value_cannot_be_built(build: Callable[[], object]) -> None:
    """Constructors refuse what no payload may hold."""
    with pytest.raises(RejectedEvent):
        build()


def test_too_deep_inside_a_payload_is_refused() -> None:
    """The payload is the first level: a chunk may be one less deep than a value on its own."""
    value: object = []
    for _ in range(126):
        value = [value]
    tag, text = encode_event(ModelChunkRecorded(STEP, Json.of(value)))
    assert decode_event(tag, text) == ModelChunkRecorded(STEP, Json.of(value))
    with pytest.raises(RejectedEvent, match="deeper"):
        encode_event(ModelChunkRecorded(STEP, Json.of([value])))


def test_an_integral_float_becomes_an_integer() -> None:
    """Where the schema says integer, 3.0 is one, and it is stored as one."""
    text = json.dumps(
        {
            "turn_id": "turn-1",
            "step_id": STEP,
            "route": {"provider": "echo", "model": "echo"},
            "system_prompt": "",
            "tools": [],
            "messages": {"through": 3.0, "sha256": "0" * 64},
        }
    )
    event = decode_event("model_request_recorded", text)
    assert isinstance(event, ModelRequestRecorded)
    assert event.messages == HistoryRef(3, "0" * 64)
    assert '"through":3,' in encode_event(event)[1]


def test_key_order_of_foreign_json_is_kept() -> None:
    """What a provider sent goes out in the order in which it came."""
    text = '{"step_id":"turn-1/step-1","chunk":{"z":1,"a":{"y":[],"b":-0.0}}}'
    assert encode_event(decode_event("model_chunk_recorded", text))[1] == text


def test_something_else_is_no_event() -> None:
    """Only the seven classes themselves are events."""
    with pytest.raises(RejectedEvent):
        encode_event("step_failed")  # pyright: ignore[reportArgumentType] # the point


def test_payload_of_inline_messages() -> None:
    """Messages in full stand under their own key, roles and all."""
    message = AssistantMessage("", (ToolCall("c", "n", "{not json"),))
    event = ModelRequestRecorded(
        "turn-1", STEP, Route("p", "m"), "", (), InlineMessages((message,))
    )
    assert payload_value(event)["messages"] == {
        "inline": [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c", "name": "n", "arguments": "{not json"}],
            }
        ]
    }


def test_digest_of_a_row() -> None:
    """The chain can be recomputed with a few lines of any language."""
    first = row_digest(None, "s", 1, 0, "t", "e", "{}")
    assert first == hashlib.sha256(b"\ns\n1\n0\nt\ne\n{}").digest()
    second = row_digest(first, "s", 2, 0, "t", "e", "{}")
    assert second == hashlib.sha256(f"{first.hex()}\ns\n2\n0\nt\ne\n{{}}".encode()).digest()


def test_the_present_time_is_a_stamp() -> None:
    """What is written as a time is read as one."""
    assert is_recorded_at(rfc3339_now())


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-01T09:30:00Z",
        "2026-12-01T09:30:00.123456+00:00",
        "2026-13-01T09:30:00.123456Z",
        "2026-12-01T09:30:00.123456Z\n",
        "٢٠٢٦-12-01T09:30:00.123456Z",
    ],
)
def test_other_times_are_no_stamps(text: str) -> None:
    """Six decimals, UTC, and a day that exists."""
    assert not is_recorded_at(text)
