"""Every engine gives what torch's DataLoader gives: the same values, types and structure, in the same order; and what
is kept of it never changes.
"""

from __future__ import annotations

import gc
import multiprocessing.forkserver
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import stoker
from stoker.engine.slots.ring import WINDOW

# ---------------------------------------------------------------- samples of every kind

TENSOR_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
ARRAY_DTYPES = ["bool", "u1", "i2", "i4", "i8", "u2", "f2", "f4", "f8", "c8"]
SHAPES = [(), (1,), (3,), (0,), (2, 0, 3), (2, 3, 4), (4, 3, 8, 8), (3, 160, 120), (2, 3, 64, 64), (20_000,)]
"""The last three lie in a slot, whatever the type."""


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Record:
    name: Any
    values: Any


def tensor(position: int, dtype: torch.dtype, shape: tuple[int, ...], layout: str) -> torch.Tensor:
    """Return a tensor that tells its position, laid out in one way or another."""
    count = int(np.prod(shape))
    made = (torch.arange(count) + position).remainder(2 if dtype is torch.bool else 91).to(dtype).reshape(shape)
    if layout == "channels_last" and made.dim() == 4:
        return made.to(memory_format=torch.channels_last)
    if layout == "channels_last" and made.dim() == 3:  # as an image that was decoded
        return made.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    if layout == "transposed" and made.dim() > 1:
        return made.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and made.dim() and made.numel():
        return made.repeat_interleave(2, dim=-1)[..., ::2]
    return made


def array(position: int, dtype: str, shape: tuple[int, ...], layout: str) -> Any:
    made = ((np.arange(int(np.prod(shape))) + position) % 91).astype(dtype).reshape(shape)
    if layout == "channels_last" and made.ndim == 3:
        return np.ascontiguousarray(made.transpose(1, 2, 0)).transpose(2, 0, 1)
    if layout == "transposed":
        return np.asfortranarray(made)
    if layout == "strided" and made.ndim:
        return np.repeat(made, 2, axis=-1)[..., ::2]
    return made


layouts = st.sampled_from(["plain", "channels_last", "transposed", "strided"])
leaves = st.one_of(
    st.tuples(st.just("tensor"), st.sampled_from(TENSOR_DTYPES), st.sampled_from(SHAPES), layouts),
    st.tuples(st.just("array"), st.sampled_from(ARRAY_DTYPES), st.sampled_from(SHAPES), layouts),
    st.sampled_from([("int",), ("float",), ("str",), ("bytes",), ("scalar",)]),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("dict"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("list"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("named"), inner, inner),
        st.tuples(st.just("dataclass"), inner, inner),
    ),
    max_leaves=6,
)


def sample(structure: Any, position: int) -> Any:
    """Return the sample at `position`: a value for each leaf of `structure` that depends on it."""
    kind, *rest = structure
    match kind:
        case "tensor":
            return tensor(position, *rest)
        case "array":
            return array(position, *rest)
        case "int":
            return position * 3
        case "float":
            return position / 7
        case "str":
            return f"text {position}"
        case "bytes":
            return bytes([position % 256]) * (position % 5)
        case "scalar":
            return np.float32(position / 3)
        case "none":
            return None
        case "dict":
            return {f"key {number}": sample(inner, position + number) for number, inner in enumerate(rest[0])}
        case "list":
            return [sample(inner, position + number) for number, inner in enumerate(rest[0])]
        case "tuple":
            return tuple(sample(inner, position + number) for number, inner in enumerate(rest[0]))
        case "named":
            return Point(sample(rest[0], position), sample(rest[1], position + 1))
        case "fields":
            return {"name": sample(rest[0], position), "values": sample(rest[1], position + 1)}
        case "dataclass":
            return Record(sample(rest[0], position), sample(rest[1], position + 1))
    raise AssertionError(kind)


class Structured(Dataset[Any]):
    """Samples of one structure."""

    def __init__(self, structure: Any, length: int) -> None:
        self.structure, self.length = structure, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        return sample(self.structure, position)


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that keeps the samples as they are, strides and all."""
    return samples


def as_oddity(samples: Any) -> Any:
    """A collate function with all that the default one would not make; for one sample, too."""
    samples = samples if type(samples) is list and samples else [samples]
    return {"all": tuple(samples), "first": Record("first", samples[0]), "none": None, 7: [Point(samples[-1], None)]}


def without_dataclasses(structure: Any) -> Any:
    """torch refuses to collate dataclasses; as dicts they hold the same."""
    kind, *rest = structure
    if kind == "dataclass":
        return ("fields", *(without_dataclasses(inner) for inner in rest))
    if kind == "named":
        return (kind, *(without_dataclasses(inner) for inner in rest))
    if kind in ("dict", "list", "tuple"):
        return (kind, [without_dataclasses(inner) for inner in rest[0]])
    return structure


def check_same(ours: Any, theirs: Any, where: str = "batch") -> None:
    """Fail unless two batches are alike in value, type, structure and stride order."""
    if is_dataclass(ours) and isinstance(theirs, dict):
        theirs = Record(**theirs)
    assert type(ours) is type(theirs), f"{where}: {type(ours)} is not {type(theirs)}"
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        assert ours.requires_grad == theirs.requires_grad
        assert torch.equal(ours, theirs), where
        if 0 not in ours.shape and 1 not in ours.shape:
            assert order_of(ours.stride()) == order_of(theirs.stride()), where
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), where
        assert np.array_equal(ours, theirs), where
        if 0 not in ours.shape and 1 not in ours.shape:
            assert order_of(ours.strides) == order_of(theirs.strides), where
    elif isinstance(ours, Mapping):
        assert list(ours) == list(theirs), where
        for key in ours:
            check_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for number, pair in enumerate(zip(ours, theirs)):
            check_same(*pair, f"{where}[{number}]")
    elif is_dataclass(ours):
        for field in fields(ours):
            check_same(getattr(ours, field.name), getattr(theirs, field.name), f"{where}.{field.name}")
    else:
        assert ours == theirs, where


def order_of(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))


# ---------------------------------------------------------------- the same as torch

HERE: list[dict[str, Any]] = [{}, {"num_threads": 2}]
AWAY: list[dict[str, Any]] = [{"num_workers": 2}, {"num_workers": 2, "num_threads": 2}]

streams: dict[str, Any] = {
    "structure": structures,
    "length": st.integers(1, 12),
    "batch_size": st.sampled_from([None, 1, 2, 3, 5]),
    "collate_fn": st.sampled_from([None, None, as_list, as_oddity]),
    "data": st.data(),
}


def check_stream(
    engine: dict[str, Any], structure: Any, length: int, batch_size: Any, collate_fn: Any, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=10), label="positions")
    # where torch collates, it is told of dicts; where nobody does, both see the same
    is_collated = batch_size is not None and collate_fn is None
    theirs_structure = without_dataclasses(structure) if is_collated else structure
    arguments: dict[str, Any] = {"batch_size": batch_size, "collate_fn": collate_fn, "sampler": positions}
    theirs = list(torch_data.DataLoader(Structured(theirs_structure, length), **arguments))
    ours = list(stoker.DataLoader(Structured(structure, length), **arguments, **engine))
    assert len(ours) == len(theirs)
    for number, pair in enumerate(zip(ours, theirs)):
        check_same(*pair, f"batch {number}")


@given(engine=st.sampled_from(HERE), **streams)
@settings(max_examples=80)
def test_inline_and_threads_give_what_torch_gives(engine: Any, **drawn: Any) -> None:
    check_stream(engine, **drawn)


@given(engine=st.sampled_from(AWAY), **streams)
@settings(max_examples=30)
def test_worker_processes_give_what_torch_gives(engine: Any, **drawn: Any) -> None:
    check_stream(engine, **drawn)


@given(structure=structures, length=st.integers(1, 12), batch_size=st.integers(1, 5), seed=st.integers(0, 9))
@settings(max_examples=8)
def test_a_plan_gives_what_torch_gives_for_its_positions(
    structure: Any, length: int, batch_size: int, seed: int
) -> None:
    structure = without_dataclasses(structure)
    dataset = Structured(structure, length)
    loader = stoker.DataLoader(dataset, batch_size=batch_size, shuffle=True, seed=seed, num_workers=1)
    ours, chosen = [], []
    for batch in loader:
        ours.append(batch)
        assert loader.recipe is not None
        chosen.append(loader.recipe.positions.tolist())
    theirs = list(torch_data.DataLoader(dataset, batch_sampler=chosen))
    assert sorted(sum(chosen, [])) == list(range(length))
    for number, pair in enumerate(zip(ours, theirs, strict=True)):
        check_same(*pair, f"batch {number}")


EVERYTHING: Any = (
    "dict",
    [
        ("list", [("tensor", dtype, shape, "plain") for dtype in TENSOR_DTYPES for shape in SHAPES[-3:]]),
        ("tuple", [("array", dtype, shape, "strided") for dtype in ARRAY_DTYPES for shape in ((3,), (20_000,))]),
        ("named", ("int",), ("dict", [("float",), ("str",), ("bytes",), ("scalar",)])),
        (
            "dataclass",
            ("tensor", torch.float32, (2, 3, 64, 64), "channels_last"),
            ("tensor", torch.bool, (0,), "plain"),
        ),
    ],
)
"""Some of everything."""


def test_processes_of_every_start_method_give_what_torch_gives() -> None:
    """All structures at once: such a process takes seconds to start."""
    positions = [5, 0, 3, 3, 1, 4]
    plain = without_dataclasses(EVERYTHING)
    collated = list(torch_data.DataLoader(Structured(plain, 6), batch_size=2, sampler=positions))
    listed = list(
        torch_data.DataLoader(Structured(EVERYTHING, 6), batch_size=2, sampler=positions, collate_fn=as_oddity)
    )
    for engine in ({"multiprocessing_context": "spawn"}, {"multiprocessing_context": "forkserver", "num_threads": 2}):
        arguments: dict[str, Any] = {"batch_size": 2, "sampler": positions, "num_workers": 1, **engine}
        for pair in zip(stoker.DataLoader(Structured(EVERYTHING, 6), **arguments), collated, strict=True):
            check_same(*pair)
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # the standard library would keep it
    arguments = {"batch_size": 2, "sampler": positions, "num_workers": 1, "multiprocessing_context": "spawn"}
    for pair in zip(
        stoker.DataLoader(Structured(EVERYTHING, 6), collate_fn=as_oddity, **arguments), listed, strict=True
    ):
        check_same(*pair)


# ---------------------------------------------------------------- keeping


class Varying(Dataset[Any]):
    """Sample i is full of i, and as long as the test says."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, position: int) -> Any:
        size = self.sizes[position]
        return {"a": torch.full((size,), position), "b": np.full((3, size), position, np.int32), "c": position}


PARTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda batch: None,
    "all": lambda batch: batch,
    "one tensor": lambda batch: batch["a"],
    "a slice": lambda batch: batch["a"][:, 2:-1:3],
    "an array": lambda batch: batch["b"].numpy(),
    "a row of an array": lambda batch: batch["b"].numpy()[0, 1],
    "a reshaped view": lambda batch: batch["b"].transpose(0, 2).flatten(0, 1)[1:],
    "the label": lambda batch: batch["c"],
}


@given(
    sizes=st.lists(st.sampled_from([5, 300, 4_000, 9_000, 60_000]), min_size=1, max_size=24),
    kept=st.lists(st.tuples(st.sampled_from(sorted(PARTS)), st.integers(0, 30)), min_size=1, max_size=40),
    is_persistent=st.booleans(),
    engine=st.sampled_from(AWAY),
    num_epochs=st.integers(1, 2),
)
@settings(max_examples=25)
def test_whatever_is_kept_of_whichever_batches_never_changes(
    sizes: list[int], kept: list[tuple[str, int]], is_persistent: bool, engine: Any, num_epochs: int
) -> None:
    """Each batch is kept in part for some number of steps; slots grow meanwhile, and are used again and again."""
    loader = stoker.DataLoader(Varying(sizes), batch_size=1, persistent_workers=is_persistent, **engine)
    held: list[tuple[int, int, Any]] = []
    step = 0
    for _ in range(num_epochs):
        for number, batch in enumerate(loader):
            part, span = kept[step % len(kept)]
            held.append((step + span, number, PARTS[part](batch)))
            del batch
            step += 1
            for end, value, view in held:
                if end < step and view is not None:
                    check_full(view, value)
            held = [entry for entry in held if entry[0] >= step]
    assert step == num_epochs * len(sizes)
    del loader
    gc.collect()
    for _, value, view in held:  # also when the workers and the loader are gone
        check_full(view, value)


def check_full(view: Any, value: int) -> None:
    if isinstance(view, dict):
        for inner in view.values():
            check_full(inner, value)
    elif view is not None:
        assert (np.asarray(view) == value).all()


def test_a_list_of_all_batches_is_right_and_the_ring_shrinks_after_it() -> None:
    loader = stoker.DataLoader(Varying([5000] * 120), batch_size=1, num_workers=2, persistent_workers=True)
    batches = list(loader)
    assert loader._ring is not None
    assert loader._ring.num_slots >= 120
    for number, batch in enumerate(batches):
        check_full(batch, number)
    del batches, batch
    for _ in range(10 * WINDOW // 120):
        for _ in loader:
            pass
    assert loader._ring.num_slots <= 12


def test_every_third_batch_can_be_kept() -> None:
    loader = stoker.DataLoader(Varying([5000] * 90), batch_size=1, num_workers=2, in_order=False)
    kept = [batch for number, batch in enumerate(loader) if number % 3 == 0]
    assert len(kept) == 30
    for batch in kept:
        check_full(batch, int(batch["c"]))


def test_small_parts_do_not_keep_the_batch() -> None:
    """Whoever keeps the labels of every batch does not keep every batch."""
    loader = stoker.DataLoader(Varying([50_000] * 60), batch_size=1, num_workers=2)
    labels = [batch["c"] for batch in loader]
    assert [int(label) for label in labels] == list(range(60))
    assert loader._ring is not None
    assert loader._ring.num_slots <= 8
