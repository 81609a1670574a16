"""Small pictures of every kind, made here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(width: int, height: int, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a picture with slopes and edges, so that being turned, mirrored or shifted shows."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    rng = np.random.default_rng(seed)
    channels = [across, down, ((across * 3).astype(int) + (down * 2).astype(int)) % 2]
    found = np.stack(channels, axis=2) * 200 + rng.integers(0, 20)
    return found.astype(np.uint8)


def encoded(width: int, height: int, kind: str = "JPEG", *, mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(width, height, seed=seed)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def turned(width: int, height: int, orientation: int) -> bytes:
    """Return a JPEG file that asks to be put upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(width, height, exif=exif.tobytes(), quality=95)


def folder_of(path: Path, count: int = 12, *, side: int = 64) -> Path:
    """Return a folder of `count` photographs in three classes."""
    for number in range(count):
        place = path / f"class{number % 3}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(encoded(side + number, side, seed=number))
    return path


def opened(data: Any) -> Image.Image:
    return Image.open(io.BytesIO(bytes(data)))
