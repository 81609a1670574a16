"""Anything that can be in a batch comes out of a slot as it went in, with its large buffers as views."""

from __future__ import annotations

import array
import ctypes
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stoker.batch import collate, placed
from stoker.engine.slots.arena import WINDOW_BYTES, Arena, Extent
from stoker.engine.slots.batch_pickle import SMALL_BYTES, BatchPickler, unpickle_batch
from stoker.engine.slots.slot_writer import ALIGNMENT, SlotWriter

BIG = SMALL_BYTES + 100
"""So many numbers lie in the slot, of whatever type."""


class Bench:
    """A worker's desk and the trainer's view of the same memory, in one process."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.desk = SlotWriter(self.arena)
        self.packer = BatchPickler(self.desk)
        self.slot = 0

    def open(self, wanted: int = 0) -> None:
        self.slot += 1
        start = self.slot * WINDOW_BYTES
        self.desk.open(self.slot, Extent(start, 0), start + WINDOW_BYTES, wanted)

    def packed(self, batch: Any) -> bytes:
        return self.packer.packed(batch)

    def unpacked(self, parcel: bytes) -> Any:
        if not self.desk.num_bytes:
            return unpickle_batch(parcel, None)
        memory = self.arena.mapped(self.desk.extent)
        return unpickle_batch(parcel, (ctypes.c_char * self.desk.extent.num_bytes).from_buffer(memory))

    def sent(self, batch: Any) -> Any:
        """Return what arrives for `batch`, in memory that has nothing to do with it."""
        self.open()
        return self.unpacked(self.packed(batch))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    vars(made.packer).clear()  # a cycle, and the test runner holds on to fixtures for longer
    vars(made).clear()


def test_plain_python_needs_no_slot(bench: Bench) -> None:
    batch = {"a": [1, 2.5, None, "text", b"bytes"], "b": (True, {3}), "c": torch.arange(3), "d": np.arange(3)}
    arrived = bench.sent(batch)
    assert bench.desk.num_bytes == 0
    assert repr(arrived) == repr(batch)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.arange(count).remainder(2 if dtype is torch.bool else 97).to(dtype).reshape(shape)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are alike in all that shows, to the bit."""
    return (
        ours.dtype is theirs.dtype
        and ours.shape == theirs.shape
        and ours.reshape(-1).view(torch.uint8).equal(theirs.reshape(-1).view(torch.uint8))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [5, BIG], ids=["small", "big"])
def test_a_tensor_of_every_type_comes_as_it_was(bench: Bench, dtype: torch.dtype, size: int) -> None:
    tensor = numbers(dtype, size)
    arrived = bench.sent(tensor)
    assert same(arrived, tensor)
    assert (bench.desk.num_bytes > 0) == (tensor.nbytes > SMALL_BYTES)
    arrived.view(torch.uint8).zero_()  # it is the trainer's to write to


@pytest.mark.parametrize(
    "shaped",
    [
        lambda tensor: tensor.to(memory_format=torch.channels_last),
        lambda tensor: tensor.transpose(0, 3),
        lambda tensor: tensor[:, ::2],
        lambda tensor: tensor[1:, :, 3:],
        lambda tensor: tensor.flip(0),
        lambda tensor: tensor[..., :0],
        lambda tensor: tensor[0, 0, 0, 0],
        lambda tensor: tensor[:1].expand(64, -1, -1, -1),
        lambda tensor: tensor.as_strided((40, 40), (1, 1)),
        lambda tensor: tensor.unsqueeze(0).transpose(0, 2),
    ],
)
@pytest.mark.parametrize("side", [4, 48], ids=["small", "big"])
def test_shape_and_stride_order_are_kept(bench: Bench, shaped: Callable[[Any], Any], side: int) -> None:
    tensor = shaped(numbers(torch.float32, 4, 4, max(side, 12), max(side, 12)))
    arrived = bench.sent(tensor)
    assert same(arrived, tensor)
    if tensor.numel() and 0 not in tensor.stride() and tensor.dim() == 4:
        order = sorted(range(4), key=lambda axis: (-tensor.stride(axis), axis))
        assert sorted(range(4), key=lambda axis: (-arrived.stride(axis), axis)) == order


class Tagged(torch.Tensor):
    """A tensor of the user's own."""


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta",
    "ignore:.*quantized tensor creation functions",
    "ignore:TypedStorage is deprecated",
)
@pytest.mark.parametrize("size", [8, 100], ids=["small", "big"])
@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: x.to_sparse_csc(),
        lambda x: torch.quantize_per_tensor(x, 0.5, 3, torch.quint8),
        lambda x: torch.complex(x, -x).conj(),
        lambda x: torch.complex(x, x).conj().imag,
        lambda x: x.clone().requires_grad_(),
        lambda x: torch.nn.Parameter(x, requires_grad=False),
        lambda x: x.as_subclass(Tagged),
        lambda x: x[:1].expand(300, -1),
    ],
    ids=["coo", "csr", "csc", "quantized", "conj", "neg", "grad", "parameter", "subclass", "expanded"],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch warns itself, in some of its versions
def test_tensors_that_are_not_plain_come_as_they_were(bench: Bench, made: Callable[[Any], Any], size: int) -> None:
    tensor = made(torch.eye(size) * 7)
    arrived = bench.sent([tensor, tensor])
    assert arrived[0] is arrived[1]
    arrived = arrived[0]
    assert type(arrived) is type(tensor)
    assert (arrived.dtype, arrived.layout, arrived.shape) == (tensor.dtype, tensor.layout, tensor.shape)
    assert (arrived.requires_grad, arrived.is_conj(), arrived.is_neg()) == (
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
    )
    dense = [t.dequantize() if t.is_quantized else t.detach().to_dense() for t in (arrived, tensor)]
    assert torch.equal(*dense)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("size", [4, BIG], ids=["small", "big"])
def test_a_nested_tensor_comes_as_it_was(bench: Bench, layout: torch.layout, size: int) -> None:
    parts = [torch.arange(float(size)), torch.arange(size + 3.0)]
    arrived = bench.sent(torch.nested.nested_tensor(parts, layout=layout))
    assert arrived.is_nested
    assert all(torch.equal(*pair) for pair in zip(arrived.unbind(), parts, strict=True))


def test_a_packed_sequence_comes_as_it_was(bench: Bench) -> None:
    packed = pack_sequence([torch.arange(float(BIG)), torch.arange(5.0)])
    arrived = bench.sent(packed)
    assert type(arrived) is PackedSequence
    assert torch.equal(arrived.data, packed.data)
    assert torch.equal(arrived.batch_sizes, packed.batch_sizes)


STRUCTURED = np.dtype([("id", "<i4"), ("where", "<f8", (2,))])


class Labelled(np.ndarray[Any, Any]):
    """An array of the user's own."""


@pytest.mark.parametrize("size", [7, BIG], ids=["small", "big"])
@pytest.mark.parametrize(
    "made",
    [
        lambda n: np.arange(n, dtype=">i4"),
        lambda n: np.arange(n, dtype=np.float16),
        lambda n: np.arange(n).astype(np.longdouble),
        lambda n: (np.arange(n) + 1j).astype(np.complex64),
        lambda n: np.arange(n).astype("datetime64[s]"),
        lambda n: np.arange(n).astype("timedelta64[ms]"),
        lambda n: np.zeros(n, STRUCTURED),
        lambda n: np.rec.array(np.zeros(n, STRUCTURED)),
        lambda n: np.array([None, "text", {}] * n, dtype=object),
        lambda n: np.array(["ab", "cde"] * n),
        lambda n: np.array([b"ab", b"cde"] * n),
        lambda n: np.array(["ab", "a longer text, beyond what fits inside"] * n, dtype=np.dtypes.StringDType()),
        lambda n: np.asfortranarray(np.arange(3 * n).reshape(3, n)),
        lambda n: np.arange(2 * n).reshape(2, n)[:, ::-1],
        lambda n: np.arange(4 * n)[::2],
        lambda n: np.arange(6 * n).reshape(1, 2, 3, n).transpose(2, 0, 3, 1),
        lambda n: np.broadcast_to(np.arange(n), (4, n)),
        lambda n: np.empty((n, 0, 3)),
        lambda n: np.array(n),
        lambda n: np.arange(n).view(Labelled),
        lambda n: np.ma.masked_equal(np.arange(n), 3),
        lambda n: np.arange(n).view(np.ndarray).astype("V8"),
    ],
)
def test_an_array_of_every_kind_comes_as_it_was(bench: Bench, made: Callable[[int], Any], size: int) -> None:
    before = made(size)
    arrived = bench.sent(before)
    assert type(arrived) is type(before)
    assert (arrived.dtype, arrived.shape) == (before.dtype, before.shape)
    assert repr(arrived.tolist()) == repr(before.tolist())
    if before.ndim > 1 and before.size and min(before.strides) > 0:
        order = np.argsort([-stride for stride in before.strides], kind="stable").tolist()
        assert np.argsort([-stride for stride in arrived.strides], kind="stable").tolist() == order


class Buffered:
    """Offers its memory to pickle, out of band, as arrays of other libraries do."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffered, (pickle.PickleBuffer(self.content),)


@pytest.mark.parametrize("size", [0, 9, BIG])
def test_buffers_of_other_objects_lie_in_the_slot(bench: Bench, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    batch = [Buffered(bytearray(content)), Buffered(content), Buffered(array.array("d", [1.5] * size))]
    arrived = bench.sent(batch)
    assert [bytes(each.content) for each in arrived] == [bytes(memoryview(each.content)) for each in batch]
    assert (bench.desk.num_bytes > size) == (size == BIG)


def test_bytes_and_bytearrays_of_any_size_come_as_they_were(bench: Bench) -> None:
    batch = [b"x" * BIG, bytearray(b"y" * BIG), b"", "z" * BIG]
    assert bench.sent(batch) == batch


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Record:
    name: str
    values: Any


def test_structure_and_identity_are_kept(bench: Bench) -> None:
    big, small = torch.arange(BIG), np.arange(4)
    batch = {"pair": Pair(big, [big, small]), "record": Record("a", small), 3: None}
    arrived = bench.sent(batch)
    assert type(arrived["pair"]) is Pair
    assert type(arrived["record"]) is Record
    assert list(arrived) == list(batch)
    assert arrived["pair"].first is arrived["pair"].second[0]
    assert arrived["pair"].second[1] is arrived["record"].values
    assert torch.equal(arrived["pair"].first, big)


def test_what_shares_memory_comes_with_the_same_values(bench: Bench) -> None:
    whole = torch.arange(2 * BIG)
    batch: list[Any] = [whole, whole[BIG:], whole[::2], whole[3], whole.numpy()[5:]]
    arrived = bench.sent(batch)
    for ours, theirs in zip(arrived, batch):
        assert np.array_equal(ours, theirs)
    slices = bench.sent([whole[:4] for _ in range(1000)])
    assert bench.desk.num_bytes == 0  # small pieces of something large do not take it along
    assert torch.equal(slices[999], whole[:4])


def test_a_storage_comes_with_its_content(bench: Bench) -> None:
    tensor = torch.arange(float(BIG))
    untyped, typed = bench.sent([tensor.untyped_storage(), tensor[:3].clone().untyped_storage()])
    assert torch.equal(torch.empty(0).set_(untyped), tensor)
    assert torch.equal(torch.empty(0).set_(typed), tensor[:3])


def test_what_was_collated_into_the_slot_is_not_copied_again(bench: Bench) -> None:
    samples = [{"image": torch.full((3, 64, 64), float(i)), "mask": np.full((64, 64), i), "y": i} for i in range(4)]
    bench.open()
    with placed(bench.desk.take):
        batch = collate(samples)
    used = bench.desk.num_bytes
    arrived = bench.unpacked(bench.packed(batch))
    assert bench.desk.num_bytes == used
    assert used < sum(batch[key].nbytes for key in ("image", "mask")) + 2 * ALIGNMENT
    assert all(torch.equal(arrived[key], batch[key]) for key in batch)


@pytest.mark.parametrize("wanted", [0, 1 << 20])
def test_a_desk_that_grows_in_the_middle_of_a_batch_takes_everything_along(bench: Bench, wanted: int) -> None:
    """Each piece needs a bigger slot than the ones before: what was collated into those has moved on."""
    samples = [[torch.full((2, BIG << number), float(number + i)) for number in range(4)] for i in range(2)]
    for _ in range(3):  # in a new slot each time
        bench.open(wanted=wanted)
        with placed(bench.desk.take):
            batch = collate(samples)
        batch.append(np.arange(8 * BIG))  # copied in, after all that
        arrived = bench.unpacked(bench.packed(batch))
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(arrived, batch, strict=True))


def test_a_batch_that_is_made_a_second_time_begins_the_slot_again(bench: Bench) -> None:
    bench.open()
    with placed(bench.desk.take):
        collate([torch.zeros(BIG), torch.zeros(BIG)])
        used = bench.desk.num_bytes
        bench.desk.clear()
        batch = collate([torch.ones(BIG), torch.ones(BIG)])
    assert bench.desk.num_bytes == used
    assert torch.equal(bench.unpacked(bench.packed(batch)), batch)


def test_extents_left_behind_by_growing_give_their_memory_back(bench: Bench) -> None:
    """The trainer knows the extent that it gave and the one that it gets; those in between are the desk's to free."""
    samples = [[torch.zeros(BIG) for _ in range(12)]] * 2
    for _ in range(6):
        bench.open()
        with placed(bench.desk.take):
            collate(samples)
        last = bench.desk.extent
    bench.open()
    held = os.fstat(bench.arena.descriptor).st_blocks * 512
    assert held < 7 * last.num_bytes
