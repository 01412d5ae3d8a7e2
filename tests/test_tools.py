"""Tools: what may be contributed, what a call comes to, and which of two endings wins."""

from __future__ import annotations

import gc
import itertools
import math
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values, names
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from actors import strict_json, tools
from actors.codec import encode_event
from actors.errors import ConfigurationError
from actors.events import ToolExecutionCompleted
from actors.tools import (
    DEFAULT_TIMEOUT_S,
    MESSAGE_LENGTH,
    WITHDRAWN,
    PromptRegistry,
    Tool,
    ToolRegistry,
    ToolSet,
)
from actors.values import ErrorInfo, Json, ToolCall, ToolSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

TIMEOUT_S = 30


def tool(
    handler: Callable[[Any], Any],
    parameters: dict[str, Any] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    name: str = "probe",
) -> Tool:
    """Return a tool whose arguments may be anything unless told otherwise."""
    return Tool(ToolSpec(name, "", Json.of(parameters or {})), handler, timeout_s)


def call(arguments: str = "{}", name: str = "probe") -> ToolCall:
    return ToolCall("call-1", name, arguments)


@asynccontextmanager
async def offered(*contributed: Tool) -> AsyncGenerator[ToolSet, None]:
    """Have the tools contributed while the block runs; yield them as a Step has them."""
    registry = ToolRegistry()
    async with AsyncExitStack() as stack:
        for each in contributed:
            await stack.enter_async_context(registry.contributed(each))
        yield registry.snapshot()


async def stand_by(
    registry: ToolRegistry,
    each: Tool,
    withdrawal: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Contribute a tool until it is to be withdrawn."""
    async with registry.contributed(each):
        task_status.started()
        await withdrawal.wait()


async def outcome_of(
    handler: Callable[[Any], Any], arguments: str = "{}", **options: Any
) -> Json | ErrorInfo:
    """Return what one call of a handler comes to."""
    registry = ToolRegistry()
    async with registry.contributed(tool(handler, **options)):
        return await registry.snapshot().run(call(arguments))


def failed(handler: Callable[[Any], Any], arguments: str = "{}", **options: Any) -> ErrorInfo:
    """Return the error that one call comes to, in a run of its own."""
    outcome = trio.run(partial(outcome_of, handler, arguments, **options))
    assert isinstance(outcome, ErrorInfo)
    return outcome


async def echo(arguments: Any) -> Any:
    return arguments


def echo_in_thread(arguments: Any) -> Any:
    return arguments


both_ways = pytest.mark.parametrize("handler", [echo, echo_in_thread])


def raising(error: BaseException) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return handlers that raise, an async and a sync one."""

    async def asynchronous(_: Any) -> None:
        raise error

    def synchronous(_: Any) -> None:
        raise error

    return asynchronous, synchronous


# --- what a tool is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "nothing"},
        {"properties": {"a": {"minimum": "1"}}},
        {"pattern": "("},
        {"$ref": "#/$defs/gone"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
    ],
)
def test_parameters_are_a_schema(parameters: dict[str, Any]) -> None:
    """A tool whose parameters are no schema, or lead out of it, cannot be built."""
    with pytest.raises(ConfigurationError, match="tool probe: the parameters are no schema: "):
        tool(echo, parameters)


@pytest.mark.parametrize("timeout_s", [0, -1, 0.0, math.nan, True, "60", None])
def test_a_timeout_is_more_than_nothing(timeout_s: Any) -> None:
    """A timeout is a number of seconds above zero, infinity included."""
    with pytest.raises(ConfigurationError, match="tool probe: the timeout must be more than 0 s"):
        tool(echo, timeout_s=timeout_s)
    assert tool(echo, timeout_s=math.inf).timeout_s == math.inf


def test_a_tool_needs_a_spec_and_a_handler() -> None:
    """What cannot be named or called is no tool."""
    wrong: Any = None
    with pytest.raises(ConfigurationError, match="cannot be called"):
        tool(wrong)
    with pytest.raises(ConfigurationError, match="needs a ToolSpec"):
        Tool(wrong, echo)


# --- arguments ------------------------------------------------------------------------------------


@both_ways
@given(value=json_values)
def test_a_handler_has_the_arguments_and_gives_the_result(handler: Any, value: Any) -> None:
    """Any JSON value goes in and comes out as it is, also where it is no object."""
    json = Json.of(value)
    assert trio.run(outcome_of, handler, json.text) == json


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON: Expecting value"),
        ("{", "not JSON: "),
        ("{'a': 1}", "not JSON: "),
        ("{} {}", "not JSON: Extra data"),
        ("[NaN]", "/0: NaN is not a JSON number"),
        ('{"a": 1e400}', "/a: a number beyond any float"),
        ('{"a": 1, "a": 2}', "/a: a duplicate key"),
        ('{"a": "\\ud800"}', "/a: a lone surrogate"),
        ("[" * 129 + "]" * 129, "nested deeper than 128"),
    ],
)
def test_arguments_that_are_not_strict_json(text: str, told: str) -> None:
    """They are refused with the place, and the handler is not asked."""
    error = failed(raising(AssertionError())[0], text)
    assert error.code == "invalid_arguments"
    assert told in error.message
    assert len(error.message) <= MESSAGE_LENGTH


@pytest.mark.parametrize(
    ("parameters", "text", "told"),
    [
        ({"type": "object"}, "[]", "[] is not of type 'object'"),
        ({"type": "array", "items": {"type": "string"}}, "[1]", "/0: 1 is not of type 'string'"),
        ({"type": "string"}, "null", "None is not of type 'string'"),
        ({"required": ["q"]}, "{}", "'q' is a required property"),
        ({"properties": {"n": {"maximum": 5}}}, '{"n": 6}', "/n: 6 is greater than the maximum"),
        ({"additionalProperties": False}, '{"x": 1}', "Additional properties are not allowed"),
        ({"not": {}}, "1", "1 should not be valid"),
        ({"$defs": {"a": {"const": 1}}, "items": {"$ref": "#/$defs/a"}}, "[2]", "/0: 1 was exp"),
    ],
)
def test_arguments_against_the_schema(parameters: dict[str, Any], text: str, told: str) -> None:
    """They are refused in the reference validator's words, and the handler is not asked."""
    error = failed(raising(AssertionError())[0], text, parameters=parameters)
    assert error.code == "invalid_arguments"
    assert error.message.startswith(told)


async def test_a_handler_may_change_its_arguments() -> None:
    """They are its own: the next call has them as the model wrote them."""

    async def consume(arguments: Any) -> Any:
        return [arguments["words"].pop(), arguments.clear()][0]

    async with offered(tool(consume)) as offer:
        for _ in range(2):
            assert await offer.run(call('{"words": ["a", "b"]}')) == Json.of("b")


# --- handlers of every shape ----------------------------------------------------------------------


class Methods:
    """Handlers that are methods, or objects."""

    async def asynchronous(self, arguments: Any) -> Any:
        return await echo(arguments)

    def synchronous(self, arguments: Any) -> Any:
        return arguments


class CallableAsync:
    async def __call__(self, arguments: Any) -> Any:
        return await echo(arguments)


class CallableSync:
    def __call__(self, arguments: Any) -> Any:
        return arguments


def coroutine_of(arguments: Any) -> Awaitable[Any]:
    return echo(arguments)


async def second_of(_: Any, arguments: Any) -> Any:
    return arguments


@pytest.mark.parametrize(
    "handler",
    [
        Methods().asynchronous,
        Methods().synchronous,
        CallableAsync(),
        CallableSync(),
        partial(second_of, 1),
        partial(CallableAsync()),
        partial(CallableSync()),
        coroutine_of,
    ],
)
async def test_a_handler_of_any_shape(handler: Callable[[Any], Any]) -> None:
    """Async and sync handlers are told apart however they are wrapped."""
    assert await outcome_of(handler, "[1]") == Json.of([1])


async def test_only_sync_handlers_run_in_a_thread() -> None:
    """An async handler runs in the thread of the event loop, a sync one does not."""

    async def asynchronous(_: Any) -> bool:
        return threading.current_thread() is threading.main_thread()

    def synchronous(_: Any) -> bool:
        return threading.current_thread() is threading.main_thread()

    class Both:
        async def __call__(self, arguments: Any) -> bool:
            return await asynchronous(arguments)

    assert await outcome_of(asynchronous) == Json.of(value=True)
    assert await outcome_of(Both()) == Json.of(value=True)
    assert await outcome_of(synchronous) == Json.of(value=False)


# --- what cannot be a result ----------------------------------------------------------------------


async def async_generator(_: Any) -> AsyncGenerator[int, None]:
    yield 1


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (math.nan, "/result: nan is not a JSON number"),
        ([1, {"a": math.inf}], "/result/1/a: inf is not a JSON number"),
        (b"", "/result: a value of type bytes is not JSON"),
        ((), "/result: a value of type tuple is not JSON"),
        ({1: 2}, "/result: a key of type int is not a string"),
        ("\ud800", "/result: a lone surrogate is not Unicode text"),
        (object(), "/result: a value of type object is not JSON"),
        ("x" * 20_000_000, "bytes of JSON text, more than 16777216"),
    ],
)
def test_a_result_that_is_not_json(result: object, told: str) -> None:
    """It is a handler's error, async or sync, that names the place."""

    async def asynchronous(_: Any) -> object:
        return result

    for handler in (asynchronous, lambda _: result):  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType] # a lambda's argument has no type
        error = failed(handler)  # pyright: ignore[reportUnknownArgumentType] # nor here
        assert error.code == "handler_error"
        assert error.message.startswith("the result cannot be recorded: ")
        assert error.message.endswith(told)


def test_a_generator_is_no_result() -> None:
    """A handler that yields has its generator refused, and nothing is left running."""
    assert failed(async_generator).message.endswith("a value of type async_generator is not JSON")


@pytest.mark.parametrize("call_id", ["c", "c" * 1_000])
@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_result_that_comes_back_can_be_recorded(call_id: str, spare: int) -> None:
    """Up to the edge of what a payload may hold, and not beyond it."""
    step_id = "turn-1/step-1".ljust(64, "0")  # longer than any that there will be
    empty = encode_event(ToolExecutionCompleted(step_id, call_id, result=Json.of("")))[1]
    longest = strict_json.MAX_BYTES - len(empty)
    for result in ("x" * (longest - spare), nested(strict_json.MAX_DEPTH - 1 - spare)):
        answer = tools._answer(ToolCall(call_id, "probe", ""), result)  # pyright: ignore[reportPrivateUsage] # without a run for each
        if spare < 0:
            assert isinstance(answer, ErrorInfo)
            assert answer.code == "handler_error"
        else:
            assert isinstance(answer, Json)
            encode_event(ToolExecutionCompleted(step_id, call_id, result=answer))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_a_subclass_of_a_json_type_is_no_result() -> None:
    """A dict that may behave in its own way is refused like any other foreign object."""

    class Restless(dict[str, int]):
        pass

    async def handler(_: Any) -> Restless:
        return Restless(a=1)

    assert failed(handler).message.endswith("/result: a value of type Restless is not JSON")


# --- what a handler raises ------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise OSError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (ValueError(), "ValueError"),
        (KeyError("q"), "KeyError: 'q'"),
        (ValueError("half \ud800 a pair"), "ValueError: half \\ud800 a pair"),
        (Unspeakable(), "Unspeakable: (its text cannot be had: OSError)"),
        (StopIteration(), "RuntimeError: coroutine raised StopIteration"),
        (TimeoutError("slow"), "TimeoutError: slow"),
        (
            ExceptionGroup("several", [ValueError("a"), ExceptionGroup("more", [OSError("b")])]),
            "ValueError: a; OSError: b",
        ),
    ],
)
def test_a_handlers_exception_is_told(error: Exception, told: str) -> None:
    """By its type and text, Unicode-clean; a group by what is in it."""
    for handler in raising(error):
        assert failed(handler) == ErrorInfo("handler_error", told)


@given(st.text(st.characters()), st.integers(1, 5_000))
def test_what_is_told_is_short_unicode_text(text: str, repeated: int) -> None:
    """Whatever an exception says, an error of it can be built, and begins as the text does."""
    message = failed(raising(ValueError(text * repeated))[0]).message
    assert len(message) <= MESSAGE_LENGTH
    clean = (text * repeated)[:MESSAGE_LENGTH].encode("utf-8", "backslashreplace").decode()
    assert f"ValueError: {clean}".startswith(message.removesuffix("…"))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_the_process_goes_through(error: BaseException) -> None:
    """An exit or an interrupt is no tool's error."""
    for handler in raising(error):
        with pytest.raises(BaseException) as caught:  # noqa: PT011 # in a group or alone
            trio.run(outcome_of, handler)
        assert _only(caught.value) is error


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_process_goes_through_from_a_group(kind: type[BaseException]) -> None:
    """Also beside an ordinary exception."""

    async def handler(_: Any) -> None:
        raise BaseExceptionGroup("", [ValueError(), kind()])

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(outcome_of, handler)
    assert caught.group_contains(kind)


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] # of anything
    return error  # pyright: ignore[reportUnknownVariableType] # of anything


async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    """A handler that raises a Cancelled it had kept is told of as any that fails."""
    kept: list[BaseException] = []

    async def handler(_: Any) -> None:
        if not kept:
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled as cancelled:
                    kept.append(cancelled)
                    raise
        raise kept[0]

    outcome = await outcome_of(handler)
    assert outcome == ErrorInfo("handler_error", "the handler cancelled itself")


# --- timeouts -------------------------------------------------------------------------------------


async def test_a_call_may_take_its_time_and_no_longer(autojump_clock: MockClock) -> None:
    """An async handler is cancelled when its timeout is over, and not a moment before."""

    async def take(arguments: Any) -> str:
        await trio.sleep(arguments)
        return "done"

    async with offered(tool(take, timeout_s=5)) as offer:
        began = trio.current_time()
        assert await offer.run(call("6")) == ErrorInfo("tool_timeout", "no result within 5 s")
        assert trio.current_time() == pytest.approx(began + 5)
        assert await offer.run(call("4.9")) == Json.of("done")


async def test_infinity_is_no_timeout(autojump_clock: MockClock) -> None:
    """A handler without a timeout is waited for as long as it takes."""

    async def handler(_: Any) -> None:
        await trio.sleep(10**9)

    assert await outcome_of(handler, timeout_s=math.inf) == Json.of(None)


async def test_an_error_that_comes_too_late_is_a_timeout(autojump_clock: MockClock) -> None:
    """What a handler raises while it is being cancelled is told besides."""

    async def handler(_: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("could not close")

    assert await outcome_of(handler, timeout_s=5) == ErrorInfo(
        "tool_timeout", "no result within 5 s; while it was stopped: OSError: could not close"
    )


async def test_a_long_error_that_comes_too_late_is_cut(autojump_clock: MockClock) -> None:
    """The reason and the error together are no longer than what a model is told of one."""

    async def handler(_: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("x" * MESSAGE_LENGTH)

    outcome = await outcome_of(handler, timeout_s=5)
    assert isinstance(outcome, ErrorInfo)
    assert outcome.message.startswith("no result within 5 s; while it was stopped: OSError: xx")
    assert len(outcome.message) == MESSAGE_LENGTH


async def test_an_error_before_the_deadline_is_seen_is_the_handlers(
    mock_clock: MockClock,
) -> None:
    """A handler that was never cancelled raised by itself, however late."""

    async def handler(_: Any) -> None:
        mock_clock.jump(1_000)
        raise OSError("slow and wrong")

    assert await outcome_of(handler) == ErrorInfo("handler_error", "OSError: slow and wrong")


# --- which ending wins ----------------------------------------------------------------------------


async def _go_on(_: BaseException) -> None:
    await trio.lowlevel.checkpoint_if_cancelled()


async def _raise(_: BaseException) -> None:
    raise OSError("could not close")


async def _raise_group(cancelled: BaseException) -> None:
    raise BaseExceptionGroup("", [cancelled, OSError("could not close")])


async def _return(_: BaseException) -> None:
    return


CAUSES = ("deadline", "withdrawal", "outside")
ENDINGS = (_go_on, _raise, _raise_group, _return)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "causes",
    [order for n in (1, 2, 3) for order in itertools.permutations(CAUSES, n)],
    ids="-".join,
)
async def test_endings_are_not_confused(
    causes: tuple[str, ...],
    ending: Callable[[BaseException], Awaitable[None]],
    mock_clock: MockClock,
) -> None:
    """A result wins over all, then a cancellation from outside, then what came first."""
    cancelled, may_end = trio.Event(), trio.Event()

    async def handler(_: Any) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            cancelled.set()
            with trio.CancelScope(shield=True):
                await may_end.wait()
            await ending(error)
        return "done all the same"

    registry, outcomes = ToolRegistry(), list[Json | ErrorInfo]()
    outside, withdrawal = trio.CancelScope(), trio.Event()

    async def run(offer: ToolSet) -> None:
        with outside:
            outcomes.append(await offer.run(call()))

    async with trio.open_nursery() as nursery:
        await nursery.start(stand_by, registry, tool(handler, timeout_s=5), withdrawal)
        nursery.start_soon(run, registry.snapshot())
        await wait_all_tasks_blocked()
        for cause in causes:
            if cause == "deadline":
                mock_clock.jump(6)
            elif cause == "withdrawal":
                withdrawal.set()
            else:
                outside.cancel()
            await wait_all_tasks_blocked()
            assert cancelled.is_set()
        may_end.set()
        withdrawal.set()
    assert outcomes == expected(causes, ending)
    # Whoever looks after a call that was cancelled and yet returned still sees the cancellation.
    assert outside.cancelled_caught == ("outside" in causes and ending is not _return)


def expected(causes: tuple[str, ...], ending: object) -> list[Json | ErrorInfo]:
    if ending is _return:
        return [Json.of("done all the same")]
    if "outside" in causes:
        return []
    late = "; while it was stopped: OSError: could not close" if ending is not _go_on else ""
    if causes[0] == "deadline":
        return [ErrorInfo("tool_timeout", f"no result within 5 s{late}")]
    return [ErrorInfo("handler_error", f"{WITHDRAWN}{late}")]


async def test_what_was_returned_is_not_lost_to_a_cancellation() -> None:
    """Between a handler's return and that of the call nothing can cancel the result."""
    scope = trio.CancelScope()

    async def handler(arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        scope.cancel()
        return arguments

    async with offered(tool(handler)) as offer:
        with scope:
            assert await offer.run(call("[1]")) == Json.of([1])
            assert scope.cancel_called


@pytest.mark.parametrize("name", ["probe", "nothing"])
@pytest.mark.parametrize("arguments", ["{}", "{"])
async def test_a_call_is_a_checkpoint(name: str, arguments: str) -> None:
    """Cancelled before it is begun, nothing of a call is; whatever it would come to."""
    called: list[Any] = []
    async with offered(tool(called.append)) as offer:
        with assert_checkpoints():
            await offer.run(call(arguments, name))
        called.clear()
        with trio.CancelScope() as scope:
            scope.cancel()
            await offer.run(call(arguments, name))
        assert scope.cancelled_caught
        assert not called


# --- sync handlers --------------------------------------------------------------------------------


@define(eq=False)
class Blocked:
    """A sync handler that blocks until it is let on, and then does something."""

    then: Callable[[], Any] = lambda: "late"
    entered: threading.Event = field(factory=threading.Event)
    go: threading.Event = field(factory=threading.Event)
    left: threading.Event = field(factory=threading.Event)

    def __call__(self, _: Any) -> Any:
        self.entered.set()
        try:
            assert self.go.wait(TIMEOUT_S)
            return self.then()
        finally:
            self.left.set()

    async def is_entered(self) -> None:
        assert await trio.to_thread.run_sync(self.entered.wait, TIMEOUT_S)

    async def leave(self) -> None:
        """Let it on, and wait until its thread has gone back to where it came from."""
        self.go.set()
        assert await trio.to_thread.run_sync(self.left.wait, TIMEOUT_S)


async def test_a_blocked_handler_does_not_hold_up_the_loop() -> None:
    """While a sync handler blocks, other calls are served; its result comes when it is done."""
    blocked = Blocked(lambda: "done")
    outcomes: list[Json | ErrorInfo] = []

    async def run_blocked(offer: ToolSet) -> None:
        outcomes.append(await offer.run(call(name="blocked")))

    async with offered(tool(blocked, name="blocked"), tool(echo_in_thread)) as offer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_blocked, offer)
            await blocked.is_entered()
            assert await offer.run(call("[2]")) == Json.of([2])
            assert not outcomes
            blocked.go.set()
        assert outcomes == [Json.of("done")]


def _late_error() -> Any:
    raise OSError("late")


@pytest.mark.parametrize("then", [lambda: "late", _late_error, lambda: echo("late")])
async def test_a_blocked_handler_is_left_behind(
    then: Callable[[], Any], mock_clock: MockClock
) -> None:
    """When its time is up the call has ended; what the handler then returns is dropped."""
    blocked = Blocked(then)
    outcomes: list[Json | ErrorInfo] = []

    async def run(offer: ToolSet) -> None:
        outcomes.append(await offer.run(call()))

    async with offered(tool(blocked, timeout_s=5)) as offer, trio.open_nursery() as nursery:
        nursery.start_soon(run, offer)
        await blocked.is_entered()
        mock_clock.jump(6)
        await wait_all_tasks_blocked()
        assert outcomes == [ErrorInfo("tool_timeout", "no result within 5 s")]
        await blocked.leave()
        await wait_all_tasks_blocked()
    assert len(outcomes) == 1
    gc.collect()  # a coroutine that nobody had awaited would be complained about


async def test_a_cancelled_sync_handler_is_left_behind() -> None:
    """A call that is cancelled from outside does not wait for its thread."""
    blocked = Blocked()
    async with offered(tool(blocked)) as offer, trio.open_nursery() as nursery:
        nursery.start_soon(offer.run, call())
        await blocked.is_entered()
        nursery.cancel_scope.cancel()
    assert not blocked.left.is_set()
    await blocked.leave()


async def test_withdrawing_a_tool_does_not_wait_for_a_thread() -> None:
    """A sync handler cannot be stopped: its tool goes, and its call is answered, without it."""
    blocked, withdrawal = Blocked(), trio.Event()
    registry, outcomes = ToolRegistry(), list[Json | ErrorInfo]()

    async def run(offer: ToolSet) -> None:
        outcomes.append(await offer.run(call()))

    async with trio.open_nursery() as nursery:
        await nursery.start(stand_by, registry, tool(blocked), withdrawal)
        nursery.start_soon(run, registry.snapshot())
        await blocked.is_entered()
        withdrawal.set()
    assert outcomes == [ErrorInfo("handler_error", WITHDRAWN)]
    assert not blocked.left.is_set()
    await blocked.leave()


@pytest.mark.parametrize("in_coroutine", [False, True])
async def test_a_result_beats_a_cancellation_that_comes_before_its_report(
    in_coroutine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sync handler returned is taken though the event loop had not heard of it yet.

    A coroutine that it returned has not begun: that is dropped.
    """
    begun, returned = list[int](), threading.Event()

    async def begin() -> None:
        begun.append(1)

    blocked = Blocked(begin if in_coroutine else lambda: "done")
    run = tools._ThreadCall.run  # pyright: ignore[reportPrivateUsage] # to know when it has a result

    def run_and_tell(thread_call: Any) -> None:
        run(thread_call)
        returned.set()

    monkeypatch.setattr(tools._ThreadCall, "run", run_and_tell)  # pyright: ignore[reportPrivateUsage] # as above
    outcomes, scope = list[Json | ErrorInfo](), trio.CancelScope()

    async def run_call(offer: ToolSet) -> None:
        with scope:
            outcomes.append(await offer.run(call()))

    async with offered(tool(blocked)) as offer, trio.open_nursery() as nursery:
        nursery.start_soon(run_call, offer)
        await blocked.is_entered()
        blocked.go.set()
        assert returned.wait(TIMEOUT_S)  # blocks the loop, which so hears of nothing
        scope.cancel()
    assert outcomes == ([] if in_coroutine else [Json.of("done")])
    assert not begun
    gc.collect()


async def test_threads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every thread taken a sync call waits within its timeout; async ones are served."""
    monkeypatch.setattr(tools, "HANDLER_THREADS", 1)
    blocked = Blocked()
    scope = trio.CancelScope()

    async def run_cancelled(offer: ToolSet) -> None:
        with scope:
            await offer.run(call())

    waiting, served = tool(echo_in_thread, name="waiting", timeout_s=0.01), tool(echo, name="loop")
    async with offered(tool(blocked), waiting, served) as offer, trio.open_nursery() as nursery:
        nursery.start_soon(run_cancelled, offer)
        await blocked.is_entered()
        scope.cancel()  # the thread it left behind counts still
        assert await offer.run(call(name="waiting")) == ErrorInfo(
            "tool_timeout", "no result within 0.01 s"
        )
        assert await offer.run(call(name="loop")) == Json.of({})
        await blocked.leave()


# --- the registry ---------------------------------------------------------------------------------


@given(st.lists(names, unique=True, max_size=6))
def test_tools_are_in_the_order_of_their_names(order: list[str]) -> None:
    """Whatever the order in which plugins came, a model is told of the same tools alike."""

    async def main() -> None:
        async with offered(*(tool(echo, name=name) for name in order)) as offer:
            assert [spec.name for spec in offer.specs] == sorted(order)
            for name in order:
                found = offer.find(name)
                assert found is not None
                assert found.spec.name == name
                assert await offer.run(call("[0]", name)) == Json.of([0])

    trio.run(main)


async def test_a_tool_that_is_not_there() -> None:
    """A call of it is told so, and no name is too odd for that."""
    async with offered(tool(echo)) as offer:
        assert offer.find("nothing") is None
        for name in ("nothing", "\n", "x" * 1_000_000):
            outcome = await offer.run(call(name=name))
            assert isinstance(outcome, ErrorInfo)
            assert outcome.code == "unknown_tool"
            assert outcome.message.startswith("there is no tool named ")
            assert len(outcome.message) < 150


async def test_a_name_is_taken_once() -> None:
    """A second tool of a name is refused; the first stays."""
    registry = ToolRegistry()
    async with registry.contributed(tool(echo)):
        with pytest.raises(ConfigurationError, match="there is a tool named probe already"):
            async with registry.contributed(tool(echo_in_thread)):
                pytest.fail("it was entered")
        found = registry.snapshot().find("probe")
        assert found is not None
        assert found.handler is echo
    async with registry.contributed(tool(echo_in_thread)):
        assert len(registry.snapshot().specs) == 1
    assert registry.snapshot().specs == ()


async def test_a_withdrawn_tool_is_unknown_to_the_steps_that_had_it() -> None:
    """A snapshot stays as it was, but a tool that is gone does not run."""
    registry, called = ToolRegistry(), list[Any]()
    before = registry.snapshot()
    async with registry.contributed(tool(called.append)):
        during = registry.snapshot()
    async with registry.contributed(tool(echo)):  # of the same name, and another tool
        assert before.specs == ()
        assert [spec.name for spec in during.specs] == ["probe"]
        for offer in (before, during):
            outcome = await offer.run(call())
            assert isinstance(outcome, ErrorInfo)
            assert outcome.code == "unknown_tool"
    assert not called


async def test_withdrawing_a_tool_waits_for_its_calls() -> None:
    """What a handler uses outlives it: its clean-up is over before the contribution is left."""
    registry, order, may_end = ToolRegistry(), list[str](), trio.Event()
    withdrawal, outcomes = trio.Event(), list[Json | ErrorInfo]()

    async def handler(arguments: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await may_end.wait()
            order.append(f"call {arguments} ended")

    async def plugin(task_status: trio.TaskStatus[None]) -> None:
        await stand_by(registry, tool(handler), withdrawal, task_status)
        order.append("left")

    async def run(n: int) -> None:
        outcomes.append(await registry.snapshot().run(call(str(n))))

    async with trio.open_nursery() as nursery:
        await nursery.start(plugin)
        for n in range(2):
            nursery.start_soon(run, n)
        await wait_all_tasks_blocked()
        withdrawal.set()
        await wait_all_tasks_blocked()
        assert registry.snapshot().specs == ()
        assert not order
        may_end.set()
    assert sorted(order[:2]) == ["call 0 ended", "call 1 ended"]
    assert order[2:] == ["left"]
    assert outcomes == [ErrorInfo("handler_error", WITHDRAWN)] * 2


async def test_withdrawing_waits_no_longer_than_it_may(autojump_clock: MockClock) -> None:
    """Whoever leaves the contribution bounds the wait; the tool is gone, its call still told so."""
    registry, may_end = ToolRegistry(), trio.Event()
    outcomes: list[Json | ErrorInfo] = []

    async def handler(_: Any) -> None:
        with trio.CancelScope(shield=True):
            await may_end.wait()
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        outcomes.append(await registry.snapshot().run(call()))

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(5) as scope:
            async with registry.contributed(tool(handler, timeout_s=math.inf)):
                nursery.start_soon(run)
                await wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert registry.snapshot().specs == ()
        may_end.set()
    assert outcomes == [ErrorInfo("handler_error", WITHDRAWN)]


async def test_a_handler_may_withdraw_its_own_tool() -> None:
    """A tool that unloads its own plugin and waits for that is cancelled, not stuck."""
    registry, withdrawal, gone = ToolRegistry(), trio.Event(), trio.Event()

    async def handler(_: Any) -> None:
        withdrawal.set()
        await gone.wait()

    async def plugin(task_status: trio.TaskStatus[None]) -> None:
        await stand_by(registry, tool(handler), withdrawal, task_status)
        gone.set()

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(plugin)
            outcome = await registry.snapshot().run(call())
    assert outcome == ErrorInfo("handler_error", WITHDRAWN)


# --- prompts --------------------------------------------------------------------------------------


@given(st.dictionaries(names, st.sampled_from(["", "one", "two\n", " "]), max_size=5))
def test_prompts_are_joined_in_their_order(parts: dict[str, str]) -> None:
    """Those that say something, by a blank line; each leaves by itself."""

    async def main() -> None:
        registry = PromptRegistry()
        texts: list[str] = []
        async with AsyncExitStack() as stack:
            for name, text in parts.items():
                await stack.enter_async_context(registry.contributed(name, text))
                texts.append(text)
                assert registry.snapshot() == "\n\n".join(filter(None, texts))
        assert registry.snapshot() == ""

    trio.run(main)


async def test_a_prompt_is_text_under_a_name_of_its_own() -> None:
    """A second part of a name, and one that no request could hold, are refused."""
    registry = PromptRegistry()
    wrong: Any = b"bytes"
    async with registry.contributed("persona", "be kind"):
        for name, text in (("persona", "be rude"), ("other", "\ud800"), ("other", wrong)):
            with pytest.raises(ConfigurationError):
                async with registry.contributed(name, text):
                    pytest.fail("it was entered")
        assert registry.snapshot() == "be kind"
    async with registry.contributed("persona", "be brief"):
        assert registry.snapshot() == "be brief"
