"""Commands on a terminal, and commands that go on until they are told to stop."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import tempfile
import termios
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from attrs import frozen
from process_support import PATIENCE_S, SESSIOND, TREE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_ABOUT_TERMINALS = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "TTY_COMPATIBLE")
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@frozen
class Seen:
    """What came of a command on a terminal."""

    screen: str
    """All that was written to the terminal, its line ends as programs write them."""
    output: str
    """Standard output where that was piped."""
    code: int

    @property
    def text(self) -> str:
        """The screen without colours and cursor movements."""
        return _CONTROLS.sub("", self.screen)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a plain terminal with colours, and ``more``."""
    plain = {name: value for name, value in os.environ.items() if name not in _ABOUT_TERMINALS}
    return plain | {"TERM": "xterm-256color"} | more


def on_terminal(
    *arguments: str | Path,
    piped: bool = False,
    columns: int = 80,
    program: Sequence[str] = SESSIOND,
    **variables: str,
) -> Seen:
    """Run a command on a terminal to its end; ``piped`` takes its standard output elsewhere."""
    outside, inside = pty.openpty()
    with os.fdopen(outside, "rb", buffering=0) as screen, tempfile.TemporaryFile() as output:
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen(
            [*program, *arguments],
            cwd=TREE,
            env=environment(**variables),
            stdin=inside,
            stdout=output if piped else inside,
            stderr=inside,
            start_new_session=True,
        ) as process:
            os.close(inside)
            try:
                shown = _all_of(screen)
                code = process.wait(PATIENCE_S)
            finally:
                process.kill()
        output.seek(0)
        return Seen(shown.replace("\r\n", "\n"), output.read().decode(), code)


def _all_of(screen: IO[bytes]) -> str:
    """Read a terminal until nobody writes to it any more."""
    told = bytearray()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ready, _, _ = select.select([screen], [], [], max(deadline - time.monotonic(), 0))
        assert ready, bytes(told)
        try:
            piece = screen.read(65_536)
        except OSError:  # Linux: the other end is closed
            piece = b""
        if not piece:
            return told.decode()
        told += piece


class Running:
    """A command that was started with its standard output in a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._read = b""

    def line(self) -> str:
        """Return the next line of its output, as soon as it is there."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._read:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(deadline - time.monotonic(), 0)
            )
            assert ready, self._read
            piece = os.read(self.process.stdout.fileno(), 65_536)
            assert piece, (self._read, self.ended())
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def lines(self, count: int) -> list[str]:
        """Return the next lines, waiting for that many."""
        return [self.line() for _ in range(count)]

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and what it said on standard error."""
        assert self.process.stderr is not None
        code = self.process.wait(PATIENCE_S)
        return code, self.process.stderr.read().decode()


@contextmanager
def running(*arguments: str | Path) -> Generator[Running, None, None]:
    """Start a command and end it with the block, if it has not ended by then."""
    with subprocess.Popen(
        [*SESSIOND, *arguments],
        cwd=TREE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
