"""One Turn: each fact is on record before the next effect.

The order, and why:

1. The input, then the request, then the stream. What a model can see is durable before the model
   sees it, so a process that dies knows afterwards what it had asked.
2. Each chunk as it comes, then the message. A message is committed before the adapter's stream
   is left, so that nothing that goes wrong while leaving can lose it.
3. However the code of a Turn ends, what the Turn still owes is computed from the log and recorded
   in one transaction, shielded. If that fails it stays owed: the log alone says so, and
   :func:`recover` makes up for it before another Turn begins.

Nobody is told here how a Turn went: that is read from the log.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import frozen

from actors.errors import ConfigurationError, LogClosed, SessiondError, StoreError
from actors.events import (
    AssistantMessageCommitted,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
    step_id_for,
    turn_id_for,
)
from actors.routes import Chunk, ModelFailure, ModelRequest, ModelResponse
from actors.strict_json import is_text
from actors.turns import closing_events
from actors.values import ErrorInfo, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from actors.events import Event
    from actors.routes import Adapter, RouteTable
    from actors.session_log import SessionLog
    from actors.values import Route, ToolCall

_log: FilteringBoundLogger = structlog.get_logger()

CANCELLED = ErrorInfo("cancelled", "the invocation was cancelled")
"""Recorded where somebody asked for this Turn to be cancelled."""
INTERRUPTED = ErrorInfo("interrupted", "the turn was stopped before it had ended")
"""Recorded where the Turn was cut short for any other reason: a stop, a kill, a failed disk."""

DEFAULT_MAX_STEPS = 8
"""Model requests that one Turn may make."""


def _interrupted() -> ErrorInfo:
    return INTERRUPTED


@frozen
class _Turn:
    """What does not change between the Steps of a Turn."""

    turn_id: str
    turn_n: int
    route: Route
    adapter: Adapter


class Agent:
    """Runs Turns on one session, one at a time."""

    def __init__(
        self,
        log: SessionLog,
        routes: RouteTable,
        system_prompt: str = "",
        max_steps: int = DEFAULT_MAX_STEPS,
    ) -> None:
        """Make an agent; an empty ``system_prompt`` is none.

        Raises:
            ConfigurationError: the prompt is not Unicode text, so no request could be recorded,
                or ``max_steps`` is less than 1.
        """
        if not is_text(system_prompt):
            raise ConfigurationError("the system prompt is not Unicode text")
        if max_steps < 1:
            raise ConfigurationError("a turn must be allowed one step at least")
        self._log = log
        self._system_prompt = system_prompt
        self._max_steps = max_steps
        self.routes = routes

    async def run_turn(
        self,
        invocation_id: str,
        text: str,
        route: Route | None = None,
        why_cut: Callable[[], ErrorInfo] = _interrupted,
    ) -> None:
        """Run one Turn to its recorded end, good or bad; which one is read from the log.

        Cancelled before its input was recorded, it leaves nothing. Cancelled later, it records
        what the Turn owes, shielded, with what ``why_cut`` then returns, and goes on with its
        cancellation.

        Raises:
            RouteUnavailable: there is no such route; nothing was recorded.
            RejectedEvent: the input is not acceptable; nothing was recorded.
            StoreError: an append failed. Where the snapshot then has an open Turn, closing it
                failed too and is owed.
            LogClosed: the log was closed, with the same consequences.
        """
        taken, adapter = self.routes.resolve(route)
        turn_n = self._log.snapshot().turns_n + 1
        turn_id = turn_id_for(turn_n)
        await self._log.append(UserInputAccepted(turn_id, invocation_id, (UserMessage(text),)))
        _log.info("turn started", session=self._log.session_id, turn=turn_id)
        try:
            failure = await self._run_steps(_Turn(turn_id, turn_n, taken, adapter))
        except BaseException:
            await self._close_or_owe(turn_id, why_cut())
            raise
        if failure is None:
            _log.info("turn finished", session=self._log.session_id, turn=turn_id)
            return
        with trio.CancelScope(shield=True):
            await _close(self._log, failure)

    async def _run_steps(self, turn: _Turn) -> ErrorInfo | None:
        """Run the Turn's Steps; return why they did not finish it, None if they did."""
        for step_n in range(1, self._max_steps + 1):
            answer = await self._step(turn, step_id_for(turn.turn_id, step_n))
            if isinstance(answer, ModelFailure):
                return ErrorInfo(answer.code, answer.message)
            if not answer.message.tool_calls:
                return None
        return ErrorInfo("step_limit", f"no final message within {self._max_steps} steps")

    async def _step(self, turn: _Turn, step_id: str) -> ModelResponse | ModelFailure:
        """Make one request, record its answer, and answer the answer's tool calls."""
        snapshot = self._log.snapshot()
        await self._log.append(
            ModelRequestRecorded(
                turn.turn_id, step_id, turn.route, self._system_prompt, (), snapshot.history_ref()
            )
        )
        request = ModelRequest(
            turn.route,
            self._system_prompt,
            (),
            snapshot.model_history(),
            turn.turn_n,
            step_id,
        )
        answer = await self._ask(turn.adapter, request, step_id)
        if isinstance(answer, ModelResponse):
            for call in answer.message.tool_calls:
                await self._refuse(step_id, call)
        return answer

    async def _refuse(self, step_id: str, call: ToolCall) -> None:
        """Answer a call of a tool that there is not, so that the model can see its mistake."""
        error = ErrorInfo("unknown_tool", "there is no such tool")
        await self._log.append_many(
            (
                ToolExecutionStarted(step_id, call),
                ToolExecutionCompleted(step_id, call.id, error=error),
            )
        )

    async def _ask(
        self, adapter: Adapter, request: ModelRequest, step_id: str
    ) -> ModelResponse | ModelFailure:
        """Record what the adapter streams, and return the response, committed, or the failure."""
        answer: ModelResponse | ModelFailure | None = None
        try:
            async with aclosing(adapter.stream(request)) as outputs:
                async for output in outputs:
                    if isinstance(output, Chunk):
                        await self._log.append(ModelChunkRecorded(step_id, output.value))
                        continue
                    if isinstance(output, ModelResponse):
                        await self._log.append(_committed(step_id, output))
                    answer = output
                    break
        except (StoreError, LogClosed):
            raise
        except Exception as error:  # noqa: BLE001 # an adapter is foreign code: its Turn fails
            # The type alone: the text of a provider's error may hold what no log may.
            name = type(error).__name__
            _log.warning(
                "model adapter failed", session=self._log.session_id, step=step_id, error=name
            )
            failure = ModelFailure("provider_error", f"the model adapter failed: {name}")
            return answer or failure
        return answer or ModelFailure("provider_error", "the stream ended without an answer")

    async def _close_or_owe(self, turn_id: str, why: ErrorInfo) -> None:
        """Close the Turn, shielded; where the log does not take it, leave it owed.

        Called with an exception on its way, which must not be lost for one from here.
        """
        with trio.CancelScope(shield=True):
            try:
                await _close(self._log, why)
            except SessiondError as error:
                _log.error(
                    "what the turn owes could not be recorded",
                    session=self._log.session_id,
                    turn=turn_id,
                    error=str(error),
                )


def _committed(step_id: str, response: ModelResponse) -> AssistantMessageCommitted:
    return AssistantMessageCommitted(
        step_id, response.message, response.finish_reason, response.usage
    )


async def _close(log: SessionLog, why: ErrorInfo) -> tuple[Event, ...]:
    """Record what the session's last Turn owes in one transaction; return it, empty for nothing.

    Cancellation and exceptions are those of :meth:`SessionLog.append_many`.
    """
    owed = closing_events(log.snapshot(), why.code, why.message)
    await log.append_many(owed)
    for event in owed:
        if isinstance(event, StepFailed):
            _log.warning("turn failed", session=log.session_id, step=event.step_id, code=event.code)
    return owed


async def recover(log: SessionLog) -> tuple[Event, ...]:
    """Record what an unfinished Turn owes, as ``interrupted``; return it, empty for nothing.

    For a log on which no Turn is running: after a kill, or after a disk had failed. Always a
    checkpoint; cancelled, either all of it was recorded or nothing.

    Raises:
        StoreError: it could not be recorded and is still owed.
        LogClosed: the log was closed.
    """
    return await _close(log, INTERRUPTED)
