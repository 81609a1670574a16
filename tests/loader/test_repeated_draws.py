"""Samples that a sampler draws several times in an epoch: each draw has random numbers of its own."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import stoker
from stoker.batch.encoded import Encoded
from stoker.compose.images import Images
from stoker.loader.build_delivery import HostDecodeFallback
from stoker.loader.build_iteration import batch_builders
from stoker.loader.order.repeated_draws import Draws, may_repeat
from stoker.loader.state.loader_state import new_progress
from stoker.transform import RandomHorizontalFlip, RandomResizedCrop
from tests.compose.image_sets import InMemory
from tests.loader.datasets import KeyedMany, KeyedOnly, KeyedWhole, Numbers, listed, plain

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_threads": 3},
    "workers": {"num_workers": 2},
    "threads in a spawned worker": {"num_workers": 1, "num_threads": 2, "multiprocessing_context": "spawn"},
}
CROP = [RandomResizedCrop((24, 20)), RandomHorizontalFlip()]


def weighted(count: int = 16, *, of: int = 2) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * of, count, generator=torch.Generator().manual_seed(5))


class Own(Sampler[int]):
    """Gives what it was made with, and says nothing about it."""

    def __init__(self, positions: list[int]) -> None:
        self.positions = positions

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)


class Stateful(Own):
    """Knows where it is, so that nothing is drawn again after a resume."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < len(self.positions):
            self.at += 1
            yield self.positions[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Declared(Own):
    """Says that it draws each position once."""

    replacement = False


class Scrambled(RandomSampler):
    """Made of torch's, and draws as it likes."""

    def __iter__(self) -> Iterator[int]:
        return iter([0] * len(self.data_source))


def crops(images: Any, sampler: Any, **engine: Any) -> list[bytes]:
    loader: Any = stoker.DataLoader(images, batch_size=4, sampler=sampler, seed=7, **engine)
    return [image.numpy().tobytes() for batch in loader for image in batch.image]


def draws(dataset: Any, sampler: Any, **arguments: Any) -> list[tuple[int, float]]:
    loader: Any = stoker.DataLoader(dataset, **({"batch_size": 4, "sampler": sampler, "seed": 3} | arguments))
    return [(position, number) for batch in listed(loader) for position, number in zip(*batch)]


def test_each_draw_of_a_image_is_cropped_again_and_alike_in_every_engine() -> None:
    images = Images(InMemory(2), transform=CROP)
    found = {name: crops(images, weighted(), **engine) for name, engine in ENGINES.items()}
    assert len(set(found["inline"])) == 16
    assert all(seen == found["inline"] for seen in found.values())


@pytest.mark.parametrize("kind", [KeyedOnly, KeyedMany, KeyedWhole])
def test_each_draw_has_numbers_of_its_own_however_samples_are_read(kind: Any) -> None:
    positions = [1, 1, 0, 1, 0, 0, 2, 1, 1, 1]
    wanted = draws(KeyedOnly(3), Own(positions))
    assert [position for position, _ in wanted] == positions
    assert len({number for _, number in wanted}) == 10
    for name in ("inline", "threads", "workers"):
        assert draws(kind(3), Own(positions), **ENGINES[name]) == wanted
    batches = BatchSampler(Own(positions), 3, drop_last=False)
    own_batches = draws(kind(3), None, batch_size=1, batch_sampler=batches)
    assert own_batches == draws(kind(3), None, batch_size=1, batch_sampler=[*batches]) == wanted


def test_a_whole_dataset_around_another_has_numbers_of_its_own_for_each_draw() -> None:
    numbers = draws(Subset(KeyedMany(9), [7, 8]), Own([0, 1, 0, 0, 0, 1]))
    assert [position for position, _ in numbers] == [7, 8, 7, 7, 7, 8]
    assert len(set(numbers)) == 6


def test_a_draw_can_be_looked_at_by_its_number() -> None:
    loader: Any = stoker.DataLoader(KeyedOnly(3), batch_size=2, sampler=Own([1, 1, 2, 1]), seed=3)
    for positions, numbers in loader:
        for position, number, draw in zip(positions.tolist(), numbers.tolist(), loader.recipe.draws):
            with stoker.sample_context(position, seed=3, draw=draw):
                assert KeyedOnly(3)[position] == (position, number)


class Repeated(Own):
    """Each sample `times` in a row, shared among ranks: repeated augmentation."""

    def __init__(self, rank: int, num_replicas: int) -> None:
        super().__init__([position for position in range(4) for _ in range(3)])
        self.rank, self.num_replicas = rank, num_replicas

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions[self.rank :: self.num_replicas])


def test_ranks_that_draw_the_same_sample_have_numbers_of_their_own() -> None:
    alone = draws(KeyedOnly(4), Repeated(0, 1))
    assert len({number for _, number in alone}) == 12
    for num_ranks in (2, 3):
        shares = [draws(KeyedOnly(4), Repeated(rank, num_ranks)) for rank in range(num_ranks)]
        assert sorted(sum(shares, [])) == sorted(alone)  # whatever the number of ranks
    for wrapped in (BatchSampler(Repeated(1, 3), 2, drop_last=False), Repeated(1, 3)):
        assert Draws.of(wrapped) == (1, 3)


@pytest.mark.parametrize(
    ("kind", "batch_size"), [("weighted", 4), ("weighted", 3), ("stateful", 4), ("stateful", 3), ("batches", 4)]
)
def test_a_resume_goes_on_with_the_numbers_of_the_draws_that_follow(kind: str, batch_size: int) -> None:
    def made(batch_size: int) -> Any:
        arguments: dict[str, Any] = {"batch_size": batch_size, "seed": 3}
        if kind == "batches":
            arguments = {"batch_sampler": BatchSampler(weighted(24, of=3), batch_size, drop_last=False), "seed": 3}
        else:
            arguments["sampler"] = weighted(24, of=3) if kind == "weighted" else Stateful([0, 1, 2, 1] * 6)
        return stoker.DataLoader(KeyedOnly(3), **arguments)

    whole = [pair for batch in listed(made(4)) for pair in zip(*batch)]
    assert len({number for _, number in whole}) == 24
    first = made(4)
    iterator = iter(first)
    before = [pair for batch in [plain(next(iterator)) for _ in range(3)] for pair in zip(*batch)]
    state = json.loads(json.dumps(first.state_dict()))
    again = made(batch_size)
    again.load_state_dict(state)
    rest = [pair for batch in listed(again) for pair in zip(*batch)]
    assert before + rest == whole
    assert len(json.dumps(state)) < 20_000  # torch's generator; nothing is kept of each draw


def test_samplers_that_draw_each_sample_once_keep_their_numbers() -> None:
    dataset, generator = KeyedOnly(12), torch.Generator().manual_seed(1)
    inner = RandomSampler(dataset, generator=generator)
    samplers: list[Any] = [
        SequentialSampler(dataset),
        RandomSampler(dataset, generator=generator),
        SubsetRandomSampler([3, 1, 2, 9], generator=generator),
        WeightedRandomSampler([1.0] * 12, 12, replacement=False, generator=generator),
        DistributedSampler(dataset, num_replicas=3, rank=1),
        [5, 2, 7],
        range(12),
        np.arange(4),
        torch.arange(5),
        Declared([4, 3]),
    ]
    arguments = [{"sampler": one} for one in samplers]
    arguments += [{"batch_sampler": batches} for batches in (BatchSampler(inner, 5, drop_last=True), [[3, 1], [2, 0]])]
    for given in arguments:
        loader: Any = stoker.DataLoader(dataset, **given, seed=3)
        for batch in loader:
            assert loader.recipe.draws is None
            for position, number in zip(*plain(batch)):
                with stoker.sample_context(position, seed=3):
                    assert dataset[position][1] == number


def test_what_may_repeat_is_known_of_samplers() -> None:
    dataset = Numbers(6)
    for sampler in (
        RandomSampler(dataset, replacement=True),
        RandomSampler(dataset, num_samples=7),
        SubsetRandomSampler([1, 1]),
        weighted(),
        Own([1, 2]),
        Scrambled(dataset, replacement=True),
        [1, 2, 1],
        [[1], [1]],
        np.array([2, 2]),
        iter(range(3)),
        BatchSampler(weighted(), 2, drop_last=False),
        BatchSampler([0, 1, 0], 2, drop_last=False),
    ):
        assert may_repeat(sampler), sampler
    assert may_repeat([[1, 2], [2]], is_of_batches=True)
    assert not may_repeat([[1, 2], [3]], is_of_batches=True)


def test_lightning_and_accelerate_pass_on_what_the_sampler_inside_does() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    distributed = pytest.importorskip("lightning.fabric.utilities.distributed")
    dataset = Numbers(6)
    for sampler, repeats in ((weighted(), True), (RandomSampler(dataset), False), (Own([0]), True)):
        batches = BatchSampler(sampler, 2, drop_last=False)
        assert may_repeat(accelerate.BatchSamplerShard(batches, 2, 0)) is repeats
        wrapped = distributed.DistributedSamplerWrapper(sampler, num_replicas=2, rank=0)
        assert may_repeat(wrapped) is repeats


class Twice(Numbers):
    """Asks twice for the numbers of each sample, by its position."""

    def __getitem__(self, position: int) -> Any:
        first, second = (float(stoker.rng(position).random()) for _ in range(2))
        assert first == second
        return position, first


def test_asking_twice_for_the_numbers_of_a_sample_gives_the_same() -> None:
    for engine in ({}, {"num_threads": 3}):
        assert len(set(draws(Twice(2), Own([0, 0, 1, 0, 0, 0]), **engine))) == 6


def test_the_next_epoch_has_other_numbers_for_the_same_draws() -> None:
    loader: Any = stoker.DataLoader(KeyedOnly(2), batch_size=2, sampler=Own([0, 0, 1, 0]), seed=3)
    first, second = listed(loader), listed(loader)
    assert len({number for batch in first + second for number in batch[1]}) == 8


def test_what_takes_the_place_of_a_bad_sample_has_the_numbers_of_the_draw_it_takes() -> None:
    images = Images(InMemory(3, bad=(0,)), transform=CROP)
    found = {}
    for name in ("inline", "threads", "workers"):
        found[name] = crops(images, Own([0, 1, 1, 0, 0, 1, 1, 0]), on_error="skip", **ENGINES[name])
        assert len(set(found[name])) == 8, name
    assert len(set(map(tuple, found.values()))) == 1


class Killing(KeyedOnly):
    """Kills the worker that reads it, once."""

    def __init__(self, length: int, flag: Path) -> None:
        super().__init__(length)
        self.flag = flag

    def __getitem__(self, position: int) -> Any:
        if position == 2 and self.flag.exists():
            self.flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(position)


def test_a_draw_that_killed_its_worker_has_the_same_numbers_when_it_is_made_again(tmp_path: Path) -> None:
    positions = [0, 1, 0, 1, 1, 0, 2, 0, 1, 2, 2, 2]
    (tmp_path / "flag").touch()
    found = draws(Killing(3, tmp_path / "flag"), Own(positions), num_workers=2)
    assert not (tmp_path / "flag").exists()
    assert found == draws(KeyedOnly(3), Own(positions))


def test_files_left_to_the_device_are_cut_again_in_each_draw() -> None:
    images = Images(InMemory(1, labels=None), transform=CROP, decode="device")
    loader: Any = stoker.DataLoader(Images(InMemory(1, labels=None), transform=CROP), 6, sampler=[0] * 6, seed=7)
    builders = batch_builders(loader)
    builders.dataset = images
    recipe = next(iter(new_progress(loader, 0).recipes()))
    made = builders.build(recipe)
    assert isinstance(made.batch, Encoded)
    assert len(set(map(tuple, made.batch.boxes.tolist()))) == 6
    wanted = next(iter(loader))
    for row in range(6):  # as if the device had refused each
        one, _ = HostDecodeFallback(batch_builders(loader)).read(made, 0, row)
        assert torch.equal(one[0], wanted[row])


def test_a_mixture_whose_sources_go_round_in_an_epoch_has_other_numbers_each_time() -> None:
    for kind in (KeyedOnly, KeyedMany, KeyedWhole):
        mixture = stoker.mix({"few": (kind(3), 0.75), "many": (kind(50), 0.25)}, stop=40)
        loader: Any = stoker.DataLoader(mixture, batch_size=4, seed=1)
        seen = [pair for batch in listed(loader) for pair in zip(*batch)]
        assert max(Counter(position for position, _ in seen).values()) >= 10
        assert len({number for _, number in seen}) == len(seen) == 40
    pictures = stoker.mix({"few": (Images(InMemory(2), transform=CROP), 1.0)}, stop=12)
    batches: Any = stoker.DataLoader(pictures, batch_size=4, seed=1)
    assert len({image.numpy().tobytes() for batch in batches for image in batch.image}) == 12
