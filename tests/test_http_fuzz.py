"""Every operation of the OpenAPI document under requests made from it, and from nonsense.

Whatever comes, each request has one answer, which the document describes (its status, headers and
body), and the Host serves the next one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest
import trio
from attrs import frozen
from h11 import CLIENT, NEED_DATA, Connection, Data, EndOfMessage, Request, Response
from http_support import served
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_support import (
    Operation,
    answer_fault,
    dereferenced,
    operation_of,
    operations,
    undocumented,
)
from strategies import json_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_support import Served

OPERATIONS = list(operations())
METHODS = sorted({operation.method for operation in OPERATIONS} | {"PUT", "PATCH", "TRACE"})
HAPPENS_ELSEWHERE = {500, 502, 504}
"""Statuses that only a bug or a model's provider brings about, and neither is here."""
NAMES = ["default", "one", "two", "three"]


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


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values that a schema of this folder takes, or nearly so."""
    schema = dereferenced(schema)
    if "enum" in schema:
        return st.sampled_from(cast("list[str]", schema["enum"]))
    if schema["type"] == "object":
        described: dict[str, dict[str, Any]] = schema["properties"]
        members = {name: values_of(member) for name, member in described.items()}
        names: list[str] = schema["required"]
        required = {name: members.pop(name) for name in names}
        return st.fixed_dictionaries(required, optional=members)
    if schema["type"] == "integer":
        return st.integers(schema.get("minimum"))
    if "pattern" in schema:
        return st.sampled_from(NAMES) | st.from_regex(cast("str", schema["pattern"]))
    return st.text(min_size=schema.get("minLength", 0), max_size=30)


segments = st.one_of(
    st.sampled_from([*NAMES, ".", "..", "x" * 129, "x" * 70_000, ""]),
    st.text(max_size=20).map(lambda text: quote(text, safe="")),
    st.binary(max_size=10).map(lambda raw: quote(raw, safe="")),
    st.sampled_from(["%2F", "a%2Fb", "%00", "a%00", "%ff%fe", "%", "%zz", "a b".replace(" ", "+")]),
)
strange_paths = st.one_of(st.sampled_from(["*", "//", "/nope"]), segments.map("/".__add__))
strange_queries = st.sampled_from(
    ["after=", "after=-1", "after=1&after=2", "after=1e3", "after=%00", "after=٣", "&&=&"]
)


@st.composite
def targets(draw: st.DrawFn, operation: Operation) -> str:
    """Draw what an operation's request line names: its parameters' values, or others."""
    target, query = operation.path, list[str]()
    for parameter in operation.parameters:
        value = draw(values_of(parameter["schema"]))
        if parameter["in"] == "path":
            segment = draw(st.one_of(st.just(quote(value, safe="")), segments))
            target = target.replace(f"{{{parameter['name']}}}", segment)
        elif parameter["in"] == "query" and draw(st.booleans()):
            query.append(f"{parameter['name']}={quote(str(value), safe='')}")
    if draw(st.sampled_from([False, False, False, True])):
        query.append(draw(strange_queries))
    return "?".join([target, "&".join(query)]) if query else target


def bodies(operation: Operation) -> st.SearchStrategy[bytes]:
    """Return a strategy for bodies: mostly such as the operation takes, if it takes any."""
    strange = st.one_of(
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
    schema = operation.body_schema
    if schema is None:
        return strange
    echo = {"route": {"provider": "echo", "model": "echo"}}
    meant = values_of(schema)
    runs = meant.map(lambda body: body | echo)
    return st.one_of(*(each.map(json.dumps).map(str.encode) for each in (meant, runs)), strange)


headers = st.tuples(
    st.sampled_from([b"127.0.0.1", b"localhost:1", b"127.0.0.1", b"evil.example", b"", b"[::1]"]),
    st.sampled_from([b"application/json", b"application/json", b"text/plain", b"\xff/\xff", b""]),
    st.sampled_from([None, None, None, b"http://127.0.0.1", b"null", b"http://evil.example"]),
    st.sampled_from([None, None, b"cross-site", b"same-origin"]),
    st.sampled_from([None, None, b"*", b'"x"', b"W/, \xff"]),
)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Draw a request: mostly one that could be meant, now and then one that cannot."""
    host, content_type, origin, site, tag = draw(headers)
    chosen = [("Host", host), ("Content-Type", content_type)]
    chosen += [("Origin", origin)] if origin is not None else []
    chosen += [("Sec-Fetch-Site", site)] if site is not None else []
    chosen += [("If-None-Match", tag)] if tag is not None else []
    operation = draw(st.sampled_from(OPERATIONS))
    method = draw(st.one_of(st.just(operation.method), st.sampled_from(METHODS)))
    target = draw(st.one_of(targets(operation), targets(operation), strange_paths))
    body = draw(bodies(operation))
    missing_n = draw(st.sampled_from([0, 0, 0, 0, 7]))
    raw_target = target.encode("utf-8", "replace")
    return Asked(method, raw_target, tuple(chosen), body, len(body) + missing_n)


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
    """Check that an answer is one that the document describes for this request."""
    status, found, body = parsed(request, raw)
    assert found["x-content-type-options"] == "nosniff"
    assert b"Traceback" not in body
    if not found.get("content-type", "") and not body and status in {400, 431}:
        return  # the server's own: this was no HTTP
    target = request.target.decode("utf-8", "replace")
    assert status not in HAPPENS_ELSEWHERE, (request.method, target, status, body)
    operation = operation_of(request.method, target)
    described = undocumented() if operation is None else {**undocumented(), **operation.responses}
    assert status in described, (request.method, target, status, body[:200])
    fault = answer_fault(described[status], found, body, is_head=request.method == "HEAD")
    assert fault is None, (request.method, target, status, fault)


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
