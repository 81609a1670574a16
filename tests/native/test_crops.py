"""Rows of tokens, gathered by the library, are those that NumPy gathers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import DamagedBlock
from stoker.native import without
from stoker.store import Column, Store, Writer, open_store
from stoker.store.checksums import BLOCK_BYTES
from stoker.store.crops import Crops

pytestmark = pytest.mark.usefixtures("native")


def store_of(path: Path, dtype: str, lengths: list[int], *, shard_bytes: int = 4000) -> Store:
    generator = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    with Writer(path, {"tokens": Column.ragged(dtype)}, shard_bytes=shard_bytes) as writer:
        for length in lengths:
            values = generator.integers(limits.min, limits.max, length, dtype, endpoint=True)
            writer.append({"tokens": values})
    return open_store(path)


def settled(rows: Crops) -> Crops:
    """Return rows that were read from before, after which all is mapped and known."""
    for _ in range(3):
        rows.__getbatch__(np.arange(len(rows)), np.empty)
    return rows


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64", "int16"])
def test_batches_are_the_same_both_ways(tmp_path: Path, dtype: str) -> None:
    store = store_of(tmp_path / "s", dtype, [700, 3, 0, 900, 1500, 2500, 10])
    taken: list[tuple[int, ...]] = []

    def empty(shape: tuple[int, ...], kind: Any) -> Any:
        taken.append(shape)
        return np.empty(shape, kind)

    by_library = settled(store.tokens(100, stride=7))
    with without():
        by_numpy = settled(store.tokens(100, stride=7))

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.integers(-len(by_numpy), len(by_numpy) - 1), max_size=20))
    def same(positions: list[int]) -> None:
        wanted = by_numpy.__getbatch__(np.array(positions, np.int64), np.empty)
        found = by_library.__getbatch__(np.array(positions, np.int64), empty)
        for name in wanted:
            assert found[name].dtype == wanted[name].dtype
            np.testing.assert_array_equal(found[name], wanted[name])

    same()
    assert any(len(shape) == 3 for shape in taken) == (dtype != "int16"), "the library was there for some of them"


def test_turned_off_later_rows_are_still_right(tmp_path: Path) -> None:
    rows = settled(store_of(tmp_path / "s", "uint16", [1000]).tokens(10))
    wanted = rows.__getbatch__(np.arange(20), np.empty)
    with without():
        found = rows.__getbatch__(np.arange(20), np.empty)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_damage_is_found_before_it_is_gathered(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", "uint16", [3 * BLOCK_BYTES], shard_bytes=1 << 30)
    (shard,) = store.path.glob("*.safetensors")
    with shard.open("r+b") as file:
        file.seek(-BLOCK_BYTES // 2, 2)
        file.write(b"damage")
    rows = open_store(store.path).tokens(100)
    for _ in range(3):
        rows.__getbatch__(np.arange(10), np.empty)
    with pytest.raises(DamagedBlock):
        for first in range(0, len(rows), 100):
            rows.__getbatch__(np.arange(first, min(first + 100, len(rows))), np.empty)
