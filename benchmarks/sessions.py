"""Session files that several lines read, and processes of their own to read them in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import trio

from actors.session_log import open_session_log
from benchmarks.raw import RAW_BATCH_N, SESSION_ID
from benchmarks.workload import session_events

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from actors.events import Event
    from benchmarks.lines import Settings

TREE = Path(__file__).parent.parent


def write_session(path: Path, events: Sequence[Event]) -> None:
    """Write a session as the log writes it, and close the file."""

    async def write() -> None:
        async with open_session_log(SESSION_ID, database=path) as log:
            for start in range(0, len(events), RAW_BATCH_N):
                await log.append_many(events[start : start + RAW_BATCH_N])

    trio.run(write)


def written_session(settings: Settings, events_n: int) -> Path:
    """Return a closed file with the first events of the session, written once a run.

    Whoever adds to a session takes a :func:`copied` one.
    """
    path = settings.place / f"session-{events_n}.sqlite3"
    if not path.exists():
        settings.say(f"writing a session of {events_n} events")
        write_session(path, session_events(events_n))
    return path


@contextmanager
def copied(path: Path) -> Generator[Path, None, None]:
    """A copy of a closed session file, which goes when the block is left."""
    with TemporaryDirectory(dir=path.parent) as fresh:
        yield Path(shutil.copy(path, fresh))


def run_child(task: str, path: Path, *numbers: int) -> dict[str, list[float]]:
    """Run one of the tasks of ``child.py`` in a new process; return what it measured."""
    done = subprocess.run(  # noqa: S603 # a module of this package, on a file of this run
        [sys.executable, "-m", "benchmarks.child", task, str(path), *map(str, numbers)],
        cwd=TREE,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)
