"""Around the whole application: who may ask at all, and that every request has one answer.

The API has no password, and browsers let any page send requests to 127.0.0.1. What tells a
page's request from an honest one is what the page cannot forge: the Host header (a name that
was rebound to this address is still another name), Origin, and Sec-Fetch-Site.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
"""What every answer carries. The server adds them, to those that it makes by itself as well."""

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")


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
            exchange = _Exchange(self._application, self._gate, scope, receive, send)
            await exchange.run(refusal(scope, self._host))
        else:
            await _refuse_websocket(refusal(scope, self._host), send)


async def _refuse_websocket(refused: tuple[str, str] | None, send: Send) -> None:
    if refused is None:
        start, body = _problem_messages(404, "not_found", "nothing here speaks WebSocket")
    else:
        start, body = _problem_messages(403, *refused)
    await send({**start, "type": "websocket.http.response.start"})
    await send({**body, "type": "websocket.http.response.body"})


class _Exchange:
    """One request and its one answer."""

    def __init__(
        self, application: Application, gate: Gate, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._application = application
        self._gate = gate
        self._scope = scope
        self._receive_from = receive
        self._send_on = send
        self._began = False
        self._is_refused = False
        self._is_whole = False

    async def run(self, refused: tuple[str, str] | None) -> None:
        try:
            if refused is not None:
                await self._answer(403, *refused)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse_at_closing, nursery.cancel_scope)
                await self._run_application()
                nursery.cancel_scope.cancel()  # a refusal on its way is shielded
        finally:
            if self._is_whole:
                self._gate.answered()

    async def _run_application(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._send_for_application)
        except Exception:  # noqa: BLE001 # whatever it is, its caller gets an answer
            # As it was sent: decoded, a path could hold what moves a terminal's cursor.
            _log.exception("request failed", path=self._scope["raw_path"].decode("latin-1"))
            if not self._began:
                await self._answer(500, "internal_error", "an error that should not happen")

    async def _refuse_at_closing(self, exchange: trio.CancelScope) -> None:
        await self._gate.closing.wait()
        if not self._began:
            self._is_refused = True
            await self._answer(503, "shutting_down", "the host is stopping")
            exchange.cancel()

    async def _receive(self) -> Message:
        message = await self._receive_from()
        is_last = message["type"] == "http.request" and not message.get("more_body", False)
        if is_last and not self._is_whole:
            self._is_whole = True
            self._gate.owe()
        return message

    async def _send_for_application(self, message: Message) -> None:
        if self._is_refused:
            await trio.sleep_forever()  # cancelled as soon as the refusal is out
        await self._send(message)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._began = True
            if self._leaves_body_unread():
                # The server closes then. Unless it is told, a client sends its next request
                # into a connection that is going down.
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        # Shielded: the framework cancels itself once it has handed over the last piece, and
        # a cancelled last piece leaves the connection open until the server gives up on it.
        with trio.CancelScope(shield=True):
            await self._send_on(message)

    def _leaves_body_unread(self) -> bool:
        if self._is_whole or not self._scope["http_version"].startswith("1"):
            return False  # HTTP/2 ends a stream, and has no such header
        names = {name.lower() for name, _ in self._scope["headers"]}
        return not names.isdisjoint({b"content-length", b"transfer-encoding"})

    async def _answer(self, status: int, code: str, detail: str) -> None:
        for message in _problem_messages(status, code, detail):
            await self._send(message)


def _problem_messages(status: int, code: str, detail: str) -> tuple[Message, Message]:
    body = problem_body(status, code, detail)
    headers = [
        (b"content-type", PROBLEM_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    return (
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


def refusal(scope: Scope, host: str) -> tuple[str, str] | None:
    """Return the code and detail with which a request is refused, None if it is welcome."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    hosts = _values(headers, b"host")
    named = [*hosts, *_target_hosts(scope["path"])]
    if len(hosts) != 1 or not all(is_local(each, host) for each in named):
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
    match = _HOST.fullmatch(host_header.lower())
    if match is None:
        return False
    if match["name"] in {"localhost", host}:
        return True
    try:
        address = ipaddress.ip_address(match["ipv6"] or match["name"])
    except ValueError:
        return False
    return address.is_loopback and (address.version == 6) == (match["ipv6"] is not None)  # IPv6


def _target_hosts(path: str) -> list[str]:
    """Return the host that a request target names itself, which outranks Host (RFC 9112, 3.2.2)."""
    if path.startswith("/") or path == "*":
        return []
    try:
        return [urlsplit(path).netloc]
    except ValueError:
        return [""]  # no host at all: refused as such


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key.lower() == name]
