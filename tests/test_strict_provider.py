"""The strict provider of the tests: the adapter against it, and the rules that it knows."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
import trio
from agent_support import Gate
from chat_rules import body_faults, message_faults
from openai_support import (
    KEY,
    TIMEOUT_S,
    TOOL,
    asking,
    calls_in,
    outputs_from,
)
from provider_server import (
    Says,
    Wants,
    strict_provider,
)

from actors.providers.openai_compatible import open_adapter
from actors.routes import Chunk, ModelResponse
from actors.values import (
    AssistantMessage,
    ToolMessage,
    Usage,
    UserMessage,
)


async def test_a_turn_against_a_strict_provider() -> None:
    """What the adapter sends is what a strict provider takes, calls and their answers included."""
    script = [
        Says("I look.", (Wants("look", '{"q": "é"}'), Wants("look", "{}", id="own"))),
        Says("Found it.", finish_reason="length"),
    ]
    async with strict_provider(script, key=KEY) as provider:
        first = (await outputs_from(provider.url, asking(tools=(TOOL,)), key=KEY))[-1]
        assert isinstance(first, ModelResponse)
        assert calls_in(first) == [("call_00000001", "look", '{"q": "é"}'), ("own", "look", "{}")]
        answers = [ToolMessage("x", call.id) for call in first.message.tool_calls]
        request = asking(UserMessage("hello"), first.message, *answers, tools=(TOOL,))
        *chunks, second = await outputs_from(provider.url, request, key=KEY)
        assert second.message == AssistantMessage("Found it.")
        assert second.finish_reason == "length"
        assert isinstance(second.usage, Usage)
        assert len(chunks) > 3
        assert provider.complaints == []
        failure = (await outputs_from(provider.url, key=KEY))[-1]
        assert failure.message.endswith("asked more often than scripted")
        assert (await outputs_from(provider.url))[-1].message.startswith(
            "the provider answered 401"
        )
    assert len(provider.requests) == 3
    assert len(provider.complaints) == 2


async def test_a_strict_provider_can_be_stopped_half_way() -> None:
    """At a gate half of the answer is out, and the rest waits."""
    gate = Gate()
    async with strict_provider([Says("a longer answer", gate=gate)]) as provider:
        with trio.fail_after(TIMEOUT_S):
            async with open_adapter(provider.url, "m") as adapter:
                stream = adapter.stream(asking())
                async with aclosing(stream):
                    assert isinstance(await anext(stream), Chunk)
                    await gate.reached.wait()
                    gate.go.set()
                    outputs = [output async for output in stream]
    assert outputs[-1] == ModelResponse(AssistantMessage("a longer answer"), "stop", Usage(7, 4))


USER: Any = {"role": "user", "content": "x"}
CALLING: Any = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for call_id in ("a", "b")
    ],
}
A: Any = {"role": "tool", "content": "1", "tool_call_id": "a"}
B: Any = {"role": "tool", "content": "", "tool_call_id": "b"}


CONVERSATIONS: list[tuple[list[Any], str | None]] = [
    ([USER, CALLING, B, A], None),
    ([{"role": "system", "content": "x"}, USER, CALLING, A, B, USER], None),
    ([USER, USER], "second user message"),
    ([USER, CALLING, A], "not answered"),
    ([USER, CALLING, A, USER], "not answered"),
    ([USER, CALLING, A, A, B], "answers no open"),
    ([USER, A], "answers no open"),
    ([USER, CALLING, A, B, CALLING, A, B], "used before"),
    ([USER, {"role": "assistant", "content": "x"}], "not one to answer"),
    ([USER, {"role": "system", "content": "x"}, USER], "comes first"),
    ([{"role": "user", "content": ""}], "messages/0"),
    ([{"role": "robot", "content": "x"}], "robot"),
    ([USER, {"role": "assistant", "content": None}, USER], "messages/1"),
    ([USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER], "messages/1"),
    ([USER, {**CALLING, "content": ""}, A, B], "messages/1"),
    ([USER, CALLING, {**A, "content": None}, B], "messages/2"),
]


@pytest.mark.parametrize(("messages", "told"), CONVERSATIONS)
def test_the_rules_of_a_conversation(messages: list[Any], told: str | None) -> None:
    """The strict provider takes what real ones take, and names what they refuse."""
    faults = message_faults(messages)
    assert (faults == []) if told is None else told in faults[0]


def test_the_rules_of_a_request() -> None:
    """So it does with the body around the conversation."""
    function = {"name": "f", "description": "", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    good = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [USER],
        "tools": [tool],
    }
    assert body_faults(good) == []
    cases: list[dict[str, Any]] = [
        {"tools": []},
        {"tools": [tool, tool]},
        {"tools": [function]},
        {"tools": [{**tool, "function": {**function, "parameters": {}}}]},
        {"stream": False},
        {"stream_options": None},
        {"messages": []},
        {"model": ""},
        {"temperature": 1},
    ]
    for wrong in cases:
        assert body_faults({**good, **wrong}) != []
