"""Logs: one line an event on standard error, for a console or as JSON.

What reads them may go away, and the disk they go to may fill up. A session that is durable does
not end for that: a line that cannot be written is lost, and nothing else.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Literal, TypeAlias

import structlog

LogFormat: TypeAlias = Literal["console", "json"]


def write_error(text: str) -> None:
    """Write to standard error, if there is one that takes it."""
    if sys.stderr is None:  # started with it closed
        return
    rest = text.encode(sys.stderr.encoding, "backslashreplace")
    # Past Python's buffer: it would keep what could not be written, and change the exit code
    # when it cannot write it at the end either.
    with suppress(OSError):  # there is nowhere left to tell of it
        while rest:
            rest = rest[os.write(sys.stderr.fileno(), rest) :]


def is_terminal() -> bool:
    """Tell whether a person may be looking at standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


class _Lines:
    """Where structlog puts rendered lines, whatever their level."""

    def msg(self, line: str) -> None:
        write_error(f"{line}\n")

    debug = info = warning = error = critical = msg


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Send the whole process's log lines of ``level`` and above to standard error."""
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        # Plain: the rich one, where it is installed, shows the local variables of each frame.
        renderer = structlog.dev.ConsoleRenderer(
            colors=is_terminal(), exception_formatter=structlog.dev.plain_traceback
        )
    tracebacks = [structlog.processors.format_exc_info] if log_format == "json" else []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
