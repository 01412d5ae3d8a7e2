"""A whole Host and a model behind a socket: options, failures, stops, kills, what is on record."""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast

import httpx
import trio
from agent_support import Gate
from attrs import define
from process_support import PATIENCE_S, HostProcess, error_line, sessiond, sessiond_each
from provider_server import Refuses, Says, Wants, strict_provider

from actors.reader import open_reader
from web.offline import verify_sessions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator
    from pathlib import Path

    from provider_server import Scripted, StrictProvider

Document = dict[str, Any]
MODEL = "acme/large:free"
ROUTE = {"provider": "openai", "model": MODEL}
ECHO = {"provider": "echo", "model": "echo"}
PROMPT = "Be brief.\nÜberlege."


# --- a Host with a model ------------------------------------------------------------------------


@define(eq=False)
class Running:
    """A Host process, spoken to from the test's own event loop."""

    process: HostProcess
    client: httpx.AsyncClient

    async def post(self, name: str, text: str, route: Document | None = None) -> httpx.Response:
        body = {"input": text} | ({} if route is None else {"route": route})
        return await self.client.post(f"/api/v1/agent/invocations/{name}", json=body)

    async def says(self, name: str, text: str) -> str:
        """Have a Turn that ends well; return its answer's text."""
        answer = await self.post(name, text)
        assert answer.status_code == 200, answer.text
        return answer.json()["message"]["content"]

    async def state(self, name: str) -> Document:
        return (await self.client.get(f"/api/v1/agent/invocations/{name}")).json()

    async def events(self) -> list[Document]:
        return (await self.client.get("/api/v1/sessions/default")).json()["events"]

    async def last_event(self) -> Document:
        return (await self.events())[-1]

    async def until_streaming(self, gate: Gate) -> None:
        """Wait until the model has stopped at a gate and what it had sent is on record."""
        with trio.fail_after(PATIENCE_S):
            await gate.reached.wait()
            while (await self.last_event())["type"] != "model_chunk_recorded":
                pass  # each look is a request: others have their turn

    async def stop(self) -> None:
        assert await trio.to_thread.run_sync(self.process.stop) == 0

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.process.kill)


@asynccontextmanager
async def running(database: Path, *options: str) -> AsyncGenerator[Running, None]:
    with HostProcess(database, *options) as process:
        base_url = await trio.to_thread.run_sync(lambda: process.url)
        async with httpx.AsyncClient(
            base_url=base_url, trust_env=False, timeout=PATIENCE_S
        ) as client:
            yield Running(process, client)


def model_at(provider: StrictProvider, *options: str) -> tuple[str, ...]:
    return ("--model-url", provider.url, "--model", MODEL, *options)


def played(*answers: Scripted | None) -> Iterator[Scripted]:
    """Return a script in which None stands for a connection that is closed without an answer."""

    def play(answer: Scripted | None) -> Scripted:
        if answer is None:
            raise trio.BrokenResourceError  # to the server, as if the client had gone
        return answer

    return map(play, answers)


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def asked_in(request: Document) -> list[str]:
    """Return the users' texts in what a provider was sent."""
    return [each["content"] for each in request["messages"] if each["role"] == "user"]


# --- options ------------------------------------------------------------------------------------


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    """Half a model, a key for none and two models are usage errors; no file is made."""
    database = tmp_path / "new" / "session.sqlite3"
    url, model = ("--model-url", "http://127.0.0.1:1/v1"), ("--model", "m")
    replay = ("--model-replay", str(tmp_path / "script.jsonl"))
    cases = {
        url: "--model",
        model: "--model-url",
        ("--model-key-env", "PATH"): "--model-url",
        (*model, "--model-key-env", "PATH"): "--model-url",
        (*replay, "--model-key-env", "PATH"): "--model-url",
        (*replay, *url, *model): "--model-replay",
        (*url, *model, "--request-timeout", "0"): "--request-timeout",
        (*url, *model, "--connect-timeout", "-1"): "--connect-timeout",
        (*url, *model, "--connect-timeout", "nan"): "--connect-timeout",
        (*url, *model, "--request-timeout", "nan"): "--request-timeout",
        (*url, *model, "--max-steps", "0"): "--max-steps",
    }
    start = ("serve", "--port", "0", "--session-db", database)
    runs = sessiond_each([(*start, *options) for options in cases])
    for named, done in zip(cases.values(), runs, strict=True):
        assert done.returncode == 2, done
        assert named in done.stderr
        assert "Traceback" not in done.stderr
        assert not done.stdout
    assert not database.parent.exists()


def test_a_model_that_cannot_be(tmp_path: Path) -> None:
    """A URL that leads nowhere and a script that is none end the start in one line; no file."""
    database = tmp_path / "new" / "session.sqlite3"
    urls = ("nonsense", "", "ftp://host/v1", "http://", "http://user:hunter2@host", "http://host:0")
    broken = tmp_path / "script.jsonl"
    broken.write_text("{}\n", encoding="utf-8")
    start = ("serve", "--port", "0", "--session-db", database)
    commands = [(*start, "--model-url", url, "--model", "m") for url in urls]
    good = (*start, "--model-url", "http://127.0.0.1:1", "--model")
    commands += [(*good, "")]
    commands += [(*start, "--model-replay", str(path)) for path in (broken, tmp_path / "none")]
    for done in sessiond_each(commands):
        assert done.stderr == f"{error_line(done)}\n"
        assert "hunter2" not in done.stderr
        assert not done.stdout
    assert not database.parent.exists()


# --- a session ----------------------------------------------------------------------------------

CALLS = (
    Wants("clock", '{"zone": "Europe/Berlin"}'),
    Wants("recall", '{ "query" : "zebra" }'),
    Wants("nothing", '{"never": '),
)
TURNS = (
    ("one", "Remember the zebra.\nWie spät? \U0001f570"),
    ("echoed", "say it back"),
    ("refused", "again"),
    ("cut", "and again"),
    ("two", "still there?"),
)
"""What is asked of the first Host, and what it is asked for again by its recording."""


async def test_a_session_with_a_model(tmp_path: Path) -> None:
    """Turns with tools, failures and another route; a restart goes on where they ended.

    What the provider received is what `show --request` tells, and an export plays it all again.
    """
    database = tmp_path / "session.sqlite3"
    script = played(
        Says("Let me see.", CALLS),
        Says("It is late."),
        Refuses(),
        None,
        Says("Yes."),
        Says("As ever.", finish_reason="length"),
    )
    async with strict_provider(script) as provider:
        async with running(database, *model_at(provider, "--system-prompt", PROMPT)) as host:
            answers = [
                await host.post(name, text, ECHO if name == "echoed" else None)
                for name, text in TURNS
            ]
            assert problem(await host.post("x", "x", {**ROUTE, "model": "m"})) == (
                503,
                "route_unavailable",
            )
            events = await host.events()
            await host.stop()
        check_answers(answers)
        check_tools(events, provider)
        check_routes(events)
        async with running(database, *model_at(provider, "--system-prompt", PROMPT)) as host:
            assert await host.says("three", "and now?") == "As ever."
            await host.stop()
    assert not provider.complaints
    *_, before, after = provider.requests
    continued = [
        *before["messages"],
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "and now?"},
    ]
    assert after == {**before, "messages": continued}
    check_recorded_requests(database, provider)
    await check_replay(database, tmp_path / "again.sqlite3", answers)


def check_answers(answers: list[httpx.Response]) -> None:
    one, echoed, refused, cut, two = answers
    assert one.status_code == echoed.status_code == two.status_code == 200
    assert one.json()["message"] == {
        "role": "assistant",
        "content": "It is late.",
        "tool_calls": [],
    }
    assert (one.json()["steps"], one.json()["finish_reason"]) == (2, "stop")
    assert "say it back" in echoed.json()["message"]["content"]
    assert problem(refused) == (502, "provider_error")
    assert "the model is out of order" in refused.json()["detail"]
    assert problem(cut) == (502, "provider_network")
    assert two.json()["message"]["content"] == "Yes."


def check_tools(events: list[Document], provider: StrictProvider) -> None:
    """The model is offered both tools, and told what its calls came to, each by its id."""
    first, second = provider.requests[:2]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["clock", "recall"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    said, *told = second["messages"][len(first["messages"]) :]
    made = [
        (call["function"]["name"], call["function"]["arguments"]) for call in said["tool_calls"]
    ]
    assert made == [(call.name, call.arguments) for call in CALLS]
    assert [each["tool_call_id"] for each in told] == [call["id"] for call in said["tool_calls"]]
    clock, recalled, nothing = (json.loads(each["content"]) for each in told)
    assert clock["zone"] == "Europe/Berlin"
    assert [(hit["sequence"], hit["kind"]) for hit in recalled["hits"]] == [(1, "user")]
    assert nothing["error"]["code"] == "unknown_tool"
    kinds = [event["type"] for event in events]
    assert kinds.count("tool_execution_started") == kinds.count("tool_execution_completed") == 3


def check_routes(events: list[Document]) -> None:
    """The model is the default, and the built-in one is there by its name."""
    requests = [each["payload"] for each in events if each["type"] == "model_request_recorded"]
    assert [request["route"] for request in requests] == [ROUTE, ROUTE, ECHO, ROUTE, ROUTE, ROUTE]
    assert {request["system_prompt"] for request in requests} == {PROMPT}


def check_recorded_requests(database: Path, provider: StrictProvider) -> None:
    """`show --request` tells of each Step what the provider was sent in it."""
    turns = (1, 1, 3, 4, 5, 6)
    steps = [f"turn-{n}/step-{1 + turns[:at].count(n)}" for at, n in enumerate(turns)]
    shown = sessiond_each([("show", "--request", step, database) for step in steps])
    for step, done, request in zip(steps, shown, provider.requests, strict=True):
        assert done.returncode == 0, done.stderr
        assert as_sent(json.loads(done.stdout)) == request, step
    assert asked_in(provider.requests[4])[-1] == "again\n\nand again\n\nstill there?"


def as_sent(document: Document) -> Document:
    """Return the Chat Completions body that a recorded request stands for."""
    messages: list[Document] = [{"role": "system", "content": document["system_prompt"]}]
    for message in document["messages"]:
        if message["role"] == messages[-1]["role"] == "user":
            messages[-1]["content"] += f"\n\n{message['content']}"
        else:
            messages.append(dict(message))
    for message in messages:
        calls = message.pop("tool_calls", [])
        if calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ]
            message["content"] = message["content"] or None
    return {
        "model": document["route"]["model"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": messages,
        "tools": [{"type": "function", "function": tool} for tool in document["tools"]],
    }


async def check_replay(database: Path, again: Path, answers: list[httpx.Response]) -> None:
    """A Host that plays an export answers, word for word, as the recorded one did."""
    export = await trio.to_thread.run_sync(sessiond, "export", database)
    assert export.returncode == 0, export.stderr
    script = again.with_suffix(".jsonl")
    script.write_text(export.stdout, encoding="utf-8")
    async with running(again, "--model-replay", str(script)) as host:
        for (name, text), answer in zip(TURNS, answers, strict=True):
            replayed = await host.post(name, text)
            assert (replayed.status_code, replayed.json()) == (answer.status_code, answer.json())
        events = await host.events()
        assert await host.says("three", "and now?") == "As ever."
        assert problem(await host.post("four", "more?")) == (502, "provider_error")
        await host.stop()
    recorded = [json.loads(line) for line in export.stdout.splitlines()][: len(events)]
    assert [each["type"] for each in events] == [each["type"] for each in recorded]
    of_model = {"model_chunk_recorded", "assistant_message_committed", "step_failed"}
    assert [each["payload"] for each in events if each["type"] in of_model] == [
        each["payload"] for each in recorded if each["type"] in of_model
    ]


# --- failures -----------------------------------------------------------------------------------


async def test_a_provider_that_falls_silent(tmp_path: Path) -> None:
    """The caller is told after the request timeout; a later Turn is a Turn like any other."""
    script: Iterable[Scripted] = chain([Says("never heard", gate=Gate())], repeat(Says("Hello.")))
    async with strict_provider(script) as provider:
        options = model_at(provider, "--request-timeout", "0.2")
        async with running(tmp_path / "session.sqlite3", *options) as host:
            silent = await host.post("silent", "hello?")
            assert problem(silent) == (504, "provider_timeout")
            assert "0.2 s" in silent.json()["detail"]
            assert (await host.state("silent"))["state"] == "failed"
            assert problem(await host.post("silent", "hello?")) == (504, "provider_timeout")
            assert len(provider.requests) == 1
            names = [f"next-{n}" for n in range(20)]
            while problem_or_none(await host.post(names.pop(0), "hello?")) == "provider_timeout":
                assert names  # a busy machine may be slow, but not for ever
            await host.stop()
    assert not provider.complaints
    (first, *_, last) = provider.requests
    assert asked_in(first) == ["hello?"]
    assert asked_in(last)[0].startswith("hello?\n\nhello?")


def problem_or_none(answer: httpx.Response) -> str | None:
    code = answer.json().get("code")
    assert code is not None or answer.status_code == 200, answer.text
    return cast("str | None", code)


async def test_a_turn_that_takes_too_many_steps(tmp_path: Path) -> None:
    """With one Step a Turn the calls of its only answer are executed, and then it has failed."""
    script = [Says(calls=(Wants("clock"),)), Says("Hello.")]
    async with (
        strict_provider(script) as provider,
        running(tmp_path / "session.sqlite3", *model_at(provider, "--max-steps", "1")) as host,
    ):
        assert problem(await host.post("long", "what time is it?")) == (500, "step_limit")
        assert [each["type"] for each in await host.events()][-4:] == [
            "assistant_message_committed",
            "tool_execution_started",
            "tool_execution_completed",
            "step_failed",
        ]
        assert await host.says("short", "hello") == "Hello."
        await host.stop()
    assert not provider.complaints
    assert [each["role"] for each in provider.requests[-1]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]


# --- cut short while the model speaks -------------------------------------------------------------


async def test_cut_short_while_the_model_speaks(tmp_path: Path) -> None:
    """A DELETE, a stop and a kill in the middle of an answer: the next request is a good one."""
    database = tmp_path / "session.sqlite3"
    gates = [Gate() for _ in range(3)]
    half = "That is only the half of what there was to say."
    script = [
        Says(half, gate=gates[0]),
        Says("After the DELETE."),
        Says(half, (Wants("clock"),), gate=gates[1]),
        Says("After the stop."),
        Says("I look.", (Wants("clock"), Wants("clock"))),
        Says("", (Wants("recall", '{"query": "half a call"}'),), gate=gates[2]),
        Says("After the kill."),
    ]
    async with strict_provider(script) as provider:
        async with running(database, *model_at(provider)) as host:
            await check_delete(host, gates[0])
            assert await host.says("after-delete", "go on") == "After the DELETE."
            await check_stop(host, gates[1])
        async with running(database, *model_at(provider)) as host:
            assert (await host.state("stopped"))["error"]["code"] == "interrupted"
            assert await host.says("after-stop", "go on") == "After the stop."
            await check_kill(host, gates[2])
        async with running(database, *model_at(provider)) as host:
            assert problem(await host.post("killed", "be killed")) == (500, "interrupted")
            assert await host.says("after-kill", "go on") == "After the kill."
            await host.stop()
    assert not provider.complaints
    assert len(provider.requests) == len(script)
    text = json.dumps(provider.requests[-1]["messages"])
    assert "only the half" not in text
    assert "half a call" not in text
    with open_reader(database) as reader:
        assert [report.fault for report in verify_sessions(reader)] == [None]


async def check_delete(host: Running, gate: Gate) -> None:
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await host.post("deleted", "be deleted"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await host.until_streaming(gate)
        assert (await host.state("deleted"))["state"] == "running"
        asked = await host.client.delete("/api/v1/agent/invocations/deleted")
        assert asked.status_code == 202
    assert problem(answers[0]) == (409, "cancelled")
    assert (await host.state("deleted"))["state"] == "cancelled"
    assert (await host.last_event())["payload"]["code"] == "cancelled"


async def check_stop(host: Running, gate: Gate) -> None:
    """The caller is still answered, the Host ends well, and what it owed is on record."""
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await host.post("stopped", "be stopped"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await host.until_streaming(gate)
        host.process.send(signal.SIGTERM)
    assert problem(answers[0]) == (500, "interrupted")
    assert await trio.to_thread.run_sync(host.process.wait) == 0
    assert "Traceback" not in host.process.errors


async def check_kill(host: Running, gate: Gate) -> None:
    async def ask() -> None:
        try:
            await host.post("killed", "be killed")
        except httpx.TransportError:
            return
        raise AssertionError("a killed Host has answered")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await host.until_streaming(gate)
        await host.kill()
