"""The Host: assembly only. Which parts, in which order, and how the process ends.

Start: lock, load, recovery, agent and invocations, listener, the one line on standard output.
Stop, in two phases: first the intake closes, what is live is cancelled and settles, and its
callers have their answers while everything still stands; then the listener goes, the writer
drains, the file is checkpointed and closed. The nesting below is that order.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

import structlog
import trio
from attrs import define, field, frozen

from actors.agent import DEFAULT_MAX_STEPS, Agent, recover
from actors.errors import StoreError
from actors.invocations import open_invocations
from actors.providers.echo import ECHO_ROUTE, EchoAdapter
from actors.routes import RouteTable
from actors.session_log import open_session_log
from actors.tasks import running_beside
from web.app import create_app
from web.guard import Gate, Guard
from web.logs import LogFormat, configure_logs, is_terminal, write_error
from web.server import (
    bind_listener,
    loopback_address,
    raise_descriptor_limit,
    serve,
    url_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from actors.invocations import Invocations
    from actors.session_log import SessionLog
    from web.guard import Application

STOP_DEADLINE_S = 10.0
"""From the first signal; then the process ends, whatever is still open."""
ANSWERS_S = 2.0
"""How long settled callers have to take their answers before the listener goes."""
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
    with ended, trio.open_signal_receiver(*taken) as signals:
        number = await anext(signals)
        _log.info("stop requested", signal=signal.Signals(number).name)
        stop.ask()
        with trio.move_on_after(STOP_DEADLINE_S):
            await anext(signals)
            _leave_at_once("a second signal ended the stop before it was complete")
        _leave_at_once(f"the stop was not complete after {STOP_DEADLINE_S:g} s")


def _leave_at_once(reason: str) -> NoReturn:
    # Past every clean-up: one of them is what did not end. What was acknowledged is on the disk.
    write_error(f"sessiond: error: {reason}\n")
    os._exit(1)


async def _run(config: HostConfig, stop: _Stop) -> None:
    progress = _show_progress if is_terminal() else None
    async with open_session_log(config.session_id, config.session_db, on_progress=progress) as log:
        _log.info("session opened", session=log.session_id, events=len(log.snapshot()))
        if log.other_session_ids:
            _log.warning(
                "this session is new in a file that holds others",
                session=log.session_id,
                others=list(log.other_session_ids),
            )
        owed = await recover(log)
        if owed:
            _log.warning("recovery recorded", session=log.session_id, events=len(owed))
        routes = RouteTable(ECHO_ROUTE, {ECHO_ROUTE: EchoAdapter()})
        agent = Agent(log, routes, config.system_prompt, config.max_steps)
        async with open_invocations(log, agent) as invocations:
            await _serve_until_stopped(config, stop, log, invocations)
        _log.info("session closing", session=log.session_id)
        owes = log.snapshot().open_turn is not None
    _log.info("session closed", session=config.session_id)
    if owes:
        raise StoreError("what the last turn owes could not be recorded", config.session_db)


async def _serve_until_stopped(
    config: HostConfig, stop: _Stop, log: SessionLog, invocations: Invocations
) -> None:
    gate = Gate()
    with bind_listener(config.host, config.port) as listener:
        application = Guard(cast("Application", create_app(log, invocations)), config.host, gate)
        serving = partial(serve, application, listener, gate.closing)
        async with running_beside(serving, gate.closing.set):
            stop.has_started = True
            print(f"sessiond listening on {url_of(listener)}", flush=True)  # noqa: T201 # the one line
            _log.info("listening", url=url_of(listener))
            await stop.asked.wait()
            await invocations.shut_down()
            # Settled is not answered: the answers are on their way through the listener.
            with trio.move_on_after(ANSWERS_S):
                await gate.wait_until_answered()
            _log.info("invocations settled", session=log.session_id)
    _log.info("listener closed")


def _show_progress(loaded_n: int, total_n: int) -> None:
    end = "\n" if loaded_n >= total_n else ""
    write_error(f"\rsessiond: loading, {loaded_n} of {total_n} events{end}")
