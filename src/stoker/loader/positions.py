"""What stands in `loader.sampler` when the order is a plan.

Code around training looks at a loader's sampler (which kind it is, how long, what it gives) and puts it into other
loaders. These are of the kind that torch would have made, and give what the plan gives: first the epoch that comes
next, then the ones after it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import RandomSampler, SequentialSampler

from stoker.loader.course import Course


class PlannedPositions:
    """The positions that this rank reads, an epoch for each iteration."""

    def __init__(self, course: Course) -> None:
        super().__init__(course.dataset)  # type: ignore[call-arg]
        self._course = course
        self._next_epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives."""
        return max(self._course.next_epoch, self._next_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration give `epoch`."""
        self._course.next_epoch = self._next_epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch
        self._next_epoch = epoch + 1
        return self._course.positions(epoch)

    def __len__(self) -> int:
        return self._course.length_of_share()


class SequentialPositions(PlannedPositions, SequentialSampler):
    """In the order of the data."""


class ShuffledPositions(PlannedPositions, RandomSampler):
    """In the plan's shuffled order."""
