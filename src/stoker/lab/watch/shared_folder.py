"""The folder through which watched processes and a doctor communicate: created for one run, and removed with it.

Its owner holds a lock on a file in it, which the kernel releases when the owner dies. So folders whose owners were
killed are recognized, also in other containers, where process ids mean something else.

The supervisor runs this file by itself, so it imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "stoker-doctor-"
LOCK = "lock"
MIN_SHARED_MEMORY_BYTES = 2 << 30
"""With less, shared memory is left to the training's workers, which may need all of it."""
SHARED_MEMORY = "/dev/shm"


class SharedFolder:
    """A locked folder. The lock is held until the folder is removed or this process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    def remove(self) -> None:
        """Remove the folder with its contents."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def new_folder() -> SharedFolder:
    """Create a folder, in memory if there is plenty of it. Folders whose owners were killed are removed."""
    remove_stale()
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_place()))
        lock = _lock(path, os.O_CREAT)
        if lock is not None:
            return SharedFolder(path, lock)
        # another process took it for a stale one before it was locked
        _remove(path)


def remove_stale() -> None:
    """Remove the folders of this user whose owners are gone."""
    for place in {SHARED_MEMORY, tempfile.gettempdir()}:
        for path in Path(place).glob(f"{PREFIX}*"):
            with suppress(OSError):
                if path.stat().st_uid == os.getuid():
                    _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    if not (path / LOCK).exists():
        path.rmdir()  # its owner was killed before locking it, or is about to lock it, and creates another one then
        return
    lock = _lock(path)
    if lock is not None:
        _remove(path)
        os.close(lock)


def _lock(path: Path, flags: int = 0) -> int | None:
    """Lock a folder; return the descriptor, or None if another process holds the lock or has removed the folder."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(path / LOCK)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(path: Path) -> None:
    """Remove a folder, even if a process is just creating a file in it."""
    for _ in range(3):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def _place() -> str:
    try:
        found = os.statvfs(SHARED_MEMORY)
        if found.f_bavail * found.f_frsize >= MIN_SHARED_MEMORY_BYTES and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            return SHARED_MEMORY
    except (OSError, AttributeError):
        pass
    return tempfile.gettempdir()
