"""Folders for many small stores: in memory where that is possible, since writing one waits for the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is removed afterwards."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stoker-test-", dir=where) as name:
        yield Path(name)
