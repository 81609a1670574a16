"""Decoded pictures cropped, resized and flipped into the rows of a batch. Shapes: C channels, H x W pixels in a row.

Resizing is antialiased, by the triangle filter that Pillow calls bilinear: each pixel of the result is the mean of
those under a triangle two pixels of the result wide (of the source, if it is enlarged), cut off at the region's border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Cuts(NamedTuple):
    """What becomes of each picture: one entry per picture in all of these."""

    rows: NDArray[np.int64]
    """[n]: the row of the batch."""
    regions: NDArray[np.int64]
    """[n, 4]: left, top, right, bottom of what may be looked at."""
    boxes: NDArray[np.float64]
    """[n, 4]: the part that is resized, inside the region."""
    flips: NDArray[np.bool_]
    """[n, 2]: rows (top to bottom) and columns (left to right) in reverse order."""

    def of(self, numbers: Sequence[int]) -> Cuts:
        """Return those of some pictures."""
        chosen = np.asarray(numbers, np.int64)
        return Cuts(self.rows[chosen], self.regions[chosen], self.boxes[chosen], self.flips[chosen])


Cut = Callable[[Sequence[Tensor], Cuts, Tensor], None]


def cut(pictures: Sequence[Tensor], cuts: Cuts, out: Tensor) -> None:
    """Write pictures, uint8 [C, any, any] or [1, any, any], into rows of `out`, uint8 [B, C, H, W] of any strides.

    All of them lie where `out` does. On a GPU it is one kernel on the current stream, if Triton is there.
    """
    if not pictures:
        return
    kernel = _kernel() if out.is_cuda else None
    (cut_one_by_one if kernel is None else kernel)(pictures, cuts, out)


@cache
def _kernel() -> Cut | None:
    try:
        from stoker.deliver.cutting_kernel import cut_together
    except ImportError:
        return None
    return cut_together


def cut_one_by_one(pictures: Sequence[Tensor], cuts: Cuts, out: Tensor) -> None:
    """The same in torch alone: along each side a picture is multiplied with a matrix of weights."""
    height, width = out.shape[2:]
    for picture, row, region, box, flips in zip(
        pictures, cuts.rows.tolist(), cuts.regions.tolist(), cuts.boxes.tolist(), cuts.flips.tolist()
    ):
        across, left = _weights(width, box[0], box[2], region[0], region[2], out.device)
        down, top = _weights(height, box[1], box[3], region[1], region[3], out.device)
        part = picture[:, top : top + down.shape[1], left : left + across.shape[1]].to(torch.float32)
        values = (down @ part @ across.T).add_(0.5).clamp_(0, 255).to(torch.uint8)
        out[row].copy_(values.flip([axis for axis, is_flipped in zip((-2, -1), flips) if is_flipped]))


def _weights(size: int, low: float, high: float, first: int, stop: int, device: torch.device) -> tuple[Tensor, int]:
    """Return what each of `size` pixels takes from those of the source, float32 [size, m], and where these m begin."""
    scale = (high - low) / size
    reach = max(scale, 1.0)
    first = max(first, math.floor(low - reach))
    stop = min(stop, math.ceil(high + reach))
    centers = low + (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * scale
    pixels = torch.arange(first, stop, dtype=torch.float64, device=device) + 0.5
    weights = (1 - (pixels - centers[:, None]).abs_() / reach).clamp_(min=0)
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32), first
