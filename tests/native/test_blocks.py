from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.compose.packs.block_tables import block_fields, block_tables_by_numpy
from stoker.errors import ArgumentError
from stoker.native import block_tables

pytestmark = pytest.mark.usefixtures("native")


def tables_for(num_rows: int, length: int, size: int) -> dict[str, Any]:
    return {name: np.full((num_rows, *shape), 9, kind) for name, (shape, kind) in block_fields(length, size).items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 120), st.sampled_from([2, 4, 8, 16, 32, 128]), st.data())
def test_tables_are_those_of_numpy(length: int, size: int, data: st.DataObject) -> None:
    num_rows, width = data.draw(st.integers(0, 4)), data.draw(st.integers(2, 12))
    within = st.lists(st.integers(0, length), min_size=width - 2, max_size=width - 2)
    borders = np.array([[0, *sorted(data.draw(within)), length] for _ in range(num_rows)], np.int32)
    borders = borders.reshape(num_rows, width)
    rows = np.array(data.draw(st.permutations(range(num_rows + 2)))[:num_rows], np.int64)
    wanted, found = (tables_for(num_rows + 2, length, size) for _ in range(2))
    block_tables_by_numpy(borders, length, size, wanted, rows)
    assert block_tables(borders, length, size, found, rows)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@pytest.mark.parametrize(
    ("borders", "rows"),
    [
        ([[0, 5, 9]], [0]),
        ([[1, 5, 10]], [0]),
        ([[0, 11, 10]], [0]),
        ([[0, -1, 10]], [0]),
        ([[0, 5, 10]], [1]),
        ([[0, 5, 10]], [-1]),
        ([[0, 5, 10]], []),
        ([[0]], [0]),
        ([[0, 2**31 - 1, 10]], [0]),
    ],
)
def test_borders_and_rows_that_cannot_be_are_refused(borders: list[list[int]], rows: list[int]) -> None:
    out = tables_for(1, 10, 4)
    with pytest.raises(ArgumentError):
        block_tables(np.array(borders, np.int32), 10, 4, out, np.array(rows, np.int64))
    assert all((array == 9).all() for array in out.values())


def test_tables_of_another_size_are_refused() -> None:
    borders, rows = np.array([[0, 10]], np.int32), np.array([0])
    for name in tables_for(1, 10, 4):
        out = tables_for(1, 10, 4)
        out[name] = out[name][:, :-1].copy()
        with pytest.raises(ArgumentError, match=name):
            block_tables(borders, 10, 4, out, rows)


def test_what_there_is_no_code_for_is_left_to_numpy() -> None:
    out, rows = tables_for(1, 10, 4), np.array([0])
    assert not block_tables(np.array([[0, 10]]), 10, 4, out, rows)
    assert not block_tables(np.array([[0, 0, 10, 10]], np.int32)[:, ::2], 10, 4, out, rows)
    out["q_indices"] = out["q_indices"].astype(np.int64)
    assert not block_tables(np.array([[0, 10]], np.int32), 10, 4, out, rows)
