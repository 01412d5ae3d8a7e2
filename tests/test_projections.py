"""The projections, against a plain recomputation of each; and snapshots that never change."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_support import chunk, rows_of
from strategies import messages, sessions
from test_turns import published

from actors.codec import envelope_json, payload_value
from actors.history import HistoryHash
from actors.snapshot import Timeline
from actors.transcript import entry_json, entry_value
from actors.validation import document_fault
from actors.values import message_json, message_value

if TYPE_CHECKING:
    from actors.events import Event
    from actors.values import Message


def naive_history(payloads: list[tuple[str, Any]]) -> list[Any]:
    """Return the model history, computed from the payloads alone."""
    history: list[Any] = []
    for tag, payload in payloads:
        if tag == "user_input_accepted":
            history += payload["messages"]
        elif tag == "assistant_message_committed":
            message = payload["message"]
            if message["content"] != "" or message["tool_calls"] != []:
                history.append(message)
        elif tag == "tool_execution_completed":
            value = {"error": payload["error"]} if "error" in payload else payload["result"]
            if not isinstance(value, str):
                value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            history.append({"role": "tool", "content": value, "tool_call_id": payload["call_id"]})
    return history


def naive_transcript(payloads: list[tuple[str, Any]]) -> list[Any]:
    """Return the transcript, computed from the payloads alone."""
    transcript: list[Any] = []
    calls: dict[str, Any] = {}
    for sequence, (tag, payload) in enumerate(payloads, 1):
        head = {"sequence": sequence}
        if tag == "user_input_accepted":
            text = "\n\n".join(message["content"] for message in payload["messages"])
            transcript.append({**head, "kind": "user", "turn_id": payload["turn_id"], "text": text})
        elif tag == "assistant_message_committed":
            message = payload["message"]
            calls |= {call["id"]: call for call in message["tool_calls"]}
            transcript.append(
                {
                    **head,
                    "kind": "assistant",
                    "step_id": payload["step_id"],
                    "text": message["content"],
                    "tool_calls": message["tool_calls"],
                    "finish_reason": payload["finish_reason"],
                }
            )
        elif tag == "tool_execution_completed":
            call = calls[payload["call_id"]]
            answer = {key: payload[key] for key in ("result", "error") if key in payload}
            transcript.append(
                {
                    **head,
                    "kind": "tool",
                    "step_id": payload["step_id"],
                    "call_id": call["id"],
                    "name": call["name"],
                    "arguments": call["arguments"],
                    **answer,
                }
            )
        elif tag == "step_failed":
            transcript.append({**head, "kind": "failure", **payload})
    return transcript


def payloads_of(events: list[Event]) -> list[tuple[str, Any]]:
    """Return the events as plain (tag, payload) pairs."""
    return [(event.tag, payload_value(event)) for event in events]


@given(sessions())
def test_history(events: list[Event]) -> None:
    """The history kept event by event is the one computed from all events at once."""
    snapshot = published(events).snapshot()
    expected = naive_history(payloads_of(events))
    assert [message_value(message) for message in snapshot.model_history()] == expected
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    if events:
        reference = snapshot.history_ref()
        assert reference.through == len(events)
        assert reference.sha256 == hashlib.sha256(text.encode()).hexdigest()


@given(sessions())
def test_transcript(events: list[Event]) -> None:
    """The transcript kept event by event is the one computed from all, and fits its schema."""
    snapshot = published(events).snapshot()
    found = [entry_value(entry) for entry in snapshot.transcript()]
    assert [json.loads(entry_json(entry)) for entry in snapshot.transcript()] == found
    assert [list(json.loads(entry_json(entry))) for entry in snapshot.transcript()] == list(
        map(list, found)
    )
    assert found == naive_transcript(payloads_of(events))
    assert [document_fault("transcript-entry", entry) for entry in found] == [None] * len(found)


@given(sessions(), st.integers(0, 40))
def test_entries_after(events: list[Event], sequence: int) -> None:
    """The entries after a sequence are the transcript without those up to it."""
    snapshot = published(events).snapshot()
    expected = tuple(entry for entry in snapshot.transcript() if entry.sequence > sequence)
    assert snapshot.entries_after(sequence) == expected
    assert snapshot.entry_wires(sequence) == [entry_json(entry).encode() for entry in expected]


@given(st.lists(messages, max_size=5))
def test_history_hash(history: list[Message]) -> None:
    """The running hash is that of the list's JSON, and what it was before stays as it was."""
    running = HistoryHash()
    for length, message in enumerate(history, 1):
        before, digest = running, running.hexdigest()
        running = running.followed_by(message)
        text = json.dumps(
            [message_value(each) for each in history[:length]],
            ensure_ascii=False,
            separators=(",", ":"),
        )
        assert running.hexdigest() == hashlib.sha256(text.encode()).hexdigest()
        assert before.hexdigest() == digest


@given(messages)
def test_message_json(message: Message) -> None:
    """A message's text is what Python's own encoder makes of its value, key order included."""
    expected = json.dumps(message_value(message), ensure_ascii=False, separators=(",", ":"))
    assert message_json(message) == expected


@given(sessions(), st.data())
def test_snapshots_never_change(events: list[Event], data: st.DataObject) -> None:
    """A snapshot shows the same while the session grows on, its Turns included."""
    cut = data.draw(st.integers(0, len(events)))
    timeline = published(events[:cut])
    early, twin = timeline.snapshot(), published(events[:cut]).snapshot()
    published(events[cut:], timeline)
    assert list(early) == list(twin)
    assert early.model_history() == twin.model_history()
    assert early.transcript() == twin.transcript()
    assert (early.last_sequence, early.digest) == (twin.last_sequence, twin.digest)
    assert (early.open_turn, early.turns_n) == (twin.open_turn, twin.turns_n)
    for n in range(1, 9):
        invocation_id = f"invocation-{n}"
        assert early.find_turn(invocation_id) == twin.find_turn(invocation_id)
    if cut:
        assert early.history_ref() == twin.history_ref()


@given(sessions(), st.integers(-40, 40), st.integers(-40, 40))
def test_a_snapshot_is_a_sequence(events: list[Event], start: int, stop: int) -> None:
    """Indexing and slicing are those of a tuple of envelopes, while the session grows on."""
    timeline = published(events)
    snapshot = timeline.snapshot()
    expected = tuple(snapshot)
    published([event for event in events if event.tag == "model_chunk_recorded"], timeline)
    assert len(snapshot) == len(expected) == snapshot.last_sequence
    assert snapshot[start:stop] == expected[start:stop]
    assert [envelope.sequence for envelope in snapshot] == list(range(1, len(events) + 1))
    if -len(expected) <= start < len(expected):
        assert snapshot[start] == expected[start]
    else:
        with pytest.raises(IndexError):
            snapshot[start]


@given(sessions())
def test_events_are_built_anew_and_equal(events: list[Event]) -> None:
    """What a snapshot is asked for is what was published, as events and as text for the wire."""
    snapshot = published(events).snapshot()
    assert [envelope.event for envelope in snapshot] == events
    assert snapshot.wires() == [envelope_json(envelope).encode() for envelope in snapshot]
    assert snapshot.wires_b == sum(map(len, snapshot.wires()))


@given(sessions(), st.data())
def test_a_part_of_the_wires_and_a_digest_by_sequence(
    events: list[Event], data: st.DataObject
) -> None:
    """Any part can be had by sequence; 0 has no digest, and each event has its own."""
    snapshot = published(events).snapshot()
    after = data.draw(st.integers(0, len(events)))
    up_to = data.draw(st.integers(after, len(events) + 1))
    assert snapshot.wires(after) == snapshot.wires()[after:]
    assert snapshot.wires(after, up_to) == snapshot.wires()[after:up_to]
    assert snapshot.digest_at(after) == (snapshot[after - 1].digest if after else None)


def test_there_is_no_digest_of_what_is_not_there() -> None:
    """A snapshot does not see past its own end, though the session has gone on."""
    timeline = published([chunk(1)])
    snapshot = timeline.snapshot()
    published([chunk(2)], timeline)
    assert len(snapshot.wires(0, 2)) == 1
    for sequence in (2, 3):
        with pytest.raises(IndexError):
            snapshot.digest_at(sequence)


def test_only_the_next_event_is_published() -> None:
    """A gap or a stranger's event is a bug of the caller and does not get in."""
    timeline = Timeline("default")
    other = published([], Timeline("other"))
    published([chunk(1)], timeline)
    (row,) = rows_of([chunk(1)])
    with pytest.raises(ValueError, match="cannot follow"):
        other.publish(row, chunk(1))
    with pytest.raises(ValueError, match="cannot follow"):
        timeline.publish(row, chunk(1))
    assert len(timeline.snapshot()) == 1
