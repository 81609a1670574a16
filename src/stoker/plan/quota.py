"""Exact shares: which source is next, so that each has its share at all times.

Sources with integer weights that add up to a *period* take turns. After any number of turns, each source has had its
share of them within less than one turn: |count - turns * weight / period| <= 1 - 1 / (2k - 2) for k sources, which is
the best possible (Tijdeman's chairman assignment). After a period all counts are exact, and the sequence repeats.

Shapes: S sources, P turns in a period, N turns asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from math import gcd, isfinite, lcm
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError

MAX_PERIOD = 1 << 20
"""The longest table. Weights that need a longer one are rounded, each by less than a millionth of the whole."""

Apportion = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Computes the table of a period from weights, as `apportioned` does."""


def exact(weight: Any, *, what: str = "the weight") -> Fraction:
    """Return a positive number as the fraction it is written as: 0.1 is a tenth, not the nearest binary number."""
    hint = "give a positive number, or leave the source out"
    if isinstance(weight, Fraction):
        fraction = weight
    else:
        is_number = isinstance(weight, Real | np.integer | np.floating) or type(weight).__name__ == "Decimal"
        if isinstance(weight, bool | np.bool_) or not is_number:
            raise ArgumentError(f"{what} is {weight!r}, which is not a number", hint=hint)
        if not isfinite(weight):
            raise ArgumentError(f"{what} is {weight}, which is not a share", hint=hint)
        fraction = Fraction(str(weight))
    if fraction <= 0:
        raise ArgumentError(f"{what} is {weight}, which is not positive", hint=hint)
    return fraction


def whole(weights: Sequence[Fraction], most: int = MAX_PERIOD) -> tuple[int, ...]:
    """Return positive integers in the proportions of `weights`, without a common divisor, with a sum of at most `most`.

    Exact proportions if there are such integers, otherwise the nearest (by largest remainders) with the sum `most`.
    """
    if not 0 < len(weights) <= most:
        raise ArgumentError(f"{len(weights)} sources cannot share {most} turns", hint=f"mix from 1 to {most} sources")
    total = sum(weights)
    shares = [weight / total for weight in weights]
    period = lcm(*(share.denominator for share in shares))
    if period > most:
        period = most
    quotas = [share * period for share in shares]
    numbers = [max(1, int(quota)) for quota in quotas]
    lacking = period - sum(numbers)
    if lacking > 0:
        by_remainder = sorted(range(len(quotas)), key=lambda at: numbers[at] - quotas[at])
        for at in by_remainder[:lacking]:
            numbers[at] += 1
    for _ in range(-lacking):  # raising some to 1 is paid for by those that are most above their quota
        numbers[max((at for at in range(len(quotas)) if numbers[at] > 1), key=lambda at: numbers[at] - quotas[at])] -= 1
    divisor = gcd(*numbers)
    return tuple(number // divisor for number in numbers)


def apportioned(weights: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return whose turn it is, for all turns of a period [P].

    With m = 2k - 2, the j-th turn of a source of weight w (j from 0, turns of the period from 1) may be taken from turn
    ceil((j m + 1) P / (m w)) on, and is due by turn floor(((j + 1) m - 1) P / (m w)) + 1. Of the turns that may be
    taken, the one due first is; of several, that of the first source. No turn is ever late.
    """
    num_sources, period = len(weights), int(weights.sum())
    if num_sources == 1:
        return np.zeros(period, np.uint16)
    steps = 2 * num_sources - 2
    sources = np.repeat(np.arange(num_sources), weights)
    divisors = steps * weights[sources]
    turns = (np.arange(period) - (np.cumsum(weights) - weights)[sources]) * steps
    begins = -(-(turns + 1) * period // divisors)
    codes = ((turns + steps - 1) * period // divisors) * num_sources + sources  # sorts by due turn, then by source
    ordered = np.argsort(begins, kind="stable")
    waiting = codes[ordered].tolist()
    num_begun = np.searchsorted(begins[ordered], np.arange(1, period + 1), side="right").tolist()
    heap: list[int] = []
    taken: list[int] = []
    at = 0
    for stop in num_begun:
        while at < stop:
            heappush(heap, waiting[at])
            at += 1
        taken.append(heappop(heap))
    return (np.array(taken) % num_sources).astype(np.uint16)


class Quota:
    """An endless sequence of turns in which every source has its share at all times. Safe to use from threads."""

    def __init__(self, weights: Sequence[int], apportion: Apportion = apportioned) -> None:
        self.weights = np.array(weights, np.int64)
        self.period = int(self.weights.sum())
        kind = np.uint8 if len(weights) <= 256 else np.uint16
        self.table = np.asarray(apportion(self.weights)).astype(kind)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """Each source's share of all turns."""
        return tuple(Fraction(weight, self.period) for weight in self.weights.tolist())

    def at(self, turns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sources of turns [N], and how many turns [N] that source has had before."""
        if (
            turns.size and int(turns.min()) >= 0 and int(turns.max()) < self.period
        ):  # the usual case of a long period: no division
            return self.table[turns].astype(np.int64), self._ranks[turns].astype(np.int64)
        periods = turns // self.period
        within = turns - periods * self.period
        sources = self.table[within].astype(np.int64)
        return sources, periods * self.weights[sources] + self._ranks[within]

    def find(self, source: int, number: int) -> int:
        """Return the turn that `source` has as its own `number`, counted from 0."""
        periods, within = divmod(number, int(self.weights[source]))
        return periods * self.period + int(self._slots[int(self._firsts[source]) + within])

    def counts(self, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [N, S]: how many turns each source has had before each of `turns`."""
        periods = turns // self.period
        within = turns - periods * self.period
        places = np.searchsorted(self._keys, self._offsets + within[:, None])
        return periods[:, None] * self.weights + (places - self._firsts)

    @cached_property
    def _slots(self) -> NDArray[np.uint32]:
        """[P]: the turns of a period, source by source."""
        return np.argsort(self.table, kind="stable").astype(np.uint32)

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.cumsum(self.weights) - self.weights

    @cached_property
    def _ranks(self) -> NDArray[np.uint32]:
        """[P]: how many turns of the same source are before each turn of a period."""
        ranks = np.empty(self.period, np.uint32)
        ranks[self._slots] = np.arange(self.period) - np.repeat(self._firsts, self.weights)
        return ranks

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        return np.arange(len(self.weights), dtype=np.int64) * self.period

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """[P]: `_slots` with the turns of source s shifted by s * P: ascending, so one search serves all sources."""
        return np.repeat(self._offsets, self.weights) + self._slots
