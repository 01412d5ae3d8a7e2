"""Steps with tools and hooks: what is recorded, what the model sees, what never runs twice."""

from __future__ import annotations

import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from agent_support import (
    ScriptedAdapter,
    assert_nothing_owed,
    cut_after,
    recorded_code,
    routes_to,
    says,
    scripted,
    tags,
)
from attrs import define, evolve, field

from actors.agent import CANCELLED, Agent
from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    InlineMessages,
    ModelRequestRecorded,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from actors.kernel.hooks import Hooks
from actors.routes import ModelResponse
from actors.session_log import open_session_log
from actors.strict_json import MAX_BYTES
from actors.tools import PromptRegistry, Tool, ToolRegistry
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
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from actors.session_log import SessionLog
    from actors.turn_hooks import Outcome

NUMBER = Json.of({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def tool(name: str, handler: Callable[..., Any], timeout_s: float = 60.0) -> Tool:
    return Tool(ToolSpec(name, f"does {name}", NUMBER), handler, timeout_s)


def returning(result: object) -> Callable[[object], object]:
    def handler(_arguments: object) -> object:
        return result

    return handler


def wants(*asked: tuple[str, str, str]) -> ModelResponse:
    """A response that calls tools, each as (id, name, arguments)."""
    made = tuple(ToolCall(*each) for each in asked)
    return ModelResponse(AssistantMessage("", made), "tool_calls")


@define(eq=False)
class Bench:
    """An agent with tools and hooks on a session in memory."""

    log: SessionLog
    adapter: ScriptedAdapter
    tools: ToolRegistry = field(factory=ToolRegistry)
    prompts: PromptRegistry = field(factory=PromptRegistry)
    hooks: Hooks = field(factory=Hooks)
    stack: AsyncExitStack = field(factory=AsyncExitStack)

    async def add(self, *tools: Tool) -> None:
        for each in tools:
            await self.stack.enter_async_context(self.tools.contributed(each))

    def on(self, hook: Any, listener: Callable[..., Any]) -> None:
        self.hooks.add(hook, listener, lambda: True)

    async def turn(self, invocation_id: str = "a") -> None:
        agent = Agent(
            self.log, routes_to(self.adapter), self.tools, self.prompts, self.hooks, max_steps=4
        )
        await agent.run_turn(invocation_id, "hello", why_cut=lambda: CANCELLED)

    def outcomes(self) -> list[Json | ErrorInfo]:
        """What the session's calls came to, in order."""
        events = [envelope.event for envelope in self.log.snapshot()]
        completed = [event for event in events if isinstance(event, ToolExecutionCompleted)]
        found = [event.result if event.error is None else event.error for event in completed]
        return [each for each in found if each is not None]

    def codes(self) -> list[str]:
        """The codes of the outcomes that are errors, and ``ok`` for the others."""
        return [each.code if isinstance(each, ErrorInfo) else "ok" for each in self.outcomes()]


@asynccontextmanager
async def bench(*scripts: list[Any]) -> AsyncGenerator[Bench, None]:
    async with open_session_log("default") as log:
        here = Bench(log, scripted(*scripts))
        async with here.stack:
            yield here


# --- tools --------------------------------------------------------------------------------------


async def test_a_turn_with_tools() -> None:
    """Calls run in the model's order between their two records; the model sees what came of each.

    Async and sync handlers alike, a result that is a string as it is, any other as its JSON.
    """
    ran: list[int] = []

    async def double(arguments: dict[str, int]) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        ran.append(arguments["n"])
        return {"doubled": 2 * arguments["n"]}

    def spell(arguments: dict[str, int]) -> str:
        ran.append(arguments["n"])
        assert threading.current_thread() is not threading.main_thread()
        return "five"

    asked = wants(("c1", "double", '{"n": 4}'), ("c2", "spell", '{"n":5}'))
    async with bench([asked], [says("done")]) as here:
        await here.add(tool("spell", spell), tool("double", double))
        await here.turn()
        assert ran == [4, 5]
        assert tags(here.log.snapshot())[2:] == [
            "assistant_message_committed",
            *("tool_execution_started", "tool_execution_completed") * 2,
            "model_request_recorded",
            "assistant_message_committed",
        ]
        started = here.log.snapshot()[3].event
        assert started == ToolExecutionStarted("turn-1/step-1", asked.message.tool_calls[0])
        first, second = here.adapter.requests
        assert [spec.name for spec in first.tools] == ["double", "spell"]
        request = here.log.snapshot()[1].event
        assert isinstance(request, ModelRequestRecorded)
        assert request.tools == first.tools
        assert isinstance(request.messages, HistoryRef)
        assert second.messages[-2:] == (
            ToolMessage('{"doubled":8}', "c1"),
            ToolMessage("five", "c2"),
        )


async def test_every_refusal_is_told_to_the_model() -> None:
    """A call that cannot be run is started and answered with its error, and the Turn goes on."""

    def crash(_arguments: object) -> None:
        raise LookupError("nothing there")

    async def hang(_arguments: object) -> None:
        await trio.sleep_forever()

    asked = wants(
        ("c1", "nope", "{}"),
        ("c2", "crash", "{not json"),
        ("c3", "crash", '{"n": "one"}'),
        ("c4", "crash", '{"n": 1}'),
        ("c5", "hang", '{"n": 1}'),
    )
    async with bench([asked], [says("sorry")]) as here:
        await here.add(tool("crash", crash), tool("hang", hang, timeout_s=0.001))
        await here.turn()
        assert here.codes() == [
            "unknown_tool",
            "invalid_arguments",
            "invalid_arguments",
            "handler_error",
            "tool_timeout",
        ]
        assert tags(here.log.snapshot()).count("tool_execution_started") == 5
        told = [m for m in here.adapter.requests[1].messages if isinstance(m, ToolMessage)]
        assert json.loads(told[3].content)["error"]["message"] == "LookupError: nothing there"
        assert recorded_code(here.log.snapshot()) is None


async def test_a_result_that_fits_no_event_is_an_error() -> None:
    """A result too large to be recorded is answered as the handler's error."""

    def huge(_arguments: object) -> str:
        return "x" * (MAX_BYTES - 100)

    async with bench([wants(("c1", "huge", '{"n":1}'))], [says("done")]) as here:
        await here.add(tool("huge", huge))
        await here.turn()
        assert here.codes() == ["handler_error"]


async def test_repeated_ids_are_made_unique() -> None:
    """An id that the model repeats, in one answer or in the session, is replaced by a new one."""

    def echo(arguments: dict[str, int]) -> int:
        return arguments["n"]

    asked = wants(("0", "echo", '{"n":1}'), ("0", "echo", '{"n":2}'), ("1", "echo", '{"n":3}'))
    async with bench([asked], [asked], [says("done")]) as here:
        await here.add(tool("echo", echo))
        await here.turn()
        events = [envelope.event for envelope in here.log.snapshot()]
        ids = [
            call.id
            for event in events
            if isinstance(event, AssistantMessageCommitted)
            for call in event.message.tool_calls
        ]
        assert len(ids) == len(set(ids)) == 6
        assert (ids[0], ids[2]) == ("0", "1")  # those that were new stay as they were
        assert [each.text for each in here.outcomes() if isinstance(each, Json)] == list("123123")


async def test_tools_and_prompts_are_taken_anew_at_each_step() -> None:
    """What comes or goes during a Step counts from the next one on."""
    async with bench([wants(("c1", "add", '{"n":1}'))], [says("done")]) as here:

        async def add(_arguments: object) -> str:
            await here.add(tool("late", add))
            await here.stack.enter_async_context(here.prompts.contributed("late", "be kind"))
            return "added"

        await here.add(tool("add", add))
        await here.turn()
        first, second = here.adapter.requests
        assert [spec.name for spec in first.tools] == ["add"]
        assert [spec.name for spec in second.tools] == ["add", "late"]
        assert (first.system_prompt, second.system_prompt) == ("", "be kind")


# --- a Turn with tools that is cut short ----------------------------------------------------------


async def test_cut_anywhere_nothing_runs_twice_and_nothing_stays_open() -> None:
    """Cancelled at each of its checkpoints, a Turn leaves each call answered, and truly so.

    A call whose handler returned is recorded with its result; one that was started otherwise
    is ``interrupted``, one that was not ``not_executed``. The next Turn works.
    """
    asked = wants(("c1", "count", '{"n":1}'), ("c2", "count", '{"n":2}'))
    steps_n = 0
    seen: set[tuple[str, ...]] = set()
    while True:
        returned: list[int] = []

        async def count(arguments: dict[str, int], returned: list[int] = returned) -> int:
            await trio.lowlevel.checkpoint()
            returned.append(arguments["n"])
            return arguments["n"]

        async with bench([asked], [says("done")], [says("again")]) as here:
            await here.add(tool("count", count))
            with trio.CancelScope() as scope, cut_after(steps_n, scope):
                await here.turn()
            if not scope.cancelled_caught and recorded_code(here.log.snapshot()) is None:
                break
            snapshot = here.log.snapshot()
            assert_nothing_owed(snapshot)
            outcomes = here.outcomes()
            results = [int(each.text) for each in outcomes if isinstance(each, Json)]
            assert results == returned
            started = tags(snapshot).count("tool_execution_started")
            codes = here.codes()
            assert codes[len(results) :] == (
                ["interrupted"] * (started - len(results))
                + ["not_executed"] * (len(outcomes) - started)
            )
            seen.add(tuple(codes))
            await here.turn("b")
            assert_nothing_owed(here.log.snapshot())
        steps_n += 1
    assert seen == {
        (),
        ("not_executed", "not_executed"),
        ("interrupted", "not_executed"),
        ("ok", "not_executed"),
        ("ok", "interrupted"),
        ("ok", "ok"),
    }


async def test_a_sync_handler_is_left_behind_by_a_cancellation() -> None:
    """A cancelled Turn does not wait for a thread; what that returns late goes nowhere."""
    entered, release, left = trio.Event(), threading.Event(), threading.Event()

    def block(_arguments: object) -> str:
        trio.from_thread.run_sync(entered.set)
        release.wait(60)
        left.set()
        return "late"

    async with bench([wants(("c1", "block", '{"n":1}'))], [says("next")]) as here:
        await here.add(tool("block", block))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.turn)
            await entered.wait()
            nursery.cancel_scope.cancel()
        assert here.codes() == ["interrupted"]
        assert recorded_code(here.log.snapshot()) == "cancelled"
        events_n = len(here.log.snapshot())
        release.set()
        assert await trio.to_thread.run_sync(left.wait, 60)
        await here.turn("b")
        assert len(here.log.snapshot()) == events_n + 3  # input, request, answer


# --- hooks ----------------------------------------------------------------------------------------


async def test_hooks_are_called_around_everything() -> None:
    """The four hooks come in the order of a Step, and see what is true at that point."""
    told: list[str] = []

    def count(_arguments: object) -> int:
        told.append("handler")
        return 1

    async with bench([wants(("c1", "count", '{"n":1}'))], [says("done")]) as here:

        async def pre_step(draft: StepDraft, following: Callable[..., Any]) -> StepDraft:
            told.append(f"pre-step {draft.step_id} {len(here.log.snapshot())}")
            return await following(draft)

        async def post_step(answer: StepAnswer) -> None:
            told.append(f"post-step {answer.finish_reason} {len(here.log.snapshot())}")

        async def pre_execute(draft: CallDraft, following: Callable[..., Any]) -> CallDraft:
            told.append(f"pre-execute {draft.call.id} {len(here.log.snapshot())}")
            return await following(draft)

        async def post_execute(done: CallOutcome, following: Callable[..., Any]) -> Outcome:
            told.append(f"post-execute {done.outcome} {len(here.log.snapshot())}")
            return await following(done)

        await here.add(tool("count", count))
        here.on(PRE_STEP, pre_step)
        here.on(POST_STEP, post_step)
        here.on(PRE_EXECUTE, pre_execute)
        here.on(POST_EXECUTE, post_execute)
        await here.turn()
    assert told == [
        "pre-step turn-1/step-1 1",
        "post-step tool_calls 3",
        "pre-execute c1 3",
        "handler",
        "post-execute Json(text='1') 4",
        "pre-step turn-1/step-2 5",
        "post-step stop 7",
    ]


async def test_pre_step_changes_what_the_model_is_given() -> None:
    """What a listener makes of the draft is what is recorded and sent; messages then inline."""

    async def change(draft: StepDraft, following: Callable[..., Any]) -> StepDraft:
        changed = evolve(
            draft,
            system_prompt="be brief",
            tools=(),
            messages=(UserMessage("something else"),),
        )
        return await following(changed)

    asked = wants(("c1", "count", '{"n":1}'))
    async with bench([asked], [says("done")]) as here:
        await here.add(tool("count", returning(1)))
        here.on(PRE_STEP, change)
        await here.turn()
        request = here.log.snapshot()[1].event
        assert isinstance(request, ModelRequestRecorded)
        assert request.messages == InlineMessages((UserMessage("something else"),))
        sent = here.adapter.requests[0]
        assert (sent.system_prompt, sent.tools) == ("be brief", ())
        assert sent.messages == (UserMessage("something else"),)
        # A tool that was taken away cannot be called.
        assert here.codes() == ["unknown_tool"]


async def test_an_equal_history_is_recorded_by_reference() -> None:
    """A listener that rebuilds the same messages costs the log nothing."""

    async def rebuild(draft: StepDraft, following: Callable[..., Any]) -> StepDraft:
        return await following(evolve(draft, messages=(*draft.messages[:-1], draft.messages[-1])))

    async with bench([says("done")]) as here:
        here.on(PRE_STEP, rebuild)
        await here.turn()
        request = here.log.snapshot()[1].event
        assert isinstance(request, ModelRequestRecorded)
        assert isinstance(request.messages, HistoryRef)


async def test_pre_execute_changes_or_refuses_a_call() -> None:
    """A call is run as a listener has it and recorded as the model made it; or refused unrun."""
    ran: list[int] = []

    def count(arguments: dict[str, int]) -> int:
        ran.append(arguments["n"])
        return arguments["n"]

    async def decide(draft: CallDraft, following: Callable[..., Any]) -> CallDraft | ErrorInfo:
        if draft.call.id == "c2":
            return ErrorInfo("denied", "not allowed")
        return await following(evolve(draft, call=evolve(draft.call, arguments='{"n":10}')))

    asked = wants(("c1", "count", '{"n":1}'), ("c2", "count", '{"n":2}'))
    async with bench([asked], [says("done")]) as here:
        await here.add(tool("count", count))
        here.on(PRE_EXECUTE, decide)
        await here.turn()
        assert ran == [10]
        assert here.outcomes() == [Json("10"), ErrorInfo("denied", "not allowed")]
        assert here.log.snapshot()[3].event == ToolExecutionStarted(
            "turn-1/step-1", asked.message.tool_calls[0]
        )
        assert here.log.snapshot()[5].event == ToolExecutionStarted(
            "turn-1/step-1", asked.message.tool_calls[1]
        )


async def test_post_execute_changes_what_is_recorded() -> None:
    """What leaves the last listener is recorded, and nothing else of the result is."""

    async def redact(done: CallOutcome, following: Callable[..., Any]) -> Outcome:
        outcome = await following(done)
        assert isinstance(outcome, Json)
        return Json.of("hidden")

    async with bench([wants(("c1", "count", '{"n":1}'))], [says("done")]) as here:
        await here.add(tool("count", returning("secret")))
        here.on(POST_EXECUTE, redact)
        await here.turn()
        assert here.outcomes() == [Json('"hidden"')]


@pytest.mark.parametrize(
    ("hook", "codes", "returns"),
    [
        (PRE_STEP, [], False),
        (PRE_STEP, [], True),
        (POST_STEP, ["not_executed"], False),
        (PRE_EXECUTE, ["not_executed"], False),
        (PRE_EXECUTE, ["not_executed"], True),
        (POST_EXECUTE, ["interrupted"], False),
        (POST_EXECUTE, ["interrupted"], True),
    ],
)
async def test_a_hook_that_fails_ends_the_turn(hook: Any, codes: list[str], returns: bool) -> None:
    """Raising, or returning nonsense: the Turn ends with hook_error, and its calls are answered.

    Nothing of the error's text is kept. A result that post-execute did not see to is not
    recorded: it may be what it is to hide.
    """

    async def fail(*_: object) -> str:
        if returns:
            return "nonsense"
        raise ValueError("a secret")

    async with bench([wants(("c1", "count", '{"n":1}'))], [says("next")]) as here:
        await here.add(tool("count", returning("result")))
        remove = here.hooks.add(hook, fail, lambda: True)
        await here.turn()
        snapshot = here.log.snapshot()
        assert recorded_code(snapshot) == "hook_error"
        assert here.codes() == codes
        assert "secret" not in "".join(repr(envelope.event) for envelope in snapshot)
        remove()
        here.adapter.scripts[:] = [[says("next")]]
        await here.turn("b")
        assert_nothing_owed(here.log.snapshot())
        assert recorded_code(here.log.snapshot()) is None


async def test_a_hook_that_fails_after_the_final_message_changes_nothing() -> None:
    """A Turn whose final message is on record is completed, whatever an observer makes of it."""

    async def fail(_answer: StepAnswer) -> None:
        raise ValueError("late")

    async with bench([says("done")]) as here:
        here.on(POST_STEP, fail)
        await here.turn()
        assert tags(here.log.snapshot())[-1] == "assistant_message_committed"
        assert here.log.snapshot().open_turn is None


async def test_post_execute_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """A listener that never comes to an end cannot hold a call for ever, shielded as it is."""

    async def hang(_done: CallOutcome, _following: Callable[..., Any]) -> Outcome:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async with bench([wants(("c1", "count", '{"n":1}'))]) as here:

        async def count(_arguments: object) -> int:
            return 1

        await here.add(tool("count", count))
        here.on(POST_EXECUTE, hang)
        await here.turn()
        assert recorded_code(here.log.snapshot()) == "hook_error"
        assert here.codes() == ["interrupted"]
    assert trio.current_time() > 0
    assert autojump_clock.autojump_threshold == 0
