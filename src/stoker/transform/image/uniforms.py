"""Random numbers of a sample as plain floats: few calls of its generator, for each costs a microsecond."""

from __future__ import annotations

from collections.abc import Callable

from numpy.random import Generator

Uniform = Callable[[], float]
"""Returns the next random number of a sample, in [0, 1)."""

BLOCK = 8
"""Numbers taken at once: enough for a random crop and a flip."""


def uniforms(generator: Generator) -> Uniform:
    """Return what gives the numbers of `generator` one by one."""
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
    """Return one of 0, ..., count - 1, each as likely as the others."""
    return int(uniform() * count)


def key_from(uniform: Uniform) -> int:
    """Return a number of 53 bits to seed other generators with."""
    return int(uniform() * (1 << 53))
