"""Tools and prompts: what plugins contribute, and the running of one tool call.

A call ends in one of these ways, told apart by what happened first:

- its handler returned: that is its result, whatever else happened meanwhile, since its effect
  has taken place;
- it was cancelled from outside: that goes through;
- its time was up, or its tool was withdrawn: the handler is cancelled, and the model is told;
- its handler raised: the model is told.

An async handler is cancelled and waited for. A sync one runs in a worker thread and cannot be
stopped: it is left behind, and what it returns late is dropped.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import asynccontextmanager
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import trio
from attrs import define, field, frozen

from actors import strict_json
from actors.errors import ConfigurationError, NotStrictJson
from actors.strict_json import is_text
from actors.validation import ValidatorPair, compile_schema, pair_fault
from actors.values import ErrorInfo, Json, ToolSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from actors.strict_json import JsonValue
    from actors.values import ToolCall

DEFAULT_TIMEOUT_S = 60.0
HANDLER_THREADS = 32
"""Sync handlers that may be running at a time; one that was left behind counts until it ends.
A call that finds no thread waits for one, within its own timeout."""
MESSAGE_LENGTH = 1_000
"""Characters of an error that a model is told."""
_LEAVES_TOLD = 10
_STEP_ID_ROOM = "-" * 64

WITHDRAWN = "the tool was withdrawn while it ran"


def _compiled(tool: Tool) -> ValidatorPair:
    _require(type(tool.spec) is ToolSpec, "a tool needs a ToolSpec")  # else it has no name
    name = tool.spec.name
    _require(callable(tool.handler), f"tool {name}: the handler cannot be called")
    is_number = type(tool.timeout_s) in {int, float}
    _require(is_number and tool.timeout_s > 0, f"tool {name}: the timeout must be more than 0 s")
    parameters = tool.spec.parameters.value()
    assert isinstance(parameters, dict)  # the spec saw to it
    try:
        return compile_schema(parameters)
    except ValueError as error:
        raise ConfigurationError(f"tool {name}: the parameters are no schema: {error}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


@frozen
class Tool:
    """What a model may call, and what then runs.

    Building one raises :class:`~actors.errors.ConfigurationError` if its parameters are no valid
    JSON Schema (draft 2020-12) whose references all stay within it, if the handler cannot be
    called, or if the timeout is not more than zero.
    """

    spec: ToolSpec
    handler: Callable[[JsonValue], Any]
    """Given the arguments, a value of its own; returns a JSON value, or raises what the model is
    to be told. Async, or sync and then run in a worker thread."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """How long one call may take; ``math.inf`` for as long as it likes."""
    schema: ValidatorPair = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "schema", _compiled(self))


# --- contributions --------------------------------------------------------------------------


@define(eq=False)
class _Running:
    """A call whose handler runs."""

    scope: trio.CancelScope
    withdrawn: bool = False

    def withdraw(self) -> None:
        # Unless its time was up first: then that is how it ends.
        if not self.scope.cancel_called:
            self.withdrawn = True
            self.scope.cancel()

    def ending(self, tool: Tool, error: BaseException | None) -> ErrorInfo:
        """Return what the call came to, once its scope is left without a result."""
        if self.withdrawn:
            code, message = "handler_error", WITHDRAWN
        elif self.scope.cancel_called:
            code, message = "tool_timeout", f"no result within {tool.timeout_s:g} s"
        else:
            assert error is not None  # else there is a result
            return ErrorInfo("handler_error", _told(error))
        if error is not None:
            message = _cut(f"{message}; while it was stopped: {_told(error)}")
        return ErrorInfo(code, message)


@define(eq=False)
class _Contribution:
    """A tool while it is there, and until its last call has ended."""

    tool: Tool
    withdrawn: bool = False
    _running: set[_Running] = field(factory=set[_Running])
    _idle: trio.Event = field(factory=trio.Event)

    def begin(self) -> _Running:
        deadline = trio.current_time() + self.tool.timeout_s
        running = _Running(trio.CancelScope(deadline=deadline))
        self._running.add(running)
        return running

    def end(self, running: _Running) -> None:
        self._running.remove(running)
        if self.withdrawn and not self._running:
            self._idle.set()

    async def withdraw(self) -> None:
        """Begin no more calls, cancel those that run, and wait for them."""
        self.withdrawn = True
        for running in self._running:
            running.withdraw()
        if not self._running:
            self._idle.set()
        await self._idle.wait()


class ToolRegistry:
    """The tools that there are now. A Step works on a :meth:`snapshot`."""

    def __init__(self) -> None:
        self._contributions: dict[str, _Contribution] = {}
        self._limiter = trio.CapacityLimiter(HANDLER_THREADS)

    @asynccontextmanager
    async def contributed(self, tool: Tool) -> AsyncGenerator[None, None]:
        """Have a tool while the block runs.

        On leaving, the tool is gone from later snapshots and its name free at once; calls of it
        that run are cancelled, answered with ``handler_error``, and waited for, so that what an
        async handler uses outlives it. A sync handler may still be running in its thread.
        The wait can be cancelled; the tool is gone all the same. Entering is no checkpoint.

        Raises:
            ConfigurationError: there is a tool of that name.
        """
        name = tool.spec.name
        _require(name not in self._contributions, f"there is a tool named {name} already")
        contribution = self._contributions[name] = _Contribution(tool)
        try:
            yield
        finally:
            del self._contributions[name]
            await contribution.withdraw()

    def snapshot(self) -> ToolSet:
        """Return the tools as they are now."""
        ordered = dict(sorted(self._contributions.items()))
        specs = tuple(contribution.tool.spec for contribution in ordered.values())
        return ToolSet(specs, MappingProxyType(ordered), self._limiter)


class PromptRegistry:
    """The parts of the system prompt, in the order in which they were contributed."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    @asynccontextmanager
    async def contributed(self, name: str, text: str) -> AsyncGenerator[None, None]:
        """Have a part while the block runs. Neither entering nor leaving is a checkpoint.

        Raises:
            ConfigurationError: there is a part of that name, or the text is not Unicode text.
        """
        _require(is_text(text), f"prompt {name}: not Unicode text")
        _require(name not in self._parts, f"there is a prompt named {name} already")
        self._parts[name] = text
        try:
            yield
        finally:
            del self._parts[name]

    def snapshot(self) -> str:
        """Return the parts that are not empty, joined by a blank line."""
        return "\n\n".join(text for text in self._parts.values() if text)


# --- calls ----------------------------------------------------------------------------------


@frozen(eq=False)
class ToolSet:
    """The tools of one Step. Made by :meth:`ToolRegistry.snapshot` alone."""

    specs: tuple[ToolSpec, ...]
    """In the order of their names, whatever the order in which plugins came."""
    _contributions: Mapping[str, _Contribution] = field(alias="contributions")
    _limiter: trio.CapacityLimiter = field(alias="limiter")

    def find(self, name: str) -> Tool | None:
        """Return the tool of that name, also if it was withdrawn by now."""
        contribution = self._contributions.get(name)
        return None if contribution is None else contribution.tool

    async def run(self, call: ToolCall) -> Json | ErrorInfo:
        """Run a call and return its result, or the error that the model is to be told.

        A checkpoint before anything is begun, and none once the handler has returned: then its
        result comes back, even if the call was cancelled meanwhile. Otherwise cancelling it
        cancels an async handler, and leaves a sync one behind. What a handler raises that is no
        ``Exception`` (``SystemExit``) goes through.
        """
        await trio.lowlevel.checkpoint()
        contribution = self._contributions.get(call.name)
        if contribution is None or contribution.withdrawn:
            return ErrorInfo("unknown_tool", f"there is no tool named {call.name!r:.100}")
        try:
            arguments = strict_json.loads(call.arguments)
        except NotStrictJson as fault:
            return ErrorInfo("invalid_arguments", _cut(f"not strict JSON: {fault}"))
        fault = pair_fault(contribution.tool.schema, arguments)
        if fault is not None:
            return ErrorInfo("invalid_arguments", fault)
        running = contribution.begin()
        try:
            return await self._handle(contribution.tool, running, call, arguments)
        finally:
            contribution.end(running)

    async def _handle(
        self, tool: Tool, running: _Running, call: ToolCall, arguments: JsonValue
    ) -> Json | ErrorInfo:
        failure: BaseException | None = None
        try:
            with running.scope:
                return _answer(call, await self._returned(tool.handler, arguments))
        except BaseException as error:
            if _goes_through(error):
                raise
            # A call that is cancelled from outside is that, whatever its handler made of it.
            await trio.lowlevel.checkpoint_if_cancelled()
            failure = error
        return running.ending(tool, failure)

    async def _returned(self, handler: Callable[[JsonValue], Any], arguments: JsonValue) -> object:
        """Return what the handler returns."""
        looks = (handler, type(handler).__call__)
        if any(map(inspect.iscoroutinefunction, looks)):
            return await handler(arguments)
        result = await _run_in_thread(handler, arguments, self._limiter)
        # Some that are async do not look it: a lambda, a partial of an object.
        return await result if inspect.isawaitable(result) else result


def _answer(call: ToolCall, result: object) -> Json | ErrorInfo:
    """Return a handler's result as Json, if its completion can be recorded with it."""
    payload = {"step_id": _STEP_ID_ROOM, "call_id": call.id, "result": result}
    try:
        strict_json.dumps(payload)
        return Json.of(result)
    except NotStrictJson as fault:
        return ErrorInfo("handler_error", _cut(f"the result cannot be recorded: {fault}"))


class _ThreadCall:
    """A sync handler's call. Its result is either taken or dropped, never lost in between."""

    def __init__(self, handler: Callable[[JsonValue], Any], arguments: JsonValue) -> None:
        self._handler = handler
        self._arguments = arguments
        self._lock = threading.Lock()
        self._left = False
        self.results: list[object] = []
        """Empty or one."""

    def run(self) -> None:
        """Call the handler, in the worker thread."""
        result = self._handler(self._arguments)
        with self._lock:
            if not self._left:
                self.results.append(result)
                return
        _drop(result)

    def leave(self) -> bool:
        """Tell whether the handler has returned a result; if not, a later one is dropped."""
        with self._lock:
            self._left = True
        if self.results and inspect.isawaitable(self.results[0]):
            _drop(self.results.pop())  # what there is to do has not begun
        return bool(self.results)


def _drop(result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()  # else Python complains that nobody awaited it


async def _run_in_thread(
    handler: Callable[[JsonValue], Any], arguments: JsonValue, limiter: trio.CapacityLimiter
) -> object:
    """Return what a sync handler returns; leave it behind if cancelled before it has."""
    call = _ThreadCall(handler, arguments)
    try:
        await trio.to_thread.run_sync(call.run, abandon_on_cancel=True, limiter=limiter)
    except trio.Cancelled:
        if not call.leave():
            raise
    return call.results[0]


# --- errors in words --------------------------------------------------------------------------


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that a group is made of; of any other, itself."""
    if isinstance(error, BaseExceptionGroup):
        for part in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(part)
    else:
        yield error


def _goes_through(error: BaseException) -> bool:
    return any(not isinstance(leaf, (Exception, trio.Cancelled)) for leaf in _leaves(error))


def _told(error: BaseException) -> str:
    """Return an exception as a model is told of it; a group as what it is made of."""
    leaves = (leaf for leaf in _leaves(error) if not isinstance(leaf, trio.Cancelled))
    told = "; ".join(map(_told_alone, islice(leaves, _LEAVES_TOLD)))
    return _cut(told or "the handler cancelled itself")


def _told_alone(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as fault:  # noqa: BLE001 # a foreign class, whose text is its own affair
        text = f"(its text cannot be had: {type(fault).__name__})"
    name = type(error).__name__
    return f"{name}: {text[:MESSAGE_LENGTH]}" if text else name


def _cut(text: str) -> str:
    """Return the beginning of a text, as Unicode text."""
    clean = text[: MESSAGE_LENGTH + 1].encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MESSAGE_LENGTH else f"{clean[: MESSAGE_LENGTH - 1]}…"
