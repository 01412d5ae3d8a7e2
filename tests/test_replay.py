"""Stored rows back into a session: each fault is found where it stands, the prefix is kept."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from log_support import (
    ECHO,
    SESSION,
    Conversation,
    assert_same,
    chained,
    chunk,
    rows_of,
    stored_rows,
    write_rows,
)

from actors.codec import encode_event
from actors.errors import RejectedEvent, UnsoundSession
from actors.events import (
    AssistantMessageCommitted,
    Event,
    HistoryRef,
    InlineMessages,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.replay import replay_rows
from actors.session_log import open_session_log
from actors.snapshot import Snapshot, Timeline
from actors.values import AssistantMessage, Json, ToolCall, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from actors.rows import Row

EVENTS = Conversation().every_variant()
ROWS = rows_of(EVENTS)


def replayed(*pages: Sequence[Row]) -> Snapshot:
    timeline = Timeline(SESSION)
    for page in pages:
        replay_rows(timeline, page, None)
    return timeline.snapshot()


def test_replay_restores_what_was_recorded() -> None:
    """The events, their envelopes and the chain come back as they were written."""
    snapshot = replayed(ROWS)
    assert [envelope.event for envelope in snapshot] == EVENTS
    assert [(e.sequence, e.recorded_at, e.digest) for e in snapshot] == [
        (row.sequence, row.recorded_at, row.digest) for row in ROWS
    ]


@given(st.sets(st.integers(0, len(ROWS))))
def test_pages_do_not_matter(cuts: set[int]) -> None:
    """However the rows are cut into pages, the session is the same."""
    edges = [0, *sorted(cuts), len(ROWS)]
    pages = [ROWS[start:end] for start, end in pairwise(edges)]
    assert_same(replayed(*pages), replayed(ROWS))


@given(st.data())
def test_any_change_of_a_stored_row_is_found_at_that_row(data: st.DataObject) -> None:
    """Whatever column of whatever row changes, the load stops there and keeps what is before."""
    index = data.draw(st.integers(0, len(ROWS) - 1))
    column = data.draw(st.sampled_from(ROWS[0]._fields))
    row = ROWS[index]
    before: object = getattr(row, column)
    strategy: st.SearchStrategy[object] = (
        st.integers(-(2**63), 2**63 - 1)
        if isinstance(before, int)
        else st.binary(max_size=40)
        if isinstance(before, bytes)
        else st.text() | st.sampled_from([f"{before} ", str(before).swapcase(), "\udc80"])
    )
    after = data.draw(strategy.filter(lambda value: value != before))
    rows = [*ROWS[:index], row._replace(**{column: after}), *ROWS[index + 1 :]]
    timeline = Timeline(SESSION)
    with pytest.raises(UnsoundSession) as refused:
        replay_rows(timeline, rows, None)
    assert refused.value.sequence == index + 1
    assert_same(timeline.snapshot(), replayed(ROWS[:index]))


@given(st.permutations(range(6)).filter(lambda order: order != sorted(order)))
def test_rows_in_another_order_are_refused(order: Sequence[int]) -> None:
    """Order is part of what was recorded, also where no rule ties the events together."""
    rows = rows_of(chunk(number) for number in range(6))
    with pytest.raises(UnsoundSession, match="must come"):
        replayed([rows[index] for index in order])


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (ROWS[1:], "sequence 2 where 1 must come"),
        ([ROWS[0]._replace(sequence=0), *ROWS], "sequence 0 where 1 must come"),
        ([*ROWS[:2], *ROWS[3:]], "sequence 4 where 3 must come"),
        ([*ROWS[:2], ROWS[1]], "sequence 2 where 3 must come"),
        (rows_of(EVENTS, "other"), "belongs to session 'other'"),
        ([ROWS[0]._replace(format_version=1)], "format_version 1, not 0"),
        ([ROWS[0]._replace(digest=bytes(32))], "digest does not match"),
        ([rows_of(EVENTS, "other")[0]._replace(session_id=SESSION)], "digest does not match"),
        ([ROWS[0]._replace(payload="\udcff")], "no UTF-8"),
        ([ROWS[0]._replace(recorded_at="2026-12-01 09:30")], "is not a time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_says_what_was_found(rows: list[Row], fault: str) -> None:
    """Each way a row can be out of place has words of its own."""
    with pytest.raises(UnsoundSession, match=fault):
        replayed(rows)


@pytest.mark.parametrize(
    ("stored", "fault"),
    [
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":'), "not JSON"),
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":NaN}'), "/chunk"),
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":1e400}'), "/chunk"),
        (
            ("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":{"a":1,"a":1}}'),
            "/chunk/a: a duplicate key",
        ),
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":"\\udc80"}'), "surrogate"),
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1"}'), "chunk"),
        (("model_chunk_recorded", '{"step_id":"turn-1/step-1","chunk":1,"more":2}'), "more"),
        (("model_chunk_recorded", '{"step_id":"turn-01/step-1","chunk":1}'), "turn-01"),
        (("model_chunk_recorded", "[]"), "object"),
        (("model_chunk_forgotten", "{}"), "unknown event type 'model_chunk_forgotten'"),
        (("step_failed", '{"step_id":"turn-1/step-1","code":"x","message":7}'), "7"),
    ],
)
def test_a_payload_is_checked_though_its_digest_matches(
    stored: tuple[str, str], fault: str
) -> None:
    """A correct chain does not vouch for the payload: JSON, tag and schema are asked as well."""
    rows = chained([encode_event(chunk("sound")), stored])
    timeline = Timeline(SESSION)
    with pytest.raises(UnsoundSession) as refused:
        replay_rows(timeline, rows, None)
    assert fault in refused.value.reason
    assert refused.value.sequence == 2
    assert len(timeline.snapshot()) == 1


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        (
            ("model_chunk_recorded", '{"chunk":{"b": 1e16,"a":2},"step_id":"turn-1/step-1"}'),
            '{"step_id":"turn-1/step-1","chunk":{"b":1e+16,"a":2}}',
        ),
        (
            ("model_chunk_recorded", '{"step_id":"turn-1\\/step-1","chunk":null}'),
            '{"step_id":"turn-1/step-1","chunk":null}',
        ),
        (
            ("model_chunk_recorded", '{"chunk":1,"step_id":"turn-1/step-1"}'),
            '{"step_id":"turn-1/step-1","chunk":1}',
        ),
    ],
)
def test_another_spelling_stays_in_the_file(stored: tuple[str, str], kept: str) -> None:
    """What another program wrote in its own way is taken, and shown as an append writes it."""
    timeline = Timeline(SESSION)
    replay_rows(timeline, chained([stored]), None)
    (wire,) = timeline.snapshot().wires()
    assert wire.decode().endswith(f'"payload":{kept}}}')


@pytest.mark.parametrize(
    "recorded_at",
    [
        "2026-12-01T09:30:00Z",
        "2026-12-01T09:30:00.123Z",
        "2026-12-01T09:30:00.123456+00:00",
        "2026-12-01t09:30:00.123456z",
        "2026-02-30T09:30:00.123456Z",
        "2026-12-01T09:30:00.123456Z\n",
        "٢026-12-01T09:30:00.123456Z",
        "",
    ],
)
def test_a_time_in_another_form_is_refused(recorded_at: str) -> None:
    """Six decimals, UTC as Z, and a day that exists; the chain may say what it likes."""
    rows = chained([encode_event(chunk("x"))], recorded_at=recorded_at)
    with pytest.raises(UnsoundSession, match="is not a time"):
        replayed(rows)


# --- the rules, on both ways in -----------------------------------------------------------------

CALL = ToolCall("call-1", "lookup", '{"q": 1}')


def said(*moves: str) -> Callable[[], tuple[Conversation, list[Event]]]:
    """Return a way to begin a conversation with these moves; ``calls`` answers with two calls."""

    def begin() -> tuple[Conversation, list[Event]]:
        conversation = Conversation()
        events: list[Event] = [
            conversation.answer("", calls_n=2) if move == "calls" else getattr(conversation, move)()
            for move in moves
        ]
        return conversation, events

    return begin


def request(turn_id: str, step_id: str) -> ModelRequestRecorded:
    inline = InlineMessages((UserMessage("hello"),))
    return ModelRequestRecorded(turn_id, step_id, ECHO, "", (), inline)


def answer(step_id: str, *calls: ToolCall, text: str = "x") -> AssistantMessageCommitted:
    return AssistantMessageCommitted(step_id, AssistantMessage(text, calls), "stop")


def user_input(turn_id: str, invocation_id: str) -> UserInputAccepted:
    return UserInputAccepted(turn_id, invocation_id, (UserMessage("hello"),))


def completed(call_id: str, step_id: str = "turn-1/step-1") -> ToolExecutionCompleted:
    return ToolExecutionCompleted(step_id, call_id, result=Json.of(1))


def failed(step_id: str) -> StepFailed:
    return StepFailed(step_id, "cancelled", "the end")


FINISHED = said("input", "request", "answer")
FAILED = said("input", "request", "fail")
ASKED = said("input", "request")
CALLED = said("input", "request", "calls")
STARTED = said("input", "request", "calls", "start")
COMPLETED = said("input", "request", "calls", "start", "complete")
ALL_COMPLETED = said("input", "request", "calls", "start", "complete", "start", "complete")
FIRST, SECOND = "turn-1/step-1", "turn-1/step-2"

BREAKS: dict[str, tuple[Callable[[], tuple[Conversation, list[Event]]], Event]] = {
    "the first Turn is not turn-1": (said(), user_input("turn-2", "a")),
    "a Turn number is left out": (FINISHED, user_input("turn-3", "a")),
    "a Turn number comes again": (FINISHED, user_input("turn-1", "a")),
    "input while the Turn is unfinished": (ASKED, user_input("turn-2", "a")),
    "input right after input": (said("input"), user_input("turn-2", "a")),
    "input while a call is open": (CALLED, user_input("turn-2", "a")),
    "an invocation id comes again": (FINISHED, user_input("turn-2", "invocation-1")),
    "a request before any input": (said(), request("turn-1", FIRST)),
    "a request of another Turn": (said("input"), request("turn-2", "turn-2/step-1")),
    "a request whose ids disagree": (said("input"), request("turn-1", "turn-2/step-1")),
    "a request whose Turn is not the Step's": (said("input"), request("turn-2", FIRST)),
    "a request that leaves a Step out": (said("input"), request("turn-1", SECOND)),
    "a Step requested again": (ALL_COMPLETED, request("turn-1", FIRST)),
    "a request while calls are open": (CALLED, request("turn-1", SECOND)),
    "a request while one call is open": (COMPLETED, request("turn-1", SECOND)),
    "a request while the Step before is unanswered": (ASKED, request("turn-1", SECOND)),
    "a request after the Turn was finished": (FINISHED, request("turn-1", SECOND)),
    "a request after the Turn had failed": (FAILED, request("turn-1", SECOND)),
    "an answer without a request": (said("input"), answer(FIRST)),
    "an answer before any input": (said(), answer(FIRST)),
    "an answer of another Step": (ASKED, answer(SECOND)),
    "a second answer while calls are open": (CALLED, answer(FIRST)),
    "a second answer after all calls": (ALL_COMPLETED, answer(FIRST)),
    "an answer after the Turn was finished": (FINISHED, answer(FIRST)),
    "an answer after the Turn had failed": (FAILED, answer(FIRST)),
    "one call id twice in a message": (ASKED, answer(FIRST, CALL, CALL)),
    "a start of a call nobody made": (CALLED, ToolExecutionStarted(FIRST, evolve(CALL, id="x"))),
    "a start with other arguments": (
        CALLED,
        ToolExecutionStarted(FIRST, evolve(CALL, arguments='{"q":1}')),
    ),
    "a start under another name": (CALLED, ToolExecutionStarted(FIRST, evolve(CALL, name="x"))),
    "a start of another Step": (CALLED, ToolExecutionStarted(SECOND, CALL)),
    "a second start": (STARTED, ToolExecutionStarted(FIRST, CALL)),
    "a start after the completion": (COMPLETED, ToolExecutionStarted(FIRST, CALL)),
    "a start outside of a Turn": (said(), ToolExecutionStarted(FIRST, CALL)),
    "a completion of a call nobody made": (CALLED, completed("x")),
    "a completion of another Step": (STARTED, completed("call-1", SECOND)),
    "a second completion": (COMPLETED, completed("call-1")),
    "a completion outside of a Turn": (FINISHED, completed("call-1")),
    "step_failed while a call is open": (COMPLETED, failed(FIRST)),
    "step_failed before any input": (said(), failed(FIRST)),
    "step_failed of another Step": (ASKED, failed(SECOND)),
    "step_failed of step-2 where none was requested": (said("input"), failed(SECOND)),
    "step_failed of the Turn before": (said("input", "request", "answer", "input"), failed(FIRST)),
    "step_failed after the Turn was finished": (FINISHED, failed(FIRST)),
    "step_failed after the Turn had failed": (FAILED, failed(FIRST)),
}


def history_breaks() -> dict[str, tuple[list[Event], Event]]:
    """Return the breaks for which the event depends on what was said before it."""
    conversation, before = said("input", "chunk")()
    ref = conversation.history_ref()
    again, calls_before = ALL_COMPLETED()
    reused = [*calls_before, again.request()]
    late, late_before = said("input", "request", "calls", "complete", "complete")()

    def asked(ref: HistoryRef) -> ModelRequestRecorded:
        return ModelRequestRecorded("turn-1", FIRST, ECHO, "", (), ref)

    return {
        "through is the request itself": (before, asked(evolve(ref, through=3))),
        "through is still to come": (before, asked(evolve(ref, through=10**30))),
        "sha256 is another's": (before, asked(evolve(ref, sha256="0" * 64))),
        "a message came after through": (
            late_before,
            evolve(late.request(), messages=evolve(late.history_ref(), through=4)),
        ),
        "a call id comes again": (reused, answer(SECOND, CALL)),
    }


CASES = {
    **{name: (begin()[1], event) for name, (begin, event) in BREAKS.items()},
    **history_breaks(),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_broken_rule_is_refused_by_append_and_by_load(name: str, tmp_path: Path) -> None:
    """Both ways in give the same reason, and neither leaves anything of the breaking event."""
    before, breaking = CASES[name]
    async with open_session_log(SESSION) as log:
        with pytest.raises(RejectedEvent):
            await log.append_many([*before, breaking])
        assert len(log.snapshot()) == 0
        await log.append_many(before)
        with pytest.raises(RejectedEvent) as refused:
            await log.append(breaking)
        assert [envelope.event for envelope in log.snapshot()] == before

    path, rows = tmp_path / "broken.sqlite3", rows_of([*before, breaking])
    write_rows(path, rows)
    with pytest.raises(UnsoundSession) as unsound:
        async with open_session_log(SESSION, path):
            pytest.fail("a broken session was opened")
    assert unsound.value.reason == refused.value.reason
    assert unsound.value.sequence == len(before) + 1
    assert stored_rows(path) == rows


async def test_what_the_rules_allow_is_allowed_both_ways() -> None:
    """Chunks are under no rule, step_failed may come before any request, calls need no start."""
    events: list[Event] = [chunk("before any input", "turn-99/step-99")]
    conversation, begun = said("input")()
    failed_turn: list[Event] = [*begun, conversation.fail()]
    second: list[Event] = [conversation.input("again")]
    events += [*failed_turn, *second]
    async with open_session_log(SESSION) as log:
        await log.append_many(events)
        request_event = conversation.request(log.snapshot().history_ref())
        rest: list[Event] = [
            chunk("between"),
            request_event,
            conversation.answer("", calls_n=1),
            conversation.complete(),
            conversation.fail(),
        ]
        await log.append_many(rest)
        snapshot = log.snapshot()
    assert_projections_of(replayed(rows_of([*events, *rest])), snapshot)


def assert_projections_of(found: Snapshot, expected: Snapshot) -> None:
    assert [envelope.event for envelope in found] == [envelope.event for envelope in expected]
    assert found.model_history() == expected.model_history()
    assert found.transcript() == expected.transcript()
