"""One Host a file: an advisory lock beside the database, which dies with its process."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from attrs import define

from actors.errors import StoreError
from actors.layout import refuse_hard_links
from actors.rows import sync

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

LOCK_SUFFIX = "-lock"


@define
class OwnerLock:
    """The lock, held from :meth:`acquire` until :meth:`release` or the end of the process.

    It is on ``PATH-lock`` beside the file's real path, so that a symlink or another relative
    path meets the same lock. The file holds the owner's process id for people to read; only
    the lock on it means anything, and so the file is never deleted: whoever deleted it could
    take away, under the same name, the one that another process has just locked.
    """

    descriptor: int

    @classmethod
    def acquire(cls, path: Path) -> Self:
        """Lock the database at ``path``, which need not exist yet; its parents are made.

        Raises:
            StoreError: another process owns it (its id is named), it has several hard links,
                or the lock file cannot be written.
        """
        real = _real_path(path)
        try:
            descriptor = os.open(
                real.with_name(real.name + LOCK_SUFFIX),
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
                0o600,
            )
        except OSError as error:
            raise StoreError(f"cannot write the lock file: {error.strerror}", path) from error
        try:
            _refuse_another_file(os.fstat(descriptor), path)
            _lock(descriptor, path)
            if real.exists():
                refuse_hard_links(real.stat(), path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let go. What the file says afterwards means nothing."""
        os.close(self.descriptor)


def _real_path(path: Path) -> Path:
    try:
        real = path.resolve()
        if real.is_dir():
            raise StoreError("is a directory", path)
        _make_parents(real.parent)
    except FileExistsError as error:
        raise StoreError("a parent is not a directory", path) from error
    except RuntimeError as error:  # a loop of symlinks, before Python 3.13
        raise StoreError("is a loop of symbolic links", path) from error
    except OSError as error:
        raise StoreError(f"cannot be reached: {error.strerror}", path) from error
    return real


def _make_parents(directory: Path) -> None:
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    for place in reversed(missing):
        # One by one: with ``parents=True`` the mode is the last one's alone.
        place.mkdir(mode=0o700, exist_ok=True)
        sync(place.parent, os.O_RDONLY)  # or power loss could take away all that is put inside


def _refuse_another_file(status: os.stat_result, path: Path) -> None:
    """Refuse what is no lock file of ours: it is about to be written to."""
    if not stat.S_ISREG(status.st_mode):
        raise StoreError("its lock file is not a regular file", path)
    if status.st_nlink > 1:  # the database itself, for one
        raise StoreError(f"its lock file has {status.st_nlink} hard links", path)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        raise StoreError(f"is owned by another Host, process {owner or 'unknown'}", path) from error
    except OSError as error:
        raise StoreError(f"cannot be locked: {error.strerror}", path) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # On a full disk the id cannot be written. The lock holds all the same, and a Host that
        # only reads is still of use there. But half an id would name another process.
        try:
            os.ftruncate(descriptor, 0)
        except OSError as error:
            raise StoreError(f"cannot write the lock file: {error.strerror}", path) from error
