"""What every worker gets: written once, shared between workers, and what it was in the trainer."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from stoker.engine.processes.shared_pickle import ALIGN_BYTES, MIN_SHARED_BYTES, SharedPickle
from stoker.errors import NotPicklable

NUM_LARGE = 1 << 25
"""Numbers in an array of 256 MiB."""


def packed(load: Any, **parts: Any) -> SharedPickle:
    return SharedPickle(load, parts=parts, start_method="spawn")


def sent(load: Any) -> Any:
    """Return the load as a worker would get it, but in this process."""
    return packed(load).unpacked()


class Tagged(torch.Tensor):
    """A tensor subclass."""

    tag: str


class Dataset:
    """Holds one of everything that travels in its own way."""

    def __init__(self, context: Any, folder: Path) -> None:
        self.large = np.ones(NUM_LARGE)
        self.rows = self.large[1000:]
        self.tensor = torch.arange(10_000.0)
        self.tail = self.tensor[5000:]
        self.parameter = torch.nn.Parameter(torch.ones(3))
        self.together = torch.zeros(2)
        self.together.untyped_storage().share_memory_()
        self.counter = context.Value("i", 0)
        self.queue = context.Queue()
        self.barrier = context.Barrier(2)
        self.mine, self.theirs = socket.socketpair()
        (folder / "numbers").write_bytes(np.arange(100_000).tobytes())
        self.mapped = np.memmap(folder / "numbers", np.int64, "r+")
        self.name = "numbers"
        self.itself = self

    def increment(self) -> None:
        with self.counter.get_lock():
            self.counter.value += 1

    def close(self) -> None:
        self.queue.close()
        self.queue.join_thread()
        self.mine.close()
        self.theirs.close()


def private_bytes() -> int:
    """Return how much memory only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def check(number: int, cargo: SharedPickle) -> None:
    """Look at a dataset in a worker process, and report."""
    before = private_bytes()
    dataset, increment, words = cargo.unpacked()
    queue = dataset.queue
    try:
        assert dataset.large.sum() == NUM_LARGE
        dataset.barrier.wait(60)  # pages are private to a process until another has touched them, too
        num_private = private_bytes() - before
        dataset.barrier.wait(60)

        assert dataset.itself is dataset
        assert increment.func.__self__ is dataset
        assert words == ["a", "b"]
        assert np.shares_memory(dataset.large, dataset.rows)
        assert dataset.tail.untyped_storage() is dataset.tensor.untyped_storage()
        assert dataset.tail.tolist() == list(range(5000, 10_000))
        assert type(dataset.parameter) is torch.nn.Parameter and dataset.parameter.requires_grad

        dataset.large[:] = number  # ours alone
        dataset.tensor[:] = number
        dataset.barrier.wait(60)
        assert (dataset.rows == number).all() and (dataset.tail == number).all()

        increment()
        dataset.together[number] = 7
        dataset.mapped[number] = 7 + number
        dataset.mapped.flush()
        dataset.theirs.send(b"!")
        queue.put((number, num_private, type(dataset.mapped).__name__, len(cargo._travellers)))
    except BaseException as error:
        dataset.barrier.abort()
        queue.put((number, repr(error)))
        raise


@contextmanager
def no_server_left() -> Iterator[None]:
    """End the standard library's server of forks, which would stay with the interpreter."""
    try:
        yield
    finally:
        server: Any = multiprocessing.forkserver._forkserver
        server._stop()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_two_workers_share_what_they_only_read_and_what_was_made_to_be_shared(method: str, tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context(method)
    with no_server_left():
        dataset = Dataset(context, tmp_path)
        words = ["a", "b"]
        cargo = SharedPickle((dataset, functools.partial(dataset.increment), words), parts={}, start_method=method)
        assert cargo.num_bytes < dataset.large.nbytes + (1 << 20)
        workers = [context.Process(target=check, args=(number, cargo)) for number in range(2)]
        for worker in workers:
            worker.start()
        cargo.close()
        reports = sorted(dataset.queue.get(timeout=100) for _ in workers)
        for worker in workers:
            worker.join()
            worker.close()
        for number, report in enumerate(reports):
            assert len(report) == 4, report
            assert report[0] == number
            assert report[1] < 32 << 20  # of 256 MiB
            assert report[2:] == ("memmap", 0)
        assert dataset.large.sum() == NUM_LARGE and dataset.tensor[1] == 1  # what they wrote was theirs
        assert dataset.counter.value == 2
        assert dataset.together.tolist() == [7, 7]
        assert dataset.mapped[:3].tolist() == [7, 8, 2]
        assert dataset.mine.recv(2) == b"!!" or dataset.mine.recv(1) == b"!"
        dataset.close()
        del dataset, workers, worker
        gc.collect()


def dense(shape: tuple[int, ...], dtype: Any, order: tuple[int, ...], is_writable: bool) -> np.ndarray[Any, Any]:
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape).transpose(order)
    array.flags.writeable = is_writable
    return array


arrays = st.integers(0, 3).flatmap(
    lambda num_axes: st.builds(
        dense,
        st.tuples(*[st.integers(0, 40)] * num_axes),
        st.sampled_from(["u1", "i2", "f4", "f8", "c16", "M8[s]", "?", "S3", "i4,f8", "O"]).map(np.dtype),
        st.permutations(range(num_axes)).map(tuple),
        st.booleans(),
    )
)
tensors = st.builds(
    lambda shape, dtype, requires_grad: (
        torch.arange(float(np.prod(shape)))
        .reshape(shape)
        .to(dtype)
        .requires_grad_(requires_grad and dtype.is_floating_point)
    ),
    st.lists(st.integers(0, 30), max_size=3),
    st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.complex64, torch.bool]),
    st.booleans(),
)


@st.composite
def families(draw: Any) -> list[torch.Tensor]:
    """Tensors that view one storage."""
    tensor = draw(tensors).detach().unsqueeze(-1)
    return [tensor, tensor[1:], tensor.t() if tensor.dim() == 2 else tensor.unsqueeze(0), tensor.clone()]


loads = st.recursive(
    arrays | tensors | families() | st.text() | st.none() | st.integers() | st.binary(max_size=2 * MIN_SHARED_BYTES),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=4)
        | inner.map(lambda twice: [twice, twice])
    ),
    max_leaves=8,
)


def assert_same(one: Any, other: Any, known: dict[int, Any]) -> None:
    """Assert that two loads are equal in all that matters, and share where the other shares."""
    assert type(one) is type(other)
    if isinstance(one, str | bytes | int | None):
        assert one == other
        return
    assert known.setdefault(id(one), other) is other
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b, known)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name], known)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)
        if one.nbytes >= MIN_SHARED_BYTES and one.dtype != object:
            assert one.strides == other.strides
            assert one.flags.writeable == other.flags.writeable
        assert other.flags.aligned
    else:
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert (one.storage_offset(), one.requires_grad) == (other.storage_offset(), other.requires_grad)
        assert torch.equal(one, other)
        assert_same_storage(one.untyped_storage(), other.untyped_storage(), known)


def assert_same_storage(one: Any, other: Any, known: dict[int, Any]) -> None:
    assert one.nbytes() == other.nbytes()
    assert known.setdefault(-id(one), other) is other


@given(load=loads)
def test_any_load_is_what_it_was(load: Any) -> None:
    assert_same(load, sent(load), {})


@given(array=st_numpy.arrays(np.int64, (40, 50)), data=st.data())
def test_slices_come_with_equal_values_and_share_memory_where_they_overlapped(array: Any, data: st.DataObject) -> None:
    slices = [
        array[data.draw(st_numpy.basic_indices(array.shape, allow_ellipsis=False))] for _ in range(3)
    ]  # of any strides, forward or backward
    again = sent([array, *slices])
    for one, other in zip(slices, again[1:]):
        assert np.array_equal(one, other)
    starts = [array[number:] for number in range(20)]
    assert packed([array, *starts]).num_bytes < array.nbytes + 8192
    whole, *parts = sent([array, *starts])
    whole[-1] = 99
    assert all((part[-1] == 99).all() for part in parts)


def test_memory_is_as_aligned_as_it_was() -> None:
    again = sent([np.zeros(10_000)[start:] for start in range(5)] + [b"odd", np.zeros(9_999, np.int8)])
    assert all(array.flags.aligned for array in again if not isinstance(array, bytes))
    memory = np.zeros(100_000, np.uint8)
    offset = -memory.ctypes.data % ALIGN_BYTES
    assert sent(memory[offset:]).ctypes.data % ALIGN_BYTES == 0


def test_an_array_and_the_tensor_made_of_it_still_share_their_memory() -> None:
    array = np.zeros(10_000)
    again, tensor = sent([array, torch.from_numpy(array)])
    tensor[3] = 5
    assert again[3] == 5 and array[3] == 0


def test_unusual_tensors_keep_working() -> None:
    eye = torch.eye(100)
    tagged = torch.ones(2000).as_subclass(Tagged)
    tagged.tag = "here"
    load: list[Any] = [
        eye.to_sparse(),
        torch.ones(50, 50, dtype=torch.complex64).conj(),
        torch.ones(3000, dtype=torch.uint16),
        torch.empty(3, device="meta"),
        tagged,
        torch.nn.Linear(100, 100),
        eye.untyped_storage(),
        torch.zeros(0),
    ]
    sparse, conjugate, short, meta, again, linear, storage, empty = sent(load)
    assert sparse.is_sparse and torch.equal(sparse.to_dense(), eye)
    assert conjugate.is_conj() and torch.equal(conjugate, load[1])
    assert short.dtype == torch.uint16 and short.tolist() == [1] * 3000
    assert meta.device.type == "meta"
    assert type(again) is Tagged and again.tag == "here"
    assert all(parameter.requires_grad for parameter in linear.parameters())
    assert bytes(storage) == bytes(eye.untyped_storage())
    assert empty.shape == (0,)


@pytest.mark.parametrize(("mode", "becomes"), [("r", "r"), ("r+", "r+"), ("w+", "r+"), ("c", "c")])
def test_a_memmap_travels_as_the_name_of_its_file(mode: Any, becomes: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(8 * 100_010))
    whole = np.memmap(path, np.int64, mode, 80, (1000, 100))
    if mode != "r":
        whole[:] = np.arange(100_000).reshape(1000, 100)
    if mode == "c":  # of which no other process can know
        path.write_bytes(bytes(80) + np.arange(100_000).tobytes())
    load = [whole, whole[20:30], whole[::-2, 3:50:7], np.asarray(whole)[500:]]
    cargo = packed(load)
    assert cargo.num_bytes < 8192
    again = cargo.unpacked()
    for one, other in zip(load, again):
        assert type(one) is type(other)
        assert np.array_equal(one, other)
        assert (one.strides, one.flags.writeable) == (other.strides, other.flags.writeable)
    assert again[0].mode == becomes
    assert Path(again[1].filename) == path
    if mode != "r":
        again[0][999, 99] = -1
        assert again[3][-1, -1] == -1  # they are one map, still
        assert (whole[999, 99] == -1) == (mode != "c")
        again[0].flush()
    assert np.array_equal(sent(again)[2], again[2]) or mode == "c"


def test_a_memmap_whose_file_is_gone_travels_as_its_content(tmp_path: Path) -> None:
    numbers = np.memmap(tmp_path / "numbers", np.int64, "w+", shape=(10_000,))
    numbers[:] = 3
    (tmp_path / "numbers").unlink()
    again = sent(numbers)
    assert type(again) is np.ndarray
    assert again.sum() == 30_000


def test_the_part_that_cannot_be_pickled_is_named() -> None:
    parts: dict[str, Any] = {"the dataset": [1, 2], "worker_init_fn": None, "the collate function": lambda: 1}
    with pytest.raises(NotPicklable, match=r"the collate function cannot be sent.*'forkserver'.*lambda") as caught:
        SharedPickle(tuple(parts.values()), parts=parts, start_method="forkserver")
    assert caught.value.__cause__ is not None


def test_an_error_that_no_part_is_to_blame_for_is_raised_as_it_is() -> None:
    with pytest.raises(TypeError, match="pickle"):
        packed(threading.Lock(), dataset=[1])


def test_a_lack_of_memory_is_the_error_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        packed(np.zeros(10_000), dataset=lambda: 1)


def test_a_python_without_memory_files_asks_the_system_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    assert sent(np.ones(10_000)).sum() == 10_000


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("end", [SharedPickle.close, lambda cargo: None], ids=["closed", "dropped"])
def test_the_descriptor_goes_with_the_cargo(end: Callable[[SharedPickle], None]) -> None:
    before = num_descriptors()
    cargo = packed(np.zeros(10_000))
    assert num_descriptors() == before + 1
    end(cargo)
    end(cargo)
    del cargo
    assert num_descriptors() == before


def test_a_cargo_travels_only_to_a_process_that_starts() -> None:
    cargo = packed([1])
    with pytest.raises(RuntimeError, match="should only be shared between processes through inheritance"):
        pickle.dumps(cargo)
    cargo.close()


def test_packing_holds_on_to_nothing() -> None:
    array = bytearray(10_000)
    packed(np.frombuffer(array, np.uint8)).close()
    array.append(1)  # refused while a buffer is held
