"""How a loader's cost grows: with the dataset, the workers, the ranks and the steps done. A flat line is the goal.

Each place of each axis is measured several times, by every loader, in turns, each time in a process of its own. What
would take more time or memory than allowed is left out, and says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.scale.cases import Case, host, loaders, samples_for
from benchmarks.scale.record import (
    AXES,
    FIRST,
    MEASURES,
    MEMORY,
    RANKS,
    SAMPLES,
    STEPS,
    WORKERS,
    Curve,
    Limit,
    Point,
    RankShares,
    Scale,
)
from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.lab.trial.child import Child, ChildEnded, ChildSlow

PLACES: dict[str, tuple[int, ...]] = {
    SAMPLES: (10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9),
    WORKERS: (1, 2, 4, 8),
    RANKS: (1, 4, 16, 64, 256, 1024),
    STEPS: (1, 10, 10**2, 10**3, 10**4, 10**5, 10**6),
}
"""Where on each axis is measured."""

QUICK: dict[str, tuple[int, ...]] = {
    SAMPLES: (10**3, 10**5, 10**7, 10**9),
    WORKERS: (1, 2, 4),
    RANKS: (1, 32, 1024),
    STEPS: (1, 10**3, 10**6),
}

NUM_SAMPLES = 10**6
"""Where they are not what is varied; on the axis of steps done, as many as those take."""

WHOLE = "whole_seconds"
"""How long a measurement takes; it is limited, but not reported."""


def measure_scale(
    *,
    axes: Sequence[str] = AXES,
    repetitions: int = 5,
    places: Mapping[str, Sequence[int]] = PLACES,
    limit: Limit | None = None,
    notify: Callable[[int, int, str], None] | None = None,
) -> Scale:
    """Return the curves of all loaders that are installed along these axes.

    `tell` is called before each measurement with its number, how many there may be, and what it is. Ctrl-C ends it and
    returns what there is by then, if there is anything.
    """
    if unknown := set(axes) - set(AXES):
        raise ArgumentError(f"there is no axis {min(unknown)!r}", hint=f"choose among {', '.join(AXES)}")
    if repetitions < 1:
        raise ArgumentError(f"repetitions={repetitions} measures nothing", hint="give 1 or more")
    limit = limit or Limit.usual()
    names = loaders()
    sizes = {STEPS: samples_for(max(places[STEPS]))} if STEPS in axes else {}
    cases = [Case(axis, x, name, sizes.get(axis, NUM_SAMPLES)) for axis in axes for x in places[axis] for name in names]
    book = _Book(cases, limit)
    shares: list[RankShares] = []
    is_interrupted = False
    with _Stand(names, limit) as stand:
        try:
            for number, (round_number, case) in enumerate(_in_turn(cases, repetitions)):
                if notify is not None:
                    notify(number, repetitions * len(cases), f"{case.axis} = {case.x:,}, {case.loader}")
                if not round_number:
                    book.foresee(case)
                if case not in book.skipped:
                    book.note(case, stand.measured(case))
            # one by one: those that are done stay
            shares.extend(stand.shares(num_ranks) for num_ranks in (places[RANKS] if RANKS in axes else ()))
        except KeyboardInterrupt:
            if book.is_empty:
                raise
            is_interrupted = True
    return Scale(
        machine=machine.described(),
        limit=limit,
        repetitions=repetitions,
        curves=book.curves(),
        shares=shares,
        is_interrupted=is_interrupted,
    )


def foreseen(before: Sequence[tuple[int, float]], x: int) -> float:
    """Return what a cost will be at `x`, judged from what it was before: as it has grown last, and at most linearly."""
    if not before:
        return 0.0
    last_x, last = before[-1]
    if len(before) < 2 or last_x >= x:
        return last
    first_x, first = before[-2]
    if last <= first or first <= 0:
        return last
    slope = min(1.0, math.log(last / first) / math.log(last_x / first_x))
    return float(last * (x / last_x) ** slope)


def _in_turn(cases: list[Case], repetitions: int) -> Iterator[tuple[int, Case]]:
    """Yield all cases once for each repetition. First in order, so that what is too large is foreseen by what is not;
    then in another order each time, so that a noisy moment harms all alike.
    """
    for number in range(repetitions):
        turn = list(cases)
        if number:
            random.Random(number).shuffle(turn)
        for case in turn:
            yield number, case


class _Book:
    """What was measured, and what is left out."""

    def __init__(self, cases: list[Case], limit: Limit) -> None:
        self._limit = limit
        self._found: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
        self.skipped: dict[Case, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not any(self._found.values())

    def foresee(self, case: Case) -> None:
        """Leave a case out if it would take too much, or if one before it has."""
        same = [one for one in self._found if one._replace(x=case.x) == case and one.x < case.x]
        if any(one in self.skipped for one in same):
            last = next(one for one in reversed(same) if one in self.skipped)
            self.skipped[case] = self.skipped[last]
            return
        memory, seconds = (
            foreseen([(one.x, self._found[one][0][measure]) for one in same if self._found[one]], case.x)
            for measure in (MEMORY, WHOLE)
        )
        if self._limit.memory_bytes is not None and memory > self._limit.memory_bytes:
            most = self._limit.memory_bytes / 2**30
            self.skipped[case] = f"would take about {memory / 2**30:.1f} GiB, more than the {most:.1f} GiB allowed"
        elif seconds > self._limit.seconds:
            self.skipped[case] = f"would take about {seconds:.0f} s, more than the {self._limit.seconds:g} s allowed"

    def note(self, case: Case, result: dict[str, float] | str) -> None:
        """Note what a case cost, or why it is left out from here on."""
        if isinstance(result, str):
            self.skipped[case] = result
        else:
            self._found[case].append(result)

    def curves(self) -> list[Curve]:
        """Return the curves, by axis, then measure, then loader; of a loader that could not be measured at all, one
        that says why, unless its turn had not come.
        """
        found = []
        for axis in dict.fromkeys(case.axis for case in self._found):
            mine = [case for case in self._found if case.axis == axis]
            for measure in MEASURES:
                for loader in dict.fromkeys(case.loader for case in mine):
                    its = [case for case in mine if case.loader == loader]
                    is_lost = measure == FIRST and any(case in self.skipped for case in its)
                    if is_lost or any(measure in values for case in its for values in self._found[case]):
                        points = [self._point(case, measure) for case in its]
                        found.append(Curve(axis=axis, measure=measure, loader=loader, points=points))
        return found

    def _point(self, case: Case, measure: str) -> Point:
        values = [values[measure] for values in self._found[case] if measure in values]
        return Point(x=case.x, values=values, skipped=None if values else self.skipped.get(case))


class _Stand:
    """The process that cases are forked from; made anew when one of them was too slow."""

    def __init__(self, names: list[str], limit: Limit) -> None:
        self._names, self._limit = names, limit
        self._child: Child | None = None

    def __enter__(self) -> _Stand:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def measured(self, case: Case) -> dict[str, float] | str:
        """Return what a case costs, or why it could not be measured."""
        child = self._ready()
        began = time.perf_counter()
        try:
            # twice: what was foreseen to be within the limit and is not quite need not be lost
            found: dict[str, float] = child.ask("case", case, limit_seconds=2 * self._limit.seconds)
        except ChildSlow:
            self._close()
            return f"took longer than {2 * self._limit.seconds:g} s, twice what is allowed"
        except MemoryError:
            assert self._limit.memory_bytes is not None
            return f"took more than the {self._limit.memory_bytes / 2**30:.1f} GiB allowed"
        except ChildEnded as error:
            self._close()  # if it was the process that others are forked from, it is gone
            return f"ended ({error.end}), as it may where memory is limited"
        except Exception as error:  # one loader's failure is no reason to lose what was measured of others
            return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return {**found, WHOLE: time.perf_counter() - began}

    def shares(self, num_ranks: int) -> RankShares:
        """Return what so many ranks get."""
        found = self._ready().ask("shares", num_ranks, limit_seconds=60 + self._limit.seconds)
        return RankShares(
            num_ranks=num_ranks,
            num_steps=found.num_steps,
            num_samples=found.num_each,
            are_equal=found.are_equal,
        )

    def _ready(self) -> Child:
        if self._child is None:
            self._child = Child(host, self._names, self._limit.memory_bytes)
            self._child.wait_until_ready()
        return self._child

    def _close(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None
