"""Reading datasets that cannot be addressed: iterables.

A stream is cut into *turns*, each one global batch long, and turn k of an epoch belongs to *part* k % P. What a part is
depends on the `Sharing`:

- `whole`: everyone who reads goes through the whole stream and keeps what is theirs: worker w of W the turns w, w +
  W, ..., of each turn every R-th sample for one of R ranks. Each sample is delivered once, in the same order for any
  number of workers.
- `split`: the stream has a `split(index, count)` of its own and each reads only its own part. An epoch keeps the
  parts it began with; a worker reads as many of them as there are to each worker.
- `own`: as in torch, each worker reads a copy of the dataset, which is trusted to look at its worker's number.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from time import perf_counter
from types import GeneratorType
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np

from stoker.batch.builder import Builders, ReadTimes, batch_key
from stoker.batch.collation import Collation
from stoker.batch.ledger import Policy, Skipped
from stoker.batch.memory import BatchSlot
from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.processes.worker_info import act_as, has_looked
from stoker.errors import EarlyStop
from stoker.foundation import torch_private
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.foundation.randomness import SampleContext, entered, reading_in_epoch
from stoker.foundation.stages import watch
from stoker.loader.state.dataset_state import has_exact_state, load_own_state, state_between_epochs, with_state
from stoker.plan import Layout, Recipe, Tail, derived_key
from stoker.source.protocols import has_state, loads_state

T = TypeVar("T")

Sharing = Literal["whole", "split", "own"]

MAX_IN_A_ROW = 100
"""Errors of a stream, one after the other, that are skipped; it will not mend after so many."""


class Turn(NamedTuple):
    """The making of the next batch of a stream."""

    iteration: int
    """Which iteration of the loader: with another one the stream starts again."""
    epoch: int
    step: int
    turn: int
    """Turns since the beginning of the epoch, on this rank."""
    sharing: Sharing
    part: int
    """Whose turn it is: `turn % num_parts`."""
    num_parts: int
    """Parts of the stream on this rank, to the end of the epoch."""
    start: dict[str, Any] | None
    """Where the reader of the part begins, if this is the first turn it gets; None for the beginning of the stream."""


def turn_worker(turn: Turn, num_workers: int) -> int:
    """Return the worker that has to make `turn`: it holds the reader of that part."""
    return turn.part % num_workers


class StreamSetting(NamedTuple):
    """How a stream is shared and cut."""

    sharing: Sharing
    """How an epoch is shared; a resumed one continues as it began."""
    batch_size: int
    rank: int
    num_ranks: int
    num_workers: int
    """Readers on this rank; 1 for inline and threads."""
    tail: Tail
    hides_worker: bool
    """The dataset must not share itself out by `get_worker_info`, because it is done here."""
    stays: bool
    """Workers keep their copy of the dataset from epoch to epoch, so its state lives on in them."""
    layout: Layout = "interleaved"
    """Which samples of a turn are those of a rank, as in a `Plan`."""


class StreamBuilders(Builders[Turn]):
    """Creates builders for an iterable dataset. Holds the iterators, so it belongs to one process at a time."""

    def __init__(
        self,
        dataset: Any,
        collation: Collation,
        setting: StreamSetting,
        *,
        seed: int,
        policy: Policy,
        borrowed: BorrowedGenerators,
    ) -> None:
        self.dataset, self.collation, self.setting, self.seed, self.policy = dataset, collation, setting, seed, policy
        self.borrowed = borrowed
        self.iteration: int | None = None
        self.readers: dict[int, _Reader] = {}
        """The parts that are read here."""
        self.generators: WeakSet[Any] = WeakSet()
        """The iterators that are generators, as long as anyone holds them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "iteration": None, "readers": {}, "generators": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.generators = WeakSet()

    def key(self, turn: Turn) -> int:
        """Return the key of a turn."""
        return batch_key(self.seed, turn.epoch, turn.turn, self.setting.rank)

    def close(self, *, at_exit: bool = False) -> None:
        """Let go of the iterators: what waits for their end (`finally`, `with`) runs now.

        In a process that is about to end, generators are closed although others hold them.
        """
        if at_exit:
            for generator in list(self.generators):
                _close(generator)
        self.readers.clear()
        self.iteration = None

    def builder(self, turn: Turn, slot: BatchSlot | None = None, hint: Any = None) -> StreamBatchBuilder:  # noqa: ARG002
        """Draw the samples of the next batch, and return its builder. Only `finish` is left to do, by any thread."""
        if slot is not None:
            slot.clear()
        if self.iteration != turn.iteration:
            self.readers.clear()
            self.iteration = turn.iteration
        if turn.part not in self.readers:
            act_as(turn_worker(turn, self.setting.num_workers))
            self.readers[turn.part] = _Reader(self, turn)
        began, before = perf_counter(), watch.seconds
        try:
            drawn = self.readers[turn.part].draw(turn)
        except StopIteration as error:  # not from the iterator, whose end is no error
            raise EarlyStop("the iterable dataset") from error
        if drawn is None:
            # every epoch splits again
            lives_on = self.setting.stays and turn.sharing != "split"
            return StreamBatchBuilder(EndOfStream(turn.part, state_between_epochs(self.dataset) if lives_on else None))
        recipe, samples, skipped, where = drawn
        # a copy: with threads, the next turn is drawn before this one is done
        transform = watch.seconds - before
        times = began, perf_counter() - began - transform, transform
        drawn_batch = _Drawn(recipe, samples, skipped, copy.deepcopy(where), times)
        return StreamBatchBuilder(drawn_batch, self.collation, slot)


class _Drawn(NamedTuple):
    """The samples of a batch."""

    recipe: Recipe
    samples: list[Any]
    skipped: list[Skipped]
    stream: dict[str, Any]
    times: ReadTimes


class StreamBatchBuilder:
    """Builds a batch whose samples are drawn already, or returns the end of a part."""

    size = 0

    def __init__(
        self, drawn: _Drawn | EndOfStream, collation: Collation | None = None, slot: BatchSlot | None = None
    ) -> None:
        self._drawn, self._collation, self._slot = drawn, collation, slot

    def do(self, start: int, stop: int) -> None:
        """Do nothing: there are no parts."""

    def finish(self) -> BatchResult | EndOfStream:
        """Return the batch, or the end."""
        drawn = self._drawn
        if isinstance(drawn, EndOfStream):
            return drawn
        assert self._collation is not None
        collating = perf_counter()
        batch = self._collation.collate(drawn.recipe, drawn.samples, self._slot)
        ended = perf_counter()
        began, read, transform = drawn.times
        times = began, ended, read, transform, ended - collating
        return BatchResult(drawn.recipe, batch, drawn.skipped, drawn.stream, times)


class _Reader:
    """One pass over a stream, or over a part of it.

    Turn after turn is read with the random numbers of that turn, be it to deliver it or to pass it by, because another
    worker delivers it or because it was delivered before. So a reader comes to the same samples from wherever it
    begins.
    """

    def __init__(self, builders: StreamBuilders, turn: Turn) -> None:
        setting = builders.setting
        self.dataset, self.policy, self.hides_worker = builders.dataset, builders.policy, setting.hides_worker
        self.rank, self.epoch, self.batch_size, self.tail = setting.rank, turn.epoch, setting.batch_size, setting.tail
        self.sharing, self.part, self.num_parts = turn.sharing, turn.part, turn.num_parts
        self.layout = setting.layout
        self.key_seed, self.generators = builders.seed, builders.generators
        if turn.sharing == "whole":
            # All ranks read the same, so they must draw the same numbers meanwhile.
            self.seed, self.num_ranks, self.key_rank = builders.seed, setting.num_ranks, 0
            self.first_turn, self.stride = 0, 1
        else:
            share = setting.rank * turn.num_parts + turn.part
            self.seed = derived_key(builders.seed, share)  # each part counts its samples from 0
            self.num_ranks, self.key_rank = 1, setting.rank
            self.first_turn, self.stride = turn.part, turn.num_parts
            self.split = share, setting.num_ranks * turn.num_parts
        self.turn_size = self.batch_size * self.num_ranks
        self.begin = turn.start or {}
        self.num_before = self.begin.get("steps", 0)
        """Turns that were delivered before."""
        self.cuts = _cuts(self.begin)
        """From which of its turns on they have how many samples: a resume may change it."""
        if not self.cuts or self.cuts[-1][1] != self.turn_size:
            self.cuts.append([self.num_before, self.turn_size])
        # A stream that can tell where it is is asked; when several go through it, each is elsewhere, and only the
        # count is common.
        self.is_alone = turn.sharing != "whole" or (turn.num_parts == 1 and setting.num_ranks == 1)
        self.is_asked = self.is_alone and has_exact_state(self.dataset)
        self.steps = self.index = 0
        self.is_ended = False
        self.iterator: Any = None
        self.teller: Any = None
        self._borrowed = BorrowedGenerators(is_repeatable=False)  # inside the builders', and given back before that one

    def _open(self) -> None:
        """Start reading. If that fails, the next turn tries again."""
        dataset, begin = self.dataset, self.begin
        if self.sharing == "split":
            dataset = dataset.split(*self.split)
        state = begin.get("state") if self.is_asked else None
        loaded = begin.get("begin_state") if state is None else state
        if loaded is not None:
            dataset = with_state(dataset, loaded)
        with reading_in_epoch(self.epoch):
            iterator = iter(dataset)
        if state is not None:
            if loads_state(iterator):
                load_own_state(iterator, state)
            self.steps, self.index, self.is_ended = self.num_before, begin["samples"], bool(begin.get("is_ended"))
        if self.is_asked:
            self.teller = next((it for it in (iterator, dataset) if has_state(it)), None)
        if isinstance(iterator, GeneratorType):
            self.generators.add(iterator)
        self.iterator = iterator

    def draw(self, turn: Turn) -> tuple[Recipe, list[Any], list[Skipped], dict[str, Any]] | None:
        """Return the next batch of this part, or None at the end."""
        skipped: list[Skipped] = []
        with self._hidden():
            if self.iterator is None:
                self._keyed(self.first_turn - self.stride, turn, self._open)
            while not self.is_ended and not self._is_to_deliver():
                self._read_turn([], turn)
            first = self.index
            whole = [] if self.is_ended else self._read_turn(skipped, turn)
        share = self._share(len(whole))
        samples = whole[share]
        is_short = len(whole) < self.turn_size
        if not whole or (is_short and self.tail == "drop"):
            self.is_ended = True
            return None
        ordinals = np.arange(first, first + len(whole), dtype=np.int64)[share]
        padding = None
        if is_short and len(samples) < (self.batch_size if self.tail == "pad" else 1):
            # the same number of steps on every rank: repeat from this turn what is missing, and mark it
            missing = (self.batch_size if self.tail == "pad" else 1) - len(samples)
            padding = np.arange(len(samples) + missing) >= len(samples)
            samples = samples + list(islice(_around(whole), missing))
            ordinals = np.concatenate([ordinals, np.arange(missing, dtype=np.int64) % len(whole) + first])
        recipe = Recipe(turn.step, turn.epoch, self.rank, ordinals, ordinals, padding, 0)
        where: dict[str, Any] = {
            "part": self.part,
            "turn": self.steps if self.sharing == "whole" else turn.turn + 1,
            "steps": self.steps,
            "samples": self.index,
            "cuts": self.cuts,
            "is_ended": self.is_ended,
        }
        if self.sharing == "own":
            where["has_looked"] = has_looked()
        if self.teller is not None:
            where["state"] = self.teller.state_dict()
        return recipe, samples, skipped, where

    def _share(self, num_samples: int) -> slice:
        """Return which samples of a turn are those of this rank."""
        if self.num_ranks == 1:
            return slice(None)
        size = self.turn_size if self.tail == "pad" else num_samples
        if self.layout == "blocks" and size >= self.num_ranks:
            return slice(self.rank * size // self.num_ranks, (self.rank + 1) * size // self.num_ranks)
        return slice(self.rank, None, self.num_ranks)

    def _is_to_deliver(self) -> bool:
        is_ours = self.sharing != "whole" or self.steps % self.num_parts == self.part
        return is_ours and self.steps >= self.num_before

    def _read_turn(self, skipped: list[Skipped], turn: Turn) -> list[Any]:
        """Return the samples of the next turn of this reader, which is not always `turn`."""
        number = self.first_turn + self.steps * self.stride
        num_samples = next(size for since, size in reversed(self.cuts) if since <= self.steps)
        self.steps += 1  # one that fails is over, too
        return self._keyed(number, turn, lambda: self._read(num_samples, skipped, turn))

    def _keyed(self, number: int, turn: Turn, do: Callable[[], T]) -> T:
        """Return do(), with the random numbers of turn `number`, while `turn` is made."""
        if number == turn.turn and self.rank == self.key_rank:
            return do()
        return self._borrowed.run(lambda _: do(), None, batch_key(self.key_seed, self.epoch, number, self.key_rank))

    def _read(self, count: int, skipped: list[Skipped], turn: Turn) -> list[Any]:
        """Return the next `count` samples, fewer at the end of the stream."""
        samples: list[Any] = []
        in_a_row = 0
        previous = entered(None)
        try:
            while len(samples) < count:
                wanted = count - len(samples)
                # `repeat` knows how much of it is left, so that `rng()` knows which sample is being read
                walk = repeat(self.iterator, wanted)
                entered(SampleContext(self.seed, turn.epoch, range(self.index, self.index + wanted), walk))
                before = len(samples)
                try:
                    samples.extend(map(next, walk))
                    self.index += len(samples) - before
                    if len(samples) < count:
                        self.is_ended = True
                    break
                except Exception as error:
                    self.index += len(samples) - before
                    in_a_row = in_a_row + 1 if len(samples) == before else 1
                    error.add_note(
                        f"raised by the stream after {self.index} samples, step {turn.step}, epoch {turn.epoch}"
                    )
                    if self.policy.action == "raise" or in_a_row > MAX_IN_A_ROW:
                        raise
                    if isinstance(self.iterator, GeneratorType):
                        error.add_note(
                            "on_error='skip' cannot help: a generator ends with its first error; write a __next__"
                        )
                        raise
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    skipped.append(Skipped(turn.epoch, turn.step, self.index, reason))
        finally:
            entered(previous)
        return samples

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Let the dataset believe that it is alone, where it is shared out here: sharing twice would lose samples."""
        if not self.hides_worker:
            yield
            return
        info = torch_private.worker_info()
        torch_private.set_worker_info(None)
        try:
            yield
        finally:
            torch_private.set_worker_info(info)


def _cuts(begin: dict[str, Any]) -> list[list[int]]:
    if "cuts" in begin or not begin.get("steps"):
        return [list(cut) for cut in begin.get("cuts", ())]
    num_samples, more = divmod(begin["samples"], begin["steps"])  # an older state: as even as can be
    return [[0, num_samples + 1], [more, num_samples]] if more else [[0, num_samples]]


def _close(generator: Any) -> None:
    """Close a generator, unless a thread is still in it. An error has no receiver any more: it is printed."""
    if generator.gi_running:
        return
    try:
        generator.close()
    except Exception as error:
        error.add_note("raised while the stream was closed at the end of a worker process; ignored")
        traceback.print_exc()


def _around(samples: list[Any]) -> Iterator[Any]:
    while True:
        yield from samples
