"""On a CUDA device: values are right under heavy overlap, and memory on both sides lives as long as it is read."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from stoker.deliver import CudaPageLock, Delivery, Widening, checked_device
from stoker.deliver.driver import driver
from stoker.errors import ArgumentError
from tests.deliver.test_delivery_cpu import Script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LONG = 200_000_000
"""Clock cycles: about a tenth of a second."""

_cuda: Any = torch.cuda  # parts of it have no types
_sleep = _cuda._sleep


@pytest.fixture(scope="module", autouse=True)
def cuda_is_started() -> None:
    """What the driver opens once stays open, and is not a leak of ours."""
    with torch.cuda.stream(_cuda.Stream()):
        torch.zeros(1).pin_memory().to("cuda").sum().item()


@pytest.fixture(autouse=True)
def all_is_quiet_afterwards() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def delivery(steps: Any, depth: int = 2, **options: Any) -> Delivery[Any]:
    device = checked_device("cuda")
    assert device is not None
    return Delivery(Script(steps), device, depth=depth, **options)


class Region:
    """A memory file that is page-locked, as slots are."""

    def __init__(self, lock: CudaPageLock, num_bytes: int) -> None:
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, num_bytes)
        self.memory = mmap.mmap(descriptor, num_bytes)
        os.close(descriptor)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.num_bytes = num_bytes
        self.is_locked = lock.lock(self.address, num_bytes)
        self.tensor = torch.frombuffer(self.memory, dtype=torch.uint8)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_values_are_right_under_heavy_overlap(depth: int, is_pinned: bool) -> None:
    def batches() -> Iterator[dict[str, Tensor]]:
        for number in range(40):
            batch = {"x": torch.full((1 << 20,), float(number)), "label": torch.tensor([number])}
            yield {name: tensor.pin_memory() for name, tensor in batch.items()} if is_pinned else batch

    side = _cuda.Stream()
    sums = []
    delivered = delivery(batches(), depth)
    for number in range(40):
        batch = next(delivered)
        stream = side if number % 3 == 0 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            # handed over to another stream, as a careful user does
            stream.wait_stream(torch.cuda.default_stream())
            if number % 5 == 0:
                _sleep(2_000_000)
            sums.append((batch["x"].mean(), batch["x"].max(), batch["label"]))
            for tensor in batch.values():
                tensor.record_stream(stream)
        del batch
    torch.cuda.synchronize()
    assert [(mean.item(), most.item(), label.item()) for mean, most, label in sums] == [(n, n, n) for n in range(40)]


def test_a_consumer_on_a_stream_of_its_own_sees_the_batch_complete() -> None:
    delivered = delivery([torch.full((1 << 24,), float(number)) for number in range(6)], depth=3)
    with torch.cuda.stream(_cuda.Stream()):
        sums = [next(delivered).mean() for _ in range(6)]
        torch.cuda.current_stream().synchronize()
        assert [value.item() for value in sums] == [0, 1, 2, 3, 4, 5]


def test_the_device_and_the_stream_of_the_caller_stay_as_they_were() -> None:
    side = _cuda.Stream()
    with torch.cuda.stream(side):
        next(delivery([torch.ones(4), torch.ones(4)]))
        assert torch.cuda.current_stream() == side
        assert torch.cuda.current_device() == side.device.index


class Passing:
    """An engine that forgets what it has given."""

    def __init__(self, *steps: Any) -> None:
        self.steps = deque(steps)

    @property
    def is_ready(self) -> bool:
        return bool(self.steps)

    def __next__(self) -> Any:
        if not self.steps:
            raise StopIteration
        return self.steps.popleft()

    def close(self) -> None:
        pass


def test_the_host_batch_is_held_until_its_copy_is_complete_and_no_longer() -> None:
    engine = Passing(torch.ones(1 << 16).pin_memory(), *(torch.zeros(4).pin_memory() for _ in range(3)))
    gone = weakref.ref(engine.steps[0])
    delivered: Delivery[Any] = Delivery(engine, torch.device("cuda"), depth=0)
    assert delivered._copies is not None
    with torch.cuda.stream(delivered._copies._stream):
        _sleep(LONG)  # the copy stream is held up, and the copy with it
    batch = next(delivered)
    assert gone() is not None
    next(delivered)
    assert gone() is not None
    torch.cuda.synchronize()
    next(delivered)
    assert gone() is None
    assert batch.sum().item() == 1 << 16


def test_dropping_or_closing_waits_for_the_copies() -> None:
    for end in ("close", "drop"):
        host = torch.zeros(1 << 20).pin_memory()
        delivered = delivery([host, torch.zeros(4)], depth=0)
        copies = delivered._copies
        assert copies is not None
        with torch.cuda.stream(copies._stream):
            _sleep(LONG)
        batch = next(delivered)
        if end == "close":
            delivered.close()
        del delivered
        assert copies._stream.query()
        host.fill_(7)  # as a worker would that has the slot again
        assert batch.max().item() == 0


def test_memory_is_not_reused_while_a_kernel_of_the_trainer_reads_it() -> None:
    size = 1 << 22
    delivered = delivery([torch.full((size,), float(number)).pin_memory() for number in range(12)], depth=0)
    first = next(delivered)
    _sleep(LONG)  # the trainer's stream is far behind
    total = first.clone()
    del first
    for _ in range(11):  # of the same size: without care the first of them gets the memory that was let go of
        next(delivered)
    torch.cuda.synchronize()
    assert total.max().item() == 0


def test_batches_are_widened_on_the_device() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    widen = Widening({torch.uint8: torch.bfloat16}, ((0.5,) * 3, (0.5,) * 3))
    batch = next(delivery([{"image": images, "label": torch.arange(4), "name": ["a"] * 4}], widen=widen))
    assert batch["image"].is_cuda and batch["image"].dtype is torch.bfloat16
    torch.testing.assert_close(batch["image"].cpu(), widen(images))
    assert batch["label"].is_cuda and batch["label"].dtype is torch.int64
    assert batch["name"] == ["a"] * 4


class Own:
    def __init__(self, values: Any) -> None:
        self.values = values

    def to(self, device: Any, non_blocking: bool = False) -> Own:
        self.values = self.values.to(device, non_blocking=non_blocking)  # in place
        return self


class Opaque:
    """Cannot be looked into."""

    def __init__(self, values: Tensor) -> None:
        self.get = iter([values])

    def to(self, device: Any) -> Any:
        return next(self.get).to(device)


def test_whatever_can_be_in_a_batch_arrives() -> None:
    ones = torch.ones(3)
    batch = {
        "packed": pack_sequence([torch.ones(2), torch.ones(1)]),
        "own": Own(torch.ones(5)),
        "opaque": Opaque(torch.ones(6)),
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([ones, ones], layout=torch.jagged),
        "there": torch.ones(4, device="cuda", dtype=torch.float16),
        "plain": torch.ones(7, dtype=torch.float16),
        "strided": torch.arange(12.0).reshape(3, 4).t()[::2],
        "empty": torch.empty(0, 3),
        "number": 3,
    }
    got = next(delivery([batch], widen=Widening({torch.float16: torch.float32})))
    assert got["packed"].data.is_cuda and got["packed"].data.sum().item() == 3
    assert got["own"].values.is_cuda and got["own"].values.sum().item() == 5
    assert got["opaque"].is_cuda and got["opaque"].sum().item() == 6
    assert got["sparse"].is_cuda and got["sparse"].to_dense().trace().item() == 3
    assert got["nested"].is_cuda
    assert got["there"].is_cuda and got["there"].dtype is torch.float32
    assert got["plain"].is_cuda and got["plain"].dtype is torch.float32 and got["plain"].sum().item() == 7
    assert got["strided"].cpu().tolist() == [[0, 4, 8], [2, 6, 10]]
    assert got["empty"].shape == (0, 3) and got["empty"].is_cuda
    assert got["number"] == 3


def test_an_error_of_the_widening_comes_in_its_turn() -> None:
    good, bad = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
    delivered = delivery([good, bad, good], widen=Widening(None, ((0.5,) * 3, (0.5,) * 3)))
    assert next(delivered).dtype is torch.float32
    with pytest.raises(ArgumentError, match=r"\(1, 2, 4, 4\)"):
        next(delivered)
    assert next(delivered).dtype is torch.float32


def test_a_device_number_that_is_not_there_is_refused() -> None:
    assert checked_device(0) == torch.device("cuda", 0)
    with pytest.raises(ArgumentError, match="counted from 0"):
        checked_device(torch.cuda.device_count())


# -------------------------------------------------------------------- page-locking


def test_a_mapped_memory_file_is_locked_and_unlocked() -> None:
    lock = CudaPageLock()
    region = Region(lock, 1 << 22)
    assert region.is_locked
    assert region.tensor.is_pinned() and region.tensor[12345:].is_pinned()
    region.tensor.fill_(3)
    assert region.tensor.to("cuda", non_blocking=True).sum().item() == 3 << 22
    lock.unlock(region.address)
    assert not region.tensor.is_pinned()
    lock.unlock(region.address)
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_a_refusal_warns_once_and_leaves_nothing_behind_in_cuda() -> None:
    lock = CudaPageLock()
    region = Region(lock, 1 << 16)
    with pytest.warns(UserWarning, match=r"cannot be page-locked \(CUDA says: (.|\n)*ulimit -l"):
        assert not lock.lock(region.address, region.num_bytes)  # locked already
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not lock.lock(region.address, region.num_bytes)
    assert torch.ones(3, device="cuda").sum().item() == 3
    lock.unlock(region.address)
    assert not region.tensor.is_pinned()


def test_a_forked_child_does_nothing() -> None:
    lock = CudaPageLock()
    region = Region(lock, 1 << 16)
    child = os.fork()
    if not child:
        lock.unlock(region.address)
        os._exit(0 if lock.fence()() and not lock.lock(region.address, 4096) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert region.tensor.is_pinned()
    lock.unlock(region.address)


@pytest.mark.parametrize("is_new", [True, False], ids=["one event", "every stream"])
@pytest.mark.parametrize("priority", [0, -1, -3])
def test_a_fence_covers_copies_on_side_streams(is_new: bool, priority: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = driver()
    if cuda is not None and not is_new:
        monkeypatch.setattr(cuda, "_record_all", None)  # as before CUDA 12.5
    lock = CudaPageLock()
    region = Region(lock, 1 << 20)
    assert lock.fence()()
    side = _cuda.Stream(priority=priority)
    with torch.cuda.stream(side):
        _sleep(LONG)
        copied = region.tensor.to("cuda", non_blocking=True)
    is_past = lock.fence()
    assert not is_past()
    assert not lock.fence()()
    side.synchronize()
    assert is_past()
    assert is_past()
    assert copied.sum().item() == 0
    lock.unlock(region.address)


def test_a_fence_does_not_wait_for_what_comes_later() -> None:
    lock = CudaPageLock()
    region = Region(lock, 4096)
    is_past = lock.fence()
    _sleep(LONG)
    later = lock.fence()
    assert is_past()
    assert not later()
    lock.unlock(region.address)


@pytest.mark.parametrize("is_new", [True, False], ids=["one event", "every stream"])
@pytest.mark.parametrize("thread", [False, True], ids=["here", "in a thread"])
def test_a_graph_that_is_being_captured_is_not_spoilt(
    is_new: bool, thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = driver()
    if cuda is not None and not is_new:
        monkeypatch.setattr(cuda, "_record_all", None)
    lock = CudaPageLock()
    region = Region(lock, 4096)
    before = lock.fence()
    x = torch.ones(4, device="cuda")
    seen: list[Any] = []

    def use() -> None:
        seen.append(before())
        fence = lock.fence()
        seen.extend((fence, fence()))
        other = Region(lock, 8192)
        seen.append(other.is_locked)
        lock.unlock(other.address)

    graph = _cuda.CUDAGraph()
    with _cuda.graph(graph):
        y = x * 2
        if thread:
            worker = threading.Thread(target=use)
            worker.start()
            worker.join()
        else:
            use()
        y += 1
    graph.replay()
    assert y.tolist() == [3.0] * 4
    torch.cuda.synchronize()
    was_past, fence, is_past, is_locked = seen
    assert was_past and is_locked
    assert not is_past  # it cannot be told while a graph is captured
    assert fence()
    lock.unlock(region.address)


def test_fences_in_a_thread_that_never_used_cuda() -> None:
    lock = CudaPageLock()
    region = Region(lock, 4096)
    seen: list[bool] = []
    with torch.cuda.stream(_cuda.Stream()):
        _sleep(LONG)
    worker = threading.Thread(target=lambda: seen.append(lock.fence()()))
    worker.start()
    worker.join()
    assert seen == [False]
    torch.cuda.synchronize()
    worker = threading.Thread(target=lambda: seen.append(lock.fence()()))
    worker.start()
    worker.join()
    assert seen == [False, True]
    lock.unlock(region.address)
