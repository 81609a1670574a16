"""Durations of copies to the device: in the training loop, and, for some of them, on the device."""

from __future__ import annotations

from stoker.engine.stats import Copies

TIMED_EVERY = 16
"""One copy out of so many is timed on the device, which takes two more events per tensor."""


class CopyCounter:
    """Counts copies. Written by a `Delivery`, in the training loop's thread."""

    __slots__ = ("device_seconds", "num", "num_pageable", "num_timed", "seconds")

    def __init__(self) -> None:
        self.num = self.num_pageable = self.num_timed = 0
        self.seconds = self.device_seconds = 0.0

    def reset(self) -> None:
        """Set all counts to 0."""
        self.num = self.num_pageable = self.num_timed = 0
        self.seconds = self.device_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a copy that took the training loop so many seconds."""
        self.num += 1
        self.seconds += seconds

    @property
    def is_to_be_timed(self) -> bool:
        """Whether the next copy is timed on the device. The first one is not: it allocates memory there."""
        return self.num % TIMED_EVERY == 1

    def add_timed(self, seconds: float) -> None:
        """Count a copy that took the device so many seconds."""
        self.num_timed += 1
        self.device_seconds += seconds

    def record(self) -> Copies | None:
        """Return the counts; None if nothing was copied."""
        if not self.num:
            return None
        per_copy = self.device_seconds / self.num_timed if self.num_timed else None
        return Copies(num=self.num, num_pageable=self.num_pageable, seconds=self.seconds, device_seconds=per_copy)
