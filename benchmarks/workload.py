"""The session that is measured: rule-abiding, and of the sizes that a chatty agent writes.

A Turn has one input of 200 characters, a request, 40 chunks of about 150 bytes shaped like a
``chat.completion.chunk``, and an answer of 800 characters. Every third Turn first asks for a tool
call whose result is 1 kB; the request that shows the model this result is then its second, and
its 40 chunks are shared out between the two.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    ModelChunkRecorded,
    ModelRequestRecorded,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
    step_id_for,
    turn_id_for,
)
from actors.history import HistoryHash, messages_entering
from actors.values import AssistantMessage, Json, Route, ToolCall, ToolSpec, Usage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from actors.events import Event

CHUNKS_A_TURN = 40
CHUNKS_OF_A_CALL = 8
"""Of them, those that bring the tool call, in a Turn that has one."""
INPUT_CHARACTERS_N = 200
ANSWER_CHARACTERS_N = 800
RESULT_BYTES_N = 1_000
TOOL_CALL_EVERY = 3
"""Turns from one with a tool call to the next."""

ROUTE = Route("bench", "chatty-1")
SYSTEM_PROMPT = "Answer in a few sentences. Look the weather up before you speak of it."
WEATHER = ToolSpec(
    "weather",
    "The weather of a place, now.",
    Json.of({"type": "object", "properties": {"place": {"type": "string"}}}),
)
USAGE = Usage(1_800, 160)
_WORDS = ("grey", "and", "four", "degrees", "in", "Kobenhavn", "so", "take", "a", "coat", "along")
_CREATED_AT = 1_764_580_000
_UNKNOWN = HistoryRef(1, "0" * 64)


def text(characters_n: int, seed: int) -> str:
    """Return so many characters of words, of which each seed has its own."""
    words = [f"[{seed}]"]
    while sum(map(len, words)) + len(words) < characters_n + 1:
        words.append(_WORDS[(seed + len(words)) % len(_WORDS)])
    return " ".join(words)[:characters_n].ljust(characters_n, ".")


def chunk(n: int) -> Json:
    """Return the ``n``-th chunk of a stream as the provider would send it, about 150 bytes."""
    return Json.of(
        {
            "id": f"chatcmpl-{n:08x}",
            "object": "chat.completion.chunk",
            "created": _CREATED_AT,
            "model": ROUTE.model,
            "choices": [{"index": 0, "delta": {"content": f" {_WORDS[n % len(_WORDS)]}"}}],
        }
    )


def chunk_events(events_n: int) -> list[Event]:
    """Return chunks alone: under no rule, so that they may be appended in any order."""
    step_id = step_id_for(turn_id_for(1), 1)
    return [ModelChunkRecorded(step_id, chunk(n)) for n in range(events_n)]


def has_tool_call(turn_n: int) -> bool:
    """Tell whether the Turn, counted from 1, has a tool call."""
    return turn_n % TOOL_CALL_EVERY == 0


def tool_call(turn_n: int) -> ToolCall:
    """Return the Turn's tool call."""
    return ToolCall(f"call-{turn_n}", WEATHER.name, '{"place":"Kobenhavn"}')


def tool_result(turn_n: int) -> Json:
    """Return what the Turn's tool call came to, 1 kB of JSON."""
    around = len('{"report":""}')
    return Json.of({"report": text(RESULT_BYTES_N - around, turn_n)})


def session_events(events_n: int) -> list[Event]:
    """Return the first events of an endless session; its last Turn may be cut short."""
    return list(islice(_in_order(_turns()), events_n))


def _turns() -> Iterator[Event]:
    for turn_n in count(1):
        yield from _turn(turn_n)


def _in_order(events: Iterable[Event]) -> Iterator[Event]:
    """Give each request the reference to the history before it, as an agent does."""
    history = HistoryHash()
    for sequence, event in enumerate(events):
        if type(event) is ModelRequestRecorded:
            reference = HistoryRef(sequence, history.hexdigest())
            yield _request(event.turn_id, event.step_id, reference)
            continue
        yield event
        for message in messages_entering(event):
            history = history.followed_by(message)


def _turn(turn_n: int) -> Iterator[Event]:
    turn_id = turn_id_for(turn_n)
    step_id, chunks_n = step_id_for(turn_id, 1), 0
    question = UserMessage(text(INPUT_CHARACTERS_N, turn_n))
    yield UserInputAccepted(turn_id, f"bench-{turn_n}", (question,))
    if has_tool_call(turn_n):
        call, chunks_n = tool_call(turn_n), CHUNKS_OF_A_CALL
        yield _request(turn_id, step_id, _UNKNOWN)
        yield from (ModelChunkRecorded(step_id, chunk(n)) for n in range(chunks_n))
        yield AssistantMessageCommitted(step_id, AssistantMessage("", (call,)), "tool_calls", USAGE)
        yield ToolExecutionStarted(step_id, call)
        yield ToolExecutionCompleted(step_id, call.id, tool_result(turn_n))
        step_id = step_id_for(turn_id, 2)
    yield _request(turn_id, step_id, _UNKNOWN)
    yield from (ModelChunkRecorded(step_id, chunk(n)) for n in range(chunks_n, CHUNKS_A_TURN))
    answer = AssistantMessage(text(ANSWER_CHARACTERS_N, turn_n))
    yield AssistantMessageCommitted(step_id, answer, "stop", USAGE)


def _request(turn_id: str, step_id: str, reference: HistoryRef) -> ModelRequestRecorded:
    return ModelRequestRecorded(turn_id, step_id, ROUTE, SYSTEM_PROMPT, (WEATHER,), reference)
