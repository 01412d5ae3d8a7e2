"""Asking an OpenAI-compatible provider, on a real socket or on none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import trio
from provider_server import (
    Part,
    head,
    playing,
    sse,
)

from actors.providers.openai_compatible import OpenAICompatibleAdapter, open_adapter
from actors.routes import Chunk, ModelFailure, ModelRequest, ModelResponse
from actors.values import (
    Json,
    Message,
    Route,
    ToolSpec,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.routes import ModelOutput

KEY = "sk-0123456789abcdef-XYZ"
SHORT_KEY = "hunter2"
TIMEOUT_S = 30
TOOL = ToolSpec("look", "Looks.", Json.of({"type": "object", "properties": {"q": {}}}))


def asking(*messages: Message, system: str = "", tools: tuple[ToolSpec, ...] = ()) -> ModelRequest:
    route = Route("openai", "m")
    said = messages or (UserMessage("hello"),)
    return ModelRequest(route, system, tools, said, 1, "turn-1/step-1")


async def outputs_from(url: str, request: ModelRequest | None = None, **options: Any) -> list[Any]:
    """Return all that an adapter at ``url`` yields, and check its form."""
    with trio.fail_after(TIMEOUT_S):
        async with open_adapter(url, "m", **options) as adapter:
            outputs: list[ModelOutput] = [
                output async for output in adapter.stream(request or asking())
            ]
    assert all(isinstance(output, Chunk) for output in outputs[:-1])
    assert isinstance(outputs[-1], ModelResponse | ModelFailure)
    return outputs


async def outcome_of(*parts: Part, **options: Any) -> ModelResponse | ModelFailure:
    """Return the response or failure that a script comes to."""
    async with playing(*parts) as server:
        return (await outputs_from(server.url, **options))[-1]


async def response_to(*data: object) -> ModelResponse:
    """Return the response to a stream of chunks that ends as it should."""
    response = await outcome_of(head(), sse(*data, "[DONE]"))
    assert isinstance(response, ModelResponse), response
    return response


async def failure_of(*parts: Part, **options: Any) -> ModelFailure:
    failure = await outcome_of(*parts, **options)
    assert isinstance(failure, ModelFailure), failure
    return failure


async def outputs_of_pieces(pieces: list[bytes], key: str | None = None) -> list[ModelOutput]:
    """Return what comes of a stream that is received in exactly these pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return await outputs_of_response(200, body(), key=key)


async def outputs_of_response(
    status: int, body: AsyncIterator[bytes], **options: Any
) -> list[ModelOutput]:
    """Return what comes of a response that no socket carried."""

    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"Content-Type": "text/event-stream"}, content=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        adapter = OpenAICompatibleAdapter("http://nobody", "m", client, **options)
        return [output async for output in adapter.stream(asking())]


def calls_in(response: ModelResponse) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in response.message.tool_calls]
