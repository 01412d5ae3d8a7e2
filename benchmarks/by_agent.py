"""A session that the agent itself records, the workload's part played by a model and a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from actors.agent import Agent
from actors.routes import Chunk, ModelResponse, RouteTable
from actors.session_log import open_session_log
from actors.tools import PromptRegistry, Tool, ToolRegistry
from actors.values import AssistantMessage
from benchmarks.raw import SESSION_ID
from benchmarks.workload import (
    ANSWER_CHARACTERS_N,
    CHUNKS_A_TURN,
    CHUNKS_OF_A_CALL,
    INPUT_CHARACTERS_N,
    ROUTE,
    SYSTEM_PROMPT,
    USAGE,
    WEATHER,
    chunk,
    has_tool_call,
    text,
    tool_call,
    tool_result,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from actors.routes import ModelOutput, ModelRequest
    from actors.strict_json import JsonValue


async def add_turns(path: Path, turns_n: int) -> None:
    """Have the agent run so many more Turns of a session, and close its file."""
    tools, prompts = ToolRegistry(), PromptRegistry()
    async with (
        tools.contributed(Tool(WEATHER, _weather)),
        prompts.contributed("system", SYSTEM_PROMPT),
        open_session_log(SESSION_ID, database=path) as log,
    ):
        agent = Agent(log, RouteTable(ROUTE, {ROUTE: _Chatty()}), tools, prompts)
        for _ in range(turns_n):
            turn_n = log.snapshot().turns_n + 1
            await agent.run_turn(f"bench-{turn_n}", text(INPUT_CHARACTERS_N, turn_n))
        assert log.snapshot().open_turn is None


async def _weather(_arguments: JsonValue) -> JsonValue:
    await trio.lowlevel.checkpoint()
    return tool_result(1).value()


class _Chatty:
    """Plays the model's part of the workload."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelOutput, None]:
        turn_n, is_first = request.turn_n, request.step_id.endswith("/step-1")
        chunks = range(CHUNKS_A_TURN)
        if has_tool_call(turn_n):
            chunks = chunks[:CHUNKS_OF_A_CALL] if is_first else chunks[CHUNKS_OF_A_CALL:]
        for n in chunks:
            await trio.lowlevel.checkpoint()
            yield Chunk(chunk(n))
        if has_tool_call(turn_n) and is_first:
            yield ModelResponse(AssistantMessage("", (tool_call(turn_n),)), "tool_calls", USAGE)
        else:
            answer = AssistantMessage(text(ANSWER_CHARACTERS_N, turn_n))
            yield ModelResponse(answer, "stop", USAGE)
