"""A stop at every phase of a process's life: what a signal finds, and what it leaves behind."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import product
from typing import TYPE_CHECKING

import httpx
import process_support
import pytest
import trio
from log_support import chunk, rows_of, write_rows
from process_support import PATIENCE_S, SESSIOND, HostProcess, wait_until
from provider_server import Play, Says, Wants, delta, head, playing, sse, strict_provider
from stop_support import (
    Hold,
    Terminal,
    ask_to_stop,
    assert_closed,
    assert_goes_on,
    assert_kept,
    ended_at_last,
    goes_on,
    held_at,
    session_in,
    signalled,
    wait_until_left,
    write_unfinished,
)

from actors.events import StepFailed, ToolExecutionCompleted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from actors.snapshot import Snapshot

SIGINT, SIGTERM, SIGHUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
CTRL_C = "\x03"
SECOND_SIGNAL = "sessiond: error: a second signal ended the stop before it was complete"

# A Host with tools that never end by themselves: the first waits as trio has it, the second holds
# a thread for good.
BUSY = """
import functools, os, threading

import trio

import web.host
from actors.kernel.fibers import Plugin
from actors.plugins import TOOLS
from actors.tools import Tool
from actors.values import Json, ToolSpec
from web.__main__ import main

def tell():
    os.write(2, b"the tool runs\\n")

async def wait(arguments):
    tell()
    await trio.sleep_forever()

def block(arguments):
    tell()
    threading.Event().wait()

async def set_up(context, config):
    for handler in (wait, block):
        spec = ToolSpec(handler.__name__, "never ends", Json.of({"type": "object"}))
        await context.enter(context.require(TOOLS).contributed(Tool(spec, handler)), spec.name)

plugins = ((Plugin("busy", set_up, requires=(TOOLS,)), None),)
web.host.HostConfig = functools.partial(web.host.HostConfig, plugins=plugins)
main()
"""

# A Host that gives slow clients less time than any user's.
BRISK = """
import web.server
from web.__main__ import main

web.server.ANSWERS_S = web.server.GRACE_S = 0.2
main()
"""


def each(phases: Sequence[str], *numbers: signal.Signals) -> pytest.MarkDecorator:
    """Parametrise over all phases and signals; by default each phase is tried with one of them."""
    numbers = numbers or (SIGINT, SIGTERM, SIGHUP)
    cases = [
        pytest.param(
            phase,
            number,
            id=f"{phase}-{number.name}",
            marks=() if number == numbers[n % len(numbers)] else pytest.mark.stress,
        )
        for (n, phase), number in product(enumerate(phases), numbers)
    ]
    return pytest.mark.parametrize(("phase", "number"), cases)


def run_instead(monkeypatch: pytest.MonkeyPatch, command: Sequence[str]) -> None:
    """Have Hosts be another program than the plain one."""
    monkeypatch.setattr(process_support, "SESSIOND", list(command))


def assert_told_nothing_but_logs(host: HostProcess) -> None:
    assert "Traceback" not in host.errors
    assert "sessiond: error" not in host.errors


# --- starting ---------------------------------------------------------------------------------

STARTING = {
    "looking": ("actors.session_log:is_fresh", 1),
    "checking integrity": ("actors.session_log:open_reader", 1),
    "loading": ("actors.session_log:_replay_page", 2),
    "opening for writing": ("actors.session_log:open_store", 1),
    "recovery": ("actors.store:Store.commit", 1),
}
RECOVERS = {"opening for writing", "recovery"}
"""Where the file is as good as open, a stop waits for the one transaction of recovery."""


@each(list(STARTING))
def test_signal_while_starting(
    phase: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Host that is asked to stop before it listens ends cleanly, and the next start goes on."""
    database = tmp_path / "session.sqlite3"
    before = write_unfinished(database)
    hold = Hold(*STARTING[phase])
    run_instead(monkeypatch, hold.command)
    with HostProcess(database) as host:
        with held_at(hold, host):
            ask_to_stop(host, number)
        assert host.wait() == 0
    assert_told_nothing_but_logs(host)
    assert "listening" not in host.errors
    assert_closed(database)
    now = assert_kept(database, before)
    assert (now.open_turn is None) == (phase in RECOVERS)
    assert_goes_on(database)


@each(["loading", "recovery"], SIGTERM, SIGINT)
def test_second_signal_while_starting(
    phase: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stop waits for the disk, a second signal ends the process at once, with a line."""
    database = tmp_path / "session.sqlite3"
    before = write_unfinished(database)
    hold = Hold(*STARTING[phase])
    run_instead(monkeypatch, hold.command)
    with HostProcess(database) as host, held_at(hold, host):
        ask_to_stop(host, SIGTERM)
        assert host.stop(number) == 1  # held still
    assert host.errors.endswith(f"{SECOND_SIGNAL}\n")
    assert_kept(database, before)
    assert_goes_on(database)


@pytest.mark.stress
@each(["recovery"], SIGINT, SIGTERM)
def test_signal_while_recovery_cannot_be_recorded(
    phase: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop that another program keeps from recording what is owed fails in time, with a line."""
    database = tmp_path / "session.sqlite3"
    before = write_unfinished(database)
    hold = Hold(*STARTING[phase])
    run_instead(monkeypatch, hold.command)
    with (
        closing(sqlite3.connect(database, isolation_level=None)) as other_program,
        HostProcess(database) as host,
    ):
        with held_at(hold, host):
            other_program.execute("BEGIN IMMEDIATE")
            ask_to_stop(host, number)
        assert host.wait() == 1
    assert "Traceback" not in host.errors
    told = [line for line in host.errors.splitlines() if line.startswith("sessiond: error: ")]
    # It waits for recovery, and once more to empty the -wal: that is all the time that a stop has.
    assert len(told) == 1
    assert "database is locked" in told[0] or "not complete after 10 s" in told[0]
    assert_kept(database, before)
    assert_goes_on(database)


# --- serving ----------------------------------------------------------------------------------

ANSWERING = head() + sse(delta(role="assistant", content=""), delta(content="Let me "))
PROVIDERS = {
    "connecting": (Play.HOLD,),
    "streaming": (ANSWERING, Play.HOLD),
}
"""What a provider sends before it falls silent."""


@each(list(PROVIDERS))
async def test_signal_while_a_model_answers(
    phase: str, number: signal.Signals, tmp_path: Path
) -> None:
    """A silent provider holds up no stop: callers are answered, the Turn is closed, it is hung up.

    What is on record is what the callers were told.
    """
    database = tmp_path / "session.sqlite3"
    async with playing(*PROVIDERS[phase]) as provider:
        options = ("--model-url", provider.url, "--model", "silent")
        with HostProcess(database, *options) as host, ThreadPoolExecutor() as callers:
            url = await trio.to_thread.run_sync(lambda: host.url)
            running = callers.submit(host.post, "running", "hello")
            await until(lambda: is_silent(host, phase), host)
            queued = callers.submit(host.post, "queued", "hello")
            await until(lambda: state_of(host, "queued") == "queued", host)
            seen = await trio.to_thread.run_sync(host.session)
            assert await trio.to_thread.run_sync(host.stop, number) == 0
            answers = [await trio.to_thread.run_sync(each.result) for each in (running, queued)]
        await provider.hung_up.wait()
    assert url
    told = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert told == [(500, "interrupted"), (503, "shutting_down")]
    assert_told_nothing_but_logs(host)
    assert_closed(database)
    stopped = session_in(database)
    assert [envelope.digest.hex() for envelope in stopped][: seen["last_sequence"]][-1:] == [
        seen["digest"]
    ]
    assert code_of_end(stopped) == "interrupted"
    await goes_on(database)


async def until(condition: Callable[[], bool], host: HostProcess) -> None:
    """Look again and again, in a thread, since a provider of the same test must go on."""
    await trio.to_thread.run_sync(wait_until, condition, host)


def is_silent(host: HostProcess, phase: str) -> bool:
    wanted = "model_request_recorded" if phase == "connecting" else "model_chunk_recorded"
    return any(event["type"] == wanted for event in host.session()["events"][-1:])


def state_of(host: HostProcess, invocation_id: str) -> str | None:
    with host.client() as client:
        answer = client.get(f"/api/v1/agent/invocations/{invocation_id}").json()
    state: str | None = answer.get("state")
    return state


def code_of_end(snapshot: Snapshot) -> str:
    """Return the code of the failure with which the last Turn ended."""
    event = snapshot[-1].event
    assert isinstance(event, StepFailed)
    return event.code


@each(["wait", "block"])
async def test_signal_while_a_tool_runs(
    phase: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that never ends holds up no stop, not even one that holds a thread.

    Its call is answered as interrupted, the one behind it as not executed, and the caller is told.
    """
    run_instead(monkeypatch, [sys.executable, "-c", BUSY])
    database = tmp_path / "session.sqlite3"
    script = [Says("Let me see.", (Wants(phase), Wants("clock")))]
    async with strict_provider(script) as provider:
        options = ("--model-url", provider.url, "--model", "strict")
        with HostProcess(database, *options) as host, ThreadPoolExecutor() as callers:
            assert await trio.to_thread.run_sync(lambda: host.url)
            running = callers.submit(host.post, "running", "hello")
            await until(lambda: "the tool runs" in host.errors, host)
            assert await trio.to_thread.run_sync(host.stop, number) == 0
            answer = await trio.to_thread.run_sync(running.result)
    assert not provider.complaints
    assert (answer.status_code, answer.json()["code"]) == (500, "interrupted")
    assert_told_nothing_but_logs(host)
    assert_closed(database)
    stopped = session_in(database)
    results = [e.event for e in stopped if isinstance(e.event, ToolExecutionCompleted)]
    assert [each.error and each.error.code for each in results] == ["interrupted", "not_executed"]
    assert code_of_end(stopped) == "interrupted"
    await goes_on(database)


# --- clients that are slow --------------------------------------------------------------------

GET_SESSION = b"GET /api/v1/sessions/default HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_POST = (
    b"POST /api/v1/agent/invocations/half HTTP/1.1\r\nHost: localhost\r\n"
    b'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"input": "'
)
CLIENTS = {
    "reads nothing": GET_SESSION,
    "reads slowly": GET_SESSION,
    "sends half a body": HALF_A_POST,
    "sends half a head": HALF_A_POST[:50],
}


@each(["everyone"])
def test_signal_while_clients_are_slow(
    phase: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever clients there are, all at once, a stop is clean; what was acknowledged is there."""
    run_instead(monkeypatch, [sys.executable, "-c", BRISK])
    stop_beside(list(CLIENTS), number, tmp_path / "session.sqlite3")


@pytest.mark.stress
@each(list(CLIENTS))
def test_signal_while_a_client_is_slow(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    """The same for each of them, within the time that every user's Host has."""
    stop_beside([phase], number, tmp_path / "session.sqlite3")


def stop_beside(kinds: Sequence[str], number: signal.Signals, database: Path) -> None:
    with HostProcess(database) as host, ExitStack() as connections:
        for n in range(3):  # one word each: few events, and large ones
            assert host.post(f"long-{n}", "x" * 900_000).status_code == 200
        before = host.session()
        for kind in kinds:
            connection = connections.enter_context(connected(host))
            connection.sendall(CLIENTS[kind])
            if CLIENTS[kind] == GET_SESSION:
                assert connection.recv(1, socket.MSG_PEEK)  # the answer has begun
            if kind == "reads slowly":
                connections.enter_context(read_slowly(connection))
        assert host.session() == before
        assert host.stop(number) == 0
    assert_told_nothing_but_logs(host)
    assert_closed(database)
    stopped = session_in(database)
    assert stopped.last_sequence == before["last_sequence"]
    assert stopped.digest is not None
    assert stopped.digest.hex() == before["digest"]


@contextmanager
def connected(host: HostProcess) -> Generator[socket.socket, None, None]:
    """A connection to a Host, of a client that the kernel buffers little for."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", int(host.url.rpartition(":")[2])))
        yield connection


@contextmanager
def read_slowly(connection: socket.socket) -> Generator[None, None, None]:
    """Take a little of an answer now and then, until it ends or the block is left."""
    left = threading.Event()

    def read() -> None:
        with suppress(ConnectionError):
            while not left.wait(0.05) and connection.recv(2_000):
                pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        left.set()
        reader.join()


# --- terminals --------------------------------------------------------------------------------


def serve(database: Path, *options: str) -> list[str]:
    return ["serve", "--port", "0", "--session-db", str(database), *options]


def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C ends a Host with exit code 0, and shows its logs and nothing else."""
    database = tmp_path / "session.sqlite3"
    with Terminal(*SESSIOND, *serve(database, "--log-level", "error")) as terminal:
        terminal.wait_for("sessiond listening on ")
        terminal.press(CTRL_C)
        assert terminal.wait() == 0
    (line, _) = terminal.shown.replace("^C", "").split("\r\n")
    assert line.startswith("sessiond listening on http://127.0.0.1:")
    assert_closed(database)


def test_ctrl_c_while_loading(tmp_path: Path) -> None:
    """Ctrl-C ends a Host that is in the middle of loading a session too."""
    database = tmp_path / "session.sqlite3"
    before = write_unfinished(database)
    hold = Hold(*STARTING["loading"])
    with Terminal(*hold.command, *serve(database)) as terminal:
        with hold.reached(terminal.check):
            terminal.press(CTRL_C)
            terminal.wait_for("stop requested")
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.shown
    assert "listening" not in terminal.shown
    assert_closed(database)
    assert_kept(database, before)


def test_ctrl_c_twice(tmp_path: Path) -> None:
    """The second Ctrl-C ends a stop that takes long, with one line."""
    database = tmp_path / "session.sqlite3"
    hold = Hold("actors.store:Store.close")
    with Terminal(*hold.command, *serve(database)) as terminal:
        terminal.wait_for("sessiond listening on ")
        terminal.press(CTRL_C)
        with hold.reached(terminal.check):
            terminal.press(CTRL_C)
            assert terminal.wait() == 1
    assert SECOND_SIGNAL in terminal.shown
    assert "Traceback" not in terminal.shown
    assert_goes_on(database)


@pytest.mark.parametrize("shell", ["", "bash"])
async def test_terminal_is_closed(shell: str, tmp_path: Path) -> None:
    """A terminal that closes during a Turn stops a Host cleanly, whoever tells it so.

    From a shell it hears twice: the shell passes the news on, and once that has gone itself the
    system tells it again. That is no second request.
    """
    if shell and shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    database = tmp_path / "session.sqlite3"
    async with playing(ANSWERING, Play.HOLD) as provider:
        options = ("--model-url", provider.url, "--model", "silent")
        host = [*SESSIOND, *serve(database, *options)]
        command = [shell, "--norc", "-i"] if shell else host
        with ended_at_last(database), Terminal(*command) as terminal:
            if shell:
                terminal.press(f"{shlex.join(host)}\n")
            url = await trio.to_thread.run_sync(url_on, terminal)
            answers: list[httpx.Response] = []
            async with (
                httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(ask_for_turn, client, answers)
                while (await client.get("/health")).json()["last_sequence"] < 4:
                    terminal.check()
                terminal.hang_up()
            await trio.to_thread.run_sync(wait_until_left, database)
            if not shell:
                assert terminal.wait() == 0
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (500, "interrupted")
    assert_closed(database)
    assert code_of_end(session_in(database)) == "interrupted"


def url_on(terminal: Terminal) -> str:
    """Return where the Host of a terminal says that it listens."""
    terminal.wait_for("sessiond listening on ")
    terminal.wait_for("\n", after="sessiond listening on ")
    found = re.search(r"sessiond listening on (\S+)", terminal.shown)
    assert found is not None
    return found[1]


async def ask_for_turn(client: httpx.AsyncClient, answers: list[httpx.Response]) -> None:
    path = "/api/v1/agent/invocations/running"
    answers.append(await client.post(path, json={"input": "hello"}))


# --- offline commands -------------------------------------------------------------------------

OFFLINE = {
    "show": "actors.reader:Reader.rows",
    "verify": "actors.reader:Reader.rows",
    "export": "actors.reader:Reader.rows",
    "backup": "actors.reader:sync",
}
"""Where each is held: before a page is read, and when the copy is written but not whole."""


@each(list(OFFLINE), SIGINT)
def test_signal_to_an_offline_command(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ends a command at once, without a word, and leaves no copy that is not whole."""
    end_offline(phase, number, tmp_path)


@each(["backup"], SIGTERM, SIGHUP)
def test_backup_is_told_to_end(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    """However a backup is told to end, what it had begun is not left in its place."""
    end_offline(phase, number, tmp_path)


def end_offline(command: str, number: signal.Signals, directory: Path) -> None:
    database, copy = directory / "session.sqlite3", directory / "copy.sqlite3"
    write_rows(database, rows_of([chunk(n) for n in range(10)]))
    hold = Hold(OFFLINE[command])
    more = [copy] if command == "backup" else []
    ended = signalled([command, database, *more], hold, number)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", "")
    assert not list(directory.glob("copy*"))
    assert session_in(database).last_sequence == 10
