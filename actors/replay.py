"""Stored rows back into a session: everything is checked again, in the order of its dependence.

A row is asked, in this order: are you of this session and the next in it, of the format known
here, dated, the successor of the row before (the chain), strict JSON of a known kind that fits
its schema, and allowed by the rules after all that came before? Only then is it published. What
stands before the first fault is sound and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.codec import (
    FORMAT_VERSION,
    checked_chunk,
    checked_event,
    is_recorded_at,
    row_digest,
)
from actors.errors import RejectedEvent, UnsoundSession
from actors.events import ModelChunkRecorded

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from actors.rows import Row
    from actors.snapshot import Timeline


def replay_rows(timeline: Timeline, rows: Iterable[Row], path: Path | None) -> None:
    """Publish ``rows``, which follow what ``timeline`` holds, checking each before the next.

    Raises:
        UnsoundSession: a row is not what an append could have written; those before it are
            published.
    """
    session_id, sequence = timeline.session_id, timeline.next_sequence
    before = timeline.last_digest
    for row in rows:
        try:
            _check_place(row, session_id, sequence, before)
            if row.event_type == ModelChunkRecorded.tag:
                # Nine rows of ten, under no rule and in no projection: checked, but not built.
                event, payload = None, checked_chunk(row.payload)
            else:
                event, payload = checked_event(row.event_type, row.payload)
                timeline.ledger.admit(event, sequence)
        except RejectedEvent as error:
            raise UnsoundSession(error.reason, path, session_id, sequence) from error
        # Another program's spelling stays in the file; in memory there is one of each event.
        timeline.publish(row if payload is row.payload else row._replace(payload=payload), event)
        sequence += 1
        before = row.digest


def _check_place(row: Row, session_id: str, sequence: int, before: bytes | None) -> None:
    """Refuse a row that is not the next of its session by number, form, date and chain."""
    found_id, number, format_version, recorded_at, event_type, payload, digest = row
    if found_id != session_id:
        raise RejectedEvent(f"the row belongs to session {found_id!r:.80}")
    if number != sequence:
        raise RejectedEvent(f"sequence {number} where {sequence} must come")
    if format_version != FORMAT_VERSION:
        raise RejectedEvent(f"format_version {format_version}, not {FORMAT_VERSION}")
    try:
        expected = row_digest(
            before, session_id, sequence, format_version, recorded_at, event_type, payload
        )
    except UnicodeEncodeError as error:
        raise RejectedEvent("a column holds bytes that are no UTF-8 text") from error
    if not is_recorded_at(recorded_at):
        raise RejectedEvent(f"recorded_at {recorded_at!r:.80} is not a time")
    if digest != expected:
        raise RejectedEvent("the digest does not match: this row or one before it was changed")
