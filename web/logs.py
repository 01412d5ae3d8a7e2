"""Logs: one line an event on standard error, for a console or as JSON.

From ``info`` on a line says where something happened (session, turn, step, sequence), what and
how much, and never what was said: no text, argument, result or chunk.

What reads them may go away, and the disk they go to may fill up. A session that is durable does
not end for that: a line that cannot be written is lost, and nothing else.
"""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

import structlog

from web.streams import error_is_terminal, printable, write_error

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

LogFormat: TypeAlias = Literal["console", "json"]


class _Lines:
    """Where structlog puts rendered lines, whatever their level."""

    def msg(self, line: str) -> None:
        write_error(f"{line}\n")

    debug = info = warning = error = critical = msg


class _FromLibraries(logging.Handler):
    """What a library has to say by way of :mod:`logging`, as one of our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record with its level, its logger's name and its exception."""
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Send the whole process's log lines of ``level`` and above to standard error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_json() if log_format == "json" else _console()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    # Libraries that nobody has given a handler would write past all this.
    logging.lastResort = _FromLibraries(logging.WARNING)


def _json() -> list[Processor]:
    # A traceback becomes a string, and so part of the one line.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _console() -> list[Processor]:
    # Plain tracebacks: the rich ones show the local variables of each frame, and so payloads.
    renderer = structlog.dev.ConsoleRenderer(
        colors=error_is_terminal(), exception_formatter=_traceback
    )
    return [_printable_values, renderer]


def _printable_values(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Escape what would steer a terminal, or make two lines of one."""
    return {
        key: printable(value, keep="") if isinstance(value, str) else value
        for key, value in event.items()
    }


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(printable(text.getvalue()))
