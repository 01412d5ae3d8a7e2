"""The plugins that a Host is made of, without its web side.

Who requires whom is the order of the start, and backwards that of the end::

    session ─┬─▶ agent ──▶ invocations
    models ──┤
    tools ───┴─▶ clock, recall

Nothing else puts them in order. What others need until they have unloaded (the writer, the
running Turn) lives in Effects, whose tasks are shielded until the Effect is left.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import field, frozen

from actors.agent import DEFAULT_MAX_STEPS, Agent, recover
from actors.builtin_tools import clock_tool, recall_tool
from actors.errors import StoreError
from actors.invocations import Invocations, open_invocations
from actors.kernel.fibers import Plugin
from actors.kernel.hooks import ParallelHook
from actors.kernel.keys import ServiceKey
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.providers.scripted import SCRIPTED_ROUTE, ScriptedAdapter, load_script
from actors.routes import CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S, Adapter, RouteTable
from actors.session_log import SessionLog, open_session_log
from actors.tools import PromptRegistry, ToolRegistry
from actors.values import Route

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from actors.kernel.context import Context

_log: FilteringBoundLogger = structlog.get_logger()

SESSION_LOG = ServiceKey[SessionLog]("session_log")
ROUTES = ServiceKey[RouteTable]("routes")
TOOLS = ServiceKey[ToolRegistry]("tools")
PROMPTS = ServiceKey[PromptRegistry]("prompts")
AGENT = ServiceKey[Agent]("agent")
INVOCATIONS = ServiceKey[Invocations]("invocations")

STOPPING = ParallelHook[None]("host/stopping")
"""The first phase of a stop: settle what is live and have it answered, while every plugin is
still ACTIVE. The Host waits for its listeners before it unmounts anything."""


@frozen
class SessionConfig:
    """Which session, and where it is kept."""

    session_id: str
    database: Path | None
    """None for process memory."""
    on_progress: Callable[[int, int], None] | None = None
    """Called as the session loads, with the events loaded so far and how many there are."""


async def _set_up_session(context: Context, config: SessionConfig) -> None:
    # The store cannot be cancelled in the middle of its closing, so a deadline would only lie.
    log = await context.enter(_session(config), "session log", math.inf)
    # A stop that comes now waits for it: it is one transaction, and no stop leaves a Turn open.
    with trio.CancelScope(shield=True):
        owed = await recover(log)
        if owed:
            at = log.snapshot().last_sequence
            _log.warning("recovery recorded", session=log.session_id, sequence=at, events=len(owed))
    await trio.lowlevel.checkpoint_if_cancelled()  # asked to leave meanwhile
    context.provide(SESSION_LOG, log)


@asynccontextmanager
async def _session(config: SessionConfig) -> AsyncGenerator[SessionLog, None]:
    async with open_session_log(
        config.session_id, config.database, on_progress=config.on_progress
    ) as log:
        at = log.snapshot().last_sequence
        _log.info("session opened", session=log.session_id, sequence=at, events=at)
        if log.other_session_ids:
            _log.warning(
                "this session is new in a file that holds others",
                session=log.session_id,
                others=list(log.other_session_ids),
            )
        yield log
        _log.info("session closing", session=log.session_id, sequence=log.snapshot().last_sequence)
        owes = log.snapshot().open_turn is not None
    _log.info("session closed", session=config.session_id, sequence=log.snapshot().last_sequence)
    if owes:
        raise StoreError("what the last turn owes could not be recorded", config.database)


@frozen
class OpenAIConfig:
    """A model behind Chat Completions; it gets the route ``openai/MODEL``."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    silence_timeout_s: float = SILENCE_TIMEOUT_S


@frozen
class ModelsConfig:
    """Which models there are beside the built-in ``echo/echo``. The last one is the default."""

    openai: OpenAIConfig | None = None
    replay: Path | None = None
    """A session's export, whose model output is played again."""


async def _set_up_models(context: Context, config: ModelsConfig) -> None:
    adapters: dict[Route, Adapter] = {ECHO_ROUTE: EchoAdapter()}
    if config.openai is not None:
        # The HTTP client takes a tenth of a start, and most Hosts on a laptop have no use for it.
        from actors.providers.openai_compatible import open_adapter  # noqa: PLC0415

        opening = open_adapter(
            config.openai.url,
            config.openai.model,
            key=config.openai.key,
            connect_timeout_s=config.openai.connect_timeout_s,
            silence_timeout_s=config.openai.silence_timeout_s,
        )
        route = Route("openai", config.openai.model)
        adapters[route] = await context.enter(opening, "connections to the model provider")
    if config.replay is not None:
        script = await trio.to_thread.run_sync(load_script, config.replay)
        adapters[SCRIPTED_ROUTE] = ScriptedAdapter(script)
    context.provide(ROUTES, RouteTable(next(reversed(adapters)), adapters))


async def _set_up_tools(context: Context, _config: None) -> None:
    context.provide(TOOLS, ToolRegistry())
    context.provide(PROMPTS, PromptRegistry())


async def _set_up_clock(context: Context, _config: None) -> None:
    await context.enter(context.require(TOOLS).contributed(clock_tool()), "tool clock")


async def _set_up_recall(context: Context, _config: None) -> None:
    tool = recall_tool(context.require(SESSION_LOG))
    await context.enter(context.require(TOOLS).contributed(tool), "tool recall")


@frozen
class AgentConfig:
    """How Turns are run."""

    system_prompt: str = ""
    max_steps: int = DEFAULT_MAX_STEPS


async def _set_up_agent(context: Context, config: AgentConfig) -> None:
    prompts = context.require(PROMPTS)
    await context.enter(prompts.contributed("system", config.system_prompt), "system prompt")
    agent = Agent(
        context.require(SESSION_LOG),
        context.require(ROUTES),
        context.require(TOOLS),
        prompts,
        context.hooks,
        config.max_steps,
    )
    context.provide(AGENT, agent)


async def _set_up_invocations(context: Context, _config: None) -> None:
    log, agent = context.require(SESSION_LOG), context.require(AGENT)
    # A running Turn is cancelled and records so; how long a model's adapter takes to let go of
    # its connection is not known here.
    invocations = await context.enter(open_invocations(log, agent), "invocations", math.inf)

    async def settle(_: None) -> None:
        await invocations.shut_down()
        _log.info("invocations settled", session=log.session_id)

    context.listen(STOPPING, settle)
    context.provide(INVOCATIONS, invocations)


SESSION = Plugin("session", _set_up_session)
"""Opens the log and records what an earlier process left owed, before anyone can see the log."""
MODELS = Plugin("models", _set_up_models)
"""Knows the model adapters."""
TOOLS_PLUGIN = Plugin("tools", _set_up_tools)
"""Keeps the tools and prompts that other plugins contribute."""
CLOCK = Plugin("clock", _set_up_clock, requires=(TOOLS,))
"""Contributes the tool ``clock``: what time it is."""
RECALL = Plugin("recall", _set_up_recall, requires=(TOOLS, SESSION_LOG))
"""Contributes the tool ``recall``: what was said in this session."""
AGENT_PLUGIN = Plugin("agent", _set_up_agent, requires=(SESSION_LOG, ROUTES, TOOLS, PROMPTS))
"""Runs Turns."""
INVOCATIONS_PLUGIN = Plugin("invocations", _set_up_invocations, requires=(SESSION_LOG, AGENT))
"""Queues them."""
