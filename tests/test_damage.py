"""What a Host is started on, damaged in every way known: equal, an exact prefix, or refused.

Each attempt copies a real database, damages it with seeded chance, and looks at it as a reader
and as a Host would. A failed attempt names its kind, base and seed; :func:`attempt` with these
does it again.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections import Counter, defaultdict
from random import Random, choices, getrandbits, sample  # seeded by pytest-randomly
from typing import TYPE_CHECKING

import pytest
import trio
from attrs import field, frozen
from damage_support import (
    ANY_END,
    DAMAGED,
    EQUAL,
    HIDDEN,
    KINDS,
    PAGE,
    REFUSED,
    WRITABLE,
    Base,
    Damage,
    End,
    Kind,
    beside,
    in_file,
    make_bases,
    make_host_base,
    make_long_base,
    read_files,
    run_sql,
    tampering,
    write_files,
)
from log_support import chunk
from process_support import SESSIOND, TREE, error_line, sessiond_each

from actors.codec import envelope_json
from actors.errors import StoreError
from actors.reader import open_reader
from actors.session_log import open_session_log
from web.offline import exported_lines, verify_sessions
from web.streams import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from damage_support import Do, Ends

    from actors.snapshot import Snapshot
    from web.offline import SessionReport

# --- the judge --------------------------------------------------------------------------------


@frozen
class Offline:
    """What ``verify`` and ``export`` make of a file."""

    refused: str | None
    """Why the file as a whole is, in one line; None if it is not."""
    reports: Mapping[str, SessionReport]
    exported: Sequence[str]
    """The lines of the session that was asked for, as far as they go."""
    fault: str | None
    """What ended them."""


def look_offline(path: Path, session_id: str) -> Offline:
    lines: list[str] = []
    fault: str | None = None
    try:
        with open_reader(path) as reader:
            reports = {report.session_id: report for report in verify_sessions(reader)}
            try:
                lines.extend(exported_lines(reader, session_id))
            except StoreError as error:
                fault = one_line(error, path)
    except StoreError as error:
        return Offline(one_line(error, path), {}, [], None)
    return Offline(None, reports, lines, fault)


def one_line(error: StoreError, path: Path) -> str:
    """The line for a person, which names the file and then the fault."""
    line = str(error)
    assert line.startswith(f"{path}: "), line
    assert len(line) > len(f"{path}: ") + 5, line
    assert "\n" not in line
    assert ": None" not in line
    return line


def durable(path: Path) -> dict[str, bytes]:
    """Return what a refused start must leave alone; an empty ``-wal`` may come and go."""
    files = read_files(path)
    return {
        suffix: content
        for suffix, content in files.items()
        if suffix in {"", "-journal"} or (suffix == "-wal" and content)
    }


def compare(found: Snapshot, expected: Snapshot) -> End:
    """Tell whether a session is equal to another or a prefix of it, projections included."""
    n = found.last_sequence
    assert n <= expected.last_sequence, f"{n} events of {expected.last_sequence}"
    assert list(found) == list(expected[:n]), "another history"
    entries = tuple(entry for entry in expected.transcript() if entry.sequence <= n)
    assert found.transcript() == entries
    history = found.model_history()
    assert history == expected.model_history()[: len(history)]
    if n < expected.last_sequence:
        return End.PREFIX
    assert history == expected.model_history()
    assert found.digest == expected.digest
    assert found.open_turn == expected.open_turn
    return End.EQUAL


@frozen
class Start:
    """What a start on a session came to."""

    end: End
    events_n: int = 0
    line: str = ""


async def start(path: Path, session_id: str, expected: Snapshot) -> Start:
    """Open a session as a Host does; if it can be, append to it and close it."""
    before = durable(path)
    opened: Start | None = None
    try:
        async with open_session_log(session_id, path) as log:
            found = log.snapshot()
            opened = Start(compare(found, expected), found.last_sequence)
            await log.append(chunk("written after the damage"))
    except StoreError as error:
        line = one_line(error, path)
        assert opened is None, f"opened, and then: {line}"
        assert durable(path) == before, f"refused, and changed: {line}"
        return Start(End.REFUSED, line=line)
    assert opened is not None
    return opened


def check_offline(offline: Offline, base: Base, damage: Damage, kind: Kind) -> None:
    """See that every session ended as it may, as far as ``verify`` can tell."""
    if offline.refused is not None:
        for session_id in base.sessions:
            assert End.REFUSED in allowed(session_id, damage, kind), offline.refused
        return
    for session_id, expected in base.sessions.items():
        report = offline.reports.get(session_id)
        if report is not None and report.fault is not None:
            end = End.REFUSED
            assert report.events_n <= expected.last_sequence
        else:
            events_n = 0 if report is None else report.events_n
            assert events_n <= expected.last_sequence, "a longer history"
            end = End.EQUAL if events_n == expected.last_sequence else End.PREFIX
        assert end in allowed(session_id, damage, kind), (session_id, end, report)
    for session_id in offline.reports.keys() - base.sessions.keys():
        assert offline.reports[session_id].fault is not None, f"{session_id!r} is new, and sound"


def allowed(session_id: str, damage: Damage, kind: Kind) -> Ends:
    return damage.ends.get(session_id, kind.ends)


def check_export(offline: Offline, damage: Damage, expected: Snapshot) -> None:
    """See that ``export`` wrote the session from its beginning, as far as it went."""
    n = len(offline.exported)
    certain_n = n if damage.forged_from is None else min(n, damage.forged_from - 1)
    sound = [envelope_json(envelope) + "\n" for envelope in expected[:certain_n]]
    assert offline.exported[:certain_n] == sound, "export wrote another history"


def check_agreement(start: Start, offline: Offline, session_id: str) -> None:
    """See that the Host, ``verify`` and ``export`` say the same of a session."""
    report = offline.reports.get(session_id)
    if start.end is End.REFUSED:
        if offline.refused is None:
            assert report is not None, start.line
            assert report.fault is not None, f"verify: ok; the Host: {start.line}"
            assert report.fault == offline.fault
            assert report.fault == start.line
            assert len(offline.exported) == report.events_n
        else:
            assert offline.refused == start.line
    elif start.events_n == 0:
        assert report is None
    else:
        assert report is not None
        assert report.fault is None
        assert offline.fault is None
        assert report.events_n == start.events_n == len(offline.exported)


def check_written(path: Path, session_id: str, events_n: int) -> None:
    """See that what was opened could be written to, and is whole after it was closed."""
    assert "-wal" not in read_files(path)
    with open_reader(path) as reader:
        reports = {report.session_id: report for report in verify_sessions(reader)}
    assert reports[session_id].fault is None, reports[session_id].fault
    assert reports[session_id].events_n == events_n + 1


def damaged(path: Path, base: Base, kind: Kind, rng: Random) -> tuple[Damage, str]:
    """Damage a copy of a base at ``path``; return what was done, and a session to look at."""
    base.write(path)
    damage = kind.do(rng, path, base)
    named = [session_id for session_id in damage.ends if session_id in base.sessions]
    return damage, rng.choice(named if named and rng.random() < 0.8 else list(base.sessions))


def attempt(path: Path, base: Base, kind: Kind, seed: int, session_id: str | None = None) -> End:
    """Damage a copy of a base at ``path`` and judge what becomes of it.

    A Host is started on ``session_id``; None leaves that to chance too.
    """
    damage, by_chance = damaged(path, base, kind, Random(seed))  # noqa: S311
    session_id = session_id or by_chance
    expected = base.sessions[session_id]
    try:
        before = durable(path)
        offline = look_offline(path, session_id)
        assert durable(path) == before, "changed by reading"
        started = trio.run(start, path, session_id, expected)
        assert started.end in allowed(session_id, damage, kind), started
        if kind.seen_offline or started.end is not End.REFUSED:
            check_offline(offline, base, damage, kind)
            check_export(offline, damage, expected)
            check_agreement(started, offline, session_id)
        if started.end is not End.REFUSED:
            check_written(path, session_id, started.events_n)
    except BaseException as error:
        error.add_note(f"{damage.what}; session {session_id}")
        raise
    return started.end


# --- many attempts ----------------------------------------------------------------------------


@frozen
class Tally:
    """How attempts ended, by kind."""

    ends: defaultdict[str, Counter[str]] = field(factory=lambda: defaultdict(Counter))
    failures: list[str] = field(factory=list[str])
    slowest: dict[str, float] = field(factory=dict[str, float])

    def table(self) -> str:
        """Return the counts as a table for a person."""
        columns = [*(end.value for end in End), "failed"]
        lines = [f"{'':<32}" + "".join(f"{column:>9}" for column in ("tried", *columns))]
        total: Counter[str] = Counter()
        for name, counts in [*sorted(self.ends.items()), ("all", total)]:
            counted = [counts.total(), *(counts[column] for column in columns)]
            lines.append(f"{name:<32}" + "".join(f"{n:>9}" for n in counted))
            total.update(counts)
        kind = max(self.slowest, key=self.slowest.__getitem__)
        return "\n".join([*lines, f"the slowest: {kind}, {self.slowest[kind] * 1e3:.0f} ms"])

    def require_none(self) -> None:
        """Fail with a line for each attempt that failed."""
        if self.failures:
            pytest.fail("\n".join(self.failures), pytrace=False)


def try_many(
    directory: Path, bases: Mapping[str, Base], kinds: Sequence[Kind], rounds_n: int
) -> Tally:
    """Attempt each kind ``rounds_n`` times, on its bases by chance."""
    tally = Tally()
    for kind in kinds:
        for n in range(rounds_n):
            base, seed = base_for(kind, bases), getrandbits(32)
            place = directory / f"{kind.name.replace(' ', '-')}-{n}"
            place.mkdir()
            began = time.monotonic()
            try:
                end = attempt(place / "sessions.sqlite3", base, kind, seed).value
            except Exception as error:  # noqa: BLE001 (whatever it is, the others are tried)
                end = "failed"
                tally.failures.append(f"{kind.name}, {base.name}, {seed}: {told(error)}")
            lasted = time.monotonic() - began
            tally.slowest[kind.name] = max(tally.slowest.get(kind.name, 0.0), lasted)
            tally.ends[kind.name][end] += 1
            shutil.rmtree(place)
    return tally


def base_for(kind: Kind, bases: Mapping[str, Base]) -> Base:
    """Return one of the bases that can be damaged so; seldom the long one, which takes long."""
    names = sorted(kind.bases & bases.keys())
    weights = [1 if name == "long" else 10 for name in names]
    return bases[choices(names, weights)[0]]  # noqa: S311


def told(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words:.300} ({notes})"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize("name", KINDS)
def test_damage_ends_as_it_may(bases: dict[str, Base], tmp_path: Path, name: str) -> None:
    """Equal, an exact prefix where that may be, or refused and untouched; never anything else."""
    tally = try_many(tmp_path, bases, [KINDS[name]], 8)
    tally.require_none()


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_tens_of_thousands(
    bases: dict[str, Base], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same on more bases, tens of thousands of times; a table tells how they ended."""
    (tmp_path / "made").mkdir()
    foreign = bases["clean"].foreign
    more = [
        make_long_base(tmp_path / "made" / "long.sqlite3", foreign),
        make_host_base(tmp_path / "made" / "host.sqlite3", foreign),
    ]
    rounds_n = int(os.environ.get("DAMAGE_ROUNDS", "400"))
    tally = try_many(
        tmp_path, bases | {base.name: base for base in more}, [*KINDS.values()], rounds_n
    )
    with capsys.disabled():
        print(f"\n{tally.table()}")
    tally.require_none()


# --- each fault once, as small as it goes -----------------------------------------------------


def by_sql(*statements: str) -> Do:
    """Return the damage that statements do, past the triggers."""

    def do(rng: Random, path: Path, _base: Base) -> Damage:
        with tampering(rng, path) as tool:
            for statement in statements:
                tool.execute(statement)
        return Damage("by SQL")

    return do


def by_schema(*statements: str) -> Do:
    """Return the damage that statements do to what the file defines."""

    def do(_rng: Random, path: Path, _base: Base) -> Damage:
        run_sql(path, *statements)
        return Damage("by SQL")

    return do


def byte_at(at: int, value: int) -> Do:
    def edit(_rng: Random, content: bytearray) -> str:
        content[at] = value
        return f"byte {at} is {value:#x}"

    return in_file("", edit)


def text_in_schema(text: bytes, other: bytes) -> Do:
    def edit(_rng: Random, content: bytearray) -> str:
        at = content.rindex(text, 0, PAGE)
        content[at : at + len(other)] = other
        return f"{text!r} to {other!r}"

    return in_file("", edit)


def pipe_for(suffix: str) -> Do:
    def do(_rng: Random, path: Path, _base: Base) -> Damage:
        beside(path, suffix).unlink(missing_ok=True)
        os.mkfifo(beside(path, suffix))
        return Damage("a pipe")

    return do


def one_byte_journal(_rng: Random, path: Path, _base: Base) -> Damage:
    beside(path, "-journal").write_bytes(b"x")
    return Damage("one byte")


WRONG_ROW = "INSERT INTO session_events SELECT {} FROM session_events WHERE sequence = 2 LIMIT 1"
OTHER_COLUMNS = "format_version, recorded_at, event_type, payload, digest"

ONCE: dict[str, tuple[str, Do, Ends]] = {
    "definition's letter is no UTF-8": ("clean", text_in_schema(b"sequence", b"\xff"), REFUSED),
    "definition is a blob": (
        "clean",
        by_schema(
            WRITABLE,
            "UPDATE sqlite_schema SET sql = CAST(sql AS BLOB) WHERE type = 'trigger'",
        ),
        REFUSED,
    ),
    "file that SQLite only reads": ("clean", byte_at(18, 3), REFUSED),
    "least sequence there is": (
        "clean",
        by_sql(WRONG_ROW.format(f"'default', -9223372036854775808, {OTHER_COLUMNS}")),
        DAMAGED,
    ),
    "trigger under SQLite's own name": (
        "clean",
        by_schema(
            "CREATE TRIGGER more BEFORE INSERT ON session_events BEGIN SELECT RAISE(IGNORE); END",
            WRITABLE,
            HIDDEN,
        ),
        REFUSED,
    ),
    "index under SQLite's own name": (
        "clean",
        by_schema("CREATE INDEX more ON session_events(digest)", WRITABLE, HIDDEN),
        REFUSED,
    ),
    "session named in two lines": (
        "clean",
        by_sql(
            "UPDATE session_events SET session_id = 'a' || char(10) WHERE session_id = 'default'"
        ),
        ANY_END,
    ),
    "-journal of one byte beside a live -wal": ("killed", one_byte_journal, EQUAL),
    "-wal of another database": ("clean", KINDS["-wal: of another database"].do, DAMAGED),
    "-wal of a fork": ("killed", KINDS["-wal: of a fork"].do, REFUSED),
    "-journal of a fork": ("clean", KINDS["-journal: of a fork"].do, REFUSED),
    "-journal of another database": ("clean", KINDS["-journal: of another database"].do, DAMAGED),
    "-lock is a link to the database": ("clean", KINDS["-lock: the database"].do, REFUSED),
    "-lock is a pipe": ("clean", pipe_for("-lock"), DAMAGED),
    "-wal is a pipe": ("clean", pipe_for("-wal"), DAMAGED),
}


@pytest.mark.parametrize("fault", ONCE)
def test_fault_once_found(bases: dict[str, Base], tmp_path: Path, fault: str) -> None:
    """What chance has found is tried every time, on the session that it concerns."""
    name, do, ends = ONCE[fault]
    seen_offline = not fault.startswith("-lock")
    kind = Kind(fault, do, ends, frozenset({name}), seen_offline)
    attempt(tmp_path / "sessions.sqlite3", bases[name], kind, seed=0, session_id="default")


# --- as processes -----------------------------------------------------------------------------

NOT_COPIED = {"beside: no file", "-lock: the database"}  # a twin would not be the same


SAMPLES = [
    pytest.param(1, id="small"),
    pytest.param(15, id="large", marks=[pytest.mark.stress, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("rounds_n", SAMPLES)
def test_processes_say_what_the_library_says(
    bases: dict[str, Base], tmp_path: Path, rounds_n: int
) -> None:
    """``verify``, ``export`` and ``serve`` on a sample: exit codes, one line, untouched files.

    A Host that is not refused goes on until it finds its port taken.
    """
    for round_n in range(rounds_n):
        cases: list[Case] = []
        for number, name in enumerate(sample(sorted(KINDS.keys() - NOT_COPIED), 6)):
            kind = KINDS[name]
            base = base_for(kind, bases)
            cases.append(prepare(tmp_path / f"{round_n}-{number}", base, kind))
        check_commands(cases)
        check_starts(cases)


@frozen
class Case:
    """A damaged database, and what the library made of a twin of it."""

    what: str
    path: Path
    session_id: str
    before: dict[str, bytes]
    twin: Path
    offline: Offline
    started: Start


def prepare(directory: Path, base: Base, kind: Kind) -> Case:
    path, twin = directory / "sessions.sqlite3", directory / "twin" / "sessions.sqlite3"
    twin.parent.mkdir(parents=True)
    seed = getrandbits(32)
    damage, session_id = damaged(path, base, kind, Random(seed))  # noqa: S311
    write_files(twin, read_files(path))
    what = f"{kind.name}, {base.name}, {seed} ({damage.what}; session {session_id})"
    try:
        offline = look_offline(twin, session_id)
        started = trio.run(start, twin, session_id, base.sessions[session_id])
    except BaseException as error:
        error.add_note(what)
        raise
    return Case(what, path, session_id, durable(path), twin, offline, started)


def as_told(line: str, case: Case) -> str:
    """The line that a command prints where the library said ``line`` of the twin."""
    return printable(line.replace(str(case.twin), str(case.path)), keep="")


def check_commands(cases: Sequence[Case]) -> None:
    """See that the offline commands print what the library found, and change nothing."""
    commands = [
        command
        for case in cases
        for command in (
            ["verify", case.path],
            ["export", case.path, "--session-id", case.session_id],
        )
    ]
    done = sessiond_each(commands)
    for case, verify, export in zip(cases, done[::2], done[1::2], strict=True):
        assert durable(case.path) == case.before, case.what
        reports = case.offline.reports.values()
        faults = [as_told(report.fault, case) for report in reports if report.fault is not None]
        assert verify.returncode == (1 if case.offline.refused or faults else 0), (case, verify)
        if verify.returncode == 0:
            assert verify.stdout.startswith(f"ok: {case.path}: ")
        else:
            assert str(case.path) in error_line(verify)
            lines = verify.stdout.splitlines()
            # Each fault has its one line; what it means and what to do follow it there.
            assert len(lines) == len(faults), verify.stdout
            for line, fault in zip(lines, faults, strict=True):
                assert line.startswith(f"fault: {fault}; "), line
        assert export.stdout == "".join(case.offline.exported)
        stopped_by = case.offline.refused or case.offline.fault
        assert export.returncode == (0 if stopped_by is None else 1), (case, export)
        if stopped_by is not None:
            # What to do follows the fault on the same line.
            told = f"sessiond: error: {as_told(stopped_by, case)}; "
            assert f"{error_line(export)}; ".startswith(told)


def check_starts(cases: Sequence[Case]) -> None:
    """See that a Host refuses what the library refuses, and leaves it alone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["serve", "--port", port, "--session-db"]
        starts = sessiond_each(
            [[*options, case.path, "--session-id", case.session_id] for case in cases]
        )
    for case, done in zip(cases, starts, strict=True):
        line = error_line(done).removeprefix("sessiond: error: ")
        assert done.stdout == ""
        if case.started.end is End.REFUSED:
            assert f"{line}; ".startswith(f"{as_told(case.started.line, case)}; "), case.what
            assert durable(case.path) == case.before, case.what
        else:
            assert port in line, (case.what, line)


def test_pipe_for_a_journal(bases: dict[str, Base], tmp_path: Path) -> None:
    """A pipe where SQLite looks for a -journal holds nobody up, though nobody writes to it."""
    path = tmp_path / "sessions.sqlite3"
    bases["clean"].write(path)
    os.mkfifo(beside(path, "-journal"))
    done = subprocess.run(
        [*SESSIOND, "verify", path], cwd=TREE, capture_output=True, timeout=20, check=False
    )
    assert done.returncode in {0, 1}
