"""With a CUDA device: batches come page-locked from every engine, and copies to the device are right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from tests.loader.datasets import Counting, Numbers, listed, plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_is_started() -> None:
    """What the driver opens once stays open, and is not a leak of ours."""
    torch.zeros(1).pin_memory().to("cuda")


@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 2}], ids=["inline", "threads", "workers"])
def test_batches_come_page_locked(engine: dict[str, Any]) -> None:
    samples = [{"image": torch.full((3, 4), float(i)), "label": i} for i in range(40)]
    iterator = iter(stoker.DataLoader(samples, batch_size=8, pin_memory=True, **engine))
    for step, batch in enumerate(iterator):
        assert batch["image"].is_pinned()
        assert batch["label"].is_pinned()
        on_device = batch["image"].to("cuda", non_blocking=True)
        assert on_device[:, 0, 0].tolist() == [float(i) for i in range(8 * step, 8 * step + 8)]
    assert step == 4


def test_the_same_stream_and_an_exact_resume_with_pinning() -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "pin_memory": True}
    whole = listed(stoker.DataLoader(Numbers(100), **arguments))
    loader = stoker.DataLoader(Numbers(100), **arguments, num_threads=2)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(5)]
    state = loader.state_dict()
    iterator.close()
    again = stoker.DataLoader(Numbers(100), **arguments, num_workers=2)
    again.load_state_dict(state)
    assert seen + listed(again) == whole


class Pictures(Numbers):
    """Big enough to lie in slots, and all of one value."""

    def __getitem__(self, position: int) -> Any:
        return {"image": torch.full((3, 64, 64), float(position)), "label": position}


SHAPES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_threads": 2},
    "workers": {"num_workers": 3},
    "workers with threads": {"num_workers": 2, "num_threads": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def check(batch: dict[str, torch.Tensor], step: int, *, batch_size: int = 8) -> None:
    first = step * batch_size
    wanted = torch.arange(first, first + batch_size, device=batch["image"].device)
    assert (batch["label"] == wanted).all()
    assert (batch["image"] == wanted.float()[:, None, None, None]).all()


@pytest.mark.parametrize("engine", SHAPES.values(), ids=SHAPES)
def test_batches_are_on_the_device_and_may_be_kept(engine: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Pictures(400), batch_size=8, device="cuda", **engine)
    for _ in range(2):
        kept = []
        for step, batch in enumerate(loader):
            assert batch["image"].is_cuda
            if step % 3 == 0:
                kept.append((step, batch))
            else:
                check(batch, step)
        for step, batch in kept:
            check(batch, step)


def test_streams_come_to_the_device_to_their_end() -> None:
    loader = stoker.DataLoader(Counting(50), batch_size=4, num_workers=2, shard="auto", device="cuda")
    assert listed(loader) == listed(stoker.DataLoader(Counting(50), batch_size=4))


@pytest.mark.parametrize("size", [64, 4], ids=["in slots", "copied out"])
def test_a_pinned_batch_may_be_let_go_of_while_it_is_copied_on_a_side_stream(size: int) -> None:
    """The copy is held up on the device for longer than the loader needs to fill the slot with another batch."""
    cuda: Any = torch.cuda  # parts of it have no types
    side = cuda.Stream()
    samples = [torch.full((3, size, size), float(i)) for i in range(512)]
    loader = stoker.DataLoader(samples, batch_size=8, num_workers=2, pin_memory=True)
    on_device = []
    for batch in loader:
        assert batch.is_pinned()
        with cuda.stream(side):
            cuda._sleep(2_000_000)
            on_device.append(batch.to("cuda", non_blocking=True))
        del batch
    torch.cuda.synchronize()
    for step, copied in enumerate(on_device):
        assert copied[:, 0, 0, 0].tolist() == [float(i) for i in range(8 * step, 8 * step + 8)]
        assert (copied == copied[:, :1, :1, :1]).all()


def test_killed_workers_do_not_show_on_the_device() -> None:
    loader = stoker.DataLoader(Pictures(800), batch_size=8, num_workers=2, device="cuda")
    for step, batch in enumerate(loader):
        check(batch, step)
        if step % 10 == 0:
            children = [
                int(pid)
                for task in Path("/proc/self/task").iterdir()
                for pid in (task / "children").read_text().split()
            ]
            os.kill(children[step % len(children)], signal.SIGKILL)
    assert step == 99


def test_torchs_own_forked_workers_live_next_to_ours() -> None:
    """Nothing of ours on the device is left to the garbage collector, which would end a forked child."""
    for _ in range(3):
        iterator = iter(stoker.DataLoader(Pictures(80), batch_size=8, num_workers=2, device="cuda"))
        next(iterator)
        del iterator
        assert len(list(torch.utils.data.DataLoader(Pictures(80), batch_size=8, num_workers=2))) == 10


def test_slots_are_unlocked_when_the_loader_goes() -> None:
    loader = stoker.DataLoader(Pictures(80), batch_size=8, num_workers=2, pin_memory=True)
    batches = list(loader)
    assert loader._ring is not None
    lock: Any = loader._ring.page_lock
    assert lock._locked
    kept = batches[3]
    del loader, batches
    assert len(lock._locked) == 1  # what is kept stays as it was
    assert kept["image"].is_pinned()
    check(kept, 3)
    del kept
    assert not lock._locked


SCRIPT = """
import torch, stoker
from tests.loader.test_gpu import Pictures
if __name__ == "__main__":
    loader = stoker.DataLoader(Pictures(8000), batch_size=8, num_workers=2, {how})
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(5)]
    {end}
    print("at the end", flush=True)
"""


@pytest.mark.parametrize("how", ["device='cuda'", "pin_memory=True", "device='cuda', persistent_workers=True"])
@pytest.mark.parametrize("end", ["", "del iterator", "torch.cuda.synchronize(); 1 / 0"])
def test_the_interpreter_may_end_at_any_point(how: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(how=how, end=end)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "CUDA" not in done.stderr, done.stderr
    assert done.returncode == (1 if "1 / 0" in end else 0), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in end)


def kept_on_the_host(samples: list[Any]) -> dict[str, Any]:
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "ids": np.array([sample["label"] for sample in samples] * 4000),
    }


def test_slots_are_watched_for_copies_when_a_part_of_them_stays_on_the_host() -> None:
    """Arrays are not moved, and are views on page-locked memory that anyone may copy from."""
    arguments: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "device": "cuda"}
    loader = stoker.DataLoader(Pictures(160), **arguments)
    assert len(list(loader)) == 20
    assert loader._ring is not None
    assert loader._ring.is_watched
    loader = stoker.DataLoader(Pictures(160), **arguments, collate_fn=kept_on_the_host)
    copies = []
    for batch in loader:
        copies.append(torch.from_numpy(batch["ids"]).to("cuda", non_blocking=True))
        del batch
    assert loader._ring is not None
    assert not loader._ring.is_watched
    assert [int(ids[0]) for ids in copies] == list(range(0, 160, 8))
    assert all((ids[:8] == ids[-8:]).all() for ids in copies)


@pytest.mark.parametrize("engine", [{}, {"num_workers": 2}], ids=["inline", "workers"])
def test_copies_are_counted_and_some_are_timed_on_the_device(engine: dict[str, Any]) -> None:
    loader: stoker.DataLoader[Any] = stoker.DataLoader(Pictures(400), batch_size=10, device="cuda", **engine)
    for _ in range(2):
        for _ in loader:
            torch.cuda.synchronize()
    copies = loader.stats().copies
    assert copies is not None
    assert copies.num == 80
    assert copies.num_pageable == 0
    assert copies.seconds > 0
    assert copies.device_seconds is not None
    assert 1e-7 < copies.device_seconds < 1.0  # half a megabyte: microseconds
