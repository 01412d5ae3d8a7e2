"""Logs: one line an event on standard error, for a console or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TypeAlias

import structlog

LogFormat: TypeAlias = Literal["console", "json"]


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Send the whole process's log lines of ``level`` and above to standard error."""
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
