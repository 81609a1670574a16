"""What a column may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker.errors import ArgumentError
from stoker.store import Column
from stoker.store.column import SAFETENSORS_NAMES, checked_name


def test_names_of_types_are_numpys_own() -> None:
    assert Column("u2") == Column("uint16") == Column.fixed(np.uint16) == Column.fixed(np.dtype(">u2"))
    assert Column.ragged("f4", (3,)) == Column("float32", (3,), is_ragged=True)


@pytest.mark.parametrize("dtype", SAFETENSORS_NAMES)
def test_the_size_of_a_value_is_its_shape_times_its_type(dtype: str) -> None:
    assert Column(dtype, (2, 3)).value_bytes == 6 * np.dtype(dtype).itemsize
    assert Column(dtype, (2, 0, 3)).value_bytes == 0
    assert Column.ragged(dtype).value_bytes == np.dtype(dtype).itemsize


def test_columns_are_described_in_a_few_characters() -> None:
    columns = [Column("uint8"), Column("float32", (3, 4)), Column.ragged("u2"), Column.ragged("u2", (2,))]
    assert [column.described() for column in columns] == ["uint8", "float32[3, 4]", "uint16[*]", "uint16[*, 2]"]
    assert [Column.text().described(), Column.blob().described()] == ["text", "bytes"]


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ("text", Column.text()),
        (b"bytes", Column.blob()),
        (memoryview(b"bytes"), Column.blob()),
        (np.zeros((2, 3), np.float32), Column("float32", (2, 3))),
        (5, Column("int64")),
        (True, Column("bool")),
    ],
)
def test_a_column_is_told_from_a_sample(value: Any, column: Column) -> None:
    assert Column.of_sample(value) == column


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("complex128",), "stores do not support complex128\nhint: use one of bool, uint8"),
        (("O",), "stores do not support object"),
        (("quaternion",), "'quaternion' is not a NumPy dtype\nhint: pass for instance 'uint16'"),
        (("uint8", (-1,)), "shape \\(-1,\\) has a negative size\nhint: use Column.ragged for any length"),
        (("uint8", (), True, "image"), "unknown column kind 'image'\nhint: choose array, bytes or text"),
        (("uint16", (), True, "text"), "text must be ragged uint8\nhint: use Column.text"),
        (("uint8", (), False, "bytes"), "bytes must be ragged uint8"),
        (("uint8", (1 << 32, 1 << 32)), "is too large for NumPy"),
        (("uint8", (0, 1 << 40, 1 << 40)), "is too large for NumPy"),
        (("uint8", (1,) * 32), "is too large for NumPy"),
    ],
)
def test_what_cannot_be_a_column_is_refused(arguments: Any, shown: str) -> None:
    with pytest.raises(ArgumentError, match=shown):
        Column(*arguments)


@pytest.mark.parametrize("name", ["tokens", "a", "0", "_x", "a/b.c-d", "x" * 127])
def test_names_of_columns(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 128, "a b", ".a", "/a", "-a", "ä", "stoker.x", "a.offsets", "__metadata__", "a\n", 3, None]
)
def test_what_cannot_be_a_name_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="is not a valid column name\nhint: use letters, digits"):
        checked_name(name)
