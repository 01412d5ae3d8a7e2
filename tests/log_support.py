"""What the tests of the session log share: events that follow one another, and rows of them.

:class:`Conversation` keeps its own account of what may come next, plain and independent of the
code under test.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from actors.codec import encode_event, row_digest
from actors.events import (
    AssistantMessageCommitted,
    Event,
    HistoryRef,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    UserInputAccepted,
)
from actors.rows import Row
from actors.store import open_store
from actors.values import (
    AssistantMessage,
    ErrorInfo,
    Json,
    Route,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from actors.session_log import SessionLog
    from actors.snapshot import Snapshot

SESSION = "default"
STAMP = "2026-12-01T09:30:00.123456Z"
ECHO = Route("echo", "echo")
LOOKUP = ToolSpec("lookup", "finds things", Json.of({"type": "object"}))


def chunk(value: object, step_id: str = "turn-1/step-1") -> ModelChunkRecorded:
    """Return an event that is under no rule and so always fits."""
    return ModelChunkRecorded(step_id, Json.of(value))


class Conversation:
    """Says one valid event after the other. Each method returns the next and counts it in.

    Sequences are those of a session that holds this conversation alone; where others append in
    between, a request is given the log's own ``history``.
    """

    def __init__(self, after: int = 0) -> None:
        self.sequence = after
        self.turn_n = 0
        self.step_n = 0
        self.calls_n = 0
        self.unfinished = False
        self.answered = False
        self.open: dict[str, ToolCall] = {}
        self.started: set[str] = set()
        self.history: list[dict[str, object]] = []

    @property
    def turn_id(self) -> str:
        return f"turn-{self.turn_n}"

    @property
    def step_id(self) -> str:
        return f"{self.turn_id}/step-{max(self.step_n, 1)}"

    def history_ref(self) -> HistoryRef:
        text = json.dumps(self.history, ensure_ascii=False, separators=(",", ":"))
        return HistoryRef(self.sequence, hashlib.sha256(text.encode()).hexdigest())

    def input(self, text: str = "hello", invocation_id: str | None = None) -> UserInputAccepted:
        self.sequence += 1
        self.turn_n += 1
        self.step_n = 0
        self.unfinished = True
        self.answered = False
        self.history.append({"role": "user", "content": text})
        invocation_id = invocation_id or f"invocation-{self.turn_n}"
        return UserInputAccepted(self.turn_id, invocation_id, (UserMessage(text),))

    def request(self, history: HistoryRef | InlineMessages | None = None) -> ModelRequestRecorded:
        messages = history or self.history_ref()
        self.sequence += 1
        self.step_n += 1
        self.answered = False
        return ModelRequestRecorded(self.turn_id, self.step_id, ECHO, "", (LOOKUP,), messages)

    def chunk(self, value: object = "word") -> ModelChunkRecorded:
        self.sequence += 1
        return chunk(value, self.step_id if self.turn_n else "turn-1/step-1")

    def answer(self, text: str = "answer", calls_n: int = 0) -> AssistantMessageCommitted:
        self.sequence += 1
        names = range(self.calls_n + 1, self.calls_n + calls_n + 1)
        calls = tuple(ToolCall(f"call-{n}", "lookup", '{"q": 1}') for n in names)
        self.calls_n += calls_n
        self.answered = True
        self.unfinished = bool(calls)
        self.open.update({call.id: call for call in calls})
        if text or calls:
            self.history.append(
                {
                    "role": "assistant",
                    "content": text,
                    "tool_calls": [
                        {"id": call.id, "name": call.name, "arguments": call.arguments}
                        for call in calls
                    ],
                }
            )
        return AssistantMessageCommitted(
            self.step_id, AssistantMessage(text, calls), "stop", Usage(3, 4)
        )

    def start(self) -> ToolExecutionStarted:
        call = next(call for call in self.open.values() if call.id not in self.started)
        self.sequence += 1
        self.started.add(call.id)
        return ToolExecutionStarted(self.step_id, call)

    def complete(self, result: object = "found") -> ToolExecutionCompleted:
        call_id = self._close_call()
        content = result if isinstance(result, str) else _compact(result)
        self.history.append({"role": "tool", "content": content, "tool_call_id": call_id})
        return ToolExecutionCompleted(self.step_id, call_id, result=Json.of(result))

    def complete_with_error(self, code: str = "handler_error") -> ToolExecutionCompleted:
        call_id = self._close_call()
        content = _compact({"error": {"code": code, "message": "no"}})
        self.history.append({"role": "tool", "content": content, "tool_call_id": call_id})
        return ToolExecutionCompleted(self.step_id, call_id, error=ErrorInfo(code, "no"))

    def _close_call(self) -> str:
        call_id = next(iter(self.open))
        self.sequence += 1
        del self.open[call_id]
        self.started.discard(call_id)
        return call_id

    def fail(self, code: str = "cancelled") -> StepFailed:
        event = StepFailed(self.step_id, code, "the end")
        self.sequence += 1
        self.unfinished = False
        return event

    def turn(self, calls_n: int = 0) -> list[Event]:
        """Return all of a Turn: with tool calls it has two Steps, else one."""
        events: list[Event] = [self.input(), self.request(), self.chunk()]
        if calls_n:
            events.append(self.answer("let me see", calls_n))
            for _ in range(calls_n):
                events += [self.start(), self.complete({"found": [1, None]})]
            events += [self.request(), self.chunk({"delta": 1})]
        return [*events, self.answer()]

    def every_variant(self) -> list[Event]:
        """Return two Turns in which each of the seven events has its place, errors included."""
        first: list[Event] = self.turn(calls_n=2)
        second: list[Event] = [self.input("again"), self.request(), self.answer("", calls_n=2)]
        return [
            *first,
            *second,
            self.start(),
            self.complete_with_error(),
            self.complete_with_error("not_executed"),
            self.fail(),
        ]

    def moves(self) -> list[str]:
        """Return the names of the methods whose event may come next."""
        if not self.unfinished:
            return ["input", "chunk"]
        moves = ["chunk"]
        if self.open:
            moves += ["complete", "complete_with_error"]
            if any(call_id not in self.started for call_id in self.open):
                moves.append("start")
            return moves
        if self.step_n == 0 or self.answered:
            moves.append("request")
        if self.step_n > 0 and not self.answered:
            moves.append("answer")
        return [*moves, "fail"]


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- rows and files ---------------------------------------------------------------------------


def chained(
    stored: Iterable[tuple[str, str]],
    *,
    session_id: str = SESSION,
    after: tuple[int, bytes | None] = (0, None),
    recorded_at: str = STAMP,
) -> list[Row]:
    """Return (type, payload text) pairs as rows with a correct chain, whatever they say."""
    sequence, digest = after
    rows: list[Row] = []
    for event_type, payload in stored:
        sequence += 1
        digest = row_digest(digest, session_id, sequence, 0, recorded_at, event_type, payload)
        rows.append(Row(session_id, sequence, 0, recorded_at, event_type, payload, digest))
    return rows


def rows_of(events: Iterable[Event], session_id: str = SESSION) -> list[Row]:
    """Return the rows of a new session with these events, whether or not the rules agree."""
    return chained(map(encode_event, events), session_id=session_id)


def write_rows(path: Path, rows: Sequence[Row], session_id: str = SESSION) -> None:
    """Make a database whose one session has these rows, past all checks but the triggers'."""
    store = open_store(path, session_id, (0, None))
    try:
        if rows:
            store.commit(rows)
    finally:
        store.close()


def stored_rows(path: Path, session_id: str = SESSION) -> list[Row]:
    """Return what the file holds, read past the code under test."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            "SELECT * FROM session_events WHERE session_id = ? ORDER BY sequence", (session_id,)
        )
        return [Row(*columns) for columns in found]


def append_behind_the_back(path: Path, row: Row) -> None:
    """Insert a row as another program would that ignores the owner's lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO session_events VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    """Check that two snapshots show the same session, events and projections alike."""
    assert list(found) == list(expected)
    assert found.digest == expected.digest
    assert found.model_history() == expected.model_history()
    assert found.transcript() == expected.transcript()
    assert found.open_turn == expected.open_turn
    assert found.turns_n == expected.turns_n


def assert_stored(path: Path, log: SessionLog) -> None:
    """Check that the file holds the log's snapshot, row for row."""
    expected = [
        Row(e.session_id, e.sequence, 0, e.recorded_at, *encode_event(e.event), e.digest)
        for e in log.snapshot()
    ]
    assert stored_rows(path, log.session_id) == expected
