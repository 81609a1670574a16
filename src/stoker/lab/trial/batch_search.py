"""The largest batch size that fits, by as few trials as it takes: doubling, then bisection.

Only sizes that one would train with are tried: multiples of 32, then 16 and 8, and below that each number. Tensor cores
and vector units work on blocks of such sizes; others leave part of a block idle.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2
from typing import NamedTuple

MULTIPLES = (32, 16, 8)
"""What sizes are rounded down to, the first that is not larger than they are."""


class Found(NamedTuple):
    """What a search found."""

    largest: int | None
    """The largest size that fits; None if not even 1 does."""
    too_large: int | None
    """The smallest size that was tried and does not fit; None if none was."""


def rounded(size: int) -> int:
    """Return the largest size worth trying that is not above `size`: 1000 is 992, 31 is 16, 7 is 7."""
    for multiple in MULTIPLES:
        if size >= multiple:
            return size // multiple * multiple
    return size


def search(fits: Callable[[int], bool], *, start: int = 8, most: int = 65536) -> Found:
    """Return the largest size worth trying, up to `most`, for which `fits` is true.

    What fits must fit in smaller sizes, too. It is asked about each size at most once, and at most `max_trials` times.
    """
    top = _number(rounded(most))
    low, high = -1, top + 1
    size = rounded(min(start, most))
    while True:
        number = _number(size)
        if not fits(size):
            high = number
            break
        low = number
        if number >= top:
            break
        size = max(rounded(min(2 * size, most)), _size(number + 1))
    while high - low > 1:
        middle = (low + high) // 2
        if fits(_size(middle)):
            low = middle
        else:
            high = middle
    return Found(_size(low) if low >= 0 else None, _size(high) if high <= top else None)


def next_below(size: int, num: int = 1) -> int | None:
    """Return the size worth trying that is so many of them below `size`; None if there are not so many."""
    number = _number(rounded(size)) - num
    return _size(number) if number >= 0 else None


def max_trials(*, start: int = 8, most: int = 65536) -> int:
    """Return how often `search` asks at the most."""
    start = min(start, most)
    num_doublings = 1 + ceil(log2(most / start)) + 1
    num_between = max(_number(rounded(start)) + 1, _number(rounded(most)) - _number(rounded(max(1, most // 2))) + 1)
    return num_doublings + ceil(log2(num_between + 1))


def _number(size: int) -> int:
    """Return how many sizes worth trying there are below this one, which is one."""
    if size < 8:
        return size - 1
    return 7 if size == 8 else 8 if size == 16 else 8 + size // 32


def _size(number: int) -> int:
    """Return the size worth trying that has so many below it."""
    if number < 7:
        return number + 1
    return 8 if number == 7 else 16 if number == 8 else 32 * (number - 8)
