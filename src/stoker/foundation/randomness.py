"""Random numbers that belong to a sample, whichever thread or process computes it.

`rng()` inside `__getitem__` or a transform gives a generator keyed by (seed, epoch, position): the same numbers in the
trainer's process, in any thread and in any worker. Where a sampler may draw a position several times in an epoch, each
draw has a generator of its own, keyed by its number as well. `epoch()` says which epoch the sample is read for.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


class _ThreadSample(threading.local):
    context: SampleContext | None = None
    strand: int = 0
    epoch: int | None = None
    """Another epoch than that of the context, as long as the context is `epoch_context`."""
    epoch_context: SampleContext | None = None


_local = _ThreadSample()


def key_of(position: Any) -> int:
    """Return the 64-bit number that stands for a position; samplers may use anything for one."""
    try:
        return int(position) & _MASK
    except (TypeError, ValueError):
        return int.from_bytes(hashlib.blake2b(repr(position).encode(), digest_size=8).digest())


class SampleContext:
    """Which samples this thread is reading, and the generator of the one it is at.

    `walk` is the iterator over `positions` that is being read from: its remaining length gives the current index, so
    that keeping track costs nothing per sample. `draws` are the numbers of the draws in the epoch, where a sampler may
    draw a position several times.
    """

    __slots__ = ("_at", "_generator", "_philox", "_rows", "_state", "draws", "epoch", "positions", "seed", "walk")

    def __init__(
        self, seed: int, epoch: int, positions: Sequence[Any], walk: Any, draws: Sequence[int] | None = None
    ) -> None:
        self.seed, self.epoch, self.positions, self.walk, self.draws = seed, epoch, positions, walk, draws
        self._rows: dict[int, Iterator[int]] | None = None
        self._generator: Generator | None = None
        self._state: Any = None
        self._at: int = -1

    @property
    def index(self) -> int:
        """The index in `positions` that is being read; -1 before the first."""
        return len(self.positions) - int(self.walk.__length_hint__()) - 1

    def generator(self) -> Generator:
        """Return the generator of the current sample: one object, which continues until the next sample."""
        at = self.index
        if self._generator is None:
            # Philox is counter-based: key and upper half of the counter identify the sample, the lower half the draw.
            self._philox = Philox(key=self.seed & _MASK)
            self._generator = Generator(self._philox)
            self._state = self._philox.state
        if at != self._at:
            self._at = at
            counter = self._state["state"]["counter"]
            counter[0] = 0
            counter[1] = 0 if self.draws is None else _salted(0, self.draws[max(at, 0)])
            counter[2] = self.epoch & _MASK
            counter[3] = key_of(self.positions[max(at, 0)])
            self._philox.state = self._state
        return self._generator

    def salted(self, strand: int, key: int) -> int:
        """Return `strand` changed by the number of the draw of the sample with `key`.

        Where many samples are read in one call, a key that occurs several times in `positions` is counted: each call is
        about the next of them. A key that does not occur is from an inner dataset with positions of its own.
        """
        if self.draws is None:
            return strand
        row = self.index
        if row < 0:
            if self._rows is None:
                rows: dict[int, list[int]] = {}
                for at, position in enumerate(self.positions):
                    rows.setdefault(key_of(position), []).append(at)
                self._rows = {known: cycle(listed) for known, listed in rows.items()}
            row = next(self._rows.setdefault(key, cycle(range(len(self.positions)))))
        return _salted(strand, self.draws[row])


def _salted(strand: int, draw: int) -> int:
    return (strand + (int(draw) + 1) * _ODD) & _MASK


def entered(context: SampleContext | None) -> SampleContext | None:
    """Make `context` the current one of this thread; return the previous one, to be restored afterwards."""
    previous = _local.context
    _local.context = context
    return previous


class reading_in_epoch:  # noqa: N801  # a context manager, and as a class a quick one
    """Inside, `epoch()` returns this epoch, unless another sample's context is entered."""

    __slots__ = ("_before", "_epoch")

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def __enter__(self) -> None:
        self._before = _local.epoch, _local.epoch_context
        _local.epoch, _local.epoch_context = self._epoch, _local.context

    def __exit__(self, *_: object) -> None:
        _local.epoch, _local.epoch_context = self._before


class strand(reading_in_epoch):  # noqa: N801
    """Inside, `rng(position)` is also keyed by `key`, which stands for one of several datasets, and by its epoch."""

    __slots__ = ("_key", "_strand_before")

    def __init__(self, key: int, epoch: int) -> None:
        super().__init__(epoch)
        self._key = key & _MASK

    def __enter__(self) -> None:
        super().__enter__()
        self._strand_before = _local.strand
        # combined with the outer one: a mixture may be inside a mixture
        _local.strand = (self._strand_before * _ODD + self._key) & _MASK

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        _local.strand = self._strand_before


@contextmanager
def sample_context(position: Any, *, epoch: int = 0, seed: int = 0, draw: int | None = None) -> Iterator[Generator]:
    """Read one sample as a loader would: inside, `stoker.rng()` gives that sample's generator, and packs and mixtures
    their rows of that epoch.

    To look at sample 7 just as epoch 3 of a run with seed 1 saw it::

        with stoker.sample_context(7, epoch=3, seed=1):
            sample = dataset[7]

    With a sampler that may draw a position several times in an epoch, say which draw it was: one of
    `loader.recipe.draws`, which is None for other orders.
    """
    walk = iter([position])
    next(walk)
    context = SampleContext(seed, epoch, [position], walk, None if draw is None else [draw])
    previous = entered(context)
    try:
        yield context.generator()
    finally:
        entered(previous)


def in_sample() -> bool:
    """Return whether a sample is being read, so that `rng()` is its own."""
    return _local.context is not None


def epoch() -> int:
    """Return the epoch that the sample being read is read for, counted from 0.

    Use it in `__getitem__`, a transform or a collate function where the content depends on the epoch. In a source of a
    mixture it is the epoch of that source, which may come more often or less often than the mixture. Outside a loader
    it is 0, except in a `sample_context`.
    """
    chosen, context = _local.epoch, _local.context
    if chosen is not None and _local.epoch_context is context:
        return chosen
    return 0 if context is None else context.epoch


def rng_of(position: Any) -> Generator:
    """Return `rng()`, or `rng(position)` where many samples are read in one call and it could be of any of them."""
    context = _local.context
    return rng(position) if context is not None and context.index < 0 else rng()


def rng(position: Any = None) -> Generator:
    """Return the random generator of the sample that is being read.

    It is keyed by (seed, epoch, position), so that augmentation drawn from it is the same in every engine, for any
    number of threads, workers and ranks, and after a resume. Calls for the same sample return the same generator, which
    continues. With a sampler that may draw a position several times in an epoch, it is also keyed by the number of the
    draw. Inside `__getitems__`, which reads many samples in one call, say which one: `rng(position)`, once for each
    sample. In a mixture, that one is keyed by the source and its epoch as well.

    Outside a loader it is a fresh generator, seeded by the operating system.
    """
    context = _local.context
    if context is None:
        return np.random.default_rng()
    if position is None:
        return context.generator()
    key = key_of(position)
    counter = np.array([0, context.salted(_local.strand, key), context.epoch & _MASK, key], dtype=np.uint64)
    return Generator(Philox(key=context.seed & _MASK, counter=counter))
