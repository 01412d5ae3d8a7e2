"""The model that plays a recorded session again: keyless, deterministic, without a network.

A script is a session as ``sessiond export`` writes it, one envelope a line. It is read as a
stored session is: strict JSON, schemas, rules. What is played is the model's part alone; the
user's and the tools' parts are the present session's own, and where they lead away from the
recording there is nothing left to play.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from functools import partial
from itertools import islice, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import trio
from attrs import field, frozen

from actors import strict_json
from actors.codec import FORMAT_VERSION, row_digest
from actors.errors import ConfigurationError, NotStrictJson, RejectedEvent, UnsoundSession
from actors.events import (
    AssistantMessageCommitted,
    InlineMessages,
    ModelChunkRecorded,
    ModelRequestRecorded,
    StepFailed,
)
from actors.history import messages_entering
from actors.replay import replay_rows
from actors.routes import Chunk, ModelFailure, ModelResponse
from actors.rows import Row
from actors.snapshot import Timeline
from actors.validation import document_fault
from actors.values import IDENTIFIER_PATTERN, Route, ToolMessage, message_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from actors.routes import ModelOutput, ModelRequest
    from actors.snapshot import Snapshot
    from actors.values import Json, Message

SCRIPTED_ROUTE = Route("scripted", "replay")

LINE_BYTES = strict_json.MAX_BYTES + 1024
"""The longest line of a script: the longest payload, and what an envelope has around it."""
_FAULT_LENGTH = 500
_EXCERPT_LENGTH = 120
_LEAD_LENGTH = 40
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# How an exported line begins. Its payload can be taken out as it stands, and so may be as deep
# and as long as a stored one.
_head = re.compile(
    rf'{{"session_id":"({IDENTIFIER_PATTERN})","sequence":([1-9][0-9]{{0,17}}),'
    r'"recorded_at":"([^"\\]*)","type":"([a-z_]+)","payload":'
)
_scan = json.JSONDecoder().raw_decode


# --- a script ---------------------------------------------------------------------------------


@frozen
class ScriptedStep:
    """What a recording has of one Step."""

    request: ModelRequestRecorded
    history_n: int
    """How many messages the model history had."""
    chunks: tuple[Json, ...]
    """All that were recorded under the Step's id, whenever that was."""
    end: AssistantMessageCommitted | StepFailed | None
    """The first of the two; None where the recording ends before either."""


def _frozen_copy(steps: Mapping[str, ScriptedStep]) -> Mapping[str, ScriptedStep]:
    return MappingProxyType(dict(steps))


@frozen(eq=False)
class Script:
    """A recorded session and its Steps by their ids, in their order. Made by :func:`script_of`."""

    snapshot: Snapshot
    history: tuple[Message, ...]
    """The model history at the recording's end; that of each Step is a part from its start."""
    steps: Mapping[str, ScriptedStep] = field(converter=_frozen_copy)

    def messages(self, step: ScriptedStep) -> Iterator[Message]:
        """Yield the messages that the model was given in a Step, oldest first."""
        given = step.request.messages
        if isinstance(given, InlineMessages):
            return iter(given.messages)
        # No message comes between a request and the sequence that it names.
        return islice(self.history, step.history_n)


def script_of(snapshot: Snapshot) -> Script:
    """Return a session as a script, which shares the session's messages and copies none."""
    requests: dict[str, tuple[ModelRequestRecorded, int]] = {}
    chunks: defaultdict[str, list[Json]] = defaultdict(list)
    ends: dict[str, AssistantMessageCommitted | StepFailed] = {}
    history_n = 0
    for envelope in snapshot:
        event = envelope.event
        history_n += len(messages_entering(event))
        if type(event) is ModelRequestRecorded:
            requests[event.step_id] = event, history_n
        elif type(event) is ModelChunkRecorded:
            chunks[event.step_id].append(event.chunk)
        elif type(event) is AssistantMessageCommitted or type(event) is StepFailed:
            ends.setdefault(event.step_id, event)
    steps = {
        step_id: ScriptedStep(request, at, tuple(chunks[step_id]), ends.get(step_id))
        for step_id, (request, at) in requests.items()
    }
    return Script(snapshot, snapshot.model_history(), steps)


# --- reading one ------------------------------------------------------------------------------


def load_script(path: Path) -> Script:
    """Read a script from a JSON Lines file, a line at a time, checking all of it.

    A line may end with CRLF, and the last one without any line end. A byte order mark and empty
    lines are refused. A line that is written otherwise than an export writes it (blanks, another
    order of keys) is held to the limits of strict JSON as a whole, not just in its payload.

    Raises:
        ConfigurationError: the file cannot be read, or is no sound session; it names the file,
            the line and the fault.
    """
    try:
        with path.open("rb") as file:
            timeline = _replayed(file, path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if timeline is None:
        raise ConfigurationError(f"{path}, line 1: there is no event, the file is empty")
    return script_of(timeline.snapshot())


def _replayed(file: BinaryIO, path: Path) -> Timeline | None:
    timeline: Timeline | None = None
    lines = iter(partial(file.readline, LINE_BYTES + 1), b"")
    for line_n, line in enumerate(lines, 1):
        try:
            timeline = _followed(timeline, _text(line, line_n), path)
        except (RejectedEvent, UnsoundSession) as error:
            raise ConfigurationError(
                f"{path}, line {line_n}: {error.reason:.{_FAULT_LENGTH}}"
            ) from error
    return timeline


def _text(line: bytes, line_n: int) -> str:
    if len(line) > LINE_BYTES:
        raise RejectedEvent(f"is longer than {LINE_BYTES} bytes")
    if line_n == 1 and line.startswith(_BYTE_ORDER_MARK):
        raise RejectedEvent("begins with a byte order mark")
    try:
        text = line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise RejectedEvent("is not UTF-8 text") from error
    if not text or text.isspace():
        raise RejectedEvent("is empty")
    return text


def _followed(timeline: Timeline | None, text: str, path: Path) -> Timeline:
    """Take one line as the next event, by the same code that loads a stored session."""
    session_id, sequence, recorded_at, event_type, payload = _columns(text)
    if timeline is None:
        timeline = Timeline(session_id)
    elif session_id != timeline.session_id:
        raise RejectedEvent(
            f"belongs to session {session_id}, and what comes before to {timeline.session_id}"
        )
    # An export leaves the chain out; it follows from the rest, and is that of the session's file.
    digest = row_digest(
        timeline.last_digest, session_id, sequence, FORMAT_VERSION, recorded_at, event_type, payload
    )
    row = Row(session_id, sequence, FORMAT_VERSION, recorded_at, event_type, payload, digest)
    replay_rows(timeline, [row], path)
    return timeline


def _columns(text: str) -> tuple[str, int, str, str, str]:
    """Return an envelope's members, the payload as text that is yet to be checked."""
    head = _head.match(text)
    payload = None if head is None else _exported_payload(text, head.end())
    if head is not None and payload is not None:
        session_id, sequence, recorded_at, event_type = head.groups()
        return session_id, int(sequence), recorded_at, event_type, payload
    try:
        document = strict_json.loads(text)
    except NotStrictJson as error:
        raise RejectedEvent(str(error)) from error
    fault = document_fault("session-event", document)
    if fault is not None:
        raise RejectedEvent(fault)
    envelope = cast("dict[str, Any]", document)
    return (
        envelope["session_id"],
        int(envelope["sequence"]),
        envelope["recorded_at"],
        envelope["type"],
        strict_json.dumps(envelope["payload"]),
    )


def _exported_payload(text: str, start: int) -> str | None:
    """Return the payload that begins at ``start``; None if it is not the rest of an export."""
    try:
        _, end = _scan(text, start)
    except (ValueError, RecursionError):  # the strict parse of the whole line says what it is
        return None
    return text[start:end] if text[end:] == "}" else None


# --- playing it -------------------------------------------------------------------------------


@frozen(eq=False)
class ScriptedAdapter:
    """Answers each Step as the Step of the same id was answered when the script was recorded."""

    script: Script

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """Yield the Step's recorded chunks, then its recorded response or failure.

        Where the request is not the recorded one, there is no chunk but one ``provider_error``
        that says where the two part. Roles, users' and assistants' texts, tool calls and the ids
        of tool messages are compared. Not so what tools answered, nor prompt and tools: a clock
        tells another time. A checkpoint before each output.
        """
        departure = _departure(self.script, request)
        if departure is not None:
            await trio.lowlevel.checkpoint()
            yield ModelFailure("provider_error", departure)
            return
        step = self.script.steps[request.step_id]
        for chunk in step.chunks:
            await trio.lowlevel.checkpoint()
            yield Chunk(chunk)
        await trio.lowlevel.checkpoint()
        yield _end(step)


def _end(step: ScriptedStep) -> ModelResponse | ModelFailure:
    end = step.end
    if isinstance(end, AssistantMessageCommitted):
        return ModelResponse(end.message, end.finish_reason, end.usage)
    if end is None:
        why = "the recording ends there"
    elif end.code.startswith("provider_"):
        return ModelFailure(end.code, end.message)
    else:
        why = f"the recorded turn ended with {end.code:.80}: {end.message:.200}"
    return ModelFailure(
        "provider_error", f"the script has no answer for {step.request.step_id}: {why}"
    )


# --- where the request and the script part ------------------------------------------------------


def _departure(script: Script, request: ModelRequest) -> str | None:
    """Return where the request is not the recorded one; None where it is."""
    step = script.steps.get(request.step_id)
    if step is None:
        last = f"its last step is {[*script.steps][-1]}" if script.steps else "it has no step"
        return f"the script has no {request.step_id}: {last}"
    pairs = zip_longest(script.messages(step), request.messages)
    for message_n, (due, given) in enumerate(pairs, 1):
        if not _alike(due, given):
            due_text, given_text = _excerpts(_compared(due), _compared(given))
            return (
                f"message {message_n} of {request.step_id} departs from the script: "
                f"expected {due_text}, but {given_text} came"
            )
    return None


def _alike(due: Message | None, given: Message | None) -> bool:
    if isinstance(due, ToolMessage) and isinstance(given, ToolMessage):
        return due.tool_call_id == given.tool_call_id
    return due == given


def _compared(message: Message | None) -> str:
    """Return what is compared of a message, as text."""
    if message is None:
        return "no message"
    if isinstance(message, ToolMessage):
        return f'{{"role":"tool","tool_call_id":{strict_json.quote(message.tool_call_id)}}}'
    return message_json(message)


def _excerpts(first: str, second: str) -> tuple[str, str]:
    """Return both texts, long ones cut to the same place around their first difference."""
    start = 0
    if max(len(first), len(second)) > _EXCERPT_LENGTH:
        lengths = range(min(len(first), len(second)) + 1)
        alike_n = bisect_right(lengths, 0, key=lambda n: int(first[:n] != second[:n])) - 1
        start = max(0, alike_n - _LEAD_LENGTH)
    return _excerpt(first, start), _excerpt(second, start)


def _excerpt(text: str, start: int) -> str:
    end = start + _EXCERPT_LENGTH
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
