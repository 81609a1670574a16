"""The course of a mixture: which source gives sample n, for every n, while weights change and sources run out.

A course is cut into *segments*, in each of which the same sources take turns by the same `Quota`. A segment ends where
a schedule changes the weights, where a *regime* (the settings of a run) gives way to another, or where a source has
given all it may; its counts go on in the next.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError
from stoker.plan.quota import Quota, whole

ENDLESS = 1 << 48
"""The samples of an epoch that has no end: thousands of such epochs can still be counted in 64 bits."""

Indices = NDArray[np.int64]
Weights = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The settings that hold from one sample on: until another regime takes over, or for ever."""

    start: int
    """The first sample it holds for."""
    schedule: tuple[tuple[int, Weights], ...]
    """From which sample on which weights hold; the first not after `start`. A source without a weight does not come."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """How many samples a source may give in all."""

    def at(self, number: int) -> Weights:
        """Return the weights at a sample."""
        return self.schedule[bisect_right(self.schedule, number, key=lambda entry: entry[0]) - 1][1]

    def next_change(self, number: int) -> int | None:
        """Return where the weights change next after `number`."""
        return next((start for start, _ in self.schedule if start > number), None)


class Segment(NamedTuple):
    """A stretch in which the same sources take turns."""

    start: int
    stop: int | None
    """The sample behind it; None if it has no end."""
    bases: Indices
    """What each source has given before."""
    sources: Indices
    """The sources that take turns, in the order of the quota."""
    quota: Quota
    is_full: frozenset[int]
    """Sources that would take part but have given all they may."""


class Blend:
    """Which source gives sample n, and how many it has given before: at any n, and back. Safe in all threads."""

    def __init__(
        self, names: Sequence[str], regimes: Sequence[Regime], quota: Callable[[tuple[int, ...]], Quota] = Quota
    ) -> None:
        self.names, self.regimes = tuple(names), tuple(regimes)
        self._quota = quota
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._segments: list[Segment] = []
        self._starts: list[int] = []
        self._total: int | None = None
        self._lock = threading.Lock()
        self._reach(0)

    def __getstate__(self) -> dict[str, Any]:
        # short, and made again where it is needed
        return {"names": self.names, "regimes": self.regimes, "quota": self._quota}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # ---------------------------------------------------------------- what comes

    def at(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the sources of these samples, and how many samples each has given before."""
        if not numbers.size:
            return numbers, numbers
        low, high = int(numbers.min()), int(numbers.max())
        first, last = self._segment_at(low), self._segment_at(high)
        if first == last:
            return _taken(self._segments[first], numbers)
        sources, drawn = np.empty_like(numbers), np.empty_like(numbers)
        places = np.searchsorted(self._starts, numbers, side="right") - 1
        for place in range(first, last + 1):
            chosen = np.flatnonzero(places == place)
            sources[chosen], drawn[chosen] = _taken(self._segments[place], numbers[chosen])
        return sources, drawn

    def counts(self, numbers: Indices) -> Indices:
        """Return how many samples each source has given before each of `numbers`: a row for each."""
        found = np.empty((len(numbers), len(self.names)), np.int64)
        if not numbers.size:
            return found
        # at a border, those of the segment that ends there: behind the last there is no other
        held = np.maximum(numbers - 1, 0)
        first, last = self._segment_at(min(int(numbers.min()), int(held.min()))), self._segment_at(int(held.max()))
        places = np.searchsorted(self._starts, held, side="right") - 1
        for place in range(first, last + 1):
            segment, chosen = self._segments[place], np.flatnonzero(places == place)
            counts = np.repeat(segment.bases[None], len(chosen), axis=0)
            counts[:, segment.sources] += segment.quota.counts(numbers[chosen] - segment.start)
            found[chosen] = counts
        return found

    def find(self, source: int, number: int) -> int | None:
        """Return which sample is the one that `source` gives as its own `number`, counted from 0; None if none is."""
        place = 0
        while True:
            segment = self._segment(place)
            if segment is None:
                return None
            turns = np.flatnonzero(segment.sources == source)
            if turns.size:
                found = segment.start + segment.quota.find(int(turns[0]), number - int(segment.bases[source]))
                if segment.stop is None or found < segment.stop:
                    return found
            elif segment.stop is None:
                return None
            place += 1

    def segments(self, stop: int) -> list[Segment]:
        """Return the segments that begin before `stop`."""
        self._reach(stop - 1)
        return [segment for segment in self._segments if segment.start < stop]

    @property
    def total(self) -> int | None:
        """How many samples there are in all, when at some time every source has given what it may; otherwise None."""
        if self._total is None and any(regime.caps for regime in self.regimes):
            while self._extended():
                pass
        return self._total

    # ---------------------------------------------------------------- how long an epoch is

    def until_first(self, sizes: Mapping[str, int], since: int = 0) -> int:
        """Return before which sample the first source would begin anew, or pass its cap.

        Sources have so many samples, and are taken as fresh at `since`.
        """
        before = self.counts(np.array([since]))[0]
        caps = self.regimes[-1].caps
        ends = [
            self._full_at(self._numbers[name], since)
            if name in caps
            else self.find(self._numbers[name], int(before[self._numbers[name]]) + size)
            for name, size in sizes.items()
        ]
        return min(end for end in (*ends, self.total) if end is not None)

    def until_all(self, sizes: Mapping[str, int], since: int = 0) -> int:
        """Return behind which sample every source has been seen whole since `since`, or has reached its cap."""
        before = self.counts(np.array([since]))[0]
        caps = self.regimes[-1].caps
        stop = since + 1
        for name, size in sizes.items():
            source = self._numbers[name]
            wanted = min(int(before[source]) + size, caps.get(name, ENDLESS))
            if wanted > before[source]:
                last = self.find(source, wanted - 1)
                if last is None:
                    raise ArgumentError(
                        f"source {name!r} is never seen whole: "
                        + (
                            "it has no weight at the end of the schedule"
                            if self.total is None
                            else f"after {self.total} samples all that have a weight there have reached their limits"
                        ),
                        hint="choose another stop: 'first_exhausted', 'never' or a number of samples",
                    )
                stop = max(stop, last + 1)
        return stop

    def _full_at(self, source: int, since: int) -> int | None:
        """Return where, after `since`, `source` would come for the first time after giving all it may."""
        place = 0
        while (segment := self._segment(place)) is not None:
            if source in segment.is_full:
                return segment.start if segment.start > since else None
            if segment.stop is None:
                return None
            place += 1
        return self._total

    # ---------------------------------------------------------------- making segments

    def _segment(self, place: int) -> Segment | None:
        while len(self._segments) <= place:
            if not self._extended():
                return None
        return self._segments[place]

    def _reach(self, number: int) -> None:
        while not self._starts or self._stop <= number:
            if not self._extended():
                return

    @property
    def _stop(self) -> int:
        stop = self._segments[-1].stop
        return 1 << 62 if stop is None else stop

    def _segment_at(self, number: int) -> int:
        """Return the place of the segment that holds a sample."""
        self._reach(number)
        if number < 0 or number >= self._stop:
            raise ArgumentError(
                f"the mixture has no sample {number}"
                + (f": every source has reached its limit after {self._total}" if self._total is not None else ""),
                hint="samples count from 0; raise the limits, or train for fewer samples",
            )
        return bisect_right(self._starts, number) - 1

    def _extended(self) -> bool:
        """Make the next segment. Return False if there is none."""
        with self._lock:
            if self._total is not None:
                return False
            last = self._segments[-1] if self._segments else None
            if last is not None and last.stop is None:
                return False
            start = last.stop if last is not None and last.stop is not None else 0
            bases = np.zeros(len(self.names), np.int64)
            if last is not None:
                bases += last.bases
                bases[last.sources] += last.quota.counts(np.array([start - last.start]))[0]
            segment = self._made(start, bases)
            if segment is None:
                self._total = start
                return False
            # in this order: a thread that sees the segment must find where it starts
            self._starts.append(start)
            self._segments.append(segment)
            return True

    def _made(self, start: int, bases: Indices) -> Segment | None:
        at = bisect_right(self.regimes, start, key=lambda regime: regime.start) - 1
        regime = self.regimes[at]
        stops = [regime.next_change(start)]
        if at + 1 < len(self.regimes):
            stops.append(self.regimes[at + 1].start)
        weights, full = {}, set()
        for name, weight in regime.at(start).items():
            source = self._numbers[name]
            if bases[source] < regime.caps.get(name, ENDLESS):
                weights[source] = weight
            else:
                full.add(source)
        if not weights:
            return None
        quota = self._quota(whole(list(weights.values())))
        for turn, source in enumerate(weights):
            cap = regime.caps.get(self.names[source])
            if cap is not None:
                stops.append(start + quota.find(turn, cap - int(bases[source])))
        stop = min((stop for stop in stops if stop is not None), default=None)
        return Segment(start, stop, bases, np.array(list(weights), np.int64), quota, frozenset(full))


def _taken(segment: Segment, numbers: Indices) -> tuple[Indices, Indices]:
    turns, drawn = segment.quota.at(numbers - segment.start)
    sources = segment.sources[turns]
    drawn += segment.bases[sources]
    return sources, drawn
