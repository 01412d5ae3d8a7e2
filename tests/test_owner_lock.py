"""One Host a file: the lock is on the file's real place, names its owner, and dies with it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from process_support import PATIENCE_S, TREE, public_directory

from actors import owner_lock
from actors.errors import StoreError
from actors.owner_lock import OwnerLock

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from actors.owner_lock import OwnerLock
lock = OwnerLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
TRY_AS_NOBODY = """
import os, sys
from pathlib import Path
from actors.errors import StoreError
from actors.owner_lock import OwnerLock
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    OwnerLock.acquire(Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite3"


def lock_file(database: Path) -> Path:
    return database.with_name(database.name + "-lock")


@contextmanager
def owner_process(database: Path) -> Generator[subprocess.Popen[bytes], None, None]:
    """Another process that owns the file while the block lasts, unless it is killed before."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database)],
        cwd=TREE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def refusal(path: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        OwnerLock.acquire(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    return caught.value


def test_second_owner_is_refused_by_the_firsts_process_id(database: Path) -> None:
    """While another process owns the file, the refusal names that process."""
    with owner_process(database) as owner:
        assert refusal(database).fault == f"is owned by another Host, process {owner.pid}"


def test_lock_dies_with_its_process_and_its_file_means_nothing(database: Path) -> None:
    """After kill -9 the file still names the dead owner, and the lock is free."""
    with owner_process(database) as owner:
        owner.kill()
        owner.wait(PATIENCE_S)
        assert lock_file(database).read_text() == f"{owner.pid}\n"
        OwnerLock.acquire(database).release()


@pytest.mark.parametrize(
    "content",
    ["", "1\n", f"{os.getpid()}\n", "x" * 100_000],
    ids=["empty", "another", "own", "nonsense"],
)
def test_leftover_file_is_taken_over(database: Path, content: str) -> None:
    """Whatever a lock file says, an unlocked one is free and then says who has it."""
    lock_file(database).write_text(content)
    lock = OwnerLock.acquire(database)
    assert lock_file(database).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_same_process_is_refused_too_until_release(database: Path) -> None:
    """A second acquire within the process is refused; after release it is granted."""
    lock = OwnerLock.acquire(database)
    assert f"process {os.getpid()}" in refusal(database).fault
    lock.release()
    OwnerLock.acquire(database).release()


def test_release_leaves_the_very_file(database: Path) -> None:
    """Release deletes nothing: a waiter that has the file open locks the one others will open."""
    lock = OwnerLock.acquire(database)
    before = lock_file(database).stat()
    lock.release()
    assert os.path.samestat(before, lock_file(database).stat())


def test_symlink_meets_the_lock_of_the_real_path(tmp_path: Path, database: Path) -> None:
    """Through a symlink, or a path with dots, it is the same lock."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.sqlite3"
    link.symlink_to(database)
    lock = OwnerLock.acquire(link)
    assert lock_file(database).exists()
    assert not lock_file(link).exists()
    refusal(database)
    refusal(tmp_path / "elsewhere" / ".." / database.name)
    lock.release()


def test_new_parents_and_lock_are_private(tmp_path: Path) -> None:
    """Every parent that was made has mode 0700, also those in between; the lock file 0600."""
    database = tmp_path / "a" / "b" / "c" / "sessions.sqlite3"
    mask = os.umask(0)
    try:
        OwnerLock.acquire(database).release()
    finally:
        os.umask(mask)
    parents = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [stat.S_IMODE(parent.stat().st_mode) for parent in parents] == [0o700] * 3
    assert stat.S_IMODE(lock_file(database).stat().st_mode) == 0o600


def test_hard_links_are_refused_and_the_lock_is_let_go(database: Path) -> None:
    """A database with two names is refused by either; with one left it is accepted."""
    database.write_bytes(b"")
    second = database.with_name("second")
    second.hardlink_to(database)
    for name in (database, second):
        assert "2 hard links" in refusal(name).fault
    second.unlink()
    OwnerLock.acquire(database).release()


def test_places_that_cannot_be_locked(tmp_path: Path) -> None:
    """A directory, a parent that is a file, and a loop of symlinks are told apart."""
    assert refusal(tmp_path).fault == "is a directory"
    (tmp_path / "file").write_bytes(b"")
    assert "directory" in refusal(tmp_path / "file" / "sessions.sqlite3").fault.lower()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "symbolic links" in refusal(loop).fault


def test_symlinked_lock_file_is_not_followed(tmp_path: Path, database: Path) -> None:
    """A lock file that points elsewhere is refused, and what it points at keeps its content."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock_file(database).symlink_to(victim)
    assert "cannot write the lock file" in refusal(database).fault
    assert victim.read_text() == "precious"


def test_unwritable_directory_is_refused() -> None:
    """Where the lock file cannot be made, the line names the database and the reason."""
    with public_directory() as directory:
        database = directory / "sessions.sqlite3"
        directory.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", TRY_AS_NOBODY, str(database)],
            cwd=TREE,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    assert done.stdout == f"{database}: cannot write the lock file: Permission denied\n"


def test_full_disk_costs_the_process_id_not_the_lock(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the id cannot be written the lock holds all the same, and its owner is unknown."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owner_lock.os, "pwrite", full)
    lock = OwnerLock.acquire(database)
    assert refusal(database).fault == "is owned by another Host, process unknown"
    lock.release()


def test_a_disk_that_refuses_even_to_shorten(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what is left of an id cannot be taken away either, the start is refused, and lets go."""
    shorten, refused = os.ftruncate, [False, True]

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def shorten_once(descriptor: int, length: int) -> None:
        (fail if refused.pop(0) else shorten)(descriptor, length)

    with monkeypatch.context() as patched:
        patched.setattr(owner_lock.os, "pwrite", fail)
        patched.setattr(owner_lock.os, "ftruncate", shorten_once)
        assert refusal(database).fault == "cannot write the lock file: Input/output error"
    OwnerLock.acquire(database).release()
