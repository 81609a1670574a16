"""How a recipe becomes a batch: read, collate, pin. The same code in every engine."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset

from stoker.batch import Gathering, RowWriter, RowWriters, explain, placed, plain_collate, stack_plainly
from stoker.batch.ledger import Policy, Skipped
from stoker.engine.slots.slot_writer import SlotWriter
from stoker.engine.timing import HERE, HandoverTimes, Times
from stoker.errors import EarlyStop, NothingCollated, StokerError
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.foundation.randomness import SampleContext, entered, key_of, reading_in_epoch
from stoker.foundation.stages import watch
from stoker.loader.sharing.context_parallel import SequencePart
from stoker.plan import Recipe, derived_key
from stoker.plan.mixing import GOLDEN, MASK

MAX_REPLACEMENTS = 8
"""Samples tried in the place of a bad one, before the error is raised after all."""


class BatchResult(NamedTuple):
    """A batch and what is to be noted when it is handed over."""

    recipe: Recipe
    batch: Any
    skipped: Sequence[Skipped]
    stream: dict[str, Any] | None
    """Where the stream is after this batch."""
    times: Times
    trip: HandoverTimes = HERE


class EndOfStream(NamedTuple):
    """Comes in the place of a batch when a reader of a stream has no more."""

    part: int
    state: Any
    """Where a dataset that stays with its worker is now, at the beginning of its next epoch."""


Reading = tuple[float, float, float]
"""When reading began; how long samples were read and transformed, in seconds."""

WorkItem = tuple[int, int, int, range | None, bytes | list[Any], Any]
"""What a worker is told of a recipe: step, epoch, rank, draws, positions, the plan's as the bytes of 64-bit integers,
and what the dataset tells.

Pickling all of a recipe would take longer than all else about a small batch.
"""


def encode_recipe(recipe: Recipe, told: Any = None) -> WorkItem:
    """Return what is to be sent of a recipe."""
    positions: Any = recipe.positions
    listed = positions if isinstance(positions, list) else positions.tobytes()
    return recipe.step, recipe.epoch, recipe.rank, recipe.draws, listed, told


def decode_recipe(content: WorkItem) -> Recipe:
    """Return the recipe, as far as a worker needs it."""
    step, epoch, rank, draws, positions, _ = content
    listed: Any = np.frombuffer(positions, np.int64) if isinstance(positions, bytes) else positions
    return Recipe(step, epoch, rank, (), listed, None, 0, draws)  # type: ignore[arg-type]


def epoch_setter_state(dataset: Any) -> Callable[[], Any]:
    """Return what tells, with every recipe, what a dataset in the trainer's process has to say to whoever reads it."""
    tell = getattr(dataset, "batch_hint", None)
    return tell if callable(tell) else _nothing


def _nothing() -> None:
    return None


EncodedBatch = tuple[Any, bytes, Times]
"""A batch, the note that goes with it, and how long it took."""


def encode_result(made: BatchResult | EndOfStream) -> EncodedBatch:
    """Return a batch as it leaves a worker: apart from what is to be noted, whose arrays are kept for long and should
    not keep the batch's slot.
    """
    if isinstance(made, EndOfStream):
        return None, pickle.dumps(made), _NO_TIMES
    if made.stream is None:
        return made.batch, pickle.dumps(made.skipped) if made.skipped else b"", made.times
    return made.batch, pickle.dumps(made._replace(batch=None)), made.times


_NO_TIMES: Times = (0.0, 0.0, 0.0, 0.0, 0.0)


class Finisher:
    """The last two stages: samples to a batch, the batch to page-locked memory."""

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        *,
        is_batched: bool,
        pin: Callable[[Any], Any] | None,
        mixture: Any = None,
        part: SequencePart | None = None,
    ):
        self.collate_fn, self.is_batched, self.pin = collate_fn, is_batched, pin
        self._part = part
        """Takes this rank's part of every sequence, where ranks share a batch."""
        self._mixture = mixture if collate_fn is None and is_batched else None
        """Where samples come from several datasets, and the loader puts them together."""
        self._collate: Callable[[Any], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pin": None, "_collate": None}  # workers never pin

    def onto(self, desk: SlotWriter) -> AbstractContextManager[None]:
        """Let batches be collated straight into a slot. A function of the user's own may keep what it makes, and must
        not find it changed later.
        """
        # nor does the slot need what other ranks have of the sequences
        return placed(desk.take) if self.collate_fn is None and self._part is None else nullcontext()

    def __call__(self, recipe: Recipe, samples: list[Any]) -> Any:
        """Return the batch of `samples`."""
        collate = self._collate
        if collate is None:
            self._collate = collate = self.collate_fn or plain_collate()
        try:
            if self._mixture is not None:
                self._mixture.in_epoch(recipe.epoch).check_forms(positions_of(recipe), samples)
            if self.collate_fn is None:
                batch = collate(samples if self.is_batched else samples[0])
            else:
                with reading_in_epoch(recipe.epoch):
                    batch = collate(samples if self.is_batched else samples[0])
        except StopIteration as error:
            raise _noted(EarlyStop("the collate function"), f"while collating {listed(recipe)}") from error
        except Exception as error:
            if self.collate_fn is None and self.is_batched and not isinstance(error, StokerError):
                positions = positions_of(recipe)
                explain(error, samples, lambda row: f"position {positions[row]}")
            _noted(error, f"while collating {listed(recipe)}")
            raise
        if batch is None and self.collate_fn is not None:
            raise NothingCollated(getattr(self.collate_fn, "__qualname__", repr(self.collate_fn)), step=recipe.step)
        return self.ready(recipe, batch)

    def ready(self, recipe: Recipe, batch: Any) -> Any:
        """Return a whole batch as this rank gets it: its part of the sequences, in page-locked memory if asked for."""
        if self._part is not None:
            try:
                batch = self._part(batch)
            except Exception as error:
                _noted(error, f"while splitting the sequences of {listed(recipe)}")
                raise
        return batch if self.pin is None else self.pin(batch)


class Beginning:
    """What a worker process does first."""

    def __init__(self, worker_init_fn: Callable[[int], Any] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        """Set the process up, and let the user do so."""
        stack_plainly()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class MapMaker:
    """Makes batches from a dataset that is addressed by position."""

    def __init__(
        self, dataset: Any, finish: Finisher, *, seed: int, policy: Policy, loan: BorrowedGenerators, owns_order: bool
    ) -> None:
        self.dataset, self.finish, self.seed, self.policy, self.loan = dataset, finish, seed, policy, loan
        self.owns_order = owns_order
        """The order is the plan's, so that every sample of the dataset is fit to be served."""
        self.reads_many = finish.is_batched and _reads_many(dataset)
        self.gathers = finish.is_batched and finish.collate_fn is None and hasattr(dataset, "__getbatch__")
        """The dataset may make batches whole."""
        self._gather = Gathering() if self.gathers else None
        self.fills = finish.is_batched and finish.collate_fn is None and callable(getattr(dataset, "open_batch", None))
        """The dataset may write samples where they belong in the batch."""
        self._writers = RowWriters()
        self.tell = epoch_setter_state(dataset)
        """What says how to make the next batch, where it is made in the trainer's process."""
        self._has_epochs = callable(getattr(dataset, "in_epoch", None))
        self._view: tuple[int | None, Any] = (None, dataset)
        self.is_pure = self.gathers and getattr(dataset, "is_pure", False) is True
        """Reading draws no random numbers, so that no generator has to be seen to."""

    def dataset_in(self, epoch: int) -> Any:
        """Return the dataset as it is in an epoch: what `in_epoch` gives where it has one."""
        if not self._has_epochs:
            return self.dataset
        known, view = self._view  # one assignment, so that threads see both or neither
        if known != epoch:
            view = self.dataset.in_epoch(epoch)
            self._view = (epoch, view)
        return view

    def make(self, recipe: Recipe) -> BatchResult:
        """Return the batch of `recipe`, made here and now, with the process-wide generators seeded from the step."""
        if self.is_pure:
            return self._make(recipe)
        return self.loan.run(self._make, recipe, batch_key(self.seed, recipe.epoch, recipe.step, recipe.rank))

    def _make(self, recipe: Recipe) -> BatchResult:
        if self.fills:
            writer = self.opened(recipe, self.tell())
            if writer is not None:
                return self.filled(recipe, writer)
        if self.gathers:
            made = self.gathered(recipe)
            if made is not None:
                return made
        return self._collected(recipe)

    def _collected(self, recipe: Recipe, desk: SlotWriter | None = None) -> BatchResult:
        """Return the batch, read sample by sample and collated, in the slot on `desk` if there is one."""
        began, before = perf_counter(), watch.seconds
        skipped: list[Skipped] = []
        samples = self.read(recipe, positions_of(recipe), skipped)
        collating, transform = perf_counter(), watch.seconds - before
        if desk is None:
            batch = self.finish(recipe, samples)
        else:
            desk.clear()  # it may be made a second time
            with self.finish.onto(desk):
                batch = self.finish(recipe, samples)
        made = perf_counter()
        times = began, made, collating - began - transform, transform, made - collating
        return BatchResult(recipe, batch, skipped, None, times)

    def gathered(self, recipe: Recipe) -> BatchResult | None:
        """Return the batch as the dataset makes it; None if it cannot, or fails and bad samples are to be replaced."""
        assert self._gather is not None
        began, before = perf_counter(), watch.seconds
        previous = None
        if not self.is_pure:
            positions = positions_of(recipe)
            previous = entered(self._context(recipe, positions, iter(positions)))
        try:
            numbers = recipe.positions
            dataset = self.dataset_in(recipe.epoch) if self._has_epochs else self.dataset
            batch = self._gather(dataset, numbers)
        except Exception as error:
            if self.policy.action != "raise":
                return None
            if isinstance(error, StopIteration):
                raise _noted(EarlyStop("__getbatch__"), f"while reading {listed(recipe)}") from error
            _noted(error, f"while reading {listed(recipe)}")
            raise
        finally:
            if not self.is_pure:
                entered(previous)
        if batch is NotImplemented:
            self.gathers = self.is_pure = False
            return None
        batch = self.finish.ready(recipe, batch)
        made, transform = perf_counter(), watch.seconds - before
        return BatchResult(recipe, batch, (), None, (began, made, made - began - transform, transform, 0.0))

    def opened(self, recipe: Recipe, told: Any, desk: SlotWriter | None = None) -> RowWriter | None:
        """Return a writer for a recipe, in the slot on `desk` if there is one; None if the dataset has none."""
        dataset = self.dataset_in(recipe.epoch) if self._has_epochs else self.dataset
        num_samples = len(recipe.positions)
        if desk is None:
            writer = self._writers.opened(dataset, num_samples, told)
        else:
            desk.clear()
            with self.finish.onto(desk):
                writer = self._writers.opened(dataset, num_samples, told, clear=desk.clear)
        if writer is NotImplemented:
            self.fills = False
            return None
        return writer  # type: ignore[no-any-return]

    def filled(self, recipe: Recipe, writer: RowWriter) -> BatchResult:
        """Return the batch of a writer, filled here and now."""
        began, before = perf_counter(), watch.seconds
        skipped: list[Skipped] = []
        self.fill(recipe, writer, positions_of(recipe), 0, skipped)
        transform = watch.seconds - before
        return self.lifted(recipe, writer, skipped, (began, perf_counter() - began - transform, transform))

    def lifted(self, recipe: Recipe, writer: RowWriter, skipped: list[Skipped], reading: Reading) -> BatchResult:
        """Return the batch of a writer that is full."""
        lifting = perf_counter()
        try:
            batch = self._writers.lifted(writer)
        except Exception as error:
            _noted(error, f"while putting together {listed(recipe)}")
            raise
        batch = self.finish.ready(recipe, batch)
        made = perf_counter()
        began, read, transform = reading
        return BatchResult(recipe, batch, skipped, None, (began, made, read, transform, made - lifting))

    def fill(self, recipe: Recipe, writer: RowWriter, positions: list[Any], row: int, skipped: list[Skipped]) -> None:
        """Put the samples at `positions` into the rows from `row` on; bad ones are replaced, if the policy says so."""
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
                        self._blame(fault, recipe, position)
                        raise fault  # noqa: B904  # the error itself, or it has one for its cause
                    self._replaced(fault, recipe, position, row, skipped, partial(write, row))
                row += 1
        finally:
            entered(previous)

    def make_away(self, content: WorkItem, desk: SlotWriter) -> EncodedBatch:
        """Make a batch in a worker process, straight into the slot on `desk`; with a note for the ledger, if any."""
        recipe = decode_recipe(content)
        key = batch_key(self.seed, recipe.epoch, recipe.step, recipe.rank)

        def make(recipe: Recipe) -> BatchResult:
            if self.fills:
                writer = self.opened(recipe, content[-1], desk)
                if writer is not None:
                    with self.finish.onto(desk):
                        return self.filled(recipe, writer)
            if self.gathers:
                desk.clear()
                with self.finish.onto(desk):
                    made = self.gathered(recipe)
                if made is not None:
                    return made
            return self._collected(recipe, desk)

        return encode_result(make(recipe) if self.is_pure else self.loan.run(make, recipe, key, gives_back=False))

    def rest(self, *, is_last: bool = False) -> None:
        """Nothing is held from batch to batch."""

    def task_away(self, content: WorkItem, desk: SlotWriter) -> AwayTask:
        """Return the making of a batch in a worker process that has several threads."""
        recipe = decode_recipe(content)
        writer = self.opened(recipe, content[-1], desk) if self.fills else None
        return AwayTask(MapTask(self, recipe, writer), self.finish, desk)

    def task(self, recipe: Recipe) -> MapTask:
        """Return the work of `recipe`, to be shared out among threads."""
        return MapTask(self, recipe, self.opened(recipe, self.tell()) if self.fills else None)

    def read(self, recipe: Recipe, positions: list[Any], skipped: list[Skipped], row: int = 0) -> list[Any]:
        """Return the samples at `positions`, which are those of the recipe's rows from `row` on.

        Bad ones are replaced and noted in `skipped`, if the policy says so.
        """
        walk = iter(positions)
        previous = entered(self._context(recipe, positions, walk, row))
        samples: list[Any] = []
        try:
            dataset = self.dataset_in(recipe.epoch)
            if self.reads_many:
                try:
                    return dataset.__getitems__(positions)  # type: ignore[no-any-return]
                except StopIteration as error:
                    if self.policy.action == "raise":
                        raise _noted(EarlyStop("__getitems__"), f"while reading {listed(recipe)}") from error
                except Exception as error:
                    if self.policy.action == "raise":
                        _noted(error, f"while reading {listed(recipe)}")
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
                        self._blame(error, recipe, position)
                        raise
                    samples.append(self._replaced(error, recipe, position, row + len(samples), skipped))
        finally:
            entered(previous)

    def _replaced(
        self,
        error: Exception,
        recipe: Recipe,
        position: Any,
        row: int,
        skipped: list[Skipped],
        read: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Return another sample for a bad one, the same in every engine: a function of (seed, epoch, position)."""
        if self.owns_order:
            others: Sequence[Any] = range(len(self.dataset))
        else:  # a sampler may keep to a part of the data, such as a split: keep to what it has chosen
            others = [other for other in positions_of(recipe) if other != position]
        dataset = self.dataset_in(recipe.epoch)
        instead = getattr(dataset, "instead", None)
        if self.owns_order and callable(instead):  # a mixture, whose shares must stay what they are
            others = dataset.others(position)
        read = read or dataset.__getitem__
        for attempt in range(MAX_REPLACEMENTS if others else 0):
            other = others[derived_key(self.seed, recipe.epoch, key_of(position), attempt) % len(others)]
            walk = iter([other])
            previous = entered(self._context(recipe, [other], walk, row))
            try:
                sample = instead(position, next(walk)) if callable(instead) else read(next(walk))
            except Exception:
                continue
            finally:
                entered(previous)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            skipped.append(Skipped(recipe.epoch, recipe.step, position, reason, described(dataset, position), other))
            return sample
        self._blame(error, recipe, position)
        tried = f"{MAX_REPLACEMENTS} other samples, tried in its place, could not be read either"
        error.add_note(tried if others else "there is no other sample in this batch to take its place")
        raise error

    def _context(self, recipe: Recipe, positions: Sequence[Any], walk: Any, row: int = 0) -> SampleContext:
        """Return the context in which the samples of the recipe's rows from `row` on are read."""
        draws = None if recipe.draws is None else recipe.draws[row:]
        return SampleContext(self.seed, recipe.epoch, positions, walk, draws)

    def _blame(self, error: Exception, recipe: Recipe, position: Any) -> None:
        where = described(self.dataset_in(recipe.epoch), position)
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
                    "mend its __len__, otherwise the error is in its __getitem__"
                )
            else:
                error.add_note(f"the position comes from the sampler and is outside the dataset, whose len is {length}")


class EpochForwarder:
    """A maker in a worker process, whose dataset is told of the epoch that the trainer has chosen."""

    def __init__(self, maker: Any, epoch: int | None) -> None:
        self._maker, self._epoch = maker, epoch

    def make_away(self, content: tuple[int | None, Any], desk: SlotWriter) -> Any:
        """Make a batch."""
        return self._maker.make_away(self._heard(content), desk)

    def task_away(self, content: tuple[int | None, Any], desk: SlotWriter) -> Any:
        """Return the making of a batch."""
        return self._maker.task_away(self._heard(content), desk)

    def rest(self, *, is_last: bool = False) -> None:
        """Let go of what is being read."""
        self._maker.rest(is_last=is_last)

    def _heard(self, content: tuple[int | None, Any]) -> Any:
        epoch, rest = content
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            if hasattr(self._maker.dataset, "set_epoch"):
                self._maker.dataset.set_epoch(epoch)
        return rest


class MapTask:
    """The reading of one batch in parts, by several threads."""

    __slots__ = ("gathers", "maker", "positions", "readings", "recipe", "samples", "size", "skipped", "writer")

    def __init__(self, maker: MapMaker, recipe: Recipe, writer: RowWriter | None = None) -> None:
        self.maker, self.recipe, self.writer = maker, recipe, writer
        self.positions = positions_of(recipe)
        # one call for all, where the dataset takes many positions: it may want to see them together
        self.gathers = maker.gathers and writer is None
        is_one = writer is None and (maker.reads_many or self.gathers)
        self.size = 1 if is_one else len(self.positions)
        self.samples: list[Any] = [None] * len(self.positions)
        self.skipped: list[tuple[int, list[Skipped]]] = []
        self.readings: list[Reading] = []
        """Of each part: appended to by several threads, and added up when all are done."""

    def do(self, start: int, stop: int) -> None:
        """Read some of the samples."""
        if not self.gathers:  # otherwise when it is finished: only then there is a slot
            self._read(start, stop)

    def _read(self, start: int, stop: int) -> None:
        began, before = perf_counter(), watch.seconds
        skipped: list[Skipped] = []
        if self.writer is not None:
            self.maker.fill(self.recipe, self.writer, self.positions[start:stop], start, skipped)
        elif self.maker.reads_many:
            self.samples = self.maker.read(self.recipe, self.positions, skipped)
        else:
            self.samples[start:stop] = self.maker.read(self.recipe, self.positions[start:stop], skipped, start)
        if skipped:
            self.skipped.append((start, skipped))
        transform = watch.seconds - before
        self.readings.append((began, perf_counter() - began - transform, transform))

    def finish(self) -> BatchResult:
        """Return the batch."""
        if self.gathers:
            made = self.maker.gathered(self.recipe)
            if made is not None:
                return made
            self._read(0, len(self.positions))
        skipped = [entry for _, part in sorted(self.skipped, key=lambda item: item[0]) for entry in part]
        reading = self._reading()
        if self.writer is not None:
            return self.maker.lifted(self.recipe, self.writer, skipped, reading)
        return run_inline(self.maker.finish, self.recipe, self.samples, skipped, None, reading)

    def _reading(self) -> Reading:
        readings = self.readings
        if len(readings) == 1:
            return readings[0]
        began, read, transform = zip(*readings) if readings else ((perf_counter(),), (), ())
        return min(began), sum(read), sum(transform)


def run_inline(
    finish: Finisher,
    recipe: Recipe,
    samples: list[Any],
    skipped: list[Skipped],
    stream: dict[str, Any] | None,
    reading: Reading,
) -> BatchResult:
    """Return the batch of samples that were read."""
    collating = perf_counter()
    batch = finish(recipe, samples)
    made = perf_counter()
    began, read, transform = reading
    return BatchResult(recipe, batch, skipped, stream, (began, made, read, transform, made - collating))


class AwayTask:
    """A batch made by the threads of a worker process."""

    def __init__(self, task: Any, finisher: Finisher, desk: SlotWriter) -> None:
        self._task, self._finisher, self._desk = task, finisher, desk
        self.size: int = task.size
        self.do: Callable[[int, int], None] = task.do

    def finish(self) -> Any:
        """Return the batch, collated straight into the slot."""
        with self._finisher.onto(self._desk):
            return encode_result(self._task.finish())


@lru_cache(maxsize=16)
def _epoch_key(seed: int, epoch: int, rank: int) -> int:
    return derived_key(seed, epoch, rank)


def batch_key(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the key of a batch's process-wide random numbers: (seed, epoch, step), and the rank, or all ranks would
    augment alike. The generators mix it themselves, so steps need only differ.
    """
    return (_epoch_key(seed, epoch, rank) + step * GOLDEN) & MASK


def _reads_many(dataset: Any) -> bool:
    """Return whether a dataset reads many samples in one call.

    torch's `Subset` has `__getitems__` whatever it is a part of. If that has none, nothing is gained, and nobody could
    tell which sample it is at, for its random numbers or an error.
    """
    if isinstance(dataset, Subset):
        return _reads_many(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


def described(dataset: Any, position: Any) -> str | None:
    """Return where a sample comes from, if the dataset has a method `describe(position)` that tells."""
    try:
        while isinstance(dataset, Subset):
            dataset, position = dataset.dataset, dataset.indices[position]
        describe = getattr(dataset, "describe", None)
        return str(describe(position)) if callable(describe) else None
    except Exception as error:  # telling about an error must not hide it
        return f"describe() raised {type(error).__name__}"


def positions_of(recipe: Recipe) -> list[Any]:
    """Return what a recipe reads, as Python's own numbers, or whatever else a sampler uses."""
    positions: Any = recipe.positions
    return positions if isinstance(positions, list) else positions.tolist()


def listed(recipe: Recipe, most: int = 8) -> str:
    """Return what is in a recipe, in words, with so many positions at the most."""
    positions = positions_of(recipe)
    shown = ", ".join(map(str, positions[:most]))
    more = ", ..." if len(positions) > most else ""
    return f"positions {shown}{more}, step {recipe.step}, epoch {recipe.epoch}"


def _noted(error: Exception, where: str) -> Exception:
    error.add_note(f"raised {where}")
    return error
