"""A stream is the same whoever reads it: resumed by other workers, or gone on with by a new one when one has died."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data._utils.worker as torch_worker
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

import stoker
from stoker.batch.collation import Collation
from stoker.batch.ledger import Policy
from stoker.batch.result import BatchResult, EndOfStream
from stoker.errors import StateError
from stoker.foundation.global_generators import BorrowedGenerators
from stoker.loader.state.stream_progress import StreamProgress
from stoker.loader.stream import Sharing, StreamBuilders, StreamSetting, Turn, turn_worker
from stoker.plan import Tail


class Stream(IterableDataset[Any]):
    """Numbers, each with random numbers of every kind. Parts have uneven lengths, and so has what workers see that
    it `looks` at.
    """

    def __init__(self, length: int, *, looks: bool = False) -> None:
        self.numbers, self.looks = list(range(length)), looks

    def mine(self) -> list[int]:
        info = get_worker_info() if self.looks else None
        return (
            self.numbers if info is None else [10_000 * info.id + number for number in self.numbers[: -info.id or None]]
        )

    def __iter__(self) -> Iterator[Any]:
        return map(self.sample, iter(self.mine()))

    def sample(self, number: int) -> Any:
        return number, random.random(), float(stoker.rng().random())

    def split(self, index: int, count: int) -> Stream:
        part = copy.deepcopy(self)
        part.numbers = [number for number in self.numbers if number * number % count == index]
        return part


class Buffered(Stream):
    """A generator that shuffles through a buffer with the process-wide generator."""

    def __iter__(self) -> Iterator[Any]:
        held: list[int] = []
        for number in self.mine():
            held.append(number)
            if len(held) > 5:
                yield self.sample(held.pop(random.randrange(len(held))))
        random.shuffle(held)
        yield from map(self.sample, held)


class ShuffledAtFirst(Stream):
    """Draws its order when it is opened."""

    def __iter__(self) -> Iterator[Any]:
        order = self.mine().copy()
        random.shuffle(order)
        return map(self.sample, order)


class Remembers(Stream):
    """Tells where it is, and what it gives depends on how often it was read to its end."""

    at = num_epochs = 0

    def __iter__(self) -> Iterator[Any]:
        mine = self.mine()
        while self.at < len(mine):
            self.at += 1
            yield *self.sample(mine[self.at - 1]), self.num_epochs
        self.at, self.num_epochs = 0, self.num_epochs + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "num_epochs": self.num_epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.num_epochs = state["at"], state["num_epochs"]


class IteratorRemembers(Stream):
    """Its iterators tell where they are."""

    def __iter__(self) -> Iterator[Any]:
        return _Remembering(self)


class _Remembering:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.numbers, self.at = stream, stream.mine(), 0

    def __iter__(self) -> _Remembering:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.stream.sample(self.numbers[self.at - 1])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def collated(samples: list[Any]) -> Any:
    return samples, random.random()


class Workers:
    """A loader's stream with its workers, all in this process and run step by step."""

    def __init__(
        self,
        dataset: Stream,
        *,
        sharing: Sharing = "whole",
        num_workers: int = 1,
        batch_size: int = 3,
        tail: Tail = "keep",
        stays: bool = False,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if sharing == "split" and num_workers * num_ranks == 1:
            sharing = "whole"  # as the loader has it
        is_own = sharing == "own"
        self.setting = StreamSetting(sharing, batch_size, rank, num_ranks, num_workers, tail, not is_own, stays)
        self.dataset, self.num_workers = dataset, num_workers
        self.makers = [self.new_maker() for _ in range(num_workers)]
        self.progress = self.new_progress(0)
        self.iteration = 0
        self.turns: Iterator[Turn] = iter(())

    def new_maker(self) -> StreamBuilders:
        collation = Collation(collated, is_batched=True)
        borrowed = BorrowedGenerators(is_repeatable=False)
        return StreamBuilders(
            copy.deepcopy(self.dataset), collation, self.setting, seed=7, policy=Policy(), borrowed=borrowed
        )

    def new_progress(self, epoch: int) -> StreamProgress:
        return StreamProgress(self.dataset, epoch, self.setting, is_here=False)

    def start(self) -> None:
        """Begin an iteration: the first one, or the next epoch."""
        if self.iteration and not self.setting.stays:
            self.makers = [self.new_maker() for _ in range(self.num_workers)]
        self.iteration += 1
        self.progress.iteration = self.iteration
        self.turns = self.progress.recipes()
        self.sent: list[Turn] = []
        self.results: dict[int, BatchResult | EndOfStream] = {}
        self.ended: set[int] = set()

    def load(self, state: Any) -> None:
        self.progress = self.new_progress(0).resumed(json.loads(json.dumps(state)))

    def waiting(self, worker: int) -> list[Turn]:
        turns = [turn for turn in self.sent if turn_worker(turn, self.num_workers) == worker]
        return [turn for turn in turns if turn.turn not in self.results]

    def serve(self, worker: int) -> None:
        """Let a worker make the first of the turns it was sent."""
        if not (turns := self.waiting(worker)):
            return
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker, num_workers=self.num_workers, seed=0, dataset=self.dataset
        )
        try:
            self.results[turns[0].turn] = copy.deepcopy(self.makers[worker].build(turns[0]))
        finally:
            torch_worker._worker_info = None

    def kill(self, worker: int) -> None:
        """Let a worker die and a new one take its place."""
        mine = [turn for turn in self.sent if turn_worker(turn, self.num_workers) == worker]
        received = [self.results[turn.turn] for turn in mine if turn.turn in self.results]
        again = {turn.turn: turn for turn in self.progress.restarted(self.waiting(worker), received)}
        self.sent = [again.get(turn.turn, turn) for turn in self.sent]
        self.makers[worker] = self.new_maker()

    def take(self) -> Any:
        """Return what is yielded next, if it is there, or False; None at the end of the epoch."""
        while self.sent and self.sent[0].turn in self.results:
            result = self.results.pop(self.sent.pop(0).turn)
            if isinstance(result, BatchResult):
                self.progress.advance(result)
                return result.recipe.ordinals.tolist(), result.batch
            self.ended.add(result.part)
            self.progress.end_of(result)
            if len(self.ended) == self.progress.num_parts:
                self.progress.finish()
                previous, self.progress = self.progress, self.new_progress(self.progress.epoch)
                self.progress.go_on_from(previous)
                return None
        return False

    def step(self) -> Any:
        """Return the next batch, or None at the end of the epoch."""
        while True:
            batch = self.take()
            if batch is not False:
                return batch
            if not self.sent:
                self.sent.append(next(self.turns))
            self.serve(turn_worker(self.sent[0], self.num_workers))

    def rest(self) -> list[Any]:
        """Return the batches to the end of the epoch."""
        return list(iter(self.step, None))

    def epoch(self) -> list[Any]:
        """Return the batches of a whole epoch."""
        self.start()
        return self.rest()

    def chaotic_epoch(self, chance: random.Random) -> list[Any]:
        """Return the batches of an epoch in which workers are slow, quick, and die."""
        self.start()
        batches: list[Any] = []
        while True:
            worker = chance.randrange(self.num_workers)
            what = chance.randrange(10)
            if what < 3 and len(self.sent) < 3 * self.num_workers:
                self.sent.append(next(self.turns))
            elif what < 7:
                self.serve(worker)
            elif what == 7:
                self.kill(worker)
            elif (batch := self.take()) is None:
                return batches
            elif batch:
                batches.append(batch)


KINDS = [Stream, Buffered, ShuffledAtFirst, Remembers, IteratorRemembers]
sharings = st.sampled_from(["whole", "split", "own"])
common: dict[str, Any] = {
    "kind": st.sampled_from(KINDS),
    "length": st.integers(0, 25),
    "batch_size": st.integers(1, 6),
    "tail": st.sampled_from(["keep", "drop", "pad"]),
}


@given(
    **common,
    sharing=sharings,
    num_workers=st.integers(1, 4),
    stays=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_workers_that_die_change_nothing(
    kind: Any, length: int, sharing: Any, num_workers: int, stays: bool, seed: int, **arguments: Any
) -> None:
    arguments |= {"sharing": sharing, "num_workers": num_workers, "stays": stays}
    whole = Workers(kind(length, looks=sharing == "own"), **arguments)
    dying = Workers(kind(length, looks=sharing == "own"), **arguments)
    chance = random.Random(seed)
    for _ in range(3):
        assert dying.chaotic_epoch(chance) == whole.epoch()
        assert dying.progress.state() == whole.progress.state()


runs = st.tuples(st.integers(1, 6), st.integers(1, 5))


@given(**common, sharing=st.sampled_from(["whole", "split"]), runs=st.lists(runs, min_size=1, max_size=3), last=runs)
def test_other_workers_go_on_where_a_state_was_taken(
    kind: Any, length: int, sharing: Any, runs: list[tuple[int, int]], last: tuple[int, int], **arguments: Any
) -> None:
    def workers(num_workers: int) -> Workers:
        return Workers(kind(length), sharing=sharing, num_workers=num_workers, **arguments)

    whole = workers(runs[0][0])
    epoch = whole.epoch()
    assume(epoch)  # where nothing was read, the parts are those of the workers there are
    seen: list[Any] = []
    state = None
    for num_workers, num_steps in [*runs, last]:
        run = workers(num_workers)
        if state is not None:
            run.load(state)
        run.start()
        seen += [run.step() for _ in range(min(num_steps, len(epoch) - len(seen)))]
        state = run.progress.state()
    seen += run.rest()
    assert seen == epoch
    assert run.progress.state()["digest"] == whole.progress.state()["digest"]
    fresh = workers(last[0])
    fresh.epoch()
    assert run.epoch() == fresh.epoch()


@given(**common, num_workers=st.integers(1, 4), stays=st.booleans())
@settings(max_examples=40)
def test_workers_that_share_a_stream_out_themselves_resume_at_any_step(
    kind: Any, length: int, **arguments: Any
) -> None:
    def workers() -> Workers:
        return Workers(kind(length, looks=True), sharing="own", **arguments)

    whole = workers()
    epochs = [whole.epoch(), whole.epoch()]
    run = workers()
    run.start()
    for stop in range(len(epochs[0]) + 1):
        again = workers()
        again.load(run.progress.state())
        again.start()
        assert epochs[0][:stop] + again.rest() == epochs[0]
        if arguments["stays"] or kind is not Remembers:
            assert again.epoch() == epochs[1]
        if stop < len(epochs[0]):
            run.step()


@given(**common, num_workers=st.integers(1, 8))
def test_a_stream_that_all_go_through_is_that_of_one_reader(
    kind: Any, length: int, num_workers: int, **arguments: Any
) -> None:
    one, many = Workers(kind(length), **arguments), Workers(kind(length), num_workers=num_workers, **arguments)
    assert [many.epoch(), many.epoch()] == [one.epoch(), one.epoch()]


@given(kind=st.sampled_from(KINDS), length=st.integers(0, 40), num_ranks=st.integers(1, 4), stop=st.integers(0, 6))
def test_ranks_share_out_a_stream_that_draws_from_the_process_wide_generators(
    kind: Any, length: int, num_ranks: int, stop: int
) -> None:
    """And go on, as one, where one rank alone has stopped."""
    whole = Workers(kind(length), batch_size=3 * num_ranks)
    epoch = whole.epoch()
    one = Workers(kind(length), batch_size=3 * num_ranks)
    one.start()
    served = [sample for _ in range(min(stop, len(epoch))) for sample in one.step()[1][0]]
    for rank in range(num_ranks):
        run = Workers(kind(length), rank=rank, num_ranks=num_ranks)
        run.load(one.progress.state())
        run.start()
        while (batch := run.step()) is not None:
            last = run.progress.last
            assert last is not None
            padding = [False] * len(batch[0]) if last.padding is None else last.padding
            served += [sample for sample, is_padding in zip(batch[1][0], padding) if not is_padding]
    assert sorted(served) == sorted(sample for _, (samples, _) in epoch for sample in samples)


@given(kind=st.sampled_from(KINDS), sharing=sharings, sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_turns_of_several_sizes_are_read_again_as_they_were(kind: Any, sharing: Any, sizes: list[int]) -> None:
    def workers(batch_size: int) -> Workers:
        return Workers(kind(70, looks=sharing == "own"), sharing=sharing, num_workers=2, batch_size=batch_size)

    run = workers(sizes[0])
    run.start()
    for size in sizes[1:]:
        run.step(), run.step(), run.step()
        state = run.progress.state()
        run = workers(size)
        run.load(state)
        run.start()
    run.step()
    again = workers(sizes[-1])
    again.load(run.progress.state())
    again.start()
    assert again.rest() == run.rest()


@pytest.mark.parametrize(("sharing", "other"), [("own", {"num_workers": 3}), ("split", {"num_ranks": 2})], ids=str)
def test_places_that_fit_nobody_are_refused(sharing: Any, other: dict[str, Any]) -> None:
    run = Workers(Stream(20, looks=True), sharing=sharing, num_workers=2)
    run.start()
    run.step()
    with pytest.raises(StateError, match=r"has a place of its own, which does not fit another setup \(num_"):
        Workers(Stream(20, looks=True), **{"sharing": sharing, "num_workers": 2, **other}).load(run.progress.state())
