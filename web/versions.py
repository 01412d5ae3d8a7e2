"""What this process runs on: the versions that a bug report needs."""

from __future__ import annotations

import platform
import sqlite3
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.strict_json import JsonValue

PACKAGES = (
    *("trio", "hypercorn", "h11", "quart", "quart-trio", "httpx", "httpx-sse", "jsonschema"),
    *("jsonschema-rs", "referencing", "attrs", "click", "rich", "structlog", "tzdata"),
)
_TELLING_OPTIONS = (
    *("THREADSAFE", "DEFAULT_SYNCHRONOUS", "DEFAULT_WAL_", "DEFAULT_PAGE_SIZE", "MAX_LENGTH"),
    *("DISABLE_", "OMIT_", "SECURE_DELETE"),
)
"""How those compile options begin that say something about durability, locking or limits."""


def versions() -> dict[str, JsonValue]:
    """Return the versions of the program, of Python, SQLite and the system, and of packages."""
    packages: dict[str, JsonValue] = {name: version_of(name) for name in PACKAGES}
    return {
        "sessiond": version_of("sessiond"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "sqlite": sqlite3.sqlite_version,
        "sqlite_options": list(_sqlite_options()),
        **packages,
    }


def version_of(name: str) -> str:
    """Return the version of an installed distribution, or that it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:  # run from a tree that is not installed
        return "not installed"


def _sqlite_options() -> list[str]:
    """Return what the library was compiled with, as far as durability and limits go."""
    with closing(sqlite3.connect(":memory:")) as connection:
        options = [str(name) for (name,) in connection.execute("PRAGMA compile_options")]
    return [name for name in options if name.startswith(_TELLING_OPTIONS)]
