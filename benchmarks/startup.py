"""The line about starting: the first line of ``serve``, beside importing what it is built on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.lines import Line, compared
from benchmarks.sessions import TREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.lines import Result, Settings

STARTUP = Line("startup", "first line of serve on an empty database", "the imports", 1.5, 1.2)
LINES = (STARTUP,)

IMPORTS = "import trio, quart_trio, hypercorn"
LEAST_ROUNDS_N = 7
PATIENCE_S = 60.0


def serve_until_first_line(database: Path) -> float:
    """Start a Host on a new file, read its line, stop it; return the seconds up to the line."""
    began = time.perf_counter()
    with (
        subprocess.Popen(  # noqa: S603 # this interpreter, on a file of this run
            [sys.executable, "-m", "web", "serve", "--port", "0", "--session-db", str(database)],
            cwd=TREE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
        ExitStack() as ending,
    ):
        ending.callback(process.kill)  # has no effect on one that has ended
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.send_signal(signal.SIGTERM)
        if not line or process.wait(PATIENCE_S) != 0:
            raise RuntimeError("the Host did not start and stop as it should")
    return took


def run_imports() -> float:
    """Run an interpreter that imports trio, quart-trio and hypercorn; return the seconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=TREE, check=True)  # noqa: S603 # see above
    return time.perf_counter() - began


def measure(settings: Settings) -> Iterator[Result]:
    """Start both in turns; once unmeasured, so that both find their files in memory."""
    serve_s: list[float] = []
    imports_s: list[float] = []
    rounds_n = max(settings.rounds_n, settings.some(LEAST_ROUNDS_N, 3))
    with TemporaryDirectory(dir=settings.place) as fresh:

        def serve() -> float:
            return serve_until_first_line(Path(fresh) / f"{len(serve_s)}.sqlite3")

        sides = [(serve, serve_s), (run_imports, imports_s)]
        for round_n in range(rounds_n + 1):
            settings.say(f"startup: round {round_n} of {rounds_n}")
            for side, taken in sides:
                taken.append(side())
            sides.reverse()
    yield compared(STARTUP, ("serve [s]", serve_s[1:]), ("imports [s]", imports_s[1:]))
