"""The listener and hypercorn behind it, as a plugin."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog
import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve  # pyright: ignore[reportUnknownVariableType] # its WSGI half is untyped

from actors.errors import ConfigurationError, ListenError
from actors.kernel.fibers import Plugin
from actors.plugins import INVOCATIONS, SESSION_LOG, STOPPING
from actors.tasks import running_beside
from web.app import create_app
from web.guard import SECURITY_HEADERS, Gate, Guard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from actors.kernel.context import Context
    from web.guard import Application

BACKLOG_N = 1024
"""Connections the kernel holds before they are accepted; hypercorn's 100 make a burst wait."""
GRACE_S = 2.0
"""How long open connections have once the listener goes: answers are out by then. A client that
has not taken its own by then, for it reads slowly or not at all, is hung up on."""
DESCRIPTORS_N = 65_536
ANSWERS_S = 2.0
"""How long settled callers have to take their answers before the listener goes."""

_log = structlog.get_logger()


@frozen
class HttpConfig:
    """Where to listen, and whom to tell."""

    host: str
    port: int
    """0 lets the system choose."""
    on_listening: Callable[[str], None]
    """Called with the URL once connections are accepted."""


async def _set_up_http(context: Context, config: HttpConfig) -> None:
    log, invocations = context.require(SESSION_LOG), context.require(INVOCATIONS)
    gate = Gate()
    application = cast("Application", create_app(log, invocations, context.inspect))
    guarded = Guard(application, config.host, gate)
    url = await context.enter(_listening(guarded, config, gate), "listener")

    async def hand_over_answers(_: None) -> None:
        await invocations.shut_down()
        # Settled is not answered: the answers are on their way through the listener.
        with trio.move_on_after(ANSWERS_S):
            await gate.wait_until_answered()

    context.listen(STOPPING, hand_over_answers)
    _log.info("listening", url=url)
    config.on_listening(url)


@asynccontextmanager
async def _listening(
    application: Guard, config: HttpConfig, gate: Gate
) -> AsyncGenerator[str, None]:
    with bind_listener(config.host, config.port) as listener:
        serving = partial(serve, application, listener, gate.closing)
        async with running_beside(serving, gate.closing.set):
            yield url_of(listener)
    _log.info("listener closed")


HTTP = Plugin("http", _set_up_http, requires=(SESSION_LOG, INVOCATIONS))
"""Serves the session and takes invocations."""


def loopback_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the loopback address that ``host`` stands for.

    Raises:
        ConfigurationError: it is no loopback address.
    """
    name = "127.0.0.1" if host.lower() == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError as error:
        raise ConfigurationError(f"--host {host}: not an IP address, nor localhost") from error
    if not address.is_loopback:
        raise ConfigurationError(
            f"--host {host}: not a loopback address; the API has no password, use a tunnel"
        )
    return address


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a loopback address; port 0 lets the system choose.

    It listens from here on: two sockets that are only bound can share a port.

    Raises:
        ConfigurationError: ``host`` is no loopback address.
        ListenError: the address cannot be taken.
    """
    address = loopback_address(host)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # IPv6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(BACKLOG_N)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL at which a listener is reached."""
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files as far as is useful and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_N if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_N, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Config(Config):
    """hypercorn's settings, with the headers that every answer leaves with.

    Here and not in the application: the server answers what is no HTTP, or has no Host, itself.
    """

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        return [*super().response_headers(protocol), *SECURITY_HEADERS]


def hang_up(listener: socket.socket) -> None:
    """Shut down every connection that was accepted from a listener, whoever holds it.

    The server keeps them to itself, and shields what it sends: nothing else ends a send to a
    client that does not read.
    """
    for descriptor in Path("/dev/fd").iterdir():
        with suppress(OSError):  # no socket, not connected, or closed by now
            # Borrowed, not duplicated: to close a copy of a database's descriptor would drop
            # the locks that SQLite holds on the file.
            held = socket.socket(fileno=int(descriptor.name))
            try:
                held.getpeername()  # raises for a listener
                if held.getsockname() == listener.getsockname():
                    held.shutdown(socket.SHUT_RDWR)
            finally:
                held.detach()


async def serve(application: object, listener: socket.socket, closing: trio.Event) -> None:
    """Serve until ``closing`` is set; then connections have a grace to finish in."""

    async def hang_up_after_grace() -> None:
        await closing.wait()
        await trio.sleep(GRACE_S)
        hang_up(listener)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_up_after_grace)
        await _serve_with_hypercorn(application, listener, closing)
        nursery.cancel_scope.cancel()


async def _serve_with_hypercorn(
    application: object, listener: socket.socket, closing: trio.Event
) -> None:
    config = _Config()
    # hypercorn closes the descriptor that it is given; the listener stays its owner's.
    config.bind = [f"fd://{os.dup(listener.fileno())}"]
    config.backlog = BACKLOG_N  # it listens once more, with its own
    config.accesslog = None
    config.errorlog = None  # the application's own log has what matters
    config.graceful_timeout = GRACE_S
    config.shutdown_timeout = GRACE_S
    config.include_server_header = False
    # hypercorn types ASGI's messages as closed dicts, the guard as open ones.
    server = cast("Callable[..., Awaitable[None]]", hypercorn_serve)
    await server(application, config, shutdown_trigger=closing.wait, mode="asgi")
