"""Where a batch is put: into memory that somebody offers, such as a slot, or wherever NumPy likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

Take = Callable[[int], tuple[Any, int]]
"""Called with a number of bytes, returns a buffer and the offset in it at which so many are free."""


class _Local(threading.local):
    take: Take | None = None


_local = _Local()


class placed:  # noqa: N801  # a context manager by class: by a generator it would take as long as a small batch's copy
    """Let what is collated in this thread be put into memory from `take`."""

    __slots__ = ("_previous", "_take")

    def __init__(self, take: Take) -> None:
        self._take = take

    def __enter__(self) -> None:
        self._previous, _local.take = _local.take, self._take

    def __exit__(self, *_: object) -> None:
        _local.take = self._previous


def offered() -> bool:
    """Return whether there is memory to collate into."""
    return _local.take is not None


def empty_array(shape: tuple[int, ...], dtype: Any, num_bytes: int) -> np.ndarray[Any, Any]:
    """Return an array to be filled, in the memory that is offered."""
    assert _local.take is not None
    return np.ndarray(shape, dtype, *_local.take(num_bytes))
