"""The closed set of seven events, and the Envelope that carries one.

An event that could be refused for its own shape cannot be built: every constructor checks its
fields. Whether it may follow the events before it is for :mod:`actors.turns` to say. Code that
tells events apart does so by exact type; there is nothing to subclass.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import ClassVar, TypeAlias

from attrs import frozen

from actors.errors import RejectedEvent
from actors.values import (
    MESSAGE_CLASSES,
    AssistantMessage,
    ErrorInfo,
    Json,
    Message,
    Route,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
    is_identifier,
    require_count,
    require_instance,
    require_name,
    require_text,
    require_tuple_of,
)

_turn_id = re.compile(r"turn-[1-9][0-9]*")
_step_id = re.compile(r"turn-[1-9][0-9]*/step-[1-9][0-9]*")
_sha256 = re.compile(r"[0-9a-f]{64}")


def turn_id_for(turn_n: int) -> str:
    """Return the id of a session's ``turn_n``-th Turn, counted from 1."""
    return f"turn-{turn_n}"


def step_id_for(turn_id: str, step_n: int) -> str:
    """Return the id of a Turn's ``step_n``-th Step, counted from 1."""
    return f"{turn_id}/step-{step_n}"


def _require_match(what: str, value: object, pattern: re.Pattern[str]) -> None:
    require_text(what, value)
    if pattern.fullmatch(str(value)) is None:
        raise RejectedEvent(f"{what}: must look like {pattern.pattern}")


def _require_turn_id(value: object) -> None:
    _require_match("turn_id", value, _turn_id)


def _require_step_id(value: object) -> None:
    if type(value) is not str or not _is_step_id(value):
        _require_match("step_id", value, _step_id)


@lru_cache(maxsize=64)  # a Step's events come together, forty chunks with one id
def _is_step_id(text: str) -> bool:
    return _step_id.fullmatch(text) is not None


@frozen
class UserInputAccepted:
    """An invocation's input became the next Turn."""

    tag: ClassVar[str] = "user_input_accepted"
    turn_id: str
    invocation_id: str
    messages: tuple[UserMessage, ...]

    def __attrs_post_init__(self) -> None:
        _require_turn_id(self.turn_id)
        require_text("invocation_id", self.invocation_id)
        if not is_identifier(self.invocation_id):
            raise RejectedEvent("invocation_id: not an invocation id")
        require_tuple_of("messages", self.messages, UserMessage)
        if not self.messages:
            raise RejectedEvent("messages: one or more are required")


@frozen
class HistoryRef:
    """Names a request's messages: the model history as projected at sequence ``through``."""

    through: int
    sha256: str
    """Hex digest of the messages' JSON, see :class:`actors.history.HistoryHash`."""

    def __attrs_post_init__(self) -> None:
        require_count("messages/through", self.through, 1)
        _require_match("messages/sha256", self.sha256, _sha256)


@frozen
class InlineMessages:
    """A request's messages in full: a hook had replaced the history's."""

    messages: tuple[Message, ...]

    def __attrs_post_init__(self) -> None:
        require_tuple_of("messages/inline", self.messages, MESSAGE_CLASSES)


@frozen
class ModelRequestRecorded:
    """A Step began: all that the model is about to be given."""

    tag: ClassVar[str] = "model_request_recorded"
    turn_id: str
    step_id: str
    route: Route
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    messages: HistoryRef | InlineMessages

    def __attrs_post_init__(self) -> None:
        _require_turn_id(self.turn_id)
        _require_step_id(self.step_id)
        require_instance("route", self.route, Route)
        require_text("system_prompt", self.system_prompt)
        require_tuple_of("tools", self.tools, ToolSpec)
        require_instance("messages", self.messages, (HistoryRef, InlineMessages))


@frozen
class ModelChunkRecorded:
    """A piece of the provider's stream, as it came."""

    tag: ClassVar[str] = "model_chunk_recorded"
    step_id: str
    chunk: Json

    def __attrs_post_init__(self) -> None:
        _require_step_id(self.step_id)
        if type(self.chunk) is not Json:
            require_instance("chunk", self.chunk, Json)


@frozen
class AssistantMessageCommitted:
    """The Step's one response, complete."""

    tag: ClassVar[str] = "assistant_message_committed"
    step_id: str
    message: AssistantMessage
    finish_reason: str
    usage: Usage | None = None

    def __attrs_post_init__(self) -> None:
        _require_step_id(self.step_id)
        require_instance("message", self.message, AssistantMessage)
        require_text("finish_reason", self.finish_reason)
        if self.usage is not None:
            require_instance("usage", self.usage, Usage)


@frozen
class ToolExecutionStarted:
    """A tool call is about to run; from here on its effect cannot be ruled out."""

    tag: ClassVar[str] = "tool_execution_started"
    step_id: str
    call: ToolCall

    def __attrs_post_init__(self) -> None:
        _require_step_id(self.step_id)
        require_instance("call", self.call, ToolCall)


@frozen
class ToolExecutionCompleted:
    """A tool call has its answer: exactly one of ``result`` and ``error``."""

    tag: ClassVar[str] = "tool_execution_completed"
    step_id: str
    call_id: str
    result: Json | None = None
    """None where there is none; a result that is JSON's null is ``Json("null")``."""
    error: ErrorInfo | None = None

    def __attrs_post_init__(self) -> None:
        _require_step_id(self.step_id)
        require_name("call_id", self.call_id)
        if (self.result is None) == (self.error is None):
            raise RejectedEvent("exactly one of result and error is required")
        if self.result is not None:
            require_instance("result", self.result, Json)
        if self.error is not None:
            require_instance("error", self.error, ErrorInfo)


@frozen
class StepFailed:
    """The Turn ended without a final message."""

    tag: ClassVar[str] = "step_failed"
    step_id: str
    code: str
    message: str

    def __attrs_post_init__(self) -> None:
        _require_step_id(self.step_id)
        require_name("code", self.code)
        require_text("message", self.message)


Event: TypeAlias = (
    UserInputAccepted
    | ModelRequestRecorded
    | ModelChunkRecorded
    | AssistantMessageCommitted
    | ToolExecutionStarted
    | ToolExecutionCompleted
    | StepFailed
)

EVENT_CLASSES: tuple[type[Event], ...] = (
    UserInputAccepted,
    ModelRequestRecorded,
    ModelChunkRecorded,
    AssistantMessageCommitted,
    ToolExecutionStarted,
    ToolExecutionCompleted,
    StepFailed,
)


@frozen
class Envelope:
    """An event in its place: committed, numbered, dated and chained."""

    session_id: str
    sequence: int
    """Counted from 1 in each session; the only order there is."""
    recorded_at: str
    """RFC 3339, UTC, six decimals; the clock may go backwards."""
    event: Event
    digest: bytes
    """The row's link in the session's SHA-256 chain, 32 bytes."""
