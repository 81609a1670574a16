"""Meshes: ranks that share a batch get the same one, groups that do not get their own share, sequences are split."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

import stoker
from stoker.errors import ArgumentError, BatchError, StateMismatch
from stoker.loader.sharing.context_parallel import PADDING, SequenceOrder, SequencePart, SequenceSplit
from stoker.loader.sharing.mesh import Mesh, ResolvedMesh, check_mesh_state, mesh_state, resolved_mesh
from stoker.loader.sharing.placement import RankPlacement
from tests.loader.datasets import Numbers

DataLoader: Any = stoker.DataLoader
AnyMesh: Any = Mesh
"""For arguments that its types forbid."""

DATA = ("dp", "dp_replicate", "dp_shard", "data_parallel", "fsdp", "batch")
OTHER = ("tp", "cp", "pp", "sp", "tensor_parallel", "context-parallel")

meshes = st.lists(st.sampled_from(DATA + OTHER), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*(st.integers(1, 3) for _ in names)).map(lambda sizes: dict(zip(names, sizes)))
)
orders: Any = st.sampled_from(["head_tail", "contiguous"])


def found(mesh: Any, **arguments: Any) -> ResolvedMesh:
    return resolved_mesh(mesh, **arguments)


def every_rank(sizes: dict[str, int], **options: Any) -> list[ResolvedMesh]:
    return [found(Mesh(sizes, rank=rank, **options)) for rank in range(math.prod(sizes.values()))]


@contextmanager
def launched(rank: int, world_size: int) -> Iterator[None]:
    """Be one rank of a launch, without the other processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# ------------------------------------------------------------ which ranks share data


@given(sizes=meshes)
def test_ranks_with_the_same_data_coordinates_share_a_rank_and_all_ranks_are_taken(sizes: dict[str, int]) -> None:
    names = list(sizes)
    groups: dict[tuple[int, ...], set[int]] = {}
    resolved = every_rank(sizes)
    for rank, coordinates in enumerate(product(*map(range, sizes.values()))):  # the last dimension varies fastest
        mesh = resolved[rank]
        assert mesh.coordinates == coordinates
        assert mesh.num_ranks == math.prod(size for name, size in sizes.items() if name in DATA)
        own = tuple(at for name, at in zip(names, coordinates) if name in DATA)
        groups.setdefault(own, set()).add(mesh.rank)
    assert all(len(ranks) == 1 for ranks in groups.values())
    # row-major over the data-parallel dimensions, as torch flattens them
    assert [groups[own] for own in sorted(groups)] == [{rank} for rank in range(len(groups))]
    assert sum(mesh.is_first_peer for mesh in resolved) == len(groups)
    assert {mesh.num_peers for mesh in resolved} == {len(resolved) // len(groups)}


@given(sizes=meshes, data=st.data())
def test_dimensions_that_are_named_go_before_the_convention(sizes: dict[str, int], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(list(sizes))))
    strange = {f"axis{at}" if name in chosen else name: size for at, (name, size) in enumerate(sizes.items())}
    named = tuple(name for name in strange if name.startswith("axis"))
    for mesh in every_rank(strange, data=named):
        assert mesh.data == named
        assert mesh.num_ranks == math.prod(strange[name] for name in named)
    indices = [at for at, name in enumerate(strange) if name in named]
    assert [mesh.rank for mesh in every_rank(strange, data=indices)] == [
        mesh.rank for mesh in every_rank(strange, data=named)
    ]


@pytest.mark.parametrize(
    ("name", "is_data"),
    [
        *((name, True) for name in ("data", "DP", "ddp", "replicate", "shard", "dp_shard_mod_ep", "dp-replicate")),
        *((name, False) for name in ("mp", "model", "sequence_parallel", "ulysses", "pipeline", "pp")),
        *((name, False) for name in ("tensor_model_parallel", "context")),
    ],
)
def test_names_of_other_libraries_are_understood(name: str, is_data: bool) -> None:
    assert found(Mesh({name: 3}, rank=1)).num_ranks == (3 if is_data else 1)


def test_a_dimension_of_one_rank_may_have_any_name() -> None:
    mesh = found(Mesh({"ep": 1, "dp": 2, "dp_cp": 1, "tp": 2}, rank=3))
    assert (mesh.rank, mesh.num_ranks, mesh.num_peers) == (1, 2, 2)


def test_without_a_mesh_the_state_says_so() -> None:
    assert RankPlacement().mesh is None
    assert RankPlacement().state() == {"mesh": None, "split_sequence": None}


def test_a_resolved_mesh_can_be_pickled() -> None:
    mesh = found(Mesh({"dp": 2, "cp": 2}, rank=3, split_sequence="head_tail"))
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert pickle.loads(pickle.dumps(mesh.part)) == mesh.part == SequencePart(SequenceSplit(), 1, 2)


def test_the_rank_of_sizes_comes_from_the_launcher(no_launcher: pytest.MonkeyPatch) -> None:
    assert found({"dp": 1, "tp": 1}).num_ranks == 1  # nothing is needed for one process
    for rank, num_ranks in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        with no_launcher.context() as patch:
            patch.setenv(rank, "5")
            patch.setenv(num_ranks, "8")
            mesh = found({"pp": 2, "dp": 2, "tp": 2})
            assert (mesh.coordinates, mesh.rank, mesh.num_ranks) == ((1, 0, 1), 0, 2)
    with launched(6, 8):
        assert found({"dp": 4, "tp": 2}).rank == 3


# ------------------------------------------------------------ DeviceMesh


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 4},
        {"tp": 4},
        {"dp": 2, "tp": 2},
        {"pp": 2, "dp": 2, "tp": 2},
        {"dp_replicate": 2, "dp_shard": 2, "cp": 2},
        {"pp": 2, "dp_replicate": 2, "dp_shard": 2},
        {"cp": 2, "data_parallel": 4},
    ],
    ids=lambda sizes: "-".join(f"{name}{size}" for name, size in sizes.items()),
)
def test_a_device_mesh_means_what_its_sizes_mean(sizes: dict[str, int]) -> None:
    world_size = math.prod(sizes.values())
    for rank in range(world_size):
        with launched(rank, world_size):
            mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
            whole = found(mesh)
            assert whole == found(Mesh(sizes, rank=rank)) == found(sizes)
            coordinate = mesh.get_coordinate()
            assert coordinate is not None
            assert whole.coordinates == tuple(coordinate)
            data = tuple(name for name in sizes if name in DATA)
            if data:
                part = mesh[data]
                assert (found(part).rank, found(part).num_ranks) == (whole.rank, whole.num_ranks)
                flat = part._flatten("data_flat") if len(data) > 1 else part
                assert flat.get_local_rank() == whole.rank
                assert (found(flat).rank, found(flat).num_ranks) == (whole.rank, whole.num_ranks)


def test_a_device_mesh_may_number_its_ranks_in_any_way() -> None:
    layout = [[3, 1], [0, 2]]
    for rank in range(4):
        with launched(rank, 4):
            mesh = DeviceMesh("cpu", layout, mesh_dim_names=("dp", "tp"))
            assert found(mesh).rank == (0 if rank in (3, 1) else 1)


def test_ranks_outside_a_smaller_device_mesh_do_not_matter() -> None:
    with launched(1, 4):
        assert found(DeviceMesh("cpu", [0, 1, 2], mesh_dim_names=("dp",))).num_ranks == 3
    with (
        launched(3, 4),
        pytest.raises(ArgumentError, match=r"this process is not in the DeviceMesh of dp=3\nhint: make the loader"),
    ):
        found(DeviceMesh("cpu", [0, 1, 2], mesh_dim_names=("dp",)))


def test_a_device_mesh_without_names_is_understood_with_help() -> None:
    with launched(2, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        with pytest.raises(ArgumentError, match="dimensions of the DeviceMesh of 2 x 2 have no names"):
            found(mesh)
        assert (found(Mesh(mesh, data=0)).rank, found(Mesh(mesh, data=1)).rank) == (1, 0)
        assert found(Mesh(mesh, data=(0, 1))).rank == 2
        split = found(Mesh(mesh, data=0, context=1, split_sequence="contiguous"))
        assert split.part == SequencePart(SequenceSplit(order="contiguous"), 0, 2)


@pytest.mark.parametrize("name", ["dp_cp", "dp_shard_cp", "loss", "dp"])
def test_flattened_dimensions_of_both_kinds_are_refused_whatever_they_are_called(name: str) -> None:
    with launched(0, 8):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_shard", "cp", "tp"))
        flat = mesh["dp_shard", "cp"]._flatten(name)
        with pytest.raises(ArgumentError, match=f"dimension '{name}' of the mesh joins 'dp_shard' and 'cp', so wh"):
            found(flat)
        assert found(Mesh(flat, data=name)).num_ranks == 4  # said outright, it is believed


def test_flattened_dimensions_of_one_kind_are_what_they_were_made_of() -> None:
    with launched(5, 8):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        assert found(mesh["dp_replicate", "dp_shard"]._flatten("everything")).num_ranks == 4


def test_a_part_of_a_device_mesh_that_leaves_out_data_parallel_dimensions_is_refused() -> None:
    with launched(5, 8):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        with pytest.raises(
            ArgumentError, match=r"\('tp'\) leaves out the data-parallel dimensions 'dp_replicate', 'dp"
        ):
            found(mesh["tp"])
        with pytest.raises(
            ArgumentError, match=r"leaves out the data-parallel dimension 'dp_replicate', (.|\n)*data=\('dp_shard',\)\)"
        ):
            found(mesh["dp_shard"])
        assert found(Mesh(mesh["dp_shard"], data="dp_shard")).num_ranks == 2
        assert found(Mesh(mesh["tp"], data=())).num_ranks == 1


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AnyMesh({"dp": 0}),
            r"sizes of a mesh must be positive integers by name, got 'dp': 0\nhint: for example",
        ),
        (lambda: AnyMesh({"dp": True}), "positive integers by name, got 'dp': True"),
        (lambda: AnyMesh({3: 2}), "positive integers by name, got 3: 2"),
        (lambda: AnyMesh({}), "must have at least one dimension"),
        (lambda: AnyMesh((2, 2)), "mesh must be a torch DeviceMesh, a dict of sizes or a stoker.Mesh, got tuple"),
        (lambda: AnyMesh({"dp": 2}, data="tp"), r"data='tp': the mesh has no dimension 'tp'\nhint: it has 'dp'"),
        (lambda: AnyMesh({"dp": 2}, data=1), "data=1: the mesh has no dimension 1"),
        (lambda: AnyMesh({"dp": 2}, data=2.0), "data must name dimensions of the mesh, got 2.0"),
        (lambda: AnyMesh({"dp": 2}, data=(True,)), "data must name dimensions of the mesh"),
        (lambda: AnyMesh({"dp": 2}, context="cp"), "context='cp': the mesh has no dimension 'cp'"),
        (lambda: AnyMesh({"cp": 2}, data="cp", context="cp"), "dimension 'cp' is named in data= and in context="),
        (lambda: found(Mesh({"dp": 2}, context="dp", rank=0)), "context='dp' is a data-parallel dimension by its name"),
        (lambda: AnyMesh({"dp": 2, "tp": 2}, rank=4), "rank must be from 0 to 3 in a mesh of dp=2 x tp=2, got 4"),
        (lambda: AnyMesh({"dp": 2}, rank=-1), "rank must be from 0 to 1"),
        (
            lambda: AnyMesh({"dp": 2}, split_sequence="zigzag"),
            "order must be one of head_tail, contiguous, got 'zigzag'",
        ),
        (
            lambda: AnyMesh({"dp": 2}, split_sequence=True),
            "split_sequence must be 'head_tail', 'contiguous' or a stoker.S",
        ),
        (
            lambda: found(Mesh({"dp": 2, "sp": 2}, split_sequence="head_tail", rank=0)),
            r"needs one context-parallel dimension in the mesh, but it has 'dp', 'sp'\nhint: name it: stoker.Mesh",
        ),
        (
            lambda: found(Mesh({"cp": 2, "context": 2}, split_sequence="head_tail", rank=0)),
            "but it has 2: 'cp', 'context'",
        ),
        (
            lambda: found(Mesh({"dp": 2, "dp_cp": 2}, rank=0)),
            "dimension 'dp_cp' of the mesh joins data-parallel and other dimensions",
        ),
        (
            lambda: found(Mesh({"dp": 2, "foo": 4, "tp": 2}, rank=0)),
            r"data-parallel is not known: 'foo' \(size 4\)\nhint: stoker.Mesh\(mesh, data=\('dp', 'foo'\)\) if their "
            r"ranks train on different samples, stoker.Mesh\(mesh, data=\('dp',\)\) if they share a batch",
        ),
        (
            lambda: found(Mesh({"dp": 2, "ep": 4}, rank=0)),
            r"different samples \(most frameworks lay expert parallelism over data-parallel ranks: these do\), stoker",
        ),
        (
            lambda: found(Mesh({"dp": 2, "tp": 2}, rank=3), rank=3),
            r"rank=3 contradicts mesh=, by which this process is data-parallel rank 1 of 2\nhint: leave out rank",
        ),
        (lambda: found(Mesh({"dp": 2, "tp": 2}, rank=3), num_ranks=4), "num_ranks=4 contradicts mesh="),
        (
            lambda: found(Mesh({"dp": 2, "tp": 2}, rank=3), in_order=False),
            "in_order=False gives batches as they are completed, so the 2 ranks of the mesh that share a batch",
        ),
    ],
)
def test_what_cannot_be_a_mesh_says_what_to_write(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as error:
        make()
    assert "\nhint: " in str(error.value)


def test_what_does_not_contradict_a_mesh_is_accepted() -> None:
    assert found(Mesh({"dp": 2, "tp": 2}, rank=3), rank=1, num_ranks=2).rank == 1
    assert found(Mesh({"dp": 2}, rank=1), in_order=False).rank == 1  # nobody shares its batches


def test_sizes_that_are_not_those_of_the_launch_are_refused(no_launcher: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ArgumentError, match="mesh of dp=2 x tp=2 needs the rank of this process, but torch.distributed"
    ):
        found({"dp": 2, "tp": 2})
    with launched(0, 8):
        with pytest.raises(ArgumentError, match="multiply to the world size 8, got dp=2 x tp=2 = 4"):
            found({"dp": 2, "tp": 2})
        with pytest.raises(ArgumentError, match="multiply to the world size 8, got dp=1 = 1"):
            found({"dp": 1})
        mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
        with pytest.raises(ArgumentError, match="rank=0 cannot be used with a DeviceMesh, which knows its rank"):
            Mesh(mesh, rank=0)
    no_launcher.setenv("RANK", "one")
    no_launcher.setenv("WORLD_SIZE", "4")
    with pytest.raises(ArgumentError, match="mesh=: RANK='one' and WORLD_SIZE='4' are not numbers"):
        found({"dp": 4})


# ------------------------------------------------------------ state


@given(sizes=meshes)
def test_the_state_of_a_mesh_is_the_same_on_all_ranks_and_fits_json(sizes: dict[str, int]) -> None:
    states = [mesh_state(mesh) for mesh in every_rank(sizes)]
    assert all(state == states[0] for state in states)
    assert json.loads(json.dumps(states[0])) == states[0]


@given(before=meshes, after=meshes)
def test_any_mesh_goes_on_with_the_state_of_any_other(before: dict[str, int], after: dict[str, int]) -> None:
    state = mesh_state(found(Mesh(before, rank=0)))
    check_mesh_state(state, found(Mesh(after, rank=0)))
    RankPlacement().check_state(state)
    check_mesh_state({}, found(Mesh(after, rank=0)))


def test_only_another_order_of_the_same_split_is_another_stream() -> None:
    head_tail = found(Mesh({"dp": 2, "cp": 2}, rank=0, split_sequence="head_tail"))
    wider = found(Mesh({"cp": 8}, rank=5, split_sequence="head_tail"))
    contiguous = found(Mesh({"dp": 2, "cp": 2}, rank=0, split_sequence="contiguous"))
    of_one = found(Mesh({"dp": 2, "cp": 1}, rank=0, split_sequence="contiguous"))
    whole = found(Mesh({"dp": 2, "cp": 2}, rank=0))
    for mesh in (head_tail, wider, of_one, whole, None):
        RankPlacement(mesh=mesh).check_state(mesh_state(head_tail))
        check_mesh_state(RankPlacement(mesh=mesh).state(), head_tail)
    with pytest.raises(StateMismatch, match="split_sequence: the state has 'head_tail', this loader 'contiguous'"):
        check_mesh_state(mesh_state(head_tail), contiguous)


# ------------------------------------------------------------ context parallelism


class Pair(NamedTuple):
    tokens: Any
    labels: Any


def rows(length: int, num_rows: int = 2) -> dict[str, torch.Tensor]:
    tokens = torch.arange(1, num_rows * length + 1).reshape(num_rows, length)
    return {"tokens": tokens, "labels": tokens + 1, "source": torch.zeros(num_rows, dtype=torch.int64)}


@given(length=st.integers(1, 40), num_ranks=st.integers(1, 5), order=orders, is_torch=st.booleans())
def test_the_parts_put_together_are_the_row(length: int, num_ranks: int, order: SequenceOrder, is_torch: bool) -> None:
    split = SequenceSplit(order=order)
    batch: dict[str, Any] = rows(length)
    if not is_torch:
        batch = {name: value.numpy() for name, value in batch.items()}
    parts = [split.split(batch, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    padded = split.padded_length(length, num_ranks) if num_ranks > 1 else length
    assert padded % split.num_chunks(num_ranks) == 0 or num_ranks == 1
    assert 0 <= padded - length < split.num_chunks(num_ranks)
    for rank, part in enumerate(parts):
        assert part["source"] is batch["source"]
        assert type(part["tokens"]) is type(batch["tokens"])
        assert part["tokens"].dtype == batch["tokens"].dtype
        if num_ranks > 1:
            assert part["tokens"].shape == (2, padded // num_ranks)
            columns = split.columns(length, rank=rank, num_ranks=num_ranks)
            is_real = columns < length
            assert np.array_equal(part["tokens"][:, is_real], batch["tokens"][:, columns[is_real]])
            assert (np.asarray(part["tokens"])[:, ~is_real] == PADDING["tokens"]).all()
            assert (np.asarray(part["labels"])[:, ~is_real] == PADDING["labels"]).all()
    if num_ranks > 1:
        whole = split.joined([part["tokens"] for part in parts])
        assert np.array_equal(whole[:, :length], batch["tokens"])
        assert whole.shape == (2, padded)


@given(num_chunks=st.integers(1, 6), num_ranks=st.integers(1, 6))
def test_the_order_is_the_one_of_torch(num_chunks: int, num_ranks: int) -> None:
    balancer = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    length = 2 * num_ranks * num_chunks
    theirs = balancer._HeadTailLoadBalancer(length, num_ranks, "cpu")._generate_indices()[0].numpy()
    ours = [SequenceSplit().columns(length, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    assert np.array_equal(np.concatenate(ours), theirs)


@pytest.mark.parametrize("order", ["head_tail", "contiguous"])
def test_the_parts_are_the_buffers_of_torchs_context_parallel(
    order: SequenceOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention

    monkeypatch.setattr(_attention._cp_options, "enable_load_balance", order == "head_tail")
    for rank in range(4):
        with launched(rank, 4):
            device_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
            batch = rows(16)
            part = found(Mesh(device_mesh, split_sequence=order)).part
            assert part is not None
            ours = part(batch)
            theirs = [batch["tokens"].clone(), batch["labels"].clone()]
            with context_parallel(device_mesh, buffers=theirs, buffer_seq_dims=[1, 1]):
                assert torch.equal(ours["tokens"], theirs[0])
                assert torch.equal(ours["labels"], theirs[1])


def test_head_tail_gives_each_rank_a_chunk_from_both_ends() -> None:
    parts = [SequenceSplit().split(rows(8, 1), rank=rank, num_ranks=2)["tokens"].tolist() for rank in range(2)]
    assert parts == [[[1, 2, 7, 8]], [[3, 4, 5, 6]]]


def test_packed_rows_are_split_along_the_sequence_and_keep_what_describes_the_row() -> None:
    documents = [np.arange(1, size + 1) for size in (5, 9, 3, 16, 7, 7, 2)]
    packed = stoker.pack(documents, length=16, blocks=4)
    batch = {name: torch.as_tensor(value) for name, value in packed.__getbatch__([0, 1], np.empty).items()}
    split = SequenceSplit()
    parts = [split.split(batch, rank=rank, num_ranks=4) for rank in range(4)]
    for name, value in batch.items():
        if name in PADDING:
            assert all(part[name].shape == (2, 4) for part in parts)
            assert torch.equal(split.joined([part[name] for part in parts]), value)
        else:
            assert all(part[name] is value for part in parts)


def test_a_part_has_memory_of_its_own_and_the_batch_stays() -> None:
    for order in ("head_tail", "contiguous"):
        batch = rows(8)
        part = SequenceSplit(order=order).split(batch, rank=0, num_ranks=2)
        part["tokens"][:] = -1
        assert batch["tokens"].tolist() == rows(8)["tokens"].tolist()
        assert part["labels"].untyped_storage().nbytes() == 2 * 4 * 8


def test_batches_of_other_kinds_are_split_too() -> None:
    tokens, labels = rows(6)["tokens"], rows(6)["labels"]
    options: dict[str, Any] = {"rank": 1, "num_ranks": 2}
    by_index = SequenceSplit(fields={0: 7, 1: -100}, order="contiguous")
    assert by_index.split([tokens, labels], **options)[1].tolist() == [[5, 6, 7], [11, 12, 13]]
    assert type(by_index.split((tokens, labels), **options)) is tuple
    named = SequenceSplit(order="contiguous").split(Pair(tokens, labels), **options)
    assert type(named) is Pair
    assert named.tokens.tolist() == [[4, 5, 6], [10, 11, 12]]
    alone = SequenceSplit(order="contiguous").split(tokens, **options)
    assert torch.equal(alone, named.tokens)
    ordered = SequenceSplit().split(OrderedDict(tokens=tokens, name="x"), **options)
    assert type(ordered) is OrderedDict
    assert ordered["name"] == "x"
    one_row = SequenceSplit(dim=0, order="contiguous").split({"tokens": tokens[0]}, **options)
    assert one_row["tokens"].tolist() == [4, 5, 6]
    hugging_face = SequenceSplit(fields={"input_ids": 0, "attention_mask": 0}, order="contiguous", dim=-1)
    part = hugging_face.split({"input_ids": tokens, "attention_mask": tokens > 3, "labels": labels}, **options)
    assert part["attention_mask"].dtype == torch.bool
    assert part["labels"] is labels
    embedded = SequenceSplit(fields="x", order="contiguous").split({"x": torch.zeros(2, 6, 3)}, **options)
    assert embedded["x"].shape == (2, 3, 3)


def test_one_rank_gets_the_batch_itself() -> None:
    batch = {"anything": object()}
    assert SequenceSplit().split(batch, rank=0, num_ranks=1) is batch
    assert found(Mesh({"cp": 1, "dp": 2}, rank=0, split_sequence="head_tail")).part is None


def test_columns_of_a_mesh_are_all_of_them_unless_sequences_are_split() -> None:
    assert found(Mesh({"cp": 2}, rank=1)).columns(6).tolist() == [0, 1, 2, 3, 4, 5]
    assert found(Mesh({"cp": 2}, rank=1, split_sequence="head_tail")).columns(8).tolist() == [2, 3, 4, 5]
    assert found(Mesh({"cp": 2}, rank=0, split_sequence="head_tail")).columns(6).tolist() == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "ring"}, "order must be one of head_tail, contiguous, got 'ring'"),
        ({"dim": "1"}, "dim must be an integer, got '1'"),
        ({"fields": ()}, r"fields must map names of fields to the values that pad them, got \(\)"),
        ({"fields": {"tokens": "0"}}, "fields must map names"),
        ({"fields": {2.5: 0}}, "fields must map names"),
    ],
)
def test_what_cannot_be_a_split_says_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as error:
        SequenceSplit(**options)
    assert "\nhint: " in str(error.value)


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, {"input_ids": torch.zeros(2, 8)}, r"expected a field 'tokens', got 'input_ids'\nhint: .*labels must be"),
        ({}, [torch.zeros(2, 8)], r"expected a field 'tokens', got 0\nhint: .*fields=\{0: 0, 1: -100\}"),
        ({"fields": ["x"]}, rows(8), "names the fields 'x', which the batch does not have; it has 'tokens', 'labels'"),
        ({"fields": ["x"]}, torch.zeros(2, 8), "names the fields 'x', but the batch is a single Tensor"),
        (
            {},
            torch.zeros(2, 7),
            r"a multiple of 4 to be split over 2 ranks \(head_tail\), got 7, and a batch that is a",
        ),
        ({}, "text", "expects a batch that is a dict, tuple, list, tensor or array, got str"),
        ({}, {"tokens": [1, 2]}, "field 'tokens' must be a tensor or an array to be split, got list"),
        ({"dim": 2}, rows(8), r"field 'tokens' has no dimension 2 to split: its shape is \(2, 8\)"),
        ({}, rows(8) | {"labels": torch.zeros(2, 7)}, "one length in dimension 1, got: 'tokens' has 8, 'labels' has 7"),
        (
            {},
            rows(8) | {"weights": torch.ones(2, 8)},
            r"field 'weights' is as long as the sequence \(8\), and it is not",
        ),
        ({}, rows(6) | {"cu_seqlens": torch.zeros(2, 3)}, r"cu_seqlens ends at 6\nhint: pack rows of 8: stoker.pack\("),
        (
            {"fields": ["tokens", "x"]},
            {"tokens": torch.zeros(2, 6), "x": torch.zeros(2, 6)},
            "what to pad field 'x' wi",
        ),
        (
            {},
            {"tokens": torch.zeros(2, 6, dtype=torch.int64), "labels": torch.zeros(2, 6, dtype=torch.uint16)},
            "field 'labels' of torch.uint16 cannot hold its padding -100\nhint: use sequences of 8, a signed dtype",
        ),
        ({}, {"tokens": np.zeros((2, 6), np.int8), "labels": np.zeros((2, 6), np.uint8)}, "uint8 cannot hold its pad"),
        ({"fields": {"x": 2}}, {"x": torch.zeros(2, 6, dtype=torch.bool)}, "torch.bool cannot hold its padding 2"),
        ({"fields": {"x": 0.5}}, {"x": np.zeros((2, 6), np.int64)}, "int64 cannot hold its padding 0.5"),
        ({"fields": {"x": 0}}, {"x": np.full((2, 6), "a")}, "<U1 cannot hold its padding 0"),
    ],
)
def test_batches_that_cannot_be_split_say_what_to_do(options: dict[str, Any], batch: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message) as error:
        SequenceSplit(**options).split(batch, rank=0, num_ranks=2)
    assert "\nhint: " in str(error.value)


def test_a_rank_outside_the_group_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rank must be from 0 to 1 in a context-parallel group of 2, got 2"):
        SequenceSplit().split(rows(8), rank=2, num_ranks=2)


# ------------------------------------------------------------ in a loader


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
@pytest.mark.parametrize("sizes", [{"dp": 3, "tp": 2}, {"pp": 2, "dp_replicate": 2, "cp": 2, "dp_shard": 2}, {"tp": 3}])
def test_peers_get_equal_batches_and_groups_share_out_the_epoch(sizes: dict[str, int], tail: str) -> None:
    served: dict[int, list[list[int]]] = {}
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "tail": tail}
    for rank, mesh in enumerate(every_rank(sizes)):
        loader = DataLoader(Numbers(47), mesh=Mesh(sizes, rank=rank), **options)
        plain = DataLoader(Numbers(47), rank=mesh.rank, num_ranks=mesh.num_ranks, seed=0, **options)
        batches = [batch.tolist() for batch in loader]  # without a seed: all ranks have to agree all the same
        assert batches == served.setdefault(mesh.rank, batches) == [batch.tolist() for batch in plain]
    if tail == "keep":
        assert sorted(number for share in served.values() for batch in share for number in batch) == list(range(47))


@pytest.mark.parametrize(
    "workers",
    [{}, {"num_threads": 2}, {"num_workers": 1}, {"num_workers": 1, "num_threads": 2}, {"device": "cpu"}],
    ids=str,
)
def test_every_engine_gives_each_context_rank_its_part(workers: dict[str, Any]) -> None:
    documents = [np.arange(1, size + 1) for size in range(1, 60)]
    packed = stoker.pack(documents, length=64)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3} | workers
    whole = list(DataLoader(packed, rank=1, num_ranks=2, **options))
    parts = [
        list(DataLoader(packed, mesh=Mesh({"dp": 2, "cp": 2}, rank=rank, split_sequence="head_tail"), **options))
        for rank in (2, 3)
    ]
    assert len(whole) > 1
    for batch, first, second in zip(whole, *parts, strict=True):
        for name, value in batch.items():
            joined = SequenceSplit().joined([first[name], second[name]]) if name in PADDING else first[name]
            assert torch.equal(joined, value)


def test_a_user_collate_function_is_split_behind() -> None:
    def collate(samples: list[int]) -> dict[str, torch.Tensor]:
        return {"tokens": torch.tensor(samples)[:, None] * 10 + torch.arange(8)}

    mesh = Mesh({"cp": 2}, rank=1, split_sequence="contiguous")
    batch = next(iter(DataLoader(Numbers(8), batch_size=2, collate_fn=collate, mesh=mesh)))
    assert batch["tokens"].tolist() == [[4, 5, 6, 7], [14, 15, 16, 17]]


def test_a_state_of_any_rank_is_resumed_by_any_rank_of_another_mesh() -> None:
    def loader(sizes: dict[str, int], rank: int, **options: Any) -> Any:
        mesh = Mesh(sizes, rank=rank)
        size = 24 // found(mesh).num_ranks
        return DataLoader(Numbers(100), batch_size=size, shuffle=True, seed=1, mesh=mesh, **options)

    states = []
    for rank in range(4):
        before = loader({"dp": 2, "tp": 2}, rank)
        iterator = iter(before)
        next(iterator)
        states.append(before.state_dict())
    assert states[0] == states[1]
    assert states[2] == states[3]
    apart = {"rank", "digest", "checksums"}
    assert {name: value for name, value in states[0].items() if name not in apart} == {
        name: value for name, value in states[2].items() if name not in apart
    }
    rest = [set(batch.tolist()) for batch in DataLoader(Numbers(100), batch_size=24, shuffle=True, seed=1)][1:]
    for state in states:
        shares = []
        for rank in (0, 2, 4):
            after = loader({"dp": 3, "cp": 2}, rank)
            after.load_state_dict(state)
            shares.append([set(batch.tolist()) for batch in after])
        assert [set().union(*step) for step in zip(*shares, strict=True)] == rest


def test_a_loader_refuses_a_state_of_another_order() -> None:
    def loader(order: SequenceOrder) -> Any:
        return DataLoader(Numbers(8), mesh=Mesh({"cp": 2}, rank=0, split_sequence=order))

    with pytest.raises(StateMismatch, match="split_sequence"):
        loader("contiguous").load_state_dict(loader("head_tail").state_dict())


def test_a_loader_refuses_arguments_that_contradict_its_mesh() -> None:
    mesh = Mesh({"dp": 2, "tp": 2}, rank=3)
    for arguments in ({"rank": 3, "num_ranks": 4}, {"num_ranks": 4}, {"in_order": False}):
        with pytest.raises(ArgumentError):
            DataLoader(Numbers(8), mesh=mesh, **arguments)


def noisy(samples: list[int]) -> list[Any]:
    return [[sample, random.random(), float(torch.rand(()))] for sample in samples]


class Shuffling(torch.utils.data.IterableDataset[int]):
    """A stream behind a shuffle buffer that draws from process-wide random numbers."""

    def __iter__(self) -> Iterator[int]:
        waiting: list[int] = []
        for number in range(24):
            waiting.append(number)
            if len(waiting) > 6:
                yield waiting.pop(random.randrange(len(waiting)))
        yield from waiting


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"dataset": Numbers(24), "shuffle": True},
        lambda: {"dataset": Numbers(24), "sampler": range(24)},
        lambda: {"dataset": Numbers(24), "sampler": RandomSampler(Numbers(24), generator=seeded())},
        lambda: {"dataset": Shuffling(), "shard": "auto"},
    ],
    ids=["plan", "sampler", "random sampler", "stream"],
)
def test_peers_draw_equal_random_numbers_though_their_own_generators_differ(make: Callable[[], dict[str, Any]]) -> None:
    served = []
    for rank in range(2):
        random.seed(rank)
        torch.manual_seed(rank)
        served.append(list(DataLoader(batch_size=4, collate_fn=noisy, mesh=Mesh({"tp": 2}, rank=rank), **make())))
    assert served[0] == served[1]
    assert sorted(sample for batch in served[0] for sample, *_ in batch) == list(range(24))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_ranks_that_share_out_a_stream_draw_equal_random_numbers_while_they_read_it() -> None:
    numbers: list[int] = []
    for rank in range(2):
        random.seed(rank)
        torch.manual_seed(rank)
        numbers += torch.cat(list(DataLoader(Shuffling(), batch_size=4, shard="auto", rank=rank, num_ranks=2))).tolist()
    assert sorted(numbers) == list(range(24))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda: {"sampler": RandomSampler(Numbers(8))},
            r"RandomSampler draws from torch's global generator(.|\n)*\nhint: leave .*, or give the sampler a gen",
        ),
        (
            lambda: {"batch_sampler": BatchSampler(WeightedRandomSampler([1.0] * 8, 8), 2, False)},
            "WeightedRandomSampler draws from",
        ),
        (
            lambda: {"sampler": DistributedSampler(Numbers(8), num_replicas=2, rank=1)},
            r"DistributedSampler gives rank 1 of 2 positions of its own\nhint: leave out the sampler and pass sh",
        ),
    ],
)
def test_samplers_that_differ_between_peers_are_refused(arguments: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DataLoader(Numbers(8), mesh=Mesh({"tp": 2}, rank=1), **arguments())
    DataLoader(Numbers(8), mesh=Mesh({"tp": 1}, rank=0), **arguments())
