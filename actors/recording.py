"""Appending to the log, and the line that tells of it.

The line is made from what was committed: where it stands (session, turn, step, sequence), what it
is and how much. It never holds what was said: no text, argument, result or chunk, and of the
words that a provider chooses itself only those that are known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from actors.errors import AppendFailed, OutcomeUnknown
from actors.events import (
    AssistantMessageCommitted,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from actors.events import Envelope, Event
    from actors.session_log import SessionLog

_log: FilteringBoundLogger = structlog.get_logger()

_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})


async def record(log: SessionLog, *events: Event, tool: str | None = None) -> None:
    """Append the events in one transaction and log a line of each; ``tool`` is whose call it is.

    Cancellation and exceptions are those of :meth:`SessionLog.append_many`.
    """
    was_degraded = log.health == "degraded"
    try:
        envelopes = await log.append_many(events)
    except (AppendFailed, OutcomeUnknown) as error:
        _log.error(
            "commit failed",
            session=log.session_id,
            sequence=log.snapshot().last_sequence + 1,
            health=log.health,
            error=error.fault,
        )
        raise
    if was_degraded and envelopes:
        _log.info("commits succeed again", session=log.session_id, sequence=envelopes[0].sequence)
    for envelope in envelopes:
        _tell(envelope, tool)


def place_of_step(step_id: str) -> dict[str, str]:
    """Return what a log line says of where it belongs: the Step, and its Turn."""
    return {"turn": step_id.partition("/")[0], "step": step_id}


def _tell(envelope: Envelope, tool: str | None) -> None:
    event, session, sequence = envelope.event, envelope.session_id, envelope.sequence
    if isinstance(event, UserInputAccepted):
        _log.info(
            "turn started",
            session=session,
            turn=event.turn_id,
            sequence=sequence,
            invocation=event.invocation_id,
        )
        return
    told: dict[str, str | int] = {
        "session": session,
        **place_of_step(event.step_id),
        "sequence": sequence,
    }
    if tool is not None:
        told["tool"] = tool
    match event:
        case ModelChunkRecorded():
            _log.debug("chunk recorded", **told, characters=len(event.chunk.text))
        case ModelRequestRecorded():
            route = f"{event.route.provider}/{event.route.model}"
            _log.info("step requested", **told, route=route, tools=len(event.tools))
        case AssistantMessageCommitted():
            _tell_answer(event, told)
        case ToolExecutionStarted():
            _log.info("tool started", **told)
        case ToolExecutionCompleted():
            outcome = "result" if event.error is None else event.error.code
            _log.info("tool completed", **told, outcome=outcome)
        case StepFailed():
            _log.warning("turn failed", **told, code=event.code)


def _tell_answer(event: AssistantMessageCommitted, told: dict[str, str | int]) -> None:
    reason = event.finish_reason if event.finish_reason in _FINISH_REASONS else "(other)"
    if event.usage is not None:
        told["input_tokens"] = event.usage.input_tokens
        told["output_tokens"] = event.usage.output_tokens
    if calls_n := len(event.message.tool_calls):
        _log.info("step answered", **told, finish_reason=reason, calls=calls_n)
    else:
        _log.info("turn finished", **told, finish_reason=reason)
