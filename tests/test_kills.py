"""A Host killed at a random event of Turns with tools, again and again.

The Host is a real process with a tool that leaves a trace, the model a provider on a socket that
refuses every conversation that a real one would refuse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from random import Random, getrandbits  # the latter seeded for this test by pytest-randomly
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from attrs import define, field
from process_support import PATIENCE_S, TREE
from provider_server import Says, Wants, strict_provider

from actors.events import (
    AssistantMessageCommitted,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from actors.reader import open_reader
from web.offline import load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from provider_server import Scripted, StrictProvider

    from actors.snapshot import Snapshot

TURNS = ("t1", "t2", "t3")

# Forks a Host for each line of its input, so that hundreds of them share one import.
RUNNER = """
import json, os, signal, sys
from functools import partial
from pathlib import Path

import trio

from actors import store
from actors.kernel.fibers import Plugin
from actors.plugins import INVOCATIONS, TOOLS, ModelsConfig, OpenAIConfig
from actors.tools import Tool
from actors.values import Json, ToolSpec
from web.host import HostConfig, run_host


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point, n):
    # commit: just before or after the n-th transaction, which is the n-th event or so.
    real, done = store.Store.commit, []

    def commit(self, rows):
        done.append(rows)
        if len(done) == n and point == "before":
            die()
        real(self, rows)
        if len(done) == n and point == "after":
            die()

    store.Store.commit = commit


async def set_up_tool(context, run):
    def mark(arguments):
        run["marks"] = run.get("marks", 0) + 1
        if run["point"] == "entering" and run["marks"] == run["n"]:
            die()
        with open(run["effects"], "a") as effects:
            effects.write(f"{arguments['n']}\\n")
        if run["point"] == "leaving" and run["marks"] == run["n"]:
            die()
        return arguments["n"]

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = Tool(ToolSpec("mark", "leaves a mark", Json.of(schema)), mark)
    await context.enter(context.require(TOOLS).contributed(tool), "tool mark")


async def set_up_driver(context, run):
    invocations = context.require(INVOCATIONS)

    async def drive():
        for turn in run["turns"]:
            await invocations.submit(turn, f"please do {turn}")
        os.kill(os.getpid(), signal.SIGTERM)

    context.start_soon(drive)


def serve(run):
    kill_at(run["point"], run["n"])
    models = ModelsConfig(OpenAIConfig(run["url"], "strict"))
    plugins = (
        (Plugin("mark", set_up_tool, requires=(TOOLS,)), run),
        (Plugin("driver", set_up_driver, requires=(INVOCATIONS,)), run),
    )
    config = HostConfig(Path(run["database"]), port=0, models=models, plugins=plugins)
    trio.run(run_host, config)


for line in sys.stdin:
    run = json.loads(line)
    pid = os.fork()
    if pid == 0:
        out = os.open(run["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = 1
        try:
            serve(run)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@define(eq=False)
class Runner:
    """Runs Hosts to their end, one after the other."""

    process: trio.Process
    unread: bytes = b""

    async def serve(self, **run: Any) -> int:
        """Run a Host and return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        await self.process.stdin.send_all(json.dumps(run).encode() + b"\n")
        while b"\n" not in self.unread:
            piece = await self.process.stdout.receive_some()
            assert piece, "the runner is gone"
            self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        return int(line)


@asynccontextmanager
async def open_runner() -> AsyncGenerator[Runner, None]:
    async with trio.open_nursery() as nursery:
        start = partial(
            trio.run_process,
            [sys.executable, "-c", RUNNER],
            cwd=TREE,
            env=os.environ | {"PYTHONPATH": str(TREE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        process = cast("trio.Process", await nursery.start(start))
        try:
            yield Runner(process)
        finally:
            assert process.stdin is not None
            await process.stdin.aclose()  # its loop ends, and so does it


@define(eq=False)
class Model:
    """Answers at random, each call with a number of its own."""

    random: Random
    called_n: int = 0
    names: list[str] = field(factory=lambda: ["mark", "mark", "clock", "nothing"])

    def answers(self) -> Iterator[Scripted]:
        while True:
            calls = [self.call() for _ in range(self.random.choice([0, 0, 1, 2, 3]))]
            text = self.random.choice(["", "Let me see."]) if calls else "That is done."
            yield Says(text, tuple(calls))

    def call(self) -> Wants:
        self.called_n += 1
        name = self.random.choice(self.names)
        arguments = json.dumps({} if name == "clock" else {"n": self.called_n})
        # Some models number the calls of each answer from one.
        return Wants(name, arguments, self.random.choice([None, "call_1"]))


async def check_kills(directory: Path, seed: int, rounds_n: int) -> None:
    random = Random(seed)  # noqa: S311 # chance, not a secret
    model = Model(random)
    async with strict_provider(model.answers()) as provider, open_runner() as runner:
        for round_n in range(rounds_n):
            place = directory / str(round_n)
            place.mkdir()
            await check_one_kill(place, random, provider, runner)


async def check_one_kill(
    place: Path, random: Random, provider: StrictProvider, runner: Runner
) -> None:
    """Kill a Host once or twice, then let one come to its end, and look at what is left."""
    log = place / "log"
    run: dict[str, Any] = {
        "database": str(place / "session.sqlite3"),
        "effects": str(place / "effects"),
        "log": str(log),
        "url": provider.url,
        "turns": TURNS,
    }
    (place / "effects").touch()
    for _ in range(random.choice([1, 1, 2])):
        point = random.choice(["before", "after", "entering", "leaving"])
        n = random.randint(1, 90 if point in {"before", "after"} else 5)
        with trio.fail_after(PATIENCE_S):
            code = await runner.serve(**run, point=point, n=n)
        assert code in {0, -9}, log.read_text()
    with trio.fail_after(PATIENCE_S):
        code = await runner.serve(**run | {"turns": (*TURNS, "last")}, point="never", n=0)
    assert code == 0, log.read_text()
    assert not provider.complaints
    with open_reader(place / "session.sqlite3") as reader:
        snapshot = load(reader, "default")
    assert snapshot.open_turn is None
    assert {turn for turn in (*TURNS, "last") if snapshot.find_turn(turn)} == {*TURNS, "last"}
    check_effects(snapshot, [int(line) for line in (place / "effects").read_text().splitlines()])


def check_effects(snapshot: Snapshot, effects: list[int]) -> None:
    """Check the marks against the record: none twice, each owed to a call that was started."""
    assert len(effects) == len(set(effects))
    events = [envelope.event for envelope in snapshot]
    calls = {
        call.id: json.loads(call.arguments).get("n")
        for event in events
        if isinstance(event, AssistantMessageCommitted)
        for call in event.message.tool_calls
        if call.name == "mark"
    }
    started = {event.call.id for event in events if isinstance(event, ToolExecutionStarted)}
    codes = {
        event.call_id: "ok" if event.error is None else event.error.code
        for event in events
        if isinstance(event, ToolExecutionCompleted)
    }
    assert calls.keys() <= codes.keys()
    for call_id, n in calls.items():
        if codes[call_id] == "ok":
            assert n in effects
        elif codes[call_id] == "not_executed":
            assert n not in effects
            assert call_id not in started
        else:
            assert codes[call_id] == "interrupted"  # it may have left its mark, or not
            assert call_id in started
    assert set(effects) <= set(calls.values())


async def test_killed_at_any_event_a_session_goes_on(tmp_path: Path) -> None:
    """After a kill at any event no tool runs twice, and no request is one a provider refuses."""
    await check_kills(tmp_path, seed=getrandbits(32), rounds_n=10)


@pytest.mark.stress
@pytest.mark.timeout(900)
async def test_killed_at_any_event_hundreds_of_times(tmp_path: Path) -> None:
    """The same, three hundred times over."""
    await check_kills(tmp_path, seed=getrandbits(32), rounds_n=300)
