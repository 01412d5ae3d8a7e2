"""The values that events are made of: frozen, checked when built, compared by content."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, TypeAlias, cast

from attrs import frozen

from actors import strict_json
from actors.errors import NotStrictJson, RejectedEvent
from actors.strict_json import JsonValue, is_text, quote

IDENTIFIER_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}"
"""What a session id or an invocation id looks like, from its first character to its last."""

_identifier = re.compile(IDENTIFIER_PATTERN)


def is_identifier(text: str) -> bool:
    """Tell whether ``text`` as a whole is a session id or an invocation id."""
    return _identifier.fullmatch(text) is not None


# --- checks that the constructors here and in events share ----------------------------------


def require_text(what: str, value: object) -> None:
    """Refuse anything but a plain string of Unicode text; empty is fine."""
    if not is_text(value):
        raise RejectedEvent(f"{what}: a string of Unicode text is required")


def require_name(what: str, value: object) -> None:
    """Refuse anything but a plain, non-empty string of Unicode text."""
    require_text(what, value)
    if not value:
        raise RejectedEvent(f"{what}: must not be empty")


def require_count(what: str, value: object, least: int) -> None:
    """Refuse anything but an ``int`` (a ``bool`` is none) from ``least`` up."""
    if type(value) is not int or value < least:
        raise RejectedEvent(f"{what}: an integer from {least} up is required")
    if value >= strict_json.INTEGER_LIMIT:
        raise RejectedEvent(f"{what}: more than {strict_json.MAX_INTEGER_DIGITS} digits")


def require_instance(what: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Refuse a value whose type is not exactly ``kind`` (or one of several)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        names = " or ".join(each.__name__ for each in kinds)
        raise RejectedEvent(f"{what}: {names} is required, not {type(value).__name__}")


def require_tuple_of(what: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Refuse anything but a tuple whose every member's type is exactly one of ``kind``."""
    if type(value) is not tuple:
        raise RejectedEvent(f"{what}: a tuple is required, not {type(value).__name__}")
    for index, member in enumerate(cast("tuple[object, ...]", value)):
        require_instance(f"{what}/{index}", member, kind)


# --- values ---------------------------------------------------------------------------------


@frozen
class Json:
    """Any JSON value, immutable because it is kept as its compact text.

    Text also takes a fraction of the memory of the objects it stands for. Two are equal when
    their texts are, so the order of keys counts.
    """

    text: str
    """The value as :func:`strict_json.dumps` writes it; build one with :meth:`of`."""

    @classmethod
    def of(cls, value: object) -> Json:
        """Return the value as Json.

        Raises:
            NotStrictJson: JSON has no exact form for it.
        """
        return cls.trusted(strict_json.dumps(value))

    @classmethod
    def trusted(cls, text: str) -> Json:
        """Return a text as Json that is known to be as :meth:`of` would write it; not checked."""
        json = cls.__new__(cls)
        object.__setattr__(json, "text", text)
        return json

    def __attrs_post_init__(self) -> None:
        value, is_compact = strict_json.parse(self.text)
        if not is_compact and strict_json.dumps(value) != self.text:
            raise NotStrictJson("not in the compact form that Json.of writes")

    def value(self) -> JsonValue:
        """Return a fresh copy, which the caller may change."""
        return strict_json.loads(self.text)


@frozen
class ToolCall:
    """A model's wish to have a tool run."""

    id: str
    name: str
    arguments: str
    """The JSON text exactly as the model produced it, well-formed or not."""

    def __attrs_post_init__(self) -> None:
        require_name("tool call id", self.id)
        require_name("tool call name", self.name)
        require_text("tool call arguments", self.arguments)


@frozen
class UserMessage:
    """What a user said."""

    role: ClassVar[Literal["user"]] = "user"
    content: str

    def __attrs_post_init__(self) -> None:
        require_text("user message content", self.content)


@frozen
class AssistantMessage:
    """What a model answered: text, tool calls, or both."""

    role: ClassVar[Literal["assistant"]] = "assistant"
    content: str
    tool_calls: tuple[ToolCall, ...] = ()

    def __attrs_post_init__(self) -> None:
        require_text("assistant message content", self.content)
        require_tuple_of("assistant message tool_calls", self.tool_calls, ToolCall)


@frozen
class ToolMessage:
    """What a tool call came to, as the model is told."""

    role: ClassVar[Literal["tool"]] = "tool"
    content: str
    tool_call_id: str

    def __attrs_post_init__(self) -> None:
        require_text("tool message content", self.content)
        require_name("tool message tool_call_id", self.tool_call_id)


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage
MESSAGE_CLASSES = (UserMessage, AssistantMessage, ToolMessage)


@frozen
class Route:
    """Names one model adapter."""

    provider: str
    model: str

    def __attrs_post_init__(self) -> None:
        require_name("route provider", self.provider)
        require_name("route model", self.model)


@frozen
class ToolSpec:
    """A tool as a model is told of it; ``parameters`` is a JSON Schema, a JSON object."""

    name: str
    description: str
    parameters: Json

    def __attrs_post_init__(self) -> None:
        require_name("tool name", self.name)
        require_text("tool description", self.description)
        require_instance("tool parameters", self.parameters, Json)
        if not self.parameters.text.startswith("{"):
            raise RejectedEvent("tool parameters: a JSON object is required")


@frozen
class Usage:
    """Tokens that a provider says it read and wrote."""

    input_tokens: int
    output_tokens: int

    def __attrs_post_init__(self) -> None:
        require_count("usage input_tokens", self.input_tokens, 0)
        require_count("usage output_tokens", self.output_tokens, 0)


@frozen
class ErrorInfo:
    """Why something did not work: a stable code, and a sentence for people."""

    code: str
    message: str

    def __attrs_post_init__(self) -> None:
        require_name("error code", self.code)
        require_text("error message", self.message)


# --- messages as JSON -------------------------------------------------------------------------


def tool_call_json(call: ToolCall) -> str:
    """Return the call's compact JSON text, keys in their fixed order."""
    return (
        f'{{"id":{quote(call.id)},"name":{quote(call.name)},"arguments":{quote(call.arguments)}}}'
    )


def message_json(message: Message) -> str:
    """Return the message's compact JSON text, keys in the order in which it is hashed."""
    head = f'{{"role":"{message.role}","content":{quote(message.content)}'
    if type(message) is AssistantMessage:
        calls = ",".join(map(tool_call_json, message.tool_calls))
        return f'{head},"tool_calls":[{calls}]}}'
    if type(message) is ToolMessage:
        return f'{head},"tool_call_id":{quote(message.tool_call_id)}}}'
    return f"{head}}}"


def message_value(message: Message) -> dict[str, JsonValue]:
    """Return the message as a fresh plain JSON value."""
    value: dict[str, JsonValue] = {"role": message.role, "content": message.content}
    if type(message) is AssistantMessage:
        value["tool_calls"] = [tool_call_value(call) for call in message.tool_calls]
    elif type(message) is ToolMessage:
        value["tool_call_id"] = message.tool_call_id
    return value


def tool_call_value(call: ToolCall) -> dict[str, JsonValue]:
    """Return the call as a fresh plain JSON value."""
    return {"id": call.id, "name": call.name, "arguments": call.arguments}
