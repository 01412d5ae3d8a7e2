"""The Host: assembly only. Which plugins, and how the process begins and ends.

Start: models, session (lock, load, recovery), agent, invocations, and last the listener and the
one line on standard output. Stop, in two phases: first what is live is cancelled, settles and is
answered while every plugin still stands; then the plugins are unmounted, dependents first, until
the file is checkpointed and closed.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import structlog
import trio
from attrs import define, field, frozen

from actors.agent import DEFAULT_MAX_STEPS
from actors.errors import SessiondError
from actors.kernel.runtime import open_runtime
from actors.plugins import (
    AGENT_PLUGIN,
    CLOCK,
    INVOCATIONS_PLUGIN,
    MODELS,
    RECALL,
    SESSION,
    STOPPING,
    TOOLS_PLUGIN,
    AgentConfig,
    ModelsConfig,
    SessionConfig,
)
from actors.tasks import running_beside
from web import interpreter
from web.logs import LogFormat, configure_logs
from web.progress import progress_bar
from web.server import HTTP, HttpConfig, loopback_address, raise_descriptor_limit
from web.streams import output_named, write_error
from web.versions import version_of

if TYPE_CHECKING:
    from pathlib import Path

    from actors.kernel.fibers import Fiber, Plugin
    from actors.kernel.runtime import Runtime

STOP_DEADLINE_S = 10.0
"""From the first signal; then the process ends, whatever is still open."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What stops a Host. SIGHUP does not where whoever started it had it ignored, as nohup does."""

_log = structlog.get_logger()


@frozen
class HostConfig:
    """The options of ``serve``."""

    session_db: Path | None = None
    session_id: str = "default"
    host: str = "127.0.0.1"
    port: int = 8765
    system_prompt: str = ""
    max_steps: int = DEFAULT_MAX_STEPS
    models: ModelsConfig = field(factory=ModelsConfig)
    plugins: tuple[tuple[Plugin[Any], Any], ...] = ()
    """More plugins, each with its config: they are mounted beside the built-in tools, and the
    Host can do without them."""
    log_format: LogFormat = "console"
    log_level: str = "info"


@define
class _Stop:
    """What the first signal does: cancel the start, or ask the running Host to stop."""

    asked: trio.Event = field(factory=trio.Event)
    starting: trio.CancelScope = field(factory=trio.CancelScope)
    has_started: bool = False

    def ask(self) -> None:
        self.asked.set()
        if not self.has_started:
            self.starting.cancel()


async def run_host(config: HostConfig) -> None:
    """Serve a session until a signal asks to stop, and return after a clean stop.

    SIGINT, SIGTERM and SIGHUP are taken before the file is touched. A second one, or
    :data:`STOP_DEADLINE_S` after the first, ends the process at once with exit code 1.

    Raises:
        ConfigurationError: an option asks for what cannot be.
        ListenError: the port is taken.
        StoreError: the file or its session is refused, or the stop could not record all.
    """
    loopback_address(config.host)  # refused before the file is made or touched
    configure_logs(config.log_format, config.log_level)
    raise_descriptor_limit()
    interpreter.share_evenly()
    stop, ended = _Stop(), trio.CancelScope()
    async with running_beside(partial(_take_signals, stop, ended), ended.cancel):
        with stop.starting:
            await _run(config, stop)


async def _take_signals(stop: _Stop, ended: trio.CancelScope) -> None:
    taken = [
        number
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]
    had_terminal = _has_terminal()
    with ended, trio.open_signal_receiver(*taken) as signals:
        number = await anext(signals)
        _log.info("stop requested", signal=signal.Signals(number).name)
        stop.ask()
        with trio.move_on_after(STOP_DEADLINE_S):
            # A terminal that closes is told of by the shell and by the system, one after the
            # other: that is one request to stop.
            while await anext(signals) == signal.SIGHUP and had_terminal and not _has_terminal():
                pass
            _leave_at_once("a second signal ended the stop before it was complete")
        _leave_at_once(f"the stop was not complete after {STOP_DEADLINE_S:g} s")


def _has_terminal() -> bool:
    """Tell whether there is a terminal whose closing would be told to this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _leave_at_once(reason: str) -> NoReturn:
    # Past every clean-up: one of them is what did not end. What was acknowledged is on the disk.
    write_error(f"sessiond: error: {reason}\n")
    os._exit(1)


async def _run(config: HostConfig, stop: _Stop) -> None:
    try:
        async with open_runtime(_log_move) as runtime:
            await _mount_all(runtime, config, stop)
            await stop.asked.wait()
            await runtime.hooks.parallel(STOPPING, None)
    except BaseExceptionGroup as group:
        raise _only_cause(group) from group


async def _mount_all(runtime: Runtime, config: HostConfig, stop: _Stop) -> None:
    """Mount the plugins in stages, each once the one before stands.

    What an option got wrong is found before the file is touched, and nobody can connect before
    everything that is to be served stands.
    """
    agent = AgentConfig(config.system_prompt, config.max_steps)

    def announce(url: str) -> None:
        stop.has_started = True
        with output_named():
            print(f"sessiond listening on {url}", flush=True)  # noqa: T201 # the one line

    with progress_bar("loading") as on_progress:
        session = SessionConfig(config.session_id, config.session_db, on_progress)
        await _standing(runtime.mount(MODELS, config.models, essential=True))
        needed = (
            runtime.mount(SESSION, session, essential=True),
            runtime.mount(TOOLS_PLUGIN, None, essential=True),
            runtime.mount(AGENT_PLUGIN, agent, essential=True),
            runtime.mount(INVOCATIONS_PLUGIN, None, essential=True),
        )
        for plugin, plugin_config in ((CLOCK, None), (RECALL, None), *config.plugins):
            runtime.mount(plugin, plugin_config)
        await runtime.wait_settled()  # of these, one may wait for what never comes
        await _standing(*needed)
    interpreter.settle()
    await _standing(
        runtime.mount(HTTP, HttpConfig(config.host, config.port, announce), essential=True)
    )
    _log.info(
        "host started",
        session=config.session_id,
        database=None if config.session_db is None else str(config.session_db),
        process=os.getpid(),
        version=version_of("sessiond"),
    )


async def _standing(*fibers: Fiber) -> None:
    """Wait until the plugins are ACTIVE. One that fails ends the runtime, and so this wait."""
    for fiber in fibers:
        await fiber.runtime.until(lambda fiber=fiber: fiber.state == "ACTIVE")


def _log_move(fiber: Fiber) -> None:
    name = fiber.plugin.name
    if fiber.state == "FAILED" and not fiber.is_essential:
        _log.error("plugin failed", plugin=name, error=str(fiber.failure), exc_info=fiber.failure)
    else:
        _log.debug("plugin moved", plugin=name, state=fiber.state)


def _only_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error to end with: the first, unless something is wrong with the program."""
    causes = [
        _only_cause(cast("BaseExceptionGroup[BaseException]", error))
        if isinstance(error, BaseExceptionGroup)
        else error
        for error in group.exceptions
    ]
    if any(not isinstance(cause, SessiondError) for cause in causes):
        return group
    for cause in causes[1:]:
        _log.error("and another failure", error=str(cause))
    return causes[0]
