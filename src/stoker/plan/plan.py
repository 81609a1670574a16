"""Which sample goes to which rank at every step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, repeat
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, PositionError
from stoker.plan.digest import digests
from stoker.plan.order import Indices, Order, Sequential, order_named, order_to_dict
from stoker.plan.permutation import MAX_SIZE

Tail = Literal["drop", "keep", "pad"]

Layout = Literal["interleaved", "blocks"]

CHUNK = 8192
"""Samples whose positions are computed together when steps follow one another: enough to hide NumPy's cost per call,
few enough for the L2 cache."""


class Recipe(NamedTuple):
    """The samples that one rank reads at one step. Arrays are [n], for the n samples of its share."""

    step: int
    epoch: int
    rank: int
    ordinals: Indices
    """The samples' places in the epoch's order; padding repeats it from the beginning."""
    positions: Indices
    padding: NDArray[np.bool_] | None
    """True where a sample only fills up the batch. None when there is no padding."""
    digest: int
    """What this share adds to the running digest of the samples served."""
    draws: range | None = None
    """Where a sampler may draw a position several times in an epoch: the number of each draw, over all ranks. Random
    numbers depend on it."""


class Place(NamedTuple):
    """When and where a sample is served."""

    step: int
    rank: int
    row: int
    """Its index in the rank's share."""
    is_skipped: bool
    """The step is in a range of `Plan.skip`, so the sample is not served."""


class Origin(NamedTuple):
    """Where the numbering of steps began: after a change of batch size, in the middle of an epoch."""

    epoch: int = 0
    ordinal: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which sample goes to which rank at every step.

    A plan is arithmetic: it reads no data and holds no iterator. Processes with equal plans agree on every sample.
    Steps are numbered across epochs. The number of ranks is not part of the plan: ranks only split a step among them.
    """

    num_samples: int
    batch_size: int
    """Samples in one step, over all ranks together."""
    order: Order = field(default_factory=Sequential)
    seed: int = 0
    tail: Tail = "keep"
    """The last, incomplete batch of an epoch is dropped, kept short (each rank gets at least one sample), or padded
    with marked samples from the epoch's beginning.
    """
    skip: tuple[tuple[int, int], ...] = ()
    """Ranges (first, stop) of steps that are not served. They keep their numbers, so all others do too."""
    origin: Origin = Origin()
    layout: Layout = "interleaved"
    """How ranks split a step: every `num_ranks`-th sample each, or consecutive samples each. With "blocks", the batches
    of all ranks, concatenated, are the step's samples in order, with the padding at the end.
    """

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name}={value!r} is not a positive integer", hint=f"pass {name} as 1 or more")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ArgumentError(f"seed={self.seed!r} is not an integer", hint="any integer will do")
        if self.num_samples > MAX_SIZE:
            raise ArgumentError(f"num_samples={self.num_samples} is too many", hint=f"{MAX_SIZE} is the limit")
        if self.tail not in get_args(Tail):
            raise ArgumentError(f"tail={self.tail!r} is not known", hint=f"choose one of {', '.join(get_args(Tail))}")
        if self.layout not in get_args(Layout):
            raise ArgumentError(
                f"layout={self.layout!r} is not known", hint=f"choose one of {', '.join(get_args(Layout))}"
            )
        object.__setattr__(self, "order", order_named(self.order))
        object.__setattr__(self, "skip", _joined(self.skip))
        object.__setattr__(self, "origin", Origin(*self.origin))

    # ---------------------------------------------------------------- counting

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps of `epoch`, skipped ones included; the same on every rank."""
        ordinals = self.num_samples - self._first_ordinal(epoch)
        return ordinals // self.batch_size if self.tail == "drop" else -(-ordinals // self.batch_size)

    def num_steps(self, epoch: int) -> int:
        """Return how many steps of `epoch` are served, without the skipped ones."""
        first = self.first_step(epoch)
        stop = first + self.steps_in(epoch)
        return stop - first - sum(max(0, min(stop, b) - max(first, a)) for a, b in self.skip)

    def samples_in(self, step: int) -> int:
        """Return how many samples `step` serves, over all ranks together and without padding."""
        return min(self.batch_size, self.num_samples - self._start_of(step)[1])

    def first_step(self, epoch: int) -> int:
        """Return the number of the first step of `epoch`."""
        epochs = epoch - self.origin.epoch
        if epochs < 0:
            raise ArgumentError(
                f"epoch {epoch} lies before this plan, which begins in epoch {self.origin.epoch}",
                hint="ask the plan of the run that served it: this one begins where the batch size changed",
            )
        if epochs == 0:
            return self.origin.step
        return self.origin.step + self.steps_in(self.origin.epoch) + (epochs - 1) * self.steps_in(epoch)

    def epoch_of(self, step: int) -> int:
        """Return the epoch that `step` is in."""
        return self._start_of(step)[0]

    def is_skipped(self, step: int) -> bool:
        """Return whether `step` is skipped."""
        return any(first <= step < stop for first, stop in self.skip)

    # ---------------------------------------------------------------- samples and steps

    def recipe(self, step: int, rank: int = 0, num_ranks: int = 1) -> Recipe:
        """Return the samples of `rank` at `step`, in time that depends neither on the corpus nor on the step."""
        self._check_rank(rank, num_ranks)
        epoch, start = self._start_of(step)
        real = min(self.batch_size, self.num_samples - start)
        whole = self.batch_size if self.tail == "pad" else real
        ordinals = start + self._share(whole, rank, num_ranks)
        padding: NDArray[np.bool_] | None = None
        if (
            not ordinals.size
        ):  # tail="keep" with fewer samples left than ranks: every rank needs a batch, or the others hang
            ordinals, padding = np.array([start], dtype=np.int64), np.array([True])
        elif start + whole > self.num_samples:
            padding = ordinals >= self.num_samples
            ordinals %= self.num_samples
            padding = padding if padding.any() else None
        positions = self._positions(ordinals, epoch)
        counted = slice(None) if padding is None else ~padding
        digest = int(digests(epoch, ordinals[counted], positions[counted]).sum(dtype=np.uint64))
        return Recipe(step, epoch, rank, ordinals, positions, padding, digest)

    def recipes(self, step: int, rank: int = 0, num_ranks: int = 1) -> Iterator[Recipe]:
        """Yield the recipes from `step` to the end of its epoch, without the skipped ones.

        The same as `recipe` for each step, but the positions of many steps are computed together.
        """
        epoch, _ = self._start_of(step)
        stop = self.first_step(epoch) + self.steps_in(epoch)
        num_full = (self.num_samples - self._first_ordinal(epoch)) // self.batch_size
        last_full = self.first_step(epoch) + num_full
        for first, end in self._unskipped(step, stop):
            # few steps at first, so that the first batch does not wait for a whole chunk
            ahead, most = 1, max(1, CHUNK * num_ranks // self.batch_size)
            while first < min(end, last_full):
                num_steps = min(ahead, end - first, last_full - first)
                yield from self._full_recipes(first, num_steps, rank, num_ranks, epoch)
                first += num_steps
                ahead = min(2 * ahead, most)
            for tail_step in range(first, end):
                yield self.recipe(tail_step, rank, num_ranks)

    def find(self, position: int, epoch: int = 0, num_ranks: int = 1) -> Place | None:
        """Return when and where the sample at `position` is served in `epoch`.

        None if it is not: the tail drops it, or it was served before the origin.
        """
        if not 0 <= position < self.num_samples:
            raise PositionError(position, length=self.num_samples, what="the plan")
        self._check_rank(0, num_ranks)
        step = self.first_step(epoch)
        ordinals = self.order.ordinals(
            np.array([position], dtype=np.int64), epoch=epoch, num_samples=self.num_samples, seed=self.seed
        )
        steps, offset = divmod(int(ordinals[0]) - self._first_ordinal(epoch), self.batch_size)
        if not 0 <= steps < self.steps_in(epoch):
            return None
        if self.layout == "blocks":
            real = min(self.batch_size, self.num_samples - self._first_ordinal(epoch) - steps * self.batch_size)
            whole = self.batch_size if self.tail == "pad" else real
            rank = offset if whole < num_ranks else ((offset + 1) * num_ranks - 1) // whole
            row = 0 if whole < num_ranks else offset - rank * whole // num_ranks
        else:
            row, rank = divmod(offset, num_ranks)
        return Place(step + steps, rank, row, self.is_skipped(step + steps))

    # ---------------------------------------------------------------- change and identity

    def step_at(self, epoch: int, ordinal: int) -> int:
        """Return the step that holds `ordinal` of `epoch`."""
        return self.first_step(epoch) + (ordinal - self._first_ordinal(epoch)) // self.batch_size

    def skipping(self, first: int, stop: int) -> Plan:
        """Return this plan with the steps from `first` to before `stop` skipped as well."""
        return replace(self, skip=(*self.skip, (first, stop)))

    def rebatched(self, batch_size: int, origin: Origin) -> Plan:
        """Return this plan, continued at `origin` with another batch size.

        Skipped ranges keep their samples. A new step that holds any skipped sample is skipped entirely.
        """
        new = replace(self, batch_size=batch_size, origin=origin, skip=())
        ranges = []
        for first, stop in self.skip:
            if stop <= origin.step:
                continue
            epoch, ordinal = self._start_of(max(first, origin.step))
            last_epoch, last_ordinal = self._start_of(stop - 1)
            last_ordinal = min(last_ordinal + self.batch_size, self.num_samples) - 1
            # an ordinal that is now in a dropped tail has no step
            end = new.first_step(last_epoch) + new.steps_in(last_epoch)
            first, stop = new.step_at(epoch, ordinal), min(new.step_at(last_epoch, last_ordinal) + 1, end)
            if first < stop:
                ranges.append((first, stop))
        return replace(new, skip=tuple(ranges))

    def identity(self) -> dict[str, Any]:
        """Return the values that determine the stream of samples, as plain values.

        Batch size, ranks, layout, skipped steps and origin are not among them: they only cut the stream into batches.
        """
        return {
            "num_samples": self.num_samples,
            "order": order_to_dict(self.order),
            "seed": self.seed,
            "tail": self.tail,
        }

    @property
    def fingerprint(self) -> str:
        """A short hash of `identity`."""
        return hashlib.blake2b(json.dumps(self.identity(), sort_keys=True).encode(), digest_size=8).hexdigest()

    # ---------------------------------------------------------------- inside

    def _first_ordinal(self, epoch: int) -> int:
        return self.origin.ordinal if epoch == self.origin.epoch else 0

    def _start_of(self, step: int) -> tuple[int, int]:
        """Return the epoch of `step` and the ordinal with which it begins."""
        steps = step - self.origin.step
        if steps < 0:
            raise ArgumentError(
                f"step {step} lies before this plan, which begins at step {self.origin.step}",
                hint="steps count from 0; after a change of batch size, from where it changed",
            )
        in_first = self.steps_in(self.origin.epoch)
        if steps < in_first:
            return self.origin.epoch, self.origin.ordinal + steps * self.batch_size
        per_epoch = self.steps_in(self.origin.epoch + 1)
        if not per_epoch:
            raise ArgumentError(
                f"the plan has no steps: tail='drop' leaves nothing of {self.num_samples} samples "
                f"in batches of {self.batch_size}",
                hint="use a smaller batch, or tail='keep' or 'pad'",
            )
        epochs, steps = divmod(steps - in_first, per_epoch)
        return self.origin.epoch + 1 + epochs, steps * self.batch_size

    def _share(self, num_samples: int, rank: int, num_ranks: int) -> Indices:
        """Return the indices of `rank`'s samples in a step of `num_samples`."""
        if self.layout == "blocks" and num_samples >= num_ranks:
            return np.arange(rank * num_samples // num_ranks, (rank + 1) * num_samples // num_ranks, dtype=np.int64)
        return np.arange(rank, num_samples, num_ranks, dtype=np.int64)

    def _positions(self, ordinals: Indices, epoch: int) -> Indices:
        return self.order.positions(ordinals, epoch=epoch, num_samples=self.num_samples, seed=self.seed)

    def _full_recipes(self, step: int, num_steps: int, rank: int, num_ranks: int, epoch: int) -> Iterator[Recipe]:
        self._check_rank(rank, num_ranks)
        _, start = self._start_of(step)
        share = self._share(self.batch_size, rank, num_ranks)
        ordinals = (
            np.arange(start, start + num_steps * self.batch_size, self.batch_size, dtype=np.int64)[:, None] + share
        )
        flat = ordinals.reshape(-1)
        positions = self._positions(flat, epoch)
        sums = digests(epoch, flat, positions).reshape(ordinals.shape).sum(axis=1, dtype=np.uint64)
        rows = zip(
            count(step),
            repeat(epoch),
            repeat(rank),
            ordinals,
            positions.reshape(ordinals.shape),
            repeat(None),
            sums.tolist(),
            repeat(None),
        )
        return map(partial(tuple.__new__, Recipe), rows)  # what Recipe._make does, in a quarter less time

    def _unskipped(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        for skip_first, skip_stop in self.skip:
            if first < min(skip_first, stop):
                yield first, min(skip_first, stop)
            first = max(first, skip_stop)
        if first < stop:
            yield first, stop

    def _check_rank(self, rank: int, num_ranks: int) -> None:
        if not 0 <= rank < num_ranks:
            raise ArgumentError(f"there is no rank {rank} of {num_ranks}", hint="ranks run from 0 to num_ranks - 1")
        if num_ranks > self.batch_size:
            raise ArgumentError(
                f"{num_ranks} ranks cannot share a batch of {self.batch_size}",
                hint="the plan's batch_size counts the samples of all ranks together; give each one sample at least",
            )


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return `ranges` sorted, without empty ones, with overlapping and adjacent ones merged."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(map(_range, ranges)):
        if first == stop:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return tuple(joined)


def _range(steps: tuple[int, int]) -> tuple[int, int]:
    try:
        first, stop = map(int, steps)
    except (TypeError, ValueError):
        first, stop = -1, -1
    if not 0 <= first <= stop:
        raise ArgumentError(
            f"skip={steps!r} is not a range of steps",
            hint="give pairs (first, stop) of step numbers, stop not included",
        )
    return first, stop
