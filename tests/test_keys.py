"""The provider's key, in real processes: sent to the provider, and to be found nowhere else."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from attrs import define, field, frozen
from process_support import (
    PATIENCE_S,
    HostProcess,
    error_line,
    sessiond_each,
    wal_of,
)
from provider_server import (
    Play,
    Received,
    _play,  # pyright: ignore[reportPrivateUsage] # one server, another script for each request
    _serving,  # pyright: ignore[reportPrivateUsage] # as above
    call_delta,
    delta,
    head,
    sse,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from provider_server import Part

KEY = "sk-live/0123456789+abcdef=XYZ"
HALVES = (KEY[:11], KEY[11:])
VARIABLE = "KEY_OF_THE_MODEL"
REDACTED = "[redacted]"
DONE = (head(), sse(delta("stop", content="done"), "[DONE]"))


# --- a provider that sends the key back ---------------------------------------------------------


@define(eq=False)
class Provider:
    """Plays the next script to each request."""

    url: str
    scripts: list[tuple[Part, ...]] = field(factory=list["tuple[Part, ...]"])
    requests: list[Received] = field(factory=list[Received])

    def assert_asked_with(self, key: str) -> None:
        """The key came as bearer with each request, and in nothing else of it."""
        assert self.requests
        for request in self.requests:
            assert request.headers["authorization"] == f"Bearer {key}"
            assert key not in f"{request.line} {request.body.decode()}"


@asynccontextmanager
async def open_provider() -> AsyncGenerator[Provider, None]:
    async def play(request: Received, stream: trio.SocketStream) -> None:
        provider.requests.append(request)
        for part in provider.scripts.pop(0):
            await _play(part, stream, trio.Event())

    async with _serving(play) as port:
        provider = Provider(f"http://127.0.0.1:{port}/v1")
        yield provider


@frozen
class Echo:
    """A Turn in which the provider sends the key, and what the caller is told."""

    scripts: tuple[tuple[Part, ...], ...]
    status: int
    code: str = ""
    says: str = ""
    """The answer's text, or words of the problem's detail."""


def answered(says: str, *data: object) -> Echo:
    """Return a Turn of one request that comes to a message."""
    return Echo(((head(), sse(*data, delta("stop"), "[DONE]")),), 200, says=says)


def failed(code: str, says: str, *parts: Part) -> Echo:
    return Echo((parts,), 502, code, says)


def error_of(message: str) -> str:
    return json.dumps({"error": {"message": message, "param": KEY, KEY: KEY}})


CALLS = (
    call_delta(index=0, id=f"id-{KEY}", name=f"look-{KEY}", arguments=""),
    call_delta(index=0, arguments=f'{{"{KEY}": "{HALVES[0]}'),
    call_delta(index=0, arguments=f'{HALVES[1]}"}}'),
    call_delta(index=1, id="id-2", name=HALVES[0], arguments=""),
    call_delta(index=1, name=HALVES[1], arguments=""),
    call_delta(index=1, arguments=KEY),
    # Each of these tools tells in its error what it was asked for.
    call_delta(index=2, id="id-3", name="clock", arguments=json.dumps({"zone": KEY})),
    call_delta(index=3, id="id-4", name="recall", arguments=json.dumps({"query": "x", KEY: 1})),
    call_delta(index=4, id="id-5", name="recall", arguments=json.dumps({"query": KEY})),
)
ECHOES = {
    "content": answered(f"a {REDACTED} b", delta(role="assistant", content=f"a {KEY} b")),
    "content in parts": answered(
        f"a {REDACTED} b", *(delta(content=part) for part in ("a ", *HALVES, " b"))
    ),
    "letter by letter": answered(REDACTED, *(delta(content=letter) for letter in KEY)),
    "twice": answered(REDACTED * 2, delta(content=KEY * 2)),
    "finish reason": Echo(
        ((head(), sse(delta(KEY, content="well"), usage(1, 2), "[DONE]")),), 200, says="well"
    ),
    "tool calls": Echo(
        ((head(), sse(*CALLS, delta("tool_calls"), "[DONE]")), DONE), 200, says="done"
    ),
    "names of members": answered(
        "fine", {"choices": [], KEY: {f"x-{KEY}": [KEY, {KEY: KEY}]}}, delta(content="fine")
    ),
    "a field of its own": answered("fine", delta(content="fine", reasoning=KEY)),
    "headers": Echo(
        (
            (
                head("200 OK", "text/event-stream", f"X-Api-Key: {KEY}", f"Set-Cookie: k={KEY}"),
                DONE[1],
            ),
        ),
        200,
        says="done",
    ),
    "media type": failed(
        "provider_protocol", REDACTED, head("200 OK", f"text/{KEY}"), KEY.encode()
    ),
    "JSON error": failed(
        "provider_error",
        f"no such key: {REDACTED}",
        head(f"401 {KEY}", "application/json"),
        error_of(f"no such key: {KEY}").encode(),
    ),
    "long JSON error": failed(
        "provider_error",
        f"{'x' * 290}",  # where it is cut, nothing of the key is left
        head("401 Unauthorized", "application/json"),
        error_of(f"{'x' * 290}{KEY}").encode(),
    ),
    "HTML error": failed(
        "provider_error",
        "500",
        head("500 Internal Server Error", "text/html"),
        f"<title>{KEY}</title>".encode(),
    ),
    "redirect": failed(
        "provider_error", "302", head("302 Found", "text/plain", f"Location: http://{KEY}/{KEY}")
    ),
    "error in a stream": failed(
        "provider_error",
        f"not for {REDACTED}",
        head(),
        sse(delta(content=f"begun {KEY}"), error_of(f"not for {KEY}")),
    ),
    "no JSON": failed("provider_protocol", "JSON", head(), sse(f'{{"{KEY}": {KEY}')),
    "bare": failed("provider_protocol", "JSON", head(), sse(KEY)),
    "a member twice": failed("provider_protocol", "JSON", head(), sse(f'{{"{KEY}":1,"{KEY}":2}}')),
    "no object": failed("provider_protocol", "object", head(), sse([KEY])),
    "no choice": failed("provider_protocol", "choice", head(), sse({"choices": [KEY]})),
    "no string": failed("provider_protocol", "content", head(), sse(delta(content={KEY: KEY}))),
    "no HTTP": failed("provider_protocol", "HTTP", f"{KEY} {KEY}\r\n{KEY}\r\n\r\n".encode()),
    "cut short": failed("provider_protocol", "finished", head(), sse(delta(content=KEY))),
    "reset": failed("provider_network", "broke", head(), sse(delta(content=KEY)), Play.RESET),
    "silence": Echo(((head(), sse(delta(content=KEY)), Play.HOLD),), 504, "provider_timeout"),
}


# --- a Host, and all that it lets out -----------------------------------------------------------


@define(eq=False)
class Asked:
    """A Host that was given a key, and what it has let out so far."""

    host: HostProcess
    database: Path
    client: httpx.AsyncClient
    let_out: list[tuple[str, str]] = field(factory=list["tuple[str, str]"])
    """What it was, and its text."""

    async def request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        response = await self.client.request(method, path, json=body)
        headers = [*response.headers.multi_items(), ("status", response.reason_phrase)]
        self.let_out.append((f"{method} {path}", f"{headers}\n{response.text}"))
        return response

    async def turn(self, invocation_id: str) -> httpx.Response:
        """Ask for a Turn; ask again, and for its state."""
        path, body = f"/api/v1/agent/invocations/{invocation_id}", {"input": "please"}
        response = await self.request("POST", path, body)
        again = await self.request("POST", path, body)
        assert again.json() == response.json()
        await self.request("GET", path)
        return response

    async def look(self) -> dict[str, Any]:
        """Look at all that is not a Turn's; return the session."""
        for path in ("/", "/health", "/api/v1/runtime", "/api/v1/nothing"):
            await self.request("GET", path)
        await self.request("POST", "/api/v1/agent/invocations/~", {"input": "x"})
        session = await self.request("GET", "/api/v1/sessions/default")
        self.read_files()
        return session.json()

    def read_files(self) -> None:
        for path in (self.database, wal_of(self.database)):
            if path.exists():
                self.let_out.append((path.name, path.read_bytes().decode("latin-1")))

    async def stop(self) -> None:
        """Stop it, and read what it leaves."""
        assert await trio.to_thread.run_sync(self.host.stop) == 0
        self.read_files()
        self.let_out.append(("logs", self.host.errors))

    async def run_commands(self, *step_ids: str) -> None:
        """Have the database told by every command that reads it."""
        commands = [[name, self.database] for name in ("export", "verify", "show")]
        commands += [["show", self.database, "--json"]]
        commands += [["show", self.database, "--request", step_id] for step_id in step_ids]
        for done in await trio.to_thread.run_sync(sessiond_each, commands):
            assert done.returncode == 0, done
            self.let_out.append((str(done.args), f"{done.stdout}{done.stderr}"))

    def assert_without(self, key: str) -> None:
        kept = [(what, text) for what, text in self.let_out if key in text]
        assert not kept


@asynccontextmanager
async def asking(database: Path, url: str, *options: str) -> AsyncGenerator[Asked, None]:
    """Run a Host whose model is at ``url``, the key in :data:`VARIABLE`."""
    model = ("--model-url", url, "--model", "m", "--model-key-env", VARIABLE)
    with HostProcess(database, *model, "--log-level", "debug", *options) as host:
        base_url = await trio.to_thread.run_sync(lambda: host.url)
        async with httpx.AsyncClient(
            base_url=base_url, trust_env=False, timeout=PATIENCE_S
        ) as client:
            yield Asked(host, database, client)


# --- echoed -------------------------------------------------------------------------------------


async def test_a_key_that_is_sent_back_is_let_out_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a provider does with the key, it is in no file, log, answer or command's output."""
    monkeypatch.setenv(VARIABLE, f"{KEY}\n")
    database = tmp_path / "session.sqlite3"
    with refusing() as url:
        async with asking(database, url) as asked:
            answer = await asked.turn("refused")
            assert (answer.status_code, answer.json()["code"]) == (502, "provider_network")
            await asked.stop()
    asked.assert_without(KEY)
    for log_format in ("console", "json"):
        options = ("--log-format", log_format, "--request-timeout", "2")
        async with open_provider() as provider, asking(database, provider.url, *options) as asked:
            for name, echo in ECHOES.items():
                provider.scripts.extend(echo.scripts)
                answer = await asked.turn(f"{name.replace(' ', '-')}-{log_format}")
                assert_told(answer, echo, name)
            session = await asked.look()
            await asked.stop()
        provider.assert_asked_with(KEY)
        asked.assert_without(KEY)
    step_ids = [each["step_id"] for each in session["transcript"] if each["kind"] == "tool"]
    await asked.run_commands(*{*step_ids, step_ids[-1].replace("step-1", "step-2")})
    asked.assert_without(KEY)
    assert_redacted_calls(session)


def assert_told(answer: httpx.Response, echo: Echo, name: str) -> None:
    told = answer.json()
    assert answer.status_code == echo.status, (name, told)
    assert told.get("code", "") == echo.code, (name, told)
    if echo.status == 200:
        assert told["message"]["content"] == echo.says, name
    else:
        assert echo.says in told["detail"], (name, told)
        assert not any(part in answer.text for part in (KEY[:8], KEY[-8:])), name


def assert_redacted_calls(session: dict[str, Any]) -> None:
    """The mark stands where the key stood in calls, whose ids the second time are made up."""
    messages = [
        event["payload"]["message"]
        for event in session["events"]
        if event["type"] == "assistant_message_committed"
    ]
    first, second = (each["tool_calls"] for each in messages if each["tool_calls"])
    assert [each["id"] for each in first] == [f"id-{REDACTED}", "id-2", "id-3", "id-4", "id-5"]
    for calls in (first, second):
        assert [(each["name"], each["arguments"]) for each in calls] == [
            (f"look-{REDACTED}", f'{{"{REDACTED}": "{REDACTED}"}}'),
            (REDACTED, REDACTED),
            ("clock", json.dumps({"zone": REDACTED})),
            ("recall", json.dumps({"query": "x", REDACTED: 1})),
            ("recall", json.dumps({"query": REDACTED})),
        ]


@contextmanager
def refusing() -> Generator[str, None, None]:
    """Yield a URL at which connections are refused."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # taken, and not listened on
        yield f"http://127.0.0.1:{unheard.getsockname()[1]}/v1"


async def test_a_key_in_escapes_is_not_let_out_by_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments may spell the key with escapes: what a tool then says of it is no way out."""
    key = KEY.replace("/", "-")  # a place in JSON is told with / escaped
    monkeypatch.setenv(VARIABLE, key)
    spelled = key.replace("-", r"\u002D").replace("k", r"\u006b")
    calls = [
        call_delta(index=index, id=f"id-{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(
            [
                ("clock", f'{{"zone": "{spelled}"}}'),  # no such zone
                ("recall", f'{{"query": "x", "{spelled}": 1}}'),  # no such member
                ("recall", f'{{"query": "x", "{spelled}": 1e400}}'),  # not strict JSON
            ]
        )
    ]
    async with open_provider() as provider:
        provider.scripts = [(head(), sse(*calls, delta("tool_calls"), "[DONE]")), DONE]
        async with asking(tmp_path / "session.sqlite3", provider.url) as asked:
            assert (await asked.turn("one")).status_code == 200
            await asked.look()
            asked.assert_without(key)
    provider.assert_asked_with(key)


async def test_what_a_provider_sets_as_a_cookie_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request says what is on record and shows the key; it brings nothing else back."""
    monkeypatch.setenv(VARIABLE, KEY)
    cookie = (head("200 OK", "text/event-stream", f"Set-Cookie: k={KEY}"), DONE[1])
    async with open_provider() as provider:
        provider.scripts = [cookie, DONE]
        async with asking(tmp_path / "session.sqlite3", provider.url) as asked:
            await asked.turn("one")
            await asked.turn("two")
    assert [request.headers.get("cookie") for request in provider.requests] == [None, None]


@pytest.mark.parametrize(("key", "said"), [("k" * 15, "k" * 15), ("k" * 16, REDACTED)])
async def test_a_short_key_may_be_a_word_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, said: str
) -> None:
    """A key under 16 characters is left in what the model says, but taken out of errors."""
    monkeypatch.setenv(VARIABLE, key)
    path = tmp_path / "session.sqlite3"
    async with open_provider() as provider, asking(path, provider.url) as asked:
        provider.scripts = [(head("403 Forbidden", "application/json"), error_of(key).encode())]
        refused = await asked.turn("refused")
        assert refused.json()["detail"].endswith(f": {REDACTED}")
        await asked.look()
        asked.assert_without(key)
        provider.scripts = [(head(), sse(delta("stop", content=key), "[DONE]"))]
        answer = await asked.turn("answered")
        assert answer.json()["message"]["content"] == said
        assert await trio.to_thread.run_sync(asked.host.stop) == 0
    assert key not in asked.host.errors
    assert {each.headers["authorization"] for each in provider.requests} == {f"Bearer {key}"}


# --- no key -------------------------------------------------------------------------------------


def test_a_key_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is not set, or empty, is named in one line; no file is made.

    Nor is one for a key that is blank or that no header can carry; it is not told.
    """
    database = tmp_path / "new" / "session.sqlite3"
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    bad = (" \n", f"{KEY} {KEY}", f"{KEY}\r\nX-More: 1", f"{KEY}\u00e9", f"\udcff{KEY}")
    for n, key in enumerate(bad):
        monkeypatch.setenv(f"BAD_{n}", key)
    names = ["NOT_SET", "EMPTY", *(f"BAD_{n}" for n in range(len(bad)))]
    model = ("--model-url", "http://127.0.0.1:1/v1", "--model", "m", "--model-key-env")
    commands = [["serve", "--port", "0", "--session-db", database, *model, name] for name in names]
    for name, done in zip(names, sessiond_each(commands), strict=True):
        line = error_line(done)
        assert name in line or (name.startswith("BAD_") and "key" in line)
        assert KEY not in line
        assert done.stderr == f"{line}\n"
        assert not done.stdout
    assert not database.parent.exists()
