"""How long copies to the device take: of the trainer's time, and, for some of them, on the device."""

from __future__ import annotations

from stoker.engine.stats import Copies

TIMED_EVERY = 16
"""Copies of which one is timed on the device: two events more for each of its tensors."""


class CopyCounter:
    """Counts copies. Written to by a delivery, in the trainer's thread."""

    __slots__ = ("device_seconds", "num", "num_pageable", "num_timed", "seconds")

    def __init__(self) -> None:
        self.num = self.num_pageable = self.num_timed = 0
        self.seconds = self.device_seconds = 0.0

    def reset(self) -> None:
        """Begin anew."""
        self.num = self.num_pageable = self.num_timed = 0
        self.seconds = self.device_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a copy, and what it took of the trainer's time."""
        self.num += 1
        self.seconds += seconds

    @property
    def is_to_be_timed(self) -> bool:
        """Whether the next copy is one of those that are timed on the device: not the first one, for which memory has
        to be found there.
        """
        return self.num % TIMED_EVERY == 1

    def add_timed(self, seconds: float) -> None:
        """Count what a copy took on the device."""
        self.num_timed += 1
        self.device_seconds += seconds

    def record(self) -> Copies | None:
        """Return it as a record; None if nothing was copied."""
        if not self.num:
            return None
        per_copy = self.device_seconds / self.num_timed if self.num_timed else None
        return Copies(num=self.num, num_pageable=self.num_pageable, seconds=self.seconds, device_seconds=per_copy)
