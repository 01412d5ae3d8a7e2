"""The built-in model that says what it heard: keyless, deterministic, streaming."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import trio

from actors.routes import Chunk, ModelResponse
from actors.values import AssistantMessage, Json, Route, UserMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from actors.routes import ModelOutput, ModelRequest
    from actors.strict_json import JsonValue

ECHO_ROUTE = Route("echo", "echo")

_word = re.compile(r"\s*\S+\s*|\s+")


class EchoAdapter:
    """Repeats the last user message and says which Turn of the session it is answering."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """Yield the answer word by word, each in a chunk, then the whole of it.

        The chunks joined are the answer to the last character. A checkpoint before each.
        """
        text = f"[turn {request.turn_n}] you said: {_last_user_text(request)}"
        for word in _word.findall(text):
            await trio.lowlevel.checkpoint()
            yield Chunk(Json.of(_delta({"content": word}, None)))
        await trio.lowlevel.checkpoint()
        yield Chunk(Json.of(_delta({}, "stop")))
        yield ModelResponse(AssistantMessage(text), "stop")


def _last_user_text(request: ModelRequest) -> str:
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            return message.content
    return ""


def _delta(delta: dict[str, JsonValue], finish_reason: str | None) -> dict[str, JsonValue]:
    """Return a chunk in the shape of the Chat Completions stream, so that readers know one."""
    return {
        "object": "chat.completion.chunk",
        "model": ECHO_ROUTE.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
