"""The database read: what is refused, and untouched by it; every place it can be read in."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_support import SESSION, chained, stored_rows, write_rows
from process_support import PATIENCE_S, TREE, public_directory, wal_of

from actors import reader as reader_module
from actors.errors import StoreError
from actors.reader import PAGE_ROWS, is_fresh, open_reader
from actors.store import create, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors.rows import Row

ROWS = chained([("kind", f'"{"x" * 100}"')] * 50)
LAST = (ROWS[-1].sequence, ROWS[-1].digest)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite3"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


def hot_journal(path: Path, pages: list[bytes]) -> None:
    """Leave what a kill inside a transaction leaves, which had begun with these pages.

    Written by hand after sqlite.org/fileformat.html, section 3.
    """
    page_size = len(pages[0])
    nonce = 7
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">5I", len(pages), nonce, len(pages), 512, page_size)
    journal = head.ljust(512, b"\0")
    for number, page in enumerate(pages, 1):
        checksum = nonce + sum(page[at] for at in range(page_size - 200, 0, -200))
        journal += struct.pack(">I", number) + page + struct.pack(">I", checksum % 2**32)
    beside(path, "-journal").write_bytes(journal)


def pages_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + 4096] for at in range(0, len(content), 4096)]


def empty_database(path: Path) -> None:
    run_sql(path, "VACUUM")
    assert len(pages_of(path)) == 1


def kill_writer(database: Path) -> Path:
    """Return a copy as a killed writer leaves it: rows in the -wal alone, and no -shm."""
    write_rows(database, ROWS[:-1])
    store = open_store(database, SESSION, (ROWS[-2].sequence, ROWS[-2].digest))
    store.commit(ROWS[-1:])
    killed = database.with_name("killed.sqlite3")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(database, suffix), beside(killed, suffix))
    store.close()
    return killed


# --- refused, and untouched -------------------------------------------------------------------


def make_text(path: Path) -> None:
    path.write_text("This is a letter to my aunt.\n" * 20)


def make_short(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 50)


def make_header_only(path: Path) -> None:
    write_rows(path, ROWS)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000)


def make_tables(path: Path) -> None:
    run_sql(path, "CREATE TABLE t(x)", "INSERT INTO t VALUES (1)")


def make_foreign_wal(path: Path) -> None:
    other = path.with_name("other")
    connection = sqlite3.connect(other, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute("CREATE TABLE t(x)")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(other, suffix), beside(path, suffix))
    connection.close()


def make_application(path: Path) -> None:
    run_sql(path, "PRAGMA application_id=7", "PRAGMA user_version=1")


def make_version(path: Path) -> None:
    write_rows(path, ROWS)
    run_sql(path, "PRAGMA user_version=2")


def make_version_in_wal(path: Path) -> None:
    other = path.with_name("other")
    write_rows(other, ROWS)
    connection = sqlite3.connect(other, isolation_level=None)
    connection.execute("PRAGMA user_version=2")
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(other, suffix), beside(path, suffix))
    connection.close()


def make_without_trigger(path: Path) -> None:
    write_rows(path, ROWS)
    run_sql(path, "DROP TRIGGER session_events_no_delete")


def make_with_more_triggers(path: Path) -> None:
    write_rows(path, ROWS)
    run_sql(
        path,
        "CREATE TRIGGER more AFTER INSERT ON session_events BEGIN SELECT 1; END",
    )


def make_second_index(path: Path) -> None:
    write_rows(path, ROWS)
    run_sql(path, "CREATE INDEX more ON session_events(digest)")


def make_not_strict(path: Path) -> None:
    write_rows(path, ROWS)
    run_sql(
        path,
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET sql = replace(sql, ' STRICT', '') WHERE type = 'table'",
    )


def make_lost_index_entries(path: Path) -> None:
    write_rows(path, ROWS)
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE type = 'index'"
        ).fetchall()
    pages = pages_of(path)
    number = next(n for n, page in enumerate(pages, 1) if n != root and b"default" in page)
    pages[number - 1] = pages[number - 1].replace(b"default", b"defaulu", 1)
    path.write_bytes(b"".join(pages))


def make_cut(path: Path) -> None:
    write_rows(path, ROWS)
    path.write_bytes(path.read_bytes()[:-4096])


def make_foreign_with_hot_journal(path: Path) -> None:
    make_tables(path)
    pages = pages_of(path)
    path.unlink()
    empty_database(path)
    hot_journal(path, pages)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_linked(path: Path) -> None:
    write_rows(path, ROWS)
    path.with_name("second").hardlink_to(path)


def make_lost_database(path: Path) -> None:
    killed = kill_writer(path)
    path.unlink()
    wal_of(killed).rename(wal_of(path))


def make_lost_database_with_journal(path: Path) -> None:
    write_rows(path, ROWS)
    hot_journal(path, pages_of(path))
    path.unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (make_text, "is not a SQLite file"),
    "a piece of a header": (make_short, "is not a SQLite file"),
    "a header and rubbish": (make_header_only, "malformed"),
    "tables of others": (make_tables, "another application"),
    "tables of others in the -wal": (make_foreign_wal, "another application"),
    "tables of others in the -journal": (make_foreign_with_hot_journal, "another application"),
    "an application id": (make_application, "another application"),
    "a newer version": (make_version, "schema version 2"),
    "a newer version in the -wal": (make_version_in_wal, "schema version 2"),
    "a trigger less": (make_without_trigger, "not as this program makes them"),
    "a trigger more": (make_with_more_triggers, "not as this program makes them"),
    "an index more": (make_second_index, "not as this program makes them"),
    "a lax table": (make_not_strict, "not as this program makes them"),
    "an index that lost a row": (make_lost_index_entries, "is damaged: "),
    "a file cut short": (make_cut, "malformed|is damaged"),
    "a directory": (make_directory, "is a directory"),
    "a pipe": (make_pipe, "is not a regular file"),
    "a loop of symlinks": (make_loop, "symbolic links"),
    "two names": (make_linked, "2 hard links"),
    "a -wal alone": (make_lost_database, "-wal beside it holds data"),
    "a -journal alone": (make_lost_database_with_journal, "-journal beside it holds data"),
}


def everything(directory: Path) -> dict[str, bytes | None]:
    """Every file's content; a reader may leave an empty -wal and a -shm, which say nothing."""
    found = {
        place.name: place.read_bytes() if place.is_file() and not place.is_symlink() else None
        for place in directory.iterdir()
    }
    return {
        name: content
        for name, content in found.items()
        if not (name.endswith("-shm") or (name.endswith("-wal") and not content))
    }


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_file_is_left_as_it_was(database: Path, kind: str) -> None:
    """One line names the file and the fault; no byte of anything in the directory changes."""
    make, fault = REFUSED[kind]
    make(database)
    before = everything(database.parent)

    def start() -> None:
        if not is_fresh(database):
            open_reader(database).close()

    with pytest.raises(StoreError, match=fault) as caught:
        start()
    assert caught.value.path == database
    assert str(caught.value).startswith(f"{database}: ")
    assert "\n" not in str(caught.value)
    assert everything(database.parent) == before


@pytest.mark.parametrize("kind", ["missing", "no byte", "no table"])
def test_nothing_is_fresh_and_cannot_be_read(database: Path, kind: str) -> None:
    """No file, an empty one and an empty database are fresh, and there is nothing to read."""
    if kind == "no byte":
        database.write_bytes(b"")
    if kind == "no table":
        empty_database(database)
    assert is_fresh(database)
    with pytest.raises(StoreError, match=r"no database|nothing in the database"):
        open_reader(database)


def test_layout_is_compared_by_its_words(database: Path) -> None:
    """What ANALYZE leaves, and other white space in the definitions, are no alteration."""
    write_rows(database, ROWS)
    run_sql(
        database,
        "ANALYZE",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET sql = replace(sql, ' ', '  ') WHERE sql NOT LIKE '%''%'",
    )
    with open_reader(database) as reader:
        assert reader.rows(SESSION) == ROWS


# --- hot journals -----------------------------------------------------------------------------


def test_kill_inside_the_first_transaction_is_fresh(database: Path) -> None:
    """A database filled in place, killed before its commit, starts anew: the journal decides."""
    empty_database(database)
    pages = pages_of(database)
    write_rows(database, [])
    hot_journal(database, pages)
    before = everything(database.parent)
    assert is_fresh(database)
    assert everything(database.parent) == before
    write_rows(database, ROWS)
    assert not beside(database, "-journal").exists()
    assert stored_rows(database) == ROWS


@pytest.mark.parametrize("exists", [True, False])
def test_kill_inside_the_making_of_a_file_is_fresh(database: Path, exists: bool) -> None:
    """A journal that restores a file of no pages does not spoil the database made there."""
    if exists:
        database.write_bytes(b"")
    head = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 7, 0, 512, 4096)
    beside(database, "-journal").write_bytes(head.ljust(512, b"\0"))
    assert is_fresh(database)
    create(database)
    assert list(everything(database.parent)) == [database.name]
    write_rows(database, ROWS)
    assert stored_rows(database) == ROWS


def test_hot_journal_of_ours_is_rolled_back_for_the_reader_alone(database: Path) -> None:
    """A reader sees what a roll-back will bring, and leaves the roll-back to the owner."""
    write_rows(database, ROWS[:-1])
    pages = pages_of(database)
    write_rows(database, [], "other")
    run_sql(database, f"INSERT INTO session_events VALUES {(*ROWS[-1][:-1],)!r}"[:-1] + ", x'00')")
    hot_journal(database, pages)
    before = everything(database.parent)
    with open_reader(database) as reader:
        assert reader.rows(SESSION) == ROWS[:-1]
    assert everything(database.parent) == before


# --- wherever it stands -----------------------------------------------------------------------

READ_AS_NOBODY = """
import os, sys, tempfile
from pathlib import Path
from actors.errors import StoreError
from actors.reader import open_reader
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with open_reader(Path(sys.argv[1])) as reader:
        print(len(reader.rows("default")))
        print(len(list(Path(tempfile.gettempdir()).glob("sessiond-*"))))
    print(len(list(Path(tempfile.gettempdir()).glob("sessiond-*"))))
except StoreError as error:
    print(error.fault)
"""


def read_as_nobody(path: Path, temporary: Path) -> list[str]:
    temporary.chmod(0o1777)
    done = subprocess.run(
        [sys.executable, "-c", READ_AS_NOBODY, str(path)],
        cwd=TREE,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("closed", ["50", "0", "0"]),
        ("empty -wal", ["50", "0", "0"]),
        ("killed", ["50", "1", "0"]),
        ("running", ["50", "0", "0"]),
    ],
)
def test_read_only_directory(database: Path, kind: str, said: list[str]) -> None:
    """All committed rows are read where nothing may be written, by the least means that do it.

    Said are: rows, private copies while it is open, private copies after.
    """
    killed = kill_writer(database)
    with public_directory() as directory, public_directory() as temporary:
        copy = directory / "copy.sqlite3"
        shutil.copyfile(database if kind != "killed" else killed, copy)
        if kind == "killed":
            shutil.copyfile(wal_of(killed), wal_of(copy))
        if kind == "empty -wal":
            wal_of(copy).touch()
        store = open_store(copy, SESSION, LAST) if kind == "running" else None
        for place in directory.iterdir():
            place.chmod(0o444)
        directory.chmod(0o555)
        try:
            assert read_as_nobody(copy, temporary) == said
        finally:
            directory.chmod(0o755)
            if store is not None:
                store.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_unreadable_file_is_refused(database: Path, suffix: str) -> None:
    """What may not be read is refused in one line: the file, and its -wal too."""
    killed = kill_writer(database)
    with public_directory() as directory, public_directory() as temporary:
        copy = directory / "copy.sqlite3"
        for end in ("", "-wal"):
            shutil.copyfile(beside(killed, end), beside(copy, end))
            beside(copy, end).chmod(0o000 if end == suffix else 0o444)
        (said,) = read_as_nobody(copy, temporary)
        assert said.startswith("cannot be read: ")


def test_open_elsewhere_and_out_of_reach_is_refused(database: Path) -> None:
    """With a -wal that another program uses and may not be seen, the line says what is missing."""
    write_rows(database, ROWS[:-1])
    with public_directory() as directory, public_directory() as temporary:
        copy = directory / "copy.sqlite3"
        shutil.copyfile(database, copy)
        store = open_store(copy, SESSION, (ROWS[-2].sequence, ROWS[-2].digest))
        store.commit(ROWS[-1:])
        copy.chmod(0o444)
        wal_of(copy).chmod(0o444)
        beside(copy, "-shm").chmod(0o000)
        directory.chmod(0o555)
        (said,) = read_as_nobody(copy, temporary)
        assert "it is open elsewhere" in said
        directory.chmod(0o755)
        store.close()


def test_running_writer_is_read_and_not_held_up(database: Path) -> None:
    """Between two pages the writer commits and empties its -wal; the next page has the news."""
    write_rows(database, ROWS[:10])
    store = open_store(database, SESSION, (10, ROWS[9].digest))
    with open_reader(database) as reader:
        assert reader.rows(SESSION, 0, 10) == ROWS[:10]
        store.commit(ROWS[10:])
        assert reader.last_sequence(SESSION) == 50
        assert reader.rows(SESSION, 10) == ROWS[10:]
        store.close()
        assert reader.rows(SESSION) == ROWS


def test_busy_file_is_refused_rather_than_read_torn(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another program holds exclusively is not read past its locks."""
    write_rows(database, ROWS)
    run_sql(database, "PRAGMA journal_mode=DELETE")
    impatient = partial(sqlite3.connect, timeout=0.01)
    with closing(sqlite3.connect(database, isolation_level=None)) as tool:
        tool.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(reader_module.sqlite3, "connect", impatient)
        with pytest.raises(StoreError, match="database is locked"):
            open_reader(database)


def test_odd_names(tmp_path: Path) -> None:
    """Characters that mean something in a URI, or to SQLite, are part of the name."""
    for name in ("a?mode=memory", "b#c", "d%41", "sp ace", ":memory:", "é☃"):
        path = tmp_path / name
        write_rows(path, ROWS)
        with open_reader(path) as reader:
            assert reader.last_sequence(SESSION) == 50


# --- pages ------------------------------------------------------------------------------------


def smuggle(path: Path, *statements: str) -> None:
    """Change rows past the triggers, which stand as before when it is done."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = bytes
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name.decode()}")
        for statement in statements:
            connection.execute(statement)
        for _, definition in triggers:
            connection.execute(definition.decode())


@settings(max_examples=30)
@given(after=st.none() | st.integers(-5, 60), limit=st.integers(1, 60))
def test_page_is_a_slice(
    after: int | None, limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A page is what lies above ``after``, in order, up to the limit."""
    with open_reader(filled(tmp_path_factory)) as reader:
        start = max(after or 0, 0)
        assert reader.rows(SESSION, after, limit) == ROWS[start : start + limit]


def filled(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "filled.sqlite3"
    if not path.exists():
        write_rows(path, ROWS)
    return path


def test_page_has_a_thousand_rows_at_most(database: Path) -> None:
    """However many are asked for, one transaction reads at most 1,000."""
    rows: list[Row] = chained([("kind", "1")] * (PAGE_ROWS + 1))
    write_rows(database, rows)
    with open_reader(database) as reader:
        assert reader.rows(SESSION, None, 10**9) == rows[:1000]
        assert reader.rows(SESSION, PAGE_ROWS) == rows[1000:]


def test_rows_before_the_first_are_not_hidden(database: Path) -> None:
    """A tampered file shows also what was put at or below zero."""
    write_rows(database, ROWS)
    smuggle(
        database,
        "UPDATE session_events SET sequence = 0 WHERE sequence = 1",
        f"UPDATE session_events SET sequence = {-(2**63) + 1} WHERE sequence = 2",
    )
    with open_reader(database) as reader:
        assert [row.sequence for row in reader.rows(SESSION, None, 3)] == [-(2**63) + 1, 0, 3]


def test_bytes_that_are_no_text_are_told_from_text(database: Path) -> None:
    """Text that is no UTF-8 comes as lone surrogates, which no sound row has."""
    write_rows(database, ROWS)
    smuggle(
        database, "UPDATE session_events SET payload = CAST(x'22ff22' AS TEXT) WHERE sequence = 2"
    )
    with open_reader(database) as reader:
        assert [row.payload for row in reader.rows(SESSION)[:3]] == [
            ROWS[0].payload,
            '"\udcff"',
            ROWS[2].payload,
        ]


def test_value_of_a_wrong_type_is_refused(database: Path) -> None:
    """What turns up after the check at opening, and no strict table can hold, is not passed on."""
    write_rows(database, ROWS)
    with open_reader(database) as reader:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            ((sql,),) = connection.execute(
                "SELECT sql FROM sqlite_schema WHERE type = 'table'"
            ).fetchall()
            connection.execute("PRAGMA writable_schema=ON")
            connection.execute(
                "UPDATE sqlite_schema SET sql = ? WHERE type = 'table'",
                (sql.replace(" STRICT", ""),),
            )
        smuggle(database, "UPDATE session_events SET digest = 'text' WHERE sequence = 7")
        with pytest.raises(StoreError, match="row 7 has a column of a wrong type"):
            reader.rows(SESSION)


@settings(max_examples=20)
@given(names=st.sets(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,5}", fullmatch=True), max_size=6))
def test_session_ids_are_all_of_them(
    names: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each session is named once, in order, however many rows it has."""
    database = tmp_path_factory.mktemp("sessions") / "sessions.sqlite3"
    write_rows(database, [])
    for size, name in enumerate(sorted(names), 1):
        write_rows(database, chained([("kind", "1")] * size, session_id=name), name)
    with open_reader(database) as reader:
        assert reader.session_ids() == tuple(sorted(names))
        assert [reader.last_sequence(name) for name in sorted(names)] == [*range(1, len(names) + 1)]
        assert reader.last_sequence("no-such-session") == 0


# --- backup -----------------------------------------------------------------------------------


def test_backup_is_whole_private_and_alone(database: Path, tmp_path: Path) -> None:
    """A copy of a killed writer's file has what was in the -wal; mode 0600, nothing beside it."""
    killed = kill_writer(database)
    (tmp_path / "to").mkdir()
    destination = tmp_path / "to" / "copy.sqlite3"
    mask = os.umask(0)
    try:
        with open_reader(killed) as reader:
            reader.backup(destination)
    finally:
        os.umask(mask)
    assert [place.name for place in destination.parent.iterdir()] == ["copy.sqlite3"]
    assert stat.S_IMODE(destination.stat().st_mode) == 0o600
    with open_reader(destination) as copy:
        assert copy.rows(SESSION) == ROWS


def test_backup_beside_a_writer_is_of_one_moment(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that commits between the pieces neither changes the copy nor starts it anew."""
    monkeypatch.setattr(reader_module, "_BACKUP_PAGES", 1)
    write_rows(database, ROWS[:25])
    store = open_store(database, SESSION, (25, ROWS[24].digest))
    coming = iter(ROWS[25:])
    seen: list[tuple[int, int]] = []

    def commit_one(done: int, total: int) -> None:
        seen.append((done, total))
        row = next(coming, None)
        if row is not None:
            store.commit([row])

    with open_reader(database) as reader:
        reader.backup(tmp_path / "copy", commit_one)
    store.close()
    total = seen[0][1]
    assert total > 2
    assert seen == [(done, total) for done in range(1, total + 1)]
    assert stored_rows(tmp_path / "copy") == ROWS[:25]
    assert len(stored_rows(database)) > 25


@pytest.mark.parametrize("kind", ["file", "directory", "dangling symlink", "its -wal"])
def test_backup_overwrites_nothing(database: Path, tmp_path: Path, kind: str) -> None:
    """Whatever is at the destination, or was left by a database there, stays as it is."""
    write_rows(database, ROWS)
    destination = tmp_path / "copy"
    if kind == "file":
        destination.write_text("precious")
    if kind == "directory":
        destination.mkdir()
    if kind == "dangling symlink":
        destination.symlink_to("nowhere")
    if kind == "its -wal":
        wal_of(destination).write_text("precious")
    with open_reader(database) as reader:
        before = everything(tmp_path)
        with pytest.raises(StoreError) as caught:
            reader.backup(destination)
    assert caught.value.path == destination
    assert everything(tmp_path) == before


def test_backup_that_fails_leaves_nothing(database: Path, tmp_path: Path) -> None:
    """When it is broken off, what was begun is removed, and the reader can still be used."""
    write_rows(database, ROWS)

    def break_off(*_: int) -> None:
        raise KeyboardInterrupt

    with open_reader(database) as reader:
        with pytest.raises(KeyboardInterrupt):
            reader.backup(tmp_path / "copy", break_off)
        assert not list(tmp_path.glob("copy*"))
        assert reader.rows(SESSION) == ROWS
        reader.backup(tmp_path / "copy")
    assert stored_rows(tmp_path / "copy") == ROWS


BACKUP_INTO_A_LIMIT = """
import resource, signal, sys
from pathlib import Path
from actors.errors import StoreError
from actors.reader import open_reader
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_reader(Path(sys.argv[1])) as reader:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        reader.backup(Path(sys.argv[2]))
    except StoreError as error:
        print(error)
"""


def test_backup_without_room_is_one_line(database: Path, tmp_path: Path) -> None:
    """A destination that cannot hold the copy is named with SQLite's reason, and removed."""
    write_rows(database, ROWS)
    done = subprocess.run(
        [sys.executable, "-c", BACKUP_INTO_A_LIMIT, str(database), str(tmp_path / "copy")],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.startswith(f"{tmp_path / 'copy'}: cannot be copied to: ")
    assert not list(tmp_path.glob("copy*"))
