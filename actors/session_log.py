"""The session log as others hold it: open, append, read.

Opening is a fixed order of steps: lock, look, load and check, open for writing, start the
writer. Closing is that order backwards, and it happens whole, whatever ended the block.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.codec import encode_event
from actors.errors import RejectedEvent, StoreError
from actors.owner_lock import OwnerLock
from actors.reader import PAGE_ROWS, is_fresh, open_reader
from actors.replay import replay_rows
from actors.snapshot import Snapshot, Timeline
from actors.store import MemoryStore, Store, open_store, tidy_up
from actors.tasks import running_beside
from actors.values import is_identifier
from actors.writer import Health, Writer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from actors.events import Envelope, Event
    from actors.reader import Reader


class SessionLog:
    """One open session: appends go through its writer, reads are immutable snapshots.

    Made by :func:`open_session_log` alone.
    """

    def __init__(
        self,
        timeline: Timeline,
        writer: Writer,
        database: Path | None,
        other_session_ids: tuple[str, ...],
    ) -> None:
        self._timeline = timeline
        self._writer = writer
        self.session_id = timeline.session_id
        self.database = database
        """The file, as an absolute path; None for a session in process memory."""
        self.other_session_ids = other_session_ids
        """The sessions that the file held when this one was new in it; else empty."""

    @property
    def health(self) -> Health:
        """``ok``; ``degraded`` after a failed commit until one succeeds; ``failed`` for good."""
        return self._writer.health

    @property
    def fault(self) -> str | None:
        """What is wrong where :attr:`health` is not ``ok``, in words without a path."""
        return self._writer.fault

    def snapshot(self) -> Snapshot:
        """Return the session as committed so far. O(1), and works on a log closed or failed."""
        return self._timeline.snapshot()

    async def append(self, event: Event, expected_sequence: int | None = None) -> Envelope:
        """Commit one event and return its envelope; see :meth:`append_many`."""
        (envelope,) = await self.append_many((event,), expected_sequence)
        return envelope

    async def append_many(
        self, events: Iterable[Event], expected_sequence: int | None = None
    ) -> tuple[Envelope, ...]:
        """Commit the events in one transaction, all or none, and return their envelopes.

        When this returns, the events are on the disk and in :meth:`snapshot`. No events at all
        are no transaction, and ``()`` comes back. ``expected_sequence`` is the sequence that
        the first event must get.

        Always a checkpoint. Cancelled before the writer has taken the append, nothing was
        written; once taken, the outcome is awaited under a shield.

        Raises:
            RejectedEvent: an event's payload or the rules forbid it.
            SequenceConflict: another event came first.
            AppendFailed: the disk refused; a later append may succeed.
            OutcomeUnknown: the disk failed and the events may have been written.
            StoreStopped: the writer stopped after an earlier failure.
            LogClosed: the log was closed.
        """
        try:
            # Here, not in the writer: a payload costs its own caller alone.
            encoded = [(event, encode_event(event)[1]) for event in events]
        except RejectedEvent:
            await trio.lowlevel.checkpoint()
            raise
        if not encoded:
            await trio.lowlevel.checkpoint()
            return ()
        return await self._writer.append(encoded, expected_sequence)


@asynccontextmanager
async def open_session_log(
    session_id: str,
    database: Path | str | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> AsyncGenerator[SessionLog, None]:
    """Open a session, loading and checking all of it, and close it when the block is left.

    ``database`` is the file; None keeps the session in process memory. ``on_progress`` is
    called in this task after each page, with the events loaded so far and how many there are.
    Opening can be cancelled between pages; what was opened is closed again then.

    Leaving the block serves the appends that are queued, checkpoints the file and closes it,
    shielded. An exception of the block's own comes out as it is; if closing fails besides, that
    is told in a note on it.

    Raises:
        StoreError: the file or the session in it is refused; or, on leaving, the file could
            not be checkpointed.
    """
    if not is_identifier(session_id):
        raise StoreError(f"{session_id!r:.150} is not a session id")
    timeline = Timeline(session_id)
    path = None if database is None else _absolute(database)
    async with _opened(timeline, path, on_progress) as (store, other_session_ids):
        writer = Writer(timeline, store, path)
        async with running_beside(writer.run, writer.close):
            yield SessionLog(timeline, writer, path, other_session_ids)


def _absolute(database: Path | str) -> Path:
    if "\0" in str(database):
        raise StoreError(f"{str(database)!r:.150} cannot be a path: it holds U+0000")
    # The working directory may change while the log is open; the file does not.
    return Path(database).absolute()


@asynccontextmanager
async def _opened(
    timeline: Timeline, path: Path | None, on_progress: Callable[[int, int], None] | None
) -> AsyncGenerator[tuple[Store | MemoryStore, tuple[str, ...]], None]:
    """Load the session and open its file for writing; close it at the end.

    Whatever ends the opening or the block, the lock goes last: until then the file is ours.
    """
    if path is None:
        yield MemoryStore(), ()
        return
    lock = await trio.to_thread.run_sync(OwnerLock.acquire, path)
    try:
        try:
            other_session_ids = await _load(timeline, path, on_progress)
            last = (timeline.next_sequence - 1, timeline.last_digest)
            store = await trio.to_thread.run_sync(open_store, path, timeline.session_id, last)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(tidy_up, path)
            raise
        async with _closed_at_end(store):
            yield store, other_session_ids
    finally:
        lock.release()


async def _load(
    timeline: Timeline, path: Path, on_progress: Callable[[int, int], None] | None
) -> tuple[str, ...]:
    """Fill the timeline from the file; return the other sessions' ids if this one is new."""
    if await trio.to_thread.run_sync(is_fresh, path):
        return ()
    reader = await trio.to_thread.run_sync(open_reader, path)
    try:
        total = await trio.to_thread.run_sync(reader.last_sequence, timeline.session_id)
        rows_n = PAGE_ROWS
        while rows_n == PAGE_ROWS:
            # A page a thread call: a stop can cancel the loading in between.
            page = partial(_replay_page, timeline, reader, path)
            rows_n = await trio.to_thread.run_sync(page)
            if on_progress is not None and rows_n:
                on_progress(timeline.next_sequence - 1, total)
        if timeline.next_sequence > 1:
            return ()
        return await trio.to_thread.run_sync(reader.session_ids)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(reader.close)


def _replay_page(timeline: Timeline, reader: Reader, path: Path) -> int:
    # The first page begins at the least sequence there is: a row before 1 is a fault to find.
    after = timeline.next_sequence - 1 or None
    rows = reader.rows(timeline.session_id, after, PAGE_ROWS)
    replay_rows(timeline, rows, path)
    return len(rows)


@asynccontextmanager
async def _closed_at_end(store: Store) -> AsyncGenerator[None, None]:
    try:
        yield
    except BaseException as failure:
        try:
            await _close(store)
        except StoreError as error:
            # A cancellation is nobody's to read: a note on it would be lost.
            if isinstance(failure, trio.Cancelled):
                raise
            failure.add_note(f"and the session could not be closed: {error}")
        raise
    else:
        await _close(store)


async def _close(store: Store) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(store.close)
