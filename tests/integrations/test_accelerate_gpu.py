"""Accelerate on a GPU: batches are copied ahead to the accelerator's device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

import stoker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_is_started() -> None:
    """What the driver opens once stays open, and is not a leak of ours."""
    torch.zeros(1).pin_memory().to("cuda")


def prepared(accelerator: Accelerator, **options: Any) -> Any:
    samples: Any = torch.arange(100.0)[:, None]
    return accelerator.prepare(stoker.DataLoader(samples, batch_size=8, shuffle=True, seed=1, **options))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_threads": 2}, {"device": "cuda"}], ids=str)
def test_batches_are_on_the_device_and_resume_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    accelerator = Accelerator()
    batches = iter(prepared(accelerator, **options))
    seen = [next(batches).clone() for _ in range(5)]
    accelerator.save_state(str(tmp_path))
    batches.close()
    accelerator.free_memory()
    loader = prepared(accelerator, **options)
    accelerator.load_state(str(tmp_path))
    seen += list(loader)
    assert {batch.device.type for batch in seen} == {"cuda"}
    assert sorted(torch.cat(seen).flatten().tolist()) == list(range(100))


def test_batches_stay_where_they_are_without_device_placement() -> None:
    assert {batch.device.type for batch in prepared(Accelerator(device_placement=False))} == {"cpu"}
