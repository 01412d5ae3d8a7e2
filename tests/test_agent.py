"""One Turn: what is recorded, in which order, and what is left however it ends."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
import trio
from agent_support import (
    SCRIPTED,
    TIMEOUT_S,
    FailingCommits,
    Gate,
    Script,
    assert_nothing_owed,
    calls,
    chunk,
    cut_after,
    fails,
    full_disk,
    recorded_code,
    requested_n,
    routes_to,
    says,
    scripted,
    tags,
)
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import assert_checkpoints

from actors.agent import CANCELLED, Agent, recover
from actors.errors import (
    AppendFailed,
    ConfigurationError,
    OutcomeUnknown,
    RejectedEvent,
    RouteUnavailable,
    StoreError,
)
from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
)
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.routes import ModelResponse, RouteTable
from actors.session_log import open_session_log
from actors.strict_json import MAX_BYTES
from actors.tools import PromptRegistry
from actors.turns import TurnRecord
from actors.values import AssistantMessage, Route, ToolMessage, Usage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from structlog.typing import EventDict

INPUT, REQUEST, CHUNK = "user_input_accepted", "model_request_recorded", "model_chunk_recorded"
ANSWER, FAILED = "assistant_message_committed", "step_failed"
STARTED, COMPLETED = "tool_execution_started", "tool_execution_completed"


@pytest.fixture(autouse=True)
def logs() -> Generator[list[EventDict], None, None]:
    """What is logged, which also keeps it out of the captured output while a disk is full."""
    with capture_logs() as captured:
        yield captured


# --- a Turn that goes well ------------------------------------------------------------------


async def test_a_turn_records_input_request_chunks_and_message_in_this_order() -> None:
    """The whole of a Turn is in the log, chunks as they came, the answer as it was given."""
    answer = ModelResponse(AssistantMessage("two words"), "stop", Usage(1, 2))
    adapter = scripted([chunk({"d": "two "}), chunk({"d": "words"}), answer])
    prompts = PromptRegistry()
    async with open_session_log("default") as log, prompts.contributed("system", "be brief"):
        await Agent(log, routes_to(adapter), prompts=prompts).run_turn("a", "hello")
        snapshot = log.snapshot()
        assert tags(snapshot) == [INPUT, REQUEST, CHUNK, CHUNK, ANSWER]
        request = snapshot[1].event
        assert isinstance(request, ModelRequestRecorded)
        assert (request.route, request.system_prompt) == (SCRIPTED, "be brief")
        said = b'[{"role":"user","content":"hello"}]'
        assert request.messages == HistoryRef(1, sha256(said).hexdigest())
        assert snapshot[4].event == AssistantMessageCommitted(
            "turn-1/step-1", answer.message, "stop", Usage(1, 2)
        )
        assert snapshot.find_turn("a") == TurnRecord("turn-1", "a", 1, steps_n=1, ended_at=5)
    assert adapter.closed_n == 1


async def test_the_model_sees_what_is_already_on_record(tmp_path: Path) -> None:
    """When the adapter is asked, its request is committed; when it goes on, its chunk is."""
    gate, later = Gate(), Gate()
    adapter = scripted([gate, chunk(), later, says("done")])
    with trio.fail_after(TIMEOUT_S):
        async with (
            open_session_log("default", tmp_path / "s.sqlite3") as log,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(Agent(log, routes_to(adapter)).run_turn, "a", "hello")
            await gate.reached.wait()
            assert tags(log.snapshot()) == [INPUT, REQUEST]
            gate.go.set()
            await later.reached.wait()
            assert tags(log.snapshot()) == [INPUT, REQUEST, CHUNK]
            later.go.set()


async def test_each_turn_is_given_all_that_was_said_before() -> None:
    """The history of the session is the request's messages, the newest input last."""
    adapter = scripted([says("one")], [fails()], [says("three")])
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(adapter))
        for invocation_id in "abc":
            await agent.run_turn(invocation_id, f"input {invocation_id}")
    assert [request.turn_n for request in adapter.requests] == [1, 2, 3]
    assert adapter.requests[-1].messages == (
        UserMessage("input a"),
        AssistantMessage("one"),
        UserMessage("input b"),
        UserMessage("input c"),
    )


async def test_history_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A reopened session counts its Turns on, and the model is given what was said before."""
    path = tmp_path / "s.sqlite3"
    table = RouteTable(ECHO_ROUTE, {ECHO_ROUTE: EchoAdapter()})
    for invocation_id in ("a", "b"):
        async with open_session_log("default", path) as log:
            await Agent(log, table).run_turn(invocation_id, "hello")
            history = log.snapshot().model_history()
    assert history[-1] == AssistantMessage("[turn 2] you said: hello")
    assert len(history) == 4


async def test_a_turn_is_made_of_checkpoints() -> None:
    """run_turn yields to other tasks."""
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(scripted([says("x")])))
        with assert_checkpoints():
            await agent.run_turn("a", "hello")


async def test_turns_are_logged_without_what_was_said(logs: list[EventDict]) -> None:
    """Logs name session and Turn, and a failure's code, but no text of user or model."""
    adapter = scripted([chunk("s3cret"), says("s3cret")], [ValueError("s3cret")])
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(adapter))
        await agent.run_turn("a", "s3cret")
        await agent.run_turn("b", "s3cret")
    assert [entry["event"] for entry in logs if entry["log_level"] != "debug"] == [
        "turn started",
        "step requested",
        "turn finished",
        "turn started",
        "step requested",
        "model adapter failed",
        "turn failed",
    ]
    assert all(entry["session"] == "default" for entry in logs)
    assert logs[-1]["code"] == "provider_error"
    assert "s3cret" not in repr(logs)


# --- a Turn that does not ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([fails("provider_timeout")], "provider_timeout"),
        ([chunk(), fails("provider_rate_limited")], "provider_rate_limited"),
        ([ValueError("boom")], "provider_error"),
        ([chunk(), OSError("boom")], "provider_error"),
        ([], "provider_error"),
        ([chunk()], "provider_error"),
        ([ModelResponse(AssistantMessage("fine"), "\udc00")], "provider_error"),
        ([chunk("x" * (MAX_BYTES - 2))], "provider_error"),
    ],
    ids=["failure", "late failure", "raises", "raises late", "nothing", "no end", "bad", "large"],
)
async def test_a_provider_that_fails_fails_the_turn(script: Script, code: str) -> None:
    """Whatever an adapter does wrong becomes the Turn's recorded end, and the next one runs."""
    adapter = scripted(script, [says("fine")])
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(adapter))
        await agent.run_turn("a", "hello")
        assert recorded_code(log.snapshot()) == code
        assert_nothing_owed(log.snapshot())
        await agent.run_turn("b", "hello")
        assert tags(log.snapshot())[-1] == ANSWER
    assert adapter.closed_n == 2


async def test_a_response_is_kept_when_the_stream_cannot_be_closed() -> None:
    """An adapter that fails after its response has nonetheless answered, and its Turn goes on."""
    adapter = scripted([calls("one")], [says("fine")])
    adapter.fails_on_close = True
    async with open_session_log("default") as log:
        await Agent(log, routes_to(adapter)).run_turn("a", "hello")
        assert tags(log.snapshot()) == [INPUT, REQUEST, ANSWER, STARTED, COMPLETED, REQUEST, ANSWER]


async def test_nothing_is_taken_of_a_stream_after_its_response() -> None:
    """An adapter that goes on talking is closed, and what it had yet to say is not asked for."""
    adapter = scripted([says("fine"), chunk(), says("again")])
    async with open_session_log("default") as log:
        await Agent(log, routes_to(adapter)).run_turn("a", "hello")
        assert tags(log.snapshot()) == [INPUT, REQUEST, ANSWER]
    assert adapter.closed_n == 1


async def test_calls_of_tools_that_are_not_there_are_answered() -> None:
    """Each call gets its start and an error that the next request's messages show."""
    adapter = scripted([calls("one", "two")], [says("sorry")])
    async with open_session_log("default") as log:
        await Agent(log, routes_to(adapter)).run_turn("a", "hello")
        snapshot = log.snapshot()
        assert tags(snapshot) == [
            *(INPUT, REQUEST, ANSWER),
            *(STARTED, COMPLETED, STARTED, COMPLETED),
            *(REQUEST, ANSWER),
        ]
        errors = [e.event.error for e in snapshot if isinstance(e.event, ToolExecutionCompleted)]
        assert [error and error.code for error in errors] == ["unknown_tool"] * 2
        assert snapshot.find_turn("a") == TurnRecord("turn-1", "a", 1, steps_n=2, ended_at=9)
    told = [m.tool_call_id for m in adapter.requests[1].messages if isinstance(m, ToolMessage)]
    assert told == ["one", "two"]


async def test_a_model_that_never_comes_to_an_end_is_stopped() -> None:
    """After the last allowed Step its calls are answered, and the Turn fails with step_limit."""
    adapter = scripted(*([calls(f"call-{n}")] for n in range(5)))
    async with open_session_log("default") as log:
        await Agent(log, routes_to(adapter), max_steps=3).run_turn("a", "hello")
        snapshot = log.snapshot()
        assert requested_n(snapshot) == len(adapter.requests) == 3
        assert tags(snapshot)[-2:] == [COMPLETED, FAILED]
        assert recorded_code(snapshot) == "step_limit"
        assert_nothing_owed(snapshot)


async def test_a_route_that_is_not_there_leaves_nothing() -> None:
    """The route is looked up before anything is recorded."""
    async with open_session_log("default") as log:
        agent = Agent(log, routes_to(scripted([says("x")])))
        with pytest.raises(RouteUnavailable):
            await agent.run_turn("a", "hello", Route("no", "where"))
        assert len(log.snapshot()) == 0


@pytest.mark.parametrize(("invocation_id", "text"), [("a\n", "hello"), ("a", "\ud800")])
async def test_an_input_that_cannot_be_recorded_leaves_nothing(
    invocation_id: str, text: str
) -> None:
    """A bad id or text is refused to the caller, and no model sees it."""
    adapter = scripted([says("x")])
    async with open_session_log("default") as log:
        with pytest.raises(RejectedEvent):
            await Agent(log, routes_to(adapter)).run_turn(invocation_id, text)
        assert len(log.snapshot()) == 0
    assert not adapter.requests


async def test_options_that_no_turn_could_work_with_are_refused() -> None:
    """A Turn that may make less than one Step."""
    async with open_session_log("default") as log:
        with pytest.raises(ConfigurationError, match="one step"):
            Agent(log, routes_to(scripted([])), max_steps=0)


# --- a Turn that is cut short -------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [[chunk(), says("fine")], [chunk(), calls("a", "b")], [fails()]],
    ids=["answer", "calls", "failure"],
)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_cancelled_at_any_point_a_turn_is_closed(
    script: Script, tmp_path: Path, on_disk: bool
) -> None:
    """At each checkpoint: either nothing was recorded, or all that the Turn owes was."""
    seen: set[str | None] = set()
    for steps_n in range(200):
        path = tmp_path / f"{steps_n}.sqlite3" if on_disk else None
        adapter = scripted(script, [says("second step")])
        async with open_session_log("default", path) as log:
            agent = Agent(log, routes_to(adapter))
            with trio.CancelScope() as scope, cut_after(steps_n, scope):
                await agent.run_turn("a", "hello", None, lambda: CANCELLED)
            snapshot = log.snapshot()
            assert_nothing_owed(snapshot)
            assert requested_n(snapshot) >= len(adapter.requests) == adapter.closed_n
            seen.add(recorded_code(snapshot) if len(snapshot) else "nothing")
            if not scope.cancel_called:
                break
            await agent.run_turn("b", "still works")
    else:
        pytest.fail("the turn never ran to its end")
    assert seen >= {"nothing", "cancelled"}


async def test_a_cancellation_goes_on_after_the_turn_was_closed() -> None:
    """run_turn records and then lets the cancellation through."""
    gate = Gate()
    reached_end = False
    async with open_session_log("default") as log, trio.open_nursery() as nursery:

        async def run() -> None:
            nonlocal reached_end
            await Agent(log, routes_to(scripted([gate]))).run_turn("a", "hello")
            reached_end = True

        nursery.start_soon(run)
        await gate.reached.wait()
        nursery.cancel_scope.cancel()
    assert not reached_end
    assert recorded_code(log.snapshot()) == "interrupted"


def _calls_script(call_ids: list[str]) -> Script:
    return [calls(*call_ids)]


scripts: st.SearchStrategy[list[Script]] = st.lists(
    st.one_of(
        st.just([chunk(), says("fine")]),
        st.just([chunk()]),
        st.just([fails("provider_timeout")]),
        st.just([ValueError("boom")]),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3).map(_calls_script),
    ),
    min_size=1,
    max_size=6,
)


@given(scripts, st.integers(0, 40))
def test_no_script_and_no_cut_leaves_anything_owed(played: list[Script], steps_n: int) -> None:
    """Three Turns on any model, each cut at the same place or not at all, are all closed."""

    async def run() -> None:
        adapter = scripted(*played)
        async with open_session_log("default") as log:
            agent = Agent(log, routes_to(adapter), max_steps=2)
            for invocation_id in "xyz":
                with trio.CancelScope() as scope, cut_after(steps_n, scope):
                    await agent.run_turn(invocation_id, "hello")
                assert_nothing_owed(log.snapshot())

    with capture_logs():
        trio.run(run)


# --- a store that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [AppendFailed, OutcomeUnknown])
async def test_an_append_that_fails_ends_the_turn(
    monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    """At each commit: nothing more is requested, and what can be recorded of the end is."""
    script = [chunk(), calls("one", "two")]
    failing_n = commits_n = 0
    while not commits_n:
        failing_n += 1
        with monkeypatch.context() as patched:
            commits = FailingCommits(patched)
            commits.failing = {failing_n: error}
            adapter = scripted(script, [says("fine")])
            async with open_session_log("default") as log:
                agent = Agent(log, routes_to(adapter))
                if await runs_to_its_end(agent):
                    commits_n = commits.tried_n
                    continue
                assert requested_n(log.snapshot()) == len(adapter.requests)
                assert adapter.closed_n == len(adapter.requests)
                if error is AppendFailed:
                    assert_nothing_owed(log.snapshot())
                    assert recorded_code(log.snapshot()) in {"interrupted", None}
                    for failed in (e.event for e in log.snapshot()):
                        if isinstance(failed, StepFailed):  # the caller learns the cause
                            assert failed.message.endswith("the disk said no")
                else:
                    assert commits.tried_n == failing_n, "the writer has stopped"
    assert commits_n == failing_n - 1 == 10


async def runs_to_its_end(agent: Agent) -> bool:
    try:
        await agent.run_turn("a", "hello")
    except StoreError:
        return False
    return True


async def test_what_cannot_be_recorded_is_owed_until_recovery(tmp_path: Path) -> None:
    """A disk that is really full: the Turn stays open, and closes once there is room."""
    path = tmp_path / "s.sqlite3"
    gate = Gate()
    adapter = scripted([chunk(), gate, chunk("x" * 100_000), says("fine")], [says("fine")])
    with trio.fail_after(TIMEOUT_S):
        async with open_session_log("default", path) as log:
            agent = Agent(log, routes_to(adapter))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect_append_failed, agent)
                await gate.reached.wait()
                with full_disk():
                    gate.go.set()
                    while not adapter.closed_n or nursery.child_tasks:
                        await trio.lowlevel.checkpoint()
                    with pytest.raises(AppendFailed):
                        await recover(log)
            assert tags(log.snapshot()) == [INPUT, REQUEST, CHUNK]
            assert log.snapshot().open_turn is not None
            assert await recover(log) == (log.snapshot()[-1].event,)
            assert recorded_code(log.snapshot()) == "interrupted"
            assert_nothing_owed(log.snapshot())


async def expect_append_failed(agent: Agent) -> None:
    with pytest.raises(AppendFailed):
        await agent.run_turn("a", "hello")


# --- recovery -----------------------------------------------------------------------------------


async def test_recovery_closes_a_turn_cut_at_any_event(tmp_path: Path) -> None:
    """A log that ends anywhere in a Turn is closed at the next start, and that but once."""
    adapter = scripted([chunk(), calls("one", "two")], [chunk(), says("fine")])
    async with open_session_log("default") as log:
        await Agent(log, routes_to(adapter)).run_turn("a", "hello")
        events = [envelope.event for envelope in log.snapshot()]
    for kept_n in range(len(events) + 1):
        path = tmp_path / f"{kept_n}.sqlite3"
        async with open_session_log("default", path) as log:
            await log.append_many(events[:kept_n])
        async with open_session_log("default", path) as log:
            recovered = await recover(log)
            assert bool(recovered) == (0 < kept_n < len(events))
            assert_nothing_owed(log.snapshot())
            assert [e.event for e in log.snapshot()] == [*events[:kept_n], *recovered]
            assert await recover(log) == ()
            if recovered:
                assert isinstance(recovered[-1], StepFailed)
                assert recovered[-1].code == "interrupted"
            await Agent(log, routes_to(scripted([says("fine")]))).run_turn("b", "next")


async def test_recovery_always_yields() -> None:
    """Also when nothing is owed."""
    async with open_session_log("default") as log:
        with assert_checkpoints():
            assert await recover(log) == ()
