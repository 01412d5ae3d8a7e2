"""Progress bars: on standard error, on a terminal only, and only for what takes a while.

A command that ends soon shows none and does not pay for the library that draws them. Until the
first piece is done (SQLite checks the whole file before any event is read) a line counts seconds.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias, cast

from web.streams import ErrorText, error_is_terminal, printable, write_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.progress import Progress

SHOWN_AFTER_S = 0.5
"""What takes less shows no bar: it would only flicker."""
MANY_N = 10_000
"""What has as many to do shows one without waiting to see how long it takes."""
REDRAWN_AFTER_S = 0.1
CLEAR_LINE = "\r\x1b[2K"

OnProgress: TypeAlias = "Callable[[int, int], None]"
"""Called with how much is done and how much there is."""


class Clock(Protocol):
    """Tells seconds from some instant on, never backwards."""

    def __call__(self) -> float:
        """Return the seconds."""
        ...


@contextmanager
def progress_bar(what: str, unit: str = "events") -> Generator[OnProgress | None, None, None]:
    """Provide what to report progress to, None where nobody would see it.

    The bar is gone when the block is left, however that is.
    """
    if not error_is_terminal():
        yield None
        return
    bar, waiting = Bar(what, unit), Waiting(what)

    def update(done_n: int, total_n: int) -> None:
        waiting.close()
        bar.update(done_n, total_n)

    try:
        yield update
    finally:
        waiting.close()
        bar.close()


class Waiting:
    """A line on standard error that counts seconds, by a thread of its own, until it is closed.

    The cursor stays at its beginning: a line of the log that comes meanwhile covers it.
    """

    def __init__(self, what: str) -> None:
        """Begin to count; nothing is drawn before it is due, nor where no line can be redrawn."""
        self._what = printable(what, keep="")
        self._closed = threading.Event()
        self._is_drawn = False
        self._thread = threading.Thread(target=self._count, daemon=True)
        if os.environ.get("TERM") not in {"dumb", "unknown"}:
            self._thread.start()

    def _count(self) -> None:
        began = time.monotonic()
        while not self._closed.wait(1.0 if self._is_drawn else SHOWN_AFTER_S):
            self._is_drawn = True
            passed = f"{time.monotonic() - began:.0f} s"
            write_error(f"{CLEAR_LINE}sessiond: {self._what}: checking the file, {passed}\r")

    def close(self) -> None:
        """Take the line away, if one was drawn; when this returns nothing more is."""
        self._closed.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        if self._is_drawn:
            self._is_drawn = False
            write_error(CLEAR_LINE)


class Bar:
    """One bar on standard error. It has no thread: it is redrawn when it is updated."""

    def __init__(self, what: str, unit: str, clock: Clock = time.monotonic) -> None:
        """Begin to count the time; nothing is drawn yet."""
        self._what, self._unit, self._clock = printable(what, keep=""), unit, clock
        self._due_at = clock() + SHOWN_AFTER_S
        self._drawn: Progress | None = None
        self._ended = False

    def update(self, done_n: int, total_n: int) -> None:
        """Show how far it is, if it is time to; once all is done, the bar is gone for good."""
        if done_n >= total_n:
            self.close()
            return
        now = self._clock()
        is_due = now >= self._due_at or (self._drawn is None and total_n >= MANY_N)
        if self._ended or not is_due:
            return
        self._due_at = now + REDRAWN_AFTER_S
        if self._drawn is None:
            self._drawn = _rich_progress(self._what, self._unit, total_n)
            self._drawn.start()
        (task_id,) = self._drawn.task_ids
        self._drawn.update(task_id, completed=done_n, total=total_n, refresh=True)

    def close(self) -> None:
        """Take the bar away, if one was drawn; nothing more is."""
        self._ended = True
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _rich_progress(what: str, unit: str, total_n: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    class Quiet(Console):
        """A console that leaves the cursor as it is: a kill would leave it hidden."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 # its parent's
            return False

    # All of a text file that the console asks for.
    console = Quiet(file=cast("IO[str]", ErrorText()), force_terminal=True)
    drawn = Progress(
        TextColumn("sessiond: {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit, markup=False),
        Remaining(compact=True),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    drawn.add_task(what, total=total_n)
    return drawn
