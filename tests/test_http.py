"""The HTTP application behind a real listener, spoken to over real sockets."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
import trio
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from actors.agent import Agent
from actors.invocations import Invocations, open_invocations
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.routes import Chunk, ModelResponse, RouteTable
from actors.session_log import open_session_log
from actors.tasks import running_beside
from actors.validation import document_fault
from actors.values import AssistantMessage, Json, Route
from web.app import BODY_BYTES, create_app
from web.guard import SECURITY_HEADERS, Gate, Guard, is_local
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
            app = cast("Application", create_app(log, invocations, body_timeout_s))
            serving = partial(serve, Guard(app, "127.0.0.1", gate), listener, gate.closing)
            async with (
                running_beside(serving, gate.closing.set),
                httpx.AsyncClient(base_url=url_of(listener), timeout=60) as client,
            ):
                port: int = listener.getsockname()[1]
                yield Served(client, log, invocations, held, gate, port)


def assert_problem(response: httpx.Response, status: int, code: str) -> None:
    """Check that a response is the problem it should be, in form, too."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert document_fault("problem", body) is None
    assert (body["status"], body["code"]) == (status, code)


# --- the session ----------------------------------------------------------------------------------


async def test_session_response() -> None:
    """The session route answers all events and entries in order, as its schema says."""
    async with served() as host:
        empty = await host.client.get("/api/v1/sessions/default")
        assert (empty.json()["last_sequence"], empty.json()["digest"]) == (0, None)
        await host.invoke("one", {"input": "hello ünïcode \x00"})
        response = await host.client.get("/api/v1/sessions/default")
        body = response.json()
        for answer in (empty.json(), body):
            assert document_fault("session-response", answer) is None
        assert [event["sequence"] for event in body["events"]] == list(
            range(1, body["last_sequence"] + 1)
        )
        snapshot = host.log.snapshot()
        assert snapshot.digest is not None
        assert body["digest"] == snapshot.digest.hex()
        assert [entry["kind"] for entry in body["transcript"]] == ["user", "assistant"]


async def test_etag() -> None:
    """An unchanged session costs a 304 in all its forms, a changed one has another tag."""
    async with served() as host:
        await host.invoke("one", {"input": "hello"})
        path = "/api/v1/sessions/default"
        first = await host.client.get(path)
        tag = first.headers["etag"]
        assert tag.startswith('"')
        for known in (tag, f'"other", {tag}', "*"):
            unchanged = await host.client.get(path, headers={"If-None-Match": known})
            assert (unchanged.status_code, unchanged.content) == (304, b"")
            assert unchanged.headers["etag"] == tag
        head = await host.client.head(path)
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)
        await host.invoke("two", {"input": "hello"})
        changed = await host.client.get(path, headers={"If-None-Match": tag})
        assert changed.status_code == 200
        assert changed.headers["etag"] != tag


async def test_after() -> None:
    """``?after=N`` leaves out what is known, and tells N apart from what cannot be."""
    async with served() as host:
        await host.invoke("one", {"input": "hello"})
        path = "/api/v1/sessions/default"
        whole = (await host.client.get(path)).json()
        last = whole["last_sequence"]
        for after in range(last + 1):
            part = (await host.client.get(path, params={"after": after})).json()
            for key in ("events", "transcript"):
                expected = [each for each in whole[key] if each["sequence"] > after]
                assert part.pop(key) == expected
            assert part == {key: whole[key] for key in part}
        tags = {
            (await host.client.get(path, params={"after": after})).headers["etag"]
            for after in range(last + 1)
        }
        assert len(tags) == last + 1
        for wrong in (last + 1, -1, "x", "", "1.0", "9" * 5000, "\u0661"):
            response = await host.client.get(path, params={"after": wrong})
            assert_problem(response, 422, "invalid_request")


@pytest.mark.parametrize("session_id", ["other", "Default", "default%00", "%ff", "default%2Fx"])
async def test_other_sessions_are_not_found(session_id: str) -> None:
    """Any id but the active one is not found, however it is written."""
    async with served() as host:
        response = await host.client.get(f"/api/v1/sessions/{session_id}")
        assert_problem(response, 404, "not_found" if "%2F" in session_id else "session_not_found")


async def test_an_endless_path_is_refused() -> None:
    """A path of 70 kB is refused by the server itself, and the next client is served."""
    async with served() as host:
        answer = await host.say(b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 70_000))
        assert answer.startswith(b"HTTP/1.1 4")
        assert (await host.client.get("/health")).status_code == 200


# --- invocations ----------------------------------------------------------------------------------


async def test_invocation_is_answered_and_answered_again() -> None:
    """The same id with the same text answers the recorded result and runs nothing."""
    async with served() as host:
        first = await host.invoke("one", {"input": "hello"})
        assert first.status_code == 200
        assert document_fault("invocation-result", first.json()) is None
        length = len(host.log.snapshot())
        again = await host.invoke(
            "one", {"input": "hello", "route": {"provider": "x", "model": "y"}}
        )
        assert again.json() == first.json()
        assert len(host.log.snapshot()) == length
        state = (await host.client.get(f"{INVOCATIONS}/one")).json()
        assert document_fault("invocation-state", state) is None
        assert state == {"invocation_id": "one", "state": "completed", "result": first.json()}
        assert_problem(await host.invoke("one", {"input": "bye"}), 422, "invocation_mismatch")
        assert_problem(await host.client.delete(f"{INVOCATIONS}/one"), 409, "invocation_settled")


async def test_cancelling() -> None:
    """DELETE cancels a running Turn and a queued one; each caller is told, and so is GET."""
    held = {"provider": "held", "model": "held"}
    answers: dict[str, httpx.Response] = {}
    async with served() as host, trio.open_nursery() as nursery:

        async def post(invocation_id: str) -> None:
            body = {"input": "wait", "route": held}
            answers[invocation_id] = await host.invoke(invocation_id, body)

        nursery.start_soon(post, "running")
        await host.held.asked.wait()
        nursery.start_soon(post, "queued")
        while (await host.client.get(f"{INVOCATIONS}/queued")).status_code == 404:
            await trio.lowlevel.checkpoint()
        for name in ("running", "queued"):
            state = (await host.client.get(f"{INVOCATIONS}/{name}")).json()
            assert state == {"invocation_id": name, "state": name}
            assert_problem(await host.invoke(name, {"input": "other"}), 422, "invocation_mismatch")
            assert_problem(await host.invoke(name, {"input": "wait"}), 409, "invocation_live")
        for name in ("queued", "running"):
            deleted = await host.client.delete(f"{INVOCATIONS}/{name}")
            assert deleted.status_code == 202
        assert_problem(await host.client.delete(f"{INVOCATIONS}/x"), 404, "invocation_not_found")
        assert_problem(await host.client.get(f"{INVOCATIONS}/x"), 404, "invocation_not_found")
        nursery.cancel_scope.deadline = trio.current_time() + 30
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
        for name in ("running", "queued"):
            assert_problem(answers[name], 409, "cancelled")
            assert_problem(await host.invoke(name, {"input": "wait"}), 409, "cancelled")
            state = (await host.client.get(f"{INVOCATIONS}/{name}")).json()
            assert document_fault("invocation-state", state) is None
            assert state["state"] == "cancelled"
        assert host.log.snapshot().turns_n == 1  # the queued one left no event


async def test_a_caller_that_hangs_up_does_not_stop_its_turn() -> None:
    """The Turn of a caller that went away is completed and can be asked for."""
    async with served() as host:
        body = json.dumps(
            {"input": "wait", "route": {"provider": "held", "model": "held"}}
        ).encode()
        stream = await trio.open_tcp_stream("127.0.0.1", host.port)
        await stream.send_all(
            b"POST /api/v1/agent/invocations/gone HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await host.held.asked.wait()
        await stream.aclose()
        host.held.go_on.set()
        while host.invocations.state("gone").state == "running":
            await trio.lowlevel.checkpoint()
        again = await host.invoke("gone", {"input": "wait"})
        assert again.json()["message"]["content"] == "held no more"


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b'{"input":"x"}', "text/plain", 415, "unsupported_media_type"),
        (b'{"input":"x"}', "", 415, "unsupported_media_type"),
        (b"", "application/json", 400, "not_json"),
        (b"\xff", "application/json", 400, "not_json"),
        (b'{"input":NaN}', "application/json", 400, "not_json"),
        (b'{"input":"x","input":"y"}', "application/json", 400, "not_json"),
        (b'{"input":"\\ud800"}', "application/json", 400, "not_json"),
        (b'{"input":' + b"[" * 200 + b"]" * 200 + b"}", "application/json", 400, "not_json"),
        (b"[]", "application/json", 422, "invalid_request"),
        (b"{}", "application/json", 422, "invalid_request"),
        (b'{"input":""}', "application/json", 422, "invalid_request"),
        (b'{"input":1}', "application/json", 422, "invalid_request"),
        (b'{"input":"x","more":1}', "application/json", 422, "invalid_request"),
        (b'{"input":"x","route":{"provider":"a"}}', "application/json", 422, "invalid_request"),
        (
            b'{"input":"x","route":{"provider":"a","model":"b"}}',
            "application/json; charset=utf-8",
            503,
            "route_unavailable",
        ),
    ],
)
async def test_bad_requests(content: bytes, content_type: str, status: int, code: str) -> None:
    """Each fault of a request has its status and code, and leaves no event."""
    async with served() as host:
        response = await host.client.post(
            f"{INVOCATIONS}/one", content=content, headers={"Content-Type": content_type}
        )
        assert_problem(response, status, code)
        assert len(host.log.snapshot()) == 0
        assert (await host.invoke("one", {"input": "still free"})).status_code == 200


async def test_too_large_a_body_is_refused_unread() -> None:
    """A body over the limit is refused: by its announced length, or once that much has come."""
    head = (
        b"POST /api/v1/agent/invocations/one HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n"
    )
    chunk = b"%x\r\n%b\r\n" % (BODY_BYTES + 1, b"x" * (BODY_BYTES + 1))
    for request in (
        head + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES + 1),
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n",
    ):
        async with served() as host:
            answer = await host.say(request)
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b'"code":"body_too_large"' in answer


async def test_bad_ids() -> None:
    """An id that cannot be one is refused when it is chosen and unknown when it is asked for."""
    async with served() as host:
        for wrong in ("%00", "a%0a", ".a", "%ff", "x" * 129):
            response = await host.client.post(f"{INVOCATIONS}/{wrong}", json={"input": "x"})
            assert_problem(response, 422, "invalid_request")
            response = await host.client.get(f"{INVOCATIONS}/{wrong}")
            assert_problem(response, 404, "invocation_not_found")
        assert (await host.invoke("a" * 128, {"input": "x"})).status_code == 200


async def test_unknown_routes_and_methods() -> None:
    """No such route is 404; a route without such a method is 405 and says which it has."""
    async with served() as host:
        assert_problem(await host.client.get("/nothing"), 404, "not_found")
        response = await host.client.put(f"{INVOCATIONS}/one")
        assert_problem(response, 405, "method_not_allowed")
        assert {"GET", "POST", "DELETE"} <= set(response.headers["allow"].split(", "))


async def test_a_body_that_stalls() -> None:
    """A body that does not come is answered, and its connection does not stay for ever."""
    async with served(body_timeout_s=0.05) as host:
        answer = await host.say(
            b"POST /api/v1/agent/invocations/one HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"
        )
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in answer


# --- health, stopping, errors ---------------------------------------------------------------------


async def test_health_tells_of_a_full_disk(tmp_path: Path) -> None:
    """While the disk is full POST and health say so, and nothing is lost when it is not."""
    async with served(tmp_path / "session.sqlite3") as host:
        assert (await host.client.get("/health")).json()["status"] == "ok"
        connection = cast("Any", host.log)._writer._store._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")
        failed = await host.invoke("one", {"input": "x" * 100_000})
        assert_problem(failed, 503, "store_failed")
        assert str(tmp_path) not in failed.text
        health = await host.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        connection.execute("PRAGMA max_page_count=1000000")
        assert (await host.invoke("one", {"input": "y"})).status_code == 200
        assert (await host.client.get("/health")).json()["status"] == "ok"


async def test_callers_are_answered_at_a_stop() -> None:
    """At a stop a running Turn's caller and a queued one's have their answers, then nobody more."""
    answers: dict[str, httpx.Response] = {}
    async with served() as host, trio.open_nursery() as nursery:

        async def post(invocation_id: str) -> None:
            body = {"input": "wait", "route": {"provider": "held", "model": "held"}}
            answers[invocation_id] = await host.invoke(invocation_id, body)

        nursery.start_soon(post, "running")
        await host.held.asked.wait()
        nursery.start_soon(post, "queued")
        while (await host.client.get(f"{INVOCATIONS}/queued")).status_code == 404:
            await trio.lowlevel.checkpoint()
        assert await host.invocations.shut_down()
        health = await host.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stopping")
        assert_problem(await host.invoke("late", {"input": "x"}), 503, "shutting_down")
        await host.gate.wait_until_answered()
        while len(answers) < 2:
            await trio.lowlevel.checkpoint()
        assert_problem(answers["running"], 500, "interrupted")
        assert_problem(answers["queued"], 503, "shutting_down")


async def test_half_a_request_is_refused_at_a_stop() -> None:
    """A request that never came in whole does not hold the stop, and is told."""
    async with served() as host:
        stream = await trio.open_tcp_stream("127.0.0.1", host.port)
        async with stream:
            await stream.send_all(
                b"POST /api/v1/agent/invocations/one HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            assert (await host.client.get("/health")).status_code == 200
            host.gate.closing.set()
            answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 503 ")


async def test_a_bug_is_answered_without_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that should not happen is 500, and its text stays in the log."""
    async with served() as host:

        def broken(_invocations: Invocations, _invocation_id: str) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(Invocations, "state", broken)
        response = await host.client.get(f"{INVOCATIONS}/one")
        assert_problem(response, 500, "internal_error")
        assert "secret" not in response.text


# --- the guard ------------------------------------------------------------------------------------


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


@given(st.text(max_size=30))
def test_only_loopback_names_are_local(text: str) -> None:
    """No Host header that does not begin with a loopback name passes."""
    if is_local(text, "127.0.0.1"):
        assert text.lower().startswith(("localhost", "127.", "[::1]", "::1", "[", "0"))
