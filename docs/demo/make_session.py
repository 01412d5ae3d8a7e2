"""Write the recorded session that the demo's model plays: ``python docs/demo/make_session.py``.

Two Turns, the first of them cut short by a kill while its second Step streamed a long text. What
is written is what ``sessiond export`` would print of such a session: every event is checked by
the rules that check a stored one, and the same bytes come out each time.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from actors.codec import FORMAT_VERSION, encode_event, envelope_json, row_digest
from actors.events import (
    AssistantMessageCommitted,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.replay import replay_rows
from actors.rows import Row
from actors.snapshot import Timeline
from actors.values import AssistantMessage, Json, Route, ToolCall, ToolSpec, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.events import Event

DESTINATION = Path(__file__).with_name("session.jsonl")
CHUNKS_N = 1_500
"""Of the text that was cut short: long enough for a kill to find the model at work."""

FIRST = (
    "What time is it in Tokyo, and what did I say about the lighthouse?"
    " Then tell me its keeper's log, night by night."
)
SECOND = "Look at the clock once more, and tell me: where were we?"
ANSWER = (
    "I have looked, and nothing is lost: in turn 1 you asked for Tokyo's time and the keeper's"
    " log, both tools had answered, and I was in the middle of telling when I was cut short."
)

_ROUTE = Route("demo", "storyteller")
# As a model was told of them then. What it is told now is the present session's own affair.
_TOOLS = (
    ToolSpec("clock", "Tells the time in a zone.", Json.of({"type": "object"})),
    ToolSpec("recall", "Searches the session.", Json.of({"type": "object"})),
)
_STARTED_AT = datetime(2026, 3, 20, 21, 0, 0, tzinfo=UTC)
_BETWEEN_EVENTS = timedelta(milliseconds=20)

_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west")
_SEAS = ("flat as slate", "short and grey", "long and slow", "white to the horizon", "loud")
_SIGHTS = (
    "a collier under one lamp",
    "two trawlers keeping company",
    "nothing but rain",
    "a barque that answered the light",
    "geese, low, going home",
    "the mail boat, an hour late",
)
_TASKS = (
    "wound the clockwork twice",
    "trimmed the wick at midnight",
    "wiped the salt from the panes",
    "carried oil up the ninety-one steps",
)


# --- what was said ------------------------------------------------------------------------------


def log_words() -> Iterator[str]:
    """Yield the keeper's log, without an end, a word at a time with the blank after it."""
    night = 0
    while True:
        night += 1
        entry = (
            f"Night {night}. Wind from the {_WINDS[night % len(_WINDS)]}, the sea"
            f" {_SEAS[night % len(_SEAS)]}. Saw {_SIGHTS[night % len(_SIGHTS)]};"
            f" {_TASKS[night % len(_TASKS)]}. The light did not fail.\n"
        )
        yield from re.findall(r"\S+\s*", entry)


def events(timeline: Timeline) -> Iterator[Event]:
    """Yield the session's events; each is in ``timeline`` before the next is asked for."""
    tokyo = ToolCall("call-time", "clock", '{"zone":"Asia/Tokyo"}')
    found = ToolCall("call-lighthouse", "recall", '{"query":"lighthouse"}')
    now = ToolCall("call-time-again", "clock", '{"zone":"Asia/Tokyo"}')

    yield UserInputAccepted("turn-1", "first", (UserMessage(FIRST),))
    yield _request(timeline, "turn-1", 1)
    yield _answer("turn-1/step-1", "Let me look at the clock, and at what was said.", tokyo, found)
    yield from _executed("turn-1/step-1", tokyo, _time("2026-03-21T06:00:00+09:00", "Saturday"))
    hit = {"sequence": 1, "kind": "user", "excerpt": FIRST}
    yield from _executed("turn-1/step-1", found, {"hits": [hit], "more": False})
    yield _request(timeline, "turn-1", 2)
    for _, word in zip(range(CHUNKS_N), log_words(), strict=False):
        yield _chunk("turn-1/step-2", word)
    yield StepFailed("turn-1/step-2", "interrupted", "the turn was stopped before it had ended")

    yield UserInputAccepted("turn-2", "second", (UserMessage(SECOND),))
    yield _request(timeline, "turn-2", 1)
    yield _answer("turn-2/step-1", "", now)
    yield from _executed("turn-2/step-1", now, _time("2026-03-21T06:01:00+09:00", "Saturday"))
    yield _request(timeline, "turn-2", 2)
    for word in re.findall(r"\S+\s*", ANSWER):
        yield _chunk("turn-2/step-2", word)
    yield _answer("turn-2/step-2", ANSWER)


def _request(timeline: Timeline, turn_id: str, step_n: int) -> Event:
    history = timeline.snapshot().history_ref()
    return ModelRequestRecorded(turn_id, f"{turn_id}/step-{step_n}", _ROUTE, "", _TOOLS, history)


def _chunk(step_id: str, text: str) -> Event:
    # Where the Chat Completions stream has its text, so that readers of that find it.
    return ModelChunkRecorded(
        step_id, Json.of({"choices": [{"index": 0, "delta": {"content": text}}]})
    )


def _answer(step_id: str, text: str, *calls: ToolCall) -> Event:
    finish_reason = "tool_calls" if calls else "stop"
    return AssistantMessageCommitted(step_id, AssistantMessage(text, calls), finish_reason)


def _executed(step_id: str, call: ToolCall, result: object) -> Iterator[Event]:
    yield ToolExecutionStarted(step_id, call)
    yield ToolExecutionCompleted(step_id, call.id, result=Json.of(result))


def _time(time: str, weekday: str) -> dict[str, str]:
    return {"time": time, "zone": "Asia/Tokyo", "weekday": weekday}


# --- as an export writes it ---------------------------------------------------------------------


def exported(session_id: str = "default") -> str:
    """Return the session, an envelope a line.

    Raises:
        RejectedEvent: an event is not what its schema demands.
        UnsoundSession: an event may not follow those before it.
    """
    timeline = Timeline(session_id)
    for event in events(timeline):
        event_type, payload = encode_event(event)
        sequence = timeline.next_sequence
        recorded_at = (_STARTED_AT + sequence * _BETWEEN_EVENTS).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        columns = (session_id, sequence, FORMAT_VERSION, recorded_at, event_type, payload)
        row = Row(*columns, row_digest(timeline.last_digest, *columns))
        replay_rows(timeline, [row], None)
    return "".join(f"{envelope_json(envelope)}\n" for envelope in timeline.snapshot())


def main() -> None:
    """Write the session to the file that the command line names."""
    parser = argparse.ArgumentParser(description="Write the demo's recorded session.")
    parser.add_argument("destination", nargs="?", type=Path, default=DESTINATION)
    destination: Path = parser.parse_args().destination
    destination.write_bytes(exported().encode())


if __name__ == "__main__":
    main()
