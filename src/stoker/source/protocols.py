"""What the loader asks of data: a seam for sources of our own and of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, runtime_checkable

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
