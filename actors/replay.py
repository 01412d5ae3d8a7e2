"""Stored rows back into a session: everything is checked again, in the order of its dependence.

A row is asked, in this order: are you of this session and the next in it, of the format known
here, dated, the successor of the row before (the chain), strict JSON of a known kind that fits
its schema, and allowed by the rules after all that came before? Only then is it published. What
stands before the first fault is sound and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.codec import FORMAT_VERSION, decode_event, is_recorded_at, row_digest
from actors.errors import RejectedEvent, UnsoundSession
from actors.events import Envelope
from actors.strict_json import is_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from actors.events import Event
    from actors.rows import Row
    from actors.snapshot import Timeline


def replay_rows(timeline: Timeline, rows: Iterable[Row], path: Path | None) -> None:
    """Publish ``rows``, which follow what ``timeline`` holds, checking each before the next.

    Raises:
        UnsoundSession: a row is not what an append could have written; those before it are
            published.
    """
    for row in rows:
        try:
            event = _checked_event(timeline, row)
        except RejectedEvent as error:
            raise UnsoundSession(
                error.reason, path, timeline.session_id, timeline.next_sequence
            ) from error
        timeline.publish(Envelope(row.session_id, row.sequence, row.recorded_at, event, row.digest))


def _checked_event(timeline: Timeline, row: Row) -> Event:
    if row.session_id != timeline.session_id:
        raise RejectedEvent(f"the row belongs to session {row.session_id!r:.80}")
    if row.sequence != timeline.next_sequence:
        raise RejectedEvent(f"sequence {row.sequence} where {timeline.next_sequence} must come")
    if not all(map(is_text, (row.recorded_at, row.event_type, row.payload))):
        raise RejectedEvent("a column holds bytes that are no UTF-8 text")
    if row.format_version != FORMAT_VERSION:
        raise RejectedEvent(f"format_version {row.format_version}, not {FORMAT_VERSION}")
    if not is_recorded_at(row.recorded_at):
        raise RejectedEvent(f"recorded_at {row.recorded_at!r:.80} is not a time")
    expected = row_digest(
        timeline.last_digest,
        row.session_id,
        row.sequence,
        row.format_version,
        row.recorded_at,
        row.event_type,
        row.payload,
    )
    if row.digest != expected:
        raise RejectedEvent("the digest does not match: this row or one before it was changed")
    event = decode_event(row.event_type, row.payload)
    timeline.ledger.admit(event, row.sequence)
    return event
