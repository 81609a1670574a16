"""Crop, resize and flip decoded images into the rows of a batch. Shapes: n images; C channels, H x W pixels in a row.

Resizing is antialiased, by the triangle filter that Pillow calls bilinear: each pixel of the result is the mean of
those under a triangle two pixels of the result wide (of the source, if it is enlarged), cut off at the region's edge.
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
    """What is done to each image: one entry per image in all of these."""

    rows: NDArray[np.int64]
    """[n]: the row of the batch."""
    regions: NDArray[np.int64]
    """[n, 4]: left, top, right, bottom of the pixels that count."""
    boxes: NDArray[np.float64]
    """[n, 4]: the part that is resized, inside the region."""
    flips: NDArray[np.bool_]
    """[n, 2]: rows (top to bottom) and columns (left to right) in reverse order."""

    def of(self, numbers: Sequence[int]) -> Cuts:
        """Return the entries of some images."""
        chosen = np.asarray(numbers, np.int64)
        return Cuts(self.rows[chosen], self.regions[chosen], self.boxes[chosen], self.flips[chosen])


Cut = Callable[[Sequence[Tensor], Cuts, Tensor], None]


def cut(images: Sequence[Tensor], cuts: Cuts, out: Tensor) -> None:
    """Write images, uint8 [C, any, any] or [1, any, any], into rows of `out`, uint8 [B, C, H, W] of any strides.

    All are on the device of `out`. On a GPU it is one kernel on the current stream, if Triton is installed.
    """
    if not images:
        return
    kernel = _kernel() if out.is_cuda else None
    (cut_one_by_one if kernel is None else kernel)(images, cuts, out)


@cache
def _kernel() -> Cut | None:
    try:
        from stoker.deliver.cutting_kernel import cut_together
    except ImportError:
        return None
    return cut_together


def cut_one_by_one(images: Sequence[Tensor], cuts: Cuts, out: Tensor) -> None:
    """The same in torch alone: an image is multiplied by a matrix of weights along each side."""
    height, width = out.shape[2:]
    for image, row, region, box, flips in zip(
        images, cuts.rows.tolist(), cuts.regions.tolist(), cuts.boxes.tolist(), cuts.flips.tolist()
    ):
        across, left = _weights(width, box[0], box[2], region[0], region[2], out.device)
        down, top = _weights(height, box[1], box[3], region[1], region[3], out.device)
        part = image[:, top : top + down.shape[1], left : left + across.shape[1]].to(torch.float32)
        values = (down @ part @ across.T).add_(0.5).clamp_(0, 255).to(torch.uint8)
        out[row].copy_(values.flip([axis for axis, is_flipped in zip((-2, -1), flips) if is_flipped]))


def _weights(size: int, low: float, high: float, first: int, stop: int, device: torch.device) -> tuple[Tensor, int]:
    """Return the weights of m source pixels in each of `size` pixels, float32 [size, m], and where the m begin."""
    scale = (high - low) / size
    reach = max(scale, 1.0)
    first = max(first, math.floor(low - reach))
    stop = min(stop, math.ceil(high + reach))
    centers = low + (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * scale
    pixels = torch.arange(first, stop, dtype=torch.float64, device=device) + 0.5
    weights = (1 - (pixels - centers[:, None]).abs_() / reach).clamp_(min=0)
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32), first
