"""The four points of a Step at which plugins take part, and what they are given there.

Each is a hook of the kernel. A listener that raises ends the Turn with ``hook_error``: what it
was there to see to may not have been seen to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from actors.kernel.hooks import ParallelHook, WaterfallHook
from actors.values import (
    MESSAGE_CLASSES,
    ErrorInfo,
    Json,
    Message,
    ToolCall,
    ToolSpec,
    require_text,
    require_tuple_of,
)

if TYPE_CHECKING:
    from actors.values import AssistantMessage, Usage

Outcome: TypeAlias = Json | ErrorInfo
"""What a tool call came to."""


@frozen
class StepDraft:
    """What a model is about to be given. A listener passes on a changed copy (attrs ``evolve``).

    What comes out is recorded and sent. A tool that is left out of ``tools`` cannot be called in
    this Step. Messages other than the history are recorded whole, at each Step that has them.
    """

    turn_id: str
    step_id: str
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]

    def __attrs_post_init__(self) -> None:
        require_text("system_prompt", self.system_prompt)
        require_tuple_of("tools", self.tools, ToolSpec)
        require_tuple_of("messages", self.messages, MESSAGE_CLASSES)


@frozen
class StepAnswer:
    """What a model answered. It is on record; its tool calls have not been looked at yet."""

    turn_id: str
    step_id: str
    message: AssistantMessage
    finish_reason: str
    usage: Usage | None


@frozen
class CallDraft:
    """A tool call whose turn it is, as the model made it or as listeners changed it.

    It is recorded as the model made it, whatever is run.
    """

    turn_id: str
    step_id: str
    call: ToolCall


@frozen
class CallOutcome:
    """A tool call and what it came to."""

    turn_id: str
    step_id: str
    call: ToolCall
    """As the model made it."""
    outcome: Outcome


PRE_STEP = WaterfallHook[StepDraft, StepDraft]("agent/pre-step")
"""Before a request is recorded: the draft that comes out is what the model is given."""
POST_STEP = ParallelHook[StepAnswer]("agent/post-step")
"""After a model's message is on record. Listeners observe."""
PRE_EXECUTE = WaterfallHook[CallDraft, CallDraft | ErrorInfo]("tools/pre-execute")
"""Before a call is started: what comes out is run, or, if it is an error, answered unrun."""
POST_EXECUTE = WaterfallHook[CallOutcome, Outcome]("tools/post-execute")
"""After a call was run or refused: what comes out is recorded, and is what the model sees.
Shielded, and bounded by the agent: the call has had its effect."""
