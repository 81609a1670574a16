"""How much memory recent batches needed, and how much a slot should therefore have.

A slot is as big as its own batch needs, with some room. It keeps that memory for the next batch, unless hardly any
recent batch needed as much. So a stream of similar batches never allocates again, and one outsized batch costs memory
only while it is held.
"""

from __future__ import annotations

from collections import deque

from stoker.engine.slots.arena import whole_pages

NUM_RECENT = 64
"""Batches that count as recent."""

RARE = 16
"""One batch in so many is an exception, for which no memory is kept."""

SLACK = 4
"""A slot is outsized if it has more than so many times what it needs. Below that, batches that differ would make their
slots shrink and grow again and again.
"""


def roomy(num_bytes: int) -> int:
    """Return how big a slot is made for a batch of `num_bytes`: a quarter more, so that the next one fits as well."""
    return whole_pages(num_bytes + num_bytes // 4 + 4096)


class RecentSizes:
    """The sizes of recent batches."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)
        self._num_to_go = RARE
        self._set(0)

    def _set(self, num_bytes: int) -> None:
        self.usual_bytes = num_bytes
        """What all recent batches needed, but for one in `RARE`; looked at again after so many."""
        self.most_bytes = SLACK * roomy(num_bytes)
        """How much memory a slot may keep."""

    def add(self, num_bytes: int) -> None:
        """Count a batch."""
        recent = self._recent
        recent.append(num_bytes)
        self._num_to_go -= 1
        if not self._num_to_go:
            self._num_to_go = RARE
            self._set(sorted(recent)[-1 - len(recent) // RARE])
        elif num_bytes > self.usual_bytes and len(recent) < RARE:
            self._set(num_bytes)

    @property
    def largest_bytes(self) -> int:
        """What the largest of them needed."""
        return max(self._recent, default=0)
