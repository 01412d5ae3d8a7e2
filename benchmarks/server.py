"""Servers for the lines about HTTP: ``python -m benchmarks.server KIND PATH``.

``host DATABASE`` is sessiond as ``serve`` runs it. ``bytes FILE`` is the same server with an
application that answers everything with the content of a file, kept in memory. Either prints a
line that ends with its URL; after that, whenever it reads something from standard input, it
prints the longest hold-up of its loop since the last time, in milliseconds. SIGTERM ends it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.kernel.fibers import Plugin
from benchmarks.loop import Ticker
from benchmarks.raw import SESSION_ID
from web.host import HostConfig, run_host
from web.server import bind_listener, serve, url_of

if TYPE_CHECKING:
    from actors.kernel.context import Context
    from web.guard import Receive, Scope, Send


async def tell_hold_ups(ticker: Ticker) -> None:
    """Answer each request on standard input with the longest hold-up since the last one."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as asked:
        while await asked.receive_some():
            print(ticker.longest_s * 1e3, flush=True)
            ticker.longest_s = 0.0


async def _set_up_ticker(context: Context, _config: None) -> None:
    ticker = Ticker()
    context.start_soon(ticker.run)
    context.start_soon(tell_hold_ups, ticker)


TICKER = Plugin("ticker", _set_up_ticker)


class Bytes:
    """An ASGI application with one answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        if scope["type"] == "lifespan":
            for done in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": done})
            return
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


async def serve_bytes(body: bytes) -> None:
    """Serve the bytes with the Host's own server until SIGTERM."""
    closing, ticker = trio.Event(), Ticker()
    with bind_listener("127.0.0.1", 0) as listener:
        print(f"listening on {url_of(listener)}", flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticker.run)
            nursery.start_soon(tell_hold_ups, ticker)
            nursery.start_soon(serve, Bytes(body), listener, closing)
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                await anext(signals)
            closing.set()
            nursery.cancel_scope.cancel()


def main() -> None:
    """Run the server that the command line names."""
    _, kind, path = sys.argv
    if kind == "host":
        config = HostConfig(Path(path), SESSION_ID, port=0, plugins=((TICKER, None),))
        trio.run(run_host, config)
    else:
        trio.run(serve_bytes, Path(path).read_bytes())


if __name__ == "__main__":
    main()
