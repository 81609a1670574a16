"""What a dataset of pictures asks of where they lie: a seam for sources of our own and of others."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

EncodedImage = bytes | memoryview | NDArray[np.uint8]
"""A picture as it lies on disk: the bytes of a JPEG, PNG, ... file."""


@runtime_checkable
class ImageSource(Protocol):
    """Encoded pictures addressed by position, readable from any thread and process, cheap to pickle."""

    classes: list[str] | None
    """The names of the classes, by their numbers; None where labels are no classes, or are not there."""
    labels: NDArray[Any] | None
    """For each picture the number of its class, or the value, or values, that a table has for it."""

    @property
    def fingerprint(self) -> str:
        """What tells this set of pictures, in this order and with these labels, from others, wherever it lies."""
        ...

    def __len__(self) -> int: ...

    def read(self, position: int, /) -> EncodedImage:
        """Return the picture at `position`, from 0, as it lies on disk. It is not to be written to."""
        ...

    def name(self, position: int, /) -> str:
        """Return where the picture at `position` lies, in characters that can be printed."""
        ...
