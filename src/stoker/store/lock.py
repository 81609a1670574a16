"""One writer at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from stoker.errors import ArgumentError

LOCK = "lock"


class Lock:
    """The lock, held by this process until it is left, or gone. Forked children let go of their copy."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def leave(self) -> None:
        """Close this process's descriptor: the lock is held for as long as any copy of it is open."""
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
    """Hold the lock in `folder`, which is made; `ArgumentError` if another one holds it. Ends with its holder."""
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # whoever held it has just finished, and removed the folder
        lock = Lock(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(path, descriptor):
                return lock
        except BlockingIOError as error:
            lock.leave()
            raise ArgumentError(
                f"somebody else is writing {folder.parent} right now",
                hint="wait for the end (or close that writer), or choose another folder",
            ) from error
        except BaseException:
            lock.leave()
            raise
        lock.leave()


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is the one that others will find."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
