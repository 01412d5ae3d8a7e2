"""Who may ask the Host at all, and that every request has one answer, with its headers."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from http_support import INVOCATIONS, assert_problem, served
from hypothesis import given
from hypothesis import strategies as st

from actors.validation import document_fault
from web.guard import SECURITY_HEADERS, Gate, Guard, is_local, refusal

if TYPE_CHECKING:
    from web.guard import Application, Message, Receive, Scope, Send

PORTS = st.sampled_from(["", ":", ":0", ":8765", ":99999"])
MORE = st.text("abc.:]@[%-x ", min_size=1, max_size=8)
SWITCH = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def scope_of(*headers: tuple[str, str], path: str = "/health", method: str = "GET") -> Scope:
    """A request as the server hands it over."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }


# --- names of this machine ------------------------------------------------------------------------


@given(st.one_of(st.ip_addresses(network="127.0.0.0/8"), st.ip_addresses()), PORTS)
def test_an_address_is_local_if_it_is_loopback(address: object, port: str) -> None:
    """Loopback literals pass with any port, all other addresses with none."""
    assert isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
    literal = f"[{address}]" if address.version == 6 else str(address)
    assert is_local(literal + port, "127.0.0.1") == address.is_loopback


@given(st.sampled_from(["localhost", "LocalHost", "127.0.0.1", "[::1]"]), MORE)
def test_no_name_is_local_for_how_it_begins_or_ends(name: str, more: str) -> None:
    """A local name inside a longer one is another name; only a port may follow, or none."""
    assert is_local(name + more, "localhost") == (more == ":")
    assert not is_local(more + name, "localhost")


@pytest.mark.parametrize(
    "text", ["", ":80", "localhost]", "[localhost]", "[127.0.0.1]", "::1", "[::1", "localhost:8x"]
)
def test_what_is_no_name_is_not_local(text: str) -> None:
    """Half a bracket, a bare IPv6 address, a port alone: nothing is read into them."""
    assert not is_local(text, "127.0.0.1")


# --- the verdict ----------------------------------------------------------------------------------


@given(
    st.sampled_from(["localhost", "127.0.0.1:80", "[::1]:9"]),
    st.text("htps:/localse1.", max_size=24),
)
def test_the_only_origin_is_the_own_one(host: str, origin: str) -> None:
    """An Origin passes if it is http:// and the Host header, as they stand; none passes, too."""
    assert refusal(scope_of(("Host", host)), "") is None
    assert refusal(scope_of(("Host", host), ("Origin", f"http://{host}")), "") is None
    refused = refusal(scope_of(("Host", host), ("Origin", origin)), "")
    assert (refused is None) == (origin == f"http://{host}")


@pytest.mark.parametrize(
    ("path", "method", "is_welcome"),
    [("/", "GET", True), ("/", "HEAD", True), ("/", "POST", False), ("/health", "GET", False)],
)
def test_a_link_from_elsewhere_leads_to_the_page_only(
    path: str, method: str, *, is_welcome: bool
) -> None:
    """Another site may have its user navigate to /, and to nothing else."""
    headers = (("Host", "localhost"), ("Sec-Fetch-Site", "cross-site"))
    mode = ("Sec-Fetch-Mode", "navigate")
    assert (refusal(scope_of(*headers, mode, path=path, method=method), "") is None) == is_welcome
    assert refusal(scope_of(*headers, path=path, method=method), "") is not None


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
async def test_a_refused_request_never_reaches_the_application(hosts: list[str]) -> None:
    """Without exactly one Host nothing but the guard runs; its answer is a problem."""
    sent: list[Message] = []

    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("the application was asked")

    await ask(never, scope_of(*(("Host", host) for host in hosts)), sent)
    assert sent[0]["status"] == 403
    body = json.loads(sent[1]["body"])
    assert document_fault("problem", body) is None
    assert body["code"] == "forbidden_host"


async def ask(
    application: Application, scope: Scope, sent: list[Message], gate: Gate | None = None
) -> None:
    """Have a guarded application serve one request without a body, and note what it sends."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)
        await trio.testing.wait_all_tasks_blocked()  # a slow client: everybody else goes first

    await Guard(application, "127.0.0.1", gate or Gate())(scope, receive, send)


# --- one answer -----------------------------------------------------------------------------------


async def test_a_request_is_answered_once_at_a_stop() -> None:
    """An application that would answer while its request is being refused no longer does."""
    gate, sent = Gate(), list[Any]()

    async def late(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await gate.closing.wait()
        await trio.lowlevel.checkpoint()  # the refusal has begun
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, late, scope_of(("Host", "localhost")), sent, gate)
            await trio.testing.wait_all_tasks_blocked()
            gate.closing.set()
        await gate.wait_until_answered()
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503


async def test_an_answer_that_has_begun_is_finished_at_a_stop() -> None:
    """What closes the listener does not cut an answer in two."""
    gate, sent = Gate(), list[Any]()

    async def slow(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gate.closing.set()
        await trio.testing.wait_all_tasks_blocked()
        await send({"type": "http.response.body", "body": b"whole"})

    with trio.fail_after(30):
        await ask(slow, scope_of(("Host", "localhost")), sent, gate)
        await gate.wait_until_answered()
    assert [message.get("status", message.get("body")) for message in sent] == [200, b"whole"]


# --- over the wire --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "forbidden_host"),
        ({"Host": "127.0.0.1.evil.example"}, "forbidden_host"),
        ({"Host": "localhost.evil.example:80"}, "forbidden_host"),
        ({"Host": "localhost:x"}, "forbidden_host"),
        ({"Host": "192.168.0.1"}, "forbidden_host"),
        ({"Host": ""}, "forbidden_host"),
        ({"Host": "localhost", "Origin": "http://evil.example"}, "forbidden_origin"),
        ({"Host": "localhost", "Origin": "null"}, "forbidden_origin"),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, "forbidden_origin"),
        ({"Host": "localhost", "Origin": "https://localhost"}, "forbidden_origin"),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, "cross_site"),
        (
            {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
            "cross_site",
        ),
    ],
)
async def test_strangers_are_refused(headers: dict[str, str], code: str) -> None:
    """What another web page can send does not get through, whatever the route."""
    async with served() as host:
        for method, path in (("GET", "/health"), ("POST", f"{INVOCATIONS}/one"), ("GET", "/no")):
            response = await host.client.request(method, path, headers=headers)
            assert_problem(response, 403, code)
        assert len(host.log.snapshot()) == 0


async def test_a_second_host_header_is_refused() -> None:
    """Two Host headers, or none, are not for guessing."""
    async with served() as host:
        for lines in (b"Host: localhost\r\nHost: localhost\r\n", b""):
            answer = await host.say(b"GET /health HTTP/1.0\r\n" + lines + b"\r\n")
            assert answer.split(b" ")[1] in {b"400", b"403"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost"},
        {"Host": "LOCALHOST:99"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.8.9.1"},
        {"Host": "[::1]:80"},
        {"Host": "localhost:99", "Origin": "http://localhost:99", "Sec-Fetch-Site": "same-origin"},
    ],
)
async def test_the_own_machine_is_welcome(headers: dict[str, str]) -> None:
    """Names of this machine get through, whatever port the client reached it by."""
    async with served() as host:
        assert (await host.client.get("/health", headers=headers)).status_code == 200


async def test_a_link_from_elsewhere_leads_to_the_page() -> None:
    """A navigation to / is welcome from any site; the page brings all that it needs."""
    async with served() as host:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        page = await host.client.get("/", headers=headers)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        for path in ("/static/page.js", "/static/page.css"):
            assert path in page.text
            assert (await host.client.get(path)).status_code == 200


async def test_every_answer_carries_the_security_headers() -> None:
    """Pages, data, problems and refusals alike."""
    async with served() as host:
        for path, headers in (("/", {}), ("/health", {}), ("/no", {}), ("/", {"Host": "evil"})):
            response = await host.client.get(path, headers=headers)
            for name, value in SECURITY_HEADERS:
                assert response.headers[name.decode()] == value.decode()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70_000, b"431"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + SWITCH, b"404"),
        (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n" + SWITCH, b"403"),
    ],
)
async def test_what_the_server_answers_itself_carries_them_too(
    request_head: bytes, status: bytes
) -> None:
    """Faults below the application, and WebSocket, are no way around the headers."""
    async with served() as host:
        answer = await host.say(request_head)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        for name, value in SECURITY_HEADERS:
            assert head.lower().count(b"\r\n%b: %b" % (name, value.lower())) == 1
        if status not in {b"400", b"431"}:
            assert document_fault("problem", json.loads(body)) is None


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost:1/health", b"200"),
        (b"http://evil.example/health", b"403"),
        (b"http://localhost@evil.example/health", b"403"),
        (b"http://[/health", b"403"),
        (b"health", b"403"),
    ],
)
async def test_a_target_that_names_a_host_is_held_to_it(target: bytes, status: bytes) -> None:
    """The host in an absolute target is checked as the header is; a malformed one is no bug."""
    async with served() as host:
        answer = await host.say(
            b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target
        )
        assert answer.split(b" ")[1] == status


@pytest.mark.parametrize(("origin", "status"), [(b"", b"415"), (b"Origin: null\r\n", b"403")])
async def test_a_body_left_unread_ends_the_connection_and_says_so(
    origin: bytes, status: bytes
) -> None:
    """A client is told that its next request must not go into a connection that is closing."""
    head = b"POST %b/one HTTP/1.1\r\nHost: localhost\r\n%bContent-Type: text/plain\r\n"
    async with served() as host:
        request = head % (INVOCATIONS.encode(), origin) + b"Content-Length: 9\r\n\r\n{"
        answer = await host.say(request)  # and the end of the stream
        assert answer.split(b" ")[1] == status
        assert b"\r\nconnection: close\r\n" in answer.lower()


async def test_a_connection_is_kept_otherwise() -> None:
    """Where nothing is left unread one connection serves many requests."""
    async with served() as host:
        for response in (
            await host.invoke("one", {"input": "x"}),
            await host.invoke("one", {"input": "y"}),
            await host.client.get("/no"),
        ):
            assert "connection" not in response.headers
