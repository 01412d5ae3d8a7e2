"""Model providers on real sockets: one that plays bytes as told, one as strict as the real ones.

Both run in the test's own event loop and can be reached from other processes by their URL.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import trio
from attrs import define, field, frozen
from chat_rules import body_faults

from actors.tasks import running_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator

    from agent_support import Gate

MAX_HEAD_BYTES = 65_536


@frozen
class Received:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Play(Enum):
    """What a script can do beside sending bytes and waiting at a gate."""

    RESET = "abort the connection"
    HOLD = "stay silent until the client hangs up"


Part: TypeAlias = "bytes | Play | Gate"
"""A script ends with the connection closed in good order, unless it was aborted before."""


# --- bytes on the wire ------------------------------------------------------------------------


def head(status: str = "200 OK", content_type: str = "text/event-stream", *more: str) -> bytes:
    """Return a response's head; its body ends with the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", "Connection: close", *more]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def sse(*data: object) -> bytes:
    """Return events, each with a JSON value, or with text or bytes as they are."""
    return b"".join(b"data: " + _data(each) + b"\n\n" for each in data)


def _data(data: object) -> bytes:
    if isinstance(data, bytes):
        return data
    return (data if isinstance(data, str) else json.dumps(data)).encode()


def delta(finish_reason: str | None = None, **members: object) -> dict[str, Any]:
    """Return a chunk that says what ``members`` say."""
    choice = {"index": 0, "delta": members, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def call_delta(**fragment: object) -> dict[str, Any]:
    """Return a chunk with one tool call fragment: ``name`` and ``arguments`` of a function."""
    return delta(tool_calls=[call_fragment(**fragment)])


def call_fragment(**fragment: object) -> dict[str, Any]:
    function = {name: fragment.pop(name) for name in ("name", "arguments") if name in fragment}
    return {**fragment, "function": function}


def usage(input_n: int, output_n: int) -> dict[str, Any]:
    """Return the chunk with which a stream ends that was asked to count."""
    counted = {"prompt_tokens": input_n, "completion_tokens": output_n}
    return {"object": "chat.completion.chunk", "choices": [], "usage": counted}


# --- a server that plays bytes ----------------------------------------------------------------


@define(eq=False)
class Played:
    """A server that plays a script to each connection, and what it was sent."""

    url: str
    requests: list[Received] = field(factory=list[Received])
    hung_up: trio.Event = field(factory=trio.Event)
    """Set once a client hung up on a script that held."""


@asynccontextmanager
async def playing(*parts: Part) -> AsyncGenerator[Played, None]:
    """Serve the same script to every connection, on a port of the system's choice."""

    async def play(request: Received, stream: trio.SocketStream) -> None:
        played.requests.append(request)
        for part in parts:
            await _play(part, stream, played.hung_up)

    async with _serving(play) as port:
        played = Played(f"http://127.0.0.1:{port}/v1")
        yield played


async def _play(part: Part, stream: trio.SocketStream, hung_up: trio.Event) -> None:
    if isinstance(part, bytes):
        await stream.send_all(part)
    elif part is Play.HOLD:
        await _until_hung_up(stream)
        hung_up.set()
    elif part is Play.RESET:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        part.reached.set()
        await part.go.wait()


async def _until_hung_up(stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        return


@asynccontextmanager
async def _serving(
    play: Callable[[Received, trio.SocketStream], Awaitable[None]],
) -> AsyncGenerator[int, None]:
    """Call ``play`` with the one request of every connection; yield the port."""

    async def connection(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                request = await _receive(stream)
                if request is not None:
                    await play(request, stream)
            except trio.BrokenResourceError:
                return  # the client is gone: it may go at any time

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            await trio.serve_listeners(connection, [listener])

    async with running_beside(serve, scope.cancel):
        yield port


async def _receive(stream: trio.SocketStream) -> Received | None:
    """Return a request with a length, None if the client left before it was whole."""
    received = b""
    while b"\r\n\r\n" not in received and len(received) < MAX_HEAD_BYTES:
        piece = await stream.receive_some()
        if not piece:
            return None
        received += piece
    top, _, body = received.partition(b"\r\n\r\n")
    line, *fields = top.decode("latin-1").split("\r\n")
    pairs = (each.split(":", 1) for each in fields)
    headers = {name.lower(): value.strip() for name, value in pairs}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        piece = await stream.receive_some()
        if not piece:
            return None
        body += piece
    return Received(line, headers, body)


# --- a server that is strict ------------------------------------------------------------------


@frozen
class Wants:
    """A tool call that the model makes. Without an id it is given one that is new."""

    name: str
    arguments: str = "{}"
    id: str | None = None


@frozen
class Says:
    """An answer: text, tool calls, or both. At ``gate`` it stops, half of it sent."""

    text: str = ""
    calls: tuple[Wants, ...] = ()
    gate: Gate | None = None
    finish_reason: str | None = None
    """None for ``stop`` or ``tool_calls``, as it fits."""


@frozen
class Refuses:
    """An answer that is an HTTP error with a message."""

    status: str = "500 Internal Server Error"
    message: str = "the model is out of order"


Scripted: TypeAlias = Says | Refuses


@define(eq=False)
class StrictProvider:
    """A provider that holds each request to the rules of Chat Completions."""

    url: str
    script: Iterator[Scripted]
    key: str | None = None
    requests: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    """The bodies of all requests, refused ones included."""
    complaints: list[str] = field(factory=list[str])
    """Why requests were refused: empty at the end of a good test."""
    _calls_n: int = 0

    async def play(self, request: Received, stream: trio.SocketStream) -> None:
        """Answer a request by the script, or with 400 and a complaint."""
        status, faults = "400 Bad Request", _http_faults(request)
        shown = request.headers.get("authorization")
        if not faults and self.key is not None and shown != f"Bearer {self.key}":
            status, faults = "401 Unauthorized", ["the key is not the one expected"]
        if not faults:
            self.requests.append(request.json())
            faults = body_faults(request.json())
        answer = None if faults else next(self.script, None)
        if not faults and answer is None:
            status, faults = "500 Internal Server Error", ["asked more often than scripted"]
        if answer is None:
            self.complaints.extend(faults)
            answer = Refuses(status, "; ".join(faults))
        if isinstance(answer, Refuses):
            body = json.dumps({"error": {"message": answer.message, "type": "error"}}).encode()
            await stream.send_all(head(answer.status, "application/json") + body)
            return
        first, rest = self._pieces(answer)
        await stream.send_all(head() + sse(*first))
        if answer.gate is not None:
            answer.gate.reached.set()
            await answer.gate.go.wait()
        await stream.send_all(sse(*rest, "[DONE]"))

    def _pieces(self, answer: Says) -> tuple[list[object], list[object]]:
        """Return the answer's chunks in two halves, as a provider would cut them."""
        chunks: list[object] = [delta(role="assistant", content="" if answer.text else None)]
        chunks += [delta(content=piece) for piece in _cut(answer.text)]
        for index, call in enumerate(answer.calls):
            self._calls_n += 1
            call_id = call.id or f"call_{self._calls_n:08}"
            begun = {"index": index, "id": call_id, "type": "function", "name": call.name}
            chunks.append(call_delta(**begun, arguments=""))
            chunks += [call_delta(index=index, arguments=piece) for piece in _cut(call.arguments)]
        half_n = (len(chunks) + 1) // 2
        reason = answer.finish_reason or ("tool_calls" if answer.calls else "stop")
        end: list[object] = [delta(reason), usage(7, len(chunks))]
        return chunks[:half_n], [*chunks[half_n:], *end]


def _cut(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


@asynccontextmanager
async def strict_provider(
    script: Iterable[Scripted], key: str | None = None
) -> AsyncGenerator[StrictProvider, None]:
    """Serve a strict provider that gives one answer of the script to each good request.

    A script may be endless. With a ``key``, requests must show it.
    """

    async def play(request: Received, stream: trio.SocketStream) -> None:
        await provider.play(request, stream)

    async with _serving(play) as port:
        provider = StrictProvider(f"http://127.0.0.1:{port}/v1", iter(script), key)
        yield provider


def _http_faults(request: Received) -> list[str]:
    """Return what is wrong with a request before its body is looked into."""
    if request.line != "POST /v1/chat/completions HTTP/1.1":
        return [f"not a request for a completion: {request.line}"]
    if request.headers.get("content-type") != "application/json":
        return ["the body is not announced as JSON"]
    try:
        request.json()
    except ValueError:
        return ["the body is not JSON"]
    return []
