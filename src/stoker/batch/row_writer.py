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


class RowWriter(Protocol):
    """The memory of one batch. Samples are written into it in any order, different ones by different threads at once.

    A dataset has `open_batch(num_samples, empty, hint)`, which returns one, or NotImplemented where it cannot know the
    shape of its samples beforehand. It takes memory from `empty` and writes nothing yet; `hint` is what
    `dataset.batch_hint()` returned in the trainer's process when the batch was asked for, None if it has none.
    """

    def write(self, row: int, position: Any, /) -> None:
        """Read the sample at `position` into row `row`. After an error the row is written again, from elsewhere."""
        ...

    def batch(self) -> Any:
        """Return the batch, when every row was written. Arrays become tensors. More memory may be taken here."""
        ...


class RowWriters:
    """Takes row writers of a dataset out of the memory that is offered, or else of a pool."""

    def __init__(self) -> None:
        self._pool = Pool()

    def opened(self, dataset: Any, num_samples: int, hint: Any, *, clear: Callable[[], None] | None = None) -> Any:
        """Return a writer, or NotImplemented. `clear` begins anew in memory that is offered."""
        if not offered():
            return dataset.open_batch(num_samples, self._pool.empty, hint)
        while True:
            taken = _Taken()
            writer = dataset.open_batch(num_samples, taken.empty, hint)
            # Memory that has moved to where there is more room leaves behind what nobody has written yet.
            if taken.is_in_one or clear is None:
                return writer
            clear()

    @staticmethod
    def lifted(writer: RowWriter) -> Any:
        """Return the batch of a writer that is full."""
        return tensors(writer.batch())


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
