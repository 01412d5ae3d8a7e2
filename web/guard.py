"""Around the whole application: who may ask at all, and how every answer leaves.

The API has no password, and browsers let any page send requests to 127.0.0.1. What tells a
page's request from an honest one is what the page cannot forge: the Host header (a name that
was rebound to this address is still another name), Origin, and Sec-Fetch-Site.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import structlog
import trio

from web.problems import PROBLEM_TYPE, problem_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Scope = dict[str, Any]
    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = structlog.get_logger()

SECURITY_HEADERS = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


class Gate:
    """Counts what is owed an answer, and says when nothing more is answered but a refusal."""

    def __init__(self) -> None:
        self.closing = trio.Event()
        """Set when the listener is about to go: requests still unanswered are refused."""
        self._owed_n = 0
        self._none_owed = trio.Event()
        self._none_owed.set()

    def owe(self) -> None:
        """Count a request that has come in whole."""
        self._owed_n += 1
        if self._none_owed.is_set():
            self._none_owed = trio.Event()

    def answered(self) -> None:
        """Count its answer as gone."""
        self._owed_n -= 1
        if self._owed_n == 0:
            self._none_owed.set()

    async def wait_until_answered(self) -> None:
        """Wait until every request that came in whole has its answer."""
        await self._none_owed.wait()


class Guard:
    """The application that the server runs: the one it is given, behind the checks above."""

    def __init__(self, application: Application, host: str, gate: Gate) -> None:
        self._application = application
        self._host = host.lower()
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            await _Exchange(self._application, self._gate, send, receive).run(
                scope, refusal(scope, self._host)
            )
        else:
            await send({"type": "websocket.close", "code": 1008})


class _Exchange:
    """One request and its answer."""

    def __init__(self, application: Application, gate: Gate, send: Send, receive: Receive) -> None:
        self._application = application
        self._gate = gate
        self._send_on = send
        self._receive_from = receive
        self._began = False
        self._is_owed = False

    async def run(self, scope: Scope, refused: tuple[str, str] | None) -> None:
        try:
            if refused is not None:
                await self._answer(403, *refused)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse_at_closing, nursery.cancel_scope)
                await self._run_application(scope)
                nursery.cancel_scope.cancel()
        finally:
            if self._is_owed:
                self._gate.answered()

    async def _run_application(self, scope: Scope) -> None:
        try:
            await self._application(scope, self._receive, self._send)
        except Exception:  # noqa: BLE001 # whatever it is, its caller gets an answer
            _log.exception("request failed", path=scope["path"])
            if not self._began:
                await self._answer(500, "internal_error", "an error that should not happen")

    async def _refuse_at_closing(self, exchange: trio.CancelScope) -> None:
        await self._gate.closing.wait()
        if not self._began:
            await self._answer(503, "shutting_down", "the host is stopping")
            exchange.cancel()

    async def _receive(self) -> Message:
        message = await self._receive_from()
        is_whole = message["type"] == "http.request" and not message.get("more_body", False)
        if is_whole and not self._is_owed:
            self._is_owed = True
            self._gate.owe()
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._began = True
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        # Shielded: the framework cancels itself once it has handed over the last piece, and
        # a cancelled last piece leaves the connection open until the server gives up on it.
        with trio.CancelScope(shield=True):
            await self._send_on(message)

    async def _answer(self, status: int, code: str, detail: str) -> None:
        body = problem_body(status, code, detail)
        headers = [
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def refusal(scope: Scope, host: str) -> tuple[str, str] | None:
    """Return the code and detail with which a request is refused, None if it is welcome."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    hosts = _values(headers, b"host")
    if len(hosts) != 1 or not is_local(hosts[0], host):
        return "forbidden_host", "the Host header must name this machine's loopback address"
    for origin in _values(headers, b"origin"):
        if origin.lower() != f"http://{hosts[0].lower()}":
            return "forbidden_origin", "pages of other origins may not ask"
    if b"cross-site" in [value for name, value in headers if name.lower() == b"sec-fetch-site"]:
        navigates = _values(headers, b"sec-fetch-mode") == ["navigate"]
        if not (navigates and scope["method"] in {"GET", "HEAD"} and scope["path"] == "/"):
            return "cross_site", "pages of other sites may only link to /"
    return None


def is_local(host_header: str, host: str) -> bool:
    """Tell whether a Host header names this machine; its port is not compared.

    A forwarded port has another number and is fine; it is the name that a page cannot choose.
    """
    name, bracket, port = host_header.lower().rpartition("]")
    if bracket:
        name = name.removeprefix("[")
    else:
        name, _, port = host_header.lower().partition(":")
        port = f":{port}" if port else ""
    if port and not (port.startswith(":") and port[1:].isascii() and port[1:].isdigit()):
        return False
    if name in {"localhost", host}:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key.lower() == name]
