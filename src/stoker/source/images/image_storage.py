"""Interface between `stoker.images` and the places where images are stored."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

EncodedImage = bytes | memoryview | NDArray[np.uint8]
"""The bytes of an image file: JPEG, PNG, ..."""


@runtime_checkable
class ImageSource(Protocol):
    """Encoded images addressed by position, readable from any thread and process, cheap to pickle."""

    classes: list[str] | None
    """Names of the classes by number; None if labels are not classes, or there are none."""
    labels: NDArray[Any] | None
    """For each image the number of its class, or the value or values that a table has for it."""

    @property
    def fingerprint(self) -> str:
        """Identity of these images, in this order and with these labels, independent of their location."""
        ...

    def __len__(self) -> int: ...

    def read(self, position: int, /) -> EncodedImage:
        """Return the bytes of the image at `position`, from 0. Do not write to them."""
        ...

    def name(self, position: int, /) -> str:
        """Return the location of the image at `position`, as printable text."""
        ...
