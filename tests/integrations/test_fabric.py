"""Fabric prepares our loader: what comes and what its checkpoints have, on one and on two processes."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch.utils.data import IterableDataset, RandomSampler

import stoker
from stoker.errors import ArgumentError
from tests.integrations.launch import launch
from tests.loader.datasets import Broken, Numbers

LENGTH = 21
WHOLE = list(range(LENGTH))
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 3)]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(LENGTH))


def loader_of(name: str = "shuffled", **options: Any) -> stoker.DataLoader[Any]:
    if name == "pack":
        return stoker.DataLoader(stoker.pack(DOCUMENTS, length=16), batch_size=2, shuffle=True, seed=3)
    if name == "stream":
        return stoker.DataLoader(Stream(), batch_size=4, shard="auto")
    if name == "sampler":
        return stoker.DataLoader(Numbers(LENGTH), batch_size=4, sampler=RandomSampler(Numbers(LENGTH)))
    return stoker.DataLoader(Numbers(LENGTH), **{"batch_size": 4, "shuffle": True, "seed": 3, **options})


def fabric_of() -> Any:
    os.environ |= {"TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": "0"}  # what torchrun sets
    num_ranks = int(os.environ["WORLD_SIZE"])
    fabric = Fabric(accelerator="cpu", devices=num_ranks, strategy="ddp" if num_ranks > 1 else "auto")
    fabric.launch()
    return fabric


def batches(loader: Any, stop: int | None = None) -> list[list[int]]:
    """Return batches without what fills them up."""
    found = []
    for number, batch in enumerate(loader, 1):
        samples = (batch["tokens"] if isinstance(batch, dict) else batch).flatten().tolist()
        padding = None if loader.recipe is None else loader.recipe.padding
        found.append([sample for at, sample in enumerate(samples) if padding is None or not padding[at]])
        if number == stop:
            break
    return found


def epochs_of(cases: list[Any]) -> list[Any]:
    """Run on each rank: two epochs of each case, or the error."""
    fabric = fabric_of()
    found: list[Any] = []
    for name, options, is_shared in cases:
        torch.manual_seed(fabric.global_rank)  # ranks that draw a seed draw different ones
        try:
            loader = fabric.setup_dataloaders(loader_of(name, **options), use_distributed_sampler=is_shared)
            found.append([batches(loader) for _ in range(2)])
        except ArgumentError as error:
            found.append(str(error))
    return found


def dealt(ranks: list[Any], epoch: int) -> list[list[int]]:
    """Return the global batches of an epoch, with the samples of the ranks in turn."""
    found = []
    for shares in zip(*(rank[epoch] for rank in ranks), strict=True):
        longest = max(map(len, shares))
        found.append([share[at] for at in range(longest) for share in shares if at < len(share)])
    return found


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_all_ranks_together_get_the_batches_of_the_plain_loop(num_ranks: int) -> None:
    cases: list[Any] = [
        ("shuffled", {}, True),
        ("shuffled", {"num_workers": 1}, True),
        ("shuffled", {"distributed": True}, True),
        ("shuffled", {"distributed": True}, False),
        ("shuffled", {"mesh": {"dp": num_ranks}}, False),
    ]
    plain = loader_of(batch_size=4 * num_ranks)
    expected = [batches(plain) for _ in range(2)]
    assert expected[0] != expected[1]
    for case, *ranks in zip(cases, *launch(epochs_of, cases, num_ranks=num_ranks), strict=True):
        assert [dealt(ranks, epoch) for epoch in range(2)] == expected, case


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_each_sample_comes_once_an_epoch_whoever_has_the_order(num_ranks: int) -> None:
    cases: list[Any] = [("shuffled", {"seed": None}, True), ("stream", {}, True), ("sampler", {}, True)]
    for case, *ranks in zip(cases, *launch(epochs_of, cases, num_ranks=num_ranks), strict=True):
        for epoch in range(2):
            samples: list[int] = sum((sum(rank[epoch], []) for rank in ranks), [])
            # torch's DistributedSampler repeats a sample where ranks would have different numbers of them
            num_repeated = LENGTH % num_ranks if case[0] == "sampler" else 0
            assert sorted(set(samples)) == WHOLE, case
            assert len(samples) == LENGTH + num_repeated, case


def test_packs_follow_the_epoch() -> None:
    [[[first, second]]] = launch(epochs_of, [("pack", {}, True)], num_ranks=1)
    assert first != second
    assert first == batches(loader_of("pack"))


def test_ranks_that_contradict_fabric_are_refused_and_without_its_sampler_nothing_is_shared() -> None:
    cases: list[Any] = [
        ("shuffled", {"rank": 0, "num_ranks": 4}, True),
        ("shuffled", {"mesh": {"tp": 2}}, True),
        ("shuffled", {"mesh": {"tp": 2}}, False),
        ("shuffled", {}, False),
    ]
    first, second = launch(epochs_of, cases)
    for error in first[:2]:
        assert "Lightning expects that of rank 0 of 2" in error
        assert "use_distributed_sampler=False to setup_dataloaders" in error
    plain = loader_of()
    expected = [batches(plain) for _ in range(2)]
    assert first[2:] == second[2:] == [expected, expected]


def resumed(folder: str) -> list[Any]:
    """Run on each rank: what is read before and after a checkpoint, in the middle of an epoch and at its end."""
    fabric, found = fabric_of(), []
    length = len(fabric.setup_dataloaders(loader_of()))
    for stop in (2, length):
        loader = fabric.setup_dataloaders(loader_of())
        before = batches(loader, stop)
        fabric.save(f"{folder}/{stop}", {"loader": loader, "step": stop})
        loader = fabric.setup_dataloaders(loader_of())
        state = {"loader": loader, "step": 0}
        fabric.load(f"{folder}/{stop}", state)
        assert state["step"] == stop
        epochs = [before]
        for epoch in range(loader.next_epoch, 2):
            while len(epochs) <= epoch:
                epochs.append([])
            epochs[epoch] += batches(loader)
        found.append(epochs)
    return found


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_checkpoint_of_fabric_resumes_exactly(tmp_path: Any, num_ranks: int) -> None:
    plain = loader_of(batch_size=4 * num_ranks)
    expected = [batches(plain) for _ in range(2)]
    for ranks in zip(*launch(resumed, str(tmp_path), num_ranks=num_ranks), strict=True):
        assert [dealt(list(ranks), epoch) for epoch in range(2)] == expected


def shown() -> list[Any]:
    fabric = fabric_of()
    own = stoker.DataLoader(Broken(LENGTH, {3}), batch_size=4, shuffle=True, seed=3, on_error="skip", num_threads=2)
    loader = fabric.setup_dataloaders(own)
    batches(loader)
    dict(inspect.getmembers(loader))
    names = ("on_error", "num_threads", "next_epoch", "batch_size")
    return [*(getattr(loader, name) for name in names), loader.ledger.num_skipped, hasattr(loader, "counts")]


def test_what_fabric_returns_has_what_the_loader_has() -> None:
    assert launch(shown, num_ranks=1) == [["skip", 2, 1, 4, 1, False]]
