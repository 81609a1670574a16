"""Loaders that tools make again from the attributes of ours, as Lightning and others do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

import stoker
from stoker.compose.mixtures.mixture import Mixture
from stoker.errors import ArgumentError
from tests.loader.datasets import Counting, Numbers, listed

ARGUMENTS = [name for name in inspect.signature(stoker.DataLoader.__init__).parameters if name != "self"]

GIVEN: dict[str, Any] = {
    "batch_size": 6,
    "shuffle": True,
    "num_workers": 1,
    "collate_fn": torch.stack,
    "drop_last": True,
    "timeout": 60,
    "worker_init_fn": print,
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "in_order": False,
    "seed": 5,
    "order": stoker.Window(size=64, block=8),
    "tail": "drop",
    "rank": 1,
    "num_ranks": 2,
    "num_threads": 2,
    "on_error": "skip",
    "skip": ((1, 3),),
    "to": torch.float32,
    "expect": {"tokenizer": "bytes"},
    "snapshot_every_n_steps": 7,
}


class Expecting(Numbers):
    """Knows how it was made."""

    def expect(self, settings: dict[str, Any]) -> None:
        assert settings == {"tokenizer": "bytes"}


def attributes(loader: Any) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in ARGUMENTS}


def test_every_argument_is_an_attribute_under_its_own_name() -> None:
    loader = stoker.DataLoader(Expecting(100), **GIVEN)
    assert {name: getattr(loader, name) for name in GIVEN} == GIVEN
    others: dict[str, dict[str, Any]] = {
        "mesh": {"mesh": stoker.Mesh({"dp": 2, "tp": 2}, rank=3)},
        "device": {"device": "cpu"},
        "normalize": {"normalize": stoker.Normalize((0.5,), (0.5,))},
        "batch_sampler": {"batch_sampler": BatchSampler(SequentialSampler(Numbers(9)), 4, False)},
        "sampler": {"sampler": RandomSampler(Numbers(9))},
        "multiprocessing_context": {"multiprocessing_context": "spawn", "num_workers": 1},
    }
    for name, arguments in others.items():
        found = getattr(stoker.DataLoader(Numbers(9), **arguments), name)
        if name == "multiprocessing_context":
            assert found.get_start_method() == "spawn"
        else:
            assert found == arguments[name]
    named = {*GIVEN, *others, "dataset", "pin_memory", "pin_memory_device", "shard", "distributed"}
    assert named == set(ARGUMENTS), "give a new argument a value in GIVEN, other than its default"
    assert stoker.DataLoader(Numbers(9)).pin_memory is False
    assert stoker.DataLoader(Numbers(9)).pin_memory_device == ""
    assert stoker.DataLoader(Numbers(9)).distributed is False
    assert stoker.DataLoader(Counting(9), shard="auto").shard == "auto"


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Numbers(9), "shuffle": True},
        {"dataset": Numbers(9), "sampler": range(9)},
        {"dataset": Numbers(9), "num_workers": "auto"},
        {"dataset": Numbers(9), "batch_size": None},
        {"dataset": Numbers(9), "mesh": {"dp": 1}},
        {"dataset": Counting(9), "shard": "auto"},
        {"dataset": stoker.mix({"a": (Numbers(9), 0.5), "b": (Numbers(9), 0.5)})},
    ],
    ids=["shuffled", "sampler", "auto", "single", "mesh", "stream", "mixture"],
)
def test_all_members_of_a_loader_can_be_listed_at_any_time(arguments: dict[str, Any]) -> None:
    """As debuggers and notebooks do."""
    loader: Any = stoker.DataLoader(**arguments)
    is_mixture = isinstance(arguments["dataset"], Mixture)
    assert hasattr(loader, "counts") == is_mixture
    assert set(ARGUMENTS) <= {name for name, _ in inspect.getmembers(loader)}
    iterator = iter(loader)
    next(iterator)
    assert ("counts" in dict(inspect.getmembers(loader))) == is_mixture
    list(iterator)
    assert "state_dict" in dict(inspect.getmembers(loader))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "seed": 3, "tail": "pad", "rank": 1, "num_ranks": 3},
        {"order": "window", "seed": 3, "skip": [(0, 2)], "on_error": "skip"},
        {"drop_last": True},
        {"tail": "drop"},
        {"batch_size": None, "shuffle": True},
        {"mesh": stoker.Mesh({"dp": 2, "tp": 2}, rank=2), "shuffle": True},
    ],
    ids=str,
)
def test_a_loader_made_again_from_its_attributes_gives_the_same_epochs(arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(53), **({"batch_size": 5} | arguments))
    again = stoker.DataLoader(**attributes(loader))
    assert attributes(again) | {"sampler": 0, "batch_sampler": 0} == attributes(loader) | {
        "sampler": 0,
        "batch_sampler": 0,
    }
    assert [listed(again), listed(again)] == [listed(loader), listed(loader)]


def test_the_order_stays_in_epochs_where_it_is_taken_over() -> None:
    loader = stoker.DataLoader(Numbers(53), batch_size=5, shuffle=True)
    epochs = [listed(loader) for _ in range(3)]
    loader.set_epoch(1)
    again = stoker.DataLoader(Numbers(53), batch_sampler=BatchSampler(loader.sampler, 5, False))
    assert again.plan is None  # another dataset object: a sampler like any other
    taken = stoker.DataLoader(loader.dataset, batch_sampler=BatchSampler(loader.sampler, 5, False))
    assert [listed(taken), listed(taken)] == epochs[1:]


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
def test_torchs_distributed_sampler_around_our_order_shares_it_out(tail: Any) -> None:
    """What Lightning and Fabric make of a loader under DDP."""
    loader = stoker.DataLoader(Numbers(53), batch_size=5, shuffle=True, seed=2, tail=tail)
    for rank in (0, 1):
        sampler: Any = DistributedSampler(loader.sampler, num_replicas=2, rank=rank)  # type: ignore[arg-type]
        again = stoker.DataLoader(**(attributes(loader) | {"sampler": sampler, "batch_sampler": None}))
        plain = stoker.DataLoader(loader.dataset, batch_size=5, shuffle=True, seed=2, tail=tail, rank=rank, num_ranks=2)
        assert (again.rank, again.num_ranks, again.tail) == (rank, 2, tail)
        assert [listed(again), listed(again)] == [listed(plain), listed(plain)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 0, "num_ranks": 2},
        {"mesh": stoker.Mesh({"dp": 2}, rank=0)},
        {"mesh": stoker.Mesh({"tp": 2}, rank=0)},  # both ranks read everything
    ],
    ids=str,
)
def test_what_is_shared_out_already_is_not_shared_out_again(arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(53), batch_size=5, **arguments)
    sampler: Any = DistributedSampler(loader.sampler, num_replicas=2, rank=0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"DistributedSampler would share out a loader that already reads only"):
        stoker.DataLoader(loader.dataset, 5, sampler=sampler)
    with pytest.raises(ArgumentError, match="shared out a second time, as rank 1 of 4"):
        loader.adapt(rank=1, num_ranks=4)


def test_a_distributed_sampler_of_one_rank_changes_nothing() -> None:
    loader = stoker.DataLoader(Numbers(53), batch_size=5, shuffle=True, seed=2, rank=1, num_ranks=2)
    sampler: Any = DistributedSampler(loader.sampler, num_replicas=1, rank=0)  # type: ignore[arg-type]
    again = stoker.DataLoader(loader.dataset, 5, sampler=sampler)
    assert (again.rank, again.num_ranks) == (1, 2)
    assert listed(again) == listed(loader)


def test_an_order_that_another_sampler_would_replace_is_refused_by_the_name_of_that_sampler() -> None:
    sampler: Any = RandomSampler(Numbers(9))
    for arguments in ({"order": "shuffle"}, {"tail": "pad"}, {"skip": [(0, 1)]}, {"rank": 0, "num_ranks": 2}):
        with pytest.raises(ArgumentError, match="RandomSampler"):
            stoker.DataLoader(Numbers(9), sampler=sampler, **arguments)


def test_a_generator_cannot_be_put_on_our_sampler_where_it_would_have_no_effect() -> None:
    loader = stoker.DataLoader(Numbers(9), shuffle=True)
    assert loader.sampler.generator is None  # type: ignore[attr-defined]
    loader.sampler.generator = None  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="a generator would have no effect"):
        loader.sampler.generator = torch.Generator()  # type: ignore[attr-defined]


def test_a_pack_cannot_be_read_by_a_loader_that_does_not_pass_on_the_epoch() -> None:
    packed = stoker.pack([torch.arange(5).numpy()] * 10, length=16)
    loader = stoker.DataLoader(packed, batch_size=2, shuffle=True)
    with pytest.raises(ArgumentError, match="it would read epoch 0 forever"):
        list(torch.utils.data.DataLoader(packed, batch_sampler=loader.batch_sampler))  # type: ignore[arg-type]


# ---------------------------------------------------------------- samplers that start over


class StartsOver:
    """Wraps a batch sampler as tools do that count batches: its `__iter__` begins again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.seen: list[Any] = []

    def __iter__(self) -> StartsOver:
        self.seen = []
        self._iterator = iter(self.sampler)
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self.seen.append(batch)
        return batch

    def __len__(self) -> int:
        return len(self.sampler)


class StartsOverWithState(StartsOver):
    """The same, and it can be saved."""

    num_drawn = 0

    def __iter__(self) -> StartsOver:
        super().__iter__()
        for _ in range(self.num_drawn):
            next(self._iterator)
        return self

    def __next__(self) -> Any:
        try:
            batch = super().__next__()
        except StopIteration:
            self.num_drawn = 0
            raise
        self.num_drawn += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        return {"num_drawn": self.num_drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_drawn = state["num_drawn"]


@pytest.mark.parametrize("kind", [StartsOver, StartsOverWithState])
@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 2}], ids=str)
def test_a_sampler_that_starts_over_in_iter_is_drawn_once(kind: type[StartsOver], engine: dict[str, Any]) -> None:
    def loader() -> stoker.DataLoader[Any]:
        sampler: Any = kind(BatchSampler(SequentialSampler(Numbers(21)), 4, False))
        return stoker.DataLoader(Numbers(21), batch_sampler=sampler, **engine)

    whole = [list(range(start, min(21, start + 4))) for start in range(0, 21, 4)]
    assert listed(loader()) == whole
    stopped = loader()
    iterator: Iterator[Any] = iter(stopped)
    seen = [next(iterator).tolist() for _ in range(2)]
    state = stopped.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    resumed = loader()
    resumed.load_state_dict(state)
    assert seen + listed(resumed) == whole
    assert listed(resumed) == whole


class Restarting(Sampler[int]):
    """Single positions, by an iterator that starts over."""

    def __iter__(self) -> Any:
        return iter(StartsOver(range(21)))

    def __len__(self) -> int:
        return 21


def test_single_positions_are_drawn_by_next_alone_too() -> None:
    loader = stoker.DataLoader(Numbers(21), batch_size=4, sampler=Restarting())
    assert sum(listed(loader), []) == list(range(21))
    iterator = iter(loader)
    next(iterator)
    resumed = stoker.DataLoader(Numbers(21), batch_size=4, sampler=Restarting())
    resumed.load_state_dict(loader.state_dict())
    assert sum(listed(resumed), []) == list(range(4, 21))
