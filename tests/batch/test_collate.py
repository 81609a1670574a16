"""Collation gives what torch's gives, to the type, for any nested samples."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.utils.data import default_collate

from stoker.batch import collate

Pair = namedtuple("Pair", ["left", "right"])

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "uint16"]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two batches are equal in type, structure, dtype, shape, strides and values."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        if (ours.dtype, ours.shape, ours.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            return False
        return (
            bool(torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs)))
            if ours.is_floating_point()
            else bool((ours == theirs).all())
        )
    if isinstance(ours, dict | OrderedDict | UserDict | MappingProxyType):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple | UserList | deque):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """A batch of samples of one shape: leaves of any kind, in containers of any kind."""
    count = draw(st.integers(1, 5))

    def leaf() -> list[Any]:
        kind = draw(st.sampled_from(["int", "float", "str", "bytes", "array", "tensor", "scalar", "bool"]))
        if kind == "int":
            return draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
        if kind == "float":
            return draw(st.lists(st.floats(allow_nan=False), min_size=count, max_size=count))
        if kind == "str":
            return draw(st.lists(st.text(max_size=3), min_size=count, max_size=count))
        if kind == "bytes":
            return draw(st.lists(st.binary(max_size=3), min_size=count, max_size=count))
        if kind == "bool":
            return draw(st.lists(st.booleans(), min_size=count, max_size=count))
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3, min_side=0))
        values = [
            draw(arrays.arrays(dtype, shape, elements={"allow_nan": False} if dtype[0] in "fc" else None))
            for _ in range(count)
        ]
        if kind == "scalar":
            return [np.dtype(dtype).type(draw(st.integers(0, 1))) for _ in range(count)]
        if kind == "tensor":
            return [torch.from_numpy(np.array(value)) for value in values]
        return [np.asarray(value) for value in values]

    def node(depth: int) -> list[Any]:
        kind = draw(st.sampled_from(["leaf", "dict", "list", "tuple", "pair", "ordered", "userdict", "userlist"]))
        if depth == 0 or kind == "leaf":
            return leaf()
        width = 2 if kind == "pair" else draw(st.integers(1, 3))
        columns = [node(depth - 1) for _ in range(width)]
        rows = list(zip(*columns))
        makers: dict[str, Any] = {
            "dict": lambda row: {f"k{i}": value for i, value in enumerate(row)},
            "ordered": lambda row: OrderedDict((f"k{i}", value) for i, value in enumerate(row)),
            "userdict": lambda row: UserDict({f"k{i}": value for i, value in enumerate(row)}),
            "list": list,
            "userlist": UserList,
            "tuple": tuple,
            "pair": lambda row: Pair(*row),
        }
        return [makers[kind](row) for row in rows]

    return node(draw(st.integers(0, 3)))


@given(samples=batches())
def test_it_gives_what_torch_gives(samples: list[Any]) -> None:
    assert same(collate(samples), default_collate(samples))


@pytest.mark.parametrize(
    "samples",
    [
        [2**70, 1],
        [1, 2.5],
        [True, False],
        [1.5, 2],
        [np.zeros(2), np.zeros(2, dtype=np.float32)],
        [np.zeros(2, dtype=np.float32), np.zeros(2)],
        [np.zeros((2, 3)).T, np.zeros((2, 3)).T],
        [torch.zeros(2, 3).T, torch.zeros(2, 3).T],
        [torch.zeros(2, requires_grad=True), torch.zeros(2)],
        [range(3), range(3)],
        [MappingProxyType({"a": 1}), MappingProxyType({"a": 2})],
        [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))],
        [np.array(["a"]), np.array(["b"])],
        [np.array([None]), np.array([None])],
        [None, None],
        [object()],
        [{1, 2}, {3}],
        [np.zeros(2), np.zeros(3)],
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2).to_sparse()],
        [{"a": 1}, {"b": 2}],
        [(1, 2), (1,)],
        [np.zeros(2, dtype=">f4"), np.zeros(2, dtype=">f4")],
        [np.longdouble(1), np.longdouble(2)],
        [np.datetime64("2020-01-01")],
    ],
)
def test_odd_samples_end_as_in_torch(samples: list[Any]) -> None:
    try:
        theirs = default_collate(samples)
    except Exception as error:
        with pytest.raises(type(error)):
            collate(samples)
        return
    assert same(collate(samples), theirs)


def test_read_only_arrays_make_writable_batches_without_a_warning() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    batch = collate([array, array])
    batch += 1
    assert batch.tolist() == [[1.0] * 3] * 2


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    value: np.ndarray[Any, Any]


@dataclass
class Derived:
    number: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.number


def test_dataclasses_keep_their_type() -> None:
    batch: Any = collate([Frozen("a", np.zeros(2)), Frozen("b", np.ones(2))])
    assert type(batch).__name__ == "Frozen"
    assert batch.name == ["a", "b"]
    assert torch.as_tensor(batch.value).tolist() == [[0, 0], [1, 1]]
    derived = collate([{"d": Derived(1)}, {"d": Derived(2)}])["d"]
    assert (torch.as_tensor(derived.number).tolist(), torch.as_tensor(derived.double).tolist()) == ([1, 2], [2, 4])
