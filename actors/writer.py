"""The writer: the one task that commits, replies and publishes.

Theory of operation
-------------------
Appends reach the writer over an unbuffered channel, so the senders that wait *are* the queue:
first come, first served, back-pressured, and a sender that is cancelled takes its request
along. The writer takes the first and then all that wait, up to a bound, and makes one
transaction of them: while one batch is on its way to the disk, the next one gathers.

Three rules of order hold everything together:

1. Decide, then write. Sequences, stamp, digests and rules are settled for the whole batch,
   synchronously, before the transaction begins. The rules are asked on an overlay, since the
   transaction may yet fail.
2. Commit, then reply, then publish. Nothing can be seen that could still be lost; not even a
   refusal that rests on an event of the same batch goes out before that event is committed.
3. No checkpoint between reply and publish. A waiter wakes only when the writer yields, and by
   then its event is in the snapshot. Likewise no task can see the snapshot ahead of a reply.

A failed transaction is not the end: :class:`AppendFailed` says that nothing was written, and
the next append may succeed. After :class:`OutcomeUnknown` nobody can say, and so the writer
stops. A bug ends the writer too. Either way everyone taken is answered and everyone still
sending is refused: nobody hangs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import trio
from attrs import define, field

from actors.codec import FORMAT_VERSION, rfc3339_now, row_digest
from actors.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    RejectedEvent,
    SequenceConflict,
    StoreError,
    StoreStopped,
)
from actors.events import Envelope
from actors.rows import Row
from actors.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from actors.events import Event
    from actors.snapshot import Timeline
    from actors.turns import Ledger

BATCH_EVENTS = 128
"""A batch takes no further append once it has this many events. Enough to share one fsync
among a crowd of appenders; few enough that deciding, publishing and the appenders that wake all
at once, which hold up the event loop, stay short."""

Health: TypeAlias = Literal["ok", "degraded", "failed"]
Answer: TypeAlias = "tuple[Envelope, ...] | Exception"


class Commits(Protocol):
    """What the writer needs of a store."""

    def commit(self, rows: Sequence[Row]) -> None:
        """Write all rows in one transaction.

        Raises:
            AppendFailed: nothing was written; another commit may succeed.
            OutcomeUnknown: they may have been.
        """
        ...


@define(eq=False)
class _Request:
    """One append on its way, with the slot for its own answer."""

    encoded: Sequence[tuple[Event, str]]
    """The events with their payloads' texts, one or more."""
    expected_sequence: int | None
    _answer: Answer | None = None
    _waiter: trio.lowlevel.Task | None = None

    @property
    def is_answered(self) -> bool:
        return self._answer is not None

    def reply(self, answer: Answer) -> None:
        """Set the answer and wake the waiter, which runs when this task next yields."""
        self._answer = answer
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)

    async def wait(self) -> tuple[Envelope, ...]:
        """Return the committed envelopes, or raise why there are none.

        Not to be cancelled: an append that the writer has taken has an outcome, and it comes soon.
        """
        if self._answer is None:
            self._waiter = trio.lowlevel.current_task()
            # As an Event under a shield would have it, in half the time: a shield is a scope.
            await trio.lowlevel.wait_task_rescheduled(_refuse_to_abort)
        assert self._answer is not None  # reply came with one
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def _refuse_to_abort(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


@define(eq=False)
class _Batch:
    """What one transaction is to write, decided and not yet committed."""

    overlay: Ledger
    recorded_at: str
    next_sequence: int
    last_digest: bytes | None
    rows: list[Row] = field(factory=list[Row])
    decided: list[tuple[_Request, Answer]] = field(factory=list[tuple[_Request, Answer]])
    """The answers that go out, in order, once ``rows`` are committed."""


class Writer:
    """Owns the way into one session. :meth:`run` is its task; any task may :meth:`append`."""

    def __init__(self, timeline: Timeline, store: Commits, path: Path | None) -> None:
        self._timeline = timeline
        self._store = store
        self._path = path
        # A store on disk blocks and gets a thread, never more than one; one in memory does not.
        self._worker = None if path is None else Worker("sessiond writer")
        self._send: trio.MemorySendChannel[_Request]
        self._receive: trio.MemoryReceiveChannel[_Request]
        self._send, self._receive = trio.open_memory_channel(0)
        self._taken: list[_Request] = []
        self._in_doubt = False
        self._stopped_by: BaseException | None = None
        self.health: Health = "ok"
        """degraded: the last commit failed. failed: the writer has stopped for good."""
        self.fault: str | None = None
        """What was wrong with the last commit, in words without a path; None after a good one."""

    async def append(
        self, encoded: Sequence[tuple[Event, str]], expected_sequence: int | None
    ) -> tuple[Envelope, ...]:
        """Have the events committed in one transaction and return their envelopes.

        Cancelled before the writer has taken it, nothing was written; after that the wait is
        shielded and the outcome is returned or raised. Always a checkpoint.

        Raises:
            RejectedEvent: a rule forbids an event; none was written.
            SequenceConflict: the first event would not get ``expected_sequence``.
            AppendFailed: the transaction failed; none was written.
            OutcomeUnknown: the transaction failed and they may have been written.
            StoreStopped: the writer has stopped; none was written.
            LogClosed: the log was closed; none was written.
        """
        request = _Request(encoded, expected_sequence)
        try:
            # Each sender has a handle of its own, so that closing the log's handle ends the
            # intake and leaves those that wait already in the queue.
            with self._send.clone() as send:
                await send.send(request)
        except trio.ClosedResourceError as error:
            await trio.lowlevel.checkpoint()
            raise LogClosed from error
        except trio.BrokenResourceError as error:
            await trio.lowlevel.checkpoint()
            raise self._stopped() from (self._stopped_by or error)
        return await request.wait()

    def close(self) -> None:
        """Take no further append; :meth:`run` finishes those in the queue and returns."""
        self._send.close()

    async def run(self) -> None:
        """Serve appends until closed, or until an outcome is unknown.

        Shielded from cancellation: it ends after its callers, by :meth:`close`, so that a
        caller being cancelled can still append what it owes.
        """
        # Leaving `with self._receive` wakes everyone still sending: they wrote nothing.
        with trio.CancelScope(shield=True), self._receive, self._worker or nullcontext():
            try:
                async for first in self._receive:
                    await self._write(self._take(first))
                    if self.health == "failed":
                        return
            except BaseException as error:
                self._abandon(error)
                raise

    def _take(self, first: _Request) -> Sequence[_Request]:
        """Return ``first`` and all that wait behind it, up to the bound, in order of arrival."""
        self._taken = [first]
        events_n = len(first.encoded)
        while events_n < BATCH_EVENTS:
            try:
                request = self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            self._taken.append(request)
            events_n += len(request.encoded)
        return self._taken

    async def _write(self, requests: Sequence[_Request]) -> None:
        batch = self._decide(requests)
        if not batch.rows:
            return
        self._in_doubt = True
        try:
            await self._commit(batch.rows)
        except AppendFailed as error:
            self.health, self.fault = "degraded", error.fault
            self._fail(batch, error)
        except OutcomeUnknown as error:
            self.health, self.fault = "failed", error.fault
            self._stopped_by = error
            self._fail(batch, error)
        else:
            self.health, self.fault = "ok", None
            self._publish(batch)
        self._in_doubt = False

    async def _commit(self, rows: Sequence[Row]) -> None:
        if self._worker is None:
            self._store.commit(rows)
        else:
            # Never abandoned: a thread left behind would hold the connection and its transaction.
            await self._worker.call(self._store.commit, rows)

    def _decide(self, requests: Sequence[_Request]) -> _Batch:
        """Judge, number, date and chain all that can be written."""
        batch = _Batch(
            overlay=self._timeline.ledger.overlay(),
            recorded_at=rfc3339_now(),
            next_sequence=self._timeline.next_sequence,
            last_digest=self._timeline.last_digest,
        )
        for request in requests:
            try:
                batch.decided.append((request, self._admit(batch, request)))
            except (RejectedEvent, SequenceConflict) as refusal:
                if batch.rows:
                    # Perhaps because of an event before it in this batch, which may yet fail.
                    batch.decided.append((request, refusal))
                else:
                    request.reply(refusal)
        return batch

    def _admit(self, batch: _Batch, request: _Request) -> tuple[Envelope, ...]:
        expected = request.expected_sequence
        if expected is not None and expected != batch.next_sequence:
            raise SequenceConflict(expected, batch.next_sequence)
        if len(request.encoded) == 1:
            batch.overlay.admit(request.encoded[0][0], batch.next_sequence)
        else:
            # An overlay of its own: if a later event is refused, the earlier ones never were.
            own = batch.overlay.overlay()
            for sequence, (event, _) in enumerate(request.encoded, batch.next_sequence):
                own.admit(event, sequence)
            own.merge()
        return self._enter(batch, request.encoded)

    def _enter(self, batch: _Batch, admitted: Sequence[tuple[Event, str]]) -> tuple[Envelope, ...]:
        """Give admitted events their places at the end of the batch."""
        session_id, stamp = self._timeline.session_id, batch.recorded_at
        sequence, digest = batch.next_sequence, batch.last_digest
        envelopes: list[Envelope] = []
        for event, payload in admitted:
            tag = event.tag
            digest = row_digest(digest, session_id, sequence, FORMAT_VERSION, stamp, tag, payload)
            row = Row(session_id, sequence, FORMAT_VERSION, stamp, tag, payload, digest)
            batch.rows.append(row)
            envelopes.append(Envelope(session_id, sequence, stamp, event, digest))
            sequence += 1
        batch.next_sequence, batch.last_digest = sequence, digest
        return tuple(envelopes)

    def _publish(self, batch: _Batch) -> None:
        """Reply and publish. Synchronous on purpose: see the third rule above."""
        batch.overlay.merge()
        rows = iter(batch.rows)
        for request, answer in batch.decided:
            request.reply(answer)
            if not isinstance(answer, Exception):
                # The events first: zip asks these for one more, and not the rows.
                for (event, _), row in zip(request.encoded, rows, strict=False):
                    self._timeline.publish(row, event)

    def _fail(self, batch: _Batch, cause: AppendFailed | OutcomeUnknown) -> None:
        """Answer each append of a failed batch with an exception of its own."""
        for request, answer in batch.decided:
            error: StoreError
            if isinstance(answer, Exception) and isinstance(cause, OutcomeUnknown):
                error = self._stopped()  # refused and so not in the transaction: not in doubt
            else:
                error = type(cause)(cause.fault, cause.path)
            error.__cause__ = cause
            request.reply(error)

    def _abandon(self, bug: BaseException) -> None:
        """Answer all taken when the writer itself fails, with what is true for each."""
        self.health, self.fault = "failed", f"the writer failed: {type(bug).__name__}"
        self._stopped_by = bug
        for request in self._taken:
            if not request.is_answered:
                error = (
                    OutcomeUnknown("the writer failed while it wrote this", self._path)
                    if self._in_doubt
                    else self._stopped()
                )
                error.__cause__ = bug
                request.reply(error)

    def _stopped(self) -> StoreStopped:
        return StoreStopped(
            "nothing more is written after an earlier failure; a restart reads what the file holds",
            self._path,
        )
