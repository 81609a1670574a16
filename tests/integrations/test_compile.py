"""`torch.compile`: batches of every engine pass the same guards as those of torch's loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from stoker import DataLoader

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2}, {"num_workers": 1, "num_threads": 2}]


class Samples(Dataset[dict[str, Any]]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> dict[str, Any]:
        image = torch.full((3, 4, 8), float(position))
        return {"image": image.permute(1, 2, 0), "label": position, "tokens": torch.arange(5, dtype=torch.int32)}


def num_graphs(loader: Any, *, epochs: int = 3, is_marked: bool = False) -> int:
    """Return how often a step is compiled while a loader is read."""
    torch._dynamo.reset()
    backend = torch._dynamo.testing.CompileCounter()
    weight = torch.ones(3, 2)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (batch["image"] @ weight).mean() * batch["label"].sum() + batch["tokens"].sum()

    compiled = torch.compile(step, backend=backend)
    for _ in range(epochs):
        for batch in loader:
            if is_marked:
                for field in batch.values():
                    torch._dynamo.mark_dynamic(field, 0)
            compiled(batch)
    return int(backend.frame_count)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_is_compiled_once_for_all_epochs(engine: dict[str, Any]) -> None:
    assert num_graphs(DataLoader(Samples(24), batch_size=6, shuffle=True, **engine)) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_last_batch_compiles_once_more_as_with_torchs_loader(engine: dict[str, Any]) -> None:
    assert num_graphs(TorchLoader(Samples(28), batch_size=6, shuffle=True)) == 2
    assert num_graphs(DataLoader(Samples(28), batch_size=6, shuffle=True, **engine)) == 2


@pytest.mark.parametrize("options", [{"tail": "drop"}, {"tail": "pad"}])
def test_batches_of_one_size_compile_once(options: dict[str, Any]) -> None:
    assert num_graphs(DataLoader(Samples(28), batch_size=6, num_workers=1, **options)) == 1


def test_a_batch_dimension_that_is_marked_as_dynamic_compiles_once() -> None:
    assert num_graphs(DataLoader(Samples(28), batch_size=6, num_workers=1), is_marked=True) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_tensors_are_what_guards_saw_in_those_of_torchs_loader(engine: dict[str, Any]) -> None:
    def guarded(loader: Any) -> list[dict[str, tuple[Any, ...]]]:
        return [
            {
                name: (
                    type(field),
                    field.dtype,
                    field.device,
                    field.shape,
                    field.stride(),
                    field.storage_offset(),
                    field.requires_grad,
                    field.is_inference(),
                    field.is_conj(),
                    field.data_ptr() % 16,  # Inductor compiles again for what is not aligned
                )
                for name, field in batch.items()
            }
            for batch in loader
        ]

    assert guarded(DataLoader(Samples(28), batch_size=6, **engine)) == guarded(TorchLoader(Samples(28), batch_size=6))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loop_over_a_loader_may_be_inside_the_compiled_function(engine: dict[str, Any]) -> None:
    torch._dynamo.reset()
    loader = DataLoader(Samples(12), batch_size=6, shuffle=True, seed=0, **engine)

    @torch.compile(backend="eager")
    def total(loader: Any) -> torch.Tensor:
        found = torch.zeros((), dtype=torch.int64)
        for batch in loader:
            found = found + batch["label"].sum()
        return found

    assert [int(total(loader)) for _ in range(2)] == [sum(range(12))] * 2
