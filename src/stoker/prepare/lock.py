"""One preparation at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.errors import ArgumentError

LOCK = "lock"


class Lock:
    """The lock, held by this process. Forked children let go of their copy."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def leave(self) -> None:
        """Close this process's descriptor: the lock is held for as long as any copy of it is open."""
        with suppress(OSError):
            os.close(self._descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[Lock]:
    """Hold the lock in `folder`, which is made; `ArgumentError` if another process holds it. Ends with its holder."""
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # whoever held it has just finished, and removed the folder
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(path, descriptor):
                break
        except BlockingIOError as error:
            os.close(descriptor)
            raise ArgumentError(
                f"another process is preparing {folder.parent} right now",
                hint="wait for its end, or choose another folder",
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    lock = Lock(descriptor)
    try:
        yield lock
    finally:
        lock.leave()


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is the one that others will find."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
