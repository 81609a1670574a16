"""Generate the data of the demo: images of shapes as JPEG files, sentences and documents as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from stoker.foundation.randomness import rng

Advance = Callable[[], None]
"""Called after each item, to advance a progress bar."""

CLASSES = ("circle", "square", "triangle", "cross", "ring", "star")
STORED_SIDE = 256
"""Side of a stored image in pixels: more than the model sees, as usual, so that decoding has a cost."""
SERVED_SIDE = 48
"""Side of an image in pixels after cropping, as the model sees it."""

_SUBJECTS = ("the stoker", "a sailor", "the engineer", "an old captain", "the cook", "a passenger", "the fireman")
_VERBS = ("feeds", "watches", "repairs", "forgets", "polishes", "paints", "listens to", "sings about")
_OBJECTS = ("the boiler", "a lantern", "the compass", "the northern sea", "a rope", "the steam", "an empty deck")
_TIMES = ("at dawn", "every evening", "before the storm", "while others sleep", "in silence", "once more", "for hours")


class Shapes:
    """A folder of JPEG files as a map-style dataset: decoded, cropped and flipped at random.

    Random numbers come from `stoker.rng()`, so an image is cropped the same way in every thread, process and rank.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> tuple[NDArray[np.float32], int]:
        path = self.paths[position]
        random = rng()
        with Image.open(path) as photo:
            side = photo.width * random.uniform(0.75, 1.0)
            left, top = random.uniform(0, photo.width - side, size=2)
            box = (left, top, left + side, top + side)
            cropped = photo.resize((SERVED_SIDE, SERVED_SIDE), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(cropped)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        scaled = np.multiply(pixels.transpose(2, 0, 1), np.float32(1 / 255), dtype=np.float32)
        return scaled, CLASSES.index(path.name.split("-")[0])

    def describe(self, position: int) -> str:
        """Return the file of a sample, for error messages."""
        return str(self.paths[position])


def write_images(folder: Path, *, num_images: int, advance: Advance) -> list[Path]:
    """Write JPEG files, cycling through the classes, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    # Each image takes a piece of one noise field: new noise each time would cost more than the JPEG.
    noise = random.normal(0, 18, size=(2 * STORED_SIDE, 2 * STORED_SIDE, 3)).astype(np.float32)
    paths = []
    for number in range(num_images):
        name = CLASSES[number % len(CLASSES)]
        path = folder / f"{name}-{number:05}.jpg"
        _make_image(name, noise, random).save(path, quality=85)
        paths.append(path)
        advance()
    return paths


def write_corpus(path: Path, *, num_lines: int, advance: Advance) -> Path:
    """Write sentences as JSON lines, each with its number as `id`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(11)
    parts = (_SUBJECTS, _VERBS, _OBJECTS, _TIMES)
    choices = np.stack([random.integers(0, len(words), num_lines) for words in parts], axis=1).tolist()
    with path.open("w") as file:
        for number, chosen in enumerate(choices):
            sentence = " ".join(words[at] for words, at in zip(parts, chosen))
            file.write(json.dumps({"id": number, "text": f"{sentence}."}) + "\n")
            advance()
    return path


def write_texts(folder: Path, *, num_documents: int, num_files: int, advance: Advance) -> Path:
    """Write documents of many sentences as JSON lines, with realistic (log-normal) lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(13)
    parts = (_SUBJECTS, _VERBS, _OBJECTS, _TIMES)
    lengths = (1 + np.exp(random.normal(2.2, 0.8, size=num_documents))).astype(int)
    choices = np.stack([random.integers(0, len(words), lengths.sum()) for words in parts], axis=1).tolist()
    sentences = [" ".join(words[at] for words, at in zip(parts, chosen)) + "." for chosen in choices]
    stops = np.cumsum(lengths)
    for number in range(num_files):
        with (folder / f"part-{number}.jsonl").open("w") as file:
            for document in range(number * num_documents // num_files, (number + 1) * num_documents // num_files):
                text = " ".join(sentences[stops[document] - lengths[document] : stops[document]])
                file.write(json.dumps({"text": text}) + "\n")
                advance()
    return folder


def _make_image(name: str, noise: NDArray[np.float32], random: Generator) -> Image.Image:
    """Return an image of a shape with random place, size, angle and color, on a noisy background."""
    ground, color = random.integers(20, 236, size=(2, 3))
    while np.abs(ground - color).sum() < 140:  # ensure contrast
        ground, color = random.integers(20, 236, size=(2, 3))
    photo = Image.new("RGB", (STORED_SIDE, STORED_SIDE), _rgb(ground))
    radius = random.uniform(0.22, 0.34) * STORED_SIDE
    center = random.uniform(radius + 8, STORED_SIDE - radius - 8, size=2)
    _draw(ImageDraw.Draw(photo), name, center, radius, random.uniform(0, math.tau), _rgb(color))
    x, y = random.integers(0, STORED_SIDE, size=2)
    noisy = np.asarray(photo) + noise[y : y + STORED_SIDE, x : x + STORED_SIDE]
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _draw(
    draw: ImageDraw.ImageDraw,
    name: str,
    center: NDArray[np.float64],
    radius: float,
    angle: float,
    color: tuple[int, int, int],
) -> None:
    if name in ("circle", "ring"):
        box = (*(center - radius), *(center + radius))
        if name == "circle":
            draw.ellipse(box, fill=color)
        else:
            draw.ellipse(box, outline=color, width=int(radius / 3))
        return
    corners = [
        (center[0] + radius * far * math.cos(angle + turn), center[1] + radius * far * math.sin(angle + turn))
        for turn, far in _outline(name)
    ]
    draw.polygon(corners, fill=color)


def _outline(name: str) -> list[tuple[float, float]]:
    """Return the corners of a shape as (angle, distance), the farthest at distance 1."""
    if name in ("triangle", "square"):
        count = 3 if name == "triangle" else 4
        return [(math.tau * corner / count, 1.0) for corner in range(count)]
    if name == "star":
        return [(math.tau * corner / 10, 0.42 if corner % 2 else 1.0) for corner in range(10)]
    arm, width = 1.0, 0.3
    cross = [(arm, -width), (arm, width), (width, width)]
    corners = [(quarter * math.pi / 2, x, y) for quarter in range(4) for x, y in cross]
    return [(turn + math.atan2(y, x), math.hypot(x, y) / math.hypot(arm, width)) for turn, x, y in corners]


def _rgb(color: NDArray[np.int64]) -> tuple[int, int, int]:
    red, green, blue = color.tolist()
    return red, green, blue
