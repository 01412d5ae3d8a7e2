"""A database file from outside: what it is, what stands beside it, who has it. Nothing is opened
by SQLite here, and nothing is changed.

Never to be called while this process has the file open: closing any descriptor of it drops the
POSIX locks that SQLite holds.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from actors.owner_lock import LOCK_SUFFIX

if TYPE_CHECKING:
    from actors.strict_json import JsonValue

COMPANIONS = ("-wal", "-shm", "-journal")
MOUNTS = Path("/proc/self/mountinfo")
HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\x00"
# Offsets and sizes: sqlite.org/fileformat.html, section 1.3.
_NUMBERS = {
    "page_count": (28, 4),
    "freelist_count": (36, 4),
    "user_version": (60, 4),
    "application_id": (68, 4),
}
_ONE_PAGE_OF_64_KIB = 1


def describe_file(real: Path) -> dict[str, JsonValue]:
    """Return what the system says about the file, its companions, and where they lie.

    Raises:
        OSError: the system does not say.
    """
    found = real.stat()
    described: dict[str, JsonValue] = {
        "kind": _kind(found.st_mode),
        "bytes": found.st_size,
        "mode": f"{stat.S_IMODE(found.st_mode):04o}",
        "own": found.st_uid == os.geteuid(),
        "writable": os.access(real, os.W_OK),
        "hard_links": found.st_nlink,
    }
    for suffix in (*COMPANIONS, LOCK_SUFFIX):
        described[suffix] = _beside(real.with_name(real.name + suffix))
    described["directory_mode"] = f"{stat.S_IMODE(real.parent.stat().st_mode):04o}"
    described["directory_writable"] = os.access(real.parent, os.W_OK)
    described["filesystem"] = filesystem_of(real)
    described["free_bytes"] = shutil.disk_usage(real.parent).free
    return described


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "regular file"
    return "directory" if stat.S_ISDIR(mode) else "neither a regular file nor a directory"


def _beside(place: Path) -> str:
    try:
        found = place.lstat()
    except FileNotFoundError:
        return "none"
    size = f"{found.st_size} bytes, mode {stat.S_IMODE(found.st_mode):04o}"
    return size if stat.S_ISREG(found.st_mode) else f"{size}, not a regular file"


def filesystem_of(real: Path) -> str | None:
    """Return the kind of file system a file lies on; None where the system does not tell."""
    if not MOUNTS.exists():
        return None
    kind, depth = None, -1
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        # Spaces and the like stand there as octal escapes.
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount.split()[4]))
        # Of two at the same place the later one hides the other.
        if real.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = source.split()[0], len(point.parts)
    return kind


def describe_header(real: Path) -> dict[str, JsonValue]:
    """Return what the first bytes of the file say, empty where they are not SQLite's.

    Raises:
        OSError: it cannot be read.
    """
    with real.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        return {}
    page_size = int.from_bytes(header[16:18], "big")
    numbers: dict[str, JsonValue] = {
        name: int.from_bytes(header[at : at + size], "big") for name, (at, size) in _NUMBERS.items()
    }
    return {
        "page_size": 65_536 if page_size == _ONE_PAGE_OF_64_KIB else page_size,
        "journal": {1: "rollback", 2: "wal"}.get(header[18], "unknown"),
        **numbers,
    }


def owner_of(real: Path) -> str | None:
    """Return the process id of the Host that owns the file now, None if none does.

    To learn it the lock is taken, shared, and let go at once: its file alone does not tell. The
    id is as the Host wrote it, ``unknown`` where it could not.

    Raises:
        OSError: the lock file cannot be read.
    """
    place = real.with_name(real.name + LOCK_SUFFIX)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return written if written.isdecimal() else "unknown"
    finally:
        os.close(descriptor)  # and with it the lock
    return None
