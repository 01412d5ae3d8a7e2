"""What a model was given in one Step, put together again from the record. No file, no trio."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from attrs import frozen

from actors import strict_json
from actors.codec import payload_value
from actors.errors import StoreError
from actors.events import HistoryRef, ModelRequestRecorded
from actors.history import HistoryHash, messages_entering
from actors.providers.chat_request import request_body
from actors.routes import ModelRequest
from actors.values import message_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from actors.snapshot import Snapshot
    from actors.values import Message

OPENAI_PROVIDER = "openai"
"""The provider of the routes whose requests go over HTTP, as Chat Completions."""

_step_id = re.compile(r"turn-[1-9][0-9]*/step-[1-9][0-9]*")


def is_step_id(text: str) -> bool:
    """Tell whether ``text`` as a whole looks like a Step's id, of whichever session."""
    return _step_id.fullmatch(text) is not None


@frozen
class RecordedRequest:
    """A request and the messages that it named or held."""

    event: ModelRequestRecorded
    messages: tuple[Message, ...]


def find_request(snapshot: Snapshot, step_id: str, path: Path | None = None) -> RecordedRequest:
    """Return the request of a Step with its messages; ``path`` is named in a failure.

    Raises:
        StoreError: there is no such Step, or the history is not the one that it names.
    """
    for event in _requests(snapshot):
        if event.step_id == step_id:
            return RecordedRequest(event, _messages(snapshot, event, path))
    raise StoreError(_missing(snapshot, step_id), path)


def request_document(request: RecordedRequest) -> Iterator[str]:
    """Yield a request in pieces of one compact JSON document.

    ``sent`` in it, where the model is behind a provider, is the body of the HTTP request.
    """
    payload = payload_value(request.event)
    head = ("step_id", "turn_id", "route", "system_prompt", "tools")
    # The messages apart: together they may be longer than any one JSON text may be.
    yield strict_json.dumps({name: payload[name] for name in head})[:-1] + ',"messages":['
    for index, message in enumerate(request.messages):
        yield ("," if index else "") + message_json(message)
    yield "]"
    event = request.event
    if event.route.provider == OPENAI_PROVIDER:
        # Which differs: the system prompt is a message, user messages in a row are one.
        asked = ModelRequest(
            event.route, event.system_prompt, event.tools, request.messages, 0, event.step_id
        )
        yield f',"sent":{request_body(asked, event.route.model).decode()}'
    yield "}\n"


def _requests(snapshot: Snapshot) -> Iterator[ModelRequestRecorded]:
    for envelope in snapshot:
        if type(envelope.event) is ModelRequestRecorded:
            yield envelope.event


def _messages(
    snapshot: Snapshot, event: ModelRequestRecorded, path: Path | None
) -> tuple[Message, ...]:
    ref = event.messages
    if not isinstance(ref, HistoryRef):
        return ref.messages
    messages: list[Message] = []
    history_hash = HistoryHash()
    for envelope in islice(snapshot, ref.through):
        for message in messages_entering(envelope.event):
            messages.append(message)
            history_hash = history_hash.followed_by(message)
    if history_hash.hexdigest() != ref.sha256:  # loading saw to it; what is printed is held to it
        raise StoreError(
            f"session {snapshot.session_id}: the sha256 of {event.step_id} is not of the history "
            f"at {ref.through}",
            path,
        )
    return tuple(messages)


def _missing(snapshot: Snapshot, step_id: str) -> str:
    """Return that there is no such Step, and which there are: of its Turn, or of the session."""
    there = [event.step_id for event in _requests(snapshot)]
    turn_id, _, _ = step_id.partition("/")
    of_turn = [each for each in there if each.startswith(f"{turn_id}/")]
    scope, steps = (turn_id, of_turn) if of_turn else ("it", there)
    match steps:
        case []:
            held = f"{scope} has no step"
        case [only]:
            held = f"{scope} has one, {only}"
        case _:
            held = f"{scope} has {len(steps)}, {steps[0]} to {steps[-1]}"
    return f"session {snapshot.session_id} has no {step_id}; {held}"
