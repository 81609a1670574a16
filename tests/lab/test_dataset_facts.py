"""What is found out about a dataset by looking at it, and what is left alone."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from stoker.lab.watch.hook.dataset_facts import facts_of

pytestmark = pytest.mark.timed


class Holding(Dataset[int]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, position: int) -> NoReturn:
        raise AssertionError("nobody may read a sample")


def facts(**held: Any) -> dict[str, Any]:
    return facts_of(DataLoader(Holding(**held), batch_size=4))


def test_lengths_are_known() -> None:
    assert facts()["num_batches"] == 3
    assert facts()["num_samples"] == 10


def test_objects_in_lists_and_dicts_are_counted_from_some_of_them() -> None:
    found = facts(samples=[(f"images/{number}.jpg", number) for number in range(100_000)], root="nowhere")
    assert found["num_objects"] == pytest.approx(300_000, rel=0.01)  # a tuple, a text and a number each
    assert found["objects_in"] == "samples"
    assert found["object_bytes"] > 100_000 * 100
    assert facts(table={number: str(number) for number in range(10_000)})["num_objects"] == pytest.approx(
        30_000, rel=0.01
    )
    assert facts(words=np.array(["a", "b"] * 5000, dtype=object))["num_objects"] == 10_000


def test_arrays_are_not_objects() -> None:
    found = facts(pixels=np.zeros((1000, 1000), np.uint8), labels=torch.zeros(1000, dtype=torch.int64))
    assert found["array_bytes"] == 1_008_000
    assert found["num_objects"] == 0


def test_mapped_files_are_distinguished(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, mode="w+", shape=(5000,))
    found = facts(tokens=mapped)
    assert found["mapped_bytes"] == 10_000
    assert found["array_bytes"] == 0
    assert found["mount"]["kind"]
    del mapped


def test_files_are_weighed_and_their_mount_is_found(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(1000))
    paths = [str(tmp_path / f"{number}.jpg") for number in range(40)]
    assert facts(files=paths)["files_bytes"] == 40_000
    assert facts(samples=[(path, 3) for path in paths])["num_files"] == 40
    assert facts(root=str(tmp_path), names=[Path(path).name for path in paths])["files_bytes"] == 40_000
    found = facts(root=tmp_path)
    assert "files_bytes" not in found  # a folder is not walked through
    assert Path(tmp_path).is_relative_to(found["mount"]["point"])


def test_datasets_inside_datasets_are_looked_at() -> None:
    inner = Holding(pixels=np.zeros(4096, np.uint8))
    assert facts_of(DataLoader(Subset(inner, [1, 2]), batch_size=1))["array_bytes"] == 4096
    assert facts(parts=[inner])["array_bytes"] == 4096


def test_nothing_of_the_users_is_called() -> None:
    class Touchy:
        def __getattr__(self, name: str) -> NoReturn:
            raise AssertionError(name)

        def __len__(self) -> NoReturn:
            raise AssertionError("len")

        def __iter__(self) -> NoReturn:
            raise AssertionError("iter")

    loop: list[Any] = []
    loop.append(loop)
    assert "error" not in facts(inner=Touchy(), more=[Touchy()], loop=loop)


def test_a_stream_is_not_asked_for_its_length() -> None:
    class Stream(IterableDataset[int]):
        def __len__(self) -> NoReturn:
            raise AssertionError("torch remembers who asks")

        def __iter__(self) -> Any:
            raise AssertionError("nobody may read it")

    assert "num_batches" not in facts_of(DataLoader(Stream(), batch_size=2))
    assert facts_of([1, 2, 3])["num_objects"] == 0


def test_a_dataset_whose_length_fails_is_none_of_our_business() -> None:
    class Broken(Holding):
        def __len__(self) -> int:
            raise RuntimeError("no database")

    loader = DataLoader(Broken(), batch_size=1, sampler=[0])
    assert "no database" in facts_of(loader)["error"]


def test_looking_is_over_soon_whatever_there_is() -> None:
    crowd = {f"list_{number}": [str(element) for element in range(1000)] for number in range(2000)}
    began = perf_counter()
    facts(**crowd)
    assert perf_counter() - began < 2.0
