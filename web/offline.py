"""What can be done with a database file alone: read, judge, copy. No Host, no trio.

Most functions take an open :class:`~actors.reader.Reader` and go page by page, a short read
transaction each, so that a Host may run on the file meanwhile. What is committed after the last
page was read is not seen. ``on_progress`` is told after each page how much is done and how much
there is.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from attrs import frozen

from actors.errors import StoreError, UnsoundSession
from actors.layout import Contents, first_look
from actors.reader import PAGE_ROWS, open_reader
from actors.replay import replay_rows
from actors.rows import describe
from actors.snapshot import Timeline
from actors.values import is_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from actors.reader import Reader
    from actors.snapshot import Snapshot
    from web.progress import OnProgress

PEEK_S = 0.2
"""How long :func:`peek_session_ids` waits for a file that is held by somebody else."""


def replay_pages(
    reader: Reader, session_id: str, timeline: Timeline, after: int | None = None
) -> Iterator[int]:
    """Load a session into ``timeline``, checking all of it; yield after each page.

    Yields how many events the page brought. A fault is raised after the sound events before it
    have been yielded. ``after`` is the last sequence that ``timeline`` has; None begins at the
    least there is in the file, which in a sound session is 1.

    Raises:
        UnsoundSession: a row is not what an append could have written.
        StoreError: the file cannot be read.
    """
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


def load(reader: Reader, session_id: str, on_progress: OnProgress | None = None) -> Snapshot:
    """Return a session that is in the file, all of it checked.

    Raises:
        UnsoundSession: it is not sound.
        StoreError: it is not in the file, or the file cannot be read.
    """
    return load_timeline(reader, session_id, on_progress).snapshot()


def load_timeline(
    reader: Reader, session_id: str, on_progress: OnProgress | None = None
) -> Timeline:
    """Return a session that is in the file, all of it checked, as it can be added to.

    Raises:
        UnsoundSession: it is not sound.
        StoreError: it is not in the file, or the file cannot be read.
    """
    require_session(reader, session_id)
    timeline = Timeline(session_id)
    _replay_all(reader, timeline, on_progress)
    return timeline


def _replay_all(reader: Reader, timeline: Timeline, on_progress: OnProgress | None) -> None:
    total_n = 0 if on_progress is None else reader.last_sequence(timeline.session_id)
    for _ in replay_pages(reader, timeline.session_id, timeline):
        if on_progress is not None:
            on_progress(timeline.next_sequence - 1, total_n)


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


def exported_lines(
    reader: Reader, session_id: str, on_progress: OnProgress | None = None
) -> Iterator[str]:
    """Yield each envelope of a session as one line of JSON, as its page has been checked.

    Raises:
        UnsoundSession: after the last line of the sound prefix.
        StoreError: the session is not in the file, or the file cannot be read.
    """
    require_session(reader, session_id)
    timeline = Timeline(session_id)
    total_n = reader.last_sequence(session_id)
    for new_n in replay_pages(reader, session_id, timeline):
        snapshot = timeline.snapshot()
        if on_progress is not None:
            on_progress(snapshot.last_sequence, total_n)
        for wire in snapshot.wires(snapshot.last_sequence - new_n):
            yield wire.decode() + "\n"


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
    reason: str | None = None
    """What the fault is, without the place."""


def verify_sessions(
    reader: Reader, on_progress: OnProgress | None = None
) -> Iterator[SessionReport]:
    """Check every session of the file, yielding a report on each.

    A session is checked up to its first fault: what comes after hangs on it.

    Raises:
        StoreError: the file as a whole cannot be read.
    """
    session_ids = reader.session_ids()
    total_n = 0 if on_progress is None else sum(map(reader.last_sequence, session_ids))
    done_n = 0

    def on_page(session_done_n: int, _session_total_n: int) -> None:
        if on_progress is not None:
            on_progress(done_n + session_done_n, total_n)

    for session_id in session_ids:
        report = _verify(reader, session_id, on_page)
        done_n += report.events_n
        yield report


def _verify(reader: Reader, session_id: str, on_page: OnProgress) -> SessionReport:
    if not is_identifier(session_id):
        reason = "not a session id"
        fault = StoreError(f"session {session_id!r:.150}: {reason}", reader.path)
        return SessionReport(session_id, 0, fault=str(fault), reason=reason)
    timeline = Timeline(session_id)
    fault = reason = None
    try:
        _replay_all(reader, timeline, on_page)
    except UnsoundSession as error:
        fault, reason = str(error), error.reason
    except StoreError as error:  # also what only this session's rows suffer from
        fault, reason = str(error), error.fault
    turn = timeline.ledger.open_turn
    return SessionReport(
        session_id,
        timeline.next_sequence - 1,
        None if turn is None else turn.turn_id,
        fault,
        reason,
    )


def summary(reports: list[SessionReport]) -> str:
    """Return what a file of sound sessions holds, in a line."""
    sessions_n, events_n = len(reports), sum(report.events_n for report in reports)
    told = f"{counted(sessions_n, 'session')}, {counted(events_n, 'event')}"
    unfinished = [
        f"{report.unfinished_turn_id} of {report.session_id}"
        for report in reports
        if report.unfinished_turn_id is not None
    ]
    return f"{told}; unfinished: {', '.join(unfinished)}" if unfinished else told


def counted(count: int, noun: str) -> str:
    """Return how many there are, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def back_up(path: Path, destination: Path, on_progress: OnProgress | None = None) -> None:
    """Copy a database to ``destination``, which must not exist; ``on_progress`` counts pages.

    Raises:
        StoreError: it cannot be read or copied.
    """
    with open_reader(path) as reader:
        reader.backup(destination, on_progress)


# --- a glance ---------------------------------------------------------------------------------


def peek_session_ids(path: Path) -> list[str]:
    """Return the ids of the sessions in a file, at once and without checking any of it.

    Raises:
        StoreError: it cannot be read, or not at once.
    """
    real, contents = first_look(path)
    if contents is Contents.NOTHING:
        return []
    # Where nothing waits in a -wal the file alone is looked at, which leaves none beside it. It
    # may be torn under a writer: then there is nothing to see at this instant.
    wal = real.with_name(real.name + "-wal")
    mode = "ro" if wal.exists() and wal.stat().st_size else "ro&immutable=1"
    query = "SELECT DISTINCT session_id FROM session_events ORDER BY session_id"
    try:
        with closing(
            sqlite3.connect(f"{real.as_uri()}?mode={mode}", uri=True, timeout=PEEK_S)
        ) as connection:
            found = [session_id for (session_id,) in connection.execute(query)]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"cannot be read: {describe(error)}", path) from error
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path) from error
    return [each for each in found if isinstance(each, str) and is_identifier(each)]
