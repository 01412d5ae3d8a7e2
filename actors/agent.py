"""One Turn: each fact is on record before the next effect.

The order, and why:

1. The input, then the request, then the stream. What a model can see is durable before the model
   sees it, so a process that dies knows afterwards what it had asked.
2. Each chunk as it comes, then the message. A message is committed before the adapter's stream
   is left, so that nothing that goes wrong while leaving can lose it.
3. Each tool call is recorded as started, then run, then recorded as completed. From the moment
   its handler has returned nothing cancels the way to that record: its effect has taken place.
4. However the code of a Turn ends, what the Turn still owes is computed from the log and recorded
   in one transaction, shielded. If that fails it stays owed: the log alone says so, and
   :func:`recover` makes up for it before another Turn begins.

Nobody is told here how a Turn went: that is read from the log.
"""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio
from attrs import evolve, frozen

from actors.errors import ConfigurationError, LogClosed, RejectedEvent, SessiondError, StoreError
from actors.events import (
    AssistantMessageCommitted,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
    step_id_for,
    turn_id_for,
)
from actors.kernel.hooks import Hooks
from actors.recording import place_of_step, record
from actors.routes import Chunk, ModelFailure, ModelRequest, ModelResponse
from actors.tools import PromptRegistry, ToolRegistry
from actors.turn_hooks import (
    POST_EXECUTE,
    POST_STEP,
    PRE_EXECUTE,
    PRE_STEP,
    CallDraft,
    CallOutcome,
    StepAnswer,
    StepDraft,
)
from actors.turns import closing_events
from actors.values import ErrorInfo, Json, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from structlog.typing import FilteringBoundLogger

    from actors.events import Event
    from actors.routes import Adapter, RouteTable
    from actors.session_log import SessionLog
    from actors.snapshot import Snapshot
    from actors.tools import ToolSet
    from actors.turn_hooks import Outcome
    from actors.values import AssistantMessage, Route, ToolCall

_log: FilteringBoundLogger = structlog.get_logger()

_Draft = TypeVar("_Draft")

CANCELLED = ErrorInfo("cancelled", "the invocation was cancelled")
"""Recorded where somebody asked for this Turn to be cancelled."""
INTERRUPTED = ErrorInfo("interrupted", "the turn was stopped before it had ended")
"""Recorded where the Turn was cut short for any other reason: a stop, a kill, a failed disk."""

DEFAULT_MAX_STEPS = 8
"""Model requests that one Turn may make."""


POST_EXECUTE_S = 30.0
"""How long the listeners of one call's ``tools/post-execute`` may take: they are shielded."""


def _interrupted() -> ErrorInfo:
    return INTERRUPTED


def _why(error: BaseException) -> ErrorInfo | None:
    """Return what to record of a Turn that the store cut short, None for any other."""
    if not isinstance(error, StoreError):
        return None
    return evolve(INTERRUPTED, message=f"the turn could not be recorded any further: {error.fault}")


class _HookFailed(Exception):
    """A listener raised, or returned what the hook does not take."""


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
        tools: ToolRegistry | None = None,
        prompts: PromptRegistry | None = None,
        hooks: Hooks | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
    ) -> None:
        """Make an agent. What tools and prompts there are is asked anew at each Step.

        Raises:
            ConfigurationError: ``max_steps`` is less than 1.
        """
        if max_steps < 1:
            raise ConfigurationError("a turn must be allowed one step at least")
        self._log = log
        self._tools = ToolRegistry() if tools is None else tools
        self._prompts = PromptRegistry() if prompts is None else prompts
        self._hooks = Hooks() if hooks is None else hooks
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
        message = UserMessage(text)
        await record(self._log, UserInputAccepted(turn_id, invocation_id, (message,)))
        try:
            failure = await self._run_steps(_Turn(turn_id, turn_n, taken, adapter))
        except BaseException as error:
            await self._close_or_owe(turn_id, _why(error) or why_cut())
            raise
        if failure is None:
            return
        with trio.CancelScope(shield=True):
            await _close(self._log, failure)

    async def _run_steps(self, turn: _Turn) -> ErrorInfo | None:
        """Run the Turn's Steps; return why they did not finish it, None if they did."""
        try:
            for step_n in range(1, self._max_steps + 1):
                answer = await self._step(turn, step_id_for(turn.turn_id, step_n))
                if isinstance(answer, ModelFailure):
                    return ErrorInfo(answer.code, answer.message)
                if not answer.message.tool_calls:
                    return None
        except _HookFailed as error:
            return ErrorInfo("hook_error", str(error))
        return ErrorInfo("step_limit", f"no final message within {self._max_steps} steps")

    async def _step(self, turn: _Turn, step_id: str) -> ModelResponse | ModelFailure:
        """Make one request, record its answer, and execute the answer's tool calls."""
        tools = self._tools.snapshot()
        request = await self._request(turn, step_id, tools)
        answer = await self._ask(turn.adapter, request, step_id)
        if isinstance(answer, ModelResponse):
            with self._hook_failures(POST_STEP.name, step_id):
                await self._hooks.parallel(
                    POST_STEP,
                    StepAnswer(
                        turn.turn_id, step_id, answer.message, answer.finish_reason, answer.usage
                    ),
                )
            offered = frozenset(spec.name for spec in request.tools)
            for call in answer.message.tool_calls:
                await self._execute(CallDraft(turn.turn_id, step_id, call), tools, offered)
        return answer

    async def _request(self, turn: _Turn, step_id: str, tools: ToolSet) -> ModelRequest:
        """Record what the model is to be given, and return it."""
        snapshot = self._log.snapshot()
        history = snapshot.model_history()
        draft = StepDraft(turn.turn_id, step_id, self._prompts.snapshot(), tools.specs, history)
        with self._hook_failures(PRE_STEP.name, step_id):
            drafted = await self._hooks.waterfall(PRE_STEP, draft, _as_it_is)
            if type(drafted) is not StepDraft:
                raise TypeError("not a StepDraft")
        await record(
            self._log,
            ModelRequestRecorded(
                turn.turn_id,
                step_id,
                turn.route,
                drafted.system_prompt,
                drafted.tools,
                snapshot.history_ref()
                if drafted.messages is history or drafted.messages == history
                else InlineMessages(drafted.messages),
            ),
        )
        return ModelRequest(
            turn.route,
            drafted.system_prompt,
            drafted.tools,
            drafted.messages,
            turn.turn_n,
            step_id,
        )

    async def _execute(self, draft: CallDraft, tools: ToolSet, offered: frozenset[str]) -> None:
        """Run one tool call between its two records."""
        with self._hook_failures(PRE_EXECUTE.name, draft.step_id):
            drafted = await self._hooks.waterfall(PRE_EXECUTE, draft, _as_it_is)
            if type(drafted) not in {CallDraft, ErrorInfo}:
                raise TypeError("neither a CallDraft nor an ErrorInfo")
        tool = _told_name(draft.call, offered)
        await record(self._log, ToolExecutionStarted(draft.step_id, draft.call), tool=tool)
        if isinstance(drafted, ErrorInfo):
            outcome: Outcome = drafted
        elif drafted.call.name in offered:
            outcome = await tools.run(drafted.call)
        else:
            outcome = ErrorInfo("unknown_tool", "there is no such tool")
        # No checkpoint between the handler's return and this.
        with trio.CancelScope(shield=True):
            done = CallOutcome(draft.turn_id, draft.step_id, draft.call, outcome)
            await self._complete(done, tool)

    async def _complete(self, outcome: CallOutcome, tool: str) -> None:
        """Let the listeners see to an outcome, and record what they make of it. Shielded."""
        final: Outcome | None = None
        with self._hook_failures(POST_EXECUTE.name, outcome.step_id):
            with trio.move_on_after(POST_EXECUTE_S):
                final = await self._hooks.waterfall(POST_EXECUTE, outcome, _outcome_as_it_is)
            if type(final) not in {Json, ErrorInfo}:
                # The handler's own outcome is not taken instead: it may be what they are to hide.
                raise TypeError("no outcome")
        result, error = (final, None) if isinstance(final, Json) else (None, final)
        step_id, call = outcome.step_id, outcome.call
        try:
            completed = ToolExecutionCompleted(step_id, call.id, result=result, error=error)
            await record(self._log, completed, tool=tool)
        except RejectedEvent as refusal:
            error = ErrorInfo("handler_error", f"the result cannot be recorded: {refusal}")
            completed = ToolExecutionCompleted(step_id, call.id, error=error)
            await record(self._log, completed, tool=tool)

    @contextmanager
    def _hook_failures(self, hook: str, step_id: str) -> Generator[None, None, None]:
        """Turn what comes out of a hook's listeners into :class:`_HookFailed`."""
        try:
            yield
        except Exception as error:
            # The kind alone goes on record: foreign texts may hold what no event may.
            _log.error(
                "hook failed",
                session=self._log.session_id,
                **place_of_step(step_id),
                hook=hook,
                exc_info=error,
            )
            raise _HookFailed(f"a listener of {hook} failed: {type(error).__name__}") from error

    async def _ask(
        self, adapter: Adapter, request: ModelRequest, step_id: str
    ) -> ModelResponse | ModelFailure:
        """Record what the adapter streams, and return the response, committed, or the failure."""
        answer: ModelResponse | ModelFailure | None = None
        try:
            async with aclosing(adapter.stream(request)) as outputs:
                async for output in outputs:
                    if isinstance(output, Chunk):
                        await record(self._log, ModelChunkRecorded(step_id, output.value))
                        continue
                    answer = await self._kept(step_id, output)
                    break
        except (StoreError, LogClosed):
            raise
        except Exception as error:  # noqa: BLE001 # an adapter is foreign code: its Turn fails
            # The type alone: the text of a provider's error may hold what no log may.
            name = type(error).__name__
            _log.warning(
                "model adapter failed",
                session=self._log.session_id,
                **place_of_step(step_id),
                error=name,
            )
            failure = ModelFailure("provider_error", f"the model adapter failed: {name}")
            return answer or failure
        return answer or ModelFailure("provider_error", "the stream ended without an answer")

    async def _kept(
        self, step_id: str, output: ModelResponse | ModelFailure
    ) -> ModelResponse | ModelFailure:
        """Return how a stream ended; a response as it was committed."""
        if isinstance(output, ModelFailure):
            return output
        message = _with_new_ids(output.message, step_id, self._log.snapshot())
        response = evolve(output, message=message)
        await record(self._log, _committed(step_id, response))
        return response

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


async def _as_it_is(draft: _Draft) -> _Draft:
    return draft


async def _outcome_as_it_is(outcome: CallOutcome) -> Outcome:
    return outcome.outcome


def _told_name(call: ToolCall, offered: frozenset[str]) -> str:
    """Return what a log may call the tool: a name that nobody offered is the model's own words."""
    return call.name if call.name in offered else "(unknown)"


def _with_new_ids(message: AssistantMessage, step_id: str, snapshot: Snapshot) -> AssistantMessage:
    """Return the message with an id of its own for each call that has none new to the session.

    Some providers number the calls of each answer from 0. Answers are told apart by these ids, so
    each is used once in a session.
    """
    calls: list[ToolCall] = []
    used: set[str] = set()
    for n, call in enumerate(message.tool_calls, 1):
        new_id, suffix = call.id, ""
        while new_id in used or snapshot.knows_call(new_id):
            new_id = f"call-{step_id.replace('/', '-')}-{n}{suffix}"
            suffix += "x"
        used.add(new_id)
        calls.append(evolve(call, id=new_id))
    return evolve(message, tool_calls=tuple(calls))


def _committed(step_id: str, response: ModelResponse) -> AssistantMessageCommitted:
    return AssistantMessageCommitted(
        step_id, response.message, response.finish_reason, response.usage
    )


async def _close(log: SessionLog, why: ErrorInfo) -> tuple[Event, ...]:
    """Record what the session's last Turn owes in one transaction; return it, empty for nothing.

    Cancellation and exceptions are those of :meth:`SessionLog.append_many`.
    """
    owed = closing_events(log.snapshot(), why.code, why.message)
    await record(log, *owed)
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
