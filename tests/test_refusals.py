"""What a Host refuses to start on: one line, exit code 1, and the file as it was."""

from __future__ import annotations

import hashlib
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen
from log_support import Conversation, chained, rows_of, write_rows
from process_support import (
    HostProcess,
    error_line,
    public_directory,
    sessiond,
    sessiond_each,
    wal_of,
)

from actors.codec import encode_event
from actors.reader import open_reader
from web.offline import SessionReport, verify_sessions

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

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


FAULTY_ROWS: dict[str, tuple[list[Row], str]] = {
    "format version": (with_row(1, format_version=1), "sequence 2: format_version 1"),
    "corrupt JSON": (with_row(2, payload='{"step_id":'), "sequence 3: model_chunk_recorded"),
    "NaN": (with_row(2, payload='{"step_id":"turn-1/step-1","chunk":NaN}'), "sequence 3: "),
    "duplicate key": (
        with_row(2, payload='{"step_id":"turn-1/step-1","chunk":1,"chunk":1}'),
        "sequence 3: ",
    ),
    "unknown tag": (with_row(2, event_type="model_dreamed"), "unknown event type 'model_dreamed'"),
    "schema": (with_row(2, payload='{"step_id":"turn-1/step-1"}'), "sequence 3: "),
    "starts at 2": (numbered(range(2, 10)), "sequence 2 where 1 must come"),
    "starts at 0": (numbered(range(8)), "sequence 0 where 1 must come"),
    "gap": (numbered([1, 2, 3, 5]), "sequence 5 where 4 must come"),
    "rule": (chained([*map(encode_event, Conversation().turn()[:1] * 2)]), "sequence 2: input"),
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
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=2")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def make_damaged(path: Path) -> None:
    write_rows(path, SOUND)
    with path.open("r+b") as file:
        file.seek(4096)  # the second page: past the header, in the table
        file.write(b"\xa5" * 2048)


def make_linked(path: Path) -> None:
    write_rows(path, SOUND)
    path.with_name("second-name").hardlink_to(path)


FAULTY_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "directory": (Path.mkdir, "is a directory"),
    "not SQLite": (make_text_file, "is not a SQLite file"),
    "not ours": (make_foreign, "another application"),
    "newer": (make_newer, "schema version 2"),
    "damaged": (make_damaged, ""),
    "hard links": (make_linked, "2 hard links"),
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
    starts = sessiond_each([[*SERVE, path] for path in paths.values()])
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
        paths = (unreadable, unwritable, beside, below)
        for done in sessiond_each([[*SERVE, path] for path in paths], as_nobody=True):
            assert str(done.args[-1]) in error_line(done)
            assert done.stdout == ""
        assert {path: content_of(path) for path in directory.iterdir()} == before
