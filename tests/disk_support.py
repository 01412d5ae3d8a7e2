"""A disk that fails on command, for real processes.

- :func:`in_own_mounts` runs a function where it may mount what it likes, unseen by all others.
- :class:`Disk` is a small library, built here and put before the C library of a process under
  test. It fails, tears, delays or pulls the file away from under chosen system calls on chosen
  files, the n-th of them or all from there on, and can be changed while the process runs.

``disk_statements`` is the means that works everywhere.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest
from process_support import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

_T = TypeVar("_T")

# --- a disk of one's own ----------------------------------------------------------------------

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 1 << 14, 1 << 18


def in_own_mounts(body: Callable[[], _T]) -> _T:
    """Run ``body`` in a thread that has its mounts for itself, as have the processes it starts.

    They are gone when the last of these has ended. Skips the test where that is not permitted.
    """
    if sys.platform != "linux":
        pytest.skip("mounts of one's own are made on Linux only")

    def run() -> _T:
        _own_mounts()
        return body()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def _own_mounts() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        pytest.skip(f"no mounts of one's own here: {os.strerror(ctypes.get_errno())}")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)  # or the first mount would be everybody's


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


class SmallDisk:
    """A file system in memory with a few kilobytes, mounted at a directory."""

    def __init__(self, place: Path, kilobytes: int) -> None:
        self.place = place
        self._filler = place / "filler"
        try:
            _mount("tmpfs", str(place), "tmpfs", 0, f"size={kilobytes}k")
        except OSError as error:
            pytest.skip(f"no tmpfs can be mounted here: {error.strerror}")

    def fill(self, but: int = 0) -> None:
        """Leave no more than ``but`` bytes free, in whole pages."""
        room = os.statvfs(self.place)
        taken = room.f_bavail * room.f_bsize - but
        with self._filler.open("ab") as filler:
            if taken > 0:
                os.posix_fallocate(filler.fileno(), filler.tell(), taken)

    def give(self, size: int) -> None:
        """Give so many bytes back."""
        os.truncate(self._filler, self._filler.stat().st_size - size)

    def free(self) -> None:
        """Give all that was taken back."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        """Remount it so; nobody may have a file of it open for writing."""
        _mount(None, str(self.place), None, _MS_REMOUNT | _MS_RDONLY)

    def make_writable(self) -> None:
        """Remount it so."""
        _mount(None, str(self.place), None, _MS_REMOUNT)


@contextmanager
def quick_directory() -> Generator[Path, None, None]:
    """A new directory, in memory where there is such a place: a sync takes no time there."""
    memory = Path("/dev/shm")  # noqa: S108 # a place to be quick, not to be private
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


# --- system calls that fail -------------------------------------------------------------------

CALLS = ("write", "sync", "truncate", "open", "read", "unlink")
COUNT, FAIL, TEAR, HOLD, VANISH, DONE = range(6)
"""Only count; return an error; do a half and fail then; wait until let go; rename the file to
``….away`` and go on; do it all and fail then."""
ALWAYS = 2**31 - 1


class Faults(Protocol):
    """What a trial needs of a disk, whichever way it fails."""

    def arm(
        self,
        call: str,
        match: str,
        action: int = FAIL,
        *,
        error: int = errno.EIO,
        skip: int = 0,
        times: int = ALWAYS,
    ) -> None:
        """Have that kind of call fail, after ``skip`` that do not."""
        ...

    def mend(self) -> None:
        """Let everything through from now on."""
        ...

    def set_aside(self) -> AbstractContextManager[None]:
        """Let everything through within the block, and count nothing."""
        ...


_SHIM = Path(__file__).with_name("faulty_disk.c")

_CONTROL = struct.Struct("6i64s")
_HITS_AT = 20


def build_shim(directory: Path) -> Path:
    """Compile the library that stands before the C library. Skips where that cannot be done."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("system calls are made to fail on Linux, with a C compiler")
    library = directory / "faulty_disk.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, _SHIM, "-ldl"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"the C compiler does not build the library: {done.stderr[-300:]}")
    return library


class Disk:
    """Decides, through memory shared with the process under test, which system calls fail."""

    def __init__(self, control: Path) -> None:
        if not control.exists():
            control.write_bytes(bytes(mmap.PAGESIZE))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._control = control

    def environment(self, library: Path) -> dict[str, str]:
        """Return what a process needs in its environment to be under this disk."""
        return {"LD_PRELOAD": str(library), "FAULTY_DISK": str(self._control)}

    def arm(
        self,
        call: str,
        match: str,
        action: int = FAIL,
        *,
        error: int = errno.EIO,
        skip: int = 0,
        times: int = ALWAYS,
    ) -> None:
        """Have calls on files named ``match`` fail, after ``skip`` that do not.

        ``call`` is one of :data:`CALLS`, or several with a bar between. A name that ends in an
        asterisk stands for all that begin so.
        """
        mask = sum(1 << CALLS.index(one) for one in call.split("|"))
        # The mask last: it is what the process looks at first.
        self._shared[4 : _CONTROL.size] = _CONTROL.pack(
            0, action, error, skip, times, 0, match.encode()
        )[4:]
        self._shared[:4] = struct.pack("i", mask)

    def mend(self) -> None:
        """Let every call through from now on, also those that are held."""
        self._shared[:8] = bytes(8)

    @contextmanager
    def set_aside(self) -> Generator[None, None, None]:
        """Let every call through within the block, and count none of them."""
        mask = self._shared[:4]
        self._shared[:4] = bytes(4)
        try:
            yield
        finally:
            self._shared[:4] = mask

    @property
    def hits_n(self) -> int:
        """How many calls had it happen to them since :meth:`arm`."""
        return struct.unpack_from("i", self._shared, _HITS_AT)[0]

    def wait_for_hit(self) -> None:
        """Wait until a call has had it happen to it, for one that is held."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.hits_n:
            assert time.monotonic() < deadline, "no call came"
