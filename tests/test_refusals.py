"""What a Host refuses to start on: one line, exit code 1, and the file as it was."""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen
from damage_support import lax, run_sql
from log_support import ECHO, Conversation, chained, rows_of, write_rows
from process_support import (
    HostProcess,
    error_line,
    public_directory,
    sessiond,
    sessiond_each,
    wal_of,
)

from actors.codec import encode_event
from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    InlineMessages,
    ModelRequestRecorded,
    StepFailed,
    UserInputAccepted,
)
from actors.reader import open_reader
from actors.values import AssistantMessage, ToolCall, UserMessage
from web.offline import SessionReport, verify_sessions

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

    from actors.events import Event
    from actors.rows import Row


def rechain(rows: Sequence[Row]) -> list[Row]:
    """The rows with digests that match what they now say."""
    digest: bytes | None = None
    chained_rows: list[Row] = []
    for row in rows:
        fields = (digest.hex() if digest else "", *row[:-1])
        digest = hashlib.sha256("\n".join(map(str, fields)).encode()).digest()
        chained_rows.append(row._replace(digest=digest))
    return chained_rows


def replace_rows(database: Path, rows: Sequence[Row]) -> None:
    """Put other rows in the place of all there are, past the triggers, which stay in place."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM session_events")
        connection.executemany("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        for _, definition in triggers:
            connection.execute(definition)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


SERVE = ["serve", "--port", "0", "--session-db"]
SOUND = rows_of(Conversation().every_variant())


def with_row(index: int, **changes: Any) -> list[Row]:  # a column's value
    rows = list(SOUND)
    rows[index] = rows[index]._replace(**changes)
    return rechain(rows)


def numbered(numbers: Sequence[int]) -> list[Row]:
    rows = zip(SOUND, numbers, strict=False)
    return rechain([row._replace(sequence=sequence) for row, sequence in rows])


def changed_letter() -> list[Row]:
    rows = list(SOUND)
    rows[2] = rows[2]._replace(payload=rows[2].payload.replace("word", "ward"))
    assert rows != SOUND
    return rows


def moved_in() -> list[Row]:
    other = rows_of(Conversation().turn(), session_id="other")
    return [*SOUND[:3], other[3]._replace(session_id="default"), *SOUND[4:]]


def with_payload(payload: str) -> list[Row]:
    """The payload of the third row, a chunk, is another."""
    return with_row(2, payload=payload)


def broken(*moves: str, by: Event) -> list[Row]:
    """A session that goes as these moves say, and then breaks a rule."""
    conversation = Conversation()
    said: list[Event] = [
        conversation.answer("", calls_n=2) if move == "calls" else getattr(conversation, move)()
        for move in moves
    ]
    return rows_of([*said, by])


CHUNK = '{"step_id":"turn-1/step-1","chunk":%s}'
ASKED = ("input", "request")
FIRST = "turn-1/step-1"
INLINE = InlineMessages((UserMessage("hello"),))
# A breach of each kind of rule; one of every rule, when loading: test_replay.py.
BREACHES: dict[str, tuple[list[Row], str]] = {
    "invocation id again": (
        broken(
            *ASKED,
            "answer",
            by=UserInputAccepted("turn-2", "invocation-1", (UserMessage("x"),)),
        ),
        "sequence 4: ",
    ),
    "request while a call is open": (
        broken(
            *ASKED,
            "calls",
            by=ModelRequestRecorded("turn-1", "turn-1/step-2", ECHO, "", (), INLINE),
        ),
        "sequence 4: ",
    ),
    "request of another history": (
        broken(
            "input",
            by=ModelRequestRecorded("turn-1", FIRST, ECHO, "", (), HistoryRef(1, "0" * 64)),
        ),
        "sequence 2: ",
    ),
    "answer after the Turn": (
        broken(
            *ASKED,
            "answer",
            by=AssistantMessageCommitted(FIRST, AssistantMessage("more", ()), "stop"),
        ),
        "sequence 4: ",
    ),
    "call id again": (
        broken(
            *ASKED,
            *("calls", "complete", "complete", "request"),
            by=AssistantMessageCommitted(
                "turn-1/step-2", AssistantMessage("", (ToolCall("call-1", "x", "{}"),)), "stop"
            ),
        ),
        "sequence 7: ",
    ),
    "failure while a call is open": (
        broken(*ASKED, "calls", by=StepFailed(FIRST, "cancelled", "the end")),
        "sequence 4: ",
    ),
}

FAULTY_ROWS: dict[str, tuple[list[Row], str]] = {
    "format version": (with_row(1, format_version=1), "sequence 2: format_version 1"),
    "corrupt JSON": (with_row(2, payload='{"step_id":'), "sequence 3: model_chunk_recorded"),
    "more than one value": (with_payload(CHUNK % "1" + "{}"), "sequence 3: model_chunk_recorded"),
    "NaN": (with_payload(CHUNK % "NaN"), "sequence 3: "),
    "number beyond floats": (with_payload(CHUNK % "1e400"), "sequence 3: "),
    "lone surrogate": (with_payload(CHUNK % '"\\ud800"'), "sequence 3: "),
    "too deep": (with_payload(CHUNK % ("[" * 128 + "]" * 128)), "sequence 3: "),
    "too long": (with_payload(CHUNK % f'"{"x" * 2**24}"'), "sequence 3: "),
    "duplicate key": (
        with_payload('{"step_id":"turn-1/step-1","chunk":1,"chunk":1}'),
        "sequence 3: ",
    ),
    "unknown tag": (with_row(2, event_type="model_dreamed"), "unknown event type 'model_dreamed'"),
    "schema": (with_payload('{"step_id":"turn-1/step-1"}'), "sequence 3: "),
    "property more": (with_payload(CHUNK % '1,"more":2'), "sequence 3: "),
    "starts at 2": (numbered(range(2, 10)), "sequence 2 where 1 must come"),
    "starts at 0": (numbered(range(8)), "sequence 0 where 1 must come"),
    "gap": (numbered([1, 2, 3, 5]), "sequence 5 where 4 must come"),
    "rule": (chained([*map(encode_event, Conversation().turn()[:1] * 2)]), "sequence 2: input"),
    **BREACHES,
    "digest": (changed_letter(), "sequence 3: the digest does not match"),
    "row of another session": (moved_in(), "sequence 4: the digest does not match"),
    "not a time": (with_row(0, recorded_at="yesterday"), "sequence 1: recorded_at"),
}


def verified(database: Path) -> list[SessionReport]:
    with open_reader(database) as reader:
        return list(verify_sessions(reader))


def refused(database: Path | str, *options: str) -> str:
    """The line of a Host that must not start; it announced nothing on standard output."""
    done = sessiond(*SERVE, database, *options)
    assert done.stdout == ""
    return error_line(done)


def make_text_file(path: Path) -> None:
    path.write_text("dear diary " * 50, encoding="utf-8")


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def make_newer(path: Path) -> None:
    write_rows(path, SOUND)
    run_sql(path, "PRAGMA user_version=2")


def make_damaged(path: Path) -> None:
    write_rows(path, SOUND)
    with path.open("r+b") as file:
        file.seek(4096)  # the second page: past the header, in the table
        file.write(b"\xa5" * 2048)


def make_older(path: Path) -> None:
    write_rows(path, SOUND)
    run_sql(path, "PRAGMA user_version=0")


def make_unnamed(path: Path) -> None:
    write_rows(path, SOUND)
    run_sql(path, "PRAGMA user_version=0", "PRAGMA application_id=0")


def make_renamed(path: Path) -> None:
    write_rows(path, SOUND)
    run_sql(path, "PRAGMA application_id=7")


def make_duplicate(path: Path) -> None:
    """Store a sequence twice, which the table's key must be got round for."""
    write_rows(path, SOUND)
    with lax(path, unique=False), closing(sqlite3.connect(path, isolation_level=None)) as tool:
        triggers = tool.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        definitions = triggers.fetchall()
        for name, _ in definitions:
            tool.execute(f"DROP TRIGGER {name}")
        tool.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", SOUND[3])
        for _, definition in definitions:
            tool.execute(definition)


def make_shortened(path: Path) -> None:
    write_rows(path, SOUND)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_linked(path: Path) -> None:
    write_rows(path, SOUND)
    path.with_name("second-name").hardlink_to(path)


FAULTY_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "directory": (Path.mkdir, "is a directory"),
    "not SQLite": (make_text_file, "is not a SQLite file"),
    "not ours": (make_foreign, "another application"),
    "newer": (make_newer, "schema version 2"),
    "older": (make_older, "schema version 0"),
    "without version and application": (make_unnamed, "another application"),
    "of another application": (make_renamed, "application_id 0x7"),
    "damaged": (make_damaged, "is damaged: "),
    "shortened": (make_shortened, "malformed"),
    "duplicate": (make_duplicate, "is damaged: non-unique entry"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "loop": (make_loop, "loop of symbolic links"),
    "hard links": (
        make_linked,
        "has 2 hard links; a database must have one name; remove all but one",
    ),
}


@frozen
class Refusal:
    """A Host that was asked to start on a faulty file, and what it did."""

    path: Path
    before: bytes | None
    """The file's content; None for a directory."""
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refusal]:
    """A start on each of the faulty files."""
    paths: dict[str, Path] = {}
    for fault in (*FAULTY_ROWS, *FAULTY_FILES):
        path = paths[fault] = tmp_path_factory.mktemp("faulty") / "session.sqlite3"
        if fault in FAULTY_FILES:
            FAULTY_FILES[fault][0](path)
        else:
            write_rows(path, SOUND)
            replace_rows(path, FAULTY_ROWS[fault][0])
    before = {fault: content_of(path) for fault, path in paths.items()}
    commands = [[*SERVE, path] for path in paths.values()]
    # A few at a time: each batch has a limit of time of its own.
    starts = [
        done for n in range(0, len(commands), 8) for done in sessiond_each(commands[n : n + 8])
    ]
    return {
        fault: Refusal(path, before[fault], done)
        for (fault, path), done in zip(paths.items(), starts, strict=True)
    }


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def assert_refused(refusal: Refusal, told: str) -> str:
    assert refusal.done.stdout == ""
    line = error_line(refusal.done)
    assert str(refusal.path) in line
    assert told in line
    assert content_of(refusal.path) == refusal.before
    wal = wal_of(refusal.path)
    assert not wal.exists() or wal.stat().st_size == 0
    return line


@pytest.mark.parametrize("fault", FAULTY_ROWS)
def test_unsound_session_is_refused(refusals: dict[str, Refusal], fault: str) -> None:
    """A session that no append could have written: one line, exit code 1, the file untouched."""
    line = assert_refused(refusals[fault], FAULTY_ROWS[fault][1])
    (report,) = verified(refusals[fault].path)  # and the offline commands say the same
    assert report.fault is not None
    assert report.fault in line


@pytest.mark.parametrize("fault", FAULTY_FILES)
def test_wrong_file_is_refused(refusals: dict[str, Refusal], fault: str) -> None:
    """What is no sound database of ours: one line that names it, exit code 1, left as it was."""
    assert_refused(refusals[fault], FAULTY_FILES[fault][1])


def test_parent_is_a_file(tmp_path: Path) -> None:
    """A path that leads through a file is refused with its name."""
    parent = tmp_path / "file"
    parent.write_text("", encoding="utf-8")
    assert str(parent / "session.sqlite3") in refused(parent / "session.sqlite3")


def make_empty_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
    assert path.stat().st_size > 0


@pytest.mark.parametrize("make", [Path.touch, make_empty_database])
def test_nothing_yet_is_a_fresh_database(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """What a first start that was killed early may leave is no fault: it is begun on."""
    database = tmp_path / "session.sqlite3"
    make(database)
    with HostProcess(database) as host:
        assert host.post("a", "hello").json()["turn_id"] == "turn-1"
        assert host.stop() == 0
    (report,) = verified(database)
    assert report.fault is None


def test_second_host_is_refused(tmp_path: Path) -> None:
    """A file has one Host at a time; the second is told whose it is, and the first goes on."""
    database = tmp_path / "session.sqlite3"
    link = tmp_path / "link.sqlite3"
    link.symlink_to(database)
    with HostProcess(database) as host:
        assert host.post("a", "hello").status_code == 200
        for name in (database, link):
            line = refused(name, "--session-id", "another")
            assert str(name) in line
            assert str(host.pid) in line
        assert host.post("b", "hello").status_code == 200
        host.kill()
    with HostProcess(link) as host:  # the lock died with its process
        assert [entry["kind"] for entry in host.session()["transcript"]] == [
            "user",
            "assistant",
        ] * 2


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    """A taken port is found before anything is announced, and leaves no event."""
    database = tmp_path / "session.sqlite3"
    write_rows(database, SOUND)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert str(port) in refused(database, "--port", str(port))
    assert verified(database) == [SessionReport("default", len(SOUND))]


def test_forbidden_places_are_refused() -> None:
    """A file or a parent that may not be read or written: one line with its name, exit code 1."""
    with public_directory() as directory:
        unreadable, unwritable = directory / "unreadable.sqlite3", directory / "unwritable.sqlite3"
        for path, mode in ((unreadable, 0o000), (unwritable, 0o444)):
            write_rows(path, SOUND)
            path.chmod(mode)
        beside, below = directory / "new.sqlite3", directory / "new" / "new.sqlite3"
        before = {path: content_of(path) for path in directory.iterdir()}
        locked = directory / "locked"
        locked.mkdir(mode=0o000)
        paths = (unreadable, unwritable, beside, below, locked / "new.sqlite3")
        for done in sessiond_each([[*SERVE, path] for path in paths], as_nobody=True):
            assert str(done.args[-1]) in error_line(done)
            assert done.stdout == ""
        locked.rmdir()
        assert {path: content_of(path) for path in directory.iterdir()} == before
