"""The OpenAI-compatible adapter when things go wrong: failures, the key, leaving early."""

from __future__ import annotations

import gc
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from agent_support import Gate
from openai_support import (
    KEY,
    SHORT_KEY,
    TIMEOUT_S,
    asking,
    failure_of,
    outcome_of,
    outputs_from,
    outputs_of_pieces,
    outputs_of_response,
)
from provider_server import (
    Part,
    Play,
    Refuses,
    Says,
    call_delta,
    delta,
    head,
    playing,
    sse,
    strict_provider,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.providers import event_stream, openai_compatible
from actors.providers.openai_compatible import OpenAICompatibleAdapter, open_adapter
from actors.routes import Chunk, ModelFailure, ModelResponse
from actors.values import (
    AssistantMessage,
    ToolCall,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.routes import ModelOutput

# --- what is no answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        pytest.param([head()], "before the answer was finished", id="nothing"),
        pytest.param([head(), sse("[DONE]")], "before the answer was finished", id="done at once"),
        pytest.param([head(), sse(delta(content="x"), "[DONE]")], "finished", id="no reason"),
        pytest.param([head(), sse(delta("", content="x"))], "finished", id="an empty reason"),
        pytest.param([head(), sse(b"{'a': 1}")], "not strict JSON", id="not JSON"),
        pytest.param([head(), sse(b'{"a": NaN}')], "not strict JSON", id="NaN"),
        pytest.param([head(), sse(b'{"a": 1, "a": 2}')], "not strict JSON", id="a key twice"),
        pytest.param([head(), sse(delta(content="\ud83d"))], "not strict JSON", id="a half pair"),
        pytest.param([head(), sse(b"[" * 128 + b"]" * 128)], "cannot be stored", id="too deep"),
        pytest.param([head(), sse(b'{"choices":[]}\xff')], "not UTF-8", id="not UTF-8"),
        pytest.param([head(), b"data: \xc3"], "not UTF-8", id="half a character"),
        pytest.param([head(), sse(7)], "not a JSON object", id="a number"),
        pytest.param([head(), sse({"choices": 1})], "choices", id="choices"),
        pytest.param([head(), sse({"choices": [1]})], "choice", id="a choice"),
        pytest.param([head(), sse({"choices": [{"delta": 1}]})], "delta", id="a delta"),
        pytest.param([head(), sse(delta(content=["x"]))], "content", id="content"),
        pytest.param([head(), sse(delta(tool_calls={}))], "tool_calls", id="tool calls"),
        pytest.param([head(), sse(delta(tool_calls=[1]))], "tool call", id="a tool call"),
        pytest.param([head(), sse(call_delta(id=1))], "id", id="an id"),
        pytest.param([head(), sse(call_delta(arguments={}))], "arguments", id="arguments"),
        pytest.param([head(), sse({"choices": [{"finish_reason": 1}]})], "reason", id="a reason"),
        pytest.param(
            [head(), sse(call_delta(index=0, id="a", arguments="{}"), delta("tool_calls"))],
            "no name",
            id="a call without a name",
        ),
        pytest.param(
            [head("200 OK", "application/json"), json.dumps(delta("stop")).encode()],
            "no event stream: application/json",
            id="not streamed",
        ),
        pytest.param([head("200 OK", "text/html"), b"<html>"], "text/html", id="a page"),
        pytest.param(
            [head("200 OK", "text/event-stream", "Content-Encoding: gzip")],
            "compressed",
            id="compressed",
        ),
        pytest.param([head("204 No Content")], "finished", id="no content"),
        pytest.param([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "does not speak HTTP", id="not HTTP"),
    ],
)
async def test_what_is_no_such_stream(parts: list[Part], told: str) -> None:
    """It is ``provider_protocol``, with the reason in one line."""
    failure = await failure_of(*parts)
    assert failure.code == "provider_protocol"
    assert told in failure.message
    assert failure.message.isprintable()


async def test_events_are_bounded(monkeypatch: Any) -> None:
    """A line, or an event of many lines, that does not end is refused, not kept."""
    monkeypatch.setattr(event_stream, "MAX_EVENT_CHARS", 10_000)
    for filler in (b"x" * 64, b"\ndata: xx", b"\n: comment"):
        endless = b"data: " + filler * 2_000
        failure = await failure_of(head(), endless, Play.HOLD)
        assert (failure.code, "more than 10000" in failure.message) == ("provider_protocol", True)
    many = [delta(content="x" * 600)] * 30
    assert isinstance(await outcome_of(head(), sse(*many, delta("stop"))), ModelResponse)


async def test_answers_are_bounded(monkeypatch: Any) -> None:
    """A stream without an end is refused once it is more than an event could hold."""
    monkeypatch.setattr("actors.providers.chat_answer.MAX_ANSWER_BYTES", 20_000)
    for data in (delta(content="x" * 100), call_delta(index=0), delta()):
        failure = await failure_of(head(), sse(*[data] * 400), Play.HOLD)
        assert (failure.code, "more than 20000" in failure.message) == ("provider_protocol", True)
    escaped = [delta(content="\x00" * 100)] * 50
    assert (await failure_of(head(), sse(*escaped, delta("stop")))).code == "provider_protocol"


async def test_a_chunk_that_no_event_could_hold_is_refused(monkeypatch: Any) -> None:
    """A chunk is stored inside an event, which has the same bound."""
    monkeypatch.setattr(openai_compatible, "_MAX_CHUNK_BYTES", 1_000)
    failure = await failure_of(head(), sse({"choices": [], "x": "é" * 600}))
    assert (failure.code, "more than 1000" in failure.message) == ("provider_protocol", True)


SAID = {"error": {"message": "Bad\x1b[31m\nmodel", "type": "invalid", "code": None}}


@pytest.mark.parametrize(
    ("status", "content_type", "body", "message"),
    [
        ("400 Bad Request", "application/json", SAID, "400 Bad Request: Bad [31m model"),
        ("401 Nope", "application/json", {"error": "no"}, "401 Unauthorized: no"),
        ("404 Not Found", "application/json", {"message": "gone"}, "404 Not Found: gone"),
        ("422 X", "application/json", {"detail": "bad"}, "422 Unprocessable"),
        ("429 X", "application/json", [SAID], "429 Too Many Requests: Bad"),
        ("500 X", "text/html", "<html>secret page</html>", "500 Internal Server Error"),
        ("502 X", "application/json", '{"error": ', "502 Bad Gateway"),
        ("503 X", "application/json", b"\xff", "503 Service Unavailable"),
        ("500 X", "application/json", {"error": {"message": 7}}, "500 Internal Server Error"),
        ("529 X", "application/json", {"error": {"message": "busy"}}, "529: busy"),
        ("307 X", "application/json", "", "307 Temporary Redirect"),
        ("500 X", "application/json", {"error": {"message": "x" * 9_000}}, "x…"),
        ("500 X", "application/json", {"error": {"message": "x" * 99_000}}, "Server Error"),
    ],
)
async def test_http_errors(status: str, content_type: str, body: object, message: str) -> None:
    """The status, its usual reason, and the provider's message, harmless and cut; never a page."""
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else None
    sent = raw if raw is not None else json.dumps(body).encode()
    failure = await failure_of(head(status, content_type, "Location: http://x/"), sent)
    assert failure.code == "provider_error"
    assert message in failure.message
    assert "page" not in failure.message
    assert failure.message.isprintable()
    assert len(failure.message) < 400


async def test_an_error_body_that_does_not_end_is_not_waited_for() -> None:
    """The status has said what matters: silence or a reset in the body changes nothing."""
    begun = [head("500 X", "application/json"), b'{"error": ']
    for tail in (Play.HOLD, Play.RESET):
        failure = await failure_of(*begun, tail, silence_timeout_s=0.05)
        assert failure.code == "provider_error"
        assert failure.message.endswith("500 Internal Server Error")


async def test_an_error_body_that_trickles_is_not_waited_for(autojump_clock: MockClock) -> None:
    """It is given as long as a silence may last, all in all."""
    began = trio.current_time()

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await trio.sleep(1)
            yield b"x"

    outputs = await outputs_of_response(500, trickle(), silence_timeout_s=5)
    assert isinstance(outputs[-1], ModelFailure)
    assert outputs[-1].message == "the provider answered 500 Internal Server Error"
    assert trio.current_time() - began == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"error": "overloaded", "choices": []}, "overloaded"),
        ({"object": "error", "message": "overloaded"}, "overloaded"),
        ({"error": {"code": 7}}, "reported an error"),
    ],
)
async def test_an_error_inside_a_stream(data: object, message: str) -> None:
    """An error object among the chunks is the provider's own failure, with its message."""
    failure = await failure_of(head(), sse(delta(content="x"), data, delta("stop")))
    assert failure.code == "provider_error"
    assert message in failure.message


async def test_nobody_listens() -> None:
    """A refused connection is ``provider_network``, with what the system says of it."""
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        (failure,) = await outputs_from(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
    assert failure.code == "provider_network"
    assert failure.message.startswith("no connection to the provider: ")
    assert failure.message.endswith("Connection refused")


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        pytest.param([], "provider_network", id="closed before the head"),
        pytest.param([Play.RESET], "provider_network", id="reset before the head"),
        pytest.param([b"HTTP/1.1 200"], "provider_network", id="closed within the head"),
        pytest.param([Play.HOLD], "provider_timeout", id="silent before the head"),
        pytest.param([head(), Play.HOLD], "provider_timeout", id="silent before the body"),
        pytest.param([head(), sse(delta()), Play.HOLD], "provider_timeout", id="silent within"),
        pytest.param([head(), sse(delta()), Play.RESET], "provider_network", id="reset within"),
        pytest.param(
            [head("200 OK", "text/event-stream", "Content-Length: 999"), sse(delta())],
            "provider_network",
            id="closed before its announced end",
        ),
        pytest.param(
            [head("200 OK", "text/event-stream", "Transfer-Encoding: chunked"), b"zz\r\n"],
            "provider_protocol",
            id="not in chunks as announced",
        ),
    ],
)
async def test_a_connection_that_breaks_or_falls_silent(parts: list[Part], code: str) -> None:
    """Silence is ``provider_timeout``, at any point; a broken connection ``provider_network``."""
    failure = await failure_of(*parts, silence_timeout_s=0.1)
    assert failure.code == code
    assert failure.message.isprintable()


async def test_no_connection_in_time() -> None:
    """A connection that is not made in time is ``provider_timeout`` and says how long it took."""

    async def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(slow)) as client:
        adapter = OpenAICompatibleAdapter("http://nobody", "m", client, connect_timeout_s=2.5)
        (failure,) = [output async for output in adapter.stream(asking())]
    assert failure == ModelFailure("provider_timeout", "no connection to the provider within 2.5 s")


async def test_a_provider_that_speaks_no_tls() -> None:
    """It is ``provider_network``, with what TLS says of it."""

    async def greet(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"220 mail ready\r\n")
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, greet, [listener])
        outputs = await outputs_from(f"https://127.0.0.1:{listener.socket.getsockname()[1]}/v1")
        nursery.cancel_scope.cancel()
    assert outputs[-1].code == "provider_network"
    assert "SSL" in outputs[-1].message


# --- the key ----------------------------------------------------------------------------------


def assert_hidden(outputs: list[Any], key: str) -> None:
    assert key not in repr(outputs)
    assert key not in json.dumps([each.value.text for each in outputs if isinstance(each, Chunk)])


async def test_the_key_is_taken_out_of_all_that_comes_back() -> None:
    """In values and names of chunks, escaped or not, in text, arguments, names, ids, reasons."""
    escaped = "".join(f"\\u{ord(char):04x}" for char in KEY)
    data: list[Any] = [
        delta(content=f"a{KEY}b{KEY[:9]}"),
        delta(None, **{"content": KEY[9:], KEY: [KEY]}),
        {"choices": [], "said": KEY, f"x{KEY}": 1},
        f'{{"choices": [], "{escaped}": "{escaped}"}}',
        call_delta(index=0, id=f"id-{KEY}", name=f"n-{KEY}", arguments=f'{{"k":"{KEY[:4]}'),
        call_delta(index=0, arguments=f'{KEY[4:]}"}}'),
        delta(KEY),
    ]
    async with playing(head(), sse(*data)) as server:
        outputs = await outputs_from(server.url, key=KEY)
    assert_hidden(outputs, KEY)
    call = ToolCall("id-[redacted]", "n-[redacted]", '{"k":"[redacted]"}')
    assert outputs[-1] == ModelResponse(
        AssistantMessage("a[redacted]b[redacted]", (call,)), "[redacted]"
    )
    assert outputs[2].value.value() == {"choices": [], "said": "[redacted]", "x[redacted]": 1}
    assert outputs[3].value.value() == {"choices": [], "[redacted]": "[redacted]"}


async def test_no_key_arises_from_what_stood_around_one() -> None:
    """The mark and its surroundings may be the key once more: it is looked for again."""
    key = "]0123456789abcdefghi"
    outputs = await outputs_of_pieces([sse(delta("stop", content=key + key[1:]))], key)
    assert_hidden(outputs, key)


@pytest.mark.parametrize("key", [KEY, SHORT_KEY])
@pytest.mark.parametrize(
    "parts",
    [
        [head("401 No", "application/json"), json.dumps({"error": "no KEY"}).encode()],
        [head("401 KEY", "text/html"), b"KEY"],
        [head("500 X", "application/json"), json.dumps({"error": "x" * 290 + "KEY"}).encode()],
        [head("200 OK", "x/KEY")],
        [head(), sse({"error": {"message": "it is KEY"}})],
        [head(), b"data: {KEY\n\n"],
        [head(), sse(b'{"KEY": 1, "KEY": 2}')],
        [b"HTTP/1.1 KEY\r\n\r\n"],
    ],
)
async def test_no_error_tells_the_key(key: str, parts: list[bytes]) -> None:
    """However short it is, and wherever a provider repeats it."""
    sent = [part.replace(b"KEY", key.encode()) for part in parts]
    async with playing(*sent) as server:
        outputs = await outputs_from(server.url, key=f" {key}\n")
    failure = outputs[-1]
    assert isinstance(failure, ModelFailure)
    assert key.lower() not in failure.message.lower()
    assert key[:6] not in failure.message


async def test_a_short_key_may_be_a_word_that_the_model_means() -> None:
    """Keys under 16 characters are not searched for in what a model says."""
    outputs = await outputs_of_pieces([sse(delta("stop", content=SHORT_KEY))], SHORT_KEY)
    assert outputs[-1] == ModelResponse(AssistantMessage(SHORT_KEY), "stop")


async def test_an_adapter_does_not_show_its_key() -> None:
    """Neither it nor what it is made of has the key in its ``repr``."""
    async with open_adapter("https://host/v1", "m", key=KEY) as adapter:
        assert KEY not in repr(adapter)
        assert "https://host/v1/chat/completions" in repr(adapter)


# --- leaving early ----------------------------------------------------------------------------


async def test_closing_hangs_up_at_once() -> None:
    """Closed at a yield, in the midst of a burst, it hangs up, and leaves nothing behind."""
    burst = sse(*[delta(content="x")] * 50)
    async with playing(head(), burst, Play.HOLD) as server:
        with trio.fail_after(TIMEOUT_S):
            async with open_adapter(server.url, "m") as adapter:
                async with aclosing(adapter.stream(asking())) as outputs:
                    async for _ in outputs:
                        break
                await server.hung_up.wait()
    gc.collect()  # a generator left behind would complain now


async def test_closing_under_a_cancellation_hangs_up_too() -> None:
    """Cancelled while its consumer works on a chunk, it is closed without waiting."""
    async with playing(head(), sse(delta(), delta()), Play.HOLD) as server:
        with trio.fail_after(TIMEOUT_S):
            async with open_adapter(server.url, "m") as adapter:
                with trio.CancelScope() as scope:
                    async with aclosing(adapter.stream(asking())) as outputs:
                        async for _ in outputs:
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
                assert scope.cancelled_caught
                await server.hung_up.wait()
    gc.collect()


@pytest.mark.parametrize(
    "begun",
    [[], [head()], [head(), sse(delta())], [head("500 X")], [head(), sse(delta("stop"))]],
    ids=["before the head", "before the body", "within", "in an error", "after the reason"],
)
async def test_cancelling_hangs_up_at_once(begun: list[Part]) -> None:
    """Cancelled while it waits for the provider, it hangs up and lets the cancellation through."""
    gate = Gate()
    async with playing(*begun, gate, Play.HOLD) as server:
        with trio.fail_after(TIMEOUT_S):
            async with open_adapter(server.url, "m") as adapter, trio.open_nursery() as nursery:

                async def consume() -> None:
                    async with aclosing(adapter.stream(asking())) as outputs:
                        async for output in outputs:
                            assert isinstance(output, Chunk)

                nursery.start_soon(consume)
                await gate.reached.wait()
                gate.go.set()
                await wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
            await server.hung_up.wait()
    gc.collect()


async def test_the_connection_is_gone_before_the_response_is_yielded() -> None:
    """Who records the response holds no connection while doing so."""
    async with playing(head(), sse(delta("stop"), "[DONE]"), Play.HOLD) as server:
        with trio.fail_after(TIMEOUT_S):
            async with (
                open_adapter(server.url, "m") as adapter,
                aclosing(adapter.stream(asking())) as outputs,
            ):
                async for output in outputs:
                    if isinstance(output, ModelResponse):
                        await server.hung_up.wait()
    gc.collect()


@pytest.mark.parametrize(
    "begun",
    [
        [head("500 X", "application/json"), b"{"],
        [head("200 OK", "text/html"), b"<html>"],
        [head(), b"data: \xff"],
        [head(), sse(7)],
    ],
)
async def test_a_failure_leaves_no_connection_behind(begun: list[Part]) -> None:
    """Who records a failure holds no connection either."""
    async with playing(*begun, Play.HOLD) as server:
        with trio.fail_after(TIMEOUT_S):
            async with (
                open_adapter(server.url, "m", silence_timeout_s=0.1) as adapter,
                aclosing(adapter.stream(asking())) as outputs,
            ):
                async for output in outputs:
                    if isinstance(output, ModelFailure):
                        await server.hung_up.wait()
    gc.collect()


async def test_an_adapter_serves_many_requests() -> None:
    """One after another and at the same time, also after one that failed."""
    script = [Refuses(), *[Says(f"answer {n}") for n in range(8)]]
    async with strict_provider(script) as provider:
        with trio.fail_after(TIMEOUT_S):
            async with open_adapter(provider.url, "m") as adapter:
                outcomes: list[ModelOutput] = []

                async def ask() -> None:
                    outcomes.append([each async for each in adapter.stream(asking())][-1])

                await ask()
                async with trio.open_nursery() as nursery:
                    for _ in range(8):
                        nursery.start_soon(ask)
    failed, *answered = outcomes
    assert isinstance(failed, ModelFailure)
    said = sorted(each.message.content for each in answered if isinstance(each, ModelResponse))
    assert said == [f"answer {n}" for n in range(8)]
