"""Whatever is changed about who makes the batches, and when: the same batches, in the same order, each once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler

import stoker
from stoker.engine.inline import Inline
from stoker.engine.threads import Threads
from stoker.foundation import machine
from stoker.loader.tuned_engine import TunedEngine
from stoker.tuning.parallelism import Parallelism
from tests.faults.test_process_faults import begun, kill
from tests.loader.datasets import Augmented, KeyedMany, KeyedOnly, KeyedWhole, Numbers, listed, plain

BIG = 6000
"""Numbers of 4 bytes: what lies in a slot and not in a message."""


class Large(KeyedOnly):
    """Samples that lie in slots."""

    def __getitem__(self, position: int) -> Any:
        return *super().__getitem__(position), torch.full((BIG,), float(position))


class Shared(Augmented):
    """Draws from generators that threads share: the same batch wherever it is made by one thread."""

    def __getitem__(self, position: int) -> Any:
        return super().__getitem__(position) | {"large": torch.full((BIG,), float(position))}


INLINE = [Parallelism(0, 0, 2)]
PROCESSES = [
    Parallelism(1, 0, 1),
    Parallelism(1, 0, 3),
    Parallelism(2, 0, 2),
    Parallelism(3, 0, 1),
    Parallelism(4, 0, 2),
]
THREADS = [Parallelism(1, 2, 1), Parallelism(1, 3, 2), Parallelism(2, 2, 2), Parallelism(1, 4, 3), Parallelism(3, 2, 1)]
HERE = [Parallelism(0, 1, 1), Parallelism(0, 2, 3), Parallelism(0, 3, 2)]


@contextmanager
def cores(number: int) -> Iterator[None]:
    """Let there be so many cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "num_cores", lambda: number)
        yield


def auto(dataset: Any, **arguments: Any) -> Any:
    """Return a loader that chooses, on a machine that has something to choose from."""
    with cores(4):
        chosen = {"num_workers": "auto", "num_threads": "auto", "prefetch_factor": "auto"}
        return stoker.DataLoader(dataset, **{**chosen, **arguments})


def engine_of(iterator: Any) -> TunedEngine:
    engine = iterator._engine
    return engine if isinstance(engine, TunedEngine) else engine._engine


def steered_by_hand(loader: Any) -> tuple[Any, TunedEngine]:
    """Return an iterator and its engine, which no tuner changes."""
    iterator = iter(loader)
    iterator._tuner = None
    return iterator, engine_of(iterator)


def possible(engine: TunedEngine, choices: list[Parallelism]) -> list[Parallelism]:
    """Return the settings that may follow within an iteration: all after loading inline, otherwise of the same kind."""
    running = engine._engine
    if isinstance(running, Inline):
        return choices
    if isinstance(running, Threads):
        return [choice for choice in choices if choice in HERE]
    return [choice for choice in choices if choice.num_workers]


def driven(loader: Any, choices: list[Parallelism], chance: random.Random, *, kills: bool = False) -> Iterator[Any]:
    """Yield all batches, while the setting is changed again and again, also before the last change is done."""
    if loader.auto.tuner is not None:
        loader.auto.tuner.setting = chance.choice(choices)  # the iteration begins with it
    iterator, engine = steered_by_hand(loader)
    try:
        for batch in iterator:
            yield plain(batch)
            for _ in range(chance.choice([0, 0, 1, 1, 2])):
                if following := possible(engine, choices):
                    engine.change(chance.choice(following))
            if kills and chance.random() < 0.2 and (alive := begun()):
                kill(chance.choice(alive))
    finally:
        iterator.close()


datasets = st.sampled_from([Numbers, Large, KeyedMany, KeyedWhole])
changes = st.lists(st.sampled_from([*INLINE, *PROCESSES, *THREADS, *HERE]), min_size=2, max_size=6)


@given(kind=datasets, choices=changes, seed=st.integers(0, 10_000), batch_size=st.integers(1, 5))
@settings(max_examples=10)
def test_changing_the_engine_at_any_time_changes_no_batch(
    kind: Any, choices: list[Parallelism], seed: int, batch_size: int
) -> None:
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": seed}
    loader = auto(kind(60), **arguments)
    inline = stoker.DataLoader(kind(60), **arguments)
    chance = random.Random(seed)
    assert list(driven(loader, choices, chance)) == listed(inline)
    assert list(driven(loader, choices, chance)) == listed(inline)  # and in the next epoch
    assert loader.state_dict()["digest"] == inline.state_dict()["digest"]


@given(choices=st.lists(st.sampled_from([*INLINE, *PROCESSES]), min_size=2, max_size=6), seed=st.integers(0, 10_000))
@settings(max_examples=4)
def test_generators_that_threads_would_share_give_the_same_numbers_inline_and_in_processes(
    choices: list[Parallelism], seed: int
) -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": seed, "num_threads": 0}
    loader = auto(Shared(50), **arguments)
    assert list(driven(loader, choices, random.Random(seed))) == listed(stoker.DataLoader(Shared(50), **arguments))


@given(choices=changes, seed=st.integers(0, 10_000), is_persistent=st.booleans())
@settings(max_examples=4)
def test_workers_killed_while_they_are_made_more_and_fewer_change_nothing(
    choices: list[Parallelism], seed: int, is_persistent: bool
) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": seed}
    loader = auto(Large(80), persistent_workers=is_persistent, **arguments)
    choices = [*choices, Parallelism(2, 0, 2), Parallelism(1, 2, 2)]
    inline = stoker.DataLoader(Large(80), **arguments)
    chance = random.Random(seed)
    for _ in range(2):
        assert list(driven(loader, choices, chance, kills=True)) == listed(inline)


@given(choices=changes, seed=st.integers(0, 10_000), step=st.integers(0, 30), kind=datasets)
@settings(max_examples=6)
def test_a_state_taken_at_any_step_resumes_there(choices: list[Parallelism], seed: int, step: int, kind: Any) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": seed}
    loader = auto(kind(60), **arguments)
    batches = driven(loader, choices, random.Random(seed))
    whole = [batch for _, batch in zip(range(step), batches)]
    state = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    resumed = auto(kind(60), **arguments)
    resumed.load_state_dict(state)
    whole += driven(resumed, choices, random.Random(seed + 1))
    assert whole == listed(stoker.DataLoader(kind(60), **arguments))
    fixed = stoker.DataLoader(kind(60), **arguments, num_workers=1)
    fixed.load_state_dict(state)
    assert listed(fixed) == whole[step:]


@given(choices=changes, seed=st.integers(0, 10_000))
@settings(max_examples=4)
def test_out_of_order_every_sample_comes_once(choices: list[Parallelism], seed: int) -> None:
    loader = auto(Large(60), batch_size=2, seed=seed, in_order=False)
    batches = driven(loader, choices, random.Random(seed), kills=True)
    assert sorted(position for batch in batches for position in batch[0]) == list(range(60))


@given(choices=changes, seed=st.integers(0, 10_000))
@settings(max_examples=4)
def test_samplers_of_ones_own_are_drawn_from_as_ever(choices: list[Parallelism], seed: int) -> None:
    def batches(loader: Any, choices: list[Parallelism] | None) -> list[Any]:
        torch.manual_seed(seed)
        return list(driven(loader, choices, random.Random(seed))) if choices else listed(loader)

    dataset = Large(50)
    arguments: dict[str, Any] = {"sampler": RandomSampler(dataset), "batch_size": 3, "seed": 1}
    fixed = stoker.DataLoader(dataset, num_workers=1, **arguments)
    assert batches(auto(dataset, **arguments), choices) == batches(fixed, None)


@given(choices=changes, seed=st.integers(0, 10_000))
@settings(max_examples=4)
def test_batches_on_their_way_to_a_device_are_the_same_too(choices: list[Parallelism], seed: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": seed, "device": "cpu", "to": torch.float64}
    loader = auto(Large(50), **arguments)
    assert list(driven(loader, choices, random.Random(seed))) == listed(stoker.DataLoader(Large(50), **arguments))
