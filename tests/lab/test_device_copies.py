"""Copies to the device are counted where they are asked for, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import stoker
from stoker.lab.watch.hook import device_copies, recording
from stoker.lab.watch.hook.patches import Patches
from stoker.lab.watch.watch import watch
from tests.lab.pathologies import Quick


@pytest.fixture
def now(tmp_path: Path) -> Iterator[recording.Recording]:
    begun = recording.begin(str(tmp_path))
    begun.trainer_note["thread"] = threading.get_native_id()
    yield begun
    recording.end()


@pytest.fixture
def patched(now: recording.Recording) -> Iterator[None]:
    patches = Patches()
    goes: Any = device_copies._goes_to_device
    patches.wrap(torch.Tensor, "to", lambda original: device_copies.counted(original, torch, goes=goes))
    yield
    patches.undo()


@pytest.mark.usefixtures("patched")
def test_tensors_that_stay_on_the_host_are_converted_as_ever(now: recording.Recording) -> None:
    tensor = torch.ones(100_000)
    assert tensor.to("cpu") is tensor
    assert tensor.to(torch.float64).dtype == torch.float64
    assert tensor.to(device="cpu", dtype=torch.float16, non_blocking=True).dtype == torch.float16
    assert tensor.to(torch.zeros(1, dtype=torch.int8)).dtype == torch.int8
    assert torch.nn.Linear(2, 2).to(torch.float64).weight.dtype == torch.float64
    assert "copies" not in now.trainer_note


def test_torchs_lock_is_not_taken_which_workers_forked_by_another_thread_would_find_taken() -> None:
    lock = torch.cuda._initialization_lock
    assert lock.acquire(timeout=10)
    try:
        with watch(DataLoader(Quick(16), batch_size=8)) as watched:
            assert sum(1 for _ in watched) == 2
    finally:
        lock.release()


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use already")
def test_copies_of_batches_of_our_loader_are_counted_too() -> None:
    def num_waiting() -> int:
        return sum(call.__module__ == device_copies.__name__ for call, _ in torch.cuda._queued_calls)

    before = num_waiting()
    with watch(stoker.DataLoader(Quick(16), batch_size=8)) as watched:
        assert sum(1 for _ in watched) == 2
    assert num_waiting() == before + 1


def test_copies_are_counted_once_however_many_loaders_are_watched(now: recording.Recording) -> None:
    begun: list[Any] = []
    cuda = SimpleNamespace(is_initialized=lambda: False, _queued_calls=begun)
    tensor = type("Tensor", (), {"to": lambda self: self, "cuda": lambda self: self})
    cuda.is_current_stream_capturing = lambda: False
    compiler = SimpleNamespace(is_compiling=lambda: False)
    fake = SimpleNamespace(cuda=cuda, Tensor=tensor, compiler=compiler, overrides=torch.overrides)
    patches = Patches()
    for _ in range(2):
        device_copies.install(patches, fake)
    original: Any = tensor.to  # type: ignore[attr-defined]
    for begin, stack in begun:
        assert "".join(stack) == ""
        begin()
    assert tensor.to.__wrapped__ is original  # type: ignore[attr-defined]
    cuda.is_initialized = lambda: True
    device_copies.install(patches, fake)
    assert tensor.to.__wrapped__ is original  # type: ignore[attr-defined]
    patches.undo()
    assert tensor.to is original  # type: ignore[attr-defined]


COMPILING = """
import sys, threading, torch
import stoker
from stoker.lab.watch.hook import device_copies, recording
from stoker.lab.watch.hook.patches import Patches

recording.begin(sys.argv[1]).trainer_note["thread"] = threading.get_native_id()
goes = device_copies._goes_to_device
Patches().wrap(torch.Tensor, "to", lambda original: device_copies.counted(original, torch, goes=goes))


def half(tensor):
    return tensor.to(torch.float16).to("cpu", non_blocking=True)


class Own(torch.Tensor):
    pass


assert torch.compile(half, backend="aot_eager", fullgraph=True)(torch.ones(3)).dtype == torch.float16
assert torch.func.vmap(half)(torch.ones(2, 2)).dtype == torch.float16
assert torch.jit.trace(half, torch.ones(2))(torch.ones(2)).dtype == torch.float16
assert isinstance(torch.ones(2).as_subclass(Own).to(torch.float16), Own)

# subclasses and modes are told of torch's own method: torchvision's, and parameters that are not there yet, look for it
seen = []


class Choosy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append(func)
        return super().__torch_function__(func, types, args, kwargs)


torch.ones(2).as_subclass(Choosy).to(torch.float16)
torch.ones(2).to(torch.ones(2, dtype=torch.float16).as_subclass(Choosy))
assert len(seen) == 2 and set(seen) == {torch.Tensor.to.__wrapped__}, seen
torch.nn.LazyLinear(3).to(torch.float64)
with torch.device("cpu"):
    assert torch.ones(2).to(torch.float64).dtype == torch.float64
"""


def test_compiling_tracing_and_vectorising_go_through_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Tensor:
    """What a tensor is to the counter, on a machine without a device."""

    def __init__(self, *, is_cuda: bool = False, is_pinned: bool = False, size: int = 1 << 20) -> None:
        self.is_cuda, self._is_pinned, self._size = is_cuda, is_pinned, size

    def numel(self) -> int:
        return self._size

    def element_size(self) -> int:
        return 1

    def is_pinned(self) -> bool:
        return self._is_pinned

    def to(self, *args: Any, **named: Any) -> Tensor:
        time.sleep(0.001)
        return Tensor(is_cuda=True)


def fake_torch(*, is_capturing: bool = False) -> Any:
    def no_events(**_: Any) -> None:
        raise RuntimeError("no device")

    cuda = SimpleNamespace(is_current_stream_capturing=lambda: is_capturing, Event=no_events, current_device=lambda: 0)
    compiler = SimpleNamespace(is_compiling=lambda: False)
    return SimpleNamespace(Tensor=Tensor, cuda=cuda, compiler=compiler, overrides=torch.overrides)


@pytest.mark.parametrize(
    ("args", "named", "is_blocking"),
    [
        (("cuda",), {}, True),
        ((torch.device("cuda:1"),), {"non_blocking": True}, False),
        (("cuda", torch.float32, True), {}, False),
        (("cuda", None, False, True), {}, True),
        ((), {"device": "cuda"}, True),
        ((0,), {}, True),
        ((), {"device": 1, "non_blocking": True}, False),
    ],
)
@pytest.mark.parametrize("is_pinned", [False, True])
def test_copies_are_counted_with_how_they_were_asked_for(
    now: recording.Recording, args: Any, named: Any, is_blocking: bool, is_pinned: bool
) -> None:
    goes: Any = device_copies._goes_to_device
    to = device_copies.counted(Tensor.to, fake_torch(), goes=goes)
    for _ in range(3):
        assert to(Tensor(is_pinned=is_pinned), *args, **named).is_cuda
    to(Tensor(size=100), *args, **named)  # no batch
    to(Tensor(is_cuda=True), *args, **named)  # there already
    copies = now.trainer_note["copies"]
    assert copies["num"] == 3
    assert copies["pageable"] == (0 if is_pinned else 3)
    assert copies["blocking"] == (3 if is_blocking else 0)
    assert copies["seconds"] >= 0.003
    assert now.here.copy_seconds == copies["seconds"]


def test_what_our_loader_copies_or_a_graph_captures_is_not_counted(now: recording.Recording) -> None:
    goes: Any = device_copies._goes_to_device
    assert device_copies.counted(Tensor.to, fake_torch(is_capturing=True), goes=goes)(Tensor(), "cuda").is_cuda
    now.here.is_delivering = True
    assert device_copies.counted(Tensor.to, fake_torch(), goes=goes)(Tensor(), "cuda").is_cuda
    assert "copies" not in now.trainer_note


def test_other_threads_are_left_alone(now: recording.Recording) -> None:
    goes: Any = device_copies._goes_to_device
    to = device_copies.counted(Tensor.to, fake_torch(), goes=goes)
    thread = threading.Thread(target=to, args=(Tensor(), "cuda"))
    thread.start()
    thread.join()
    assert "copies" not in now.trainer_note


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_copies_of_a_training_are_seen_on_a_device(pin: bool) -> None:
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    loader: Any = DataLoader(Quick(4096), batch_size=1024, pin_memory=pin)
    with watch(loader) as watched:
        for _ in range(20):
            for batch in watched:
                batch.to(device, non_blocking=pin)
        (stats,) = watched.run().loaders
    torch.cuda.synchronize()
    assert stats.copies is not None
    assert stats.copies.num == 80
    assert stats.copies.num_pageable == (0 if pin else 80)
    assert stats.copies.num_blocking == (0 if pin else 80)
    assert stats.copies.device_seconds is not None
    assert stats.facts["cuda"]
