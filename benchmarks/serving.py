"""The lines about HTTP: a long session beside the same bytes from memory, and the ETag.

The client is this process; each server is one of its own (``server.py``).
"""

from __future__ import annotations

import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import frozen

from benchmarks.lines import Line, Result, compared
from benchmarks.raw import SESSION_ID
from benchmarks.sessions import TREE, copied, written_session

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path
    from typing import IO

    from benchmarks.lines import Settings

GET = Line("get", "GET of a session of 20,000 events", "from memory", 0.5, 0.8, True)
GET_TICKER = Line("get-ticker", "  the same: longest hold-up of a 1 ms ticker", "ms", 20)
ETAG = Line("get-etag", "GET with the current ETag, at 20,000 events", "at 20 events", 1.2, 1.0)
LINES = (GET, GET_TICKER, ETAG)

SESSION_PATH = f"/api/v1/sessions/{SESSION_ID}"
REQUESTS_A_ROUND = 3
ETAG_REQUESTS_A_ROUND = 60
ETAG_WARM_UP_N = 20
RECEIVE_BYTES = 1 << 20
CHUNKED_END = b"0\r\n\r\n"
PATIENCE_S = 60.0
IDLE_S = 1.0
"""A connection that was idle for so long is opened anew: the server may be closing it."""


@frozen
class Answer:
    """What came back, and how long it took from the first byte sent to the last received."""

    head: bytes
    body_pieces: list[bytes]
    is_chunked: bool
    seconds: float

    @property
    def bytes_n(self) -> int:
        """Bytes of the body as they came; what a chunked one has around its chunks is included."""
        return sum(map(len, self.body_pieces))

    def header(self, name: str) -> str:
        """Return a header's value; empty if there is none."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""

    def body(self) -> bytes:
        """Return the body, without a chunked one's frames."""
        rest = b"".join(self.body_pieces)
        if not self.is_chunked:
            return rest
        pieces: list[bytes] = []
        while (size := int(rest[: (end := rest.index(b"\r\n"))], 16)) > 0:
            pieces.append(rest[end + 2 : end + 2 + size])
            rest = rest[end + 2 + size + 2 :]
        return b"".join(pieces)


class Client:
    """One connection that is kept open, as plain as can be: its work is not what is measured."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host = parts.netloc
        self._address = (parts.hostname, parts.port)
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used_at = time.perf_counter()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Send a GET and read its answer to the end."""
        lines = [f"GET {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        request = "\r\n".join((*lines, "", "")).encode()
        if time.perf_counter() - self._used_at > IDLE_S:
            self.close()
            self._connect()
        began = time.perf_counter()
        self._socket.sendall(request)
        head, rest = self._head()
        pieces = [rest]
        is_chunked = b"\r\ntransfer-encoding: chunked" in head.lower()
        if is_chunked:
            # JSON text holds no line break, so this cannot be met before the end.
            tail = rest[-len(CHUNKED_END) :]
            while tail != CHUNKED_END:
                pieces.append(self._receive())
                tail = (tail + pieces[-1][-len(CHUNKED_END) :])[-len(CHUNKED_END) :]
        else:
            missing = 0 if b" 304 " in head[:16] else _content_length(head) - len(rest)
            while missing > 0:
                pieces.append(self._receive())
                missing -= len(pieces[-1])
        self._used_at = time.perf_counter()
        return Answer(head, pieces, is_chunked, self._used_at - began)

    def _head(self) -> tuple[bytes, bytes]:
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, rest = received.partition(b"\r\n\r\n")
        return head, rest

    def _receive(self) -> bytes:
        received = self._socket.recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionError("the server closed in the middle of an answer")
        return received


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError("an answer with neither a length nor chunks")


@frozen
class Server:
    """A server in a process of its own, with a connection to it."""

    client: Client
    _asks: IO[bytes]
    _tells: IO[bytes]

    def hold_up_ms(self) -> float:
        """Return the longest hold-up of the server's loop since this was last asked."""
        self._asks.write(b"?")
        self._asks.flush()
        return float(self._tells.readline())


@contextmanager
def serving(kind: str, path: Path) -> Generator[Server, None, None]:
    """Run one of the servers of ``server.py``; it ends with the block."""
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(  # noqa: S603 # a module of this package, on a file of this run
                [sys.executable, "-m", "benchmarks.server", kind, str(path)],
                cwd=TREE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
        stack.callback(process.kill)  # has no effect on one that has ended
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line:
            raise RuntimeError(f"the server {kind} did not start")
        client = Client(line.split()[-1])
        stack.callback(client.close)
        yield Server(client, process.stdin, process.stdout)
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def measure(settings: Settings) -> Iterator[Result]:
    """Serve the long session, and a short one or its bytes, and ask both in turns."""
    body = settings.place / "body.json"
    with (
        copied(written_session(settings, settings.events_n)) as long,
        serving("host", long) as host,
    ):
        body.write_bytes(host.client.get(SESSION_PATH).body())
        with serving("bytes", body) as memory:
            yield from _get(settings, host, memory)
        with copied(written_session(settings, 20)) as short, serving("host", short) as small:
            yield _etag(settings, host, small)


def _get(settings: Settings, host: Server, memory: Server) -> Iterator[Result]:
    rates: dict[str, list[float]] = {"session [MB/s]": [], "from memory [MB/s]": []}
    held_up: dict[str, list[float]] = {"session [ms]": [], "from memory [ms]": []}
    sides = list(zip((host, memory), rates, held_up, strict=True))
    body_b = 0
    for server, _, _ in sides:
        body_b = server.client.get(SESSION_PATH).bytes_n  # unmeasured: the first time
    for round_n in range(1, settings.rounds_n + 1):
        settings.say(f"serving: round {round_n} of {settings.rounds_n}")
        for server, rate, hold_up in sides:
            server.hold_up_ms()
            answers = [server.client.get(SESSION_PATH) for _ in range(REQUESTS_A_ROUND)]
            held_up[hold_up].append(server.hold_up_ms())
            seconds = sum(answer.seconds for answer in answers)
            rates[rate].append(sum(answer.bytes_n for answer in answers) / seconds / 1e6)
        sides.reverse()
    ours, theirs = rates.items()
    yield compared(GET, ours, theirs, {"body [B]": body_b})
    taken = held_up["session [ms]"]
    yield Result(GET_TICKER, statistics.median(taken), taken, held_up)


def _etag(settings: Settings, long: Server, short: Server) -> Result:
    """Compare medians: one request after the other, in turns."""
    long_us: list[float] = []
    short_us: list[float] = []
    tags = [server.client.get(SESSION_PATH).header("etag") for server in (long, short)]
    sides = list(zip((long, short), tags, (long_us, short_us), strict=True))
    for round_n in range(1, settings.rounds_n + 1):
        settings.say(f"serving: ETags, round {round_n} of {settings.rounds_n}")
        of_round: dict[int, list[float]] = {id(taken): [] for _, _, taken in sides}
        for request_n in range(ETAG_REQUESTS_A_ROUND):
            for server, tag, taken in sides:
                answer = server.client.get(SESSION_PATH, If_None_Match=tag)
                assert b" 304 " in answer.head[:16]
                if round_n > 1 or request_n >= ETAG_WARM_UP_N:
                    of_round[id(taken)].append(answer.seconds * 1e6)
            sides.reverse()
        for _, _, taken in sides:
            taken.append(statistics.median(of_round[id(taken)]))
    return compared(ETAG, ("at the long session [µs]", long_us), ("at 20 events [µs]", short_us))
