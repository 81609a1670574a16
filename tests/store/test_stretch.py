"""The values of a column as one stretch: where samples are in it, and which sample a value belongs to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ArgumentError, DamagedBlock
from stoker.store import Writer, open_store
from stoker.store.reader import ColumnValues
from tests.store.places import folder


def stretch_of(path: Path, lengths: list[int], *, shard_bytes: int) -> ColumnValues:
    with Writer(path, {"tokens": "uint16[*]"}, shard_bytes=shard_bytes) as writer:
        writer.extend({"tokens": (np.arange(sum(lengths)) % 65536, lengths)})
    return open_store(path).stretch()


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=60).filter(any),
    shard_bytes=st.sampled_from([40, 200, 1 << 20]),
    chosen=st.data(),
)
@settings(max_examples=60)
def test_samples_and_values_are_where_their_lengths_say(
    lengths: list[int], shard_bytes: int, chosen: st.DataObject
) -> None:
    starts = np.cumsum([0, *lengths])
    with folder() as path:
        stretch = stretch_of(path / "s", lengths, shard_bytes=shard_bytes)
        first = chosen.draw(st.integers(0, len(lengths)))
        last = chosen.draw(st.integers(first, len(lengths)))
        assert stretch.offsets(first, last).tolist() == starts[first : last + 1].tolist()
        documents = np.array(chosen.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)), np.int64)
        begins, sizes = stretch.bounds(documents)
        assert begins.tolist() == starts[documents].tolist()
        assert sizes.tolist() == np.array(lengths)[documents].tolist()
        values = np.arange(sum(lengths))
        assert stretch.documents_at(values).tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
        assert stretch.take(values[::-1]).tolist() == values[::-1].tolist()
        there = sizes > 0
        flat, elements = stretch.spans(begins[there], sizes[there])
        for element, begin, size in zip(elements.tolist(), begins[there].tolist(), sizes[there].tolist()):
            assert flat[element : element + size].tolist() == list(range(begin, begin + size))


def test_borders_may_end_long_before_the_last_sample(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "s", [2] * 20_000, shard_bytes=4000)
    assert stretch.offsets(100, 110).tolist() == list(range(200, 222, 2))
    crops = open_store(tmp_path / "s").tokens(1, across=False)
    assert crops[5]["tokens"].tolist() == [10]


def test_what_is_out_of_range_is_refused(tmp_path: Path) -> None:
    for shard_bytes in (40, 1 << 20):
        stretch = stretch_of(tmp_path / f"s{shard_bytes}", [3, 0, 5, 9, 20, 7], shard_bytes=shard_bytes)
        for number in (-1, 6, 1 << 40):
            with pytest.raises(ArgumentError, match="samples out of range: there are 6"):
                stretch.bounds(np.array([0, number]))
        for number in (-1, 44, 1 << 40):
            with pytest.raises(ArgumentError, match="values out of range: there are 44"):
                stretch.documents_at(np.array([0, number]))
        for begin, size in ((-1, 1), (43, 2), (0, 1 << 40)):
            with pytest.raises(ArgumentError, match="a range is not within one shard"):
                stretch.spans(np.array([0, begin]), np.array([1, size]))


def test_spans_are_checked_before_they_are_handed_out(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "s", [50_000] * 6, shard_bytes=1 << 20)
    [shard] = (tmp_path / "s").glob("*.safetensors")
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size - 50_000)  # in the last document
        file.write(b"\xff\xff")
    begins, sizes = stretch.bounds(np.array([0, 1, 5]))
    stretch.spans(begins[:2], sizes[:2])
    for _ in range(2):
        with pytest.raises(DamagedBlock):
            stretch.spans(begins, sizes)
        with pytest.raises(DamagedBlock):
            stretch.spans(np.array([275_001]), np.array([3]))
