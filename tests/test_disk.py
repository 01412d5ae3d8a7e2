"""A disk that is full, fails, can only be read, loses its files or is slow: at every point.

``disk_trials`` says what must hold whatever fails. Here it is asked of chosen system calls and
statements, and of real Hosts on real small disks.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import process_support
import pytest
import trio
from attrs import asdict, evolve
from disk_statements import ERRORS, StatementFaults
from disk_support import (
    ALWAYS,
    COUNT,
    DONE,
    FAIL,
    HOLD,
    TEAR,
    VANISH,
    Disk,
    SmallDisk,
    build_shim,
    in_own_mounts,
    quick_directory,
)
from disk_trials import BATCHES, NAME, Plan, Trial, tight
from hypothesis import example, given, settings
from hypothesis import strategies as st
from log_support import SESSION, Conversation, chained, chunk, rows_of, stored_rows, write_rows
from process_support import (
    PATIENCE_S,
    TREE,
    Document,
    HostProcess,
    error_line,
    sessiond_each,
    wait_until,
    wal_of,
)
from trio.testing import wait_all_tasks_blocked

import actors.store
from actors.errors import AppendFailed, OutcomeUnknown, StoreError, StoreStopped
from actors.reader import open_reader
from actors.session_log import open_session_log
from actors.store import Store, connect, open_store
from web.offline import verify_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from actors.rows import Row

LONG_TEXT = "word " * 20_000
"""An echoed Turn of so many chunks does not end before a test has looked at it."""

# --- system calls that fail: the n-th, and all from there on --------------------------------------

FILE, WAL, SHM = NAME, f"{NAME}-wal", f"{NAME}-shm"
# About how many there are of each in a trial: (call, file) -> so many.
CALLS_N = {
    ("write", NAME): 31,
    ("write", f"{NAME}-wal"): 81,
    ("write", f"{NAME}-shm"): 24,
    ("write", f"{NAME}-new*"): 11,
    ("write", f"{NAME}-lock"): 1,
    ("sync", NAME): 3,
    ("sync", f"{NAME}-wal"): 13,
    ("sync", f"{NAME}-new*"): 7,
    ("truncate", NAME): 3,
    ("truncate", f"{NAME}-shm"): 3,
    ("open", NAME): 9,
    ("open", f"{NAME}-wal"): 3,
    ("open", f"{NAME}-shm"): 3,
    ("open", f"{NAME}-new*"): 5,
    ("open", f"{NAME}-lock"): 1,
    ("open", f"{NAME}-journal"): 2,
    ("read", NAME): 22,
    ("read", f"{NAME}-wal"): 56,
    ("read", f"{NAME}-new*"): 5,
    ("unlink", f"{NAME}-new*"): 6,
}
FAULTS = [(FAIL, errno.EIO), (FAIL, errno.EROFS), (FAIL, errno.ENOSPC), (TEAR, errno.ENOSPC)]
STARTS = ["new", "clean", "killed"]


class Laboratory:
    """A process on a faulty disk that runs one trial after the other."""

    def __init__(self, directory: Path, shim: Path) -> None:
        control = directory / "control"
        disk = Disk(control)
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("disk_trials.py"), control, directory],
            env=os.environ | disk.environment(shim) | {"PYTHONPATH": str(TREE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, plan: Plan) -> Document:
        """Run one trial to its end, and return what it came to; it kept all the laws."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self._process.stdin.flush()
        told: Document = json.loads(self._process.stdout.readline())
        assert told["fault"] is None, f"{plan}\n{told['fault']}"
        return told

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def laboratory(shim: Path) -> Generator[Laboratory, None, None]:
    with quick_directory() as directory:
        made = Laboratory(directory, shim)
        try:
            yield made
        finally:
            made.close()


@st.composite
def failing_calls(draw: st.DrawFn) -> Plan:
    call, file = draw(st.sampled_from(list(CALLS_N)))
    action, error = draw(st.sampled_from(FAULTS))
    if call in {"write", "sync"} and file in {FILE, WAL} and draw(st.integers(0, 3)) == 0:
        action = VANISH
    return Plan(
        call,
        file,
        action,
        error,
        skip=draw(st.integers(0, CALLS_N[call, file] - 1)),
        times=1 if action == VANISH else draw(st.sampled_from([1, 2, 3, ALWAYS])),
        start=draw(st.sampled_from(STARTS)),
        lifted_after=draw(st.integers(1, 3)),
        lifted_before_close=draw(st.booleans()),
    )


@settings(max_examples=40)
@given(plan=failing_calls())
def test_any_system_call_may_fail(laboratory: Laboratory, plan: Plan) -> None:
    """Whichever call on whichever file fails, once or until mended: nothing lost or invented."""
    laboratory.run(plan)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", STARTS)
def test_every_system_call_may_fail(laboratory: Laboratory, start: str) -> None:
    """The same for each single call there is, and all from there on."""
    for call, file in CALLS_N:
        counted = Plan(call, file, COUNT, start=start)
        for skip in range(laboratory.run(counted)["hits_n"]):
            for action, error in [*FAULTS, (VANISH, 0)][: 5 if file in {FILE, WAL} else 4]:
                for times in (1,) if action == VANISH else (1, ALWAYS):
                    for after, before_close in ((1, True), (2, True), (99, False)):
                        plan = Plan(call, file, action, error, skip, times, start)
                        laboratory.run(
                            evolve(plan, lifted_after=after, lifted_before_close=before_close)
                        )


ALL_WELL = ["opened", *["ok"] * len(BATCHES), "closed"]
ONE_FAILS = ["AppendFailed", "closed", *["ok"] * (len(BATCHES) - 1), "opened"]
NO_SPACE, READ_ONLY, BROKEN = errno.ENOSPC, errno.EROFS, errno.EIO
TO_THE_END: dict[str, Any] = {"lifted_after": 99, "lifted_before_close": False}


@pytest.mark.parametrize("error", [NO_SPACE, READ_ONLY, BROKEN], ids=["full", "read-only", "io"])
@pytest.mark.parametrize(
    ("plan", "came_to"),
    [
        pytest.param(Plan("write", SHM), ["StoreError"], id="open"),
        pytest.param(Plan("write", WAL, skip=4, times=1), ONE_FAILS, id="commit"),
        pytest.param(Plan("write", WAL, skip=14, times=1), ONE_FAILS, id="insert"),
        pytest.param(Plan("write", FILE), ALL_WELL, id="checkpoint"),
        pytest.param(Plan("write", FILE, **TO_THE_END), [*ALL_WELL[:-1], "StoreError"], id="close"),
    ],
)
def test_a_write_that_fails(
    laboratory: Laboratory, plan: Plan, came_to: list[str], error: int
) -> None:
    """What comes of it at each point; a checkpoint that fails harms nobody and is made later."""
    told = laboratory.run(evolve(plan, action=FAIL, error=error, start="clean"))
    assert told["hits_n"] > 0
    found = told["came_to"]
    assert (sorted(found) if came_to is ONE_FAILS else found) == (
        sorted(came_to) if came_to is ONE_FAILS else came_to
    )


@pytest.mark.parametrize("action", [FAIL, VANISH], ids=["fsync fails", "vanishes"])
@pytest.mark.parametrize("file", [FILE, WAL])
def test_what_leaves_a_commit_in_doubt(laboratory: Laboratory, action: int, file: str) -> None:
    """A failed fsync, or a file that goes while a transaction is written, stops the writer.

    Where it is the database's own fsync, that belongs to a checkpoint, which is made again.
    """
    call = "write" if action == VANISH else "sync"
    told = laboratory.run(Plan(call, file, action, BROKEN, start="clean"))
    assert told["hits_n"] > 0
    in_doubt = "OutcomeUnknown" in told["came_to"]
    assert in_doubt is not (action == FAIL and file == FILE)
    if in_doubt:
        assert told["came_to"].count("OutcomeUnknown") == 1
        assert "AppendFailed" not in told["came_to"]


@pytest.mark.parametrize("skip", range(6))
def test_an_index_that_opens_too_late_costs_nothing(laboratory: Laboratory, skip: int) -> None:
    """A killed Host's -wal outlives a start that comes by its -shm at the third attempt only."""
    laboratory.run(Plan("open", SHM, FAIL, READ_ONLY, skip, times=3, start="killed"))


# --- statements that fail, on any machine -----------------------------------------------------

STATEMENTS = ["PRAGMA journal_mode", "BEGIN", "INSERT", "COMMIT", "PRAGMA wal_checkpoint"]


@st.composite
def failing_statements(draw: st.DrawFn) -> Plan:
    return Plan(
        draw(st.sampled_from(STATEMENTS)),
        draw(st.sampled_from([FILE, WAL])),
        draw(st.sampled_from([FAIL, TEAR, DONE, VANISH])),
        draw(st.sampled_from(list(ERRORS))),
        skip=draw(st.integers(0, len(BATCHES) + 1)),
        times=draw(st.sampled_from([1, 2, ALWAYS])),
        start=draw(st.sampled_from(STARTS)),
        lifted_after=draw(st.integers(1, 3)),
        lifted_before_close=draw(st.booleans()),
    )


@settings(max_examples=25)
@given(plan=failing_statements())
@example(plan=Plan("COMMIT", FILE, FAIL, sqlite3.SQLITE_IOERR_SHMSIZE, times=2))
@example(plan=Plan("PRAGMA journal_mode", FILE, VANISH, sqlite3.SQLITE_FULL, start="clean"))
def test_any_statement_may_fail(plan: Plan) -> None:
    """Whichever statement fails, before, in the middle of or after its effect: the same laws."""
    with quick_directory() as directory:
        run_trial(plan, directory)


def run_trial(plan: Plan, directory: Path) -> Trial:
    faults = StatementFaults()
    trial = Trial(plan, faults, directory / NAME)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(actors.store, "connect", partial(tight, faults.connect))
        trio.run(trial.run)
    return trial


KINDS = {
    "full": (FAIL, sqlite3.SQLITE_FULL, "database or disk is full (SQLITE_FULL)"),
    "full, rolled back": (TEAR, sqlite3.SQLITE_FULL, "database or disk is full (SQLITE_FULL)"),
    "io": (FAIL, sqlite3.SQLITE_IOERR_WRITE, "disk I/O error (SQLITE_IOERR_WRITE)"),
    "read-only": (FAIL, sqlite3.SQLITE_READONLY, "a readonly database (SQLITE_READONLY)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "COMMIT"])
async def test_each_phase_of_an_append_tells_what_is_wrong(
    statement: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error and the health say it in SQLite's words; nothing shows; then it goes on."""
    faults, path = StatementFaults(), tmp_path / NAME
    monkeypatch.setattr(actors.store, "connect", faults.connect)
    action, code, words = KINDS[kind]
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk("before"))
        before = log.snapshot()
        faults.arm(statement, FILE, action, error=code)
        for _ in range(2):
            with pytest.raises(AppendFailed) as raised:
                await log.append_many([chunk(1), chunk(2)])
            assert raised.value.fault.startswith("the database cannot be written: ")
            assert words in raised.value.fault
            assert (log.health, log.fault) == ("degraded", raised.value.fault)
            assert log.snapshot() is before
        faults.mend()
        await log.append_many([chunk(1), chunk(2)], expected_sequence=2)
        assert (log.health, log.fault) == ("ok", None)
    assert len(stored_rows(path)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_at_the_end_tells_what_is_wrong(kind: str, tmp_path: Path) -> None:
    """Closing raises it, and the next start has all that was acknowledged."""
    action, code, words = KINDS[kind]
    trial = run_trial(Plan("PRAGMA wal_checkpoint", FILE, action, code), tmp_path)
    assert trial.came_to == ALL_WELL  # mended before the end
    other = tmp_path / "other"
    other.mkdir()
    trial = run_trial(Plan("PRAGMA wal_checkpoint", FILE, action, code, **TO_THE_END), other)
    assert trial.came_to == [*ALL_WELL[:-1], "StoreError"]
    assert trial.line is not None
    assert "the database could not be checkpointed" in trial.line
    assert words in trial.line


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_that_fails_tells_what_is_wrong(kind: str, tmp_path: Path) -> None:
    """A start is refused with a line that names the file, and the next one finds all there is."""
    action, code, words = KINDS[kind]
    plan = Plan("PRAGMA journal_mode", FILE, action, code, start="killed")
    trial = run_trial(plan, tmp_path)
    assert trial.came_to == ["StoreError"]
    assert trial.line is not None
    assert trial.line.startswith(f"{tmp_path / NAME}: cannot be opened for writing: ")
    assert words in trial.line


@pytest.mark.parametrize("file", [FILE, WAL])
@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "COMMIT"])
async def test_a_file_that_vanishes_during_a_commit_is_in_doubt(
    statement: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that what no name leads to is kept; back in its place, a restart has it."""
    faults, path = StatementFaults(), tmp_path / NAME
    monkeypatch.setattr(actors.store, "connect", faults.connect)
    async with open_session_log(SESSION, path) as log:
        faults.arm(statement, file, VANISH, times=1)  # the first commit of this Host
        with pytest.raises(OutcomeUnknown, match="moved, deleted or replaced meanwhile"):
            await log.append(chunk(1))
        with pytest.raises(StoreStopped):
            await log.append(chunk(2))
        assert len(log.snapshot()) == 0
        assert log.health == "failed"
        (tmp_path / f"{file}.away").rename(tmp_path / file)
    async with open_session_log(SESSION, path) as log:
        assert [envelope.sequence for envelope in log.snapshot()] == [1]


def test_a_wal_deleted_before_the_first_commit_is_missed(tmp_path: Path) -> None:
    """From the opening on, not only from the first commit, the -wal must be where it was."""
    path = tmp_path / NAME
    store = open_store(path, SESSION, (0, None))
    wal_of(path).unlink()
    with pytest.raises(AppendFailed, match="the -wal file of the database was moved"):
        store.commit(chained([("kind", "1")]))
    store.close()
    assert stored_rows(path) == []


@pytest.mark.parametrize("statement", ["PRAGMA journal_mode", "BEGIN"])
async def test_a_database_that_vanishes_while_it_is_opened_is_refused(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Host does not begin on a file that is not in its place any more."""
    faults, path = StatementFaults(), tmp_path / NAME
    monkeypatch.setattr(actors.store, "connect", faults.connect)
    write_rows(path, [])
    faults.arm(statement, FILE, VANISH)
    with pytest.raises(StoreError, match="was moved, deleted or replaced while it was opened"):
        async with open_session_log(SESSION, path):
            pytest.fail("it was opened")


def test_a_store_that_never_saw_its_database_takes_nothing(tmp_path: Path) -> None:
    """One that is gone before there is a store to look for it is as one that is gone later."""
    path = tmp_path / NAME
    write_rows(path, [])
    connection = connect(path)
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    path.unlink()
    store = Store(connection, path, SESSION, (0, None), path)
    with pytest.raises(AppendFailed, match="the database file was moved"):
        store.commit(chained([("kind", "1")]))
    with pytest.raises(StoreError, match="moved, deleted or replaced"):
        store.close()


def test_a_database_that_opens_for_reading_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite makes do with that without a word; a Host could then never write anything."""
    path = tmp_path / NAME
    write_rows(path, [])

    def read_only(real: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{real.as_uri()}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(actors.store, "connect", read_only)
    with pytest.raises(StoreError, match=r"cannot be opened for writing: .*readonly"):
        open_store(path, SESSION, (0, None))


# --- small disks ------------------------------------------------------------------------------


def test_a_commit_that_fails_after_its_frames_were_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the index of a large -wal finds no room, a kill brings nothing back.

    By then all of the transaction is in the -wal and synced. A reader keeps that from being
    emptied.
    """
    monkeypatch.setattr(actors.store, "BUSY_TIMEOUT_S", 0.01)
    in_own_mounts(lambda: fail_to_index(tmp_path))


def fail_to_index(directory: Path) -> None:
    disk = SmallDisk(directory, 64 * 1024)
    path, copy = directory / NAME, directory / "copy.sqlite3"
    store = open_store(path, SESSION, (0, None))
    first = chained([("kind", "1")])
    store.commit(first)
    large = chained([("kind", json.dumps("x" * 3_400_000))] * 5, after=(1, first[0].digest))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM session_events").fetchall()
        disk.fill(but=17_000_000)
        fault = ""
        while "SHMSIZE" not in fault:  # until there is room for the frames, and not for more
            disk.give(16_384)
            with pytest.raises(AppendFailed) as raised:
                store.commit(large)
            fault = raised.value.fault
        disk.free()
        copy.write_bytes(path.read_bytes())
        wal_of(copy).write_bytes(wal_of(path).read_bytes())
        with open_reader(copy) as killed:
            assert killed.last_sequence(SESSION) == 1
        store.commit(large)
    store.close()
    assert len(stored_rows(path)) == 6


def at_the_file_size_limit(host: HostProcess) -> tuple[Callable[[], None], Callable[[], None]]:
    """Let a running Host write no file beyond its first page, and again any."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("another process is limited on Linux only")
    hard = resource.prlimit(host.pid, resource.RLIMIT_FSIZE)[1]
    limit = partial(resource.prlimit, host.pid, resource.RLIMIT_FSIZE)
    return lambda: limit((4096, hard)) and None, lambda: limit((hard, hard)) and None


def assert_sound(path: Path) -> None:
    """Check all of the file as ``verify`` does."""
    with open_reader(path) as reader:
        assert {report.fault for report in verify_sessions(reader)} <= {None}


def check_degraded(host: HostProcess, words: str, known: Document) -> None:
    """A Host that cannot write says why, everywhere, and goes on to be read."""
    for n in range(2):
        failed = host.post(f"failed-{n}", "x" * 200_000)
        assert (failed.status_code, failed.json()["code"]) == (503, "store_failed")
        assert words in failed.json()["detail"]
    with host.client() as client:
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert words in health.json()["detail"]
    assert host.session() == known


def check_well(host: HostProcess, known: Document) -> None:
    """With room again the same Host goes on with the next sequence."""
    answer = host.post("failed-0", "x" * 200_000)
    assert answer.status_code == 200
    with host.client() as client:
        assert client.get("/health").json()["status"] == "ok"
    events = host.session()["events"]
    assert events[: len(known["events"])] == known["events"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))


def test_a_host_at_a_file_size_limit(tmp_path: Path) -> None:
    """Told, readable, well again without a restart; stopped at it, it owes what is then made up.

    Such a stop ends in its time, with exit code 1 and one line.
    """
    path = tmp_path / NAME
    with HostProcess(path) as host, ThreadPoolExecutor() as callers, host.client() as client:
        assert host.post("first", "hello").status_code == 200
        known = host.session()
        limit, lift = at_the_file_size_limit(host)
        limit()
        check_degraded(host, "disk I/O error (SQLITE_IOERR_WRITE)", known)
        lift()
        check_well(host, known)
        begun = host.session()["last_sequence"]
        running = callers.submit(host.post, "cut", LONG_TEXT)
        wait_until(lambda: client.get("/health").json()["last_sequence"] > begun + 5, host)
        limit()
        assert running.result().json()["code"] == "store_failed"
        known = host.session()
        assert host.stop() == 1
        lines = [line for line in host.errors.splitlines() if line.startswith("sessiond: error: ")]
        assert len(lines) == 1, host.errors
        assert str(path) in lines[0]
        assert "could not be" in lines[0]
        assert "Traceback" not in host.errors
    assert_sound(path)
    with HostProcess(path) as host:
        session = host.session()
        assert session["events"][:-1] == known["events"]
        assert session["events"][-1]["payload"]["code"] == "interrupted"
        assert host.post("next", "hello").status_code == 200
        assert host.stop() == 0


def test_a_host_on_a_full_disk(tmp_path: Path) -> None:
    """The same on a file system without a free byte; and what a start says there."""
    in_own_mounts(lambda: live_on_a_full_disk(tmp_path))


def live_on_a_full_disk(directory: Path) -> None:
    disk = SmallDisk(directory, 2048)
    with HostProcess(directory / NAME) as host:
        assert host.post("first", "hello").status_code == 200
        known = host.session()
        disk.fill()
        check_degraded(host, "database or disk is full (SQLITE_FULL)", known)
        disk.free()
        check_well(host, known)
        assert host.stop() == 0
    said = Conversation()
    owing, new = directory / "owing.sqlite3", directory / "new.sqlite3"
    rows = rows_of([said.input(), said.request()])
    write_rows(owing, rows)
    before = owing.read_bytes()
    (directory / f"{NAME}-lock").rename(directory / "owing.sqlite3-lock")  # it takes no new page
    command = ["serve", "--port", "0", "--session-db"]
    disk.fill(but=32_768 + 8_192)  # the -shm, and less than recovery's transaction
    (unrecovered,) = sessiond_each([[*command, owing]])
    disk.fill()
    (unopened, unmade) = sessiond_each([[*command, owing], [*command, new]])
    full = "database or disk is full (SQLITE_FULL)"
    assert error_line(unrecovered) == (
        f"sessiond: error: {owing}: the database cannot be written: {full}"
    )
    assert error_line(unopened).startswith(f"sessiond: error: {owing}: cannot be ")
    assert error_line(unmade) == f"sessiond: error: {new}: cannot be opened for writing: {full}"
    assert owing.read_bytes() == before
    assert not new.exists()
    disk.free()
    assert stored_rows(owing) == rows
    write_rows(new, rows)


def test_a_start_where_nothing_can_be_written(tmp_path: Path) -> None:
    """On a read-only mount a Host refuses with one line; the readers read; no byte changes."""
    in_own_mounts(lambda: start_read_only(tmp_path))


def start_read_only(directory: Path) -> None:
    disk = SmallDisk(directory, 4096)
    killed, closed = directory / "killed.sqlite3", directory / "closed.sqlite3"
    write_rows(closed, [])
    with HostProcess(killed) as host:
        assert host.post("first", "hello").status_code == 200
        known = host.session()
        host.kill()
    disk.make_read_only()
    before = {place: place.read_bytes() for place in directory.iterdir()}
    told = sessiond_each(
        [
            ["verify", killed],
            *(
                ["serve", "--port", "0", "--session-db", path]
                for path in (killed, closed, directory / "new.sqlite3")
            ),
        ]
    )
    for serve in told[1:]:
        line = error_line(serve)
        assert f"{serve.args[-1]}: " in line
        assert "Read-only file system" in line
    assert told[0].returncode == 0
    assert {place: place.read_bytes() for place in directory.iterdir()} == before
    disk.make_writable()
    with HostProcess(killed) as host:
        assert host.session() == known
        assert host.post("second", "hello").status_code == 200
        assert host.stop() == 0


# --- a Host on a disk that changes under it ---------------------------------------------------


@pytest.fixture
def disk(shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk under every process that the test starts."""
    made = Disk(tmp_path / "control")
    for name, value in made.environment(shim).items():
        monkeypatch.setenv(name, value)
    return made


def test_a_disk_that_fails_under_a_host(disk: Disk, tmp_path: Path) -> None:
    """Read-only, as a file system turns that finds a fault in itself; moved; at last in doubt.

    The first two are told, and mended without a restart. After a failed fsync the Host says that
    it has failed, writes no more, is read, and stops cleanly: it knows of nothing that it owes.
    """
    path = tmp_path / NAME
    with HostProcess(path) as host, host.client() as client:
        assert host.post("first", "hello").status_code == 200
        known = host.session()
        disk.arm("write|sync|truncate", f"{NAME}*", error=errno.EROFS)
        check_degraded(host, "disk I/O error (SQLITE_IOERR_WRITE)", known)
        disk.mend()
        path.rename(tmp_path / "away")
        check_degraded(host, "the database file was moved, deleted or replaced", known)
        (tmp_path / "away").rename(path)
        check_well(host, known)
        known = host.session()
        disk.arm("sync", f"{NAME}-wal", error=errno.EIO, times=1)
        for _ in range(2):
            failed = host.post("second", "hello")
            assert (failed.status_code, failed.json()["code"]) == (503, "store_failed")
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert "SQLITE_IOERR_FSYNC" in health.json()["detail"]
        assert host.session() == known
        assert host.stop() == 0
    assert "Traceback" not in host.errors
    assert_sound(path)
    assert len(stored_rows(path)) >= known["last_sequence"]


def test_a_slow_disk_under_a_host(disk: Disk, tmp_path: Path) -> None:
    """While a commit hangs all but writing goes on; a stop waits for it, and nothing is lost."""
    path = tmp_path / NAME
    with HostProcess(path) as host, host.client() as client, ThreadPoolExecutor() as callers:
        assert host.post("first", "hello").status_code == 200
        known = host.session()
        disk.arm("sync", f"{NAME}-wal", HOLD)
        running = callers.submit(host.post, "slow", "hello")
        disk.wait_for_hit()
        queued = callers.submit(host.post, "queued", "hello")
        place = "/api/v1/agent/invocations"
        wait_until(lambda: client.get(f"{place}/queued").status_code == 200, host)
        assert client.get("/health").json()["status"] == "ok"
        assert host.session() == known
        assert client.delete(f"{place}/queued").status_code == 202
        assert queued.result().json()["code"] == "cancelled"
        host.send(signal.SIGTERM)
        wait_until(lambda: "stop requested" in host.errors, host)
        assert client.get("/health").json()["status"] == "stopping"
        assert host.session() == known
        disk.mend()
        assert host.wait() == 0
        answer = running.result().json()
        assert answer["code"] == "interrupted"
    new = stored_rows(path)[known["last_sequence"] :]
    assert [row.event_type for row in new] == ["user_input_accepted", "step_failed"]


HURRIED = """
import web.host
from web.__main__ import main

web.host.STOP_DEADLINE_S = 0.1
main()
"""


@pytest.mark.parametrize("when", ["at a commit", "at the start"])
def test_a_disk_that_never_answers_ends_with_the_deadline(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A stop does not wait for ever for a disk that hangs; the next start finds a sound file."""
    monkeypatch.setattr(process_support, "SESSIOND", [sys.executable, "-c", HURRIED])
    path = tmp_path / NAME
    write_rows(path, [])
    if when == "at the start":
        disk.arm("truncate", f"{NAME}-shm", HOLD)
    with HostProcess(path) as host, ThreadPoolExecutor() as callers:
        if when == "at a commit":
            assert host.url
            disk.arm("sync", f"{NAME}-wal", HOLD)
            callers.submit(host.post, "slow", "hello")
        disk.wait_for_hit()
        assert host.stop() == 1
        assert "sessiond: error: the stop was not complete after 0.1 s" in host.errors
    disk.mend()
    assert_sound(path)


async def test_a_slow_disk_holds_up_only_what_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop ticks, reads are served, who queues can leave, who was taken cannot, nor the end."""
    begun, go = threading.Event(), threading.Event()
    commit = Store.commit

    def slow(store: Store, rows: Sequence[Row]) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        commit(store, rows)

    monkeypatch.setattr(Store, "commit", slow)
    closed = trio.Event()
    scopes = {name: trio.CancelScope() for name in ("taken", "queued")}

    async def append(name: str) -> None:
        with scopes[name]:
            await log.append(chunk(name))

    async def hold_open(leave: trio.Event, task_status: trio.TaskStatus[Any]) -> None:
        async with open_session_log(SESSION, tmp_path / NAME) as opened:
            task_status.started(opened)
            await leave.wait()
        closed.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            leave = trio.Event()
            log = await nursery.start(hold_open, leave)
            nursery.start_soon(append, "taken")
            assert await trio.to_thread.run_sync(begun.wait, PATIENCE_S)
            nursery.start_soon(append, "queued")
            await wait_all_tasks_blocked()
            for scope in scopes.values():
                scope.cancel()
            leave.set()
            await wait_all_tasks_blocked()
            assert scopes["queued"].cancelled_caught
            assert not closed.is_set()
            assert (log.health, len(log.snapshot())) == ("ok", 0)
            go.set()
            await closed.wait()
    assert not scopes["taken"].cancelled_caught
    assert [envelope.event for envelope in log.snapshot()] == [chunk("taken")]
    assert len(stored_rows(tmp_path / NAME)) == 1
