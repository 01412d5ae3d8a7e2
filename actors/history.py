"""The model history: the messages that a session's events add up to, and their running hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from actors.events import AssistantMessageCommitted, ToolExecutionCompleted, UserInputAccepted
from actors.strict_json import quote
from actors.values import ToolMessage, message_json

if TYPE_CHECKING:
    from actors.events import Event
    from actors.values import ErrorInfo, Json, Message


def messages_entering(event: Event) -> tuple[Message, ...]:
    """Return the messages that ``event`` adds to the end of the model history, often none.

    Total over the seven events, and a function of the event alone: the history of a session is
    the concatenation over its events.
    """
    if type(event) is UserInputAccepted:
        return event.messages
    if type(event) is AssistantMessageCommitted:
        # Providers refuse an assistant message with neither text nor calls.
        return (event.message,) if event.message.content or event.message.tool_calls else ()
    if type(event) is ToolExecutionCompleted:
        return (ToolMessage(_tool_content(event), event.call_id),)
    return ()


def _tool_content(event: ToolExecutionCompleted) -> str:
    if event.error is not None:
        return error_content(event.error)
    assert event.result is not None  # the constructor saw to it
    return result_content(event.result)


def error_content(error: ErrorInfo) -> str:
    """Return what the model reads where a tool call has an error for its answer."""
    return f'{{"error":{{"code":{quote(error.code)},"message":{quote(error.message)}}}}}'


def result_content(result: Json) -> str:
    """Return what the model reads of a result: a string itself, anything else as its JSON."""
    if result.text.startswith('"'):
        text = result.value()
        assert isinstance(text, str)
        return text
    return result.text


class HistoryHash:
    """SHA-256 over a growing list of messages, as if over the JSON text of the whole list.

    The text is ``[``, the messages' JSON joined by ``,``, and ``]``. Immutable: whoever holds
    one keeps the hash of the list as it was.
    """

    __slots__ = ("_hash", "_joint")

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"[")
        self._joint = b""

    def followed_by(self, message: Message) -> HistoryHash:
        """Return the hash of the list with ``message`` at its end."""
        longer = HistoryHash()
        longer._hash = self._hash.copy()
        longer._hash.update(self._joint + message_json(message).encode())
        longer._joint = b","
        return longer

    def hexdigest(self) -> str:
        """Return the list's digest in hex."""
        closed = self._hash.copy()
        closed.update(b"]")
        return closed.hexdigest()
