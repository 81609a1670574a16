"""With a CUDA device: batches come page-locked from every engine, and copies to the device are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stoker
from tests.loader.datasets import Numbers, listed, plain

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
