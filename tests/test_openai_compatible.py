"""The OpenAI-compatible adapter: what it sends, and how an answer is put together."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from openai_support import (
    KEY,
    TOOL,
    asking,
    calls_in,
    outcome_of,
    outputs_from,
    outputs_of_pieces,
    response_to,
)
from provider_server import (
    Part,
    Play,
    call_delta,
    call_fragment,
    delta,
    head,
    playing,
    sse,
    usage,
)
from strategies import json_values, names, texts

from actors import strict_json
from actors.errors import ConfigurationError
from actors.providers import event_stream, openai_compatible
from actors.providers.openai_compatible import open_adapter
from actors.routes import Chunk, ModelFailure, ModelResponse
from actors.values import (
    AssistantMessage,
    Json,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


# --- what is sent -----------------------------------------------------------------------------


async def test_the_request_on_the_wire() -> None:
    """Prompt, messages and tools go out in the provider's own shapes, arguments byte for byte."""
    ugly = '{"q" : "\\u00e9\n", "q": 1e400'
    request = asking(
        UserMessage("one"),
        UserMessage("two"),
        AssistantMessage("", (ToolCall("a", "look", ugly), ToolCall("b", "look", "{}"))),
        ToolMessage("é\x00", "a"),
        ToolMessage("", "b"),
        AssistantMessage("then", (ToolCall("c", "look", ""),)),
        ToolMessage("x", "c"),
        AssistantMessage("done"),
        UserMessage("three"),
        system="Be brief.",
        tools=(TOOL,),
    )
    async with playing(head(), sse(delta("stop"), "[DONE]")) as server:
        await outputs_from(server.url, request, key=KEY)
    (received,) = server.requests

    def function(call_id: str, arguments: str) -> dict[str, Any]:
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": "look", "arguments": arguments},
        }

    assert received.line == "POST /v1/chat/completions HTTP/1.1"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["connection"] == "close"
    body = strict_json.loads(received.body.decode())
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one\n\ntwo"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [function("a", ugly), function("b", "{}")],
            },
            {"role": "tool", "content": "é\x00", "tool_call_id": "a"},
            {"role": "tool", "content": "", "tool_call_id": "b"},
            {"role": "assistant", "content": "then", "tool_calls": [function("c", "")]},
            {"role": "tool", "content": "x", "tool_call_id": "c"},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "three"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": TOOL.parameters.value(),
                },
            }
        ],
    }


async def test_what_is_empty_is_left_out() -> None:
    """Without a prompt, tools and a key there is no system message, no list and no header."""
    async with playing(head(), sse(delta("stop"))) as server:
        await outputs_from(server.url)
    (received,) = server.requests
    assert set(received.json()) == {"model", "stream", "stream_options", "messages"}
    assert received.json()["messages"] == [{"role": "user", "content": "hello"}]
    assert "authorization" not in received.headers


@pytest.mark.parametrize(
    ("tail", "path"),
    [("", "/v1"), ("/", "/v1"), ("/a%2Fb/", "/v1/a%2Fb"), ("?version=1", "/v1")],
)
async def test_the_path_is_appended_to_the_url(tail: str, path: str) -> None:
    """A slash at the end is tolerated, escapes are kept, a query stays at the end."""
    async with playing(head(), sse(delta("stop"))) as server:
        await outputs_from(server.url + tail)
    query = tail if tail.startswith("?") else ""
    assert server.requests[0].line == f"POST {path}/chat/completions{query} HTTP/1.1"


async def test_a_history_may_be_longer_than_one_stored_text(monkeypatch: Any) -> None:
    """The bound on stored texts is none on requests."""
    monkeypatch.setattr(strict_json, "MAX_BYTES", 10_000)
    parts = [UserMessage("x" * 6_000), AssistantMessage("y" * 6_000), UserMessage("z")]
    async with playing(head(), sse(delta("stop"))) as server:
        outputs = await outputs_from(server.url, asking(*parts))
    assert isinstance(outputs[-1], ModelResponse)
    assert len(server.requests[0].json()["messages"]) == 3


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://host/",
        "http://",
        "http:///v1",
        "https://[zz]/",
        "http://host:port",
        "http://host:0",
        "http://host:65536",
        "http://ho st/",
        "http://host/\n",
        "http://host..name/",
        f"http://{'a' * 64}.example/",
        "http://user:password@host/",
        "http://\ud83d/",
    ],
)
async def test_an_unusable_url_is_refused(url: str) -> None:
    """It is refused when the adapter is built, and a password in it is not repeated."""
    with pytest.raises(ConfigurationError) as caught:
        async with open_adapter(url, "m"):
            pass
    assert "password@" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": "\ud83d"},
        {"key": ""},
        {"key": " \n"},
        {"key": "sk-secret with a blank"},
        {"key": "sk-secret\r\nX-More: 1"},
        {"key": "sk-secreté"},
        {"connect_timeout_s": 0.0},
        {"silence_timeout_s": -1.0},
        {"silence_timeout_s": float("nan")},
    ],
)
async def test_unusable_options_are_refused(options: dict[str, Any]) -> None:
    """So are a model without a name, a key that no header carries, and a timeout of nothing."""
    with pytest.raises(ConfigurationError) as caught:
        async with open_adapter("http://host/", options.pop("model", "m"), **options):
            pass
    assert "sk-secret" not in str(caught.value)


async def test_a_proxy_is_not_asked_for_a_provider_on_this_machine(monkeypatch: Any) -> None:
    """What the environment names as a proxy is used for others alone; an unusable one is named."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert isinstance(await outcome_of(head(), sse(delta("stop"))), ModelResponse)
    (failure,) = await outputs_from("http://model.invalid/v1")
    assert failure.code == "provider_network"
    monkeypatch.setenv("HTTP_PROXY", "gopher://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="proxy"):
        async with open_adapter("http://model.invalid/v1", "m"):
            pass


# --- an answer put together -------------------------------------------------------------------


async def test_chunks_come_as_they_are_and_before_the_response() -> None:
    """Each chunk is yielded whole, with fields that nobody here knows; then one response."""
    data: list[Any] = [
        {"id": "x", "choices": [], "prompt_filter_results": [1.5, None]},
        delta(role="assistant", content=None, reasoning_content="hm"),
        delta(content="Hel", unknown={"deep": ["é", -0.0]}),
        delta(content="lo"),
        delta("stop"),
        usage(3, 5),
    ]
    async with playing(head(), sse(*data, "[DONE]")) as server:
        *chunks, response = await outputs_from(server.url)
    assert [chunk.value for chunk in chunks] == [Json.of(each) for each in data]
    assert response == ModelResponse(AssistantMessage("Hello"), "stop", Usage(3, 5))


async def test_a_chunk_that_makes_no_sense_is_yielded_before_it_is_refused() -> None:
    """What the provider said is on record, also where it is why the Turn failed."""
    cases: list[Any] = [7, {"choices": {}}, {"error": {"message": "no"}}]
    for data in cases:
        async with playing(head(), sse(data)) as server:
            chunk, failure = await outputs_from(server.url)
        assert chunk == Chunk(Json.of(data))
        assert isinstance(failure, ModelFailure)


LOOK = {"name": "look", "arguments": "{}"}


@pytest.mark.parametrize(
    ("data", "calls"),
    [
        pytest.param(
            [
                call_delta(index=0, id="a", type="function", name="look", arguments=""),
                call_delta(index=0, arguments='{"q"'),
                call_delta(index=1, id="b", name="see", arguments='{"r"'),
                call_delta(index=0, arguments=":1}"),
                call_delta(index=1, arguments=":2}"),
            ],
            [("a", "look", '{"q":1}'), ("b", "see", '{"r":2}')],
            id="merged by index",
        ),
        pytest.param(
            [call_delta(index=1, id="b", **LOOK), call_delta(index=0, id="a", **LOOK)],
            [("a", "look", "{}"), ("b", "look", "{}")],
            id="ordered by index",
        ),
        pytest.param(
            [
                call_delta(id="a", name="look", arguments='{"q'),
                call_delta(id="b", name="see", arguments='{"r'),
                call_delta(id="a", arguments='":1}'),
                call_delta(id="b", arguments='":2}'),
            ],
            [("a", "look", '{"q":1}'), ("b", "see", '{"r":2}')],
            id="no index: by id",
        ),
        pytest.param(
            [
                delta(tool_calls=[call_fragment(name="look"), call_fragment(name="see")]),
                delta(tool_calls=[call_fragment(arguments="1"), call_fragment(arguments="2")]),
                call_delta(arguments="3"),
            ],
            [("call-1", "look", "1"), ("call-2", "see", "23")],
            id="neither: by position",
        ),
        pytest.param(
            [call_delta(index=None, **LOOK), call_delta(name="see", arguments="1")],
            [("call-1", "look", "{}"), ("call-2", "see", "1")],
            id="neither: whole calls",
        ),
        pytest.param(
            [call_delta(index=0, id="a", **LOOK), call_delta(index=0, id="b", **LOOK)],
            [("a", "look", "{}"), ("b", "look", "{}")],
            id="all of one index, with ids",
        ),
        pytest.param(
            [call_delta(index=0, id="", **LOOK), call_delta(index=0, id="", **LOOK)],
            [("call-1", "look", "{}"), ("call-2", "look", "{}")],
            id="all of one index, with empty ids",
        ),
        pytest.param(
            [
                call_delta(index=0, id="a", name="look", arguments=""),
                call_delta(index=0, id="b", name="see", arguments="{}"),
            ],
            [("a", "look", ""), ("b", "see", "{}")],
            id="one index, the first without arguments",
        ),
        pytest.param(
            [
                call_delta(index=0, id="a", name="look", arguments="{"),
                call_delta(index=0, id="a", name="look", arguments="}"),
            ],
            [("a", "look", "{}")],
            id="id and name repeated",
        ),
        pytest.param(
            [
                call_delta(index=0, id="made-up-1", name="look", arguments="{"),
                call_delta(index=0, id="made-up-2", name=None, arguments="}"),
            ],
            [("made-up-1", "look", "{}")],
            id="an id made up for every delta",
        ),
        pytest.param(
            [
                call_delta(index=0, name="lo"),
                call_delta(index=0, name="ok", arguments=None),
                call_delta(index=0, id="late", arguments="{}"),
            ],
            [("late", "look", "{}")],
            id="name in parts, id late",
        ),
        pytest.param(
            [
                call_delta(index=0, id="call-2", **LOOK),
                call_delta(index=1, **LOOK),
                call_delta(index=2, id=None, **LOOK),
                call_delta(index=3, id="call-3", **LOOK),
            ],
            [
                ("call-2", "look", "{}"),
                ("call-4", "look", "{}"),
                ("call-5", "look", "{}"),
                ("call-3", "look", "{}"),
            ],
            id="made ids do not clash",
        ),
        pytest.param(
            [call_delta(index=0, id="a", **LOOK), call_delta(index=1, id="a", **LOOK)],
            [("a", "look", "{}"), ("a", "look", "{}")],
            id="repeated ids are left",
        ),
        pytest.param(
            [call_delta(index=0, id="a", name="look", arguments="{not json")],
            [("a", "look", "{not json")],
            id="arguments that are not JSON",
        ),
        pytest.param(
            [delta(tool_calls=None), delta(tool_calls=[]), delta(content=None)], [], id="nulls"
        ),
    ],
)
async def test_tool_calls_are_put_together(
    data: list[object], calls: list[tuple[str, str, str]]
) -> None:
    """Fragments are merged however a provider numbers them, and every call has an id."""
    response = await response_to(*data, delta("tool_calls"))
    assert calls_in(response) == calls
    assert response.message.content == ""


@pytest.mark.parametrize(
    "counted",
    [
        None,
        {},
        "many",
        {"prompt_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
    ],
)
async def test_malformed_usage_is_ignored(counted: object) -> None:
    """A count that makes no sense costs no Turn, and not the count that did."""
    response = await response_to(delta("stop", content="x"), {"choices": [], "usage": counted})
    assert response == ModelResponse(AssistantMessage("x"), "stop", None)
    response = await response_to(delta("stop"), usage(1, 2), {"choices": [], "usage": counted})
    assert response.usage == Usage(1, 2)


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "anything"])
async def test_any_reason_to_finish_completes_an_answer(reason: str) -> None:
    """Also an answer with neither text nor calls, and one whose last chunk has no delta."""
    response = await response_to({"choices": [{"finish_reason": reason}], "error": None})
    assert response == ModelResponse(AssistantMessage(""), reason)


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param([], id="closed"),
        pytest.param([Play.HOLD], id="silent"),
        pytest.param([Play.RESET], id="reset"),
        pytest.param([b"data: {"], id="cut short"),
        pytest.param([sse(b"{")], id="not JSON"),
        pytest.param([sse({"error": {"message": "late"}})], id="an error"),
        pytest.param([b"\xff"], id="not UTF-8"),
    ],
)
async def test_nothing_undoes_a_finished_answer(tail: list[Part]) -> None:
    """What goes wrong after the reason to finish ends the reading, and the answer stands."""
    begun = [head(), sse(delta("stop", content="all"), usage(1, 1))]
    response = await outcome_of(*begun, *tail, silence_timeout_s=0.1)
    assert response == ModelResponse(AssistantMessage("all"), "stop", Usage(1, 1))


async def test_a_finished_answer_does_not_wait_for_long(monkeypatch: Any) -> None:
    """A provider that finishes, and then neither ends the stream nor goes on, holds nobody up."""
    monkeypatch.setattr(openai_compatible, "_TRAILER_S", 0.05)
    response = await outcome_of(head(), sse(delta("stop")), b": still here\n\n", Play.HOLD)
    assert isinstance(response, ModelResponse)


# --- laws -------------------------------------------------------------------------------------

FIRST = json.dumps(delta(content="é😀 "), ensure_ascii=False).encode()
STREAM = (
    b"\xef\xbb\xbfdata: " + FIRST + b"\r\n\r\n"
    b": comment\r\n\r\nevent: x\rid: 7\rretry: 1\rdata: []\r\n\r\n:keep-alive\n\n"
    + sse(delta(content="\u2028\x85|"), call_delta(index=0, name="look", arguments="{}"))
    + b'data:{"choices":\r\ndata: []}\r\n\r\n'
    + sse(delta("tool_calls"), usage(1, 2)).replace(b"\n", b"\r")
    + b"data: [DONE]\r\r"
).replace(b"data: []\r\n", b'data: {"choices":[]}\r\n')
TWO = sse(delta(content="a"), delta(content="b"))
FAULTY = [
    STREAM[:200],
    STREAM[:-40] + b"\xff" + STREAM[-40:],
    STREAM[:300] + b"\xed\xa0\xbd",
    TWO + b"data: " + b"x" * 600 + b"\n\n" + TWO,
    TWO + b"\n\n\n\n\n: too long" * 100 + TWO,
    TWO + b"\n: too long" * 100 + TWO,
    TWO + b"\n\n\r\n\r\n\r\r: not too" * 100 + sse(delta("stop")),
]


@given(st.sampled_from([STREAM, *FAULTY]), st.data())
def test_how_a_stream_is_cut_does_not_matter(stream: bytes, data: st.DataObject) -> None:
    """The same bytes in any pieces, single ones too, are the same outputs, good or bad."""
    some = st.lists(st.integers(0, len(stream)), max_size=30).map(sorted)
    cuts = data.draw(some | st.just(list(range(len(stream)))))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "MAX_EVENT_CHARS", 500)
        assert trio.run(outputs_of_pieces, pieces) == trio.run(outputs_of_pieces, [stream])


def test_line_ends_of_every_kind() -> None:
    """A mark of byte order, comments, other fields, and data over several lines are read."""
    outputs = trio.run(outputs_of_pieces, [STREAM])
    message = AssistantMessage("é😀 \u2028\x85|", (ToolCall("call-1", "look", "{}"),))
    assert outputs[-1] == ModelResponse(message, "tool_calls", Usage(1, 2))
    assert len(outputs) == 8


def test_the_last_event_may_lack_its_blank_line() -> None:
    """A stream that ends with its last event, or in the midst of its line end, is whole."""
    whole = sse(delta("stop", content="x"))
    for length in (len(whole), len(whole) - 1, len(whole) - 2):
        (_, response) = trio.run(outputs_of_pieces, [whole[:length]])
        assert response == ModelResponse(AssistantMessage("x"), "stop")
    (failure,) = trio.run(outputs_of_pieces, [whole[:-3]])
    assert isinstance(failure, ModelFailure)


def cut(draw: st.DrawFn, text: str) -> Iterator[str]:
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    bounds = [0, *cuts, len(text)]
    return (text[a:b] for a, b in pairwise(bounds))


@st.composite
def answers(draw: st.DrawFn) -> tuple[AssistantMessage, list[dict[str, Any]]]:
    """Return a message, and deltas that it may come in: calls beside one another, text between."""
    calls = draw(st.lists(st.builds(ToolCall, names, names, texts), max_size=3))
    message = AssistantMessage(draw(texts), tuple(calls))
    queues: list[list[dict[str, Any]]] = [
        [delta(content=piece) for piece in cut(draw, message.content)]
    ]
    for index, call in enumerate(calls):
        begun = call_delta(index=index, id=call.id, name=call.name)
        rest = [call_delta(index=index, arguments=piece) for piece in cut(draw, call.arguments)]
        queues.append([begun, *rest])
    deltas: list[dict[str, Any]] = []
    while queues:
        queue = draw(st.sampled_from(queues))
        deltas.append(queue.pop(0))
        queues = [each for each in queues if each]
    return message, deltas


@given(answers())
def test_an_answer_cut_into_deltas_is_put_together(
    answer: tuple[AssistantMessage, list[dict[str, Any]]],
) -> None:
    """Text and arguments come back to the last character, wherever they were cut."""
    message, deltas = answer
    outputs = trio.run(outputs_of_pieces, [sse(*deltas, delta("stop"))])
    assert outputs[-1] == ModelResponse(message, "stop")


@given(json_values)
def test_no_chunk_is_too_strange(value: Any) -> None:
    """Any JSON at all comes to its chunk, then to a failure or a response, and never raises."""
    outputs = trio.run(outputs_of_pieces, [sse(json.dumps(value).encode(), {"choices": [value]})])
    assert outputs[0] == Chunk(Json.of(value))
    assert isinstance(outputs[-1], ModelFailure)
