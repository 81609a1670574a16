"""What the loader asks of data: a seam for sources of our own and of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, runtime_checkable

Sample = Any


@runtime_checkable
class Source(Protocol):
    """Samples addressed by position, readable from any thread."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Sample: ...

    def __getitems__(self, positions: Sequence[int], /) -> list[Sample]:
        """Return the samples at `positions`, in that order.

        One call spans a whole batch, so that an implementation can sort, join and overlap its reads.
        A position may occur more than once.
        """
        ...


@runtime_checkable
class Stream(Protocol):
    """Samples that come one after the other; each `iter` starts anew."""

    def __iter__(self) -> Iterator[Sample]: ...


@runtime_checkable
class Splittable(Stream, Protocol):
    """A stream that can share itself out."""

    def split(self, index: int, count: int, /) -> Self:
        """Return part `index` of `count`. The parts together hold every sample exactly once."""
        ...


# ------------------------------------------------------------ an order of its own


class OwnOrder(Protocol):
    """Has an order of its own, which the loader keeps: a mixture, whose shares another order would undo.

    The loader reads its positions in sequence, epoch after epoch, and refuses `shuffle`, `order` and samplers.
    """

    owns_order: Literal[True]
    """An attribute of the class."""


def owns_order(dataset: Any) -> bool:
    """Return whether a dataset has an order of its own."""
    return getattr(type(dataset), "owns_order", False) is True


class SavesOrder(OwnOrder, Protocol):
    """Has an order that may change from one run to the next, so that the loader's state must hold what it was."""

    def state(self, epoch: int, position: int, /) -> dict[str, Any]:
        """Return what the order is and where it is at `position` of `epoch`, as plain data."""
        ...

    def resumed(self, state: Any, /) -> Self:
        """Return the dataset that goes on where `state` was taken. Raise `StateMismatch` if it cannot.

        `state` is None if the loader's state was taken with a dataset that saves none.
        """
        ...

    def has_changed_since(self, state: Mapping[str, Any], /) -> bool:
        """Return whether the order is another one than when `state` was taken."""
        ...


def saves_order(dataset: Any) -> bool:
    """Return whether a dataset with an order of its own has a state for it."""
    return owns_order(dataset) and callable(getattr(dataset, "resumed", None))


class MixesSources(OwnOrder, Protocol):
    """Takes its samples from several named datasets. Samples are numbered over all epochs: 0, 1, 2, ..."""

    names: tuple[str, ...]
    """All sources, also those that have left since the order began."""
    steps_of: int | None
    """Samples in a step, if the order was made for steps of a certain size."""

    @property
    def sources(self) -> Mapping[str, Any]:
        """The datasets by name, without those that have left."""
        ...

    def in_epoch(self, epoch: int, /) -> Self:
        """Return the samples of an epoch, whose number is the length of what is returned."""
        ...

    def number(self, epoch: int, position: int, /) -> int:
        """Return the number of the sample at `position` in `epoch`."""
        ...

    def place(self, number: int, /) -> tuple[int, int]:
        """Return epoch and position of sample `number`."""
        ...

    def at(self, number: int, /) -> tuple[str, int, int]:
        """Return the source of sample `number`, the source's own epoch, and the position in it."""
        ...

    def find(self, source: str, position: int, epoch: int = 0, /) -> int | None:
        """Return the number of the sample at `position` of `source` in the source's own `epoch`; None if none is."""
        ...

    def counts(self, number: int, /) -> dict[str, int]:
        """Return how many of the first `number` samples each source gives."""
        ...

    def check_readable(self, epoch: int, position: int, /) -> None:
        """Raise `ArgumentError` if `epoch` has samples from `position` on of a source that has left."""
        ...

    def filling(self, positions: Any, /) -> Any:
        """Return positions of this epoch to fill up a batch with: `positions`, without those of sources that left."""
        ...

    def check_forms(self, positions: Sequence[int], samples: Sequence[Any], /) -> None:
        """Raise `ArgumentError` if samples of several sources cannot be put into one batch."""
        ...


def mixes_sources(dataset: Any) -> bool:
    """Return whether a dataset with an order of its own takes its samples from several named ones."""
    return owns_order(dataset) and hasattr(dataset, "sources")
