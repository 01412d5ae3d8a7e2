"""Events to strict JSON text and back, and the digest that chains stored rows.

Both directions pass the same three gates in the same order: strict JSON, the payload's schema,
the event's constructor. What one writes, the other therefore reads.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from actors import strict_json
from actors.errors import NotStrictJson, RejectedEvent
from actors.events import (
    AssistantMessageCommitted,
    Envelope,
    Event,
    HistoryRef,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.strict_json import JsonValue, quote
from actors.validation import payload_fault
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    Message,
    Route,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
    message_value,
    tool_call_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable


FORMAT_VERSION = 0
"""The version of the payloads' format; there is no other yet."""

Payload = dict[str, JsonValue]
_Decoded = dict[str, Any]  # a payload that fits its schema: each member is what the schema says

# Nothing before the payload needs an escape: an identifier, digits, a time, a tag.
_wire_head = re.compile(
    r'{"session_id":"([^"]*)","sequence":([0-9]+),"recorded_at":"([^"]*)","type":"([^"]*)",'
    r'"payload":'
)
_recorded_at = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", re.ASCII
)


# --- text ---------------------------------------------------------------------------------------


def encode_event(event: Event) -> tuple[str, str]:
    """Return the event's tag and the strict JSON text of its payload.

    Raises:
        RejectedEvent: the payload is no strict JSON (too deep, too long) or not of its schema.
    """
    if type(event) not in _TO_PAYLOAD:
        raise RejectedEvent(f"{type(event).__name__} is not an event")
    held = _held_json(event)
    # The schemas let the held value be anything, so they are not shown it: parsing it again
    # would cost more than all the rest.
    payload = payload_value(event) if held is None else _around_held(event)
    fault = payload_fault(event.tag, payload)
    try:
        text = payload_text(event) if held is not None else strict_json.dumps_trusted(payload)
    except NotStrictJson as error:
        raise RejectedEvent(f"{event.tag}: {error}") from error
    if fault is not None:
        raise RejectedEvent(f"{event.tag}: {fault}")
    return event.tag, text


def decode_event(event_type: str, payload_text: str) -> Event:
    """Return the event that a stored tag and payload text stand for.

    Raises:
        RejectedEvent: the tag is unknown, or the text is not strict JSON of the tag's schema.
    """
    return checked_event(event_type, payload_text)[0]


def checked_event(event_type: str, text: str) -> tuple[Event, str]:
    """Return what :func:`decode_event` does, and the text that :func:`encode_event` has for it.

    That is ``text`` itself unless another program wrote it, in its own spelling.

    Raises:
        RejectedEvent: as :func:`decode_event` does.
    """
    payload, is_compact = _checked_payload(event_type, text)
    cut = _cut_event(event_type, payload, text) if is_compact else None
    if cut is not None:
        return cut, text
    event = _FROM_PAYLOAD[event_type](payload)
    return event, payload_text(event)


def checked_chunk(text: str) -> str:
    """Check a chunk's payload text as :func:`checked_event` does; return only the text.

    Raises:
        RejectedEvent: as :func:`decode_event` does.
    """
    payload, is_compact = _checked_payload(ModelChunkRecorded.tag, text)
    # The schema's pattern for a step_id is that of the event's constructor.
    if is_compact and text.startswith(_chunk_head(payload["step_id"])):
        return text
    return payload_text(_to_chunk(payload))


def _checked_payload(event_type: str, text: str) -> tuple[_Decoded, bool]:
    """Return the payload, which fits its schema, and whether its text is compact."""
    if event_type not in _FROM_PAYLOAD:
        raise RejectedEvent(f"unknown event type {event_type!r:.80}")
    try:
        payload, is_compact = strict_json.parse(text)
    except NotStrictJson as error:
        raise RejectedEvent(f"{event_type}: {error}") from error
    fault = payload_fault(event_type, payload)
    if fault is not None:
        raise RejectedEvent(f"{event_type}: {fault}")
    decoded: Any = payload
    return decoded, is_compact


def payload_text(event: Event) -> str:
    """Return the payload's compact JSON text.

    Raises:
        NotStrictJson: it is too deep or too long.
    """
    held = _held_json(event)
    if held is None:
        return strict_json.dumps_trusted(payload_value(event))
    text = f"{_head(event)}{held.text}}}"
    strict_json.check_size(text)
    strict_json.check_depth(text)  # one level more than the Json by itself
    return text


def _held_json(event: Event) -> Json | None:
    """Return the Json that the event's payload ends with, None for one that ends otherwise."""
    if type(event) is ModelChunkRecorded:
        return event.chunk
    return event.result if type(event) is ToolExecutionCompleted else None


def _head(event: Event) -> str:
    """Return the payload's text up to the Json that it ends with."""
    if type(event) is ModelChunkRecorded:
        return _chunk_head(event.step_id)
    assert type(event) is ToolExecutionCompleted  # nothing else holds one
    return _result_head(event.step_id, event.call_id)


@lru_cache(maxsize=16)  # a Step's chunks come together
def _chunk_head(step_id: str) -> str:
    return f'{{"step_id":{quote(step_id)},"chunk":'


def _result_head(step_id: str, call_id: str) -> str:
    return f'{{"step_id":{quote(step_id)},"call_id":{quote(call_id)},"result":'


def _around_held(event: Event) -> Payload:
    """Return the payload with null in the place of the Json that it holds."""
    if type(event) is ModelChunkRecorded:
        return {"step_id": event.step_id, "chunk": None}
    assert type(event) is ToolExecutionCompleted  # nothing else holds one
    return {"step_id": event.step_id, "call_id": event.call_id, "result": None}


def _cut_event(event_type: str, payload: _Decoded, text: str) -> Event | None:
    """Return the event that holds a Json, with that cut out of the compact text of its payload.

    None for another event, and where the text is not as :func:`payload_text` writes it.
    """
    if event_type == ModelChunkRecorded.tag:
        step_id = payload["step_id"]
        head = _chunk_head(step_id)
        if text.startswith(head):
            return ModelChunkRecorded(step_id, Json.trusted(text[len(head) : -1]))
    elif event_type == ToolExecutionCompleted.tag:
        step_id, call_id = payload["step_id"], payload["call_id"]
        head = _result_head(step_id, call_id)
        if text.startswith(head):
            return ToolExecutionCompleted(
                step_id, call_id, result=Json.trusted(text[len(head) : -1])
            )
    return None


def payload_value(event: Event) -> Payload:
    """Return the event's payload as a fresh plain JSON value, keys in their fixed order."""
    return _TO_PAYLOAD[type(event)](event)


def envelope_value(envelope: Envelope) -> Payload:
    """Return the envelope as a fresh plain JSON value, in the form it has on the wire."""
    return {
        "session_id": envelope.session_id,
        "sequence": envelope.sequence,
        "recorded_at": envelope.recorded_at,
        "type": envelope.event.tag,
        "payload": payload_value(envelope.event),
    }


def envelope_json(envelope: Envelope) -> str:
    """Return :func:`envelope_value` as compact JSON text."""
    event = envelope.event
    session_id, recorded_at = quote(envelope.session_id), quote(envelope.recorded_at)
    return wire_text(
        session_id[1:-1], envelope.sequence, recorded_at[1:-1], event.tag, payload_text(event)
    )


def wire_text(
    session_id: str, sequence: int, recorded_at: str, event_type: str, payload: str
) -> str:
    """Return an envelope's compact JSON text, put together from its parts and payload text.

    None of the parts may need an escape; a row's never does.
    """
    return (
        f'{{"session_id":"{session_id}","sequence":{sequence},"recorded_at":"{recorded_at}",'
        f'"type":"{event_type}","payload":{payload}}}'
    )


def known_envelope(text: str, digest: bytes) -> Envelope:
    """Return the envelope of a text that :func:`wire_text` made for a stored row; not checked.

    ``digest`` is the row's, which the text does not hold.
    """
    match = _wire_head.match(text)
    assert match is not None  # it is one of ours
    session_id, sequence, recorded_at, event_type = match.groups()
    event = _known_event(event_type, text[match.end() : -1])
    return Envelope(session_id, int(sequence), recorded_at, event, digest)


def _known_event(event_type: str, text: str) -> Event:
    payload = cast("_Decoded", strict_json.parse_trusted(text))
    cut = _cut_event(event_type, payload, text)
    return _FROM_PAYLOAD[event_type](payload) if cut is None else cut


# --- rows ---------------------------------------------------------------------------------------


def rfc3339_now() -> str:
    """Return the present time as an envelope carries it: RFC 3339, UTC, six decimals."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@lru_cache(maxsize=64)  # a transaction's rows share one
def is_recorded_at(text: str) -> bool:
    """Tell whether ``text`` is a time as :func:`rfc3339_now` writes it, and one that exists."""
    if _recorded_at.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def row_digest(
    previous: bytes | None,
    session_id: str,
    sequence: int,
    format_version: int,
    recorded_at: str,
    event_type: str,
    payload: str,
) -> bytes:
    """Return a row's link in its session's chain: SHA-256 over the link before and the row.

    ``previous`` is the digest of the row before, None for a session's first row. Nothing but
    the payload can hold a line break, and that comes last, so the joined text is unambiguous.
    """
    before = "" if previous is None else previous.hex()
    text = (
        f"{before}\n{session_id}\n{sequence}\n{format_version}\n{recorded_at}\n{event_type}\n"
        f"{payload}"
    )
    return hashlib.sha256(text.encode()).digest()


# --- events to payloads ---------------------------------------------------------------------------


def _from_input(event: UserInputAccepted) -> Payload:
    return {
        "turn_id": event.turn_id,
        "invocation_id": event.invocation_id,
        "messages": [message_value(message) for message in event.messages],
    }


def _from_request(event: ModelRequestRecorded) -> Payload:
    messages: Payload
    if isinstance(event.messages, HistoryRef):
        messages = {"through": event.messages.through, "sha256": event.messages.sha256}
    else:
        messages = {"inline": [message_value(message) for message in event.messages.messages]}
    return {
        "turn_id": event.turn_id,
        "step_id": event.step_id,
        "route": {"provider": event.route.provider, "model": event.route.model},
        "system_prompt": event.system_prompt,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.value(),
            }
            for tool in event.tools
        ],
        "messages": messages,
    }


def _from_chunk(event: ModelChunkRecorded) -> Payload:
    return {"step_id": event.step_id, "chunk": event.chunk.value()}


def _from_answer(event: AssistantMessageCommitted) -> Payload:
    payload: Payload = {
        "step_id": event.step_id,
        "message": message_value(event.message),
        "finish_reason": event.finish_reason,
    }
    if event.usage is not None:
        payload["usage"] = {
            "input_tokens": event.usage.input_tokens,
            "output_tokens": event.usage.output_tokens,
        }
    return payload


def _from_started(event: ToolExecutionStarted) -> Payload:
    return {"step_id": event.step_id, "call": tool_call_value(event.call)}


def _from_completed(event: ToolExecutionCompleted) -> Payload:
    payload: Payload = {"step_id": event.step_id, "call_id": event.call_id}
    if event.error is not None:
        payload["error"] = {"code": event.error.code, "message": event.error.message}
    else:
        assert event.result is not None  # the constructor saw to it
        payload["result"] = event.result.value()
    return payload


def _from_failed(event: StepFailed) -> Payload:
    return {"step_id": event.step_id, "code": event.code, "message": event.message}


# Each function takes the one class it stands beside, which a dict's type cannot say.
_TO_PAYLOAD: dict[type[Event], Callable[[Any], Payload]] = {
    UserInputAccepted: _from_input,
    ModelRequestRecorded: _from_request,
    ModelChunkRecorded: _from_chunk,
    AssistantMessageCommitted: _from_answer,
    ToolExecutionStarted: _from_started,
    ToolExecutionCompleted: _from_completed,
    StepFailed: _from_failed,
}


# --- payloads to events ---------------------------------------------------------------------------


def _call(value: _Decoded) -> ToolCall:
    return ToolCall(value["id"], value["name"], value["arguments"])


def _assistant_message(value: _Decoded) -> AssistantMessage:
    return AssistantMessage(value["content"], tuple(map(_call, value["tool_calls"])))


def _message(value: _Decoded) -> Message:
    if value["role"] == UserMessage.role:
        return UserMessage(value["content"])
    if value["role"] == ToolMessage.role:
        return ToolMessage(value["content"], value["tool_call_id"])
    return _assistant_message(value)


def _to_input(payload: _Decoded) -> UserInputAccepted:
    messages = tuple(UserMessage(message["content"]) for message in payload["messages"])
    return UserInputAccepted(payload["turn_id"], payload["invocation_id"], messages)


def _to_request(payload: _Decoded) -> ModelRequestRecorded:
    route, messages = payload["route"], payload["messages"]
    tools = (
        ToolSpec(tool["name"], tool["description"], Json.of(tool["parameters"]))
        for tool in payload["tools"]
    )
    return ModelRequestRecorded(
        payload["turn_id"],
        payload["step_id"],
        Route(route["provider"], route["model"]),
        payload["system_prompt"],
        tuple(tools),
        # int(): JSON Schema counts 3.0 among the integers, and here it becomes one.
        InlineMessages(tuple(map(_message, messages["inline"])))
        if "inline" in messages
        else HistoryRef(int(messages["through"]), messages["sha256"]),
    )


def _to_chunk(payload: _Decoded) -> ModelChunkRecorded:
    return ModelChunkRecorded(payload["step_id"], Json.of(payload["chunk"]))


def _to_answer(payload: _Decoded) -> AssistantMessageCommitted:
    usage = payload.get("usage")
    return AssistantMessageCommitted(
        payload["step_id"],
        _assistant_message(payload["message"]),
        payload["finish_reason"],
        usage and Usage(int(usage["input_tokens"]), int(usage["output_tokens"])),
    )


def _to_started(payload: _Decoded) -> ToolExecutionStarted:
    return ToolExecutionStarted(payload["step_id"], _call(payload["call"]))


def _to_completed(payload: _Decoded) -> ToolExecutionCompleted:
    if "error" in payload:
        error = ErrorInfo(payload["error"]["code"], payload["error"]["message"])
        return ToolExecutionCompleted(payload["step_id"], payload["call_id"], error=error)
    result = Json.of(payload["result"])
    return ToolExecutionCompleted(payload["step_id"], payload["call_id"], result=result)


def _to_failed(payload: _Decoded) -> StepFailed:
    return StepFailed(payload["step_id"], payload["code"], payload["message"])


_FROM_PAYLOAD: dict[str, Callable[[_Decoded], Event]] = {
    UserInputAccepted.tag: _to_input,
    ModelRequestRecorded.tag: _to_request,
    ModelChunkRecorded.tag: _to_chunk,
    AssistantMessageCommitted.tag: _to_answer,
    ToolExecutionStarted.tag: _to_started,
    ToolExecutionCompleted.tag: _to_completed,
    StepFailed.tag: _to_failed,
}
