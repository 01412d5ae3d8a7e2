"""A session in memory, and views of it.

:class:`Timeline` is the one mutable thing: lists that only ever grow at their end. Because of
that a :class:`Snapshot` needs no copy: it remembers how long each list was.

Events are kept as the UTF-8 texts that go over HTTP, and built anew for whoever asks for one.
Most are chunks, which hardly anybody asks for; a text takes less memory than the objects, and
costs Python's garbage collector nothing. Of objects, a full collection would visit every single
one, and hold up the event loop for a tenth of a second in a long session.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, overload

from attrs import define, evolve, field, frozen

from actors.codec import known_envelope, wire_text
from actors.events import (
    AssistantMessageCommitted,
    HistoryRef,
    ToolExecutionCompleted,
)
from actors.history import messages_entering
from actors.transcript import Entry, entry_for, entry_json
from actors.turns import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.events import Envelope, Event
    from actors.history import HistoryHash
    from actors.rows import Row
    from actors.turns import OpenTurn, TurnRecord
    from actors.values import Message, ToolCall


@define(eq=False)
class _Grown:
    """What a Timeline and its snapshots share. Each list only ever grows at its end."""

    wires: list[bytes] = field(factory=list[bytes])
    digests: list[bytes] = field(factory=list[bytes])
    history: list[Message] = field(factory=list["Message"])
    transcript: list[Entry] = field(factory=list["Entry"])
    entry_wires: list[bytes] = field(factory=list[bytes])


class Timeline:
    """All of one session that is in memory: events, projections, and the rules' ledger."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.ledger = Ledger()
        """Judges the next event; a writer merges a batch into it just before publishing that."""
        self._grown = _Grown()
        self._wires_b = 0
        self._open_calls: dict[str, ToolCall] = {}
        self._snapshot: Snapshot | None = None

    @property
    def next_sequence(self) -> int:
        """The sequence that the next published event must have."""
        return len(self._grown.wires) + 1

    @property
    def last_digest(self) -> bytes | None:
        """The digest of the last event; None when there is none."""
        digests = self._grown.digests
        return digests[-1] if digests else None

    def publish(self, row: Row, event: Event | None) -> None:
        """Make a committed event visible to every later snapshot.

        ``row.payload`` is the text that :func:`~actors.codec.encode_event` has for ``event``. A
        chunk may come as None: it enters no projection.

        Raises:
            ValueError: it is not the next one, which the caller must rule out.
        """
        session_id, sequence, _, recorded_at, event_type, payload, digest = row
        grown = self._grown
        if sequence != len(grown.wires) + 1 or session_id != self.session_id:
            raise ValueError(
                f"{session_id!r} {sequence} cannot follow {self.session_id!r} {len(grown.wires)}"
            )
        if event is not None:
            self._project(sequence, event)
        wire = wire_text(session_id, sequence, recorded_at, event_type, payload).encode()
        grown.wires.append(wire)
        grown.digests.append(digest)
        self._wires_b += len(wire)
        self._snapshot = None

    def _project(self, sequence: int, event: Event) -> None:
        self._grown.history.extend(messages_entering(event))
        entry = entry_for(sequence, event, self._open_calls)
        if entry is not None:
            self._grown.transcript.append(entry)
            self._grown.entry_wires.append(entry_json(entry).encode())
        # Only now: the entry of a completion is made from the call that it closes.
        if type(event) is AssistantMessageCommitted:
            self._open_calls.update({call.id: call for call in event.message.tool_calls})
        elif type(event) is ToolExecutionCompleted:
            del self._open_calls[event.call_id]

    def snapshot(self) -> Snapshot:
        """Return the session as it now is; the same object until something is published."""
        if self._snapshot is None:
            grown, ledger = self._grown, self.ledger
            self._snapshot = Snapshot(
                self.session_id,
                len(grown.wires),
                self.last_digest,
                ledger.open_turn,
                ledger.turns_n,
                self._wires_b,
                grown,
                len(grown.history),
                ledger.history_hash,
                len(grown.transcript),
                ledger,
            )
        return self._snapshot


@frozen(eq=False)
class Snapshot:
    """An immutable view of a session up to one sequence. Made by a Timeline alone.

    A sequence of envelopes: ``snapshot[0]`` has sequence 1, a slice is a tuple.
    """

    session_id: str
    last_sequence: int
    """The last event's sequence, which is also how many there are; 0 for none."""
    digest: bytes | None
    """The last event's digest, 32 bytes; None when there is no event."""
    open_turn: OpenTurn | None
    """The Turn that is not finished yet, if any."""
    turns_n: int
    """Inputs accepted so far."""
    wires_b: int
    """How many bytes all of :meth:`wires` are."""
    # Few fields: one is made after each append that somebody looks at.
    _grown: _Grown
    """Shared with the Timeline; each list is read up to its length here."""
    _history_n: int
    _history_hash: HistoryHash
    _transcript_n: int
    _ledger: Ledger

    def __len__(self) -> int:
        return self.last_sequence

    def __iter__(self) -> Iterator[Envelope]:
        return map(self._envelope, range(self.last_sequence))

    @overload
    def __getitem__(self, index: int) -> Envelope: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Envelope, ...]: ...
    def __getitem__(self, index: int | slice) -> Envelope | tuple[Envelope, ...]:
        places = range(self.last_sequence)[index]  # also raises the IndexError
        if isinstance(places, int):
            return self._envelope(places)
        return tuple(map(self._envelope, places))

    def _envelope(self, place: int) -> Envelope:
        return known_envelope(self._grown.wires[place].decode(), self._grown.digests[place])

    def digest_at(self, sequence: int) -> bytes | None:
        """Return the digest of the event at ``sequence``, None for 0, where there is none.

        Raises:
            IndexError: there is no such event.
        """
        return self._grown.digests[range(self.last_sequence)[sequence - 1]] if sequence else None

    def wires(self, after: int = 0, up_to: int | None = None) -> list[bytes]:
        """Return the envelopes' JSON texts in UTF-8, as they go on the wire, oldest first.

        Those with a sequence above ``after`` and up to ``up_to``. The same that
        :func:`~actors.codec.envelope_json` makes of each, without building the events.
        """
        end = self.last_sequence if up_to is None else min(up_to, self.last_sequence)
        return self._grown.wires[after:end]

    def model_history(self) -> tuple[Message, ...]:
        """Return the messages that the next model request is given, oldest first."""
        return tuple(self._grown.history[: self._history_n])

    def history_ref(self) -> HistoryRef:
        """Return the reference by which a request names :meth:`model_history`.

        Raises:
            RejectedEvent: the session is empty; there is no history to name.
        """
        return HistoryRef(self.last_sequence, self._history_hash.hexdigest())

    def transcript(self) -> tuple[Entry, ...]:
        """Return the session as a person reads it, oldest first."""
        return tuple(self._grown.transcript[: self._transcript_n])

    def entries_after(self, sequence: int) -> tuple[Entry, ...]:
        """Return the transcript's entries whose sequence is greater than ``sequence``."""
        return tuple(self._grown.transcript[self._entries_up_to(sequence) : self._transcript_n])

    def entry_wires(self, after: int = 0) -> list[bytes]:
        """Return the JSON texts of the entries after sequence ``after`` in UTF-8, oldest first.

        The same that :func:`~actors.transcript.entry_json` makes of each.
        """
        return self._grown.entry_wires[self._entries_up_to(after) : self._transcript_n]

    def _entries_up_to(self, sequence: int) -> int:
        return bisect_right(
            self._grown.transcript, sequence, hi=self._transcript_n, key=attrgetter("sequence")
        )

    def find_turn(self, invocation_id: str) -> TurnRecord | None:
        """Return the Turn of an invocation as it was here, None if its input was not yet in."""
        record = self._ledger.find_turn(invocation_id)
        if record is None or record.accepted_at > self.last_sequence:
            return None
        if self.open_turn is not None and self.open_turn.invocation_id == invocation_id:
            # The ledger may know more by now: here this Turn was still running.
            return evolve(record, steps_n=self.open_turn.steps_n, ended_at=None)
        return record

    def knows_call(self, call_id: str) -> bool:
        """Tell whether the session has used a tool call id by now, perhaps after this view."""
        return self._ledger.knows_call(call_id)
