"""Some pictures out of many."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, PositionError
from stoker.source.images import EncodedImage, ImageSource


class ImageSubset:
    """The pictures at some positions of others, in the order of these."""

    def __init__(self, pictures: ImageSource, positions: Any) -> None:
        numbers = np.asarray(positions)
        if numbers.dtype == np.bool_ and numbers.shape == (len(pictures),):
            numbers = np.flatnonzero(numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ArgumentError(
                f"positions of {numbers.dtype} in {numbers.ndim} dimensions choose no pictures",
                hint="give a list of whole numbers, or whether for each picture",
            )
        self._positions: NDArray[np.int64] = numbers.astype(np.int64)
        outside = self._positions[(self._positions < 0) | (self._positions >= len(pictures))]
        if outside.size:
            raise PositionError(int(outside[0]), length=len(pictures), what="the pictures")
        self._pictures = pictures
        self.classes: list[str] | None = pictures.classes
        self.labels: NDArray[Any] | None = None if pictures.labels is None else pictures.labels[self._positions]

    @property
    def fingerprint(self) -> str:
        """What tells these pictures from others."""
        chosen = hashlib.blake2b(self._positions.tobytes(), digest_size=8).hexdigest()
        return f"{self._pictures.fingerprint}, of these {chosen}"

    def __len__(self) -> int:
        return len(self._positions)

    def read(self, position: int, /) -> EncodedImage:
        """Return the picture at `position`, as it lies on disk."""
        return self._pictures.read(int(self._positions[position]))

    def name(self, position: int, /) -> str:
        """Return where the picture at `position` lies."""
        return self._pictures.name(int(self._positions[position]))
