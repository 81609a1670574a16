"""The header of a safetensors file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DamagedFile
from stoker.store.header import Header, packed, unpacked
from tests.store.by_hand import BLOCK, head_of

PATH = Path("a.safetensors")


def read(data: bytes, num_bytes: int | None = None) -> Header:
    return unpacked(io.BytesIO(data), PATH, len(data) if num_bytes is None else num_bytes)


def entry(begin: int, end: int, *, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def test_a_header_comes_back_as_it_was_packed() -> None:
    data = packed({"format": "x"}, {"a": ("float32", (2, 3)), "b": ("bool", ()), "c": ("int64", (0, 7))})
    assert len(data) == BLOCK
    header = read(data, BLOCK + 25)
    assert header.metadata == {"format": "x"}
    assert header.begin == BLOCK
    assert {name: (extent.dtype, extent.shape, extent.begin) for name, extent in header.arrays.items()} == {
        "a": ("float32", (2, 3), BLOCK),
        "b": ("bool", (), BLOCK + 24),
        "c": ("int64", (0, 7), BLOCK + 25),
    }


def test_a_long_header_takes_several_blocks() -> None:
    assert len(packed({"note": "x" * BLOCK}, {})) == 2 * BLOCK


@pytest.mark.parametrize("length", range(8))
def test_a_file_that_ends_in_its_first_bytes_is_reported(length: int) -> None:
    with pytest.raises(DamagedFile, match=f"^{PATH} does not begin with the length of a safetensors header\nhint"):
        read(head_of({})[:length])


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        (0, "does not begin with the length"),
        (1, "does not begin with the length"),
        (BLOCK - 7, f"has a header of {BLOCK - 7} bytes according to its length, but the file has {BLOCK}"),
        (1 << 62, "has a header of 4611686018427387904 bytes"),
        ((1 << 64) - 1, "has a header of 18446744073709551615 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_reported(first: int, shown: str) -> None:
    with pytest.raises(DamagedFile, match=shown):
        read(first.to_bytes(8, "little") + head_of({})[8:])


def test_a_header_longer_than_safetensors_allows_is_not_read() -> None:
    with pytest.raises(DamagedFile, match="has a header of 100000001 bytes"):
        read((100_000_001).to_bytes(8, "little") + b"{}", 1 << 40)


def test_a_file_that_ends_within_its_header_is_reported() -> None:
    with pytest.raises(DamagedFile, match=f"ends within its header of {BLOCK - 8} bytes"):
        read(head_of({})[:-1], BLOCK)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "Expecting value"),
        ("[]", "it is not a JSON object"),
        ("5", "it is not a JSON object"),
        ('{"a": 5}', "not subscriptable"),
        ('{"a": {}}', "'dtype'"),
        ('{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}', "not enough values"),
        ('{"__metadata__": 5}', "__metadata__ is not an object of strings"),
        ('{"__metadata__": {"a": 5}}', "__metadata__ is not an object of strings"),
        ('{"a": {"dtype": "U8", "dtype": "U8"}}', "a name occurs twice"),
        ('{"a": 1, "a": 1}', "a name occurs twice"),
        ("[" * 60_000, "recursion"),
        ('{"a":' * 10_000, "recursion"),
        ("9" * 5000, "integer string conversion"),
        ('{"a": "\xff', "'utf-8' codec"),
    ],
)
def test_a_header_that_is_not_one_is_reported(text: str, shown: str) -> None:
    data = text.encode("latin-1").ljust(BLOCK - 8)
    with pytest.raises(DamagedFile, match=f"has a header that cannot be read: .*{shown}"):
        read((BLOCK - 8).to_bytes(8, "little") + data)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (entry(0, 4, dtype="F8_E4M3"), "unknown dtype 'F8_E4M3'"),
        (entry(0, 4, dtype="V4"), "unknown dtype 'V4'"),
        (entry(-4, 0), "a size or an offset is not an integer from 0"),
        (entry(4, 0), "a size or an offset is not an integer from 0"),
        (entry(0, 1 << 62), "a size or an offset is not an integer from 0"),
        (entry(0, 4, shape=[-4]), "a size or an offset is not an integer from 0"),
        (entry(0, 4, shape=[4.0]), "a size or an offset is not an integer from 0"),
        (entry(0, 4, shape=[True, 4]), "a size or an offset is not an integer from 0"),
        (entry(0, 4, shape="4"), "a size or an offset is not an integer from 0"),
        (entry(0, 4, shape=[3]), "an array of U8 and shape \\[3\\] cannot have 4 bytes"),
        (entry(0, 4, dtype="F32", shape=[2]), "an array of F32 and shape \\[2\\] cannot have 4 bytes"),
        (entry(0, 4, shape=[1 << 61, 1 << 61]), "an array is too big, or has too many dimensions"),
        (entry(0, 0, shape=[0, 1 << 40, 1 << 40]), "an array is too big, or has too many dimensions"),
        (entry(0, 1, shape=[1] * 33), "an array is too big, or has too many dimensions"),
        (entry(1, 5), f"array 'a' begins at byte {BLOCK + 1} instead of {BLOCK}"),
        (entry(0, 3), f"is too long: it has {BLOCK + 4} bytes, but {BLOCK + 3} according to its header"),
        (entry(0, 5), f"is truncated: it has {BLOCK + 4} bytes, but {BLOCK + 5} according to its header"),
    ],
)
def test_an_array_that_cannot_be_is_reported(wrong: dict[str, Any], shown: str) -> None:
    with pytest.raises(DamagedFile, match=shown):
        read(head_of({"a": wrong}) + b"1234")


def test_arrays_that_overlap_or_leave_holes_are_reported() -> None:
    for begin in (3, 5):
        with pytest.raises(DamagedFile, match=f"array 'b' begins at byte {BLOCK + begin} instead of {BLOCK + 4}"):
            read(head_of({"a": entry(0, 4), "b": entry(begin, 8)}) + bytes(8))


def test_arrays_that_are_not_aligned_are_reported() -> None:
    with pytest.raises(DamagedFile, match="has an array 'b' that is not aligned"):
        read(head_of({"a": entry(0, 2), "b": entry(2, 6, dtype="F32", shape=[1])}) + bytes(6))


def test_order_in_the_header_does_not_matter() -> None:
    header = read(head_of({"b": entry(4, 8), "empty": entry(4, 4), "a": entry(0, 4)}) + bytes(8))
    assert header.arrays["b"].begin == BLOCK + 4


def test_what_json_says_of_the_padding_is_nothing() -> None:
    assert json.loads(packed({}, {})[8:]) == {"__metadata__": {}}
