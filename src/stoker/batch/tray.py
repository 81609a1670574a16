"""Batches whose samples are written where they belong, each by itself, instead of being collected and stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.batch.placing import empty_array, offered
from stoker.batch.pool import Pool
from stoker.batch.whole import tensors

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Returns an array to be filled: in the slot where there is one."""


class Tray(Protocol):
    """The memory of one batch. Samples are put into it in any order, different ones by different threads at once.

    A dataset has `tray(num_samples, empty, told)`, which returns one, or NotImplemented where it cannot know the shape
    of its samples beforehand. It takes memory from `empty` and writes nothing yet; `told` is what the dataset's own
    `tell()` returned in the trainer's process when the batch was asked for, None if it has none.
    """

    def put(self, row: int, position: Any, /) -> None:
        """Read the sample at `position` into row `row`. After an error the same row is put again, from elsewhere."""
        ...

    def batch(self) -> Any:
        """Return the batch, when every row was put. Arrays become tensors. More memory may be taken here."""
        ...


class Trays:
    """Takes trays of a dataset out of the memory that is offered, or else of a pool."""

    def __init__(self) -> None:
        self._pool = Pool()

    def opened(self, dataset: Any, num_samples: int, told: Any, *, clear: Callable[[], None] | None = None) -> Any:
        """Return a tray, or NotImplemented. `clear` begins anew in memory that is offered."""
        if not offered():
            return dataset.tray(num_samples, self._pool.empty, told)
        while True:
            taken = _Taken()
            tray = dataset.tray(num_samples, taken.empty, told)
            # Memory that has moved to where there is more room leaves behind what nobody has written yet.
            if taken.is_in_one or clear is None:
                return tray
            clear()

    @staticmethod
    def lifted(tray: Tray) -> Any:
        """Return the batch of a tray that is full."""
        return tensors(tray.batch())


class _Taken:
    """Arrays in the memory that is offered, and whether they lie in one stretch of it."""

    def __init__(self) -> None:
        self.is_in_one = True
        self._memory: Any = None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        kind = np.dtype(dtype)
        num_bytes = kind.itemsize
        for size in shape:
            num_bytes *= size
        array = empty_array(shape, kind, num_bytes)
        memory = array.base
        self.is_in_one = self.is_in_one and (self._memory is None or memory is self._memory)
        self._memory = memory
        return array
