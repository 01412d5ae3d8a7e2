"""What stands beside the file: its own ``-wal`` is never refused, that of another copy always.

The first is a matter of every state that a kill or a loss of power can leave, the second of what
SQLite plays in without a word.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from random import Random, getrandbits  # the latter seeded for this test by pytest-randomly
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define
from damage_support import beside, journal_of, read_files, run_sql, write_files
from hypothesis import example, given
from hypothesis import strategies as st
from log_support import SESSION, chained, chunk, stored_rows, write_rows
from process_support import TREE, error_line, sessiond, wal_of

from actors import reader as reader_module
from actors.codec import encode_event
from actors.errors import StoreError
from actors.reader import is_fresh, open_reader
from web.offline import load

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from actors.rows import Row

PAGE, SECTOR = 4096, 512
NAMES = ("a", "b", "c")
Sizes = list[tuple[str, int]]
"""Which session each next row is of, and how many bytes of payload it has."""
Held = dict[str, list[bytes]]
"""The digests of each session's rows, which vouch for all that they hold."""
sizes = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from((2, 100, 700, 5_000, 14_000))), max_size=40
)


@define
class Writer:
    """Appends rows as a Host does, to any session of a file, and knows what it wrote."""

    tool: sqlite3.Connection
    rows: dict[str, list[Row]]

    def append(self, coming: Sizes, mark: str) -> None:
        """Append a row each, in transactions of three; ``mark`` tells them from anybody else's."""
        for start in range(0, len(coming), 3):
            self.tool.execute("BEGIN IMMEDIATE")
            for name, size in coming[start : start + 3]:
                known = self.rows.setdefault(name, [])
                after = (known[-1].sequence, known[-1].digest) if known else (0, None)
                stored = encode_event(chunk(mark.ljust(size, ".")))
                (row,) = chained([stored], session_id=name, after=after)
                self.tool.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                known.append(row)
            self.tool.execute("COMMIT")

    def held(self) -> Held:
        """Return all there is so far, as :func:`read` finds it."""
        return {name: [row.digest for row in known] for name, known in sorted(self.rows.items())}

    def checkpoint(self) -> None:
        self.tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def writing(path: Path, rows: dict[str, list[Row]]) -> Generator[Writer, None, None]:
    """Open a database that has these rows; its ``-wal`` is there until the block is left."""
    with closing(sqlite3.connect(path, isolation_level=None)) as tool:
        tool.execute("PRAGMA synchronous=OFF")
        tool.execute("PRAGMA wal_autocheckpoint=0")
        yield Writer(tool, {name: list(known) for name, known in rows.items()})


def read(path: Path) -> Held:
    """Return what a start on each of the sessions finds."""
    assert not is_fresh(path)
    with open_reader(path) as reader:
        return {
            name: [envelope.digest for envelope in load(reader, name)]
            for name in reader.session_ids()
        }


def everything_but_shm(path: Path) -> dict[str, bytes]:
    return {suffix: data for suffix, data in read_files(path).items() if suffix != "-shm"}


# --- of a copy that went another way ----------------------------------------------------------

first_of_a: Sizes = [("a", 2)]
some = sizes.filter(bool)


@given(before=sizes, ours=some, later=sizes, theirs=some, emptied=st.booleans())
@example(before=[], ours=[("a", 2)], later=[], theirs=[("b", 2)], emptied=False)
@example(before=first_of_a, ours=[("b", 2)], later=[], theirs=[("a", 2)], emptied=False)
@example(before=first_of_a, ours=[("a", 5_000)] * 9, later=[], theirs=first_of_a, emptied=True)
def test_wal_of_a_copy_is_refused_once_the_file_went_on(
    tmp_path_factory: pytest.TempPathFactory,
    before: Sizes,
    ours: Sizes,
    later: Sizes,
    theirs: Sizes,
    emptied: bool,
) -> None:
    """Whatever either appended to whichever session, both ways round; nothing is changed.

    A -wal that the copy began only after a checkpoint of its own may also change nothing of what
    is read: then that is all that the file holds. And beside a file that has not gone on since it
    was copied, it is that copy's own: then all that the copy holds is read, and nothing else.
    """
    directory = tmp_path_factory.mktemp("fork")
    path, copy = directory / "ours.sqlite3", directory / "theirs.sqlite3"
    write_rows(path, [])
    with writing(path, {}) as writer:
        writer.append(before, "before")
    shared = writer.rows
    shutil.copyfile(path, copy)
    early_n = len(theirs) // 2 if emptied else 0
    their_main, their_early, their_wal, their_rows = gone_on(copy, shared, theirs, early_n)
    if not emptied:
        write_files(path, {"": path.read_bytes(), "-wal": their_wal})
        assert read(path) == their_rows
        write_files(path, {"": their_main})  # which is what was copied
    our_main, our_early, our_wal, _ = gone_on(path, shared, [*ours, *later], len(ours))
    check_mixed(path, our_main, their_wal, our_early if emptied else None)
    if early_n and later:
        check_mixed(path, their_main, our_wal, their_early)


def gone_on(
    path: Path, shared: dict[str, list[Row]], coming: Sizes, early_n: int
) -> tuple[bytes, Held, bytes, Held]:
    """Append to a copy, with a checkpoint after the first ``early_n`` rows.

    Returns the main file and what it then held, the ``-wal`` and what both hold at the end.
    """
    with writing(path, shared) as writer:
        writer.append(coming[:early_n], path.name)
        writer.checkpoint()
        early = writer.held()
        writer.append(coming[early_n:], path.name)
        return path.read_bytes(), early, wal_of(path).read_bytes(), writer.held()


def check_mixed(path: Path, main: bytes, wal: bytes, unchanged: Held | None) -> None:
    """See that a file with another's ``-wal`` is refused and left alone, or ``unchanged`` read."""
    write_files(path, {"": main, "-wal": wal})
    before = everything_but_shm(path)
    try:
        found = read(path)
    except StoreError:
        found = None
    assert found in (None, unchanged)
    assert everything_but_shm(path) == before


def forked(path: Path, mark: str, *, again: bool = True) -> dict[str, bytes]:
    """Make the same database each time, with ten rows, and ten of its own in the ``-wal``."""
    rows = chained([encode_event(chunk("shared"))] * 10)
    write_rows(path, rows)
    with writing(path, {SESSION: rows}) as writer:
        writer.append([(SESSION, 9)] * 10, mark)
        if again:
            writer.checkpoint()
            writer.append([(SESSION, 9)], mark)
        return read_files(path)


def test_refusal_says_what_to_do(tmp_path: Path) -> None:
    """A Host names the -wal and what it would lose; once that is moved away, the file is read."""
    path = tmp_path / "sessions.sqlite3"
    theirs = forked(tmp_path / "theirs.sqlite3", "theirs", again=False)
    write_files(path, {"": forked(path, "ours")[""], "-wal": theirs["-wal"]})
    before = everything_but_shm(path)
    done = sessiond("serve", "--port", "0", "--session-db", path)
    assert error_line(done) == (
        f"sessiond: error: {path}: sessions.sqlite3-wal beside it is not its own or is damaged: "
        "with it, event 20 of session 'default' is another or none; "
        "bring back the right one or move that file away"
    )
    assert {**everything_but_shm(path), "-lock": b""} == {**before, "-lock": b""}
    wal_of(path).rename(tmp_path / "moved-away")
    assert len(read(path)[SESSION]) == 20


def test_wal_of_an_empty_database_is_refused(tmp_path: Path) -> None:
    """A -wal that makes a file with events one without a table does not make it a fresh one."""
    path, other = tmp_path / "sessions.sqlite3", tmp_path / "other.sqlite3"
    write_rows(path, chained([encode_event(chunk("ours"))] * 5))
    with writing(other, {}) as writer:
        writer.tool.execute("PRAGMA journal_mode=WAL").fetchall()
        writer.tool.execute("CREATE TABLE passing (x)")
        writer.tool.execute("DROP TABLE passing")
        wal = wal_of(other).read_bytes()
    check_mixed(path, path.read_bytes(), wal, None)


def test_journal_of_a_copy_is_refused(tmp_path: Path) -> None:
    """A -journal that brings back what another copy wrote is none of the file's transactions."""
    path, copy = tmp_path / "sessions.sqlite3", tmp_path / "theirs.sqlite3"
    write_files(path, {"": forked(path, "ours")[""]})
    for again in (False, True):
        copied = forked(copy, "theirs", again=again)
        write_files(copy, copied)
        run_sql(copy, "PRAGMA wal_checkpoint(TRUNCATE)")
        beside(path, "-journal").write_bytes(journal_of(copy.read_bytes()))
        before = everything_but_shm(path)
        with pytest.raises(StoreError, match="-journal beside it is not its own"):
            read(path)
        assert everything_but_shm(path) == before
        write_files(copy, {})


def test_journal_that_takes_events_back_is_its_own(tmp_path: Path) -> None:
    """Events that a transaction in SQLite's older journal mode had not committed are no loss."""
    path = tmp_path / "sessions.sqlite3"
    rows = chained([encode_event(chunk("shared"))] * 10)
    write_rows(path, rows)
    with writing(path, {SESSION: rows}) as writer:
        writer.tool.execute("PRAGMA journal_mode=DELETE").fetchall()
        writer.tool.execute("PRAGMA cache_size=1")  # so that changed pages reach the file at once
        writer.tool.execute("BEGIN")
        for row in chained(
            [encode_event(chunk("x" * 3000))] * 50, after=(rows[-1].sequence, rows[-1].digest)
        ):
            writer.tool.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        files = read_files(path)
        writer.tool.execute("ROLLBACK")
    assert len(files[""]) > len(path.read_bytes())
    write_files(path, files)
    assert read(path) == {SESSION: [row.digest for row in rows]}


# --- its own ----------------------------------------------------------------------------------


def checkpoint_cut_short(main: bytes, done: bytes, rng: Random) -> bytes:
    """Return the file in the middle of a checkpoint that a kill or a loss of power cut short.

    SQLite writes the pages in their order. A kill leaves the first of them, a loss of power any
    of them, or parts of any, and zeros where the file had grown already.
    """
    unit = rng.choice((PAGE, PAGE, SECTOR))
    size = rng.choice((len(main), len(done), rng.randrange(len(main), len(done) + 1, SECTOR)))
    torn = bytearray(main.ljust(size, b"\0")[:size])
    if rng.random() < 0.4:
        reached = rng.randrange(0, len(done) + 1, PAGE)
        return done[:reached] + main[reached:]
    share = rng.choice((0.02, 0.3, 0.7, 0.98))
    for at in range(0, size, unit):
        if rng.random() < share:
            torn[at : at + unit] = done[at : min(at + unit, size)]
    return bytes(torn)


@given(
    before=sizes,
    coming=some,
    between=st.booleans(),
    freed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_checkpoint_cut_short_anywhere_is_no_damage(
    tmp_path_factory: pytest.TempPathFactory,
    before: Sizes,
    coming: Sizes,
    between: bool,
    freed: bool,
    seed: int,
) -> None:
    """Whatever part of a checkpoint reached the disk, all events are there, and none is doubted.

    Also where new events lie on pages that were something else before.
    """
    path = tmp_path_factory.mktemp("torn") / "sessions.sqlite3"
    write_rows(path, [])
    with writing(path, {}) as writer:
        writer.append(before, "before")
        if freed:
            text = f"'{'passing ' * 3000}'"
            writer.tool.execute("CREATE TABLE passing (x)")
            writer.tool.execute(f"INSERT INTO passing VALUES ({text}), ({text})")
            writer.tool.execute("DROP TABLE passing")
        writer.checkpoint()
        main = path.read_bytes()
        writer.append(coming, "coming")
        wal = wal_of(path).read_bytes()
        writer.checkpoint()
        done = path.read_bytes()
        if between:  # the checkpoint is whole, and a new round of the -wal begun over it
            writer.append([("a", 700)], "and on")
            main, wal = done, wal_of(path).read_bytes()
        rows = writer.held()
    rng = Random(seed)  # noqa: S311
    for _ in range(12):
        write_files(path, {"": checkpoint_cut_short(main, done, rng), "-wal": wal})
        assert read(path) == rows


def test_file_whose_session_ids_are_no_text_is_whole_with_its_wal(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, on pages that the -wal replaces, say nothing and stop nothing."""
    path = tmp_path / "sessions.sqlite3"
    rows = chained([encode_event(chunk("early"))] * 3)
    write_rows(path, rows)
    with writing(path, {SESSION: rows}) as writer:
        writer.append([(SESSION, 2)], "late")
        files, held = read_files(path), writer.held()
    first, rest = files[""][:PAGE], files[""][PAGE:]
    assert b"default" in rest
    write_files(path, {"": first + rest.replace(b"default", b"\xffefault"), "-wal": files["-wal"]})
    assert read(path) == held


# Forks a writer for each line of its input, kills it once it has acknowledged enough, and tells
# how much that was in the end.
KILLS = """
import json, os, signal, sys
from pathlib import Path

from log_support import SESSION, chained
from actors.store import open_store

for line in sys.stdin:
    path, n, digest, enough, pages, size = json.loads(line)
    came, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        last = (n, bytes.fromhex(digest) if digest else None)
        store = open_store(Path(path), SESSION, last)
        store._connection.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
        while True:
            payload = f'{{"step_id":"turn-1/step-1","chunk":"{"x" * size}"}}'
            rows = chained([("model_chunk_recorded", payload)] * 2, after=last)
            store.commit(rows)
            last = (rows[-1].sequence, rows[-1].digest)
            os.write(told, b"..")
    os.close(told)
    acknowledged = 0
    while acknowledged < enough:
        piece = os.read(came, enough - acknowledged)
        assert piece, "the writer is gone"
        acknowledged += len(piece)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while piece := os.read(came, 100):
        acknowledged += len(piece)
    os.close(came)
    print(acknowledged, flush=True)
"""


def survive_kills(directory: Path, rounds_n: int, seed: int) -> None:
    """Kill a writer that checkpoints all the time, read what it left, and go on from there."""
    rng = Random(seed)  # noqa: S311
    path = directory / "sessions.sqlite3"
    write_rows(path, [])
    rows: list[Row] = []
    with subprocess.Popen(
        [sys.executable, "-c", KILLS],
        cwd=TREE,
        env=os.environ | {"PYTHONPATH": f"{TREE}{os.pathsep}{TREE / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for _ in range(rounds_n):
            digest = rows[-1].digest.hex() if rows else ""
            pages, size = rng.choice((1, 2, 10, 40)), rng.choice((10, 3_000, 60_000))
            line = [str(path), len(rows), digest, rng.randrange(1, 40), pages, size]
            killer.stdin.write(json.dumps(line) + "\n")
            killer.stdin.flush()
            acknowledged = int(killer.stdout.readline())
            before = everything_but_shm(path)
            (digests,) = read(path).values()
            assert everything_but_shm(path) == before
            found = stored_rows(path)
            assert [row.digest for row in found] == digests
            assert found[: len(rows)] == rows
            assert len(found) >= len(rows) + acknowledged
            rows = found
            if len(rows) > 700:  # a page of rows is 1,000 at most
                write_files(path, {})
                write_rows(path, [])
                rows = []
        killer.stdin.close()
        assert killer.wait() == 0


def test_killed_within_checkpoints_a_file_is_never_refused(tmp_path: Path) -> None:
    """A writer that checkpoints after every few pages, killed at random, leaves all it told of."""
    survive_kills(tmp_path, 15, getrandbits(32))


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_killed_within_checkpoints_many_times(tmp_path: Path) -> None:
    """The same, five hundred times over."""
    survive_kills(tmp_path, 500, getrandbits(32))


def test_read_beside_a_writer_that_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a checkpoint reaches at any moment of its opening is not taken for another's."""
    path = tmp_path / "sessions.sqlite3"
    write_rows(path, [])
    with writing(path, {}) as writer:
        writer.append([("a", 700)] * 9, "before")

        class Disturbed(sqlite3.Connection):
            """Lets the writer go on before each statement of the reader's."""

            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                writer.append([("a", 700), ("b", 5_000)], "meanwhile")
                writer.tool.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                return super().execute(*arguments)

        monkeypatch.setattr(
            reader_module.sqlite3, "connect", partial(sqlite3.connect, factory=Disturbed)
        )
        for _ in range(10):
            before = len(writer.rows["a"])
            with open_reader(path) as reader:
                rows = reader.rows("a")
            assert len(rows) > before
            assert rows == writer.rows["a"][: len(rows)]
