"""Random numbers of a sample as floats, drawn in bulk because each call of the generator costs a microsecond."""

from __future__ import annotations

from collections.abc import Callable

from numpy.random import Generator

Uniform = Callable[[], float]
"""Returns the next random number of a sample, in [0, 1)."""

BLOCK = 8
"""Numbers drawn at once: enough for a random crop and a flip."""


def uniforms(generator: Generator) -> Uniform:
    """Return a function that yields the random numbers of `generator` one by one."""
    block: list[float] = generator.random(BLOCK).tolist()
    taken = iter(block)

    def uniform() -> float:
        nonlocal taken
        for number in taken:
            return number
        taken = iter(generator.random(BLOCK).tolist())
        return next(taken)

    return uniform


def whole_number(uniform: Uniform, count: int) -> int:
    """Return a uniform random integer from 0 to count - 1."""
    return int(uniform() * count)


def key_from(uniform: Uniform) -> int:
    """Return a random 53-bit integer to seed other generators."""
    return int(uniform() * (1 << 53))
