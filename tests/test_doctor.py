"""``sessiond doctor``: all checks on a file, whatever is wrong with it, and nothing changed."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from log_support import Conversation, chained, chunk, rows_of, stored_rows, write_rows
from process_support import HostProcess, public_directory, sessiond, sessiond_each, wal_of

from web import surroundings
from web.cli import cli
from web.surroundings import filesystem_of

if TYPE_CHECKING:
    from actors.events import Event
    from actors.rows import Row

Document = dict[str, Any]
SAID = "PLAINWORD"
"""Stands in all that is said in the sessions here."""


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(cli, ["doctor", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def examined(path: Path) -> Document:
    """Return the report as JSON; what goes with it holds for every report.

    The exit code and the error line follow from the faults, the block for people is plain text
    that has them all, and nothing that was said is in either.
    """
    code, told, error = run(path, "--json")
    report: Document = json.loads(told)
    text_code, text, text_error = run(path)
    assert (text_code, text_error) == (code, error)
    faults_n = len(report["faults"])
    assert code == bool(faults_n)
    counted = "1 fault" if faults_n == 1 else f"{faults_n} faults"
    assert error == ("" if not faults_n else f"sessiond: error: {path}: {counted}\n")
    assert all(f"  fault: {fault}\n" in text for fault in report["faults"])
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert SAID not in told + text
    return report


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "session.sqlite3"
    conversation = Conversation()
    events: list[Event] = [conversation.input(SAID), conversation.request()]
    events += [conversation.chunk(SAID), conversation.answer(SAID)]
    write_rows(path, rows_of(events))
    return path


# --- what it tells ------------------------------------------------------------------------------


def test_a_sound_file(database: Path) -> None:
    """Versions, pragmas, sizes and every session, counted."""
    write_rows(database, rows_of(Conversation().turn()[:2], "second"), "second")
    report = examined(database)
    assert report["faults"] == []
    assert report["versions"]["python"].startswith(sys.version.split()[0])
    assert report["versions"]["sqlite"] == sqlite3.sqlite_version
    assert {"sessiond", "platform", "trio", "hypercorn", "rich"} <= report["versions"].keys()
    assert any(each.startswith("THREADSAFE") for each in report["versions"]["sqlite_options"])
    assert report["file"]["bytes"] == database.stat().st_size
    assert report["file"]["mode"] == "0600"
    assert report["file"]["-wal"] == "none"
    sqlite = report["sqlite"]
    assert sqlite["journal_mode"] == "wal"
    assert report["integrity"] == {"integrity_check": ["ok"]}
    assert sqlite["page_size"] * sqlite["page_count"] == database.stat().st_size
    assert sqlite["synchronous"].startswith("2 (FULL)")
    assert (sqlite["application_id"], sqlite["user_version"]) == (0x53455353, 1)
    assert report["host"] == {"running": False, "process": None}
    first, second = report["sessions"]
    stored = stored_rows(database)
    assert first == {
        "session_id": "default",
        "rows": 4,
        "payload_bytes": sum(len(row.payload.encode()) for row in stored),
        "first_recorded_at": stored[0].recorded_at,
        "last_recorded_at": stored[-1].recorded_at,
        "sound_events": 4,
        "unfinished_turn": None,
        "fault": None,
    }
    assert (second["session_id"], second["unfinished_turn"]) == ("second", "turn-1")


def test_without_a_path() -> None:
    """Then it prints the versions and nothing else."""
    code, text, error = run()
    assert (code, error) == (0, "")
    assert "\nversions\n  sessiond " in text
    assert "\nfile\n" not in text


# --- nothing is changed -------------------------------------------------------------------------


def test_nothing_is_changed(database: Path) -> None:
    """Of a file at rest, byte for byte: it, and what stands beside it."""
    before = files_in(database.parent)
    assert examined(database)["sqlite"]["looked_at"] == "a private copy"
    assert files_in(database.parent) == before == {database.name: before[database.name]}


def test_with_a_host_and_after_its_kill(tmp_path: Path) -> None:
    """A running Host is named and goes on; what a killed one left is read, and left as it was."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as host:
        assert host.post("one", SAID).status_code == 200
        report = examined(database)
        assert report["host"] == {"running": True, "process": str(host.pid)}
        assert report["sqlite"]["looked_at"] == "the file itself"
        assert report["sessions"][0]["sound_events"] == host.session()["last_sequence"]
        assert host.post("two", SAID).status_code == 200
        events_n = host.session()["last_sequence"]
        host.kill()
    assert wal_of(database).stat().st_size > 0
    before = files_in(tmp_path)
    report = examined(database)
    assert files_in(tmp_path) == before
    assert report["faults"] == []
    assert report["host"] == {"running": False, "process": None}
    assert report["sessions"][0]["sound_events"] == events_n


# --- faults -------------------------------------------------------------------------------------


SOUND = rows_of([*Conversation().turn(), chunk(SAID), chunk({SAID: 1})])
STORED = [(row.event_type, row.payload) for row in SOUND]


def with_stored(at: int, event_type: str, payload: str) -> list[Row]:
    stored = [*STORED]
    stored[at] = event_type, payload
    return chained(stored)


UNSOUND: dict[str, tuple[list[Row], str]] = {
    "digest": (
        [*SOUND[:4], SOUND[4]._replace(payload=SOUND[5].payload), *SOUND[5:]],
        "sequence 5: a row was changed, by another program or by the disk",
    ),
    "schema": (
        with_stored(2, "model_chunk_recorded", f'{{"{SAID}":"{SAID}"}}'),
        "sequence 3: an event is none that sessiond would have written in this place",
    ),
    "tag": (
        with_stored(2, SAID, "{}"),
        "sequence 3: a row is of no kind that sessiond writes",
    ),
    "rule": (
        with_stored(
            2, "step_failed", f'{{"step_id":"turn-9/step-1","code":"{SAID}","message":""}}'
        ),
        "sequence 3: an event is none that sessiond would have written in this place",
    ),
    "JSON": (
        with_stored(2, "model_chunk_recorded", f'{{"{SAID}"'),
        "sequence 3: an event is none that sessiond would have written in this place",
    ),
    "time": (
        chained(STORED, recorded_at=SAID),
        "sequence 1: a row has no valid time",
    ),
    "format": (
        [row._replace(format_version=9) for row in SOUND],
        "sequence 1: a newer sessiond wrote it, or another program did",
    ),
}


@pytest.mark.parametrize("kind", UNSOUND)
def test_an_unsound_session(tmp_path: Path, kind: str) -> None:
    """Its fault is told by place and kind, in no word that is stored; the others are verified."""
    rows, fault = UNSOUND[kind]
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows)
    write_rows(database, rows_of(Conversation().turn(), "sound"), "sound")
    before = files_in(tmp_path)
    report = examined(database)
    assert report["faults"] == [f"session default, {fault}"]
    default, sound = report["sessions"]
    assert default["fault"] in fault
    assert (default["rows"], sound["fault"], sound["sound_events"]) == (len(SOUND), None, 4)
    assert files_in(tmp_path) == before


def test_an_id_that_is_none(tmp_path: Path) -> None:
    """What stands in the place of a session id is not printed either."""
    database = tmp_path / "session.sqlite3"
    write_rows(database, rows_of([chunk(1)], f"{SAID} \n"), f"{SAID} \n")
    report = examined(database)
    assert [each["session_id"] for each in report["sessions"]] == ["(not a session id)"]
    assert len(report["faults"]) == 1


def test_files_that_no_other_command_reads(database: Path) -> None:
    """Each is a fault or two of the report, not the end of it."""
    place = database.parent
    text, directory, linked = place / "text", place / "directory", place / "linked"
    text.write_text(f"{SAID}\n" * 100)
    directory.mkdir()
    foreign, newer, torn = place / "foreign", place / "newer", place / "torn"
    for path, pragma in ((foreign, "application_id=1"), (newer, "user_version=2")):
        path.write_bytes(database.read_bytes())
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE").fetchall()
            connection.execute(f"PRAGMA {pragma}")
    torn.write_bytes(database.read_bytes()[:8_192] + b"\xff" * 8_192 + b"\0" * 4_096)
    os.link(foreign, linked)
    told = {
        text: "header: is not a SQLite file",
        directory: "file: is a directory",
        Path("/dev/null"): "file: is not a regular file",
        place / "none": "file: No such file or directory",
        foreign: "header: is of another application or schema version",
        newer: "header: is of another application or schema version",
        linked: "file: has 2 hard links; a database must have one name",
    }
    before = files_in(place)
    for path, fault in told.items():
        assert fault in examined(path)["faults"], path
    assert any(fault.startswith("integrity: ") for fault in examined(torn)["faults"])
    assert files_in(place) == before


def test_files_with_nothing_in_them(tmp_path: Path) -> None:
    """A start that was cut short leaves no fault, only something to remark on."""
    empty, fresh = tmp_path / "empty", tmp_path / "fresh"
    empty.touch(0o600)
    with closing(sqlite3.connect(fresh)) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
    for path in (empty, fresh):
        report = examined(path)
        assert report["faults"] == []
        assert report["remarks"]


def test_a_file_that_may_not_be_read() -> None:
    """It is described from outside as far as the system tells, to whoever may not open it."""
    with public_directory() as place:
        database = place / "session.sqlite3"
        write_rows(database, rows_of(Conversation().turn()))
        database.chmod(0)
        (done,) = sessiond_each([["doctor", database, "--json"]], as_nobody=True)
    report: Document = json.loads(done.stdout)
    assert report["file"]["mode"] == "0000"
    assert "header: Permission denied" in report["faults"]
    assert done.returncode == 1


def test_a_path_of_odd_letters(tmp_path: Path) -> None:
    """Whatever the file is called, the block is plain and the document is JSON."""
    database = tmp_path / "a\x1b[2J \udcff.sqlite3"
    write_rows(database, rows_of(Conversation().turn()))
    done = sessiond("doctor", database, "--json")
    assert json.loads(done.stdout)["file"]["path"].endswith(r"a\x1b[2J \udcff.sqlite3")
    assert "\x1b" not in sessiond("doctor", database).stdout


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deepest mount that a path is on says which; of two in one place, the later."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:9 / /srv/my\\040files rw,noatime shared:7 - nfs4 host:/export rw\n"
        "3 1 0:8 / /srv rw - tmpfs tmpfs rw\n"
        "4 1 0:7 / /opt rw - xfs /dev/sdb rw\n"
        "5 4 0:6 / /opt rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(surroundings, "MOUNTS", mounts)
    told = {"/home/a": "ext4", "/srv/my files/a": "nfs4", "/srv/my": "tmpfs", "/opt/a": "tmpfs"}
    assert {place: filesystem_of(Path(place)) for place in told} == told
    monkeypatch.setattr(surroundings, "MOUNTS", tmp_path / "none")
    assert filesystem_of(Path("/a")) is None
