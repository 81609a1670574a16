"""Pictures made for tests: something like photographs, and files of every odd kind."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ORIENTATION = 0x0112


def photograph(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Return gradients with shapes on them, blurred edges here and sharp ones there, and a little noise."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    pixels = np.stack([128 + 100 * np.sin(rng.uniform(1, 5) * x + rng.uniform(1, 5) * y + c) for c in range(3)], axis=2)
    for _ in range(12):
        across, down, radius = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.03, 0.3)
        softness = rng.uniform(0.002, 0.1)
        inside = 1 / (1 + np.exp(np.clip((np.hypot(x - across, y - down) - radius) / softness, -50, 50)))
        pixels += inside[:, :, None] * rng.uniform(-90, 90, 3)
    pixels += rng.normal(0, 3, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", *, orientation: int | None = None, **options: Any) -> bytes:
    """Return an image as a file in memory."""
    if orientation is not None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return the image that Pillow sees in a file in memory."""
    return Image.open(io.BytesIO(data))


def psnr(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return how near two pictures are, in decibels."""
    error = float(np.mean((ours.astype(np.float64) - theirs.astype(np.float64)) ** 2))
    return float("inf") if not error else 10 * float(np.log10(255**2 / error))
