"""Arguments changed between two iterations, and first batches left out: what trainers do."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

import stoker
from stoker.errors import ArgumentError
from tests.loader.datasets import Counting, Numbers, listed

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}]


def flat(batches: Any) -> list[int]:
    return [position for batch in listed(batches) for position in batch]


def test_an_adapted_loader_is_what_the_constructor_would_have_made() -> None:
    loader = stoker.DataLoader(Numbers(50), batch_size=8, shuffle=True, seed=3)
    adapted = loader.adapted(rank=1, num_ranks=2, batch_size=4, tail="drop", order="window")
    made = stoker.DataLoader(Numbers(50), batch_size=4, order="window", seed=3, rank=1, num_ranks=2, tail="drop")
    for name in ("rank", "num_ranks", "batch_size", "tail", "order", "drop_last"):
        assert getattr(adapted, name) == getattr(made, name), name
    assert isinstance(adapted.batch_sampler, BatchSampler)
    assert (adapted.batch_sampler.batch_size, adapted.batch_sampler.drop_last) == (4, True)
    assert list(adapted.sampler) == list(made.sampler)
    assert listed(adapted) == listed(made)
    assert (loader.rank, loader.num_ranks, loader.batch_size, loader.tail) == (0, 1, 8, None)
    assert listed(loader) == listed(stoker.DataLoader(Numbers(50), batch_size=8, shuffle=True, seed=3))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_loader_that_is_adapted_between_epochs_goes_on_with_the_next_one(engine: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
    loader = stoker.DataLoader(Numbers(50), **options, **engine)
    whole = stoker.DataLoader(Numbers(50), **options)
    assert flat(loader) == flat(whole)
    loader.adapt(batch_size=5)
    second = listed(loader)
    assert [len(batch) for batch in second] == [5] * 10
    assert sum(second, []) == flat(whole)


def test_a_loaded_state_stays_loaded_through_adapting() -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    stopped = stoker.DataLoader(Numbers(48), batch_size=8, **options)
    iterator = iter(stopped)
    seen = [int(x) for _ in range(2) for x in next(iterator)]
    ranks = [stoker.DataLoader(Numbers(48), batch_size=8, **options) for _ in range(2)]
    for rank, loader in enumerate(ranks):
        loader.load_state_dict(stopped.state_dict())
        loader.adapt(rank=rank, num_ranks=2, batch_size=4)
    rest = [position for loader in ranks for position in flat(loader)]
    assert sorted(seen + rest) == list(range(48))
    assert not set(seen) & set(rest)


def test_a_seed_is_only_given_to_a_loader_that_would_draw_one() -> None:
    drawn = stoker.DataLoader(Numbers(30), shuffle=True)
    drawn.adapt(seed=5)
    assert drawn.state_dict()["seed"] == 5
    given = stoker.DataLoader(Numbers(30), shuffle=True, seed=7)
    given.adapt(seed=5)
    assert given.state_dict()["seed"] == 7


def test_ranks_that_drew_seeds_of_their_own_agree_when_they_are_shared_out() -> None:
    loaders = []
    for rank in range(2):
        torch.manual_seed(rank)
        loaders.append(stoker.DataLoader(Numbers(30), shuffle=True))
        next(iter(loaders[-1]))
    assert loaders[0].state_dict()["seed"] != loaders[1].state_dict()["seed"]
    ranks = [loader.adapted(rank=rank, num_ranks=2) for rank, loader in enumerate(loaders)]
    assert sorted(flat(ranks[0]) + flat(ranks[1])) == list(range(30))


def test_ranks_that_read_a_stream_with_seeds_of_their_own_agree_when_it_is_shared_out() -> None:
    loaders = []
    for rank in range(2):
        torch.manual_seed(rank)
        loaders.append(stoker.DataLoader(Counting(30), batch_size=4))
        next(iter(loaders[-1]))
        loaders[-1].adapt(rank=rank, num_ranks=2, shard="auto")
    assert loaders[0].state_dict()["seed"] == loaders[1].state_dict()["seed"]


def test_a_sampler_takes_the_place_of_a_sampler_of_the_users_own() -> None:
    loader = stoker.DataLoader(Numbers(10), batch_size=4, sampler=RandomSampler(Numbers(10)))
    loader.adapt(sampler=SequentialSampler(Numbers(10)))
    assert listed(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    loader.adapt(batch_sampler=[[9], [8, 7]])
    assert listed(loader) == [[9], [8, 7]]
    assert loader.batch_size is None


def test_adapting_what_cannot_be_a_plan_changes_nothing() -> None:
    loader = stoker.DataLoader(Numbers(10), batch_size=4, seed=1)
    whole = flat(loader)
    loader.set_epoch(0)
    with pytest.raises(ArgumentError):
        loader.adapt(rank=2, num_ranks=2)
    with pytest.raises(ArgumentError):
        loader.adapt(tail="wag")  # type: ignore[arg-type]
    assert (loader.rank, loader.num_ranks, loader.tail) == (0, 1, None)
    assert flat(loader) == whole


# ---------------------------------------------------------------- layouts


@given(
    num_samples=st.integers(1, 60),
    share=st.integers(1, 5),
    num_ranks=st.integers(1, 5),
    tail=st.sampled_from(["keep", "drop", "pad"]),
    seed=st.integers(0, 3),
)
def test_in_blocks_the_batches_of_all_ranks_one_behind_the_other_are_the_plans_order(
    num_samples: int, share: int, num_ranks: int, tail: Any, seed: int
) -> None:
    options: dict[str, Any] = {
        "num_samples": num_samples,
        "batch_size": share * num_ranks,
        "order": "shuffle",
        "seed": seed,
        "tail": tail,
    }
    plan = stoker.Plan(**options, layout="blocks")
    usual = stoker.Plan(**options)
    for step in range(plan.steps_in(0)):
        parts = [plan.recipe(step, rank, num_ranks) for rank in range(num_ranks)]
        whole = usual.recipe(step)
        if len(whole.positions) < num_ranks:  # every rank has a sample to keep in step, as in the other layout
            others = [usual.recipe(step, rank, num_ranks) for rank in range(num_ranks)]
            assert [part.positions.tolist() for part in parts] == [part.positions.tolist() for part in others]
        else:
            assert np.concatenate([part.positions for part in parts]).tolist() == whole.positions.tolist()
            sizes = [len(part.positions) for part in parts]
            assert max(sizes) - min(sizes) <= 1
        for rank, part in enumerate(parts):
            again = next(plan.recipes(step, rank, num_ranks))
            assert again.positions.tolist() == part.positions.tolist()
            for row, position in enumerate(part.positions.tolist()):
                if part.padding is None or not part.padding[row]:
                    place = plan.find(position, num_ranks=num_ranks)
                    assert place is not None
                    assert (place.step, place.rank, place.row) == (step, rank, row)


# ---------------------------------------------------------------- the first batches left out


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "seed": 3},
        {"shuffle": True, "seed": 3, "skip": [(1, 3)]},
        {"shuffle": True, "seed": 3, "tail": "pad", "rank": 1, "num_ranks": 2},
        {"sampler": SequentialSampler(Numbers(50))},
        {"batch_size": 1, "batch_sampler": BatchSampler(SequentialSampler(Numbers(50)), 7, False)},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("number", [0, 1, 3, 90])
def test_first_batches_that_are_left_out_are_those_of_the_next_epoch_alone(
    options: dict[str, Any], number: int, engine: dict[str, Any]
) -> None:
    loader = stoker.DataLoader(Numbers(50), **({"batch_size": 7} | options), **engine)
    whole = [listed(loader), listed(loader)]
    loader.set_epoch(0)
    loader.skip_first(number)
    assert [listed(loader), listed(loader)] == [whole[0][number:], whole[1]]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_the_first_batches_of_a_stream_are_read_and_dropped(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Counting(30), batch_size=4, shard="auto", **engine)
    whole = listed(loader)
    loader.skip_first(2)
    assert listed(loader) == whole[2:]
    state = loader.state_dict()
    assert state["step"] == 2 * len(whole)


def test_a_state_behind_what_was_left_out_is_exact() -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3}
    loader = stoker.DataLoader(Numbers(50), **options)
    whole = listed(loader)
    again = stoker.DataLoader(Numbers(50), **options)
    again.skip_first(2)
    iterator = iter(again)
    next(iterator)
    resumed = stoker.DataLoader(Numbers(50), **options)
    resumed.load_state_dict(again.state_dict())
    assert listed(resumed) == whole[3:]


def test_a_state_in_the_middle_of_an_epoch_knows_better_than_a_count() -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3}
    loader = stoker.DataLoader(Numbers(50), **options)
    whole = listed(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = stoker.DataLoader(Numbers(50), **options)
    resumed.load_state_dict(loader.state_dict())
    resumed.skip_first(3)
    assert listed(resumed) == whole[3:]


def test_a_state_knows_better_than_a_count_with_another_batch_size_too() -> None:
    loader = stoker.DataLoader(Numbers(50), batch_size=7, shuffle=True, seed=3)
    iterator = iter(loader)
    seen = [next(iterator).tolist() for _ in range(3)]
    resumed = stoker.DataLoader(Numbers(50), batch_size=5, shuffle=True, seed=3)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.is_resumed
    resumed.skip_first(4)
    assert sorted(itertools.chain(*seen, *listed(resumed))) == list(range(50))
    assert not resumed.is_resumed


def test_leaving_out_batches_of_an_order_that_was_drawn_is_warned_of() -> None:
    torch.manual_seed(1)
    drawn = stoker.DataLoader(Numbers(50), batch_size=7, shuffle=True)
    with pytest.warns(UserWarning, match=r"the first 3 batches of the epoch are left out.*\n.*pass seed="):
        drawn.skip_first(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stoker.DataLoader(Numbers(50), batch_size=7).skip_first(3)
        stoker.DataLoader(Numbers(50), batch_size=7, shuffle=True, seed=1).skip_first(3)
    with pytest.raises(ArgumentError, match="num_batches=-1 is negative"):
        drawn.skip_first(-1)
