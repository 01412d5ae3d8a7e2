"""The route table, and the built-in echo model behind one of its routes."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, cast

import pytest
import trio
from agent_support import fails, scripted
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import RejectedEvent, RouteUnavailable
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.routes import Chunk, ModelFailure, ModelOutput, ModelRequest, ModelResponse, RouteTable
from actors.values import AssistantMessage, Message, Route, UserMessage

OTHER = Route("other", "one")

texts = st.text(st.characters(exclude_categories=["Cs"]))


def echoed(messages: tuple[Message, ...], turn_n: int = 1) -> list[ModelOutput]:
    async def collect() -> list[ModelOutput]:
        request = ModelRequest(ECHO_ROUTE, "", (), messages, turn_n, "turn-1/step-1")
        return [output async for output in EchoAdapter().stream(request)]

    return trio.run(collect)


def delta(chunk: Chunk) -> dict[str, Any]:
    value = cast("dict[str, Any]", chunk.value.value())
    assert value["object"] == "chat.completion.chunk"
    (choice,) = value["choices"]
    return choice


@given(texts, st.integers(1, 10**9))
def test_echo_streams_exactly_what_it_then_answers(text: str, turn_n: int) -> None:
    """The chunks joined are the response, to the last space, and one response ends the stream."""
    *chunks, response = echoed((UserMessage(text),), turn_n)
    assert isinstance(response, ModelResponse)
    assert response.message == AssistantMessage(f"[turn {turn_n}] you said: {text}")
    deltas = [delta(chunk) for chunk in chunks if isinstance(chunk, Chunk)]
    assert len(deltas) == len(chunks)
    words = [choice["delta"]["content"] for choice in deltas[:-1]]
    assert "".join(words) == response.message.content
    assert all(len(word.split()) <= 1 for word in words)
    assert [choice["finish_reason"] for choice in deltas] == [None] * len(words) + ["stop"]


def test_echo_answers_the_last_user_message() -> None:
    """What came before in the session does not change the answer, whoever said it."""
    history = (UserMessage("first"), AssistantMessage("an answer"), UserMessage("second one"))
    response = echoed(history, 2)[-1]
    assert isinstance(response, ModelResponse)
    assert response.message.content == "[turn 2] you said: second one"


async def test_echo_can_be_cancelled_before_each_word() -> None:
    """A long answer holds up no other task: each chunk has a checkpoint before it."""
    request = ModelRequest(ECHO_ROUTE, "", (), (UserMessage("a b c"),), 1, "turn-1/step-1")
    chunks_n = len(["[turn", "1]", "you", "said:", "a", "b", "c"]) + 1
    for sent_n in range(chunks_n):
        async with aclosing(EchoAdapter().stream(request)) as stream:
            for _ in range(sent_n):
                assert isinstance(await anext(stream), Chunk)
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            assert scope.cancelled_caught


def test_no_route_asked_for_takes_the_default() -> None:
    """None resolves to the default, a route to its own adapter."""
    echo, other = EchoAdapter(), scripted([fails()])
    table = RouteTable(ECHO_ROUTE, {ECHO_ROUTE: echo, OTHER: other})
    assert table.resolve(None) == (ECHO_ROUTE, echo)
    assert table.resolve(ECHO_ROUTE) == (ECHO_ROUTE, echo)
    assert table.resolve(OTHER) == (OTHER, other)


@pytest.mark.parametrize("route", [OTHER, Route("echo", "one"), Route("other", "echo")])
def test_a_route_that_is_not_in_the_table_is_refused(route: Route) -> None:
    """Provider and model are looked up as a pair; the refusal names both."""
    table = RouteTable(ECHO_ROUTE, {ECHO_ROUTE: EchoAdapter()})
    with pytest.raises(RouteUnavailable, match=f"{route.provider}/{route.model}") as refused:
        table.resolve(route)
    assert (refused.value.provider, refused.value.model) == (route.provider, route.model)


def test_a_default_that_is_not_in_the_table_is_refused() -> None:
    """A table whose default leads nowhere cannot be made."""
    with pytest.raises(RouteUnavailable):
        RouteTable(OTHER, {ECHO_ROUTE: EchoAdapter()})


def test_the_table_does_not_change_with_what_it_was_made_of() -> None:
    """Adding to the mapping afterwards adds no route."""
    adapters = {ECHO_ROUTE: EchoAdapter()}
    table = RouteTable(ECHO_ROUTE, adapters)
    adapters[OTHER] = EchoAdapter()
    with pytest.raises(RouteUnavailable):
        table.resolve(OTHER)


@pytest.mark.parametrize(("code", "message"), [("", "m"), ("\ud800", "m"), ("c", "\ud800")])
def test_a_failure_that_could_not_be_recorded_cannot_be_made(code: str, message: str) -> None:
    """The fault shows in the adapter that made it, not when its Turn is to be closed."""
    with pytest.raises(RejectedEvent):
        ModelFailure(code, message)
