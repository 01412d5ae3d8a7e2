"""A session behind a real listener, in this process, for tests that speak HTTP to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import httpx
import trio
from attrs import frozen

from actors.agent import Agent
from actors.invocations import Invocations, open_invocations
from actors.kernel.runtime import RuntimeView
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.routes import Chunk, ModelResponse, RouteTable
from actors.session_log import open_session_log
from actors.tasks import running_beside
from actors.validation import document_fault
from actors.values import AssistantMessage, Json, Route
from web.app import create_app
from web.guard import Gate, Guard
from web.server import bind_listener, serve, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from actors.routes import ModelOutput, ModelRequest
    from actors.session_log import SessionLog
    from web.guard import Application

HELD = Route("held", "held")
INVOCATIONS = "/api/v1/agent/invocations"


class HeldAdapter:
    """Answers when the test lets it: says when it was asked, then waits."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.go_on = trio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        """Yield a chunk, wait to be let on, then answer."""
        yield Chunk(Json.of({"n": request.turn_n}))
        self.asked.set()
        await self.go_on.wait()
        yield ModelResponse(AssistantMessage("held no more"), "stop")


@frozen
class Served:
    """A Host's inside and a client of it."""

    client: httpx.AsyncClient
    log: SessionLog
    invocations: Invocations
    held: HeldAdapter
    gate: Gate
    port: int

    async def invoke(self, invocation_id: str, body: object) -> httpx.Response:
        """POST an invocation."""
        return await self.client.post(f"{INVOCATIONS}/{invocation_id}", json=body)

    async def say(self, request: bytes) -> bytes:
        """Send raw bytes on a connection of their own, and return all that comes back."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(request)
            return b"".join([piece async for piece in stream])


@asynccontextmanager
async def served(
    database: Path | None = None, body_timeout_s: float = 30
) -> AsyncGenerator[Served, None]:
    """Serve a session on a port of the system's choice, within a bounded time."""
    held, gate = HeldAdapter(), Gate()
    routes = RouteTable(ECHO_ROUTE, {ECHO_ROUTE: EchoAdapter(), HELD: held})
    with trio.fail_after(60), bind_listener("127.0.0.1", 0) as listener:
        async with (
            open_session_log("default", database) as log,
            open_invocations(log, Agent(log, routes)) as invocations,
        ):
            app = cast(
                "Application", create_app(log, invocations, _nothing_mounted, body_timeout_s)
            )
            serving = partial(serve, Guard(app, "127.0.0.1", gate), listener, gate.closing)
            async with (
                running_beside(serving, gate.closing.set),
                httpx.AsyncClient(base_url=url_of(listener), timeout=60) as client,
            ):
                port: int = listener.getsockname()[1]
                yield Served(client, log, invocations, held, gate, port)


def _nothing_mounted() -> RuntimeView:
    return RuntimeView((), ())


def assert_problem(response: httpx.Response, status: int, code: str) -> None:
    """Check that a response is the problem it should be, in form, too."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert document_fault("problem", body) is None
    assert (body["status"], body["code"]) == (status, code)
