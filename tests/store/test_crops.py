"""Rows cut out of tokens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import ArgumentError, DataError, PositionError
from stoker.store import Column, Crops, Store, Writer, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    meta = {"tokenizer": {"end_of_document": 9}}
    with Writer(tmp_path / "s", {"tokens": Column.ragged("uint16")}, shard_bytes=40, meta=meta) as writer:
        writer.extend({"tokens": (np.arange(20), [5, 0, 1, 2, 9, 3])})
    return open_store(tmp_path / "s")


def rows(crops: Crops, name: str = "tokens") -> list[list[int]]:
    return [row[name].tolist() for row in crops.__getitems__(range(len(crops)))]


def test_rows_follow_each_other_and_labels_are_the_next_tokens(store: Store) -> None:
    crops = store.tokens(6)
    assert rows(crops) == [list(range(6)), list(range(6, 12)), list(range(12, 18))]
    assert rows(crops, "labels") == [list(range(1, 7)), list(range(7, 13)), list(range(13, 19))]
    assert rows(store.tokens(6, stride=5)) == [list(range(at, at + 6)) for at in (0, 5, 10)]
    assert len(store.tokens(19)) == 1 and len(store.tokens(20)) == 0 and len(store.tokens(19, stride=1)) == 1


def test_rows_within_documents_are_filled_up(store: Store) -> None:
    crops = store.tokens(4, across=False)
    assert rows(crops) == [[0, 1, 2, 3], [6, 7, 9, 9], [8, 9, 10, 11], [12, 13, 14, 15], [17, 18, 19, 9]]
    assert rows(crops, "labels") == [
        [1, 2, 3, 4],
        [7, -100, -100, -100],
        [9, 10, 11, 12],
        [13, 14, 15, 16],
        [18, 19, -100, -100],
    ]
    assert rows(store.tokens(4, across=False, pad=77, ignored=5), "labels")[1] == [7, 5, 5, 5]
    assert rows(store.tokens(4, across=False, pad=77))[1] == [6, 7, 77, 77]


def test_rows_within_documents_that_leave_tokens_out_have_a_label_each(store: Store) -> None:
    crops = store.tokens(2, across=False, stride=4)
    assert rows(crops) == [[0, 1], [6, 7], [8, 9], [12, 13], [17, 18]]
    crops = store.tokens(2, across=False, stride=7)
    assert rows(crops, "labels") == [[1, 2], [7, -100], [9, 10], [16, -100], [18, 19]]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(None, "uint16"), ("int64", "int64"), ("int32", "int32"), ("uint16", "uint16"), ("u8", "u8")],
)
def test_tokens_and_labels_have_the_type_that_was_asked_for(store: Store, dtype: Any, expected: str) -> None:
    row = store.tokens(4, dtype=dtype)[0]
    assert row["tokens"].dtype == row["labels"].dtype == np.dtype(expected)


def test_shared_rows_are_two_views_of_the_same_memory(store: Store) -> None:
    batch = store.tokens(6, shared=True).__getbatch__([1, 2], np.empty)
    assert batch["tokens"].tolist() == [list(range(6, 12)), list(range(12, 18))]
    assert batch["labels"].tolist() == [list(range(7, 13)), list(range(13, 19))]
    assert np.shares_memory(batch["tokens"], batch["labels"])
    batch = store.tokens(6).__getbatch__([1, 2], np.empty)
    assert not np.shares_memory(batch["tokens"], batch["labels"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"length": 0}, "length must be positive, got 0"),
        ({"stride": 0}, "stride must be positive, got 0\nhint: omit it for rows that do not overlap"),
        ({"dtype": "float32"}, "dtype=float32 cannot hold tokens of uint16\nhint: use int64, or None"),
        ({"dtype": "uint8"}, "dtype=uint8 cannot hold tokens of uint16"),
        ({"dtype": "int16"}, "dtype=int16 cannot hold tokens of uint16"),
        ({"across": False, "shared": True}, "shared=True is not possible with across=False"),
        (
            {"across": False, "dtype": None},
            "ignored=-100 is out of range for uint16\nhint: use a signed dtype such as int64",
        ),
        ({"across": False, "dtype": "uint16", "ignored": 0, "pad": -1}, "pad=-1 is out of range for uint16"),
        ({"across": False, "pad": 1 << 70}, "is out of range for int64"),
    ],
)
def test_what_cannot_work_is_refused(store: Store, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        store.tokens(**{"length": 4} | options)


def test_what_are_no_tokens_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"x": Column.ragged("float32")}) as writer:
        writer.append({"x": [0.5] * 10})
    with pytest.raises(ArgumentError, match="values of float32 are not tokens"):
        open_store(tmp_path / "s").tokens(4, column="x")
    with pytest.raises(ArgumentError, match="has no column 'tokens'\nhint: it has x"):
        open_store(tmp_path / "s").tokens(4)


def test_a_row_outside_is_told(store: Store) -> None:
    crops = store.tokens(6)
    assert crops[-1]["tokens"].tolist() == list(range(12, 18))
    for position in (3, -4, 2**64 - 1):
        with pytest.raises(PositionError, match=f"position {position} is outside the rows, which has 3 samples"):
            crops[position]
    wrong: Any
    for wrong in (1.5, "1", True):
        with pytest.raises(ArgumentError, match="a position must be an int"):
            crops[wrong]


def test_crops_travel_with_their_store(store: Store) -> None:
    crops = store.tokens(4, across=False)
    assert rows(pickle.loads(pickle.dumps(crops))) == rows(crops)


def test_meta_of_another_kind_is_no_obstacle(tmp_path: Path) -> None:
    with Writer(tmp_path / "s", {"tokens": Column.ragged("uint16")}, meta={"tokenizer": "gpt2"}) as writer:
        writer.append({"tokens": [1, 2]})
    assert rows(open_store(tmp_path / "s").tokens(3, across=False)) == [[1, 2, 0]]


class Wrong:
    """Tokens with invalid offsets."""

    num_values, num_documents, dtype = 10, 2, np.dtype("uint16")

    def __init__(self, *offsets: int) -> None:
        self._offsets = np.array(offsets)

    def windows(self, starts: Any, length: int) -> Any:
        return np.zeros((len(starts), length), np.uint16)

    def offsets(self, first: int, last: int) -> Any:
        return self._offsets[first : last + 1]


@pytest.mark.parametrize("offsets", [(0, 11, 10), (-1, 5, 10), (0, 5, 11), (5, 2, 10)])
def test_invalid_offsets_are_reported(offsets: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="document offsets are invalid from document 0"):
        Crops(Wrong(*offsets), length=3, across=False)


def test_tokens_without_offsets_have_no_rows_within_them() -> None:
    class Bare(Wrong):
        num_documents = 0

    with pytest.raises(ArgumentError, match="across=False needs the offsets of documents"):
        Crops(Bare(), length=3, across=False)


def test_the_fingerprint_tells_how_rows_are_cut(store: Store) -> None:
    made = [store.tokens(4), store.tokens(4, stride=3), store.tokens(5), store.tokens(4, across=False)]
    assert len({crops.fingerprint for crops in made}) == 4
    assert store.tokens(4).fingerprint == open_store(store.path).tokens(4, dtype="int32").fingerprint
    assert Crops(Wrong(0, 5, 10), length=3).fingerprint is None
