"""Pictures in memory, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.transform.pictures import encoded, photograph


class InMemory:
    """Some encoded pictures of different sizes and kinds, of three classes."""

    fingerprint = "pictures in memory"

    def __init__(
        self, count: int = 24, *, bad: tuple[int, ...] = (), kinds: tuple[str, ...] = ("JPEG",), labels: Any = "classes"
    ) -> None:
        self.files = []
        for number in range(count):
            image = photograph(60 + 7 * (number % 5), 50 + 11 * (number % 3), seed=number)
            orientation = 6 if number % 7 == 3 else None
            self.files.append(encoded(image, kinds[number % len(kinds)], orientation=orientation))
        for number in bad:
            self.files[number] = self.files[number][:300]
        self.classes: list[str] | None = None
        self.labels: NDArray[Any] | None = None
        if isinstance(labels, str):
            self.classes = ["ant", "bee", "cow"]
            self.labels = np.arange(count) % 3
        elif labels is not None:
            self.labels = np.asarray(labels)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, position: int) -> bytes:
        return self.files[position]

    def name(self, position: int) -> str:
        return f"shelf/{position}.jpg"
