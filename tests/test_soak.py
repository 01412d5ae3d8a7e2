"""Hours of a Host's life in minutes: what must not grow does not, and what may grows as it should.

A real Host answers one Turn after the other while readers of every kind come, linger and leave.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import process_support
import pytest
from attrs import define, field, frozen
from process_support import PATIENCE_S, SESSIOND, TREE, HostProcess, sessiond, wait_until, wal_of
from stop_support import assert_closed, session_in

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import httpx

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="a process is looked into as Linux has it"
)

WORDS_N = 200
"""In each input. The echo of a Turn takes an event a word, and six more."""
POLL_S = 0.02
"""Between two looks of a reader that follows a Turn."""
PAGER_BYTES = 2_048
"""What the pager takes of an export in a Turn's time."""
EVENT_BYTES = 800
"""What a small event may take of memory for good; measured were 520."""
ROOM_BYTES = 2_000_000
"""What the allocator may keep of the answers that were rendered meanwhile."""
SLACK = 1.05
"""By what factor the resident memory may miss what the first half of a run lets expect."""
WAL_BYTES = 2 * 1_000 * (4_096 + 24)
"""SQLite moves the ``-wal`` into the file at a thousand pages, and begins it anew as soon as
nobody is in the middle of reading it: twice that leaves room for who just is."""

# A Host that tells, at SIGUSR1, how many tasks it has. It lets go of a connection two seconds after
# that was last used; a user's takes five.
COUNTED = """
import functools, os, signal

import hypercorn.config
import trio

import web.host
from actors.kernel.fibers import Plugin
from web.__main__ import main

async def set_up(context, config):
    async def tell():
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                os.write(2, b"tasks %d\\n" % trio.lowlevel.current_statistics().tasks_living)

    context.start_soon(tell)

plugins = ((Plugin("counted", set_up), None),)
hypercorn.config.Config.keep_alive_timeout = 2
web.host.HostConfig = functools.partial(web.host.HostConfig, plugins=plugins)
main()
"""

GET_SESSION = b"GET /api/v1/sessions/default HTTP/1.1\r\nHost: localhost\r\n\r\n"


@frozen
class Sample:
    """A Host as it was between two Turns."""

    events_n: int
    resident_bytes: int
    files_n: int
    threads_n: int
    tasks_n: int


@define
class Soak:
    """A Host, its readers, and what was measured."""

    host: HostProcess
    database: Path
    client: httpx.Client
    seen: int = 0
    """The sequence up to which the reader that follows has the session."""
    turns_n: int = 0
    wal_bytes: list[int] = field(factory=list[int])
    samples: list[Sample] = field(factory=list[Sample])

    def turn(self, callers: ThreadPoolExecutor) -> None:
        """Have a Turn run, and follow it as it is recorded."""
        self.turns_n += 1
        calling = callers.submit(self.host.post, f"turn-{self.turns_n}", "word " * WORDS_N)
        while not wait({calling}, POLL_S).done:
            self.follow()
        assert calling.result().status_code == 200
        self.follow()

    def follow(self) -> None:
        """Ask for what is new: it begins where the last answer ended."""
        answer = self.client.get("/api/v1/sessions/default", params={"after": self.seen})
        assert answer.status_code == 200
        news = [event["sequence"] for event in answer.json()["events"]]
        assert news == list(range(self.seen + 1, self.seen + 1 + len(news)))
        self.seen += len(news)
        self.wal_bytes.append(wal_of(self.database).stat().st_size)

    def read_all(self) -> None:
        """Ask for the whole session."""
        answer = self.client.get("/api/v1/sessions/default")
        assert answer.json()["last_sequence"] == self.seen

    def leave_early(self) -> None:
        """Ask for the whole session on a connection of its own, and hang up on the answer."""
        with self.connected() as connection:
            connection.sendall(GET_SESSION)
            assert connection.recv(1)

    @contextmanager
    def connected(self) -> Generator[socket.socket, None, None]:
        """A connection to the Host."""
        port = int(self.host.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            yield connection

    def sample(self) -> Sample:
        """Measure the Host as it is."""
        self.samples.append(self.measure())
        return self.samples[-1]

    def is_level(self) -> bool:
        """Tell whether it has no more of what may not grow than when it was first measured."""
        first, now = self.samples[0], self.measure()
        return all(
            getattr(now, name) <= getattr(first, name)
            for name in ("files_n", "threads_n", "tasks_n")
        )

    def measure(self) -> Sample:
        process = Path(f"/proc/{self.host.pid}")
        return Sample(
            self.seen,
            resident_bytes(process),
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
            self.count_tasks(),
        )

    def count_tasks(self) -> int:
        """Ask the Host how many tasks live in it."""
        told_n = self.host.errors.count("tasks ")
        self.host.send(signal.SIGUSR1)
        wait_until(lambda: self.host.errors.count("tasks ") > told_n, self.host)
        return int(self.host.errors.rpartition("tasks ")[2].split()[0])


def resident_bytes(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1_024


@contextmanager
def soaking(database: Path) -> Generator[Soak, None, None]:
    with HostProcess(database, "--log-level", "error") as host, host.client() as client:
        # A connection of its own each time: one that rests may be hung up on as it is used again.
        client.headers["Connection"] = "close"
        yield Soak(host, database, client)
        assert "Traceback" not in host.errors


# --- readers that linger ----------------------------------------------------------------------


@define
class Pager:
    """An export into a pipe that is read a little at a time."""

    process: subprocess.Popen[bytes]
    taken: bytearray = field(factory=bytearray)

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def turn_page(self) -> None:
        """Take a little more; there is always more to take."""
        assert self.process.poll() is None
        self.taken += os.read(self.pipe, PAGER_BYTES)

    def read_on(self) -> list[int]:
        """Read to the end and return the sequences of all that was exported."""
        while piece := os.read(self.pipe, 1 << 20):
            self.taken += piece
        assert self.process.wait(PATIENCE_S) == 0
        return [json.loads(line)["sequence"] for line in self.taken.splitlines()]


@contextmanager
def paging(database: Path) -> Generator[Pager, None, None]:
    command = [*SESSIOND, "export", str(database)]
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE) as process:
        try:
            yield Pager(process)
        finally:
            process.kill()


class OfflineReaders:
    """Commands that read the file beside the Host, one after the other."""

    def __init__(self, callers: ThreadPoolExecutor, database: Path) -> None:
        self._callers = callers
        self._commands = [("verify", database), ("show", database), ("export", database)]
        self._running: list[Future[subprocess.CompletedProcess[str]]] = []

    def begin_next(self) -> None:
        """Begin the next command, unless the one before still runs."""
        if not self._running or self._running[-1].done():
            command = self._commands[len(self._running) % len(self._commands)]
            self._running.append(self._callers.submit(sessiond, *command))

    def assert_well(self) -> None:
        """Wait for the last to end, and check that none had anything to complain of."""
        assert self._running
        for each in self._running:
            done = each.result()
            assert (done.returncode, done.stderr) == (0, ""), done.args


# --- the soak ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events_n", "samples_n"),
    [
        pytest.param(1_200, 3, id="minutes"),
        pytest.param(40_000, 20, id="hours", marks=[pytest.mark.stress, pytest.mark.timeout(1800)]),
    ],
)
def test_what_grows_over_hours(
    events_n: int, samples_n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open files, threads and tasks stay as they are; memory grows by the events alone.

    Meanwhile the ``-wal`` stays within bounds, though an export lingers in a pager all along, and
    a client that takes its answer at the very end still gets all of it.
    """
    monkeypatch.setattr(process_support, "SESSIOND", [sys.executable, "-c", COUNTED])
    with (
        ThreadPoolExecutor() as callers,
        soaking(tmp_path / "session.sqlite3") as soak,
        ExitStack() as lingering,
    ):
        offline = OfflineReaders(callers, soak.database)
        while soak.seen < events_n // samples_n:
            soak.turn(callers)
        pager = lingering.enter_context(paging(soak.database))
        late = lingering.enter_context(soak.connected())
        late.sendall(GET_SESSION)
        assert late.recv(1, socket.MSG_PEEK)
        soak.sample()
        while soak.seen < events_n:
            soak.turn(callers)
            pager.turn_page()
            soak.leave_early()
            if soak.seen * samples_n >= events_n * len(soak.samples):
                offline.begin_next()
                soak.read_all()
                soak.sample()
        offline.assert_well()
        sequences = pager.read_on()
        assert sequences == list(range(1, len(sequences) + 1))
        assert whole_answer(late)["last_sequence"] >= events_n // samples_n
        readers_leave_nothing(soak, rounds_n=2)
        wait_until(soak.is_level, soak.host)  # what readers had who left is let go of in time
        soak.sample()
        assert soak.host.stop() == 0
    report(soak)
    assert_closed(soak.database)
    assert session_in(soak.database).last_sequence == soak.seen
    assert_memory_is_events(soak.samples)
    assert max(soak.wal_bytes) <= WAL_BYTES


def whole_answer(connection: socket.socket) -> Any:
    """Read an answer to its end, as it was announced."""
    with closing(http.client.HTTPResponse(connection)) as answer:
        answer.begin()
        return json.loads(answer.read())


def readers_leave_nothing(soak: Soak, rounds_n: int) -> None:
    """Check that readers alone, of a session that does not grow, cost no memory that stays."""
    after_round: list[int] = []
    for _ in range(rounds_n):
        for _ in range(10):
            soak.read_all()
            soak.leave_early()
            for _ in range(10):
                soak.follow()
        after_round.append(soak.sample().resident_bytes)
    assert after_round[-1] <= after_round[0] + ROOM_BYTES, after_round


def assert_memory_is_events(samples: Sequence[Sample]) -> None:
    """Check that an event takes as much at the end as at the beginning, and not too much at all.

    The session is kept in memory, so that what is resident grows with its events: by how much
    each, the first half tells, and the rest must be that much again and no more.
    """
    start, middle, end = samples[0], samples[len(samples) // 2], samples[-1]
    allowed = EVENT_BYTES * (end.events_n - start.events_n) + ROOM_BYTES
    assert end.resident_bytes - start.resident_bytes <= allowed, samples
    event_bytes = (middle.resident_bytes - start.resident_bytes) / (
        middle.events_n - start.events_n
    )
    expected = middle.resident_bytes + event_bytes * (end.events_n - middle.events_n)
    assert end.resident_bytes <= expected * SLACK, samples


def report(soak: Soak) -> None:
    """Print what was measured; shown with ``-s``, and when the test fails."""
    print(f"{soak.turns_n} turns; -wal at most {max(soak.wal_bytes) / 1e6:.1f} MB")
    for sample in soak.samples:
        resident = f"{sample.resident_bytes / 1e6:6.1f} MB"
        print(
            f"{sample.events_n:6} events {resident} {sample.files_n:3} files "
            f"{sample.threads_n:3} threads {sample.tasks_n:3} tasks"
        )
