"""Which source of a mixture gives sample n, for every n, while weights change and sources reach their limits.

The samples are cut into *segments*. Within one, the same sources take turns by the same `Quota`. A segment ends where
the schedule changes the weights, where another *phase* (the settings of a run) begins, or where a source has given all
it may. The next segment continues its counts.

Shapes: N samples asked for, S sources in all, T sources that take turns in a segment.
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
"""The length of an epoch without an end: thousands of them can still be counted in 64 bits."""

Indices = NDArray[np.int64]
Weights = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPhase:
    """The settings that hold from one sample on, until the next phase begins."""

    start: int
    """The first sample it holds for."""
    schedule: tuple[tuple[int, Weights], ...]
    """(sample, weights that hold from it on); the first not after `start`. A source without a weight gives nothing."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """How many samples a source may give in all."""

    def at(self, number: int) -> Weights:
        """Return the weights at a sample."""
        return self.schedule[bisect_right(self.schedule, number, key=lambda entry: entry[0]) - 1][1]

    def next_change(self, number: int) -> int | None:
        """Return the sample at which the weights change next after `number`; None if they stay."""
        return next((start for start, _ in self.schedule if start > number), None)


class Segment(NamedTuple):
    """Consecutive samples in which the same sources take turns."""

    start: int
    stop: int | None
    """The sample after its last; None if it has no end."""
    bases: Indices
    """[S]: how many samples each source has given before."""
    sources: Indices
    """[T]: the sources that take turns, in the order of the quota."""
    quota: Quota
    is_full: frozenset[int]
    """Sources that have a weight but have given all they may."""


class Blend:
    """Which source gives sample n, and as its which; and the inverse. Safe to use from threads."""

    def __init__(
        self, names: Sequence[str], phases: Sequence[WeightPhase], quota: Callable[[tuple[int, ...]], Quota] = Quota
    ) -> None:
        self.names, self.phases = tuple(names), tuple(phases)
        self._quota = quota
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._segments: list[Segment] = []
        self._starts: list[int] = []
        self._total: int | None = None
        self._lock = threading.Lock()
        self._reach(0)

    def __getstate__(self) -> dict[str, Any]:
        # without segments: they are computed again where they are needed
        return {"names": self.names, "phases": self.phases, "quota": self._quota}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # ---------------------------------------------------------------- lookups

    def at(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the sources of samples [N], and how many samples [N] that source has given before."""
        if not numbers.size:
            return numbers, numbers
        low, high = int(numbers.min()), int(numbers.max())
        first, last = self._segment_at(low), self._segment_at(high)
        if first == last:
            return _look_up(self._segments[first], numbers)
        sources, drawn = np.empty_like(numbers), np.empty_like(numbers)
        places = np.searchsorted(self._starts, numbers, side="right") - 1
        for place in range(first, last + 1):
            chosen = np.flatnonzero(places == place)
            sources[chosen], drawn[chosen] = _look_up(self._segments[place], numbers[chosen])
        return sources, drawn

    def counts(self, numbers: Indices) -> Indices:
        """Return [N, S]: how many samples each source has given before each of `numbers`."""
        found = np.empty((len(numbers), len(self.names)), np.int64)
        if not numbers.size:
            return found
        # At the border of two segments, use the first: after the last segment there is no other. Hence N - 1.
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
        """Return the sample that `source` gives as its own `number`, counted from 0; None if it never gives so many."""
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
        """How many samples there are, if every source reaches its limit some time; otherwise None."""
        if self._total is None and any(phase.caps for phase in self.phases):
            while self._add_segment():
                pass
        return self._total

    # ---------------------------------------------------------------- length of an epoch

    def until_first(self, sizes: Mapping[str, int], since: int = 0) -> int:
        """Return the sample before which the first source would repeat a sample, or pass its cap.

        `sizes` has the samples of each source, all of them unread at `since`.
        """
        before = self.counts(np.array([since]))[0]
        caps = self.phases[-1].caps
        ends = [
            self._full_at(self._numbers[name], since)
            if name in caps
            else self.find(self._numbers[name], int(before[self._numbers[name]]) + size)
            for name, size in sizes.items()
        ]
        return min(end for end in (*ends, self.total) if end is not None)

    def until_all(self, sizes: Mapping[str, int], since: int = 0) -> int:
        """Return the sample before which every source was read completely since `since`, or has reached its cap."""
        before = self.counts(np.array([since]))[0]
        caps = self.phases[-1].caps
        stop = since + 1
        for name, size in sizes.items():
            source = self._numbers[name]
            wanted = min(int(before[source]) + size, caps.get(name, ENDLESS))
            if wanted > before[source]:
                last = self.find(source, wanted - 1)
                if last is None:
                    raise ArgumentError(
                        f"source {name!r} is never read completely: "
                        + (
                            "it has no weight at the end of the schedule"
                            if self.total is None
                            else f"after {self.total} samples all sources with a weight have reached their limits"
                        ),
                        hint="choose another stop: 'first_exhausted', 'never' or a number of samples",
                    )
                stop = max(stop, last + 1)
        return stop

    def _full_at(self, source: int, since: int) -> int | None:
        """Return the sample after `since` from which on `source` is due but has given all it may; None if none."""
        place = 0
        while (segment := self._segment(place)) is not None:
            if source in segment.is_full:
                return segment.start if segment.start > since else None
            if segment.stop is None:
                return None
            place += 1
        return self._total

    # ---------------------------------------------------------------- computing segments

    def _segment(self, place: int) -> Segment | None:
        while len(self._segments) <= place:
            if not self._add_segment():
                return None
        return self._segments[place]

    def _reach(self, number: int) -> None:
        while not self._starts or self._stop <= number:
            if not self._add_segment():
                return

    @property
    def _stop(self) -> int:
        stop = self._segments[-1].stop
        return 1 << 62 if stop is None else stop

    def _segment_at(self, number: int) -> int:
        """Return the index of the segment that holds a sample."""
        self._reach(number)
        if number < 0 or number >= self._stop:
            raise ArgumentError(
                f"the mixture has no sample {number}"
                + (f": every source has reached its limit after {self._total}" if self._total is not None else ""),
                hint="samples count from 0; raise the limits, or train for fewer samples",
            )
        return bisect_right(self._starts, number) - 1

    def _add_segment(self) -> bool:
        """Compute the next segment; return False if there is none."""
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
            segment = self._next_segment(start, bases)
            if segment is None:
                self._total = start
                return False
            # in this order: other threads read without the lock, and one that sees the segment must find its start
            self._starts.append(start)
            self._segments.append(segment)
            return True

    def _next_segment(self, start: int, bases: Indices) -> Segment | None:
        """Return the segment that begins at `start`, after sources gave `bases` [S]; None if none may give more."""
        at = bisect_right(self.phases, start, key=lambda phase: phase.start) - 1
        phase = self.phases[at]
        stops = [phase.next_change(start)]
        if at + 1 < len(self.phases):
            stops.append(self.phases[at + 1].start)
        weights, full = {}, set()
        for name, weight in phase.at(start).items():
            source = self._numbers[name]
            if bases[source] < phase.caps.get(name, ENDLESS):
                weights[source] = weight
            else:
                full.add(source)
        if not weights:
            return None
        quota = self._quota(whole(list(weights.values())))
        for turn, source in enumerate(weights):
            cap = phase.caps.get(self.names[source])
            if cap is not None:
                stops.append(start + quota.find(turn, cap - int(bases[source])))
        stop = min((stop for stop in stops if stop is not None), default=None)
        return Segment(start, stop, bases, np.array(list(weights), np.int64), quota, frozenset(full))


def _look_up(segment: Segment, numbers: Indices) -> tuple[Indices, Indices]:
    """Do what `Blend.at` does for samples of one segment."""
    turns, drawn = segment.quota.at(numbers - segment.start)
    sources = segment.sources[turns]
    drawn += segment.bases[sources]
    return sources, drawn
