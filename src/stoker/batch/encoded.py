"""Pictures of a batch, some of which are still files: the device is to decode those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Encoded:
    """The pictures of a batch: pixels in most rows, and JPEG files for the others.

    A worker process makes it, with all its memory in the slot, and the delivery turns it into a tensor of pixels on
    the device: `pixels` is copied there, and each file is decoded, cut, resized and turned into its row. Whoever loads
    to a device never sees one.
    """

    __slots__ = (
        "boxes",
        "data",
        "flips",
        "is_channels_last",
        "offsets",
        "pixels",
        "positions",
        "regions",
        "rows",
        "sizes",
    )

    def __init__(
        self,
        pixels: Any,
        data: Any,
        offsets: Any,
        rows: Any,
        positions: Sequence[Any],
        sizes: Any,
        regions: Any,
        boxes: Any,
        flips: Any,
        *,
        is_channels_last: bool = False,
    ) -> None:
        self.pixels = _tensor(pixels)
        """uint8, [B, C, H, W] or [B, H, W, C] by `strides` alone: the shape is always [B, C, H, W]. Rows that are
        still files hold nothing of use."""
        self.data = _tensor(data)
        """uint8: the files, one after the other."""
        self.offsets = _tensor(offsets)
        """int64 [num_files + 1]: where each begins in `data`."""
        self.rows = _tensor(rows)
        """int64 [num_files]: the row that each is for."""
        self.positions = list(positions)
        """The position of each file's sample, to tell about it."""
        self.sizes = _tensor(sizes)
        """int64 [num_files, 2]: width and height of the whole pictures."""
        self.regions = _tensor(regions)
        """int64 [num_files, 4]: left, top, right, bottom of the part that may be looked at, in its pixels."""
        self.boxes = _tensor(boxes)
        """float64 [num_files, 4]: the part that is resized to [H, W], in the same pixels, inside the region."""
        self.flips = _tensor(flips)
        """bool [num_files, 2]: flip rows (top to bottom) and columns (left to right), as the last step."""
        self.is_channels_last = is_channels_last
        """Whoever loads asked for the shape [B, H, W, C]: see `shaped`."""

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.pixels)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def num_files(self) -> int:
        """How many rows are still files."""
        return len(self.rows)

    def file(self, number: int) -> Tensor:
        """Return the bytes of a file."""
        start, stop = self.offsets[number : number + 2].tolist()
        return self.data[start:stop]

    def shaped(self, pixels: Tensor) -> Tensor:
        """Return pixels of shape [B, C, H, W], when all rows are there, in the shape that they are handed out in."""
        return pixels.permute(0, 2, 3, 1) if self.is_channels_last else pixels

    def pin_memory(self) -> Encoded:
        """Return the same in page-locked memory; the files stay where they are, for they are read by the host."""
        pinned = Encoded.__new__(Encoded)
        pinned.__setstate__(self.__getstate__() | {"pixels": self.pixels.pin_memory()})
        return pinned


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(array)
