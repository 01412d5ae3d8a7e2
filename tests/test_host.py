"""How a Host begins and ends: the order of both, and what a signal does at any time."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import process_support
import pytest
from process_support import PATIENCE_S, TREE, HostProcess, error_line, sessiond, wait_until

from actors.errors import ConfigurationError, ListenError
from web.server import bind_listener, url_of

if TYPE_CHECKING:
    from collections.abc import Generator


# Stands in for a signal that comes while the process still imports: it is sent when one of the
# late imports begins.
EARLY = """
import os, sys

module, number = sys.argv[1], int(sys.argv[2])

class Bell:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)
        return None

sys.meta_path.insert(0, Bell())
from web.__main__ import main

sys.argv = ["sessiond", *sys.argv[3:]]
main()
"""

# A Host that has less time for its stop than any user's.
HURRIED = """
import web.host
from web.__main__ import main

web.host.STOP_DEADLINE_S = 0.1
main()
"""

# A Host without a standard error that takes what is written to it.
UNHEARD = """
import os, sys

if sys.argv[1] == "closed":
    os.close(2)
elif sys.argv[1] == "full":
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
else:
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(reader)
os.execv(sys.executable, [sys.executable, "-m", "web", *sys.argv[2:]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["click", "trio", "quart_trio"])
def test_signal_while_importing(module: str, number: signal.Signals, tmp_path: Path) -> None:
    """Asked to stop before anything is open, a Host has stopped: exit code 0, no word, no file."""
    database = tmp_path / "session.sqlite3"
    command = ["serve", "--port", "0", "--session-db", str(database)]
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module, str(int(number)), *command],
        cwd=TREE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not database.exists()


def test_order_of_start_and_stop(tmp_path: Path) -> None:
    """Plugins load in the order of what they require and unload in that order backwards.

    A stop settles the invocations while all of them are ACTIVE, before the first is unloaded.
    Read from the log of the real process, which was stopped during a Turn whose caller has
    its answer all the same.
    """
    answers: list[httpx.Response] = []
    options = ("--log-format", "json", "--log-level", "debug")
    with HostProcess(tmp_path / "session.sqlite3", *options) as host:
        caller = threading.Thread(target=lambda: answers.append(host.post("one", "word " * 20_000)))
        assert host.url
        caller.start()
        wait_until(lambda: "turn started" in host.errors, host)
        assert host.stop() == 0
        caller.join(PATIENCE_S)
        lines = [json.loads(line) for line in host.errors.splitlines()]
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (500, "interrupted")
    told = [
        f"{line['plugin']} {line['state']}" if "plugin" in line else line["event"] for line in lines
    ]
    order = [
        "models ACTIVE",
        "session LOADING",
        "session opened",
        "session ACTIVE",
        "agent ACTIVE",
        "invocations ACTIVE",
        "http LOADING",
        "listening",
        "http ACTIVE",
        "turn started",
        "stop requested",
        "turn failed",
        "invocations settled",
        "http UNLOADING",
        "listener closed",
        "http DISPOSED",
        "invocations DISPOSED",
        "agent DISPOSED",
        "session closing",
        "session closed",
        "session DISPOSED",
    ]
    assert [event for event in told if event in order] == order
    assert {line["session"] for line in lines if "session" in line} == {"default"}


def test_idle_and_half_open_connections_do_not_hold_a_stop(tmp_path: Path) -> None:
    """Connections that say nothing, said half of something, or rest between requests go down."""
    with HostProcess(tmp_path / "session.sqlite3") as host, host.client() as client:
        assert client.get("/health").status_code == 200  # and stays open
        port = int(host.url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)) as half,
        ):
            half.sendall(b"POST /api/v1/agent/invocations/a HTTP/1.1\r\nHost: localhost\r\n")
            assert client.get("/health").status_code == 200
            assert host.stop() == 0
    assert "Traceback" not in host.errors


def test_a_burst_of_connections_waits_in_the_kernel(tmp_path: Path) -> None:
    """While the Host does not get to accept them, hundreds of connections are made at once.

    With the queue of a hundred that servers have by default the rest would be dropped, and each
    of them tried again a second later.
    """
    with HostProcess(tmp_path / "session.sqlite3") as host, ExitStack() as connections:
        port = int(host.url.rpartition(":")[2])
        assert host.post("none", "the server is up").status_code == 200
        host.send(signal.SIGSTOP)
        for _ in range(500):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            connections.enter_context(connection)
        # Connected is what a client believes of itself: what counts is whom the kernel holds.
        assert waiting_n(port) == 500
        host.send(signal.SIGCONT)
        assert host.post("one", "still here").status_code == 200
        assert host.stop() == 0


def waiting_n(port: int) -> int:
    """Return how many connections to a listener the kernel holds that were not accepted yet."""
    table = Path("/proc/net/tcp")
    if not table.exists():
        pytest.skip("the kernel's table of connections is read on Linux only")
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    (listener,) = [row for row in rows if row[3] == "0A" and int(row[1][9:], 16) == port]
    return int(listener[4].rpartition(":")[2], 16)


def test_recovery_comes_before_the_listener(tmp_path: Path) -> None:
    """What a killed Turn owes is on record, and said to be, before anybody can connect."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host:
        caller = threading.Thread(target=ask_in_vain, args=(host,))
        assert host.url
        caller.start()
        wait_until(lambda: "turn started" in host.errors, host)
        host.kill()
        caller.join(PATIENCE_S)
    with HostProcess(database, "--log-format", "json") as host:
        assert host.session()["events"][-1]["type"] == "step_failed"
        assert host.stop() == 0
        told = [json.loads(line)["event"] for line in host.errors.splitlines()]
    order = ["session opened", "recovery recorded", "listening"]
    assert [event for event in told if event in order] == order


def ask_in_vain(host: HostProcess) -> None:
    with pytest.raises(httpx.TransportError):
        host.post("killed", "word " * 20_000)


@pytest.mark.parametrize("how", ["closed", "full", "abandoned"])
def test_logs_that_nobody_takes_stop_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With standard error closed, full, or read by nobody any more, a Host serves and stops."""
    if how == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    monkeypatch.setattr(process_support, "SESSIOND", [sys.executable, "-c", UNHEARD, how])
    with HostProcess(tmp_path / "session.sqlite3") as host:
        for n in range(2):
            assert host.post(f"id-{n}", "hello").status_code == 200
        assert host.stop() == 0


def test_a_second_signal_ends_a_stop(tmp_path: Path) -> None:
    """A stop that a client holds up ends at the second signal, with exit code 1 and a line."""
    with HostProcess(tmp_path / "session.sqlite3") as host, unread_answer(host):
        host.send(signal.SIGTERM)
        wait_until(lambda: "stop requested" in host.errors, host)
        assert host.stop(signal.SIGINT) == 1
    assert "sessiond: error: a second signal ended the stop before it was" in host.errors
    assert "session closed" not in host.errors
    assert sessiond("verify", tmp_path / "session.sqlite3").returncode == 0


def test_a_deadline_ends_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that does not end in its time is ended, with exit code 1 and a line."""
    monkeypatch.setattr(process_support, "SESSIOND", [sys.executable, "-c", HURRIED])
    with HostProcess(tmp_path / "session.sqlite3") as host, unread_answer(host):
        assert host.stop() == 1
    assert "sessiond: error: the stop was not complete after 0.1 s" in host.errors


@contextmanager
def unread_answer(host: HostProcess) -> Generator[None, None, None]:
    """Hold up a stop: a client asks for more than the kernel buffers, and reads none of it."""
    for n in range(3):  # one word each: few events, and large ones
        assert host.post(f"long-{n}", "x" * 900_000).status_code == 200
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", int(host.url.rpartition(":")[2])))
        client.sendall(b"GET /api/v1/sessions/default HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1, socket.MSG_PEEK)  # the answer has begun
        yield


def test_sighup_is_ignored_where_it_was(tmp_path: Path) -> None:
    """Started with SIGHUP ignored, as nohup does, a Host outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        host = HostProcess(tmp_path / "session.sqlite3")
    finally:
        signal.signal(signal.SIGHUP, before)
    with host:
        assert host.url
        host.send(signal.SIGHUP)
        assert host.post("one", "still here").status_code == 200
        assert host.stop() == 0


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "example.org"])  # noqa: S104
def test_only_loopback_is_served(address: str, tmp_path: Path) -> None:
    """An address that others can reach, or a name, is refused with exit code 1, no file made."""
    database = tmp_path / "session.sqlite3"
    command = ("serve", "--port", "0", "--host", address, "--session-db", database)
    assert address in error_line(sessiond(*command))
    assert not database.exists()


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("localhost", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
    ],
)
def test_url_of_a_listener(address: str, url: str) -> None:
    """The URL that is printed is one a client can use."""
    if address == "::1" and not has_ipv6_loopback():
        pytest.skip("no IPv6 on this machine")
    with bind_listener(address, 0) as listener:
        assert url_of(listener) == f"{url}{listener.getsockname()[1]}"


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_port_is_taken_once() -> None:
    """A port that somebody listens on is refused, the file untouched by then or not."""
    with bind_listener("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            bind_listener("127.0.0.1", port)
    with pytest.raises(ConfigurationError):
        bind_listener("10.0.0.1", 0)


def test_max_steps_and_prompt_are_taken(tmp_path: Path) -> None:
    """Options of the agent reach what is recorded."""
    options = ("--system-prompt", "Be brief.", "--max-steps", "1")
    with HostProcess(tmp_path / "session.sqlite3", *options) as host:
        assert host.post("one", "hello").status_code == 200
        request = host.session()["events"][1]
    assert request["type"] == "model_request_recorded"
    assert request["payload"]["system_prompt"] == "Be brief."
