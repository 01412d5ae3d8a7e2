"""The database opened for writing: how it comes to be, what it refuses, how a commit can fail."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_support import SESSION, append_behind_the_back, chained, stored_rows, write_rows
from process_support import PATIENCE_S, TREE, public_directory, wal_of

from actors import store as store_module
from actors.errors import AppendFailed, OutcomeUnknown, StoreError
from actors.reader import is_fresh, open_reader
from actors.store import MemoryStore, Store, connect, open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.rows import Row

NEW: tuple[int, bytes | None] = (0, None)
INSERT = "INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite3"


def rows_n(count: int, after: Row | None = None, size: int = 20) -> list[Row]:
    """``count`` rows that follow ``after``, with a payload of about ``size`` characters."""
    last = NEW if after is None else (after.sequence, after.digest)
    return chained([("kind", f'"{"x" * size}"')] * count, after=last)


def run_child(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(directory: Path) -> set[str]:
    return {place.name for place in directory.iterdir()}


class FaultyConnection(sqlite3.Connection):
    """A real connection on which statements that start in a certain way fail."""

    faults: dict[str, sqlite3.Error]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        for start, error in self.faults.items():
            if sql.startswith(start):
                raise error
        return super().execute(sql, parameters)


def faulty_store(path: Path, last: Row, faults: dict[str, sqlite3.Error]) -> Store:
    connection = sqlite3.connect(path, isolation_level=None, factory=FaultyConnection)
    connection.faults = faults
    return Store(connection, path, SESSION, (last.sequence, last.digest), path)


def sqlite_error(code: int, words: str = "disk I/O error") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


# --- what a new database is -------------------------------------------------------------------


def test_new_database_is_as_other_programs_expect_it(database: Path) -> None:
    """Table, columns, key, strictness, numbers, journal and mode are those of the format."""
    open_store(database, SESSION, NEW).close()
    with closing(sqlite3.connect(database)) as connection:
        columns = connection.execute("PRAGMA table_info(session_events)").fetchall()
        assert [(name, kind, key) for _, name, kind, _, _, key in columns] == [
            ("session_id", "TEXT", 1),
            ("sequence", "INTEGER", 2),
            ("format_version", "INTEGER", 0),
            ("recorded_at", "TEXT", 0),
            ("event_type", "TEXT", 0),
            ("payload", "TEXT", 0),
            ("digest", "BLOB", 0),
        ]
        (table,) = [
            row for row in connection.execute("PRAGMA table_list") if row[1] == "session_events"
        ]
        assert table[5] == 1  # strict
        pragmas = ("user_version", "application_id", "journal_mode")
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        assert found == [1, 0x53455353, "wal"]
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


@pytest.mark.parametrize("start", ["missing", "empty", "stale draft", "through a symlink"])
def test_creation_leaves_the_database_alone(tmp_path: Path, start: str) -> None:
    """Whatever was there before, what stands there after is one complete file."""
    database = tmp_path / "sessions.sqlite3"
    if start == "empty":
        database.write_bytes(b"")
    if start == "stale draft":
        for suffix in ("", "-journal", "-wal", "-shm"):
            (tmp_path / f"sessions.sqlite3-new{suffix}").write_bytes(b"cut short" * 1000)
    asked = database
    if start == "through a symlink":
        asked = tmp_path / "link"
        asked.symlink_to(database)
    assert is_fresh(asked)
    open_store(asked, SESSION, NEW).close()
    assert names(tmp_path) - {"link"} == {"sessions.sqlite3"}
    assert not is_fresh(asked)


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_empty_database_made_by_others_is_filled_in_place(
    database: Path, journal_mode: str
) -> None:
    """A SQLite file with nothing in it becomes ours, and stays the same file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal_mode}").fetchall()
        connection.execute("VACUUM")
    inode = database.stat().st_ino
    assert is_fresh(database)
    write_rows(database, rows_n(2))
    assert database.stat().st_ino == inode
    with open_reader(database) as reader:
        assert reader.last_sequence(SESSION) == 2


CREATE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from actors.store import open_store
print("ready", flush=True)
for n in itertools.count():
    open_store(Path(sys.argv[1]) / f"{n}.sqlite3", "default", (0, None)).close()
"""


@pytest.mark.parametrize("seed", range(8))
def test_kill_at_any_instant_of_creation_leaves_a_startable_file(tmp_path: Path, seed: int) -> None:
    """After kill -9 there is nothing or a complete database, and the next start succeeds."""
    with subprocess.Popen(
        [sys.executable, "-c", CREATE_FOR_EVER, str(tmp_path)], cwd=TREE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(Random(seed).uniform(0.001, 0.06))  # noqa: S311 (no secret)
        finally:
            process.kill()
            process.wait(PATIENCE_S)
    begun = sorted({int(name.split(".")[0]) for name in names(tmp_path)})
    for n in [*begun, len(begun)]:
        database = tmp_path / f"{n}.sqlite3"
        if database.exists():
            assert not database.with_name(database.name + "-journal").exists()
            with open_reader(database) as reader:
                assert reader.session_ids() == ()
        write_rows(database, rows_n(1))
        assert len(stored_rows(database)) == 1


# --- opening step by step ---------------------------------------------------------------------


def test_durability_is_in_effect(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the connection that commits, WAL and synchronous=FULL are on."""
    made: list[sqlite3.Connection] = []

    def remembered(real: Path) -> sqlite3.Connection:
        made.append(connect(real))
        return made[-1]

    monkeypatch.setattr(store_module, "connect", remembered)
    store = open_store(database, SESSION, NEW)
    pragmas = ("journal_mode", "synchronous", "fullfsync", "wal_autocheckpoint", "busy_timeout")
    found = [made[-1].execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert found == ["wal", 2, 1, 1000, int(store_module.BUSY_TIMEOUT_S * 1000)]
    store.close()


def test_place_without_wal_is_refused(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite quietly keeps another journal mode, the file is refused."""

    def without_shared_memory(real: Path) -> sqlite3.Connection:
        uri = f"{real.as_uri()}?mode=rw&vfs=unix-dotfile"
        return sqlite3.connect(uri, uri=True, isolation_level=None)

    monkeypatch.setattr(store_module, "connect", without_shared_memory)
    with pytest.raises(StoreError, match="journal_mode is 'delete'") as caught:
        open_store(database, SESSION, NEW)
    assert caught.value.path == database


@pytest.mark.parametrize("last", [(1, b"\1" * 32), (2, b"\1" * 32), (3, b"\1" * 32), (0, None)])
def test_file_that_moved_on_is_refused(database: Path, last: tuple[int, bytes | None]) -> None:
    """A file that ends elsewhere than it was loaded to is not written."""
    write_rows(database, rows_n(2))
    with pytest.raises(StoreError, match="by another program"):
        open_store(database, SESSION, last)
    assert len(stored_rows(database)) == 2


def test_refusal_names_the_path_as_it_was_given(tmp_path: Path) -> None:
    """Behind a symlink it is still the caller's name that the error carries."""
    (tmp_path / "real").write_text("no database, but long enough to have a header" * 10)
    link = tmp_path / "link"
    link.symlink_to("real")
    with pytest.raises(StoreError, match="not a SQLite file") as caught:
        open_store(link, SESSION, NEW)
    assert caught.value.path == link


OPEN_AS_NOBODY = """
import os, sys
from pathlib import Path
from actors.errors import StoreError
from actors.store import open_store
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    open_store(Path(sys.argv[1]), "default", (0, None)).close()
except StoreError as error:
    print(error.fault)
else:
    print("opened")
"""


@pytest.mark.parametrize("kind", ["ours", "ours with -wal", "its -wal", "empty"])
def test_unwritable_file_is_refused(kind: str) -> None:
    """A file without write permission is refused at opening, in a writable directory too."""
    with public_directory() as directory:
        database = directory / "sessions.sqlite3"
        if kind == "empty":
            database.write_bytes(b"")
        else:
            write_rows(database, [])
        directory.chmod(0o777)
        database.chmod(0o666 if kind == "its -wal" else 0o444)
        before = database.stat().st_mode, database.read_bytes()
        if kind.endswith("-wal"):
            for suffix in ("-wal", "-shm"):
                place = database.with_name(database.name + suffix)
                place.touch()
                place.chmod(0o444 if kind == f"its {suffix}" else 0o666)
        fault = run_child(OPEN_AS_NOBODY, database)
        assert fault.startswith("cannot be"), fault
        assert "readonly" in fault or "Permission denied" in fault
        assert (database.stat().st_mode, database.read_bytes()) == before


def test_unwritable_parent_is_refused() -> None:
    """Where no file can be made there is one line, and nothing was made."""
    with public_directory() as directory:
        directory.chmod(0o555)
        fault = run_child(OPEN_AS_NOBODY, directory / "sessions.sqlite3")
        assert fault == "cannot be written: Permission denied\n"
        assert names(directory) == set()


# --- what the database itself refuses ---------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session_events SET payload = '{}' WHERE sequence = 3",
        "UPDATE session_events SET sequence = 4 WHERE sequence = 3",
        "UPDATE OR REPLACE session_events SET sequence = 2 WHERE sequence = 3",
        "DELETE FROM session_events WHERE sequence = 3",
        "DELETE FROM session_events",
    ],
)
def test_events_are_never_changed_or_deleted(database: Path, statement: str) -> None:
    """UPDATE and DELETE abort, whoever sends them."""
    rows = rows_n(3)
    write_rows(database, rows)
    with closing(sqlite3.connect(database)) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="events are never"):
            connection.execute(statement)
        connection.commit()
    assert stored_rows(database) == rows


@settings(max_examples=25)
@given(
    stored_n=st.integers(0, 4),
    sequence=st.integers(-3, 8) | st.integers(-(2**63), 2**63 - 1),
    verb=st.sampled_from(["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "REPLACE", "UPSERT"]),
)
def test_only_the_next_sequence_is_ever_inserted(stored_n: int, sequence: int, verb: str) -> None:
    """Every sequence but the session's next is refused, under every conflict clause."""
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "sessions.sqlite3"
        rows = rows_n(stored_n)
        write_rows(database, rows)
        row = rows_n(1)[0]._replace(sequence=sequence)
        statement = f"{verb} {INSERT}"
        if verb == "UPSERT":
            statement = f"INSERT {INSERT} ON CONFLICT DO UPDATE SET payload = '{{}}'"
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            if sequence == stored_n + 1:
                connection.execute(statement, row)
                rows.append(row)
            else:
                with pytest.raises(sqlite3.IntegrityError, match="not the next"):
                    connection.execute(statement, row)
        assert stored_rows(database) == rows


def test_sessions_in_one_file_count_for_themselves(database: Path) -> None:
    """The next sequence is that of the row's own session."""
    write_rows(database, rows_n(3))
    other = chained([("kind", "1")] * 2, session_id="other")
    write_rows(database, other, "other")
    assert stored_rows(database, "other") == other
    assert len(stored_rows(database)) == 3


# --- commit -----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=25)
@given(batches=st.lists(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), max_size=5))
def test_what_is_committed_is_what_is_read(batches: list[list[tuple[str, str]]]) -> None:
    """Whatever the texts and however they are batched, the reader returns equal rows."""
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "sessions.sqlite3"
        store = open_store(database, SESSION, NEW)
        committed: list[Row] = []
        for batch in batches:
            last = (committed[-1].sequence, committed[-1].digest) if committed else NEW
            rows = chained(batch, after=last)
            store.commit(rows)
            committed += rows
        store.close()
        with open_reader(database) as reader:
            assert reader.rows(SESSION) == committed
        open_store(
            database, SESSION, (committed[-1].sequence, committed[-1].digest) if committed else NEW
        ).close()


@pytest.mark.parametrize("rows_n", [1, 2, 3, 255, 256, 257, 700])
def test_a_commit_of_any_length_is_stored_whole(database: Path, rows_n: int) -> None:
    """However many rows a transaction has, they are all there, in order, and no others."""
    rows = chained([("tag", str(n)) for n in range(rows_n)])
    write_rows(database, rows)
    assert stored_rows(database) == rows


def test_each_commit_may_come_from_another_thread(database: Path) -> None:
    """The store is bound to no thread."""
    store = open_store(database, SESSION, NEW)
    rows = rows_n(4)
    for row in rows:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(store.commit, [row]).result(PATIENCE_S)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(store.close).result(PATIENCE_S)
    assert stored_rows(database) == rows


@pytest.mark.parametrize("cache_pages", [2000, 1], ids=["at commit", "at insert"])
def test_full_disk_writes_nothing_and_goes_on(database: Path, cache_pages: int) -> None:
    """SQLITE_FULL fails that batch whole, in plain words; with room again it succeeds."""
    first = rows_n(1)
    write_rows(database, first)
    connection = connect(database)
    connection.execute(f"PRAGMA cache_size={cache_pages}")
    connection.execute("PRAGMA max_page_count=8")
    store = Store(connection, database, SESSION, (1, first[0].digest), database)
    rows = rows_n(40, first[0], 2000)
    for _ in range(2):
        with pytest.raises(AppendFailed, match=r"database or disk is full \(SQLITE_FULL\)"):
            store.commit(rows)
        assert not connection.in_transaction
        assert stored_rows(database) == first
    small = rows_n(1, first[0])
    store.commit(small)
    connection.execute("PRAGMA max_page_count=1000")
    store.commit(rows_n(40, small[0], 2000))
    store.close()
    assert stored_rows(database) == [*first, *small, *rows_n(40, small[0], 2000)]


FILE_SIZE_LIMIT = """
import resource, signal, sys
from pathlib import Path
from log_support import chained
from actors.errors import AppendFailed
from actors.store import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
store = open_store(path, "default", (0, None))
last = (0, None)
def rows(count, size):
    return chained([("kind", "x" * size)] * count, after=last)
first = rows(1, 20)
store.commit(first)
last = (1, first[-1].digest)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
grown = 0
while True:  # many small transactions: the -wal comes to its limit long before the file does
    one = rows(1, 20)
    try:
        store.commit(one)
    except AppendFailed as error:
        print(error.fault)
        break
    last = (one[-1].sequence, one[-1].digest)
store.commit(one)  # still under the limit: the -wal was emptied
last = (one[-1].sequence, one[-1].digest)
large = rows(300, 2000)
try:
    store.commit(large)
except AppendFailed as error:
    print(error.fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.commit(large)
store.close()
print(large[-1].sequence)
"""


def test_file_size_limit_writes_nothing_and_goes_on(database: Path) -> None:
    """At a file size limit a batch fails whole; an over-grown -wal is emptied to make room."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{FILE_SIZE_LIMIT}"
    first, second, last = run_child(script, database).splitlines()
    assert "SQLITE_IOERR_WRITE" in first
    assert "SQLITE_IOERR_WRITE" in second
    assert [row.sequence for row in stored_rows(database)] == list(range(1, int(last) + 1))


def test_busy_file_writes_nothing_and_goes_on(database: Path) -> None:
    """While a foreign tool holds the write lock a commit fails, waiting once; then it succeeds."""
    write_rows(database, [])
    connection = connect(database)
    connection.execute("PRAGMA busy_timeout=10").fetchall()
    store = Store(connection, database, SESSION, NEW, database)
    sent: list[str] = []
    with closing(sqlite3.connect(database, isolation_level=None)) as tool:
        tool.execute("BEGIN IMMEDIATE")
        connection.set_trace_callback(sent.append)
        with pytest.raises(AppendFailed, match="database is locked"):
            store.commit(rows_n(1))
        connection.set_trace_callback(None)
        tool.execute("ROLLBACK")
    assert sent
    assert not any("checkpoint" in statement for statement in sent)
    store.commit(rows_n(1))
    store.close()
    assert stored_rows(database) == rows_n(1)


def test_row_behind_the_back_is_in_doubt(database: Path) -> None:
    """When another program has written to the session, the outcome is unknown."""
    store = open_store(database, SESSION, NEW)
    store.commit(rows_n(1))
    foreign = rows_n(1, rows_n(1)[0], 7)
    append_behind_the_back(database, foreign[0])
    with pytest.raises(OutcomeUnknown, match="last event is 2 where 1 was committed"):
        store.commit(rows_n(1, rows_n(1)[0]))
    store.close()
    assert stored_rows(database) == [*rows_n(1), *foreign]


def test_batch_that_the_database_refuses_is_refused_whole(database: Path) -> None:
    """The good rows before a bad one are rolled back with it, and the next batch succeeds."""
    store = open_store(database, SESSION, NEW)
    good = rows_n(3)
    with pytest.raises(AppendFailed, match="not the next"):
        store.commit([*good, good[1]])
    assert stored_rows(database) == []
    store.commit(good)
    store.close()
    assert stored_rows(database) == good


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC])
def test_failed_fsync_is_in_doubt(database: Path, code: int) -> None:
    """After a failed fsync the outcome is unknown, though the rows cannot be read now."""
    write_rows(database, rows_n(1))
    store = faulty_store(database, rows_n(1)[0], {"COMMIT": sqlite_error(code)})
    with pytest.raises(OutcomeUnknown, match="disk I/O error"):
        store.commit(rows_n(1, rows_n(1)[0]))
    store.close()  # no transaction is left open that would be in the way
    assert stored_rows(database) == rows_n(1)


@pytest.mark.parametrize("statement", ["SELECT", "ROLLBACK"])
def test_failed_look_is_in_doubt(database: Path, statement: str) -> None:
    """When the last row cannot be read after a failure, the outcome is unknown."""
    write_rows(database, rows_n(1))
    error = sqlite_error(sqlite3.SQLITE_IOERR_WRITE)
    store = faulty_store(
        database, rows_n(1)[0], {"COMMIT": error, statement: sqlite_error(sqlite3.SQLITE_IOERR)}
    )
    with pytest.raises(OutcomeUnknown, match="then it could not be read") as caught:
        store.commit(rows_n(1, rows_n(1)[0]))
    assert caught.value.__cause__ is error
    if statement == "SELECT":
        store.close()
    else:
        with pytest.raises(StoreError, match="checkpointed"):
            store.close()  # with the transaction still open
    assert stored_rows(database) == rows_n(1)


# --- close ------------------------------------------------------------------------------------


def test_close_leaves_one_file(database: Path) -> None:
    """With nobody else in it, neither a -wal nor a -shm stays, and a plain copy has it all."""
    write_rows(database, rows_n(5))
    assert names(database.parent) == {database.name}
    copy = database.with_name("copy.sqlite3")
    copy.write_bytes(database.read_bytes())
    assert stored_rows(copy) == rows_n(5)


def test_close_beside_an_open_reader_empties_the_wal(database: Path) -> None:
    """A reader between two pages keeps the -wal in place, but nothing in it."""
    write_rows(database, rows_n(1))
    store = open_store(database, SESSION, (1, rows_n(1)[0].digest))
    with open_reader_elsewhere(database) as reader:
        store.commit(rows_n(1, rows_n(1)[0]))
        assert wal_of(database).stat().st_size > 0
        store.close()
        assert wal_of(database).stat().st_size == 0
        assert reader.execute("SELECT count(*) FROM session_events").fetchone() == (2,)


def open_reader_elsewhere(database: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.execute("SELECT count(*) FROM session_events").fetchall()
    return closing(connection)


def test_failed_checkpoint_is_reported_and_loses_nothing(database: Path) -> None:
    """A checkpoint that fails at the end is an error; the rows are safe in the -wal."""
    write_rows(database, rows_n(1))
    error = sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")
    store = faulty_store(database, rows_n(1)[0], {"PRAGMA wal_checkpoint": error})
    store.commit(rows_n(1, rows_n(1)[0]))
    with pytest.raises(StoreError, match="could not be checkpointed: database or disk is full"):
        store.close()
    assert len(stored_rows(database)) == 2


def test_memory_store_takes_everything() -> None:
    """It can stand where a file would."""
    stores: Iterable[Store | MemoryStore] = (MemoryStore(),)
    for store in stores:
        store.commit(rows_n(2))
        store.close()


def test_a_moved_database_takes_nothing_until_it_is_back(database: Path) -> None:
    """Nothing is acknowledged that no name leads to; back in its place, the file goes on."""
    store = open_store(database, SESSION, NEW)
    first = rows_n(1)
    store.commit(first)
    elsewhere = database.with_name("elsewhere")
    database.rename(elsewhere)
    with pytest.raises(AppendFailed, match="the database file was moved, deleted or replaced"):
        store.commit(rows_n(1, after=first[0]))
    database.write_bytes(elsewhere.read_bytes())  # not the same file, if the same bytes
    with pytest.raises(AppendFailed, match="replaced"):
        store.commit(rows_n(1, after=first[0]))
    elsewhere.rename(database)
    store.commit(rows_n(1, after=first[0]))
    store.close()
    assert len(stored_rows(database)) == 2


def test_closing_a_deleted_database_says_so(database: Path) -> None:
    """What was acknowledged cannot be kept for a file that somebody deletes: it is said."""
    store = open_store(database, SESSION, NEW)
    store.commit(rows_n(1))
    database.unlink()
    with pytest.raises(StoreError, match="moved, deleted or replaced"):
        store.close()


def test_a_deleted_wal_loses_nothing(database: Path) -> None:
    """Without its ``-wal`` a database takes no more, and closing saves what was in there."""
    store = open_store(database, SESSION, NEW)
    first = rows_n(1)
    store.commit(first)
    wal_of(database).unlink()
    with pytest.raises(AppendFailed, match="the -wal file of the database was moved"):
        store.commit(rows_n(1, after=first[0]))
    store.close()
    assert len(stored_rows(database)) == 1
