"""What a preparation of pictures tells at its end."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stoker.errors import DataError
from stoker.source.images.protocols import Pictures
from stoker.transform.image.decoding import decode

_NUM_TRIED = 64
_MAX_SECONDS = 1.0


class Cost(NamedTuple):
    """What a picture costs, on the average of some from all parts."""

    num_tried: int
    bytes_each: float
    decode_ms: float
    """To decode all of it to RGB, at its full size, in one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReport:
    """What was prepared."""

    path: Path
    pictures: int
    reencoded: int
    """Pictures that were encoded anew; the others are byte for byte as they were."""
    source_bytes: int
    """Of the pictures as they were."""
    image_bytes: int
    """Of the pictures as they are in the store."""
    disk_bytes: int
    """Of all shards."""
    skipped: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Why pictures were skipped, and how many each time; `skipped.jsonl` names them."""
    bad: list[str] = field(default_factory=list)
    """The first of them, with the reason."""
    classes: int | None = None
    num_pieces: int
    num_made: int
    """Pieces that were made now; the others were there."""
    num_removed: int = 0
    """Pieces of the store that was there before which this one does not have."""
    seconds: float
    before: Cost | None = None
    after: Cost | None = None
    is_up_to_date: bool = False
    """There was nothing to do at all: the store is as it was."""

    @property
    def num_reused(self) -> int:
        """Pieces that were there."""
        return max(0, self.num_pieces - self.num_made)


def cost_of(pictures: Pictures) -> Cost | None:
    """Return what pictures cost to decode, measured on some of them for a second at most; None if none can be."""
    num_bytes = num_tried = 0
    spent = 0.0
    with suppress(DataError):  # the first one also loads the decoder
        decode(pictures.read(0), name="")
    for position in np.unique(np.linspace(0, len(pictures) - 1, _NUM_TRIED, dtype=np.int64)).tolist():
        try:
            data = pictures.read(position)
            begin = time.perf_counter()
            decode(data, name="")
        except DataError:
            continue
        spent += time.perf_counter() - begin
        num_bytes += len(data)
        num_tried += 1
        if spent > _MAX_SECONDS:
            break
    return Cost(num_tried, num_bytes / num_tried, 1e3 * spent / num_tried) if num_tried else None
