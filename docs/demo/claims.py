"""What the demo claims of the session that it leaves, checked event by event."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CUT_STEP = "turn-1/step-2"
CALLED = {"turn-1": ["clock", "recall"], "turn-2": ["clock"]}
"""The tools that each Turn's model asks for, in order."""


def broken_claims(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is not as it was told, a line each; empty where all is."""
    return [*_in_order(events), *_calls(events), *_cut_turn(events), *_whole_turn(events)]


def _in_order(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    if [event["sequence"] for event in events] != [*range(1, len(events) + 1)]:
        yield "the sequences do not count from 1 without a gap"


def _calls(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    asked = [
        (_turn_of(message), call)
        for message in _payloads(events, "assistant_message_committed")
        for call in message["message"]["tool_calls"]
    ]
    for turn_id, names in CALLED.items():
        called = [call["name"] for turn, call in asked if turn == turn_id]
        if called != names:
            yield f"{turn_id} called {called}, not {names}"
    started = Counter(each["call"]["id"] for each in _payloads(events, "tool_execution_started"))
    answers = _payloads(events, "tool_execution_completed")
    answered = Counter(each["call_id"] for each in answers)
    for _, call in asked:
        call_id = call["id"]
        if started[call_id] > 1:
            yield f"{call_id} was started {started[call_id]} times"
        if answered[call_id] != 1:
            yield f"{call_id} was answered {answered[call_id]} times"
    if unasked := sorted((started.keys() | answered.keys()) - {call["id"] for _, call in asked}):
        yield f"nobody asked for {', '.join(unasked)}"
    for each in answers:
        if "error" in each:
            yield f"{each['call_id']} came to an error: {each['error']['message']}"


def _cut_turn(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    ends = [
        (each["step_id"], each["code"])
        for each in _payloads(events, "step_failed")
        if _turn_of(each) == "turn-1"
    ]
    if ends != [(CUT_STEP, "interrupted")]:
        yield f"turn-1 is recorded as {ends}, not once as interrupted in {CUT_STEP}"
    if CUT_STEP in _answered_steps(events):
        yield f"{CUT_STEP} has a message though it was cut short"


def _whole_turn(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    last = events[-1] if events else None
    if last is None or last["type"] != "assistant_message_committed":
        yield "the session does not end with an answer"
    elif _turn_of(last["payload"]) != "turn-2" or last["payload"]["message"]["tool_calls"]:
        yield "the session does not end with the answer of turn-2"


def _answered_steps(events: Sequence[dict[str, Any]]) -> set[str]:
    return {each["step_id"] for each in _payloads(events, "assistant_message_committed")}


def _payloads(events: Sequence[dict[str, Any]], event_type: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["type"] == event_type]


def _turn_of(payload: dict[str, Any]) -> str:
    return str(payload["step_id"]).partition("/")[0]
