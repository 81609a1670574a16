"""Datasets that workers can have without importing a loader: a spawned worker imports what its dataset needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096


class Same:
    """As many samples as wanted, all the same object."""

    def __init__(self, num_samples: int, sample: Any) -> None:
        self.num_samples, self.sample = num_samples, sample

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> Any:
        return self.sample


class Rows:
    """The rows of an array of bytes."""

    def __init__(self, num_bytes: int, row_bytes: int = 1000) -> None:
        # written, not only promised: pages that were never touched take no memory
        self.rows = np.full((num_bytes // row_bytes, row_bytes), 1, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> NDArray[np.uint8]:
        row: NDArray[np.uint8] = self.rows[position]
        return row


class Touched(Rows):
    """Rows of which every page is read, and one number returned."""

    def __getitem__(self, position: int) -> Any:
        return int(self.rows[position, ::PAGE_BYTES].sum())


class Objects:
    """As many bytes in Python objects: a list of strings of bytes."""

    def __init__(self, num_bytes: int, each_bytes: int = 1000) -> None:
        self.strings = [number.to_bytes(each_bytes, "little") for number in range(num_bytes // each_bytes)]

    def __len__(self) -> int:
        return len(self.strings)

    def __getitem__(self, position: int) -> NDArray[np.uint8]:
        return np.frombuffer(bytearray(self.strings[position]), dtype=np.uint8)
