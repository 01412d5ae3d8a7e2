"""The session log on real files: opening, appending, failing, and leaving in every way."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import trio
from log_support import (
    SESSION,
    Conversation,
    append_behind_the_back,
    assert_same,
    assert_stored,
    chained,
    chunk,
    rows_of,
    stored_rows,
    write_rows,
)
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

import actors.store
from actors.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    RejectedEvent,
    SequenceConflict,
    StoreError,
    StoreStopped,
    UnsoundSession,
)
from actors.events import ModelChunkRecorded
from actors.reader import PAGE_ROWS, Reader
from actors.session_log import open_session_log
from actors.store import MemoryStore, Store
from actors.values import Json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from actors.events import Event
    from actors.rows import Row
    from actors.session_log import SessionLog

TIMEOUT_S = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.sqlite3"


# --- what comes back ----------------------------------------------------------------------------


async def test_every_variant_comes_back_with_equal_projections(path: Path) -> None:
    """On disk, after a reload, and in memory: the same session."""
    events = Conversation().every_variant()
    async with open_session_log(SESSION, path) as log:
        await log.append_many(events)
        written = log.snapshot()
        assert_stored(path, log)
    async with open_session_log(SESSION, str(path)) as log:
        assert_same(log.snapshot(), written)
    async with open_session_log(SESSION) as log:
        await log.append_many(events)
        in_memory = log.snapshot()
    assert [envelope.event for envelope in in_memory] == events
    assert in_memory.model_history() == written.model_history()
    assert in_memory.transcript() == written.transcript()


async def test_a_conversation_goes_on_after_a_restart_at_any_point(path: Path) -> None:
    """Opened anew before each event, the session ends up as if it had never been closed."""
    events = Conversation().every_variant()
    for sequence, event in enumerate(events, 1):
        async with open_session_log(SESSION, path) as log:
            envelope = await log.append(event, expected_sequence=sequence)
            assert log.snapshot()[sequence - 1] == envelope
    async with open_session_log(SESSION, path) as log:
        assert [envelope.event for envelope in log.snapshot()] == events


async def test_what_append_returns_is_in_the_snapshot_and_on_the_disk(path: Path) -> None:
    """Whoever append returned to finds the event, and nobody can take it away from others."""
    async with open_session_log(SESSION, path) as log:
        first = await log.append(chunk({"deep": [1]}))
        assert list(log.snapshot()) == [first]
        assert [row.digest for row in stored_rows(path)] == [first.digest]
        assert isinstance(first.event, ModelChunkRecorded)
        value = first.event.chunk.value()
        assert isinstance(value, dict)
        value.clear()
        assert first.event.chunk.value() == {"deep": [1]}
        many = await log.append_many([chunk(2), chunk(3)])
        assert tuple(log.snapshot()) == (first, *many)


async def test_several_sessions_share_a_file(path: Path) -> None:
    """Each has sequences and a chain of its own; a new one is told of those that are there."""
    for session_id in ("b", "a", "c"):
        async with open_session_log(session_id, path) as log:
            await log.append_many(Conversation().turn())
            others = log.other_session_ids
    assert others == ("a", "b")
    async with open_session_log("b", path) as log:
        assert log.other_session_ids == ()
        assert {envelope.session_id for envelope in log.snapshot()} == {"b"}
        assert [envelope.sequence for envelope in log.snapshot()] == [1, 2, 3, 4]


# --- what an append promises --------------------------------------------------------------------


async def test_every_append_is_a_checkpoint_and_no_read_is(path: Path) -> None:
    """Returning or refusing, an append lets others run; a snapshot never does."""
    for database in (None, path):
        async with open_session_log(SESSION, database) as log:
            with assert_checkpoints():
                await log.append(chunk(1))
            with assert_checkpoints():
                await log.append_many([chunk(2), chunk(3)])
            with assert_checkpoints():
                assert await log.append_many([]) == ()
            await refused_with_a_checkpoint(RejectedEvent, lambda: log.append(TOO_DEEP))
            await refused_with_a_checkpoint(RejectedEvent, lambda: log.append(OUT_OF_TURN))
            await refused_with_a_checkpoint(SequenceConflict, lambda: log.append(chunk(4), 9))
            with assert_no_checkpoints():
                assert len(log.snapshot()) == 3
        await refused_with_a_checkpoint(LogClosed, lambda: log.append(chunk(4)))
        assert len(log.snapshot()) == 3


async def refused_with_a_checkpoint(
    kind: type[Exception], append: Callable[[], Awaitable[object]]
) -> None:
    # assert_checkpoints asks nothing of a block that raises, so the raise stays inside.
    with assert_checkpoints():
        try:
            await append()
        except kind:
            return
        pytest.fail(f"{kind.__name__} was not raised")


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


TOO_DEEP = ModelChunkRecorded("turn-1/step-1", Json(_nested(128)))
"""A value that may be nested so deep, but not one level further down in a payload."""
OUT_OF_TURN = Conversation().every_variant()[-1]


async def test_a_bad_payload_costs_its_own_caller_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before the writer hears of it, together with all that came along."""
    commits: list[int] = []
    commit = Store.commit

    def counted(store: Store, rows: Sequence[Row]) -> None:
        commits.append(len(rows))
        commit(store, rows)

    monkeypatch.setattr(Store, "commit", counted)
    async with open_session_log(SESSION, path) as log:
        with pytest.raises(RejectedEvent, match="deeper than 128"):
            await log.append_many([chunk(1), TOO_DEEP])
        with pytest.raises(RejectedEvent, match="not an event"):
            await log.append("step_failed")  # type: ignore[arg-type] # what is under test
        assert commits == []
        assert len(log.snapshot()) == 0
        await log.append(chunk(1))
    assert commits == [1]


# --- a disk that fails --------------------------------------------------------------------------


class Connection(sqlite3.Connection):
    """A real connection whose next COMMIT can be made to fail after the fact or before it."""

    failing: sqlite3.Error | None = None
    written: bool = False
    """Whether the failing COMMIT takes effect all the same."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.failing is not None:
            super().execute("COMMIT" if self.written else "ROLLBACK")
            error, self.failing = self.failing, None
            raise error
        return super().execute(sql, *parameters)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Gather the writing connections that are opened from now on."""
    opened: list[Connection] = []

    def connect(real: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            real, isolation_level=None, check_same_thread=False, factory=Connection
        )
        opened.append(connection)
        return connection

    monkeypatch.setattr(actors.store, "connect", connect)
    return opened


def io_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


async def test_a_full_disk_fails_the_append_and_room_mends_it(
    path: Path, connections: list[Connection]
) -> None:
    """Nothing of the failed append is seen or stored, and its sequence goes to the next."""
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk("before"))
        before = log.snapshot()
        connection = connections[-1]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 2}").fetchall()
        for _ in range(2):
            with pytest.raises(AppendFailed, match="full"):
                await log.append_many([chunk("small"), chunk("x" * 100_000)])
            assert log.health == "degraded"
            assert log.snapshot() is before
        connection.execute("PRAGMA max_page_count=1000000").fetchall()
        (envelope,) = await log.append_many([chunk("x" * 100_000)], expected_sequence=2)
        assert log.health == "ok"
        assert_stored(path, log)
    async with open_session_log(SESSION, path) as log:
        assert log.snapshot()[1] == envelope


@pytest.mark.parametrize("written", [False, True])
async def test_a_failed_fsync_stops_the_writer_and_the_next_start_decides(
    written: bool, path: Path, connections: list[Connection]
) -> None:
    """Whether or not the events are there after all, they are so as a whole and in the chain."""
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk("before"))
        before = log.snapshot()
        connections[-1].failing = io_error(sqlite3.SQLITE_IOERR_FSYNC)
        connections[-1].written = written
        with pytest.raises(OutcomeUnknown):
            await log.append_many([chunk(1), chunk(2)])
        await refused_with_a_checkpoint(StoreStopped, lambda: log.append(chunk("later")))
        assert log.health == "failed"
        assert log.snapshot() is before
    async with open_session_log(SESSION, path) as log:
        assert log.health == "ok"
        assert len(log.snapshot()) == (3 if written else 1)
        await log.append(chunk("after"))


async def test_a_commit_that_failed_but_was_written_is_in_doubt(
    path: Path, connections: list[Connection]
) -> None:
    """Whatever the error is called: if the file went on, the writer cannot."""
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk("before"))
        connections[-1].failing = io_error(sqlite3.SQLITE_IOERR_WRITE)
        connections[-1].written = True
        with pytest.raises(OutcomeUnknown, match="its last event is 2"):
            await log.append(chunk("in doubt"))
        assert len(log.snapshot()) == 1


async def test_a_row_from_behind_the_back_stops_the_writer(path: Path) -> None:
    """Somebody else wrote the sequence that was next: the file is no longer what was loaded."""
    async with open_session_log(SESSION, path) as log:
        first = await log.append(chunk(1))
        (foreign,) = chained(
            [("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":"foreign"}')],
            after=(1, first.digest),
        )
        append_behind_the_back(path, foreign)
        with pytest.raises(OutcomeUnknown):
            await log.append(chunk(2))
        with pytest.raises(StoreStopped):
            await log.append(chunk(3))
        assert list(log.snapshot()) == [first]
    async with open_session_log(SESSION, path) as log:
        assert [envelope.digest for envelope in log.snapshot()] == [first.digest, foreign.digest]


async def test_a_row_of_another_session_from_behind_the_back_is_none_of_our_business(
    path: Path,
) -> None:
    """Sessions that share a file do not meet in it."""
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk(1))
        append_behind_the_back(path, rows_of([chunk(1)], "other")[0])
        await log.append(chunk(2))


# --- refused openings ---------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", ["", "-x", "a b", "a\n", "ä", "x" * 129, "../x"])
async def test_a_session_id_is_checked_before_the_file_is_touched(
    session_id: str, path: Path
) -> None:
    """A bad id is refused like a bad file, and leaves no trace."""
    with pytest.raises(StoreError, match="not a session id"):
        async with open_session_log(session_id, path):
            pytest.fail("a bad session id was accepted")
    assert not list(path.parent.iterdir())


async def test_a_path_that_no_file_can_have_is_refused(path: Path) -> None:
    """The system's own complaint about U+0000 is no StoreError, this one is."""
    with pytest.raises(StoreError, match=r"x\\x00y' cannot be a path"):
        async with open_session_log(SESSION, f"{path}x\0y"):
            pytest.fail("a path with U+0000 was accepted")


async def test_a_damaged_session_is_refused_and_left_as_it_was(path: Path) -> None:
    """The fault is named with its place, every byte stays, and the lock is free again."""
    rows = rows_of(Conversation().turn())
    write_rows(path, [rows[0], rows[1]._replace(payload=rows[1].payload.replace("e", "E"))])
    content = content_of(path)
    for _ in range(2):
        with pytest.raises(UnsoundSession, match="sequence 2: the digest does not match"):
            async with open_session_log(SESSION, path):
                pytest.fail("a damaged session was opened")
    assert content_of(path) == content
    async with open_session_log("other", path) as log:  # it is damaged for itself alone
        await log.append(chunk(1))


def content_of(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("sequence", [0, -1, 1 - 2**63])
async def test_a_row_before_the_first_is_found(sequence: int, path: Path) -> None:
    """The load begins at the least sequence that a file can hold, not at 1."""
    (row,) = rows_of([chunk(1)])
    write_rows(path, [row])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ((trigger,),) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = 'session_events_in_sequence'"
        ).fetchall()
        connection.execute("DROP TRIGGER session_events_in_sequence")
        connection.execute(
            "INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)",
            row._replace(sequence=sequence),
        )
        connection.execute(trigger)
    with pytest.raises(UnsoundSession, match=f"sequence {sequence} where 1 must come"):
        async with open_session_log(SESSION, path):
            pytest.fail("a row before the first was overlooked")


async def test_a_file_has_one_owner(path: Path) -> None:
    """A second opening is refused by the owner's process id, until the first is closed."""
    async with open_session_log(SESSION, path):
        with pytest.raises(StoreError, match=str(os.getpid())):
            async with open_session_log("other", path):
                pytest.fail("the file was opened twice")
    async with open_session_log("other", path):
        pass


async def test_a_relative_path_stays_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was meant when the log was opened holds, wherever the process goes then."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    async with open_session_log(SESSION, "session.sqlite3") as log:
        monkeypatch.chdir(elsewhere)
        await log.append(chunk(1))
        assert log.database == tmp_path / "session.sqlite3"
        assert_stored(tmp_path / "session.sqlite3", log)
    assert not list(elsewhere.iterdir())


# --- loading ------------------------------------------------------------------------------------

LONG = 2 * PAGE_ROWS + 7


@pytest.fixture
def long_path(path: Path) -> Path:
    write_rows(path, rows_of(chunk(number) for number in range(LONG)))
    return path


@pytest.fixture
def readers_closed(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """Gather the readers that are closed, rather than left to the garbage collector."""
    closed: list[Reader] = []
    close = Reader.close

    def noted(reader: Reader) -> None:
        close(reader)
        closed.append(reader)

    monkeypatch.setattr(Reader, "close", noted)
    return closed


async def test_loading_tells_how_far_it_is(long_path: Path) -> None:
    """Page by page, up to the end."""
    told: list[tuple[int, int]] = []

    def on_progress(done: int, total: int) -> None:
        told.append((done, total))

    async with open_session_log(SESSION, long_path, on_progress=on_progress) as log:
        assert len(log.snapshot()) == LONG
    assert told == [(PAGE_ROWS, LONG), (2 * PAGE_ROWS, LONG), (LONG, LONG)]


async def test_loading_can_be_cancelled_between_pages(
    long_path: Path, readers_closed: list[Reader]
) -> None:
    """A stop does not wait for the whole session, and leaves the file closed and free."""
    told: list[int] = []

    def on_progress(done: int, _total: int) -> None:
        told.append(done)
        scope.cancel()

    with trio.CancelScope() as scope:
        async with open_session_log(SESSION, long_path, on_progress=on_progress):
            pytest.fail("the cancelled opening succeeded")
    assert scope.cancelled_caught
    assert told == [PAGE_ROWS]
    assert len(readers_closed) == 1
    async with open_session_log(SESSION, long_path) as log:
        assert len(log.snapshot()) == LONG
    assert left_beside(long_path) == []


async def test_an_opening_that_fails_closes_what_it_opened(
    long_path: Path, readers_closed: list[Reader]
) -> None:
    """Also if it is the caller's own callback that raises."""

    def on_progress(_done: int, _total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with open_session_log(SESSION, long_path, on_progress=on_progress):
            pytest.fail("the failed opening succeeded")
    assert len(readers_closed) == 1
    async with open_session_log(SESSION, long_path):
        pass
    assert left_beside(long_path) == []


def left_beside(path: Path) -> list[str]:
    """Return what SQLite has beside the file: nothing, once the last of all has closed it."""
    names = {found.name for found in path.parent.iterdir()} - {path.name, f"{path.name}-lock"}
    return sorted(names)


# --- leaving ------------------------------------------------------------------------------------


async def left_with(failure: BaseException, path: Path | None) -> BaseException:
    async def leave() -> None:
        async with open_session_log(SESSION, path) as log:
            await log.append(chunk(1))
            raise failure

    with pytest.raises(type(failure)) as raised:
        await leave()
    return raised.value


@pytest.mark.parametrize(
    "failure",
    [
        ZeroDivisionError(),
        LogClosed(),
        ExceptionGroup("the block's own", [ValueError()]),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
async def test_an_exception_of_the_block_comes_out_as_it_is(
    failure: BaseException, path: Path
) -> None:
    """No group is made around it, and the file is closed all the same."""
    for database in (None, path):
        assert await left_with(failure, database) is failure
    assert left_beside(path) == []
    async with open_session_log(SESSION, path) as log:
        assert len(log.snapshot()) == 1


async def test_a_cancelled_block_still_closes_the_file(path: Path) -> None:
    """The cancellation comes out as one, after all has been written and closed."""
    with trio.CancelScope() as scope:
        async with open_session_log(SESSION, path) as log:
            await log.append(chunk(1))
            scope.cancel()
            with trio.CancelScope(shield=True):
                await log.append(chunk("owed"))
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert left_beside(path) == []
    assert len(stored_rows(path)) == 2


async def test_leaving_serves_those_who_wait(path: Path) -> None:
    """Appends of tasks that outlive the block are written before it closes."""
    results: list[int] = []

    async def append(log: SessionLog, number: int) -> None:
        results.append((await log.append(chunk(number))).sequence)

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as outside, open_session_log(SESSION, path) as log:
            for number in range(20):
                outside.start_soon(append, log, number)
            await wait_all_tasks_blocked()
            late: list[Event] = [chunk("late")]
    assert sorted(results) == list(range(1, 21))
    with pytest.raises(LogClosed):
        await log.append_many(late)
    assert len(log.snapshot()) == len(stored_rows(path)) == 20


@pytest.fixture
def closing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Store.close

    def failing(store: Store) -> None:
        close(store)
        raise StoreError("the database could not be checkpointed")

    monkeypatch.setattr(Store, "close", failing)


async def test_a_failed_close_is_told(closing_fails: None, path: Path) -> None:
    """Leaving in peace, or cancelled, raises it: nobody else would."""
    with pytest.raises(StoreError, match="checkpointed"):
        async with open_session_log(SESSION, path):
            pass

    async def leave_cancelled() -> None:
        with trio.CancelScope() as scope:
            async with open_session_log(SESSION, path):
                scope.cancel()
                await trio.sleep_forever()

    with pytest.raises(StoreError, match="checkpointed"):
        await leave_cancelled()


async def test_a_failed_close_does_not_hide_the_blocks_exception(
    closing_fails: None, path: Path
) -> None:
    """What went wrong first is what is raised; the close is told in a note on it."""
    raised = await left_with(ZeroDivisionError(), path)
    assert any("could not be checkpointed" in note for note in raised.__notes__)


class Bug(Exception):
    """Stands for a mistake in the code."""


def crash(_store: Store | MemoryStore, _rows: Sequence[Row]) -> None:
    raise Bug


@pytest.mark.parametrize("database", [None, "session.sqlite3"])
async def test_a_writer_that_crashes_ends_the_block(
    database: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug comes out unwrapped, the one who was appending knows, and the lock is free."""
    path = None if database is None else tmp_path / database
    answered: list[Exception] = []

    async def wait_in_the_block() -> None:
        async with open_session_log(SESSION, path) as log:
            with pytest.raises(OutcomeUnknown) as raised:
                await log.append_many([chunk(1), chunk(2)])
            answered.append(raised.value)
            await trio.sleep_forever()

    with monkeypatch.context() as patched:
        for store in (Store, MemoryStore):
            patched.setattr(store, "commit", crash)
        with pytest.raises(Bug), trio.fail_after(TIMEOUT_S):
            await wait_in_the_block()
    assert isinstance(answered[0].__cause__, Bug)
    async with open_session_log(SESSION, path) as log:
        await log.append(chunk(1))


async def test_a_crash_and_an_exception_of_the_block_come_out_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither hides the other."""
    monkeypatch.setattr(Store, "commit", crash)
    with pytest.RaisesGroup(Bug, ZeroDivisionError):
        async with open_session_log(SESSION, path) as log:
            with pytest.raises(OutcomeUnknown):
                await log.append(chunk(1))
            raise ZeroDivisionError
