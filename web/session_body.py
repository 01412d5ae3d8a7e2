"""The body of a session's answer, sent in pieces as the client takes them.

A long session is megabytes. Put together at once they would be copied, and copied again, while
nothing else runs; and each client that is slow to read would hold a copy of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart.wrappers.response import ResponseBody

from actors import strict_json
from actors.codec import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from actors.snapshot import Snapshot

PIECE_N = 1000
"""Events or entries in a piece. Put together in a tenth of a millisecond, and small enough for the
allocator to use the same memory again: larger pieces are slower."""


class SessionBody(ResponseBody):
    """The bytes of one snapshot's events and entries after a sequence."""

    def __init__(self, snapshot: Snapshot, after: int) -> None:
        head = strict_json.dumps(
            {
                "session_id": snapshot.session_id,
                "format_version": FORMAT_VERSION,
                "last_sequence": snapshot.last_sequence,
                "digest": None if snapshot.digest is None else snapshot.digest.hex(),
            }
        )
        events, entries = snapshot.wires(after), snapshot.entry_wires(after)
        self._events_b = sum(map(len, events)) if after else snapshot.wires_b
        self._parts: tuple[tuple[bytes, list[bytes]], ...] = (
            (f'{head[:-1]},"events":['.encode(), events),
            (b'],"transcript":[', entries),
            (b"]}", []),
        )
        self._pieces = self._made()

    @property
    def length(self) -> int:
        """How many bytes there are in all."""
        fixed_b = sum(len(opening) for opening, _ in self._parts)
        commas_b = sum(max(0, len(wires) - 1) for _, wires in self._parts)
        _, (_, entries), _ = self._parts
        return fixed_b + self._events_b + sum(map(len, entries)) + commas_b

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        # Not an async generator: a client that leaves would leave one behind unfinished.
        try:
            return next(self._pieces)
        except StopIteration:
            raise StopAsyncIteration from None

    def _made(self) -> Iterator[bytes]:
        before = b""
        for opening, wires in self._parts:
            before += opening
            for start in range(0, len(wires), PIECE_N):
                piece = wires[start : start + PIECE_N]
                piece[0] = before + piece[0]
                yield b",".join(piece)
                before = b","
            if wires:
                before = b""
        yield before
