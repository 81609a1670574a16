"""Building a batch: the same three calls whichever engine makes them.

A builder has a `size`, the number of parts that can be done side by side; `do(start, stop)` does some of them, from any
thread; `finish()` returns the batch. The inline engine makes the calls one after the other, threads share the parts,
and a worker process does either, with the memory of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from stoker.batch.collation import Collation, describe_recipe, noted, positions_of
from stoker.batch.ledger import Policy, Skipped
from stoker.batch.memory import BatchMemory, BatchSlot, Pool, SlotMemory, placed
from stoker.batch.result import BatchResult
from stoker.errors import EarlyStop
from stoker.foundation import trees
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.foundation.randomness import SampleContext, entered, key_of
from stoker.foundation.stages import watch
from stoker.plan import Recipe, derived_key
from stoker.plan.mixing import GOLDEN, MASK
from stoker.source.protocols import (
    RowWriter,
    describe_sample,
    has_epochs,
    is_pure,
    makes_batches,
    owns_order,
    reads_many,
    writes_rows,
)

MAX_REPLACEMENTS = 8
"""Samples tried in the place of a bad one, before the error is raised after all."""

R = TypeVar("R")

ReadTimes = tuple[float, float, float]
"""When reading began; how long samples were read and transformed, in seconds."""

Part = tuple[int, float, float, float, Sequence[Any], list[Skipped]]
"""What one call has read: its first row; when it began, seconds of reading and transforming; the samples, unless the
dataset has put them into the batch itself; bad ones among them.
"""


class Builders(Generic[R]):
    """Creates the builder of each batch of a loader. `R` says which batch: a recipe, or the turn of a stream."""

    dataset: Any
    collation: Collation
    borrowed: BorrowedGenerators
    is_pure = False
    """Reading draws no random numbers, so that generators need not be seeded."""

    def builder(self, recipe: R, slot: BatchSlot | None = None, hint: Any = None) -> Any:
        """Return the builder of a batch (an engine's `BatchBuilder`), in the memory of `slot` if there is one."""
        raise NotImplementedError

    def key(self, recipe: R) -> int:
        """Return the key that the process-wide generators are seeded with."""
        raise NotImplementedError

    def build(self, recipe: R, slot: BatchSlot | None = None, hint: Any = None) -> Any:
        """Return a batch built by this thread alone, with the process-wide generators seeded for it."""
        if self.is_pure:
            return self._build((recipe, slot, hint))
        # a worker's own generators need not be given back
        return self.borrowed.run(self._build, (recipe, slot, hint), self.key(recipe), gives_back=slot is None)

    def _build(self, request: tuple[R, BatchSlot | None, Any]) -> Any:
        builder: Any = self.builder(*request)
        if builder.size:
            builder.do(0, builder.size)
        return builder.finish()

    def close(self, *, at_exit: bool = False) -> None:
        """Let go of what is being read: the iteration is over. `at_exit` if this process is about to end."""


class MapBuilders(Builders[Recipe]):
    """Creates builders for a dataset that is addressed by position, by what the dataset offers.

    In this order: samples written into their rows, whole batches, many samples in one call, samples one by one. The
    first two are possible where the loader collates, and bad samples of a whole batch are replaced one by one.
    """

    def __init__(
        self,
        dataset: Any,
        collation: Collation,
        *,
        seed: int,
        policy: Policy,
        borrowed: BorrowedGenerators,
        is_planned: bool,
    ) -> None:
        self.dataset, self.collation, self.seed, self.policy = dataset, collation, seed, policy
        self.borrowed, self.is_planned = borrowed, is_planned
        """The order is the plan's, so that every sample of the dataset is fit to be served."""
        self.writes_rows = collation.is_ours and writes_rows(dataset)
        self.makes_batches = collation.is_ours and makes_batches(dataset)
        self.reads_many = collation.is_batched and reads_many(dataset)
        self.is_pure = self.makes_batches and is_pure(dataset)
        self.next_hint: Callable[[], Any] = _no_hint
        """Returns the hint for the next batch, where batches are built in the trainer's process."""
        self._pool = Pool()
        self._has_epochs = has_epochs(dataset)
        self._view: tuple[int | None, Any] = (None, dataset)

    def builder(self, recipe: Recipe, slot: BatchSlot | None = None, hint: Any = None) -> MapBatchBuilder:
        """Return the builder of a batch; `hint` is what the trainer's process said of it."""
        return MapBatchBuilder(self, recipe, slot, hint)

    def _build(self, request: tuple[Recipe, BatchSlot | None, Any]) -> BatchResult:
        # as above, without the way through `builder`: every small batch comes through here
        builder = MapBatchBuilder(self, *request)
        builder.do(0, builder.size)
        return builder.finish()

    def key(self, recipe: Recipe) -> int:
        """Return the key of a batch."""
        return batch_key(self.seed, recipe.epoch, recipe.step, recipe.rank)

    def dataset_in(self, epoch: int) -> Any:
        """Return the dataset as it is in an epoch."""
        if not self._has_epochs:
            return self.dataset
        known, view = self._view  # one assignment, so that threads see both or neither
        if known != epoch:
            view = self.dataset.in_epoch(epoch)
            self._view = (epoch, view)
        return view

    def open_rows(self, recipe: Recipe, slot: BatchSlot | None, hint: Any) -> RowWriter | None:
        """Return the dataset's row writer for a batch; None if it has none after all."""
        dataset, num_samples = self.dataset_in(recipe.epoch), len(recipe.positions)
        if hint is None:
            hint = self.next_hint()
        while True:
            memory = self.memory(slot)
            with self._placed(slot):
                writer = dataset.open_batch(num_samples, memory.empty, hint)
            # a slot that was exchanged for a larger one leaves behind arrays that nothing was written to yet
            if slot is None or not isinstance(memory, SlotMemory) or not memory.has_moved:
                break
            slot.clear()
        if writer is NotImplemented:
            self.writes_rows = False
            return None
        return writer  # type: ignore[no-any-return]

    def memory(self, slot: BatchSlot | None) -> BatchMemory:
        """Return where the arrays of a batch are allocated."""
        return self._pool if slot is None or not self.collation.uses_slot else SlotMemory(slot)

    def _placed(self, slot: BatchSlot | None) -> Any:
        """Let what the dataset collates by itself lie in the slot, too."""
        return _NOWHERE if slot is None or not self.collation.uses_slot else placed(slot.take)

    def whole_batch(self, recipe: Recipe, slot: BatchSlot | None) -> Any:
        """Return the batch as the dataset makes it, arrays as tensors; `NotImplemented` if it makes none, or fails
        where bad samples are replaced.
        """
        previous = None
        if not self.is_pure:
            positions = positions_of(recipe)
            previous = entered(self._context(recipe, positions, iter(positions)))
        try:
            dataset = self.dataset_in(recipe.epoch) if self._has_epochs else self.dataset
            if slot is None or not self.collation.uses_slot:
                batch = dataset.__getbatch__(recipe.positions, self._pool.empty)
            else:
                with placed(slot.take):  # what the dataset collates by itself lies in the slot, too
                    batch = dataset.__getbatch__(recipe.positions, SlotMemory(slot).empty)
            if batch is not NotImplemented:
                return to_tensors(batch)
        except Exception as error:
            if self.policy.action != "raise":
                return NotImplemented
            if isinstance(error, StopIteration):
                raise noted(EarlyStop("__getbatch__"), f"while reading {describe_recipe(recipe)}") from error
            noted(error, f"while reading {describe_recipe(recipe)}")
            raise
        finally:
            if not self.is_pure:
                entered(previous)
        self.makes_batches = self.is_pure = False
        return NotImplemented

    def close_rows(self, recipe: Recipe, writer: RowWriter, slot: BatchSlot | None) -> Any:
        """Return the batch whose rows are all written."""
        try:
            with self._placed(slot):
                return to_tensors(writer.batch())
        except Exception as error:
            noted(error, f"while putting together {describe_recipe(recipe)}")
            raise

    def write(self, recipe: Recipe, writer: RowWriter, positions: list[Any], row: int, skipped: list[Skipped]) -> None:
        """Write the samples at `positions` into the rows from `row` on; replace bad ones, if the policy says so."""
        walk = iter(positions)
        previous = entered(self._context(recipe, positions, walk, row))
        write = writer.write
        try:
            for position in walk:
                try:
                    write(row, position)
                except Exception as error:
                    fault = error
                    if isinstance(error, StopIteration):
                        fault = EarlyStop("reading a sample")
                        fault.__cause__ = error
                    if self.policy.action == "raise":
                        self._note_sample(fault, recipe, position)
                        raise fault  # noqa: B904  # the error itself, or it has one for its cause
                    self._replacement(fault, recipe, position, row, skipped, partial(write, row))
                row += 1
        finally:
            entered(previous)

    def read(self, recipe: Recipe, positions: list[Any], skipped: list[Skipped], row: int = 0) -> list[Any]:
        """Return the samples at `positions`, which are those of the recipe's rows from `row` on.

        Bad ones are replaced and noted in `skipped`, if the policy says so.
        """
        walk = iter(positions)
        previous = entered(self._context(recipe, positions, walk, row))
        samples: list[Any] = []
        try:
            dataset = self.dataset_in(recipe.epoch) if self._has_epochs else self.dataset
            if self.reads_many:
                try:
                    return dataset.__getitems__(positions)  # type: ignore[no-any-return]
                except StopIteration as error:
                    if self.policy.action == "raise":
                        raise noted(EarlyStop("__getitems__"), f"while reading {describe_recipe(recipe)}") from error
                except Exception as error:
                    if self.policy.action == "raise":
                        noted(error, f"while reading {describe_recipe(recipe)}")
                        raise
            getitem = dataset.__getitem__
            while True:
                try:
                    samples.extend(map(getitem, walk))  # keeps what it has when one fails
                    if len(samples) < len(positions):
                        raise EarlyStop("__getitem__")
                    return samples
                except Exception as error:
                    position = positions[len(samples)]
                    if self.policy.action == "raise":
                        self._note_sample(error, recipe, position)
                        raise
                    samples.append(self._replacement(error, recipe, position, row + len(samples), skipped))
        finally:
            entered(previous)

    def _replacement(
        self,
        error: Exception,
        recipe: Recipe,
        position: Any,
        row: int,
        skipped: list[Skipped],
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Return another sample for a bad one, the same in every engine: a function of (seed, epoch, position)."""
        dataset = self.dataset_in(recipe.epoch)
        keeps_shares = self.is_planned and owns_order(dataset)
        others: Sequence[Any]
        if keeps_shares:
            others = dataset.others(position)
        elif self.is_planned:
            others = range(len(self.dataset))
        else:  # a sampler may keep to a part of the data, such as a split: keep to what it has chosen
            others = [other for other in positions_of(recipe) if other != position]
        if owns_order(dataset):
            read = partial(dataset.instead, position)
        read = read or dataset.__getitem__
        for attempt in range(MAX_REPLACEMENTS if others else 0):
            other = others[derived_key(self.seed, recipe.epoch, key_of(position), attempt) % len(others)]
            walk = iter([other])
            previous = entered(self._context(recipe, [other], walk, row))
            try:
                sample = read(next(walk))
            except Exception:
                continue
            finally:
                entered(previous)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            where = describe_sample(dataset, position)
            skipped.append(Skipped(recipe.epoch, recipe.step, position, reason, where, other))
            return sample
        self._note_sample(error, recipe, position)
        tried = f"{MAX_REPLACEMENTS} other samples, tried in its place, could not be read either"
        error.add_note(tried if others else "there is no other sample in this batch to take its place")
        raise error

    def _context(self, recipe: Recipe, positions: Sequence[Any], walk: Any, row: int = 0) -> SampleContext:
        """Return the context in which the samples of the recipe's rows from `row` on are read."""
        draws = None if recipe.draws is None else recipe.draws[row:]
        return SampleContext(self.seed, recipe.epoch, positions, walk, draws)

    def _note_sample(self, error: Exception, recipe: Recipe, position: Any) -> None:
        """Add to an error which sample it is about."""
        where = describe_sample(self.dataset_in(recipe.epoch), position)
        error.add_note(
            f"raised while reading position {position}{f' ({where})' if where else ''} of "
            f"{type(self.dataset).__name__}, step {recipe.step}, epoch {recipe.epoch}"
        )
        if isinstance(error, IndexError) and isinstance(position, int):
            try:
                length = len(self.dataset)
            except TypeError:
                return
            if 0 <= position < length:
                error.add_note(
                    f"len(dataset) says {length}, so position {position} should exist; if the dataset is shorter, "
                    "fix its __len__, otherwise the error is in its __getitem__"
                )
            else:
                error.add_note(f"the position comes from the sampler and is outside the dataset, whose len is {length}")


class MapBatchBuilder:
    """Builds one batch of a dataset that is addressed by position."""

    __slots__ = ("_batch", "_builders", "_positions", "_recipe", "_slot", "_writer", "parts", "size")

    def __init__(self, builders: MapBuilders, recipe: Recipe, slot: BatchSlot | None, hint: Any) -> None:
        self._builders, self._recipe, self._slot = builders, recipe, slot
        if slot is not None:
            slot.clear()  # the batch may be built a second time
        self._writer = builders.open_rows(recipe, slot, hint) if builders.writes_rows else None
        self._batch: Any = NotImplemented
        """As the dataset has made it."""
        self.parts: list[Part] = []
        """What was done: appended to by several threads, and put together when all is done."""
        self._positions: list[Any] | None = None
        """None if the dataset is asked for the batch."""
        self.size = 1
        """One if one call reads all: the dataset may want to see them together."""
        if self._writer is not None or not builders.makes_batches:
            self._positions = positions = positions_of(recipe)
            if self._writer is not None or not builders.reads_many:
                self.size = len(positions)

    def do(self, start: int, stop: int) -> None:
        """Read some of the samples."""
        began, before = perf_counter(), watch.seconds
        builders, recipe, positions, writer = self._builders, self._recipe, self._positions, self._writer
        samples: Sequence[Any] = ()
        skipped: list[Skipped] = []
        if positions is None:
            samples = self._read_batch(skipped)
        else:
            if stop - start < self.size:
                positions = positions[start:stop]
            if writer is None:
                samples = builders.read(recipe, positions, skipped, start)
            else:
                builders.write(recipe, writer, positions, start, skipped)
        transform = watch.seconds - before
        self.parts.append((start, began, perf_counter() - began - transform, transform, samples, skipped))

    def _read_batch(self, skipped: list[Skipped]) -> Sequence[Any]:
        """Read all samples as a batch; return them if the dataset makes none."""
        builders, recipe, slot = self._builders, self._recipe, self._slot
        self._batch = builders.whole_batch(recipe, slot)
        if self._batch is not NotImplemented:
            return ()
        if slot is not None:
            slot.clear()
        return builders.read(recipe, positions_of(recipe), skipped)

    def finish(self) -> BatchResult:
        """Return the batch."""
        collation, recipe, slot = self._builders.collation, self._recipe, self._slot
        samples: Any
        if len(self.parts) == 1:
            _, began, read, transform, samples, skipped = self.parts[0]
            finishing = began + read + transform  # this thread has just read it
        else:
            _, begins, reads, transforms, read_samples, replaced = zip(*sorted(self.parts, key=itemgetter(0)))
            began, read, transform = min(begins), sum(reads), sum(transforms)
            samples, skipped = list(chain(*read_samples)), list(chain(*replaced))
            finishing = perf_counter()
        if self._writer is not None:
            batch = collation.complete(recipe, self._builders.close_rows(recipe, self._writer, slot))
        elif self._batch is not NotImplemented:
            batch = collation.complete(recipe, self._batch)
        else:
            batch = collation.collate(recipe, samples, slot)
        ended = perf_counter()
        return BatchResult(recipe, batch, skipped, None, (began, ended, read, transform, ended - finishing))


def to_tensors(batch: Any) -> Any:
    """Return a batch with its arrays as tensors that share their memory."""
    if type(batch) is np.ndarray:
        return torch.from_numpy(batch)
    if type(batch) is dict and all(type(value) is np.ndarray for value in batch.values()):
        return {key: torch.from_numpy(value) for key, value in batch.items()}  # what nearly all datasets return
    return trees.map_leaves(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)


def _no_hint() -> None:
    return None


_NOWHERE = nullcontext()


@lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int, rank: int) -> int:
    return derived_key(seed, epoch, rank)


def batch_key(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the key of a batch's process-wide random numbers: (seed, epoch, step), and the rank, or all ranks would
    augment alike. The generators mix it themselves, so steps need only differ.
    """
    return (_epoch_key(seed, epoch, rank) + step * GOLDEN) & MASK
