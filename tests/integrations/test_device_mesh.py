"""Four processes with a torch `DeviceMesh`: ranks that share data get the same batches, and DCP keeps their states."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.utils.data import IterableDataset

import stoker
from stoker.errors import StateMismatch
from tests.integrations.launch import launch
from tests.loader.datasets import Numbers

GLOBAL_BATCH = 8
DOCUMENTS = [np.full(size, number) for number, size in enumerate([5, 9, 3, 7, 6, 8, 4, 10, 2, 11] * 7)]


class Stream(IterableDataset[int]):
    """The numbers up to 45."""

    def __iter__(self) -> Any:
        return iter(range(45))


def _mixed() -> Any:
    return stoker.mix({"a": (Numbers(40), 0.7), "b": (list(range(100, 130)), 0.3)}, stop=44, seed=5)


LOADERS: dict[str, Callable[..., Any]] = {
    "unseeded": lambda **how: stoker.DataLoader(Numbers(50), shuffle=True, **how),
    "workers": lambda **how: stoker.DataLoader(Numbers(50), shuffle=True, seed=3, num_workers=2, **how),
    "pack": lambda **how: stoker.DataLoader(stoker.pack(DOCUMENTS, length=16), shuffle=True, seed=3, **how),
    "mixture": lambda **how: stoker.DataLoader(_mixed(), **how),
    "stream": lambda **how: stoker.DataLoader(Stream(), shard="auto", **how),
}


def numbers_of(batch: Any) -> list[Any]:
    return (batch["tokens"][:, ::5] if isinstance(batch, dict) else batch).tolist()  # type: ignore[no-any-return]


def begin(sizes: dict[str, int]) -> DeviceMesh:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # as in scripts that seed their ranks differently
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def shared_out(sizes: dict[str, int], folder: str, action: str) -> dict[str, Any]:
    """Return the batches and states of each loader: two and a checkpoint behind them, or what comes after it."""
    mesh = begin(sizes)
    share = GLOBAL_BATCH // sizes.get("dp", 1)
    loaders = {name: make(batch_size=share, mesh=mesh) for name, make in LOADERS.items()}
    if action == "resume":
        load(dict(loaders), checkpoint_id=folder)
        return {name: [numbers_of(batch) for batch in loader] for name, loader in loaders.items()}
    iterators = {name: iter(loader) for name, loader in loaders.items()}
    batches = {name: [numbers_of(next(iterator)) for _ in range(2)] for name, iterator in iterators.items()}
    states = {name: loader.state_dict() for name, loader in loaders.items()}
    saving: Any = async_save(dict(loaders), checkpoint_id=folder)
    for iterator in iterators.values():
        next(iterator)  # while it is written
    saving.result()
    return {name: [batches[name], states[name]] for name in loaders}


def check_shares(ranks: list[list[Any]], groups: list[list[int]], whole: list[Any]) -> None:
    """Check that the ranks of a group have the same batches, and the groups together the whole ones."""
    for group in groups:
        assert all(ranks[rank] == ranks[group[0]] for rank in group)
    steps = zip(*(ranks[group[0]] for group in groups), strict=True)
    assert [sorted(sum(shares, [])) for shares in steps] == whole


@pytest.mark.slow
def test_ranks_that_share_data_get_the_same_batches_and_their_checkpoint_fits_other_meshes(tmp_path: Any) -> None:
    plain = {
        name: [sorted(numbers_of(batch)) for batch in make(batch_size=GLOBAL_BATCH, **options)]
        for name, make in LOADERS.items()
        for options in [{"mesh": stoker.Mesh({"tp": 2}, rank=0)}]  # so that it draws no seed either
    }
    begun = launch(shared_out, {"dp": 2, "tp": 2}, str(tmp_path), "save", num_ranks=4)
    for name, whole in plain.items():
        check_shares([rank[name][0] for rank in begun], [[0, 1], [2, 3]], whole[:2])
        states = [rank[name][1] for rank in begun]
        assert states[0] == states[1]
        assert states[2] == states[3]
    for sizes, groups in (({"pp": 2, "dp": 2}, [[0, 2], [1, 3]]), ({"dp": 1, "cp": 2}, [[0, 1]])):
        rest = launch(shared_out, sizes, str(tmp_path), "resume", num_ranks=math.prod(sizes.values()))
        for name, whole in plain.items():
            check_shares([rank[name] for rank in rest], groups, whole[2:])


def split_sequences() -> list[Any]:
    """Compare each rank's part of the sequences with what torch's `context_parallel` makes of them."""
    mesh = begin({"dp": 2, "cp": 2})
    rows = [{"tokens": np.arange(16) + 100 * row, "labels": np.arange(16) + 100 * row + 1} for row in range(24)]
    whole = list(stoker.DataLoader(rows, batch_size=2, shuffle=True, mesh=mesh))
    split = stoker.DataLoader(
        rows, batch_size=2, shuffle=True, mesh=stoker.Mesh(mesh, split_sequence="head_tail"), num_workers=1
    )
    for batch, part in zip(whole, split, strict=True):
        buffers = [batch["tokens"].clone(), batch["labels"].clone()]
        with context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1]):
            assert torch.equal(part["tokens"], buffers[0])
            assert torch.equal(part["labels"], buffers[1])
    other = stoker.DataLoader(
        rows, batch_size=2, shuffle=True, mesh=stoker.Mesh(mesh, split_sequence="contiguous"), num_workers=1
    )
    with pytest.raises(StateMismatch, match="split_sequence: the state has 'head_tail', this loader 'contiguous'"):
        other.load_state_dict(split.state_dict())
    return [(batch["tokens"][:, 0] // 100).tolist() for batch in whole]


@pytest.mark.slow
def test_each_rank_gets_the_part_of_a_sequence_that_torchs_context_parallel_gives_it() -> None:
    ranks = launch(split_sequences, num_ranks=4)
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert sorted(sum(ranks[0] + ranks[2], [])) == list(range(24))
