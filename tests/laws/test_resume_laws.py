"""Resume at any step, from any set-up to any other, gives the stream that was not interrupted."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stoker
from stoker.plan import added
from tests.loader.datasets import Augmented, KeyedOnly, Numbers, listed, plain

orders = st.sampled_from(["sequential", "shuffle", "window", stoker.Window(size=24, block=4)])
threads = st.sampled_from([0, 0, 1, 3])


class Ranks:
    """A whole run: a loader for each rank, stepped together."""

    def __init__(self, length: int, num_ranks: int, share: int, num_threads: int, **arguments: Any) -> None:
        self.loaders = [
            stoker.DataLoader(
                KeyedOnly(length),
                batch_size=share,
                rank=rank,
                num_ranks=num_ranks,
                num_threads=num_threads,
                **arguments,
            )
            for rank in range(num_ranks)
        ]
        self.iterators: list[Any] = []

    def start(self) -> None:
        self.iterators = [iter(loader) for loader in self.loaders]

    def step(self) -> list[tuple[int, float]] | None:
        """Return the global batch in the order of the stream, or None at the end; all ranks agree which."""
        batches: list[Any] = [next(iterator, None) for iterator in self.iterators]
        assert len({batch is None for batch in batches}) == 1, "ranks are out of step"
        if batches[0] is None:
            return None
        pairs = []
        for iterator, batch in zip(self.iterators, batches):
            recipe = iterator.recipe
            rows = zip(recipe.ordinals.tolist(), *(column.tolist() for column in batch))
            padding = recipe.padding
            pairs += [row for index, row in enumerate(rows) if padding is None or not padding[index]]
        return [(position, number) for _, position, number in sorted(pairs)]

    def rest(self) -> list[tuple[int, float]]:
        stream: list[tuple[int, float]] = []
        while (batch := self.step()) is not None:
            stream += batch
        return stream

    def states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = json.loads(json.dumps([loader.state_dict() for loader in self.loaders]))
        return states

    def close(self) -> None:
        for iterator in self.iterators:
            iterator.close()


@given(
    length=st.integers(1, 120),
    order=orders,
    seed=st.integers(0, 2**32),
    tail=st.sampled_from(["keep", "pad"]),
    before=st.tuples(st.integers(1, 4), st.integers(1, 9), threads),
    after=st.tuples(st.integers(1, 4), st.integers(1, 9), threads),
    data=st.data(),
)
@settings(max_examples=150)
def test_elastic_resume_gives_the_same_global_stream(
    length: int, order: Any, seed: int, tail: Any, before: Any, after: Any, data: st.DataObject
) -> None:
    arguments = {"order": order, "seed": seed, "tail": tail}
    whole = Ranks(length, 1, 5, 0, **arguments)
    epochs = []
    for _ in range(3):
        whole.start()
        epochs.append(whole.rest())

    run = Ranks(length, *before, **arguments)
    run.start()
    num_steps = data.draw(st.integers(0, len(run.loaders[0])))
    stream: list[tuple[int, float]] = []
    for _ in range(num_steps):
        stream += run.step() or []
    states = run.states()
    run.close()

    again = Ranks(length, *after, **arguments)
    for rank, loader in enumerate(again.loaders):
        loader.load_state_dict(states[min(rank, len(states) - 1)])
    assert again.states()[0]["position"] == states[0]["position"]
    again.start()
    stream += again.rest()
    assert stream == epochs[0]
    for epoch in epochs[1:]:
        again.start()
        assert again.rest() == epoch


@given(
    length=st.integers(1, 100),
    batch_size=st.integers(1, 16),
    order=orders,
    num_threads=threads,
    drop_last=st.booleans(),
    stops=st.lists(st.integers(1, 6), max_size=4),
)
def test_the_digest_of_an_interrupted_run_is_that_of_a_whole_one(
    length: int, batch_size: int, order: Any, num_threads: int, drop_last: bool, stops: list[int]
) -> None:
    assume(length >= batch_size)  # a loader of no batch is warned of

    def loader() -> stoker.DataLoader[Any]:
        return stoker.DataLoader(
            Numbers(length), batch_size, order=order, seed=9, num_threads=num_threads, drop_last=drop_last
        )

    whole = loader()
    batches = listed(whole) + listed(whole)

    seen: list[Any] = []
    part = loader()
    iterator = iter(part)
    for stop in [*stops, len(batches)]:
        while stop and len(seen) < len(batches):
            batch = next(iterator, None)
            if batch is None:
                iterator = iter(part)
                continue
            seen.append(plain(batch))
            stop -= 1
        state = json.loads(json.dumps(part.state_dict()))
        iterator.close()
        part = loader()
        part.load_state_dict(state)
        assert part.state_dict() == state
        iterator = iter(part)
    assert seen == batches
    assert part.state_dict()["digest"] == whole.state_dict()["digest"]


@given(
    length=st.integers(1, 100),
    num_ranks=st.integers(1, 5),
    share=st.integers(1, 8),
    order=orders,
    tail=st.sampled_from(["keep", "pad"]),
)
def test_the_digests_of_all_ranks_add_up_to_that_of_one(
    length: int, num_ranks: int, share: int, order: Any, tail: Any
) -> None:
    one = stoker.DataLoader(Numbers(length), 3, order=order, seed=2, tail=tail)
    list(one)
    total = 0
    for rank in range(num_ranks):
        loader = stoker.DataLoader(
            Numbers(length), share, order=order, seed=2, tail=tail, rank=rank, num_ranks=num_ranks
        )
        list(loader)
        total = added(total, int(loader.state_dict()["digest"], 16))
    assert f"{total:016x}" == one.state_dict()["digest"]


@given(
    length=st.integers(20, 80),
    batch_size=st.integers(1, 7),
    skip=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)).map(lambda pair: (pair[0], sum(pair))), max_size=3),
    steps=st.integers(0, 10),
    num_threads=threads,
)
def test_skipped_steps_survive_resume(
    length: int, batch_size: int, skip: list[tuple[int, int]], steps: int, num_threads: int
) -> None:
    arguments: dict[str, Any] = {"order": "shuffle", "seed": 4}
    whole = stoker.DataLoader(Numbers(length), batch_size, skip=skip, **arguments)
    epochs = [listed(whole), listed(whole)]
    assert len(epochs[0]) == whole.plan.num_steps(0)  # type: ignore[union-attr]
    part = stoker.DataLoader(Numbers(length), batch_size, skip=skip, num_threads=num_threads, **arguments)
    iterator = iter(part)
    seen = [plain(batch) for _, batch in zip(range(steps), iterator)]
    state = json.loads(json.dumps(part.state_dict()))
    iterator.close()
    # with or without being told again, the ranges are skipped once
    for shown in ([], skip):
        again = stoker.DataLoader(Numbers(length), batch_size, skip=shown, **arguments)
        again.load_state_dict(state)
        assert seen + listed(again) == epochs[0] or len(seen) == len(epochs[0])
        assert listed(again) == epochs[1] or len(seen) == len(epochs[0])


def test_every_engine_gives_the_same_stream_and_can_resume_any_other() -> None:
    engines: list[dict[str, Any]] = [
        {},
        {"num_workers": 1},
        {"num_workers": 2},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "persistent_workers": True},
    ]
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 11}
    reference = stoker.DataLoader(Augmented(60), **arguments)
    epochs = [listed(reference), listed(reference)]
    for number, engine in enumerate(engines):
        loader = stoker.DataLoader(Augmented(60), **arguments, **engine)
        assert [listed(loader), listed(loader)] == epochs, engine
        iterator = iter(stopped := stoker.DataLoader(Augmented(60), **arguments, **engine))
        seen = [plain(next(iterator)) for _ in range(3)]
        state = stopped.state_dict()
        iterator.close()
        del iterator
        resumed = stoker.DataLoader(Augmented(60), **arguments, **engines[(number + 1) % len(engines)])
        resumed.load_state_dict(state)
        assert seen + listed(resumed) == epochs[0]
        assert listed(resumed) == epochs[1]


def test_numbers_keyed_by_the_sample_are_the_same_in_threads_too() -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 11}
    inline = listed(stoker.DataLoader(KeyedOnly(60), **arguments))
    for num_threads in (1, 2, 5):
        assert listed(stoker.DataLoader(KeyedOnly(60), **arguments, num_threads=num_threads)) == inline
    assert listed(stoker.DataLoader(KeyedOnly(60), **arguments, num_workers=2)) == inline
    by_position = dict(row for batch in inline for row in zip(*batch))
    other_batches = listed(stoker.DataLoader(KeyedOnly(60), batch_size=5, order="window", seed=11))
    assert dict(row for batch in other_batches for row in zip(*batch)) == by_position
