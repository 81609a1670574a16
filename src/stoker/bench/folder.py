"""The folder through which watched processes and a doctor meet: made for one run, and gone with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "stoker-doctor-"
ROOMY_BYTES = 2 << 30
"""Shared memory below this is left to the training's workers, which may need all of it."""


def new_folder() -> Path:
    """Return a new, empty folder, in memory if there is plenty of it. Folders of doctors that were killed are removed.

    Its name tells whose it is; whoever gets it removes it.
    """
    place = _place()
    _sweep(place)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))


def remove(folder: Path) -> None:
    """Remove a folder and all that is in it, also if a process is just putting something there."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _place() -> str:
    shared = "/dev/shm"
    try:
        told = os.statvfs(shared)
        if told.f_bavail * told.f_frsize >= ROOMY_BYTES and os.access(shared, os.W_OK | os.X_OK):
            return shared
    except (OSError, AttributeError):
        pass
    return tempfile.gettempdir()


def _sweep(place: str) -> None:
    for left in Path(place).glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        try:
            if owner.isdigit() and left.stat().st_uid == os.getuid():
                os.kill(int(owner), 0)
        except ProcessLookupError:
            remove(left)
        except OSError:
            continue
