"""Server-sent events over HTTP, read strictly and within bounds.

``httpx_sse`` takes the stream apart. What it is given here is already known to be UTF-8, with
lines that end in a newline alone, and with no event beyond a bound: neither it nor httpx has
one, and both would read broken UTF-8 as if it had been something else.
"""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
import trio
from httpx_sse import EventSource

from actors.strict_json import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from httpx_sse import ServerSentEvent

MAX_EVENT_CHARS = MAX_BYTES
"""Characters of one event, its field names and comments included."""


class StreamFault(Exception):
    """What came is no answer: ``message`` says why in our words, ``said`` in the provider's.

    Never leaves the adapter. ``said`` is as it came, and may hold anything, a key too.
    """

    def __init__(self, message: str, said: str = "", code: str = "provider_protocol") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.said = said


def events_of(response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the events of an open response; bring the generator to its end by :func:`run_out`.

    An event that the end of the stream cuts short of its blank line is one all the same.

    Raises:
        StreamFault: it is not UTF-8, or one event is too long.
        httpx.HTTPError: reading failed.
    """
    return EventSource(_StrictText(response)).aiter_sse()


async def run_out(iterator: AsyncIterator[object]) -> None:
    """Bring a generator that reads from httpx to its end, wherever it stands, and disconnect.

    Closing it would leave the generators inside it, httpx's and httpcore's, to the garbage
    collector. So the read that it would do next is cancelled: that ends all of them, from the
    inside out. Shielded, and waits for nothing.
    """
    with trio.CancelScope(shield=True) as scope:
        scope.cancel()
        # The stream's faults no longer matter to anybody.
        with suppress(httpx.HTTPError, httpx.StreamError, StreamFault):
            async for _ in iterator:
                pass


class _StrictText(httpx.Response):
    """Stands for a response whose text is an event stream fit for ``httpx_sse``."""

    def __init__(self, source: httpx.Response) -> None:
        super().__init__(source.status_code, headers={"Content-Type": "text/event-stream"})
        self._source = source

    async def aiter_text(self, chunk_size: int | None = None) -> AsyncIterator[str]:
        text = _Text()
        pieces = self._source.aiter_raw(chunk_size)
        try:
            async for piece in pieces:
                if good := text.take(piece):
                    yield good
                if text.fault is not None:
                    raise text.fault
            text.take(b"", final=True)
            if text.fault is not None:
                raise text.fault
        finally:
            await run_out(pieces)
        yield "\n\n"


class _Text:
    """Bytes as text whose lines end in a newline alone, at once; no event is beyond the bound.

    What was good before a fault is handed out: how the bytes were cut into pieces must not
    decide what comes of them.
    """

    def __init__(self) -> None:
        self.fault: StreamFault | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._after_return = False
        self._last = ""
        self._event_chars_n = 0

    def take(self, piece: bytes, final: bool = False) -> str:
        """Return the text of the next bytes, up to the ``fault`` if that is set then."""
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            self.fault = StreamFault("the stream is not UTF-8 text")
            text = error.object[: error.start].decode()
        return self._bounded(self._with_newlines(text))

    def _with_newlines(self, text: str) -> str:
        if not text:
            return text
        ends_in_return = text.endswith("\r")
        if self._after_return:
            text = text.removeprefix("\n")  # the second half of a line end that was told before
        self._after_return = ends_in_return
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def _bounded(self, text: str) -> str:
        """Return the text up to the first event that is too long."""
        begin = -len(self._last)
        size_n = self._event_chars_n - len(self._last)
        part = ""
        for part in (self._last + text).split("\n\n"):
            size_n += len(part)
            if size_n > MAX_EVENT_CHARS:
                self.fault = StreamFault(f"an event of more than {MAX_EVENT_CHARS} characters")
                return text[: max(begin, 0)]
            begin += len(part) + 2
            self._event_chars_n, size_n = size_n, 0
        self._last = part[-1:]
        return text
