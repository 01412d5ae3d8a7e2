"""Following a session in its file: what there is, and then what is committed, as it is.

It polls. A poll is one step into the index, in a transaction of its own that has ended before
anything is shown or waited for: a reader that stayed in one would keep the ``-wal`` from being
emptied. The file stays open between polls, unless what is open cannot see what a Host writes: a
file that nobody had open, in a directory that cannot be written here, is read by itself, and is
opened anew once something has changed beside it.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING

from attrs import frozen

from actors.errors import StoreError
from actors.reader import open_reader
from web.offline import load_timeline, replay_pages

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from actors.reader import Reader
    from actors.snapshot import Timeline
    from actors.transcript import Entry
    from web.progress import OnProgress

POLL_S = 0.2
"""Between two looks at the file."""


def wait_for_more() -> None:
    """Wait for :data:`POLL_S`, or until nobody reads standard output any more.

    Raises:
        BrokenPipeError: nobody does.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # for what is reported unasked: a reader that left
    left = select.POLLERR | select.POLLHUP
    if any(happened & left for _, happened in output.poll(POLL_S * 1_000)):
        raise BrokenPipeError


def followed(
    path: Path,
    session_id: str,
    wait: Callable[[], None] = wait_for_more,
    on_progress: OnProgress | None = None,
) -> Generator[tuple[Entry, ...], None, None]:
    """Yield the transcript so far, and then, without end, the entries that were added to it.

    ``wait`` is called between two looks at the file; what it raises ends this. All that a Host
    does is seen through: running, killed, started again. ``on_progress`` is told of the first
    load. A tuple is empty where nothing was there at first.

    Raises:
        UnsoundSession: what was added is not sound; the entries before it have been yielded.
        StoreError: the session is not in the file, or the file cannot be read or went away.
    """
    view = _View.of(path)  # before it is opened: what changes from here on is seen to change
    reader = open_reader(path)
    try:
        timeline = load_timeline(reader, session_id, on_progress)
        yield timeline.snapshot().transcript()
        sees_all = _is_shared(path)
        while True:
            wait()
            before, view = view, _View.of(path)
            if view.identity is None:
                raise StoreError("was moved or deleted while it was followed", path)
            if view.identity != before.identity or (view != before and not sees_all):
                reader.close()
                reader = open_reader(path)
                _require_what_was_shown(reader, timeline)
                sees_all = _is_shared(path)
            elif not sees_all:
                continue  # as it was when it was read
            yield from _added(reader, timeline)
    finally:
        reader.close()


def _added(reader: Reader, timeline: Timeline) -> Iterator[tuple[Entry, ...]]:
    """Take in the rows that are new, a page at a time; yield their entries."""
    known_n = timeline.next_sequence - 1
    for new_n in replay_pages(reader, timeline.session_id, timeline, known_n or None):
        if entries := timeline.snapshot().entries_after(known_n):
            yield entries
        known_n += new_n


def _require_what_was_shown(reader: Reader, timeline: Timeline) -> None:
    last = timeline.next_sequence - 1
    if last and [row.digest for row in reader.rows(timeline.session_id, last - 1, 1)] != [
        timeline.last_digest
    ]:
        raise StoreError(f"no longer holds what was shown, up to event {last}", reader.path)


def _is_shared(path: Path) -> bool:
    """Tell whether what was just opened sees what others write from now on.

    Then there is a ``-shm``, through which SQLite's connections tell each other.
    """
    real = path.resolve()
    return real.with_name(real.name + "-shm").exists()


@frozen
class _View:
    """What can be told about the file and its ``-wal`` from outside."""

    identity: tuple[int, int] | None
    """None where there is no file."""
    changes: tuple[tuple[int, int] | None, ...]

    @classmethod
    def of(cls, path: Path) -> _View:
        real = path.resolve()
        found = (_status(real), _status(real.with_name(real.name + "-wal")))
        identity = None if found[0] is None else (found[0].st_dev, found[0].st_ino)
        return cls(identity, tuple(each and (each.st_size, each.st_mtime_ns) for each in found))


def _status(place: Path) -> os.stat_result | None:
    try:
        return place.stat()
    except OSError:
        return None
