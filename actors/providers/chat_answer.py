"""A Chat Completions answer, put together from the chunks of its stream.

Liberal in what it takes: what providers differ in (ids, indexes, repeated names, nulls, fields
of their own) is read as each of them means it. What cannot be meant is a :class:`StreamFault`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from attrs import define, field

from actors.errors import RejectedEvent
from actors.providers.event_stream import StreamFault
from actors.routes import ModelResponse
from actors.strict_json import MAX_BYTES, quote
from actors.values import AssistantMessage, ToolCall, Usage, message_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.strict_json import JsonValue

MAX_ANSWER_BYTES = MAX_BYTES - 65_536
"""UTF-8 bytes of an answer as JSON: what is stored holds a little more than that."""
_FRAGMENT_BYTES = 64
"""What a delta is counted with beside its text, so that empty ones are not free."""


@define
class _Call:
    """A tool call as far as it has come."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(factory=list[str])
    """Empty until there are some: no part of it is empty."""


@define
class _Fragment:
    """What one delta says of one tool call."""

    index: int | None
    id: str
    name: str
    arguments: str

    def begins_after(self, call: _Call) -> bool:
        """Tell whether this is the beginning of another call than ``call``, which stands here.

        Providers number parallel calls alike, or not at all, repeat ids and names in every
        delta, or make up a new id for each. A new id with a name, or with nothing yet, is a new
        call; with arguments alone it is one more made up. Where no id tells, a name that comes
        after arguments is that of a new call.
        """
        if self.id and call.id:
            return self.id != call.id and (bool(self.name) or not self.arguments)
        return bool(self.name and call.arguments)


class Answer:
    """An answer as it comes together from the chunks of a stream.

    ``redact`` takes the key out of a text, ``redact_json`` out of one that is JSON. They are
    applied to what was put together, for a key may come in parts.
    """

    def __init__(self, redact: Callable[[str], str], redact_json: Callable[[str], str]) -> None:
        self._redact = redact
        self._redact_json = redact_json
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._at_index: dict[int, _Call] = {}
        self._of_id: dict[str, _Call] = {}
        self._finish_reason = ""
        self._usage: Usage | None = None
        self._size_bytes = 0

    @property
    def is_finished(self) -> bool:
        """Whether the provider has said why it stopped: what comes then can add, not undo."""
        return bool(self._finish_reason)

    def take(self, chunk: JsonValue) -> None:
        """Add what a chunk says.

        Raises:
            StreamFault: it has not the shape of a chunk, it is an error, or the answer grew too
                long.
        """
        if not isinstance(chunk, dict):
            raise StreamFault("a chunk is not a JSON object")
        if chunk.get("error") or chunk.get("object") == "error":
            raise StreamFault(
                "the provider reported an error", error_message(chunk) or "", "provider_error"
            )
        self._usage = _usage(chunk.get("usage")) or self._usage
        choices = _list(chunk, "choices")
        if not choices:
            return
        choice = choices[0]
        if not isinstance(choice, dict):
            raise StreamFault("a choice is not a JSON object")
        delta = _object(choice, "delta")
        self._text.append(self._counted(_text(delta, "content")))
        self._take_calls(_list(delta, "tool_calls"))
        self._finish_reason = self._counted(_text(choice, "finish_reason")) or self._finish_reason

    def response(self) -> ModelResponse:
        """Return the answer, once the stream has ended.

        Raises:
            StreamFault: it is not finished, has a tool call without a name, or is more than can
                be stored.
        """
        if not self.is_finished:
            raise StreamFault("the stream ended before the answer was finished")
        message = AssistantMessage(self._redact("".join(self._text)), self._tool_calls())
        finish_reason = self._redact(self._finish_reason)
        if len(f"{message_json(message)}{quote(finish_reason)}".encode()) > MAX_ANSWER_BYTES:
            raise _too_long()
        return ModelResponse(message, finish_reason, self._usage)

    def _counted(self, text: str) -> str:
        self._size_bytes += _FRAGMENT_BYTES + len(text)
        if self._size_bytes > MAX_ANSWER_BYTES:
            raise _too_long()
        return text

    def _take_calls(self, values: list[JsonValue]) -> None:
        # Without an index or a known id, fragments go on with the last calls, in their order.
        last = self._calls[-len(values) :] if len(self._calls) >= len(values) > 0 else []
        for position, value in enumerate(values):
            fragment = _fragment(value)
            self._counted(fragment.id + fragment.name + fragment.arguments)
            if fragment.index is not None:
                call = self._at_index.get(fragment.index)
            else:
                call = self._of_id.get(fragment.id) or (last[position] if last else None)
            if call is None or fragment.begins_after(call):
                call = _Call(len(self._calls) if fragment.index is None else fragment.index)
                self._calls.append(call)
            self._at_index[call.index] = call
            self._add(call, fragment)

    def _add(self, call: _Call, fragment: _Fragment) -> None:
        if fragment.id and not call.id:
            call.id = fragment.id
            self._of_id[call.id] = call
        # A name may come in parts, before the arguments do; one that is repeated is no part.
        if fragment.name != call.name and not call.arguments:
            call.name += fragment.name
        if fragment.arguments:
            call.arguments.append(fragment.arguments)

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the order of their indexes, each with an id."""
        calls = sorted(self._calls, key=lambda call: call.index)
        taken = {call.id for call in calls}
        made: list[ToolCall] = []
        n = 0
        for position, call in enumerate(calls, 1):
            if not call.name:
                raise StreamFault("a tool call has no name")
            call_id = call.id
            if not call_id:
                n = max(n + 1, position)
                while f"call-{n}" in taken:
                    n += 1
                call_id = f"call-{n}"
            arguments = self._redact_json("".join(call.arguments))
            made.append(ToolCall(self._redact(call_id), self._redact(call.name), arguments))
        return tuple(made)


def error_message(value: JsonValue) -> str | None:
    """Return what a provider's error body says, in any of the shapes in use; None for nothing."""
    if isinstance(value, list):
        return error_message(value[0]) if value else None
    if not isinstance(value, dict):
        return None
    for name in ("error", "message", "detail"):
        said = value.get(name)
        if isinstance(said, str) and said:
            return said
        if isinstance(said, dict):
            return error_message(said)
    return None


def _too_long() -> StreamFault:
    return StreamFault(f"an answer of more than {MAX_ANSWER_BYTES} bytes")


def _fragment(value: JsonValue) -> _Fragment:
    if not isinstance(value, dict):
        raise StreamFault("a tool call is not a JSON object")
    function = _object(value, "function")
    index = value.get("index")
    return _Fragment(
        index if type(index) is int else None,
        _text(value, "id"),
        _text(function, "name"),
        _text(function, "arguments"),
    )


def _text(value: dict[str, JsonValue], name: str) -> str:
    member = value.get(name)
    if member is None or isinstance(member, str):
        return member or ""
    raise StreamFault(f"{name} is not a string")


def _list(value: dict[str, JsonValue], name: str) -> list[JsonValue]:
    member = value.get(name)
    if member is None or isinstance(member, list):
        return member or []
    raise StreamFault(f"{name} is not a list")


def _object(value: dict[str, JsonValue], name: str) -> dict[str, JsonValue]:
    member = value.get(name)
    if member is None or isinstance(member, dict):
        return member or {}
    raise StreamFault(f"{name} is not an object")


def _usage(value: JsonValue) -> Usage | None:
    """Return the tokens that were counted; None where the provider's count makes no sense."""
    if not isinstance(value, dict):
        return None
    try:
        return Usage(
            cast("int", value.get("prompt_tokens")), cast("int", value.get("completion_tokens"))
        )
    except RejectedEvent:
        return None
