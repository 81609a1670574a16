"""What a preparation reports: its progress while it runs, and a summary at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from stoker.errors import DataError
from stoker.source.images.image_storage import ImageSource
from stoker.transform.image.decoding import decode

Stage = Literal["hashing", "tokenizing", "shuffling", "training", "images"]

_NUM_TRIED = 64
_MAX_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationProgress:
    """Progress of one stage."""

    stage: Stage
    num_read: int
    """Bytes of the inputs that are done."""
    num_bytes: int
    """Bytes of all inputs that this run has to read."""
    documents: int = 0
    """Documents, or images."""
    tokens: int = 0
    pieces_done: int = 0
    num_pieces: int = 0


Watch = Callable[[PreparationProgress], None]
"""Called about ten times a second, in the thread that prepares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """Summary of a preparation: what every kind of store has."""

    path: Path
    skipped: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Number of skipped inputs by reason; `skipped.jsonl` lists them."""
    disk_bytes: int
    """Size of all shards."""
    num_pieces: int
    num_made: int = 0
    """Pieces made by this run; the others existed."""
    num_removed: int = 0
    """Pieces of the previous store that this one does not have."""
    seconds: float
    is_up_to_date: bool = False
    """Nothing had to be done: the store is unchanged."""

    @property
    def num_reused(self) -> int:
        """Pieces that existed."""
        return max(0, self.num_pieces - self.num_made)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensReport(StoreReport):
    """Summary of a preparation of tokens."""

    documents: int
    tokens: int
    text_bytes: int
    """Size of all documents, in UTF-8."""
    dtype: str
    made_bytes: int = 0
    """Size of the text in the pieces made by this run."""
    backend: str
    """The library that made the ids; empty if none were made."""
    fallback_reason: str | None = None
    """Why gigatoken was not used although allowed."""


class ImageCost(NamedTuple):
    """Average cost of an image, measured on a sample from all parts of the set."""

    num_tried: int
    bytes_each: float
    decode_ms: float
    """Time to decode it completely to RGB, at full size, in one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReport(StoreReport):
    """Summary of a preparation of images."""

    images: int
    reencoded: int
    """Images that were encoded again; the others are unchanged, byte for byte."""
    source_bytes: int
    """Size of the original images."""
    image_bytes: int
    """Size of the images in the store."""
    bad: list[str] = field(default_factory=list)
    """The first skipped images, with the reason."""
    classes: int | None = None
    before: ImageCost | None = None
    after: ImageCost | None = None

    @property
    def pictures(self) -> int:
        """The earlier name of `images`."""
        return self.images


def measure_cost(images: ImageSource) -> ImageCost | None:
    """Measure what images cost to decode, on some of them, for at most a second; None if none can be decoded."""
    num_bytes = num_tried = 0
    spent = 0.0
    with suppress(DataError):  # not measured: the first call also loads the decoder
        decode(images.read(0), name="")
    for position in np.unique(np.linspace(0, len(images) - 1, _NUM_TRIED, dtype=np.int64)).tolist():
        try:
            data = images.read(position)
            begin = time.perf_counter()
            decode(data, name="")
        except DataError:
            continue
        spent += time.perf_counter() - begin
        num_bytes += len(data)
        num_tried += 1
        if spent > _MAX_SECONDS:
            break
    return ImageCost(num_tried, num_bytes / num_tried, 1e3 * spent / num_tried) if num_tried else None
