"""What is asked of a loader: a job, and the names of those who do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.images.photographs import Photographs

SIZE = 224
BATCH_SIZE = 64
PREFETCH_FACTOR = 2
CROPS, FACES = "crops", "faces"

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """Photographs that are to become batches of uint8 pictures of 224 x 224, with labels."""

    name: str
    """crops: RandomResizedCrop and a flip at random. faces: the whole picture, resized."""
    photographs: Photographs
    num_workers: int
    is_shuffled: bool = True

    @property
    def is_cropped(self) -> bool:
        return self.name == CROPS

    def over(self, photographs: Photographs) -> Job:
        """Return the same job with other photographs, in their order."""
        return replace(self, photographs=photographs, is_shuffled=False)


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader, and what it needs."""

    make: Callable[[Job], Any]
    """Iterating over what comes back is an epoch."""
    split: Callable[[Any], Pair]
    """What makes pictures and labels of a batch."""
    modules: tuple[str, ...] = ()
    """What is imported before anything is timed, and has to be installed."""
    format_name: str = "files"
    switches: tuple[tuple[str, str], ...] = ()
    """Environment variables, set before anything is imported."""
    is_antialiased: bool = True
    jobs: tuple[str, ...] = (CROPS, FACES)
    is_ours: bool = False
    is_endless: bool = False
    """Whether its epochs have no end."""
    is_shrunk: bool = False
    """Whether its photographs were made smaller beforehand."""


def checked(pair: Pair) -> None:
    """See that a batch is what it should be."""
    pictures, labels = (np.asarray(part) for part in pair)
    assert pictures.dtype == np.uint8, f"pictures of {pictures.dtype}"
    assert pictures.shape in ((BATCH_SIZE, SIZE, SIZE, 3), (BATCH_SIZE, 3, SIZE, SIZE)), f"a shape of {pictures.shape}"
    assert labels.size == BATCH_SIZE, f"{labels.size} labels"
    assert pictures.std() > 10, "pictures without anything on them"
