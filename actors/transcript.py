"""The transcript: the session as a person reads it, one entry an event that says something."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from attrs import frozen

from actors.events import (
    AssistantMessageCommitted,
    StepFailed,
    ToolExecutionCompleted,
    UserInputAccepted,
)
from actors.strict_json import quote
from actors.values import ErrorInfo, Json, ToolCall, tool_call_json, tool_call_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.events import Event
    from actors.strict_json import JsonValue


@frozen
class UserEntry:
    """A Turn's input."""

    kind: ClassVar[str] = "user"
    sequence: int
    turn_id: str
    text: str
    """The input's messages joined by a blank line."""


@frozen
class AssistantEntry:
    """A Step's response."""

    kind: ClassVar[str] = "assistant"
    sequence: int
    step_id: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str


@frozen
class ToolEntry:
    """A tool call with its answer, placed where the answer came."""

    kind: ClassVar[str] = "tool"
    sequence: int
    step_id: str
    call_id: str
    name: str
    arguments: str
    result: Json | None
    error: ErrorInfo | None


@frozen
class FailureEntry:
    """The end of a Turn that failed."""

    kind: ClassVar[str] = "failure"
    sequence: int
    step_id: str
    code: str
    message: str


Entry: TypeAlias = UserEntry | AssistantEntry | ToolEntry | FailureEntry


def input_text(event: UserInputAccepted) -> str:
    """Return an input's text: its messages joined by a blank line."""
    return "\n\n".join(message.content for message in event.messages)


def entry_for(sequence: int, event: Event, open_calls: Mapping[str, ToolCall]) -> Entry | None:
    """Return the entry that the event at ``sequence`` adds to the transcript, or None.

    ``open_calls`` holds, by id, the calls that were open just before it: a completion names
    its call by id alone.
    """
    if type(event) is UserInputAccepted:
        return UserEntry(sequence, event.turn_id, input_text(event))
    if type(event) is AssistantMessageCommitted:
        message = event.message
        return AssistantEntry(
            sequence, event.step_id, message.content, message.tool_calls, event.finish_reason
        )
    if type(event) is ToolExecutionCompleted:
        call = open_calls[event.call_id]
        return ToolEntry(
            sequence,
            event.step_id,
            event.call_id,
            call.name,
            call.arguments,
            event.result,
            event.error,
        )
    if type(event) is StepFailed:
        return FailureEntry(sequence, event.step_id, event.code, event.message)
    return None


def entry_json(entry: Entry) -> str:
    """Return :func:`entry_value` as compact JSON text; a tool's result goes in as it is."""
    head = f'{{"sequence":{entry.sequence},"kind":"{entry.kind}"'
    if type(entry) is UserEntry:
        return f'{head},"turn_id":{quote(entry.turn_id)},"text":{quote(entry.text)}}}'
    if type(entry) is AssistantEntry:
        calls = ",".join(map(tool_call_json, entry.tool_calls))
        return (
            f'{head},"step_id":{quote(entry.step_id)},"text":{quote(entry.text)},'
            f'"tool_calls":[{calls}],"finish_reason":{quote(entry.finish_reason)}}}'
        )
    if type(entry) is ToolEntry:
        return f"{head},{_tool_members(entry)}}}"
    assert type(entry) is FailureEntry
    return (
        f'{head},"step_id":{quote(entry.step_id)},"code":{quote(entry.code)},'
        f'"message":{quote(entry.message)}}}'
    )


def _tool_members(entry: ToolEntry) -> str:
    call = (
        f'"step_id":{quote(entry.step_id)},"call_id":{quote(entry.call_id)},'
        f'"name":{quote(entry.name)},"arguments":{quote(entry.arguments)}'
    )
    if entry.error is None:
        assert entry.result is not None
        return f'{call},"result":{entry.result.text}'
    code, message = quote(entry.error.code), quote(entry.error.message)
    return f'{call},"error":{{"code":{code},"message":{message}}}'


def entry_value(entry: Entry) -> dict[str, JsonValue]:
    """Return the entry as a fresh plain JSON value, in the form it has on the wire."""
    value: dict[str, JsonValue] = {"sequence": entry.sequence, "kind": entry.kind}
    if type(entry) is UserEntry:
        value.update(turn_id=entry.turn_id, text=entry.text)
    elif type(entry) is AssistantEntry:
        value.update(
            step_id=entry.step_id,
            text=entry.text,
            tool_calls=[tool_call_value(call) for call in entry.tool_calls],
            finish_reason=entry.finish_reason,
        )
    elif type(entry) is ToolEntry:
        value.update(_tool_value(entry))
    else:
        assert type(entry) is FailureEntry
        value.update(step_id=entry.step_id, code=entry.code, message=entry.message)
    return value


def _tool_value(entry: ToolEntry) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {
        "step_id": entry.step_id,
        "call_id": entry.call_id,
        "name": entry.name,
        "arguments": entry.arguments,
    }
    if entry.error is not None:
        value["error"] = {"code": entry.error.code, "message": entry.error.message}
    else:
        assert entry.result is not None
        value["result"] = entry.result.value()
    return value
