"""How large a batch is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def size_of(batch: Any) -> int:
    """Return the bytes of the tensors, arrays and texts in a batch, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, np.ndarray | np.generic):
        return int(batch.nbytes)
    if isinstance(batch, str | bytes | bytearray | memoryview):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(map(size_of, batch.values()))
    if isinstance(batch, list | tuple):
        return sum(map(size_of, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return sum(size_of(getattr(batch, one.name)) for one in dataclasses.fields(batch))
    return 0
