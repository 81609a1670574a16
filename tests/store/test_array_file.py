"""One array in one file."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from stoker.errors import ArgumentError, DamagedFile
from stoker.store import create_array, open_array, save_array
from stoker.store.column import SAFETENSORS_NAMES
from tests.store import by_hand


@pytest.mark.parametrize("dtype", SAFETENSORS_NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 7)])
def test_an_array_comes_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
    save_array(tmp_path / "a", array)
    found = open_array(tmp_path / "a")
    assert found.dtype == array.dtype and found.shape == shape and np.array_equal(found, array)
    with safe_open(tmp_path / "a", "numpy") as file:
        assert np.array_equal(file.get_tensor("array"), array)
    assert os.listdir(tmp_path) == ["a"]


def test_other_layouts_come_back_as_plain_ones(tmp_path: Path) -> None:
    for array in (np.arange(12.0).reshape(3, 4).T, np.arange(12)[::2], np.arange(5).astype(">i4"), [[1, 2], [3, 4]]):
        save_array(tmp_path / "a", array)
        assert np.array_equal(open_array(tmp_path / "a"), array)


def test_what_is_read_cannot_be_written_unless_asked_for(tmp_path: Path) -> None:
    save_array(tmp_path / "a", np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        open_array(tmp_path / "a")[0] = 1
    open_array(tmp_path / "a", writable=True)[1] = 5
    assert open_array(tmp_path / "a").tolist() == [0, 5, 0]


def test_an_array_is_filled_in_any_order(tmp_path: Path) -> None:
    with create_array(tmp_path / "a", "uint16", (4, 2)) as out:
        for row in (2, 0, 3, 1):
            out[row] = row
        assert not (tmp_path / "a").exists()
    assert open_array(tmp_path / "a").tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_a_file_is_replaced_only_by_one_that_is_complete(tmp_path: Path) -> None:
    save_array(tmp_path / "a", [1])
    kept = open_array(tmp_path / "a")
    with pytest.raises(KeyError), create_array(tmp_path / "a", "uint8", (4,)) as out:
        out[:] = 5
        del out
        raise KeyError
    gc.collect()
    assert os.listdir(tmp_path) == ["a"] and open_array(tmp_path / "a").tolist() == [1]
    save_array(tmp_path / "a", [2])
    assert kept.tolist() == [1] and open_array(tmp_path / "a").tolist() == [2]


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    for array in (np.array(["text"]), np.array([None]), np.zeros(2, "complex128"), np.zeros(2, "M8[s]")):
        with pytest.raises(ArgumentError, match="array files cannot have .*\nhint: use one of bool, uint8"):
            save_array(tmp_path / "a", array)
    assert os.listdir(tmp_path) == []


def test_files_of_the_library_itself_are_opened(tmp_path: Path) -> None:
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "w.safetensors")
    assert open_array(tmp_path / "w.safetensors").tolist() == [[0, 1, 2], [3, 4, 5]]
    save_file({"w": np.zeros(2), "v": np.zeros(2)}, tmp_path / "two.safetensors")
    with pytest.raises(
        DamagedFile, match="two.safetensors contains 2 arrays, expected one\nhint: open a store by its folder"
    ):
        open_array(tmp_path / "two.safetensors")


@pytest.mark.parametrize("shape", [[1] * 40, [1] * 70, [0, 1 << 40, 1 << 40], [0, 1 << 61, 1 << 61]])
def test_hostile_shapes_are_reported(tmp_path: Path, shape: list[int]) -> None:
    num_bytes = 0 if 0 in shape else 1
    header: dict[str, Any] = {"array": {"dtype": "U8", "shape": shape, "data_offsets": [0, num_bytes]}}
    (tmp_path / "a").write_bytes(by_hand.head_of(header) + bytes(num_bytes))
    with pytest.raises(DamagedFile, match="an array is too big, or has too many dimensions"):
        open_array(tmp_path / "a")


@pytest.mark.parametrize("length", [0, 4, 8, 1000, 65535, 65536, 65536 + 23])
def test_a_file_that_is_cut_off_is_reported(tmp_path: Path, length: int) -> None:
    save_array(tmp_path / "a", np.arange(3.0))
    os.truncate(tmp_path / "a", length)
    with pytest.raises(DamagedFile, match="a "):
        open_array(tmp_path / "a")


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_array(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        save_array(tmp_path / "no" / "a", [1])


def test_the_header_is_plain(tmp_path: Path) -> None:
    save_array(tmp_path / "a", np.zeros((2, 3), np.float32))
    data = (tmp_path / "a").read_bytes()
    assert json.loads(data[8:65536])["array"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
