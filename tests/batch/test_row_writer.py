"""Row writers: samples written straight into their rows, the same in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.source.protocols import Empty


class Squares:
    """Rows of a random number and the position, written in place; position 7 is bad if wanted."""

    def __init__(self, length: int = 40, bad: tuple[int, ...] = (), extra: int = 0) -> None:
        self.length, self.bad, self.extra, self.share = length, bad, extra, 3

    def __len__(self) -> int:
        return self.length

    def describe(self, position: int) -> str:
        return f"file {position}"

    def batch_hint(self) -> int:
        return self.share

    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> SquaresWriter:
        return SquaresWriter(self, num_samples, empty, hint)


class SquaresWriter:
    def __init__(self, dataset: Squares, num_samples: int, empty: Empty, hint: Any) -> None:
        self.dataset, self.empty, self.hint = dataset, empty, hint
        self.values = empty((num_samples, 33, 7), np.float32)
        self.positions = empty((num_samples,), np.int64)
        self.late: list[int] = [0] * num_samples

    def write(self, row: int, position: int) -> None:
        self.values[row] = -1  # what a failed try has left must not be seen
        if position in self.dataset.bad:
            raise ValueError(f"bad {position}")
        self.values[row] = stoker.rng().random(dtype=np.float32)
        self.positions[row] = position
        self.late[row] = position + 1

    def batch(self) -> dict[str, Any]:
        late = self.empty((len(self.late) + self.dataset.extra,), np.int64)
        late[:] = 0
        late[: len(self.late)] = self.late
        return {"values": self.values, "positions": self.positions, "late": late, "hint": self.hint}


ENGINES = [
    {},
    {"num_threads": 3},
    {"num_workers": 2},
    {"num_workers": 2, "num_threads": 3},
]


def batches(dataset: Any, **options: Any) -> tuple[list[Any], Any]:
    loader: Any = stoker.DataLoader(dataset, batch_size=6, shuffle=True, seed=5, **options)
    found = []
    for batch in loader:
        assert isinstance(batch["values"], torch.Tensor)
        found.append({name: value.clone() if hasattr(value, "clone") else value for name, value in batch.items()})
    return found, loader.ledger


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_every_engine_writes_the_same_rows(engine: dict[str, Any]) -> None:
    # what is taken late is large, so that slots have to grow in the middle of a batch
    expected, _ = batches(Squares(extra=50_000))
    found, _ = batches(Squares(extra=50_000), **engine)
    assert len(found) == len(expected) == 7
    for ours, theirs in zip(found, expected):
        assert ours["hint"] == 3
        for name in ("values", "positions", "late"):
            assert torch.equal(ours[name], theirs[name])
        assert torch.equal(ours["late"][: len(ours["positions"])], ours["positions"] + 1)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_bad_sample_is_replaced_in_its_row(engine: dict[str, Any]) -> None:
    expected, _ = batches(Squares(bad=(7, 11)), on_error="skip")
    found, ledger = batches(Squares(bad=(7, 11)), on_error="skip", **engine)
    assert sorted(entry.position for entry in ledger) == [7, 11]
    assert {entry.where for entry in ledger} == {"file 7", "file 11"}
    for ours, theirs in zip(found, expected):
        for name in ("values", "positions", "late"):
            assert torch.equal(ours[name], theirs[name])
        assert (ours["values"] >= 0).all()
        assert not {7, 11} & set(ours["positions"].tolist())


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_error_names_its_sample(engine: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bad 7") as caught:
        batches(Squares(bad=(7,)), **engine)
    assert any("position 7 (file 7)" in note for note in caught.value.__notes__)


class Shy(Squares):
    """Cannot tell the shape of its samples after all."""

    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> Any:
        return NotImplemented

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"values": np.zeros(2), "position": position}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_dataset_without_a_row_writer_after_all_is_read_sample_by_sample(engine: dict[str, Any]) -> None:
    loader: Any = stoker.DataLoader(Shy(), batch_size=6, **engine)
    assert [position for batch in loader for position in batch["position"].tolist()] == list(range(40))


class Careless(Squares):
    """Raises what it should not, and while it handles something else."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error

    def open_batch(self, num_samples: int, empty: Empty, hint: Any) -> Any:
        return CarelessWriter(self, num_samples, empty, hint)


class CarelessWriter(SquaresWriter):
    def write(self, row: int, position: int) -> None:
        try:
            raise KeyError("the reason")
        except KeyError:
            raise self.dataset.error("what came of it")  # type: ignore[attr-defined]  # noqa: B904


def test_what_an_error_came_of_is_not_lost() -> None:
    with pytest.raises(ValueError, match="what came of it") as caught:
        batches(Careless(ValueError))
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__
    with pytest.raises(stoker.errors.EarlyStop, match="reading a sample raised StopIteration") as stopped:
        batches(Careless(StopIteration))
    assert isinstance(stopped.value.__cause__, StopIteration)
    assert any("position" in note for note in stopped.value.__notes__)
