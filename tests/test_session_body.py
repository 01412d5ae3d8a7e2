"""The body of a session's answer: the same bytes however many pieces they come in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import patch

import trio
from hypothesis import given
from hypothesis import strategies as st
from strategies import sessions
from test_turns import published

from actors.codec import envelope_value
from actors.transcript import entry_value
from web import session_body
from web.session_body import SessionBody

if TYPE_CHECKING:
    from actors.events import Event


async def pieces_of(body: SessionBody) -> list[bytes]:
    async with body as pieces:
        return [piece async for piece in pieces]


@given(sessions(), st.data(), st.integers(1, 4))
def test_pieces_add_up(events: list[Event], data: st.DataObject, piece_n: int) -> None:
    """Whatever the size of a piece, the whole is the snapshot's part, and as long as it says."""
    snapshot = published(events).snapshot()
    after = data.draw(st.integers(0, len(events)))
    with patch.object(session_body, "PIECE_N", piece_n):
        body = SessionBody(snapshot, after)
        pieces = trio.run(pieces_of, body)
    assert sum(map(len, pieces)) == body.length
    document = json.loads(b"".join(pieces))
    assert document["events"] == [envelope_value(envelope) for envelope in snapshot[after:]]
    assert document["transcript"] == list(map(entry_value, snapshot.entries_after(after)))
    assert document["last_sequence"] == len(events)
    # No piece grows with the session: the first and the last carry the frame besides.
    assert len(pieces) >= (len(events) - after) / piece_n
