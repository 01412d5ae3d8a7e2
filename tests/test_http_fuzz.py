"""Every route under requests made from its own schema, from its neighbours', and from nonsense.

Whatever comes, each request has one answer with a known status and a body of a known schema, and
the Host serves the next one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import trio
from attrs import frozen
from h11 import CLIENT, NEED_DATA, Connection, Data, EndOfMessage, Request, Response
from http_support import served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import json_values

from actors.validation import document_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_support import Served

INVOCATIONS = "/api/v1/agent/invocations/"
SCHEMAS = {
    "GET /health": None,
    "GET /api/v1/runtime": "runtime-response",
    "GET /api/v1/sessions/": "session-response",
    f"POST {INVOCATIONS}": "invocation-result",
    f"GET {INVOCATIONS}": "invocation-state",
    f"DELETE {INVOCATIONS}": "invocation-state",
}
"""Routes by method and beginning of the path, with what a success is answered with."""
CODES = {
    400: {"not_json", "bad_request"},
    403: {"forbidden_host", "forbidden_origin", "cross_site"},
    404: {"not_found", "session_not_found", "invocation_not_found"},
    405: {"method_not_allowed"},
    408: {"body_timeout"},
    409: {"invocation_live", "invocation_settled", "cancelled"},
    413: {"body_too_large"},
    415: {"unsupported_media_type"},
    422: {"invalid_request", "invocation_mismatch"},
    503: {"route_unavailable"},
}
"""All that may go wrong here, where neither the disk nor a model does."""


@frozen
class Asked:
    """A request, as bytes can be made of it."""

    method: str
    target: bytes
    headers: tuple[tuple[str, bytes], ...]
    body: bytes
    announced_n: int
    """The Content-Length: where it is more than the body has, the rest never comes."""

    @property
    def raw(self) -> bytes:
        lines = [self.method.encode() + b" " + self.target + b" HTTP/1.1"]
        lines += [name.encode() + b": " + value for name, value in self.headers]
        lines += [b"Content-Length: %d" % self.announced_n, b"Connection: close"]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


segments = st.one_of(
    st.sampled_from(["default", "one", "two", "three", ".", "..", "x" * 129, "x" * 70_000, ""]),
    st.text(max_size=20).map(lambda text: quote(text, safe="")),
    st.binary(max_size=10).map(lambda raw: quote(raw, safe="")),
    st.sampled_from(["%2F", "a%2Fb", "%00", "a%00", "%ff%fe", "%", "%zz", "a b".replace(" ", "+")]),
)
paths = st.one_of(
    segments.map(INVOCATIONS.__add__),
    segments.map(INVOCATIONS.__add__),
    segments.map("/api/v1/sessions/".__add__),
    st.sampled_from(["/", "/health", "/api/v1/runtime", "/static/page.js", "/nope", "*", "//"]),
    segments.map("/".__add__),
)
queries = st.one_of(
    st.just(""),
    st.just(""),
    st.integers(-3, 10**30).map("?after={}".format),
    st.sampled_from(
        ["?after=", "?after=1&after=2", "?after=1e3", "?after=%00", "?after=٣", "?&&=&"]
    ),
)
requests_of_turns = st.fixed_dictionaries(
    {"input": st.text(max_size=30)},
    optional={
        "route": st.one_of(
            st.just({"provider": "echo", "model": "echo"}),
            st.just({"provider": "no", "model": "such"}),
            json_values,
        )
    },
)
bodies = st.one_of(
    requests_of_turns.map(json.dumps).map(str.encode),
    requests_of_turns.map(json.dumps).map(str.encode),
    json_values.map(json.dumps).map(str.encode),
    st.binary(max_size=50),
    st.sampled_from(
        [
            b"",
            b'{"input":"a","input":"b"}',
            b'{"input":NaN}',
            b'{"input":"\\ud800"}',
            b'{"input":"' + b"x" * 1_100_000 + b'"}',
            b"[" * 100_000,
            b'{"input":' + b"[" * 200 + b"]" * 200 + b"}",
            b'{"input":"' + b"\xff\xfe" + b'"}',
        ]
    ),
)
headers = st.tuples(
    st.sampled_from([b"127.0.0.1", b"localhost:1", b"127.0.0.1", b"evil.example", b"", b"[::1]"]),
    st.sampled_from([b"application/json", b"application/json", b"text/plain", b"\xff/\xff", b""]),
    st.sampled_from([None, None, None, b"http://127.0.0.1", b"null", b"http://evil.example"]),
    st.sampled_from([None, None, b"cross-site", b"same-origin"]),
)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Draw a request: mostly one that could be meant, now and then one that cannot."""
    host, content_type, origin, site = draw(headers)
    chosen = [("Host", host), ("Content-Type", content_type)]
    chosen += [("Origin", origin)] if origin is not None else []
    chosen += [("Sec-Fetch-Site", site)] if site is not None else []
    target = (draw(paths) + draw(queries)).encode("utf-8", "replace")
    body = draw(bodies)
    missing_n = draw(st.sampled_from([0, 0, 0, 0, 7]))
    method = draw(st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT", "OPTIONS", "TRACE"]))
    return Asked(method, target, tuple(chosen), body, len(body) + missing_n)


def parsed(request: Asked, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the one response that ``raw`` is."""
    connection = Connection(CLIENT)
    plain = [("Host", "x"), ("Content-Length", "0"), ("Connection", "close")]
    connection.send(Request(method=request.method, target="/", headers=plain))
    connection.send(EndOfMessage())
    connection.receive_data(raw)
    connection.receive_data(b"")
    head, body = None, b""
    while not isinstance(event := connection.next_event(), EndOfMessage):
        assert event is not NEED_DATA, raw[:200]
        if isinstance(event, Response):
            head = event
        elif isinstance(event, Data):
            body += bytes(event.data)
    assert head is not None
    assert not connection.trailing_data[0], "more than one answer"
    found = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    return head.status_code, found, body


def check(request: Asked, raw: bytes) -> None:
    """Check that an answer is one of those the documents name."""
    status, found, body = parsed(request, raw)
    assert found["x-content-type-options"] == "nosniff"
    assert b"Traceback" not in body
    if not found.get("content-type", "") and not body:
        assert status in {400, 431}  # the server's own: this was no HTTP
        return
    if status in CODES:
        if request.method != "HEAD":
            problem = json.loads(body)
            assert document_fault("problem", problem) is None
            assert problem["code"] in CODES[status], problem
        assert status != 405 or found["allow"]
        return
    assert status in {200, 202, 304}, (status, body[:200])
    place = f"{request.method} {request.target.decode('utf-8', 'replace')}"
    for beginning, schema in SCHEMAS.items():
        if place.startswith(beginning) and schema is not None:
            assert document_fault(schema, json.loads(body)) is None


async def ask_all(requests: Sequence[Asked]) -> None:
    async with served(body_timeout_s=0.05) as host:
        for request in requests:
            with trio.fail_after(30):
                check(request, await answer_of(host, request))
        assert (await host.client.get("/health")).json()["status"] == "ok"


async def answer_of(host: Served, request: Asked) -> bytes:
    """Return all that comes back for a request, also if not all of it could be sent."""
    stream = await trio.open_tcp_stream("127.0.0.1", host.port)
    received = b""
    async with stream, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                await stream.send_all(request.raw)
            except trio.BrokenResourceError:
                return  # it was answered before it was whole, and the rest is not wanted

        nursery.start_soon(send)
        try:
            async for piece in stream:
                received += piece
        except trio.BrokenResourceError:
            pass  # reset: what was not read of the request was still on its way
        nursery.cancel_scope.cancel()
    return received


@given(st.lists(asked(), min_size=1, max_size=8))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_request_has_one_good_answer(requests: list[Asked]) -> None:
    """No status, code or body that the documents do not name, no hang, no second answer."""
    trio.run(ask_all, requests)


@pytest.mark.stress
@pytest.mark.timeout(900)
@given(st.lists(asked(), min_size=1, max_size=8))
@settings(
    max_examples=3000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_one_of_very_many_requests_has_one_good_answer(requests: list[Asked]) -> None:
    """The same, in depth."""
    trio.run(ask_all, requests)


async def test_idle_connections_keep_nobody_out() -> None:
    """Two thousand connections that say nothing leave room for one that does."""
    async with served() as host, trio.open_nursery() as nursery:
        streams: list[Any] = []

        async def connect() -> None:
            for _ in range(100):
                stream = await trio.open_tcp_stream("127.0.0.1", host.port)
                streams.append(stream)

        async with trio.open_nursery() as connecting:
            for _ in range(20):
                connecting.start_soon(connect)
        assert len(streams) == 2000
        answer = await host.invoke("one", {"input": "hello"})
        assert answer.status_code == 200
        for stream in streams:
            nursery.start_soon(stream.aclose)
