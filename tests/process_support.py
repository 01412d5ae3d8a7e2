"""Real processes for tests: started, spoken to, stopped or killed by their id, always ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType
    from typing import Self

# The processes under test buffer what they write, and compile their modules once, as they do for
# everybody.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TREE = Path(__file__).parent.parent
SESSIOND = [sys.executable, "-m", "web"]
PATIENCE_S = 60.0
"""How long a process may take for anything before the test fails; a busy machine is slow."""
ANNOUNCED = "sessiond listening on "

FORKS = """
import json, os, sys, tempfile
import actors.providers.echo, web.client, web.host  # what commands import late
import web.advice, web.doctor, web.offline, web.show
from web.__main__ import main

if json.loads(sys.argv[2]) and os.geteuid() == 0:  # to root nothing is forbidden
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
told = []
for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            sys.argv = ["sessiond", *arguments]
            main()
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (output, errors):
            file.seek(0)
        told.append([code, output.read().decode(), errors.read().decode()])
print(json.dumps(told))
"""

Document = dict[str, Any]


def sessiond(
    *arguments: str | Path,
    input_text: str | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said and its exit code."""
    return subprocess.run(
        [*SESSIOND, *arguments],
        cwd=TREE,
        env=os.environ | (environment or {}),
        input=input_text,
        stdin=subprocess.DEVNULL if input_text is None else None,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
    )


def sessiond_each(
    commands: Sequence[Sequence[str | Path]], *, as_nobody: bool = False
) -> list[subprocess.CompletedProcess[str]]:
    """Run each command in a process of its own, one after the other, with the imports shared.

    ``as_nobody`` takes root's powers away first, where there are any.
    """
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, json.dumps(commands, default=str), json.dumps(as_nobody)],
        cwd=TREE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # so that a command which does not end can be ended with it
    ) as process:
        try:
            told, errors = process.communicate(timeout=PATIENCE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, errors
    return [
        subprocess.CompletedProcess(command, code, output, errors)
        for command, (code, output, errors) in zip(commands, json.loads(told), strict=True)
    ]


@contextmanager
def public_directory() -> Generator[Path, None, None]:
    """A new directory that any user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        try:
            yield directory
        finally:
            directory.chmod(0o755)


def wal_of(database: Path) -> Path:
    """Return where SQLite keeps what is not in the file yet."""
    return database.with_name(database.name + "-wal")


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one error line of a command that failed as it must: exit code 1, no traceback."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("sessiond: error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


class HostProcess:
    """One ``sessiond serve`` on a port of the system's choice; leaving the block ends it."""

    def __init__(self, database: Path | None, *options: str) -> None:
        """Start the process; it need not accept connections yet."""
        place = [] if database is None else ["--session-db", str(database)]
        self._process = subprocess.Popen(
            [*SESSIOND, "serve", "--port", "0", *place, *options],
            cwd=TREE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._errors = bytearray()
        # Read all along: a full pipe would stop the Host.
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        self._url: str | None = None

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors += line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        self._drain.join(PATIENCE_S)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    @property
    def url(self) -> str:
        """Where it listens; waits for its line."""
        if self._url is None:
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
            line = self._process.stdout.readline().decode() if ready else ""
            assert line.startswith(f"{ANNOUNCED}http://127.0.0.1:"), (line, self.errors)
            self._url = line.removeprefix(ANNOUNCED).rstrip("\n")
        assert self._url is not None
        return self._url

    @property
    def errors(self) -> str:
        """What it has written to standard error, all of it once it has ended."""
        return self._errors.decode()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end and return its exit code; nothing more was on standard output."""
        code = self._process.wait(PATIENCE_S)
        self._drain.join(PATIENCE_S)
        assert self._process.stdout is not None
        rest = self._process.stdout.read()
        assert not rest or self._url is None, rest
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, and return its exit code."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """End it as a power cut would, as far as a process can tell."""
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def kill_or_ended(self) -> None:
        """Kill it, unless a stop that it was asked for has just come to its end."""
        self.send(signal.SIGKILL)
        assert self.wait() in {-signal.SIGKILL, 0}

    @contextmanager
    def client(self) -> Generator[httpx.Client, None, None]:
        """An HTTP client of this Host."""
        with httpx.Client(base_url=self.url, trust_env=False, timeout=PATIENCE_S) as client:
            yield client

    def session(self, session_id: str = "default") -> Document:
        """Return the session as it answers it."""
        with self.client() as client:
            response = client.get(f"/api/v1/sessions/{session_id}")
        assert response.status_code == 200, response.text
        return cast("Document", response.json())

    def post(self, invocation_id: str, text: str) -> httpx.Response:
        """Ask for a Turn and wait for its answer."""
        with self.client() as client:
            address = f"/api/v1/agent/invocations/{invocation_id}"
            return client.post(address, json={"input": text})


def wait_until(condition: Callable[[], bool], host: HostProcess) -> None:
    """Look again and again until something holds; a test that waits in vain fails."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, host.errors
