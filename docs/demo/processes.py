"""The demo's processes: each is ended when the demo ends, however it does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import IO, Self

TREE = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""How long a process may take for anything; a busy machine is slow."""

_ANNOUNCED = "sessiond listening on "
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG_LINES = 5


class DemoFailed(Exception):
    """Something went otherwise than told; says what, in a line."""


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Processes:
    """Starts ``sessiond`` commands; leaving the block ends those that still run.

    From its making on, the signals that stop a program raise :class:`Stopped` in the main
    thread, so that they leave the block as well. Never while a process is being started: it
    could be left behind unknown.
    """

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self._deferring = False
        self._deferred: int | None = None
        for number in _SIGNALS:
            # SIGHUP, unless whoever started this had it ignored, as nohup does.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if not self._deferring:
            raise Stopped(number)
        self._deferred = number

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._deferring = True  # for good: nothing may keep from the rest of this
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def start(self, *arguments: str | Path, errors: IO[str]) -> subprocess.Popen[str]:
        """Start a command; its standard output is a pipe."""
        # Options that the caller's environment holds are not meant for these.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SESSIOND_")
        }
        self._deferring = True
        try:
            process = subprocess.Popen(  # noqa: S603 # this very interpreter, arguments from here
                [sys.executable, "-m", "web", *arguments],
                cwd=TREE,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
            self._started.append(process)
        finally:
            self._deferring = False
        if self._deferred is not None:
            raise Stopped(self._deferred)
        return process

    def run(self, *arguments: str | Path, log: Path) -> str:
        """Run a command to its end and return its standard output.

        Raises:
            DemoFailed: its exit code is not 0, or it does not end.
        """
        with log.open("w") as errors:
            process = self.start(*arguments, errors=errors)
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"sessiond {arguments[0]} does not end") from error
        if process.returncode != 0:
            raise DemoFailed(
                f"sessiond {arguments[0]} ended with exit code {process.returncode}:"
                f" {output.strip()} {_end_of(log)}"
            )
        return output


class Host:
    """One ``sessiond serve`` on a port of the system's choice."""

    def __init__(self, processes: Processes, *options: str | Path, log: Path) -> None:
        """Start the process and wait until it says where it listens.

        Raises:
            DemoFailed: it ended instead, or says nothing.
        """
        self._log = log
        with log.open("w") as errors:
            self._process = processes.start("serve", *options, errors=errors)
        self.pid = self._process.pid
        self.url = self._announced()

    def _announced(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        line = self._process.stdout.readline() if ready else ""
        if not line.startswith(_ANNOUNCED):
            raise DemoFailed(f"the Host did not start: {_end_of(self._log)}")
        return line.removeprefix(_ANNOUNCED).rstrip("\n")

    def kill(self) -> None:
        """Send it SIGKILL, and wait for its end.

        Raises:
            DemoFailed: it had ended before.
        """
        self._process.send_signal(signal.SIGKILL)
        code = self._ended()
        if code != -signal.SIGKILL:
            raise DemoFailed(f"the Host ended with exit code {code} by itself: {self._why()}")

    def stop(self) -> None:
        """Ask it to stop, and wait for its end.

        Raises:
            DemoFailed: its exit code is not 0.
        """
        self._process.send_signal(signal.SIGTERM)
        code = self._ended()
        if code != 0:
            raise DemoFailed(f"asked to stop, the Host ended with exit code {code}: {self._why()}")

    def _ended(self) -> int:
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed("the Host does not end") from error

    def _why(self) -> str:
        return _end_of(self._log)


def _end_of(log: Path) -> str:
    """Return the last lines of a process's standard error in one line."""
    text = log.read_text(encoding="utf-8", errors="backslashreplace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_LOG_LINES:])
