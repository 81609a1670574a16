"""One writer at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from stoker.errors import ArgumentError

LOCK = "lock"


class Lock:
    """The lock of a writer: held until every copy of its descriptor is closed, so forked children close theirs."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def leave(self) -> None:
        """Close the descriptor of this process."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        self.leave()


def locked(folder: Path) -> Lock:
    """Lock `folder`, which is created if missing; raise `ArgumentError` if another process holds the lock.

    The kernel releases it when the process ends, however it ends.
    """
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # race: the previous holder finished and removed the folder
        lock = Lock(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(path, descriptor):
                return lock
        except BlockingIOError as error:
            lock.leave()
            raise ArgumentError(
                f"another process is writing {folder.parent}",
                hint="wait until it ends (or close that writer), or choose another folder",
            ) from error
        except BaseException:
            lock.leave()
            raise
        lock.leave()


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Return whether the locked file is still at its path: the previous holder may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
