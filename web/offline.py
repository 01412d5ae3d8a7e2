"""What can be done with a database file alone: read, judge, copy. No Host, no trio.

Every function takes an open :class:`~actors.reader.Reader` and goes page by page, a short read
transaction each, so that a Host may run on the file meanwhile. What is committed after the last
page was read is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from actors import strict_json
from actors.codec import FORMAT_VERSION, envelope_json
from actors.errors import StoreError, UnsoundSession
from actors.reader import PAGE_ROWS, open_reader
from actors.replay import replay_rows
from actors.snapshot import Timeline
from actors.transcript import AssistantEntry, FailureEntry, ToolEntry, UserEntry, entry_value
from actors.values import is_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from actors.reader import Reader
    from actors.snapshot import Snapshot
    from actors.transcript import Entry


def replay_pages(reader: Reader, session_id: str, timeline: Timeline) -> Iterator[int]:
    """Load a session into ``timeline``, checking all of it; yield after each page.

    Yields how many events the page brought. A fault is raised after the sound events before it
    have been yielded.

    Raises:
        UnsoundSession: a row is not what an append could have written.
        StoreError: the file cannot be read.
    """
    after: int | None = None
    while True:
        rows = reader.rows(session_id, after)
        known_n = timeline.next_sequence - 1
        fault: UnsoundSession | None = None
        try:
            replay_rows(timeline, rows, reader.path)
        except UnsoundSession as error:
            fault = error
        yield timeline.next_sequence - 1 - known_n
        if fault is not None:
            raise fault
        if len(rows) < PAGE_ROWS:
            return
        after = rows[-1].sequence


def load(reader: Reader, session_id: str) -> Snapshot:
    """Return a session that is in the file, all of it checked.

    Raises:
        UnsoundSession: it is not sound.
        StoreError: it is not in the file, or the file cannot be read.
    """
    require_session(reader, session_id)
    timeline = Timeline(session_id)
    for _ in replay_pages(reader, session_id, timeline):
        pass
    return timeline.snapshot()


def require_session(reader: Reader, session_id: str) -> None:
    """Refuse a session that is not in the file, naming those that are.

    Raises:
        StoreError: it is not there.
    """
    found = reader.session_ids()
    if session_id not in found:
        names = [each if is_identifier(each) else f"{each!r:.80}" for each in found]
        held = f"it holds {', '.join(names)}" if names else "it holds none"
        raise StoreError(f"there is no session {session_id}; {held}", reader.path)


# --- export -----------------------------------------------------------------------------------


def exported_lines(reader: Reader, session_id: str) -> Iterator[str]:
    """Yield each envelope of a session as one line of JSON, as its page has been checked.

    Raises:
        UnsoundSession: after the last line of the sound prefix.
        StoreError: the session is not in the file, or the file cannot be read.
    """
    require_session(reader, session_id)
    timeline = Timeline(session_id)
    for new_n in replay_pages(reader, session_id, timeline):
        snapshot = timeline.snapshot()
        for envelope in snapshot[snapshot.last_sequence - new_n :]:
            yield envelope_json(envelope) + "\n"


# --- verify, backup ---------------------------------------------------------------------------


@frozen
class SessionReport:
    """What verifying one session came to."""

    session_id: str
    events_n: int
    """The sound events; all there are where ``fault`` is None."""
    unfinished_turn_id: str | None = None
    """The last Turn, if it has not ended: it runs, or its Host was killed. Sound either way."""
    fault: str | None = None
    """The first fault in one line, naming the file, the session and the sequence."""


def verify_sessions(reader: Reader) -> Iterator[SessionReport]:
    """Check every session of the file, yielding a report on each.

    A session is checked up to its first fault: what comes after hangs on it.

    Raises:
        StoreError: the file as a whole cannot be read.
    """
    for session_id in reader.session_ids():
        yield _verify(reader, session_id)


def _verify(reader: Reader, session_id: str) -> SessionReport:
    if not is_identifier(session_id):
        fault = StoreError(f"session {session_id!r:.150}: not a session id", reader.path)
        return SessionReport(session_id, 0, fault=str(fault))
    timeline = Timeline(session_id)
    fault = None
    try:
        for _ in replay_pages(reader, session_id, timeline):
            pass
    except StoreError as error:  # also what only this session's rows suffer from
        fault = str(error)
    turn = timeline.ledger.open_turn
    return SessionReport(
        session_id, timeline.next_sequence - 1, None if turn is None else turn.turn_id, fault
    )


def summary(reports: list[SessionReport]) -> str:
    """Return what a file of sound sessions holds, in a line."""
    sessions_n, events_n = len(reports), sum(report.events_n for report in reports)
    told = f"{_counted(sessions_n, 'session')}, {_counted(events_n, 'event')}"
    unfinished = [
        f"{report.unfinished_turn_id} of {report.session_id}"
        for report in reports
        if report.unfinished_turn_id is not None
    ]
    return f"{told}; unfinished: {', '.join(unfinished)}" if unfinished else told


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def back_up(path: Path, destination: Path) -> list[SessionReport]:
    """Copy a database to ``destination``, which must not exist; return reports on the copy.

    Raises:
        StoreError: it cannot be read or copied, or the copy cannot be read.
    """
    with open_reader(path) as reader:
        reader.backup(destination)
    with open_reader(destination) as copy:
        return list(verify_sessions(copy))


# --- show -------------------------------------------------------------------------------------


def session_document(snapshot: Snapshot) -> Iterator[str]:
    """Yield a session in pieces of one JSON document, in the form that HTTP answers it."""
    digest = "null" if snapshot.digest is None else f'"{snapshot.digest.hex()}"'
    yield (
        f'{{"session_id":{strict_json.quote(snapshot.session_id)},'
        f'"format_version":{FORMAT_VERSION},"last_sequence":{snapshot.last_sequence},'
        f'"digest":{digest},"events":'
    )
    yield from _array(envelope_json(envelope) for envelope in snapshot)
    yield ',"transcript":'
    yield from _array(strict_json.dumps(entry_value(entry)) for entry in snapshot.transcript())
    yield "}\n"


def _array(items: Iterator[str]) -> Iterator[str]:
    opening = "["
    for item in items:
        yield opening + item
        opening = ","
    yield "[]" if opening == "[" else "]"


def readable_transcript(snapshot: Snapshot) -> Iterator[str]:
    """Yield a session's transcript as text for people, an entry at a time.

    Each entry has a line of its own (sequence, kind, ids) and below it what was said,
    indented, so that nothing said can pass for another entry.
    """
    for entry in snapshot.transcript():
        heading, said = _heading(entry), _said(entry)
        body = "".join(f"    {line}\n" for line in said.split("\n")) if said else ""
        yield f"{entry.sequence} {entry.kind} {heading}\n{body}\n"
    if snapshot.open_turn is not None:
        yield f"{snapshot.open_turn.turn_id} is unfinished\n"


def _heading(entry: Entry) -> str:
    match entry:
        case UserEntry():
            return entry.turn_id
        case AssistantEntry():
            return f"{entry.step_id} ({entry.finish_reason})"
        case ToolEntry():
            return f"{entry.step_id} {entry.call_id}"
        case FailureEntry():
            return f"{entry.step_id} ({entry.code})"


def _said(entry: Entry) -> str:
    match entry:
        case UserEntry():
            return entry.text
        case AssistantEntry():
            calls = [f"calls {call.name}({call.arguments})  {call.id}" for call in entry.tool_calls]
            return "\n".join([entry.text, *calls] if entry.text else calls)
        case ToolEntry():
            return f"{entry.name}({entry.arguments})\n{_outcome(entry)}"
        case FailureEntry():
            return entry.message


def _outcome(entry: ToolEntry) -> str:
    if entry.error is not None:
        return f"error {entry.error.code}: {entry.error.message}"
    assert entry.result is not None
    result = entry.result.value()
    return result if isinstance(result, str) else entry.result.text
