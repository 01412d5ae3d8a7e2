"""``show --follow``: what is there, then what comes, whatever becomes of the Host."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from log_support import (
    Conversation,
    append_behind_the_back,
    chained,
    chunk,
    rows_of,
    stored_rows,
    write_rows,
)
from process_support import HostProcess, sessiond, wal_of
from shell_support import running

from actors import companions
from actors.codec import encode_event
from actors.errors import StoreError, UnsoundSession
from web.follow import followed

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.events import Event
    from actors.rows import Row
    from actors.transcript import Entry

TURN_LINES_N = 6
"""What a Turn of ``echo/echo`` takes: two entries of a heading, a text and an empty line each."""


def told(entries: tuple[Entry, ...]) -> list[tuple[int, str]]:
    return [(entry.sequence, entry.kind) for entry in entries]


# --- in real processes --------------------------------------------------------------------------


def test_follow_through_a_kill(tmp_path: Path) -> None:
    """It prints what there is, then each entry at once: of this Host, and of the one after it.

    What it has printed at the end is what `show` prints; with --json each line is an entry as the
    session's document has it, and nothing else.
    """
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host:
        assert host.post("one", "first words").status_code == 200
        with (
            running("show", database, "--follow") as text,
            running("show", database, "--follow", "--json") as documents,
        ):
            lines = text.lines(TURN_LINES_N)
            assert lines[1] == "    first words"
            entries = documents.lines(2)
            assert host.post("two", "second words").status_code == 200
            lines += text.lines(TURN_LINES_N)
            host.kill()
            with HostProcess(database) as again:
                assert again.post("three", "third words").status_code == 200
                lines += text.lines(TURN_LINES_N)
                entries += documents.lines(4)
                transcript = again.session()["transcript"]
                assert again.stop() == 0
            text.process.send_signal(signal.SIGINT)
            assert text.ended() == (128 + signal.SIGINT, "")
    assert "".join(f"{line}\n" for line in lines) == sessiond("show", database).stdout
    assert list(map(json.loads, entries)) == transcript


def test_follow_ends_when_nobody_reads(tmp_path: Path) -> None:
    """`show --follow | head -1` ends by itself, also while nothing is added."""
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows_of(Conversation().turn()))
    with running("show", database, "--follow") as following:
        following.lines(TURN_LINES_N)
        assert following.process.stdout is not None
        following.process.stdout.close()
        assert following.ended() == (128 + signal.SIGPIPE, "")


def checkpoint(database: Path) -> tuple[int, int, int]:
    """Move the ``-wal`` into the file; what hinders that is told by the first number."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=0)) as connection:
        (told,) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return told


@pytest.mark.parametrize(
    ("command", "options"), [("show", ["--follow"]), ("show", []), ("export", [])]
)
def test_a_reader_holds_nobody_up(tmp_path: Path, command: str, options: list[str]) -> None:
    """Neither one that waits for more nor one that a pager has stopped keeps the -wal from going.

    Each has written as much as a pipe holds and stands still, in the middle of its output.
    """
    database = tmp_path / "session.sqlite3"
    conversation = Conversation()
    events: list[Event] = []
    for _ in range(200):  # more than a pipe holds
        events += [conversation.input("x" * 400), conversation.request(), conversation.answer("y")]
    write_rows(database, rows_of(events))
    after = stored_rows(database)[-1]
    with running(command, database, *options) as reading:
        reading.line()
        (row,) = chained(
            [encode_event(conversation.input("added"))], after=(after.sequence, after.digest)
        )
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            assert wal_of(database).stat().st_size > 0
            assert checkpoint(database)[0] == 0
            assert wal_of(database).stat().st_size == 0
        assert reading.process.poll() is None


def test_follow_of_what_is_not_there(tmp_path: Path) -> None:
    """No file and no such session are one line and exit code 1, as without --follow."""
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows_of(Conversation().turn()))
    for arguments in ([tmp_path / "none"], [database, "--session-id", "other"]):
        done = sessiond("show", *arguments, "--follow")
        plain = sessiond("show", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", plain.stderr)


# --- in this process ----------------------------------------------------------------------------


class Writing:
    """Adds to a database between two looks of what follows it."""

    def __init__(self, database: Path, *moves: Callable[[], None]) -> None:
        self.database = database
        self._moves = list(moves)
        self.conversation = Conversation()

    def wait(self) -> None:
        """Make the next move, or end what follows."""
        if not self._moves:
            raise EOFError
        self._moves.pop(0)()


def add(database: Path, *rows: Row) -> Callable[[], None]:
    def move() -> None:
        for row in rows:
            append_behind_the_back(database, row)

    return move


def test_only_what_was_added(tmp_path: Path) -> None:
    """Each look brings the entries that are new, in order; a look at nothing new brings none."""
    database = tmp_path / "session.sqlite3"
    rows = rows_of(Conversation().every_variant())
    write_rows(database, rows[:3])
    writing = Writing(
        database,
        lambda: None,
        add(database, *rows[3:6]),
        lambda: None,
        add(database, *rows[6:]),
    )
    parts: list[list[tuple[int, str]]] = []
    with pytest.raises(EOFError):
        parts.extend(map(told, followed(database, "default", writing.wait)))
    whole = json.loads(sessiond("show", database, "--json").stdout)["transcript"]
    assert [each for part in parts for each in part] == [
        (entry["sequence"], entry["kind"]) for entry in whole
    ]
    assert len(parts) == 3
    assert all(parts)


def test_more_than_a_page_is_added(tmp_path: Path) -> None:
    """What was added is read in pages, all of it."""
    database = tmp_path / "session.sqlite3"
    conversation = Conversation()
    rows = rows_of([*conversation.turn(), *(chunk(n) for n in range(2_500))])
    conversation.sequence = len(rows)
    rows += chained(
        map(encode_event, conversation.turn()), after=(rows[-1].sequence, rows[-1].digest)
    )
    write_rows(database, rows[:4])

    def add_all() -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.executemany(
                "INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", rows[4:]
            )

    writing = Writing(database, add_all)
    parts: list[list[tuple[int, str]]] = []
    with pytest.raises(EOFError):
        parts.extend(map(told, followed(database, "default", writing.wait)))
    assert [kind for part in parts for _, kind in part] == ["user", "assistant"] * 2


def test_a_fault_that_is_added(tmp_path: Path) -> None:
    """The sound entries before it come, and then the fault with its place."""
    database = tmp_path / "session.sqlite3"
    conversation = Conversation()
    rows = rows_of([*conversation.turn(), *conversation.turn()])
    write_rows(database, rows[:4])
    broken = rows[5]._replace(digest=b"\0" * 32)
    following = followed(
        database, "default", Writing(database, add(database, rows[4], broken)).wait
    )
    assert told(next(following)) == [(1, "user"), (4, "assistant")]
    assert told(next(following)) == [(5, "user")]
    with pytest.raises(UnsoundSession, match="sequence 6: the digest"):
        next(following)


def test_another_file_in_its_place(tmp_path: Path) -> None:
    """A file that goes on from what was shown is followed; one that does not, or none, ends it."""
    database, longer = tmp_path / "session.sqlite3", tmp_path / "longer.sqlite3"
    other = tmp_path / "other.sqlite3"
    rows = rows_of(Conversation().every_variant())
    write_rows(database, rows[:3])
    write_rows(longer, rows)
    write_rows(
        other,
        chained(
            map(encode_event, Conversation().turn(1)), recorded_at="2026-12-01T09:30:00.000000Z"
        ),
    )

    def put(file: Path) -> Callable[[], None]:
        def move() -> None:
            file.rename(database)

        return move

    moves = [put(longer), put(other)]
    following = followed(database, "default", Writing(database, *moves).wait)
    assert len(next(following)) == 1
    assert next(following)
    with pytest.raises(StoreError, match="no longer holds what was shown, up to event 18"):
        next(following)
    following = followed(database, "default", Writing(database, database.unlink).wait)
    next(following)
    with pytest.raises(StoreError, match="was moved or deleted"):
        next(following)


def test_a_file_that_nobody_had_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite may make nothing beside the file, what a Host adds later is seen all the same.

    The file is read by itself then, and such a view stands still.
    """
    database = tmp_path / "session.sqlite3"
    rows = rows_of(Conversation().every_variant())
    write_rows(database, rows[:3])
    modes: list[str] = []
    open_as_it_is = companions.open_file

    def open_without_leave(real: Path, mode: str, owned: object) -> sqlite3.Connection:
        if mode == "ro" and not real.with_name(real.name + "-shm").exists():
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        modes.append(mode)
        return open_as_it_is(real, mode, owned)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(companions, "open_file", open_without_leave)
    with closing(sqlite3.connect(database, isolation_level=None)) as host:

        def commit() -> None:
            host.executemany("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", rows[3:6])

        following = followed(database, "default", Writing(database, commit).wait)
        assert len(next(following)) == 1
        assert modes[-1] == "ro&immutable=1"
        assert told(next(following)) == [(4, "assistant"), (6, "tool")]
        assert modes[-1] == "ro"
        following.close()


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """Left early, it has closed the file."""
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows_of(Conversation().turn()))
    before = len(list(Path("/dev/fd").iterdir()))
    following = followed(database, "default", lambda: None)
    next(following)
    following.close()
    assert len(list(Path("/dev/fd").iterdir())) == before
