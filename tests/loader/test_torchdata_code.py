"""Code written for torchdata's `StatefulDataLoader` runs with our loader after its import was changed.

Every test runs with torchdata's own loader, too, so that it is code that torchdata takes.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import Stateful, StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler, StatefulDistributedSampler

import stoker
from tests.loader.datasets import Numbers

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True, "snapshot_every_n_steps": 3},
]


@pytest.fixture(params=[StatefulDataLoader, stoker.DataLoader], ids=["torchdata", "stoker"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    """Return what the import gives."""
    return request.param


class Counted(IterableDataset[int]):
    """The numbers up to 23, shared out among workers; each copy knows where it is."""

    def __init__(self) -> None:
        self.at, self.num_read = 0, 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        part, num_parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while self.at < 23:
            self.at += 1
            if (self.at - 1) % num_parts == part:
                self.num_read += 1
                assert self.num_read <= 23, "read again"
                yield self.at - 1
        self.at = self.num_read = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "num_read": self.num_read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.num_read = state["at"], state["num_read"]


class Noisy(Numbers):
    """Map-style, with random numbers of its own."""

    def __init__(self) -> None:
        super().__init__(23)
        self.generator = torch.Generator().manual_seed(1)

    def __getitem__(self, position: int) -> Any:
        return position + torch.rand((), generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def listed(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def saved(state: Any) -> Any:
    """Return a state after it was in a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


DATA: dict[str, Any] = {
    "in order": lambda: {"dataset": Numbers(23)},
    "shuffled": lambda: {"dataset": Numbers(23), "shuffle": True},
    "torchdata's sampler": lambda: {
        "dataset": Numbers(23),
        "sampler": RandomSampler(Numbers(23), generator=torch.Generator().manual_seed(4)),
    },
    "rank": lambda: {"dataset": Numbers(46), "sampler": StatefulDistributedSampler(Numbers(46), 2, 1, seed=4)},
    "stream": lambda: {"dataset": Counted()},
}


@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_a_state_from_the_middle_of_an_epoch_goes_on_behind_it(
    loader_class: Any, data: str, workers: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    loader = loader_class(batch_size=3, **DATA[data](), **workers)
    whole, rest, state = listed(loader), [], None
    assert sorted(sum(whole, [])) == list(range(23)) or data == "rank"
    for number, batch in enumerate(loader):
        if state is not None:
            rest.append(batch.tolist())
        if number == 3:
            state = saved(loader.state_dict())
    torch.manual_seed(9)
    resumed = loader_class(batch_size=3, **DATA[data](), **workers)
    resumed.load_state_dict(state)
    assert listed(resumed) == rest
    assert len(rest) == len(whole) - 4
    assert len(listed(resumed)) == len(whole)


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
@pytest.mark.parametrize("data", ["in order", "stream"])
def test_a_state_from_between_epochs_and_from_before_the_first_begins_an_epoch(
    loader_class: Any, data: str, workers: dict[str, Any]
) -> None:
    loader = loader_class(batch_size=3, **DATA[data](), **workers)
    before = saved(loader.state_dict())
    whole = listed(loader)
    for state in (before, saved(loader.state_dict())):
        resumed = loader_class(batch_size=3, **DATA[data](), **workers)
        resumed.load_state_dict(state)
        assert listed(resumed) == whole
        assert listed(resumed) == whole


def test_a_map_style_dataset_with_a_state_is_put_back(loader_class: Any) -> None:
    loader = loader_class(Noisy(), batch_size=3)
    iterator = iter(loader)
    seen = [next(iterator).tolist() for _ in range(3)]
    state = saved(loader.state_dict())
    rest = listed(iterator)
    resumed = loader_class(Noisy(), batch_size=3)
    resumed.load_state_dict(state)
    assert listed(resumed) == rest
    assert seen + rest == listed(loader_class(Noisy(), batch_size=3))


@pytest.mark.parametrize("engine", [{"num_workers": 1}, {"num_threads": 1}, {"device": "cpu"}], ids=str)
def test_the_state_of_a_map_style_dataset_that_is_read_ahead_is_not_lost_in_silence(engine: dict[str, Any]) -> None:
    loader: Any = stoker.DataLoader(Noisy(), batch_size=3, **engine)
    with pytest.warns(UserWarning, match=r"the state of .*Noisy is not saved: samples are read ahead.*\nhint: draw"):
        state = loader.state_dict()
    assert "dataset_state" not in state
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state)


def test_the_class_may_be_derived_from_with_a_state_of_its_own(loader_class: Any) -> None:
    """As torchtitan does, so that torch.distributed.checkpoint keeps the states of all ranks."""

    class ParallelAware(loader_class, Stateful):  # type: ignore[misc]
        def __init__(self, dataset: Any, rank: int, num_ranks: int, **options: Any) -> None:
            super().__init__(dataset, **options)
            self.name, self.world_size = f"dp_rank_{rank}", num_ranks

        def state_dict(self) -> dict[str, Any]:
            return {self.name: pickle.dumps(super().state_dict()), "world_size": self.world_size}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state:
                assert state["world_size"] == self.world_size
                super().load_state_dict(pickle.loads(state[self.name]))

    loader = ParallelAware(Counted(), 1, 2, batch_size=4, num_workers=1)
    loader.load_state_dict({})
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = listed(iterator)
    resumed = ParallelAware(Counted(), 1, 2, batch_size=4, num_workers=1)
    resumed.load_state_dict(state)
    assert listed(resumed) == rest
    assert isinstance(resumed, Stateful)


def test_a_state_that_is_loaded_twice_or_before_an_iterator_is_at_its_end_is_that_of_the_last_load(
    loader_class: Any,
) -> None:
    loader = loader_class(Numbers(23), batch_size=3)
    states = [saved(loader.state_dict()) for _ in loader]
    loader.load_state_dict(states[5])
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(states[1])
    loader.load_state_dict(states[4])
    assert next(iter(loader)).tolist() == [15, 16, 17]


class WithoutLength:
    """A sampler that Lightning draws from ahead, to know when it ends."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("sampler", [None, WithoutLength()], ids=["on time", "ahead"])
def test_under_lightning_the_state_of_a_dataset_is_saved_unless_a_batch_was_drawn_ahead(sampler: Any) -> None:
    lightning: Any = pytest.importorskip("lightning")
    states = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def training_step(self, batch: Any, index: int) -> Any:
            return None

        def on_train_batch_end(self, *_: Any) -> None:
            states.append(self.trainer.train_dataloader.state_dict())

        def configure_optimizers(self) -> None:
            return None

    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_steps=2, accelerator="cpu", enable_model_summary=False, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Model(), stoker.DataLoader(Noisy(), batch_size=3, sampler=sampler))
    is_ahead = sampler is not None
    assert ["dataset_state" in state for state in states[:2]] == [not is_ahead] * 2
    assert any("Noisy is not saved" in str(warning.message) for warning in caught) == is_ahead
