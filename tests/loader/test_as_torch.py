"""Code written for torch's DataLoader runs unchanged: the same arguments give the same batches, errors and warnings."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import stoker
from tests.loader.datasets import (
    Augmented,
    Counting,
    Many,
    Numbers,
    Point,
    Record,
    Sharing,
    SizedCounting,
    listed,
    plain,
)

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}]
ENGINE_NAMES = ["inline", "threads", "workers"]


def both(make: Callable[[Any], Any], **more: Any) -> tuple[list[Any], list[Any]]:
    """Return the batches of torch's loader and of ours, made by the same code under the same seed."""
    torch.manual_seed(7)
    theirs = listed(make(torch_data.DataLoader))
    torch.manual_seed(7)
    ours = listed(make(lambda *args, **kwargs: stoker.DataLoader(*args, **(kwargs | more))))
    return theirs, ours


def test_it_is_a_torch_loader_with_every_argument_of_it() -> None:
    assert issubclass(stoker.DataLoader, torch_data.DataLoader)
    theirs = inspect.signature(torch_data.DataLoader.__init__).parameters
    ours = inspect.signature(stoker.DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 10},
        {"batch_size": 10, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 200},
        {"batch_size": 10, "collate_fn": tuple},
        {"batch_size": 7, "sampler": [5, 3, 3, 99]},
        {"batch_size": 3, "sampler": range(10, 20), "drop_last": True},
        {"batch_size": None, "sampler": range(5)},
        {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    ],
    ids=str,
)
def test_the_same_batches_come(arguments: dict[str, Any], engine: dict[str, Any]) -> None:
    theirs, ours = both(lambda loader: loader(Numbers(), **arguments), **engine)
    assert ours == theirs


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize(
    "sampler",
    [
        lambda data: RandomSampler(data),
        lambda data: RandomSampler(data, replacement=True, num_samples=30),
        lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(3)),
        lambda data: SubsetRandomSampler(range(20, 40)),
        lambda data: WeightedRandomSampler([1.0, 2.0, 3.0], 17),
        lambda data: DistributedSampler(data, num_replicas=3, rank=1),
    ],
)
def test_samplers_of_torch_give_the_same_order(sampler: Callable[[Any], Any], engine: dict[str, Any]) -> None:
    theirs, ours = both(lambda loader: loader(Numbers(), batch_size=8, sampler=sampler(Numbers())), **engine)
    assert ours == theirs


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_two_epochs_of_a_sampler_are_the_same_two(engine: dict[str, Any]) -> None:
    def make(loader: Any) -> list[Any]:
        made = loader(Numbers(), batch_size=8, sampler=RandomSampler(Numbers()))
        return listed(made) + listed(made)

    theirs, ours = both(make, **engine)
    assert ours == theirs


def test_a_batch_sampler_of_torch_gives_the_same_order() -> None:
    theirs, ours = both(
        lambda loader: loader(Numbers(), batch_sampler=BatchSampler(RandomSampler(Numbers()), 9, False))
    )
    assert ours == theirs


def test_a_distributed_sampler_obeys_set_epoch() -> None:
    def make(loader: Any) -> list[Any]:
        sampler: DistributedSampler[int] = DistributedSampler(Numbers(), num_replicas=2, rank=0)
        made = loader(Numbers(), batch_size=8, sampler=sampler)
        epochs = []
        for epoch in (0, 1, 5):
            sampler.set_epoch(epoch)
            epochs.append(listed(made))
        return epochs

    theirs, ours = both(make)
    assert ours == theirs
    assert ours[0] != ours[1]


def test_the_loaders_set_epoch_reaches_sampler_and_dataset() -> None:
    class Told(Numbers):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    dataset = Told()
    sampler: DistributedSampler[int] = DistributedSampler(dataset, num_replicas=2, rank=0)
    loader = stoker.DataLoader(dataset, batch_size=8, sampler=sampler)
    loader.set_epoch(4)
    assert (sampler.epoch, dataset.epoch) == (4, 4)
    batches = stoker.DataLoader(dataset, batch_sampler=BatchSampler(sampler, 4, False))
    batches.set_epoch(6)
    assert sampler.epoch == 6


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize(
    "samples",
    [
        [{"a": torch.arange(3) + i, "b": str(i)} for i in range(5)],
        [Point(torch.ones(2) * i, i) for i in range(5)],
        [(np.full((2, 2), i), float(i), None if False else b"x") for i in range(5)],
        [[i, [i, "s"]] for i in range(5)],
        [np.float32(i) for i in range(5)],
        [torch.tensor(i, dtype=torch.complex64) for i in range(5)],
    ],
    ids=["dict", "namedtuple", "tuple", "nested", "scalar", "complex"],
)
def test_samples_of_every_kind_are_collated_alike(samples: list[Any], engine: dict[str, Any]) -> None:
    theirs = list(torch_data.DataLoader(samples, batch_size=2))  # type: ignore[arg-type]
    ours = list(stoker.DataLoader(samples, batch_size=2, **engine))
    assert [type(batch) for batch in ours] == [type(batch) for batch in theirs]
    assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_dataclasses_are_collated_field_by_field(engine: dict[str, Any]) -> None:
    samples = [Record(f"s{i}", np.full(3, i)) for i in range(4)]
    first, second = stoker.DataLoader(samples, batch_size=2, **engine)
    assert isinstance(first, Record)
    assert list(first.name) == ["s0", "s1"]
    assert torch.as_tensor(second.values).tolist() == [[2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_getitems_is_called_once_per_batch(engine: dict[str, Any]) -> None:
    theirs, ours = both(lambda loader: loader(Many(20), batch_size=8), **engine)
    assert ours == theirs


def test_len_is_as_in_torch() -> None:
    for arguments in (
        {},
        {"batch_size": 10},
        {"batch_size": 10, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 7, "sampler": range(20)},
        {"batch_sampler": [[1], [2]]},
    ):
        ours = stoker.DataLoader(Numbers(), **arguments)
        assert len(ours) == len(torch_data.DataLoader(Numbers(), **arguments))
        assert len(iter(ours)) == len(ours)
    assert len(stoker.DataLoader(SizedCounting(50, 50), batch_size=8)) == 7
    with pytest.raises(TypeError):
        len(stoker.DataLoader(Counting(), batch_size=8))


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_iterable_datasets_come_as_in_torch(engine: dict[str, Any]) -> None:
    for arguments in ({}, {"batch_size": 8}, {"batch_size": 8, "drop_last": True}, {"batch_size": None}):
        theirs, ours = both(lambda loader, a=arguments: loader(Sharing(50), **a))  # type: ignore[misc]
        assert ours == theirs
    if "num_workers" in engine:
        theirs = listed(torch_data.DataLoader(Sharing(50), batch_size=8, **engine))
        assert listed(stoker.DataLoader(Sharing(50), batch_size=8, **engine)) == theirs
    else:
        assert listed(stoker.DataLoader(Sharing(50), batch_size=8, **engine)) == listed(
            torch_data.DataLoader(Sharing(50), batch_size=8)
        )


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_several_iterators_may_be_alive_at_once(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=8, **engine)
    pairs = [(plain(a), plain(b)) for a, b in zip(loader, loader)]
    assert [a for a, _ in pairs] == [b for _, b in pairs] == listed(loader)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
def test_leaving_early_and_starting_again_begins_anew(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=8, **engine)
    for batch in loader:
        assert plain(batch) == list(range(8))
        break
    assert listed(loader)[0] == list(range(8))


def test_each_epoch_is_shuffled_anew_and_holds_everything() -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=8, shuffle=True)
    first, second = listed(loader), listed(loader)
    assert first != second
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(40))


def test_manual_seed_governs_the_order() -> None:
    def order(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return listed(stoker.DataLoader(Numbers(40), batch_size=8, shuffle=True))

    assert order(1) == order(1) != order(2)


def test_a_generator_governs_the_order_and_leaves_the_global_one_alone() -> None:
    def order(seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return listed(stoker.DataLoader(Numbers(40), batch_size=8, shuffle=True, generator=generator))

    before = torch.get_rng_state()
    assert order(1) == order(1) != order(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_loaders_made_in_every_epoch_are_shuffled_differently() -> None:
    torch.manual_seed(0)
    orders = [tuple(sum(listed(stoker.DataLoader(Numbers(40), 8, True)), [])) for _ in range(3)]
    assert len(set(orders)) == 3


def test_the_sampler_attribute_is_what_code_looks_for_and_tells_the_truth() -> None:
    shuffled = stoker.DataLoader(Numbers(20), batch_size=4, shuffle=True, seed=1)
    assert isinstance(shuffled.sampler, RandomSampler)
    assert isinstance(stoker.DataLoader(Numbers(20), batch_size=4).sampler, SequentialSampler)
    assert isinstance(shuffled.batch_sampler, BatchSampler)
    assert len(shuffled.sampler) == 20
    promised = list(shuffled.sampler)
    assert sum(listed(shuffled), []) == promised
    assert list(shuffled.sampler) != promised  # the next epoch's


def test_attributes_cannot_be_changed_afterwards() -> None:
    loader = stoker.DataLoader(Numbers(), batch_size=8)
    with pytest.raises(ValueError, match="attribute should not be set after"):
        loader.batch_size = 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": range(3)},
        {"batch_sampler": [[1]], "batch_size": 3},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"batch_size": -2},
        {"batch_size": 2.5},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": "nonsense", "num_workers": 1},
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        torch_data.DataLoader(Numbers(), **arguments)
    with pytest.raises(ValueError):
        stoker.DataLoader(Numbers(), **arguments)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"sampler": range(3)}, {"batch_sampler": [[1]]}], ids=str)
def test_iterable_datasets_refuse_samplers(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DataLoader with IterableDataset: expected unspecified"):
        stoker.DataLoader(Counting(), **arguments)


def test_more_workers_than_cores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="This DataLoader will create 1000 worker processes"):
        stoker.DataLoader(Numbers(), num_workers=1000)


def test_pinning_without_an_accelerator_is_warned_of_once_per_iteration() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    for engine in ENGINES:
        loader = stoker.DataLoader(Numbers(8), batch_size=4, pin_memory=True, **engine)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(loader)) == 2
        assert len([w for w in caught if "no accelerator" in str(w.message)]) == 1, engine


def test_a_dataset_longer_than_it_said_is_warned_of() -> None:
    loader = stoker.DataLoader(SizedCounting(50, said=3), batch_size=None)
    len(loader)
    with pytest.warns(UserWarning, match="said that it has 3 samples, but 4 batches have come"):
        assert len(list(loader)) == 50


def test_worker_init_and_worker_info_are_as_in_torch() -> None:
    loader = stoker.DataLoader(InWorkers(), batch_size=2, num_workers=2, worker_init_fn=initialise)
    rows: list[Any] = []
    iterator = iter(loader)
    while {row[0] for row in rows} != {0, 1}:  # ids; work goes to whoever is free, so it may take a while
        rows += zip(*plain(next(iterator)))
    iterator.close()
    assert {row[1] for row in rows} == {2}  # num_workers
    assert {row[2] for row in rows} == {1}  # the dataset is the user's own
    assert {row[3] for row in rows} == {100, 101}  # what worker_init_fn has set
    assert len({row[4] for row in rows}) == 2  # a seed of their own


class InWorkers(Numbers):
    """Tells about the worker it is in."""

    mark = 0

    def __init__(self) -> None:
        super().__init__(10**6)

    def __getitem__(self, position: int) -> Any:
        info = torch_data.get_worker_info()
        assert info is not None
        assert isinstance(info, torch_data._utils.worker.WorkerInfo)
        return info.id, info.num_workers, int(info.dataset is self), self.mark, float(info.seed % 2**31)


def initialise(worker: int) -> None:
    info = torch_data.get_worker_info()
    assert info is not None
    info.dataset.mark = 100 + worker  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_works(method: str) -> None:
    loader = stoker.DataLoader(Numbers(20), batch_size=4, num_workers=1, multiprocessing_context=method)
    assert listed(loader) == listed(torch_data.DataLoader(Numbers(20), batch_size=4))
    if method == "forkserver":  # the standard library keeps its server; ours to end it here
        import multiprocessing.forkserver

        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_persistent_workers_stay_and_see_new_epochs() -> None:
    loader = stoker.DataLoader(ProcessIds(), batch_size=4, num_workers=2, persistent_workers=True, shuffle=True, seed=1)
    first, second = listed(loader), listed(loader)
    assert len({pid for batch in first + second for pid in batch[1]}) <= 2  # one may have been quick enough for all
    assert [batch[0] for batch in first] != [batch[0] for batch in second]
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    with pytest.raises(stoker.errors.WorkerError, match="a newer iterator has taken over"):
        next(older)
    newer.close()


def test_persistent_workers_learn_the_seed_of_a_loaded_state() -> None:
    other = stoker.DataLoader(Augmented(16), batch_size=4, seed=5)
    loader = stoker.DataLoader(Augmented(16), batch_size=4, num_workers=1, persistent_workers=True)
    list(loader)
    loader.load_state_dict(other.state_dict())
    assert listed(loader) == listed(other)


class ProcessIds(Numbers):
    """Tells which process reads."""

    def __init__(self) -> None:
        super().__init__(16)

    def __getitem__(self, position: int) -> Any:
        import os

        return position, os.getpid()


def test_in_order_false_gives_the_same_batches_in_some_order() -> None:
    loader = stoker.DataLoader(Numbers(64), batch_size=4, num_workers=2, in_order=False)
    assert sorted(listed(loader)) == sorted(listed(stoker.DataLoader(Numbers(64), batch_size=4)))


def test_a_growing_dataset_is_seen_in_the_next_epoch() -> None:
    dataset = Numbers(10)
    loader = stoker.DataLoader(dataset, batch_size=4, shuffle=True, seed=0)
    assert sorted(sum(listed(loader), [])) == list(range(10))
    dataset.length = 17
    assert len(loader) == 5
    assert sorted(sum(listed(loader), [])) == list(range(17))


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {}, {"sampler": range(5)}, {"num_workers": 1, "persistent_workers": True}]
)
def test_a_loader_can_be_pickled_as_in_torch(arguments: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(20), batch_size=4, seed=2, **arguments)
    first = listed(loader)
    again = pickle.loads(pickle.dumps(loader))
    again.set_epoch(0)
    assert listed(again) == first
    again.set_epoch(0)
    assert sum(first, []) == list(again.sampler)


def test_datapipes_still_run() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe: Any = IterableWrapper(range(10))
    loader = stoker.DataLoader(pipe, batch_size=4)
    assert listed(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(stoker.errors.StateError, match="DataPipes do not know where they are"):
        loader.state_dict()


def test_tensor_datasets_and_subsets_run() -> None:
    dataset = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    theirs, ours = both(lambda loader: loader(torch_data.Subset(dataset, [1, 3, 5]), batch_size=2))
    assert ours == theirs


def test_types_registered_with_torchs_collate_are_used() -> None:
    class Odd:
        pass

    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map[Odd] = lambda batch, *, collate_fn_map=None: f"{len(batch)} odd ones"
    original = default_collate_fn_map[int]
    try:
        assert list(stoker.DataLoader([Odd(), Odd()], batch_size=2)) == ["2 odd ones"]
        default_collate_fn_map[int] = lambda batch, *, collate_fn_map=None: "ints"
        assert list(stoker.DataLoader([1, 2], batch_size=2)) == ["ints"]
    finally:
        del default_collate_fn_map[Odd]
        default_collate_fn_map[int] = original


def test_the_iterator_is_an_iterator() -> None:
    iterator = iter(stoker.DataLoader(Numbers(3)))
    assert isinstance(iterator, Iterator)
    assert iter(iterator) is iterator
    list(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(TypeError, match=re.escape("send loader.state_dict()")):
        json.dumps(iterator.__getstate__())
