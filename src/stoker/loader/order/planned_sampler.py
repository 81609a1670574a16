"""What stands in `loader.sampler` when the order is a plan.

Code around training looks at a loader's sampler (which kind it is, how long, what it gives) and puts it into other
loaders. These are of the kind that torch would have made, and give what the plan gives: first the epoch that comes
next, then the ones after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler

from stoker.errors import ArgumentError
from stoker.loader.order.schedule import Schedule
from stoker.plan import Sequential
from stoker.source.protocols import has_epochs


class PlannedPositions:
    """The positions that this rank reads, an epoch for each iteration."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule.dataset)  # type: ignore[call-arg]
        self.schedule = schedule
        self._next_epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives."""
        return max(self.schedule.next_epoch, self._next_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration give `epoch`."""
        self.schedule.next_epoch = self._next_epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if has_epochs(self.schedule.dataset):
            raise ArgumentError(
                f"the positions of a {type(self.schedule.dataset).__name__} mean other samples in every epoch, but a "
                "loader that takes this sampler does not pass on the epoch: it would read epoch 0 forever",
                hint="iterate over the stoker.DataLoader itself, or read dataset.in_epoch(epoch) at "
                "loader.plan.recipe(step).positions",
            )
        epoch = self.epoch
        self._next_epoch = epoch + 1
        return self.schedule.positions(epoch)

    def __len__(self) -> int:
        return self.schedule.length_of_share()


class SequentialPositions(PlannedPositions, SequentialSampler):
    """In the order of the data."""


class ShuffledPositions(PlannedPositions, RandomSampler):
    """In the plan's shuffled order."""

    @property
    def generator(self) -> Any:
        """None: the order comes from the loader's seed."""
        return None

    @generator.setter
    def generator(self, generator: Any) -> None:
        if generator is not None:
            raise ArgumentError(
                "the order of this sampler comes from the loader's seed, and a generator would have no effect on it",
                hint="pass seed= or generator= to stoker.DataLoader, or sampler=RandomSampler(dataset, generator=...)",
            )


def planned_sampler(schedule: Schedule) -> PlannedPositions:
    """Return the sampler that shows what a loader with this schedule reads."""
    is_sequential = isinstance(schedule.order, Sequential)
    return SequentialPositions(schedule) if is_sequential else ShuffledPositions(schedule)
