"""``sessiond doctor``: every check there is on a database file, each by itself, and a report.

A check that fails is a fault of the report and ends nothing. Nothing is changed. To open a
database that nobody has open, SQLite would leave a ``-wal`` and a ``-shm`` beside it: such a one
is looked at in a private copy. And nothing of what was said in a session gets into the report:
faults are told by their kind and place.
"""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

from actors import strict_json
from actors.codec import is_recorded_at
from actors.errors import StoreError
from actors.layout import APPLICATION_ID, SCHEMA_VERSION
from actors.reader import is_fresh, open_reader
from actors.rows import describe
from actors.values import is_identifier
from web.advice import kind_of
from web.offline import counted, verify_sessions
from web.streams import printable
from web.surroundings import COMPANIONS, describe_file, describe_header, owner_of
from web.versions import versions

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from actors.strict_json import JsonValue
    from web.offline import SessionReport
    from web.progress import OnProgress

INTEGRITY_LINES = 10
"""Lines of SQLite's integrity check that are reported."""
LOW_SPACE_BYTES = 100 * 1024**2
_OTHERS_MAY = 0o077
_NETWORKED = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph")
_PRAGMAS = (
    *("journal_mode", "page_size", "page_count", "freelist_count", "encoding", "auto_vacuum"),
    *("application_id", "user_version", "wal_autocheckpoint"),
)
_HAS_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'session_events'"
_SIZES = """SELECT session_id, count(*), sum(length(CAST(payload AS BLOB))),
              min(recorded_at), max(recorded_at)
            FROM session_events GROUP BY session_id ORDER BY session_id"""


@define
class Report:
    """What was found. Values are for programs and for people alike."""

    sections: dict[str, dict[str, JsonValue]] = field(factory=dict[str, "dict[str, JsonValue]"])
    sessions: list[dict[str, JsonValue]] = field(factory=list["dict[str, JsonValue]"])
    faults: list[str] = field(factory=list[str])
    remarks: list[str] = field(factory=list[str])
    """What is no fault and may still explain something."""

    @contextmanager
    def check(self, name: str) -> Generator[dict[str, JsonValue], None, None]:
        """Provide a section to fill; what goes wrong meanwhile is a fault, and all of it."""
        section = self.sections.setdefault(name, {})
        try:
            yield section
        except StoreError as error:
            self.faults.append(f"{name}: {error.fault}")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.faults.append(f"{name}: {describe(error)}")
        except (OSError, RuntimeError) as error:  # a loop of links, before Python 3.13, is a latter
            self.faults.append(f"{name}: {getattr(error, 'strerror', None) or error}")


def examine(path: Path | None, on_progress: OnProgress | None = None) -> Report:
    """Run every check that can be run on the file at ``path``; without one, tell the versions."""
    report = Report({"versions": versions()})
    if path is None:
        return report
    real, holds_data, owner = path, False, None
    with report.check("file") as section:
        section["path"] = printable(str(path), keep="")
        real = path.resolve()
        found = real.stat()
        holds_data = stat.S_ISREG(found.st_mode) and found.st_size > 0
        section.update(describe_file(real))
        _judge_file(section, report)
    if not holds_data:
        return report
    with report.check("header") as section:
        section.update(describe_header(real))
        _judge_header(section, report)
    with report.check("host") as section:
        owner = owner_of(real)
        section["running"] = owner is not None
        section["process"] = owner
    _examine_inside(real, owner, report, on_progress)
    return report


def _judge_file(section: dict[str, JsonValue], report: Report) -> None:
    if section["kind"] != "regular file":
        is_directory = section["kind"] == "directory"
        report.faults.append(f"file: is {'a directory' if is_directory else 'not a regular file'}")
        return
    if section["bytes"] == 0:
        report.remarks.append("the file is empty: a Host makes a database of it")
    if section["hard_links"] != 1:
        report.faults.append(
            f"file: has {section['hard_links']} hard links; a database must have one name"
        )
    if int(str(section["mode"]), 8) & _OTHERS_MAY:
        report.remarks.append("other users may read the file")
    if str(section["filesystem"]).startswith(_NETWORKED):
        report.remarks.append("the file lies on a network: SQLite's WAL needs a local disk")
    free = section["free_bytes"]
    if isinstance(free, int) and free < LOW_SPACE_BYTES:
        report.remarks.append("the disk is almost full")


def _judge_header(section: dict[str, JsonValue], report: Report) -> None:
    if not section:
        report.faults.append("header: is not a SQLite file")
    elif (section["application_id"], section["user_version"]) not in {
        (APPLICATION_ID, SCHEMA_VERSION),
        (0, 0),  # nothing has been written yet, or only to the -wal
    }:
        report.faults.append("header: is of another application or schema version")


# --- inside -----------------------------------------------------------------------------------


def _examine_inside(
    real: Path, owner: str | None, report: Report, on_progress: OnProgress | None
) -> None:
    with ExitStack() as owned:
        place = real if owner is not None else _private_copy(real, owned)
        with (
            report.check("sqlite") as section,
            closing(_connect(place, "ro" if place == real else "rw")) as connection,
        ):
            section["looked_at"] = "the file itself" if place == real else "a private copy"
            _ask_pragmas(connection, section)
            _check_integrity(connection, report)
            with report.check("verify"):
                report.sessions.extend(_sizes(connection))
        with report.check("verify") as section:
            if is_fresh(place):
                report.remarks.append("there is nothing in the database yet")
                return
            with open_reader(place) as reader:
                found = list(verify_sessions(reader, on_progress))
            section["sessions"] = len(found)
            section["sound_events"] = sum(each.events_n for each in found)
            for each in found:
                _enter(each, report)


def _private_copy(real: Path, owned: ExitStack) -> Path:
    """Return a copy of the file and what stands beside it; the file itself if there can be none."""
    try:
        directory = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="sessiond-")))
        before = _state(real)
        for suffix in ("", "-wal", "-journal"):
            source = real.with_name(real.name + suffix)
            if suffix in before:
                shutil.copyfile(source, directory / source.name)
        if _state(real) != before:
            return real  # somebody writes to it: a copy would not be whole
    except OSError:
        return real  # no room, for one
    return directory / real.name


def _state(real: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for suffix in ("", *COMPANIONS):
        place = real.with_name(real.name + suffix)
        if place.is_file():
            status = place.stat()
            found[suffix] = status.st_size, status.st_mtime_ns
    return found


def _connect(place: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{place.as_uri()}?mode={mode}", uri=True, isolation_level=None)
    connection.text_factory = _text
    return connection


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _ask_pragmas(connection: sqlite3.Connection, section: dict[str, JsonValue]) -> None:
    for pragma in _PRAGMAS:
        (section[pragma],) = connection.execute(f"PRAGMA {pragma}").fetchone()
    # Of a connection, not of the file; a Host sets it and reads it back each time it opens one.
    (default,) = connection.execute("PRAGMA synchronous").fetchone()
    section["synchronous"] = f"2 (FULL) in a Host, {default} by default in this build"


def _check_integrity(connection: sqlite3.Connection, report: Report) -> None:
    with report.check("integrity") as section:
        verdict = connection.execute(f"PRAGMA integrity_check({INTEGRITY_LINES})").fetchall()
        lines = [" ".join(str(line).split()) for (line,) in verdict]
        section["integrity_check"] = list(lines)
        if lines != ["ok"]:
            report.faults.extend(f"integrity: {line}" for line in lines)


def _sizes(connection: sqlite3.Connection) -> Iterator[dict[str, JsonValue]]:
    if not connection.execute(_HAS_TABLE).fetchall():
        return  # whether there should be one is for another check to say
    for session_id, rows_n, payload_bytes, first, last in connection.execute(_SIZES):
        yield {
            "session_id": _told_id(session_id),
            "rows": rows_n,
            "payload_bytes": payload_bytes,
            "first_recorded_at": first if is_recorded_at(str(first)) else None,
            "last_recorded_at": last if is_recorded_at(str(last)) else None,
        }


def _told_id(session_id: object) -> str:
    text = str(session_id)
    return text if is_identifier(text) else "(not a session id)"


def _enter(verified: SessionReport, report: Report) -> None:
    """Put what verifying a session came to beside its sizes, and among the faults."""
    session_id = _told_id(verified.session_id)
    place = next((each for each in report.sessions if each["session_id"] == session_id), None)
    if place is None:  # its sizes could not be read
        report.sessions.append(place := dict[str, "JsonValue"](session_id=session_id))
    kind = None if verified.reason is None else kind_of(verified.reason)
    place |= {
        "sound_events": verified.events_n,
        "unfinished_turn": verified.unfinished_turn_id,
        "fault": kind,
    }
    if kind is not None:
        at = f"sequence {verified.events_n + 1}"
        report.faults.append(f"session {session_id}, {at}: {kind}")


# --- how it is told ---------------------------------------------------------------------------


def report_document(report: Report) -> str:
    """Return the report as one line of JSON."""
    value: dict[str, JsonValue] = {
        **report.sections,
        "sessions": list(report.sessions),
        "faults": list(report.faults),
        "remarks": list(report.remarks),
    }
    return strict_json.dumps(value) + "\n"


def report_text(report: Report) -> str:
    """Return the report as a block of plain text."""
    lines = [f"sessiond doctor: {counted(len(report.faults), 'fault')}"]
    lines += [f"  fault: {fault}" for fault in report.faults]
    lines += [f"  remark: {remark}" for remark in report.remarks]
    for name, section in report.sections.items():
        if section:
            lines += ["", name, *_lines(section)]
    for session in report.sessions:
        lines += ["", f"session {session['session_id']}"]
        lines += _lines({key: each for key, each in session.items() if key != "session_id"})
    return "\n".join(lines) + "\n"


def _lines(section: dict[str, JsonValue]) -> Iterator[str]:
    width = max(map(len, section), default=0)
    for name, value in section.items():
        yield f"  {name:<{width}}  {_told(value)}"


def _told(value: JsonValue) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
