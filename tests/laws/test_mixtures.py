"""Packed, mixed, shuffled and scheduled: the stream is the same from whatever set-up to whatever other."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker

# batch sizes are tried in these that are not the schedule's
pytestmark = pytest.mark.filterwarnings("ignore:the mixture's schedule counts")

Row = tuple[int, ...]

LENGTH = 24


@lru_cache
def packed(name: str) -> stoker.Packed:
    """Rows of documents that no other source has, each of its own tokens."""
    first, number = {"web": (1000, 60), "code": (2000, 23), "math": (3000, 9)}[name]
    return stoker.pack([np.full(2 + at % 17, first + at) for at in range(number)], length=LENGTH, seed=5)


def mixture(kind: str, seed: int, **options: Any) -> stoker.Mixture:
    web, code = packed("web"), packed("code")
    if kind == "scheduled":
        schedule: dict[int, Any] = {0: {"web": 0.9, "code": 0.1}, 3: {"web": 0.5, "code": 0.5}, 9: {"code": 1}}
        return stoker.mix({"web": web, "code": code}, schedule=schedule, batch_size=7, seed=seed, stop=90, **options)
    if kind == "limited":
        return stoker.mix({"web": (web, 1), "code": (code, 1)}, limits={"code": 2}, seed=seed, stop=70, **options)
    if kind == "by tokens":
        return stoker.mix({"web": (web, 2), "code": (code, 1)}, by="tokens", seed=seed, stop="all_exhausted", **options)
    assert kind == "joined"
    sources = {"code": (code, 0.5), "math": (packed("math"), 0.2), "web": (web, 0.3)}
    return stoker.mix(sources, seed=seed, stop="all_exhausted", changes=True, **options)


class Run:
    """A loader for each rank, stepped together."""

    def __init__(self, mixed: stoker.Mixture, num_ranks: int, share: int, **engine: Any) -> None:
        self.loaders = [
            stoker.DataLoader(mixed, batch_size=share, rank=rank, num_ranks=num_ranks, **engine)
            for rank in range(num_ranks)
        ]
        self.iterators: list[Any] = []

    def start(self) -> None:
        self.iterators = [iter(loader) for loader in self.loaders]

    def step(self) -> list[Row] | None:
        """Return the rows of all ranks in the order of the stream; None at the end."""
        batches: list[Any] = [next(iterator, None) for iterator in self.iterators]
        assert len({batch is None for batch in batches}) == 1
        if batches[0] is None:
            return None
        rows = []
        for iterator, batch in zip(self.iterators, batches):
            recipe = iterator.recipe
            assert batch["positions"].shape == batch["tokens"].shape
            for at, (ordinal, tokens) in enumerate(zip(recipe.ordinals.tolist(), batch["tokens"].tolist())):
                if recipe.padding is None or not recipe.padding[at]:
                    rows.append((ordinal, tuple(tokens)))
        return [row for _, row in sorted(rows)]

    def rest(self) -> list[Row]:
        stream: list[Row] = []
        while (rows := self.step()) is not None:
            stream += rows
        return stream

    def states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = json.loads(json.dumps([loader.state_dict() for loader in self.loaders]))
        return states

    def resume(self, states: list[dict[str, Any]]) -> None:
        for rank, loader in enumerate(self.loaders):
            loader.load_state_dict(states[min(rank, len(states) - 1)])

    def close(self) -> None:
        for iterator in self.iterators:
            iterator.close()
        self.iterators = []


def expected(mixed: stoker.Mixture, epoch: int) -> list[Row]:
    view = mixed.in_epoch(epoch)
    return [tuple(view[at]["tokens"].tolist()) for at in range(len(view))]


set_ups = st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from([0, 0, 2]))


@given(
    kind=st.sampled_from(["scheduled", "limited", "by tokens"]),
    seed=st.integers(0, 5),
    before=set_ups,
    after=set_ups,
    tail=st.sampled_from(["keep", "pad"]),
    steps=st.integers(0, 12),
)
@settings(max_examples=60)
def test_elastic_resume_gives_the_same_rows_in_the_same_order(
    kind: str, seed: int, before: Any, after: Any, tail: Any, steps: int
) -> None:
    mixed = mixture(kind, seed)
    run = Run(mixed, before[0], before[1], num_threads=before[2], tail=tail)
    run.start()
    stream: list[Row] = []
    for _ in range(min(steps, len(run.loaders[0]))):
        stream += run.step() or []
        counts = run.loaders[0].counts
        assert sum(counts.values()) == len(stream)
        assert counts == mixed.counts(len(stream))
        of_code = sum(any(2000 <= token < 3000 for token in row) for row in stream)
        assert counts["code"] == of_code
        assert all(loader.counts == counts for loader in run.loaders)
    states = run.states()
    run.close()
    again = Run(mixture(kind, seed), after[0], after[1], num_threads=after[2], tail=tail)
    again.resume(states)
    again.start()
    stream += again.rest()
    assert stream == expected(mixed, 0)
    again.start()
    assert again.rest() == expected(mixed, 1)
    again.close()


def test_every_engine_and_number_of_ranks_can_resume_any_other() -> None:
    engines: list[tuple[int, int, dict[str, Any]]] = [
        (1, 7, {}),
        (2, 3, {"num_workers": 2}),
        (1, 5, {"num_workers": 2, "multiprocessing_context": "spawn"}),
        (2, 4, {"num_threads": 2}),
        (1, 9, {"num_workers": 1, "persistent_workers": True}),
        (1, 6, {"num_workers": 1, "num_threads": 2}),
    ]
    mixed = mixture("scheduled", 1)
    epochs = [expected(mixed, epoch) for epoch in range(2)]
    for at, (num_ranks, share, engine) in enumerate(engines):
        run = Run(mixed, num_ranks, share, **engine)
        run.start()
        stream: list[Row] = []
        for _ in range(4):
            stream += run.step() or []
        states = run.states()
        run.close()
        num_ranks, share, engine = engines[(at + 1) % len(engines)]
        again = Run(mixture("scheduled", 1), num_ranks, share, **engine)
        again.resume(states)
        again.start()
        assert stream + again.rest() == epochs[0], engine
        again.start()
        assert again.rest() == epochs[1], engine
        again.close()


@given(
    kind=st.sampled_from(["scheduled", "limited", "by tokens"]),
    seed=st.integers(0, 3),
    before=set_ups,
    after=set_ups,
    later=set_ups,
    steps=st.tuples(st.integers(0, 30), st.integers(0, 12)),
)
@settings(max_examples=60)
def test_a_source_that_joins_a_resumed_run_loses_and_repeats_nothing(
    kind: str, seed: int, before: Any, after: Any, later: Any, steps: tuple[int, int]
) -> None:
    """The first run may be in any epoch; a second one joins a source and changes the weights; a third goes on."""
    first = Run(mixture(kind, seed), before[0], before[1], num_threads=before[2])
    first.start()
    stream: list[Row] = []
    for _ in range(steps[0]):
        rows = first.step()
        if rows is None:
            first.start()
            rows = first.step()
        stream += rows or []
    joined_at = len(stream)
    states = first.states()
    first.close()

    second = Run(mixture("joined", seed), after[0], after[1], num_threads=after[2])
    second.resume(states)
    assert second.loaders[0].counts == {**states[0]["mixture"][0]["counts"], "math": 0}
    second.start()
    for _ in range(steps[1]):
        stream += second.step() or []
    states = second.states()
    second.close()

    third = Run(mixture("joined", seed), later[0], later[1], num_threads=later[2])
    third.resume(states)
    third.start()
    stream += third.rest()
    third.start()
    stream += third.rest()
    counts = third.loaders[0].counts
    third.close()

    assert sum(counts.values()) == len(stream)
    for name, kept in (("web", 1000), ("code", 2000), ("math", 3000)):
        own = [row for row in stream if any(kept <= token < kept + 1000 for token in row)]
        assert len(own) == counts[name]
        source = packed(name)
        for epoch, start in enumerate(range(0, len(own), len(source))):
            once = Counter(own[start : start + len(source)])
            view = source.in_epoch(epoch)
            whole = Counter(tuple(view[at]["tokens"].tolist()) for at in range(len(view)))
            assert once <= whole  # nothing twice in an epoch of the source, so nothing is lost when it is full
    since = stream[joined_at:]
    num_math = 0
    for number, row in enumerate(since):
        assert abs(num_math - number * Fraction(1, 5)) < 1
        num_math += any(token >= 3000 for token in row)


@given(kind=st.sampled_from(["scheduled", "limited", "by tokens"]), seed=st.integers(0, 3), set_up=set_ups)
@settings(max_examples=30)
def test_what_is_found_is_there(kind: str, seed: int, set_up: Any) -> None:
    num_ranks, share, _ = set_up
    mixed = mixture(kind, seed)
    run = Run(mixed, num_ranks, share)
    loader = run.loaders[0]
    batches: dict[tuple[int, int], Any] = {}
    for rank, each in enumerate(run.loaders):
        for batch in each:
            recipe = each.recipe
            assert recipe is not None
            batches[recipe.step, rank] = batch
    found = 0
    for name, first in (("web", 1000), ("code", 2000)):
        for document in range(0, packed(name).num_documents, 5):
            for epoch in range(2):
                for place in loader.find(document, epoch, source=name):
                    if place.epoch:
                        continue
                    tokens = batches[place.step, place.rank]["tokens"][place.row].tolist()
                    assert place.columns is not None
                    assert {tokens[column] for column in place.columns} == {first + document}
                    found += 1
    assert found


@pytest.mark.parametrize("kind", ["scheduled", "limited", "by tokens"])
def test_counts_and_labels_in_batches_are_exact(kind: str) -> None:
    mixed = mixture(kind, 2, label="source")
    for num_workers in (0, 2):
        loader = stoker.DataLoader(mixed, batch_size=8, num_workers=num_workers)
        seen: Counter[int] = Counter()
        for batch in loader:
            for tokens, source, counts in zip(
                batch["tokens"].tolist(), batch["source"].tolist(), batch["source_counts"].tolist()
            ):
                assert source == (0 if tokens[0] < 2000 else 1)
                seen[source] += 1
                assert counts == [seen[0], seen[1]]
        assert loader.counts == {"web": seen[0], "code": seen[1]}
