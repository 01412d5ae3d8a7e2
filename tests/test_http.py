"""The HTTP application behind a real listener, spoken to over real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from http_support import INVOCATIONS, assert_problem, served

from actors.errors import OutcomeUnknown
from actors.invocations import Invocations
from actors.validation import document_fault
from web.app import BODY_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    import httpx


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
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
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
        assert "database or disk is full" in health.json()["detail"]
        assert "database or disk is full" in failed.json()["detail"]
        connection.execute("PRAGMA max_page_count=1000000")
        assert (await host.invoke("one", {"input": "y"})).status_code == 200
        well = (await host.client.get("/health")).json()
        assert (well["status"], "detail" in well) == ("ok", False)


async def test_a_turn_that_the_disk_cut_short_says_so(tmp_path: Path) -> None:
    """Space that runs out within a Turn and comes back: the Turn's failure names the disk."""
    async with served(tmp_path / "session.sqlite3") as host:
        answers: list[httpx.Response] = []

        async def ask() -> None:
            body = {"input": "hello", "route": {"provider": "held", "model": "held"}}
            answers.append(await host.invoke("one", body))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await host.held.asked.wait()
            database = tmp_path / "session.sqlite3"
            database.rename(tmp_path / "away")
            host.held.go_on.set()
        assert_problem(answers[0], 503, "store_failed")
        assert (await host.client.get("/health")).json()["detail"].startswith("the database file")
        (tmp_path / "away").rename(database)
        assert (await host.invoke("two", {"input": "hello"})).status_code == 200
        again = await host.invoke("one", {"input": "hello"})
        assert_problem(again, 500, "interrupted")


async def test_health_tells_of_a_stopped_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the file is in doubt health has failed, POST is refused, and reads go on."""
    async with served(tmp_path / "session.sqlite3") as host:
        answer = (await host.invoke("one", {"input": "hello"})).json()

        def in_doubt(_rows: object) -> None:
            raise OutcomeUnknown("a failed fsync", tmp_path)

        monkeypatch.setattr(cast("Any", host.log)._writer._store, "commit", in_doubt)
        for _ in range(2):  # the one that finds out, and one that comes later
            failed = await host.invoke("two", {"input": "hello"})
            assert_problem(failed, 503, "store_failed")
            assert str(tmp_path) not in failed.text
        health = await host.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        session = (await host.client.get("/api/v1/sessions/default")).json()
        assert session["last_sequence"] == answer["last_sequence"]
        assert (await host.invoke("one", {"input": "hello"})).json() == answer


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
