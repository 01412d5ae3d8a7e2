"""Hosts held at a phase of their life until the test lets them on, and processes on terminals."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio
from log_support import Conversation, rows_of, write_rows
from process_support import PATIENCE_S, TREE, wait_until, wal_of

from actors.agent import recover
from actors.errors import StoreError
from actors.owner_lock import OwnerLock
from actors.reader import open_reader
from actors.session_log import open_session_log
from web.offline import load, verify_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from process_support import HostProcess

    from actors.events import Event
    from actors.snapshot import Snapshot

# The command, with one function of its own held at its n-th call: it calls the test, and goes on
# once that has hung up.
HELD = """
import importlib, select, socket, sys

where, nth, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv = ["sessiond", *sys.argv[4:]]
module, _, names = where.partition(":")
*owners, name = names.split(".")
place = importlib.import_module(module)
for owner in owners:
    place = getattr(place, owner)
real, calls = getattr(place, name), []

def held(*args, **kwargs):
    calls.append(None)
    if len(calls) == nth:
        with socket.create_connection(("127.0.0.1", port)) as test:
            # Looking up now and then: a signal just before a wait would have to wait as well.
            while not select.select([test], [], [], 0.01)[0]:
                pass
    return real(*args, **kwargs)

setattr(place, name, held)
from web.__main__ import main

main()
"""

CHECKED_S = 0.5
"""Between two looks whether what is waited for can still come."""

# Makes the terminal that it was started on its own, as a login does.
ON_TERMINAL = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Hold:
    """A place in the program under test where it is held."""

    def __init__(self, where: str, nth: int = 1) -> None:
        """Prepare to hold ``where``, as ``module:name`` or ``module:class.name``."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(CHECKED_S)
        port = self._listener.getsockname()[1]
        self.command = [sys.executable, "-c", HELD, where, str(nth), str(port)]
        """What stands in for ``sessiond``."""

    @contextmanager
    def reached(self, check: Callable[[], object]) -> Generator[None, None, None]:
        """Wait until the program is there, and let it on when the block is left.

        ``check`` is called all the while, to fail where the program has ended.
        """
        with self._listener, self._called(check):
            yield

    def _called(self, check: Callable[[], object]) -> socket.socket:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                return self._listener.accept()[0]
            check()
        raise AssertionError("it never came there")


@contextmanager
def held_at(hold: Hold, host: HostProcess) -> Generator[None, None, None]:
    """Wait until a Host is where it is held, and let it on when the block is left."""

    def check() -> None:
        assert "sessiond: error" not in host.errors, host.errors

    with hold.reached(check):
        yield


def ask_to_stop(host: HostProcess, number: signal.Signals) -> None:
    """Send a signal and return once the Host has taken it."""
    host.send(number)
    wait_until(lambda: "stop requested" in host.errors, host)


def write_unfinished(database: Path, chunks_n: int = 1_200) -> Snapshot:
    """Make a database of two pages whose last Turn a kill has cut short; return the session."""
    conversation = Conversation()
    events: list[Event] = [*conversation.turn(calls_n=1), conversation.input()]
    events += [conversation.request(), *(conversation.chunk() for _ in range(chunks_n))]
    write_rows(database, rows_of(events))
    found = session_in(database)
    for suffix in ("-wal", "-shm"):  # that reading made
        database.with_name(database.name + suffix).unlink()
    return found


def session_in(database: Path) -> Snapshot:
    """Return the session, and check it and all others of the file."""
    with open_reader(database) as reader:
        assert [report.fault for report in verify_sessions(reader)] == [None]
        return load(reader, "default")


def assert_closed(database: Path) -> None:
    """Check that a file was closed by whoever had it open: nothing is beside it but its lock."""
    beside = {path.name for path in database.parent.glob(f"{database.name}*")}
    assert beside <= {database.name, f"{database.name}-lock"}
    assert not wal_of(database).exists()


def assert_kept(database: Path, before: Snapshot) -> Snapshot:
    """Check that a session holds what it held before, unchanged, and return it as it is now."""
    now = session_in(database)
    assert now[: len(before)] == before[:]
    return now


def assert_goes_on(database: Path) -> None:
    """Check that the next start opens the session, records what is owed, and takes a Turn."""
    trio.run(goes_on, database)


async def goes_on(database: Path) -> None:
    """Check the same from a task."""
    async with open_session_log("default", database) as log:
        await recover(log)
        conversation = Conversation(after=len(log.snapshot()))
        conversation.turn_n = log.snapshot().turns_n
        await log.append(conversation.input(invocation_id="after-the-stop"))
        await recover(log)
    assert session_in(database).open_turn is None


# --- terminals --------------------------------------------------------------------------------


class Terminal:
    """A terminal, and the program that was started on it, as its session's leader."""

    def __init__(self, *command: str | Path, **environment: str) -> None:
        """Start the command; all that it writes is kept."""
        self._keyboard, inside = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *command],
            cwd=TREE,
            env=os.environ | environment,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self._shown = bytearray()
        self._news = threading.Condition()
        self._is_open = True
        self._told_to_go, self._go = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._keyboard, self._told_to_go], [], [])
            try:
                # Not while another thread closes it: the terminal would live until this returned.
                piece = b"" if self._told_to_go in ready else os.read(self._keyboard, 65_536)
            except OSError:  # Linux: nobody has the other end open any more
                return
            if not piece:
                return
            with self._news:
                self._shown += piece
                self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        self.hang_up()

    @property
    def shown(self) -> str:
        """All that was written to it."""
        return self._shown.decode(errors="replace")

    def check(self) -> None:
        """Fail if the program has ended."""
        assert self._process.poll() is None, self.shown

    def wait_for(self, text: str, after: str = "") -> None:
        """Wait until a text was written to it, behind another one."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while text not in self.shown.partition(after)[2] if after else text not in self.shown:
                self.check()
                assert time.monotonic() < deadline, self.shown
                self._news.wait(CHECKED_S)

    def press(self, keys: str) -> None:
        """Type something; Ctrl-C is ``\\x03``."""
        os.write(self._keyboard, keys.encode())

    def hang_up(self) -> None:
        """Close it, as a terminal's window is closed."""
        if self._is_open:
            self._is_open = False
            os.close(self._go)
            self._reader.join(PATIENCE_S)
            os.close(self._told_to_go)
            os.close(self._keyboard)

    def wait(self) -> int:
        """Wait for the program's end and return its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def ended_at_last(database: Path) -> Generator[None, None, None]:
    """Kill the Host that owns a file, if one still does when the block is left."""
    try:
        yield
    finally:
        lock = database.with_name(database.name + "-lock")
        if is_owned(database):
            os.kill(int(lock.read_text()), signal.SIGKILL)


def is_owned(database: Path) -> bool:
    """Tell whether a process owns the file; its lock goes with it."""
    try:
        OwnerLock.acquire(database).release()
    except StoreError:
        return True
    return False


def wait_until_left(database: Path) -> None:
    """Wait until no process owns a file that one does."""
    deadline = time.monotonic() + PATIENCE_S
    while is_owned(database):
        assert time.monotonic() < deadline, "its owner does not end"


def signalled(
    command: Sequence[str | Path], hold: Hold, number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Run an offline command, signal it where it is held, and return it as that ended it."""
    with subprocess.Popen(
        [*hold.command, *command],
        cwd=TREE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:

        def check() -> None:
            assert process.poll() is None, process.communicate()

        try:
            with hold.reached(check):
                process.send_signal(number)
                output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
