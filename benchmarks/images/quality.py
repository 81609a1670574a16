"""How near our pictures are to Pillow's: all of the file decoded, cut, and resized with antialiasing."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.images.contenders import switched
from benchmarks.images.jobs import SIZE, Job
from benchmarks.images.torch_loaders import crop_of

WINDOW = 8
"""Pixels on each side of the squares that SSIM compares, which overlap."""
EQUAL_DECIBELS = 99.0
"""What counts as the PSNR of equal pictures, which is infinite."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two pictures are."""

    psnr: float
    ssim: float


def summed_up(found: list[Likeness]) -> dict[str, Any]:
    """Return how many pictures are the same as Pillow's, and how near the others are."""
    others = [one for one in found if one.psnr < EQUAL_DECIBELS]
    summary: dict[str, Any] = {"num_pictures": len(found), "share_equal": 1 - len(others) / len(found)}
    for of in ("psnr", "ssim") if others else ():
        summary[f"{of}_mean"] = fmean(getattr(one, of) for one in others)
        summary[f"{of}_min"] = min(getattr(one, of) for one in others)
    return summary


def likenesses(name: str, job: Job, num_views: int) -> tuple[str, list[Likeness]]:
    """Return by which decoder the contender made pictures, and how near each was to Pillow's."""
    switched(name)
    from stoker import native
    from stoker.transform.image.decoding import decode

    decoder = "native" if getattr(native, "has_jpeg", bool)() else "simplejpeg"
    random.seed(0)
    found = []
    for path in job.photographs.originals():
        data = path.read_bytes()
        for _ in range(num_views):
            view = _Seen(job)
            ours = decode(data, view)
            found.append(likeness(ours, view.by_pillow(data)))
    return decoder, found


class _Seen:
    """A view, drawn when the size is known, and kept."""

    def __init__(self, job: Job) -> None:
        self.is_cropped = job.is_cropped
        self.region = (0, 0, 0, 0)

    def __call__(self, width: int, height: int) -> Any:
        from stoker.transform.image.view import View

        left, top, w, h = crop_of(width, height) if self.is_cropped else (0, 0, width, height)
        self.region = (left, top, left + w, top + h)
        return View(self.region, tuple(map(float, self.region)), (SIZE, SIZE))  # type: ignore[arg-type]

    def by_pillow(self, data: bytes) -> NDArray[np.uint8]:
        from PIL import Image

        image: Any = Image.open(io.BytesIO(data)).convert("RGB").crop(self.region)
        return np.array(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def likeness(ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> Likeness:
    """Return PSNR over all channels, and SSIM of the brightness."""
    error = float(np.mean((ours.astype(np.float64) - theirs) ** 2))
    psnr = EQUAL_DECIBELS if error == 0 else min(EQUAL_DECIBELS, 10 * np.log10(255**2 / error))
    return Likeness(float(psnr), ssim(_brightness(ours), _brightness(theirs)))


def _brightness(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = pixels @ np.array([0.299, 0.587, 0.114])
    return found


def ssim(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the structural similarity (Wang and others, 2004), with flat windows of 8 x 8 instead of Gaussian ones."""
    steady, sharp = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_one, mean_other = _means(one), _means(other)
    spread_one = _means(one * one) - mean_one**2
    spread_other = _means(other * other) - mean_other**2
    common = _means(one * other) - mean_one * mean_other
    alike = ((2 * mean_one * mean_other + steady) * (2 * common + sharp)) / (
        (mean_one**2 + mean_other**2 + steady) * (spread_one + spread_other + sharp)
    )
    return float(alike.mean())


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of every square window."""
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    found: NDArray[np.float64] = (
        sums[WINDOW:, WINDOW:] - sums[:-WINDOW, WINDOW:] - sums[WINDOW:, :-WINDOW] + sums[:-WINDOW, :-WINDOW]
    ) / WINDOW**2
    return found
