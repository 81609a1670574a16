"""What stands in `loader.sampler` when the order is a plan.

Code around training looks at a loader's sampler: which kind it is, how long, what it gives. These are of the kind
that torch would have made, and give what the plan gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from torch.utils.data import RandomSampler, SequentialSampler


class PlannedPositions:
    """The positions that the loader's next iteration will read on this rank."""

    _loader: Any = None

    def attach(self, loader: Any) -> None:
        """Belong to `loader`; by a weak reference, so that a loader goes when its last user does."""
        self._loader = ref(loader)

    def __iter__(self) -> Iterator[int]:
        yield from self._owner.planned_positions()

    def __len__(self) -> int:
        return -(-len(self._owner.dataset) // int(self._owner._num_ranks))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_loader": None}

    @property
    def _owner(self) -> Any:
        loader = self._loader() if self._loader is not None else None
        if loader is None:
            raise ReferenceError("the loader that this sampler belongs to is gone")
        return loader


class SequentialPositions(PlannedPositions, SequentialSampler):
    """In the order of the data."""

    def __init__(self, loader: Any, dataset: Any) -> None:
        SequentialSampler.__init__(self, dataset)
        self.attach(loader)


class ShuffledPositions(PlannedPositions, RandomSampler):
    """In the plan's shuffled order."""

    def __init__(self, loader: Any, dataset: Any) -> None:
        RandomSampler.__init__(self, dataset)
        self.attach(loader)
