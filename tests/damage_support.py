"""Databases as the library leaves them, and every way known here to damage one.

A *base* is a database made by the library at an instant of its life: all its files, and what its
sessions hold. A *kind* of damage is a function that changes the files of a copy, and the ends to
which a start on them may come. Places and values are random; a seed repeats them.
"""

from __future__ import annotations

import enum
import os
import sqlite3
import struct
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import trio
from attrs import evolve, field, frozen
from log_support import Conversation, chained
from process_support import HostProcess

from actors.codec import encode_event, row_digest
from actors.reader import open_reader
from actors.rows import Row
from actors.session_log import open_session_log
from web.offline import load

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from pathlib import Path
    from random import Random

    from actors.events import Event
    from actors.snapshot import Snapshot

PAGE = 4096
WAL_HEAD, FRAME_HEAD = 32, 24
FRAME = FRAME_HEAD + PAGE
SUFFIXES = ("", "-wal", "-shm", "-journal", "-lock")
COLUMNS = Row._fields
WRITABLE = "PRAGMA writable_schema=ON"


class End(enum.Enum):
    """What a start on a damaged database may come to; there is no fourth."""

    EQUAL = "equal"
    PREFIX = "prefix"
    REFUSED = "refused"


Ends: TypeAlias = frozenset[End]
Edit: TypeAlias = "Callable[[Random, bytearray], str]"
Do: TypeAlias = "Callable[[Random, Path, Base], Damage]"

EQUAL, PREFIX, REFUSED = (frozenset({end}) for end in End)
DAMAGED = EQUAL | REFUSED
ANY_END = EQUAL | PREFIX | REFUSED
"""Where the newest events may be lost with a file that held them."""


@frozen
class Base:
    """A database at an instant, and what it then held."""

    name: str
    files: Mapping[str, bytes]
    """By suffix; without the ``-shm``, as after a loss of power."""
    sessions: Mapping[str, Snapshot]
    older: Mapping[str, bytes]
    """The same database at an earlier instant, the ``-wal`` and ``-shm`` live."""
    foreign: Mapping[str, bytes] = field(factory=dict[str, bytes])
    """Another database with a session of the same id, all of it still in its ``-wal``."""
    shm: bytes = b""
    """What a kill left there."""

    def write(self, path: Path) -> None:
        """Put the files at ``path``, and nothing else."""
        write_files(path, self.files)


@frozen
class Damage:
    """What was done, and to which sessions other ends are right than to the rest."""

    what: str
    ends: Mapping[str, Ends] = field(factory=dict[str, Ends])
    forged_from: int | None = None
    """Where rows begin that only what follows gives away; None if there are none."""


@frozen
class Kind:
    """One way to damage a database."""

    name: str
    do: Do
    ends: Ends
    """Of a session that the damage does not name."""
    bases: frozenset[str]
    seen_offline: bool = True
    """False where what is refused is no matter of the database."""


def beside(path: Path, suffix: str) -> Path:
    """Return where a companion of the database stands."""
    return path.with_name(path.name + suffix)


def read_files(path: Path) -> dict[str, bytes]:
    """Return the content of the database and of what stands beside it, by suffix."""
    places = {suffix: beside(path, suffix) for suffix in SUFFIXES}
    return {suffix: place.read_bytes() for suffix, place in places.items() if place.is_file()}


def write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the database and what stands beside it exactly these files."""
    for suffix in SUFFIXES:
        if suffix in files:
            beside(path, suffix).write_bytes(files[suffix])
        else:
            beside(path, suffix).unlink(missing_ok=True)


# --- bases ------------------------------------------------------------------------------------

LONG_TEXT = "Ærø, snow \N{SNOWMAN}, a face \N{GRINNING FACE}. " * 300
"""About 14,000 bytes: three pages beyond its row's own."""


def make_bases(directory: Path) -> dict[str, Base]:
    """Make all bases, by name, with their files in ``directory`` meanwhile."""
    foreign = trio.run(_make_foreign, directory / "foreign.sqlite3")
    bases = trio.run(_make_bases, directory / "sessions.sqlite3")
    bases.append(_with_free_pages(directory / "free.sqlite3", bases[0]))
    return {base.name: evolve(base, foreign=foreign) for base in bases}


async def _make_foreign(path: Path) -> dict[str, bytes]:
    async with open_session_log("default", path) as log:
        conversation = Conversation()
        for _ in range(4):
            await log.append_many(conversation.turn(1))
            await log.append(conversation.chunk(LONG_TEXT[:5000]))
        return read_files(path)


async def _make_bases(path: Path) -> list[Base]:
    """Make one database, and keep it as it was at four instants.

    Stopped cleanly; killed with its news in the ``-wal`` alone; killed when they had just been
    copied into the file; killed when the ``-wal`` had then been begun anew.
    """
    talk, side = Conversation(), Conversation()
    sessions: dict[str, Snapshot] = {}
    async with open_session_log("default", path) as log:
        await log.append_many(talk.every_variant())
    async with open_session_log("default", path) as log:
        await log.append(talk.chunk({"text": LONG_TEXT}))
        older = read_files(path)
    for name, events in (
        ("other", [*side.turn(2), side.input("and then?")]),  # unfinished
        ("third-1", Conversation().turn()),
        ("default", [talk.input(LONG_TEXT[:6000]), talk.request(), talk.chunk(), talk.answer()]),
    ):
        async with open_session_log(name, path) as log:
            await log.append_many(events)
            sessions[name] = log.snapshot()
    bases = [Base("clean", read_files(path), dict(sessions), older)]

    def killed(name: str) -> Base:
        files = read_files(path)
        shm = files.pop("-shm")
        return Base(name, files, sessions | {"default": log.snapshot()}, older, shm=shm)

    async with open_session_log("default", path) as log:
        await _append_each(log.append, [*talk.turn(2), talk.input(LONG_TEXT[:9000])])
        bases.append(killed("killed"))
        run_sql(path, "PRAGMA wal_checkpoint(PASSIVE)")
        bases.append(killed("checkpointed"))
        await _append_each(log.append, [talk.request(), talk.chunk(), talk.answer("", 1)])
        bases.append(killed("restarted"))
    return bases


async def _append_each(append: Callable[[Event], Any], events: Iterable[Event]) -> None:
    for event in events:
        await append(event)


def _with_free_pages(path: Path, base: Base) -> Base:
    """Return a base whose file has free pages, as another program's passing table leaves them."""
    base.write(path)
    filled = f"INSERT INTO passing VALUES (zeroblob({6 * PAGE}))"
    run_sql(path, "CREATE TABLE passing (x)", filled, "DROP TABLE passing")
    return evolve(base, name="free pages", files=read_files(path))


def make_long_base(path: Path, foreign: Mapping[str, bytes]) -> Base:
    """Make a base whose session is loaded in two pages of rows, from some 100 of the file."""

    async def make() -> Base:
        talk = Conversation()
        async with open_session_log("default", path) as log:
            await log.append_many(
                [*talk.turn(), talk.chunk(LONG_TEXT), *(talk.chunk(n) for n in range(500))]
            )
        async with open_session_log("default", path) as log:
            await log.append_many([talk.chunk(n) for n in range(100)])
            older = read_files(path)
            await log.append_many([talk.chunk(n) for n in range(500)])
            snapshot = log.snapshot()
        return Base("long", read_files(path), {"default": snapshot}, older, foreign)

    return trio.run(make)


def make_host_base(path: Path, foreign: Mapping[str, bytes]) -> Base:
    """Make a base with a Host, and kill it."""
    with HostProcess(path) as host:
        assert host.post("a", LONG_TEXT[:6000]).status_code == 200
        assert host.stop() == 0
    with HostProcess(path) as host:
        assert host.post("b", "hello").status_code == 200
        older = read_files(path)
        assert host.post("c", "again").status_code == 200
        host.kill()
    files = read_files(path)
    shm = files.pop("-shm")
    copy = path.with_name("copy.sqlite3")
    write_files(copy, files)
    with open_reader(copy) as reader:
        sessions = {"default": load(reader, "default")}
    return Base("killed Host", files, sessions, older, foreign, shm)


@contextmanager
def connected(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """Open a database as any program may."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        yield connection


def run_sql(path: Path, *statements: str) -> None:
    """Run statements on a database, each on its own."""
    with connected(path) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


# --- bytes, of whichever file -----------------------------------------------------------------


def flip_bit(rng: Random, content: bytearray) -> str:
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def overwrite(rng: Random, content: bytearray) -> str:
    at, n = _range(rng, content, (1, 2, 4, 16, 100, 1000))
    content[at : at + n] = rng.randbytes(n)
    return f"{n} bytes overwritten at {at}"


def fill_zero(rng: Random, content: bytearray) -> str:
    return _fill(rng, content, 0)


def fill_ones(rng: Random, content: bytearray) -> str:
    return _fill(rng, content, 0xFF)


def _fill(rng: Random, content: bytearray, value: int) -> str:
    at, n = _range(rng, content, (2, 8, 64, 512, PAGE, 3 * PAGE))
    content[at : at + n] = bytes([value]) * n
    return f"{n} bytes of {value:#x} at {at}"


def cut(rng: Random, content: bytearray) -> str:
    size = rng.randint(1, max(1, len(content) - 1))
    if size > PAGE and rng.random() < 0.5:
        size -= size % PAGE
    del content[size:]
    return f"cut to {size} bytes"


def grow(rng: Random, content: bytearray) -> str:
    n = rng.choice((1, 100, PAGE, FRAME, 5 * PAGE))
    content += bytes(n) if rng.random() < 0.3 else rng.randbytes(n)
    return f"{n} bytes more"


def shift(rng: Random, content: bytearray) -> str:
    at, n = _range(rng, content, (1, 4, 512, PAGE))
    if rng.random() < 0.5:
        del content[at : at + n]
        return f"{n} bytes taken out at {at}"
    content[at:at] = rng.randbytes(n)
    return f"{n} bytes put in at {at}"


def _range(rng: Random, content: bytearray, sizes: tuple[int, ...]) -> tuple[int, int]:
    n = min(rng.choice(sizes), len(content))
    at = rng.randrange(len(content) - n + 1)
    return (at - at % PAGE if rng.random() < 0.3 else at), n


BYTE_EDITS: dict[str, Edit] = {
    "bit flipped": flip_bit,
    "bytes overwritten": overwrite,
    "range zeroed": fill_zero,
    "range of 0xff": fill_ones,
    "truncated": cut,
    "grown": grow,
    "bytes shifted": shift,
}

# --- bytes of the main file -------------------------------------------------------------------


def header_field(rng: Random, content: bytearray) -> str:
    at = rng.randrange(16, 100)
    return _set(content, at, rng.choice((0, 1, 2, 3, 4, 5, 127, 255, rng.randrange(256))))


def page_head(rng: Random, content: bytearray) -> str:
    """Change what a page says of itself: its kind, its cells, where they are."""
    number = rng.randrange(len(content) // PAGE)
    at = number * PAGE + (100 if number == 0 else 0) + rng.choice((*range(12), *range(64)))
    return _set(content, at, rng.choice((0, 1, 2, 5, 10, 13, rng.randrange(256))))


def record_head(rng: Random, content: bytearray) -> str:
    """Change the sizes, types or row id of a row or a key."""
    names = (b"default", b"other", b"third-1")
    places = [at for name in names for at in _occurrences(content, name)]
    return _set(content, rng.choice(places) - rng.randrange(1, 16), rng.randrange(256))


def schema_record(rng: Random, content: bytearray) -> str:
    start = int.from_bytes(content[105:107], "big")
    at = rng.randrange(start, PAGE)
    value = content[at] ^ (1 << rng.randrange(8)) if rng.random() < 0.7 else rng.randrange(256)
    return _set(content, at, value)


def schema_types(rng: Random, content: bytearray) -> str:
    """Change the type of a column of a definition by one bit: the text becomes a blob."""
    place = rng.choice([*_occurrences(content[:PAGE], b"trigger"), content.index(b"tablesession")])
    return _set(content, place - rng.randrange(1, 8), content[place - 1] ^ 1)


def overflow_page(rng: Random, content: bytearray) -> str:
    """Change where a long text goes on, or what it says there."""
    number = rng.choice(_overflow_pages(content))
    at = number * PAGE + rng.choice((0, 3, 3, 3, 4, rng.randrange(PAGE)))
    return _set(content, at, rng.randrange(256))


def free_page(rng: Random, content: bytearray) -> str:
    trunk = (int.from_bytes(content[32:36], "big") - 1) * PAGE
    return _set(
        content, rng.choice((rng.randrange(32, 40), trunk + rng.randrange(32))), rng.randrange(256)
    )


def page_zeroed(rng: Random, content: bytearray) -> str:
    number = rng.randrange(len(content) // PAGE)
    content[number * PAGE : (number + 1) * PAGE] = bytes(PAGE)
    return f"page {number + 1} zeroed"


def pages_swapped(rng: Random, content: bytearray) -> str:
    one, two = (PAGE * n for n in rng.sample(range(len(content) // PAGE), 2))
    first, second = bytes(content[one : one + PAGE]), bytes(content[two : two + PAGE])
    content[one : one + PAGE] = second
    if rng.random() < 0.5:
        content[two : two + PAGE] = first
    return f"pages at {one} and {two} swapped or copied"


def _set(content: bytearray, at: int, value: int) -> str:
    before, content[at] = content[at], value
    return f"byte {at} from {before:#x} to {value:#x}"


def _occurrences(content: bytes | bytearray, text: bytes) -> Iterator[int]:
    at = content.find(text)
    while at >= 0:
        yield at
        at = content.find(text, at + 1)


def _overflow_pages(content: bytearray) -> list[int]:
    # A page of a tree begins with its kind, one of a long text with the next one's number.
    free = {int.from_bytes(content[32:36], "big") - 1}
    return [n for n in range(1, len(content) // PAGE) if content[n * PAGE] == 0 and n not in free]


def several(rng: Random, content: bytearray) -> str:
    """Damage the file in two to five ways at once."""
    edits = (flip_bit, overwrite, fill_zero, grow, header_field, page_head, pages_swapped)
    return "; ".join(rng.choice(edits)(rng, content) for _ in range(rng.randint(2, 5)))


def stale_page(rng: Random, path: Path, base: Base) -> Damage:
    """Put some pages back to what they were: writes that the disk lost."""
    content, older = bytearray(path.read_bytes()), base.older[""]
    changed = [
        at
        for at in range(0, len(older), PAGE)
        if older[at : at + PAGE] != bytes(content[at : at + PAGE])
    ]
    # Not all of them: that is the older file itself.
    lost = rng.sample(changed, rng.randint(1, len(changed) - 1))
    for at in lost:
        content[at : at + PAGE] = older[at : at + PAGE]
    path.write_bytes(content)
    return Damage(f"pages at {sorted(lost)} of an older time")


MAIN_EDITS: dict[str, Edit] = BYTE_EDITS | {
    "header field": header_field,
    "page head": page_head,
    "record head": record_head,
    "schema record": schema_record,
    "schema column type": schema_types,
    "overflow page": overflow_page,
    "page zeroed": page_zeroed,
    "pages swapped": pages_swapped,
}


def in_file(suffix: str, edit: Edit) -> Do:
    """Return the damage that an edit does to one of a base's files."""

    def do(rng: Random, path: Path, base: Base) -> Damage:
        content = bytearray(base.files[suffix])
        what = edit(rng, content)
        beside(path, suffix).write_bytes(content)
        return Damage(what)

    return do


# --- bytes of the -wal ------------------------------------------------------------------------


def wal_header(rng: Random, content: bytearray) -> str:
    return _set(content, rng.randrange(WAL_HEAD), rng.randrange(256))


def frame_header(rng: Random, content: bytearray) -> str:
    at = WAL_HEAD + rng.randrange(len(_frames(content))) * FRAME + rng.randrange(FRAME_HEAD)
    return _set(content, at, rng.randrange(256))


def frames_disordered(rng: Random, content: bytearray) -> str:
    """Drop, swap or repeat whole frames."""
    frames = _frames(content)
    one, two = rng.randrange(len(frames)), rng.randrange(len(frames))
    move = rng.choice(("dropped", "swapped", "repeated", "cut after"))
    if move == "dropped":
        del frames[one]
    elif move == "swapped":
        frames[one], frames[two] = frames[two], frames[one]
    elif move == "repeated":
        frames.insert(two, frames[one])
    else:
        del frames[one:]
    content[WAL_HEAD:] = b"".join(frames)
    return f"frame {one} {move} ({two})"


def frame_forged(rng: Random, content: bytearray) -> str:
    """Change a page in a frame and mend all checksums: SQLite plays it without a doubt."""
    frames = [bytearray(frame) for frame in _frames(content)]
    number, at = rng.randrange(len(frames)), FRAME_HEAD + rng.randrange(PAGE)
    frames[number][at] ^= 1 << rng.randrange(8)
    order = ">" if content[3] & 1 else "<"
    sums = _wal_sums(order, content[:24], (0, 0))
    salts = bytes(content[16:24])
    for frame in frames:
        if bytes(frame[8:16]) != salts:  # what is left of an earlier round
            break
        sums = _wal_sums(order, frame[:8] + frame[FRAME_HEAD:], sums)
        frame[16:24] = struct.pack(">II", *sums)
    content[WAL_HEAD:] = b"".join(frames)
    return f"byte {at} of frame {number} forged"


def _wal_sums(order: str, data: bytes | bytearray, sums: tuple[int, int]) -> tuple[int, int]:
    # sqlite.org/fileformat.html, section 4.2
    one, two = sums
    for first, second in struct.iter_unpack(f"{order}II", data):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


def _frames(content: bytearray) -> list[bytes]:
    return [bytes(content[at : at + FRAME]) for at in range(WAL_HEAD, len(content), FRAME)]


WAL_EDITS: dict[str, Edit] = BYTE_EDITS | {
    "header": wal_header,
    "frame header": frame_header,
    "frames disordered": frames_disordered,
    "frame forged": frame_forged,
}


def wal_lost(_rng: Random, path: Path, _base: Base) -> Damage:
    beside(path, "-wal").unlink()
    return Damage("lost")


def wal_of_another_time(rng: Random, path: Path, base: Base) -> Damage:
    if rng.random() < 0.5 and "-wal" in base.files:
        path.write_bytes(base.older[""])
        return Damage("a newer -wal beside an older file")
    beside(path, "-wal").write_bytes(base.older["-wal"])
    return Damage("an older -wal beside the file")


def wal_of_another_database(_rng: Random, path: Path, base: Base) -> Damage:
    beside(path, "-wal").write_bytes(base.foreign["-wal"])
    return Damage("the -wal of another database")


def wal_of_a_fork(rng: Random, path: Path, base: Base) -> Damage:
    """Take the ``-wal`` of a copy that was made earlier and went another way, or the other way."""
    copy, what = path.with_name("fork.sqlite3"), "a fork's -wal beside the file"
    fork = _forked(rng, copy, base)
    if rng.random() < 0.4 and base.files.get("-wal"):
        run_sql(copy, "PRAGMA wal_checkpoint(TRUNCATE)")
        path.write_bytes(copy.read_bytes())
        what = "the -wal beside a fork's file"
    else:
        beside(path, "-wal").write_bytes(fork["-wal"])
    write_files(copy, {})
    return Damage(what)


def _forked(rng: Random, copy: Path, base: Base) -> dict[str, bytes]:
    """Let a copy of the database as it was earlier go on; return its files with a live ``-wal``."""
    write_files(copy, {suffix: base.older[suffix] for suffix in ("", "-wal")})
    with connected(copy) as tool:
        if rng.random() < 0.5:
            tool.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        ends = tool.execute(
            "SELECT session_id, max(sequence), digest FROM session_events GROUP BY session_id"
        ).fetchall()
        tool.execute("BEGIN")
        for session_id, sequence, digest in ends:
            texts = ["x" * rng.choice((1, 100, 5000)) for _ in range(rng.randint(1, 30))]
            stored = [
                ("model_chunk_recorded", f'{{"step_id":"turn-1/step-1","chunk":"{text}"}}')
                for text in texts
            ]
            for row in chained(stored, session_id=session_id, after=(sequence, digest)):
                _insert(tool, row)
        tool.execute("COMMIT")
        return read_files(copy)


def wal_of_others(_rng: Random, path: Path, _base: Base) -> Damage:
    other = path.with_name("application.sqlite3")
    with connected(other) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("CREATE TABLE songs (title TEXT)")
        beside(path, "-wal").write_bytes(beside(other, "-wal").read_bytes())
    other.unlink()
    return Damage("the -wal of another application")


# --- the -shm, the -journal, the -lock --------------------------------------------------------


def shm(rng: Random, path: Path, base: Base) -> Damage:
    """Leave an index of the ``-wal`` that is of the kill, of another time, damaged or rubbish."""
    contents = {
        "of the kill": base.shm or base.older["-shm"],
        "of another time": base.older["-shm"],
        "of another database": base.foreign["-shm"],
        "rubbish": rng.randbytes(rng.choice((136, 32768, 40000))),
    }
    which = rng.choice(list(contents))
    content = bytearray(contents[which])
    edits = [rng.choice(list(BYTE_EDITS)) for _ in range(rng.randrange(3))]
    for edit in edits:
        BYTE_EDITS[edit](rng, content)
    beside(path, "-shm").write_bytes(content)
    return Damage(f"{which}, {edits}")


JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


def journal_of(content: bytes) -> bytes:
    """Return a hot journal of a transaction that began with these pages.

    Written by hand after sqlite.org/fileformat.html, section 3.
    """
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    nonce = 7
    head = JOURNAL_MAGIC + struct.pack(">5I", len(pages), nonce, len(pages), 512, PAGE)
    journal = head.ljust(512, b"\0")
    for number, page in enumerate(pages, 1):
        checksum = (nonce + sum(page[at] for at in range(PAGE - 200, 0, -200))) % 2**32
        journal += struct.pack(">I", number) + page + struct.pack(">I", checksum)
    return journal


def journal_rubbish(rng: Random, path: Path, _base: Base) -> Damage:
    n = rng.choice((1, 28, 512, 3 * PAGE))
    content = bytes(n) if rng.random() < 0.3 else rng.randbytes(n)
    beside(path, "-journal").write_bytes(content)
    return Damage(f"{n} bytes, first {content[:4].hex()}")


def journal_interrupted(rng: Random, path: Path, base: Base) -> Damage:
    """Kill a tool in the middle of changing all rows, in SQLite's older journal mode."""
    with connected(path) as tool:
        tool.execute("PRAGMA journal_mode=DELETE").fetchall()
        tool.execute("PRAGMA cache_size=1")  # so that changed pages reach the file at once
        tool.execute("BEGIN")
        triggers = _drop_triggers(tool)
        tool.execute("UPDATE session_events SET payload = payload || ' '")
        _restore(tool, triggers)
        files = read_files(path)
        tool.execute("ROLLBACK")
    write_files(path, files)
    if rng.random() < 0.4:
        return Damage("whole", dict.fromkeys(base.sessions, EQUAL))
    content, edit = bytearray(files["-journal"]), rng.choice(list(BYTE_EDITS))
    what = BYTE_EDITS[edit](rng, content)
    beside(path, "-journal").write_bytes(content)
    return Damage(what)


def journal_of_another_time(rng: Random, path: Path, base: Base) -> Damage:
    content = bytearray(journal_of(base.older[""]))
    what = "whole"
    if rng.random() < 0.5:
        what = BYTE_EDITS[rng.choice(list(BYTE_EDITS))](rng, content)
    beside(path, "-journal").write_bytes(content)
    return Damage(what)


def journal_of_another_database(_rng: Random, path: Path, base: Base) -> Damage:
    other = path.with_name("foreign.sqlite3")
    write_files(other, {suffix: base.foreign[suffix] for suffix in ("", "-wal")})
    run_sql(other, "PRAGMA wal_checkpoint(TRUNCATE)")
    beside(path, "-journal").write_bytes(journal_of(other.read_bytes()))
    write_files(other, {})
    return Damage("the -journal of another database")


def journal_of_a_fork(rng: Random, path: Path, base: Base) -> Damage:
    copy = path.with_name("fork.sqlite3")
    _forked(rng, copy, base)
    run_sql(copy, "PRAGMA wal_checkpoint(TRUNCATE)")
    beside(path, "-journal").write_bytes(journal_of(copy.read_bytes()))
    write_files(copy, {})
    return Damage("the -journal of a fork")


def lock_rubbish(rng: Random, path: Path, _base: Base) -> Damage:
    content = rng.choice((b"", b"1\n", b"99999999999\n", rng.randbytes(5000), b"\n\n\n"))
    beside(path, "-lock").write_bytes(content)
    return Damage(f"{len(content)} bytes")


def no_file(rng: Random, path: Path, _base: Base) -> Damage:
    """Put something else than a file where one beside the database must be."""
    place = beside(path, rng.choice(("-wal", "-shm", "-journal", "-lock")))
    place.unlink(missing_ok=True)
    other = path.with_name("other-file")
    other.write_bytes(b"something else")
    makers: dict[str, Callable[[], object]] = {
        "a directory": place.mkdir,
        "a symlink": partial(place.symlink_to, other),
        "a dangling symlink": partial(place.symlink_to, "nowhere"),
        "a pipe": partial(os.mkfifo, place),
    }
    if place.name.endswith("-journal"):
        del makers["a pipe"]  # test_pipe_for_a_journal
    which = rng.choice(list(makers))
    makers[which]()
    return Damage(f"{place.name} is {which}")


def lock_is_the_database(_rng: Random, path: Path, _base: Base) -> Damage:
    beside(path, "-lock").unlink(missing_ok=True)
    beside(path, "-lock").hardlink_to(path)
    return Damage("a hard link to the database")


def drafts(rng: Random, path: Path, _base: Base) -> Damage:
    for suffix in ("-new", "-new-journal", "-new-wal"):
        if rng.random() < 0.7:
            beside(path, suffix).write_bytes(rng.randbytes(rng.choice((0, 100, PAGE))))
    return Damage("left by a start that was killed")


# --- rows, through SQL ------------------------------------------------------------------------


def _drop_triggers(tool: sqlite3.Connection) -> list[str]:
    found = tool.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in found:
        tool.execute(f'DROP TRIGGER "{name}"')
    return [definition for _, definition in found]


def _restore(tool: sqlite3.Connection, triggers: list[str]) -> None:
    for definition in triggers:
        tool.execute(definition)


@contextmanager
def tampering(rng: Random, path: Path) -> Generator[sqlite3.Connection, None, None]:
    """Open the database as a tool that drops the triggers first and restores them at its end.

    At times the tool is killed then, and what it did is in the ``-wal``.
    """
    killed: dict[str, bytes] | None = None
    with connected(path) as tool:
        triggers = _drop_triggers(tool)
        yield tool
        _restore(tool, triggers)
        if rng.random() < 0.3:
            killed = read_files(path)
            killed.pop("-shm", None)
    if killed is not None:
        write_files(path, killed)


@contextmanager
def lax(path: Path, *, unique: bool = True) -> Generator[None, None, None]:
    """Make the table take any value meanwhile, and without ``unique`` also one key twice."""
    with connected(path) as tool:
        kept = tool.execute("SELECT name, sql FROM sqlite_schema WHERE type <> 'trigger'")
        definitions: dict[str, str | None] = dict(kept.fetchall())
    table = definitions["session_events"]
    assert table is not None
    loose = {
        "session_events": table.replace(" STRICT", "").replace(" NOT NULL", ""),
    }
    if not unique:
        loose["session_events"] = loose["session_events"].replace(
            ",\n  PRIMARY KEY (session_id, sequence)", ""
        )
        loose["sqlite_autoindex_session_events_1"] = (
            "CREATE INDEX sqlite_autoindex_session_events_1 ON session_events(session_id, sequence)"
        )
    _redefine(path, loose)
    yield
    _redefine(path, definitions)


def _redefine(path: Path, definitions: Mapping[str, str | None]) -> None:
    with connected(path) as tool:
        tool.execute(WRITABLE)
        for name, definition in definitions.items():
            tool.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (definition, name))


def _some_session(rng: Random, base: Base) -> tuple[str, int]:
    session_id = rng.choice(list(base.sessions))
    return session_id, base.sessions[session_id].last_sequence


def _row(tool: sqlite3.Connection, session_id: str, sequence: int) -> Row:
    query = "SELECT * FROM session_events WHERE session_id = ? AND sequence = ?"
    return Row(*tool.execute(query, (session_id, sequence)).fetchone())


def _replace(tool: sqlite3.Connection, row: Row, key: tuple[str, int]) -> None:
    assignments = ", ".join(f"{column} = ?" for column in COLUMNS)
    changed = tool.execute(
        f"UPDATE session_events SET {assignments} WHERE session_id = ? AND sequence = ?",
        (*row, *key),
    )
    assert changed.rowcount == 1


def _insert(tool: sqlite3.Connection, row: tuple[object, ...]) -> None:
    tool.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def rows_deleted(rng: Random, path: Path, base: Base) -> Damage:
    """Delete some rows: the last ones are missed by nobody, any others are."""
    session_id, n = _some_session(rng, base)
    first = rng.randint(1, n)
    last = n if rng.random() < 0.4 else rng.randint(first, n)
    with tampering(rng, path) as tool:
        tool.execute(
            "DELETE FROM session_events WHERE session_id = ? AND sequence BETWEEN ? AND ?",
            (session_id, first, last),
        )
    ends = PREFIX if last == n else REFUSED
    return Damage(f"{session_id} {first} to {last} of {n}", {session_id: ends})


def rows_exchanged(rng: Random, path: Path, base: Base) -> Damage:
    """Let two rows change places: all of them but the sequence, or their payloads alone."""
    session_id, n = _some_session(rng, base)
    one, two = sorted(rng.sample(range(1, n + 1), 2))
    with tampering(rng, path) as tool:
        first, second = _row(tool, session_id, one), _row(tool, session_id, two)
        if rng.random() < 0.5 and first.payload != second.payload:
            changed = [
                first._replace(payload=second.payload),
                second._replace(payload=first.payload),
            ]
        else:
            changed = [second._replace(sequence=one), first._replace(sequence=two)]
        _replace(tool, changed[0], (session_id, one))
        _replace(tool, changed[1], (session_id, two))
    return Damage(f"{session_id} {one} and {two}", {session_id: REFUSED})


def column_changed(rng: Random, path: Path, base: Base) -> Damage:
    session_id, n = _some_session(rng, base)
    sequence = rng.randint(1, n)
    column = rng.choice(COLUMNS[1:])
    with tampering(rng, path) as tool:
        row = _row(tool, session_id, sequence)
        value = _another(rng, column, row)
        _replace(tool, row._replace(**{column: value}), (session_id, sequence))
    return Damage(f"{session_id} {sequence} {column} {value!r:.60}", {session_id: REFUSED})


def _another(rng: Random, column: str, row: Row) -> Any:
    """Return a value that the column might well hold, other than the one it does."""
    if column == "sequence":
        return rng.choice((0, -1, row.sequence + 1_000_000, -(2**63), 2**63 - 1))
    if column == "format_version":
        return rng.choice((1, -1, 2**40))
    if column == "digest":
        return rng.choice((b"", bytes(32), row.digest[:-1], row.digest + b"\0", rng.randbytes(32)))
    text = str(getattr(row, column))
    at = rng.randrange(len(text) + 1)
    changes = (
        text[:at] + rng.choice('aZ0 "\\,}\n\0\x7fé\ufeff') + text[at:],
        text[: at - 1] + text[at:] if at else text[1:],
        text.upper() if text.upper() != text else text.lower(),
        "",
        text + "\n",
    )
    return rng.choice([change for change in changes if change != text])


def text_is_no_utf8(rng: Random, path: Path, base: Base) -> Damage:
    session_id, n = _some_session(rng, base)
    sequence, column = rng.randint(1, n), rng.choice(("recorded_at", "event_type", "payload"))
    where = "WHERE session_id = ? AND sequence = ?"
    broken = f"CAST(CAST({column} AS BLOB) || x'{rng.choice(('ff', 'c080', 'eda080'))}' AS TEXT)"
    with tampering(rng, path) as tool:
        tool.execute(
            f"UPDATE session_events SET {column} = {broken} {where}", (session_id, sequence)
        )
    return Damage(f"{session_id} {sequence} {column}", {session_id: REFUSED})


def row_retyped(rng: Random, path: Path, base: Base) -> Damage:
    """Store a value of a type that no STRICT table holds."""
    session_id, n = _some_session(rng, base)
    sequence, column = rng.randint(1, n), rng.choice(COLUMNS)
    value = rng.choice(
        {
            "sequence": ("sequence + 0.5", "NULL", "x'01'", "'third'"),
            "format_version": ("0.5", "NULL", "x'00'", "'none'"),
            "digest": ("hex(digest)", "NULL", "1"),
        }.get(column, (f"CAST({column} AS BLOB)", "NULL"))
    )
    change = f"UPDATE session_events SET {column} = {value} WHERE session_id = ? AND sequence = ?"
    with tampering(rng, path), lax(path), connected(path) as tool:
        tool.execute(change, (session_id, sequence))
    lost = column in {"session_id", "sequence"} and sequence == n
    ends = PREFIX | REFUSED if lost else REFUSED
    return Damage(f"{session_id} {sequence} {column} = {value}", {session_id: ends})


def row_put_in(rng: Random, path: Path, base: Base) -> Damage:
    """Insert a copy of a row where none can be, without mending the chain."""
    session_id, n = _some_session(rng, base)
    place = rng.choice((0, -1, -(2**63), n + 1, n + 1, n + 2, 2**63 - 1, rng.randint(1, n)))
    with tampering(rng, path) as tool:
        copy = _row(tool, session_id, rng.randint(1, n))._replace(sequence=place)
        if 1 <= place <= n:
            move = "UPDATE session_events SET sequence = {} WHERE session_id = ? AND sequence {}"
            tool.execute(move.format("-sequence - 1", ">= ?"), (session_id, place))
            tool.execute(move.format("-sequence", "< ?"), (session_id, 0))
        _insert(tool, copy)
    return Damage(f"{session_id} at {place} of {n}", {session_id: REFUSED})


def row_moved(rng: Random, path: Path, base: Base) -> Damage:
    """Move a row to the end of another session."""
    source, n = _some_session(rng, base)
    target = rng.choice([name for name in (*base.sessions, "new") if name != source])
    after = base.sessions[target].last_sequence if target in base.sessions else 0
    sequence = n if rng.random() < 0.5 else rng.randint(1, n)
    with tampering(rng, path) as tool:
        row = _row(tool, source, sequence)
        _replace(tool, row._replace(session_id=target, sequence=after + 1), (source, sequence))
    ends = {source: PREFIX if sequence == n else REFUSED, target: REFUSED}
    return Damage(f"{sequence} of {source} to {target}", ends)


def session_renamed(rng: Random, path: Path, base: Base) -> Damage:
    """Give all rows of a session another's name, at times in the place of that one's own."""
    source = rng.choice(list(base.sessions))
    target = rng.choice((*base.sessions, "new", "", " ", "a\0b", "a\nb", "é", source.upper()))
    if target == source:
        target = "renamed"
    ends = {source: PREFIX}
    with tampering(rng, path) as tool:
        if target in base.sessions:
            tool.execute("DELETE FROM session_events WHERE session_id = ?", (target,))
            ends[target] = REFUSED
        tool.execute(
            "UPDATE session_events SET session_id = ? WHERE session_id = ?", (target, source)
        )
    return Damage(f"{source} to {target!r}", ends)


def session_of_no_name(rng: Random, path: Path, _base: Base) -> Damage:
    """Insert a row of a session that cannot be: the others are none the worse."""
    name = rng.choice(("''", "'no id'", "CAST(x'ff' AS TEXT)", "'new' || char(10)", "char(0)"))
    row = chained([("step_failed", "{}")], session_id="x")[0]
    with tampering(rng, path) as tool:
        tool.execute(f"INSERT INTO session_events VALUES ({name}, ?, ?, ?, ?, ?, ?)", row[1:])
    return Damage(f"session {name}")


def chain_forged_inside(rng: Random, path: Path, base: Base) -> Damage:
    """Change a letter and recompute the digests from there on, but not to the end."""
    session_id, n = _some_session(rng, base)
    first = rng.randint(1, n - 1)
    last = rng.randint(first, n - 1)
    with tampering(rng, path) as tool:
        rows = [_row(tool, session_id, sequence) for sequence in range(1, last + 1)]
        changed = rows[first - 1]
        rows[first - 1] = changed._replace(payload=_another(rng, "payload", changed))
        digest = rows[first - 2].digest if first > 1 else None
        for row in rows[first - 1 :]:
            digest = row_digest(digest, *row[:-1])
            _replace(tool, row._replace(digest=digest), (session_id, row.sequence))
    return Damage(f"{session_id} {first} to {last} of {n}", {session_id: REFUSED}, first)


def tail_forged(rng: Random, path: Path, base: Base) -> Damage:
    """Append a row that is well chained and that no append could have written."""
    session_id, n = _some_session(rng, base)
    snapshot = base.sessions[session_id]
    repeated = encode_event(snapshot[0].event)  # its invocation id is taken
    kind, payload = rng.choice(
        (
            repeated,
            ("model_dreamed", "{}"),
            ("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":NaN}'),
            ("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":1,"chunk":2}'),
            ("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":"\\ud800"}'),
            (
                "model_chunk_recorded",
                '{"step_id":"turn-1/step-1","chunk":' + "[" * 200 + "]" * 200 + "}",
            ),
            ("model_chunk_recorded", '{"step_id":"turn-1/step-1"}'),
            ("step_failed", '{"step_id":"turn-9/step-9","code":"x","message":"y"}'),
            ("tool_execution_completed", '{"step_id":"turn-1/step-1","call_id":"c","result":1}'),
        )
    )
    stamp = snapshot[n - 1].recorded_at if rng.random() < 0.8 else "2026-13-01T00:00:00.000000Z"
    (row,) = chained(
        [(kind, payload)],
        session_id=session_id,
        after=(n, snapshot.digest),
        recorded_at=stamp,
    )
    with tampering(rng, path) as tool:
        _insert(tool, row)
    return Damage(f"{session_id} {n + 1} {kind} {payload:.60}", {session_id: REFUSED})


def key_twice(rng: Random, path: Path, base: Base) -> Damage:
    """Store a key twice, in the table and in its index: only a look at both neighbours sees it."""
    session_id, n = _some_session(rng, base)
    sequence = rng.randint(1, n)
    with tampering(rng, path), lax(path, unique=False), connected(path) as tool:
        _insert(tool, _row(tool, session_id, sequence))
    return Damage(f"{session_id} {sequence}", {session_id: REFUSED})


def past_the_index(rng: Random, path: Path, base: Base) -> Damage:
    """Let a row be in the table alone, or in the index alone."""
    session_id, n = _some_session(rng, base)
    sequence, only_table = rng.choice((n, rng.randint(1, n))), rng.random() < 0.5
    with tampering(rng, path), lax(path, unique=False):
        with connected(path) as tool:
            row = _row(tool, session_id, sequence)
            index = tool.execute("SELECT * FROM sqlite_schema WHERE type = 'index'").fetchone()
            tool.execute(WRITABLE)
            tool.execute("DELETE FROM sqlite_schema WHERE type = 'index'")
        with connected(path) as tool:
            if only_table:
                _insert(tool, row._replace(sequence=n + 1))
            else:
                key = "session_id = ? AND sequence = ?"
                tool.execute(f"DELETE FROM session_events WHERE {key}", (session_id, sequence))
            tool.execute(WRITABLE)
            tool.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", index)
    where = f"{n + 1} in the table" if only_table else f"{sequence} in the index"
    return Damage(f"{session_id} {where} alone", {session_id: REFUSED})


ROW_KINDS: dict[str, Do] = {
    "rows deleted": rows_deleted,
    "rows exchanged": rows_exchanged,
    "column changed": column_changed,
    "text is no UTF-8": text_is_no_utf8,
    "row retyped": row_retyped,
    "row put in": row_put_in,
    "row moved": row_moved,
    "session renamed": session_renamed,
    "session of no name": session_of_no_name,
    "chain forged inside": chain_forged_inside,
    "tail forged": tail_forged,
    "key twice": key_twice,
    "past the index": past_the_index,
}

# --- what the file defines, and how it is laid out --------------------------------------------

TRIGGER = "session_events_no_delete"
HIDDEN = (
    "UPDATE sqlite_schema SET name = 'sqlite_stat9', sql = replace(sql, 'more', 'sqlite_stat9')"
    " WHERE name = 'more'"
)
"""Give what is called ``more`` a name that SQLite keeps for itself."""
ALTERED: dict[str, tuple[str, ...]] = {
    "no_update missing": ("DROP TRIGGER session_events_no_update",),
    "no_delete missing": (f"DROP TRIGGER {TRIGGER}",),
    "in_sequence missing": ("DROP TRIGGER session_events_in_sequence",),
    "trigger that does nothing": (
        f"DROP TRIGGER {TRIGGER}",
        f"CREATE TRIGGER {TRIGGER} BEFORE DELETE ON session_events BEGIN SELECT 1; END",
    ),
    "trigger with a condition": (
        WRITABLE,
        (
            f"UPDATE sqlite_schema SET sql = replace(sql, 'BEGIN', 'WHEN 0 BEGIN') "
            f"WHERE name = '{TRIGGER}'"
        ),
    ),
    "trigger in comments": (
        WRITABLE,
        f"UPDATE sqlite_schema SET sql = sql || ' -- and more' WHERE name = '{TRIGGER}'",
    ),
    "trigger more": ("CREATE TRIGGER more AFTER INSERT ON session_events BEGIN SELECT 1; END",),
    "trigger under SQLite's own name": (
        "CREATE TRIGGER more AFTER INSERT ON session_events BEGIN SELECT 1; END",
        WRITABLE,
        HIDDEN,
    ),
    "index under SQLite's own name": (
        "CREATE UNIQUE INDEX more ON session_events(digest)",
        WRITABLE,
        HIDDEN,
    ),
    "table more": ("CREATE TABLE more (x)",),
    "index more": ("CREATE INDEX more ON session_events(digest)",),
    "view more": ("CREATE VIEW more AS SELECT 1",),
    "column more": ("ALTER TABLE session_events ADD COLUMN more TEXT",),
    "column renamed": ("ALTER TABLE session_events RENAME COLUMN payload TO content",),
    "table renamed": ("ALTER TABLE session_events RENAME TO events",),
    "table dropped": ("DROP TABLE session_events",),
    "not strict": (
        WRITABLE,
        "UPDATE sqlite_schema SET sql = replace(sql, ' STRICT', '') WHERE type = 'table'",
    ),
    "key in another order": (
        WRITABLE,
        (
            "UPDATE sqlite_schema SET sql = replace(sql, '(session_id, sequence)', "
            "'(session_id, sequence DESC)') WHERE type = 'table'"
        ),
    ),
    "key without case": (
        WRITABLE,
        (
            "UPDATE sqlite_schema SET sql = replace(sql, 'session_id TEXT', "
            "'session_id TEXT COLLATE NOCASE') WHERE type = 'table'"
        ),
    ),
    "no rowid": (
        WRITABLE,
        "UPDATE sqlite_schema SET sql = sql || ', WITHOUT ROWID' WHERE type = 'table'",
    ),
    "index not listed": (WRITABLE, "DELETE FROM sqlite_schema WHERE type = 'index'"),
    "table not listed": (WRITABLE, "DELETE FROM sqlite_schema WHERE type = 'table'"),
    "table listed twice": (
        WRITABLE,
        "INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE type = 'table'",
    ),
    "roots exchanged": (
        WRITABLE,
        (
            "UPDATE sqlite_schema SET rootpage = (SELECT sum(rootpage) FROM sqlite_schema)"
            " - rootpage WHERE rootpage > 0"
        ),
    ),
    "version 0": ("PRAGMA user_version=0",),
    "version 2": ("PRAGMA user_version=2",),
    "application 0": ("PRAGMA application_id=0",),
    "application 7": ("PRAGMA application_id=7",),
    "neither version nor application": ("PRAGMA user_version=0", "PRAGMA application_id=0"),
}
ODD_VALUES = (
    "CAST({} AS BLOB)",
    "NULL",
    "7",
    "CAST(CAST({} AS BLOB) || x'ff' AS TEXT)",
    "{} || ' '",
)
LAID_OUT: dict[str, tuple[str, ...]] = {
    "analyzed": ("ANALYZE",),
    "vacuumed": ("VACUUM",),
    "indexed anew": ("REINDEX",),
    "schema cookie": ("PRAGMA schema_version=77",),
    "cache size": ("PRAGMA default_cache_size=3",),
    "white space": (
        WRITABLE,
        "UPDATE sqlite_schema SET sql = replace(sql, ' ', char(10)) WHERE sql NOT LIKE '%''%'",
    ),
    **{
        f"journal mode {mode}": (f"PRAGMA journal_mode={mode}", "ANALYZE")
        for mode in ("DELETE", "TRUNCATE", "PERSIST")
    },
    **{
        f"pages of {size}": ("PRAGMA journal_mode=DELETE", f"PRAGMA page_size={size}", "VACUUM")
        for size in (512, 1024, 65536)
    },
    **{
        f"auto_vacuum {mode}": (
            "PRAGMA journal_mode=DELETE",
            f"PRAGMA auto_vacuum={mode}",
            "VACUUM",
        )
        for mode in (1, 2)
    },
}


def schema_altered(rng: Random, path: Path, _base: Base) -> Damage:
    which = rng.choice(list(ALTERED))
    run_sql(path, *ALTERED[which])
    return Damage(which)


def schema_value(rng: Random, path: Path, _base: Base) -> Damage:
    """Give a definition's column another value or another type."""
    column = rng.choice(("type", "name", "tbl_name", "rootpage", "sql"))
    value = rng.choice(ODD_VALUES).format(column)
    condition = rng.choice(("type = 'table'", "type = 'index'", f"name = '{TRIGGER}'"))
    run_sql(path, WRITABLE, f"UPDATE sqlite_schema SET {column} = {value} WHERE {condition}")
    return Damage(f"{column} = {value} of {condition}")


def laid_out_otherwise(rng: Random, path: Path, _base: Base) -> Damage:
    which = rng.choice(list(LAID_OUT))
    run_sql(path, *LAID_OUT[which])
    return Damage(which)


def in_another_encoding(rng: Random, path: Path, _base: Base) -> Damage:
    """Copy everything into a file that stores text as UTF-16."""
    encoding, copy = rng.choice(("UTF-16le", "UTF-16be")), path.with_name("copy.sqlite3")
    with connected(path) as tool:
        numbers = [
            tool.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        ]
        definitions = tool.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type"
        ).fetchall()
        rows = tool.execute("SELECT * FROM session_events ORDER BY rowid").fetchall()
    with connected(copy) as tool:
        tool.execute(f"PRAGMA encoding='{encoding}'")
        for (definition,) in definitions:
            tool.execute(definition)
        for row in rows:
            _insert(tool, row)
        tool.execute(f"PRAGMA application_id={numbers[0]}")
        tool.execute(f"PRAGMA user_version={numbers[1]}")
    write_files(path, {"": copy.read_bytes()})
    write_files(copy, {})
    return Damage(encoding)


def _in_a_wal(do: Do, ends: Ends) -> Do:
    """Return the same damage for rows that were there: if the ``-wal`` has it, all may be refused.

    The file by itself then still holds what was, and its ``-wal`` looks like that of a fork.
    """

    def done(rng: Random, path: Path, base: Base) -> Damage:
        damage = do(rng, path, base)
        if "-wal" not in read_files(path):
            return damage
        every = {name: damage.ends.get(name, ends) | REFUSED for name in base.sessions}
        return evolve(damage, ends={**damage.ends, **every})

    return done


# --- all of them ------------------------------------------------------------------------------

WITH_WAL = frozenset({"killed", "checkpointed", "restarted", "killed Host"})
EVERY = WITH_WAL | {"clean", "free pages", "long"}
ONE_KILLED = frozenset({"clean", "killed"})
ONLY_MORE_ROWS = {"session of no name", "tail forged", "key twice"}
# What the check of the file as a whole may find, so that all its sessions are refused.
SEEN_IN_THE_FILE = {"row retyped", "key twice", "past the index", "chain forged inside"}


def _kinds() -> Iterator[Kind]:
    for name, edit in MAIN_EDITS.items():
        yield Kind(f"file: {name}", in_file("", edit), DAMAGED, EVERY)
    yield Kind("file: free page", in_file("", free_page), DAMAGED, frozenset({"free pages"}))
    yield Kind("file: several at once", in_file("", several), DAMAGED, EVERY)
    yield Kind("file: stale pages", stale_page, DAMAGED, EVERY - {"killed Host"})
    for name, edit in WAL_EDITS.items():
        yield Kind(f"-wal: {name}", in_file("-wal", edit), ANY_END, WITH_WAL)
    yield Kind("-wal: lost", wal_lost, ANY_END, WITH_WAL)
    yield Kind("-wal: of another time", wal_of_another_time, ANY_END, EVERY)
    yield Kind("-wal: of another database", wal_of_another_database, ANY_END, EVERY)
    # A file that did not go on since it was copied is the copy's own: test_companions.py.
    yield Kind("-wal: of a fork", wal_of_a_fork, REFUSED, EVERY - {"killed Host"})
    yield Kind("-wal: of another application", wal_of_others, ANY_END, EVERY)
    yield Kind("-shm: any", shm, EQUAL, EVERY)
    yield Kind("-journal: rubbish", journal_rubbish, EQUAL, EVERY)
    yield Kind("-journal: interrupted", journal_interrupted, DAMAGED, EVERY)
    yield Kind("-journal: of another time", journal_of_another_time, ANY_END, EVERY)
    yield Kind("-journal: of another database", journal_of_another_database, ANY_END, EVERY)
    yield Kind("-journal: of a fork", journal_of_a_fork, REFUSED, EVERY)
    yield Kind("-lock: rubbish", lock_rubbish, EQUAL, ONE_KILLED)
    yield Kind("beside: no file", no_file, ANY_END, ONE_KILLED, seen_offline=False)
    yield Kind("-lock: the database", lock_is_the_database, REFUSED, ONE_KILLED, seen_offline=False)
    yield Kind("-new: left behind", drafts, EQUAL, ONE_KILLED)
    for name, do in ROW_KINDS.items():
        ends = DAMAGED if name in SEEN_IN_THE_FILE else EQUAL
        kept = name in ONLY_MORE_ROWS
        yield Kind(f"rows: {name}", do if kept else _in_a_wal(do, ends), ends, EVERY)
    yield Kind("schema: altered", schema_altered, REFUSED, ONE_KILLED)
    yield Kind("schema: odd value", schema_value, DAMAGED, ONE_KILLED)
    yield Kind("options: laid out otherwise", laid_out_otherwise, EQUAL, EVERY)
    yield Kind("options: another encoding", in_another_encoding, EQUAL, ONE_KILLED)


KINDS: dict[str, Kind] = {kind.name: kind for kind in _kinds()}
