"""Batches that a dataset makes whole, in one go, instead of sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from stoker.batch.placing import empty_array, offered
from stoker.batch.pool import Pool
from stoker.foundation import trees


class Gathering:
    """Calls a dataset's `__getbatch__(positions, empty)`, with `empty` in the slot where there is one."""

    def __init__(self) -> None:
        self._pool = Pool()

    def __call__(self, dataset: Any, positions: Any) -> Any:
        """Return the batch, arrays as tensors; or NotImplemented if this dataset cannot make one."""
        empty = _placed if offered() else self._pool.empty
        batch = dataset.__getbatch__(positions, empty)
        return batch if batch is NotImplemented else tensors(batch)


def _placed(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    kind = np.dtype(dtype)
    num_bytes = kind.itemsize
    for size in shape:
        num_bytes *= size
    return empty_array(shape, kind, num_bytes)


def tensors(batch: Any) -> Any:
    """Return a batch with its arrays as tensors that share their memory."""
    if type(batch) is dict and all(type(value) is np.ndarray for value in batch.values()):
        return {key: torch.from_numpy(value) for key, value in batch.items()}  # what nearly all datasets return
    return trees.map_leaves(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)
