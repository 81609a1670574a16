"""`Parquet` against the rows that were written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import errors
from stoker.source.parquet import Parquet
from stoker.source.protocols import Source
from tests.source.foreign import (
    ROWS,
    SCHEMA,
    check_laws,
    check_processes,
    check_staleness,
    damages,
    read_damaged,
    same,
    table_of,
)
from tests.source.test_arrow_folder import columns, unwrapped

# --- laws


@given(data=st.data(), num_rows=st.integers(0, 12), group_rows=st.integers(1, 12), cut=st.integers(0, 12))
def test_any_column_is_read_as_arrow_reads_it(data: st.DataObject, num_rows: int, group_rows: int, cut: int) -> None:
    kind, column = data.draw(columns(num_rows))
    table = pa.table({"x": pa.array(column, kind), "at": pa.array(range(num_rows), pa.int64())})
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("0.parquet", table.slice(0, cut)), ("1.parquet", table.slice(cut))):
            pq.write_table(part, Path(folder, name), row_group_size=group_rows)
        source = Parquet(folder, cache_bytes=data.draw(st.sampled_from([0, 200, 1 << 20])))
        assert isinstance(source, Source)
        samples = source.__getitems__(range(len(source)))
        assert repr(unwrapped(samples)) == repr(table.to_pylist())
        assert same([source[position] for position in range(len(source))], samples)
        asked = data.draw(st.lists(st.integers(-num_rows, num_rows - 1), max_size=20)) if num_rows else []
        assert same(source.__getitems__(asked), [samples[position] for position in asked])


@pytest.mark.parametrize("compression", ["none", "zstd"])
@settings(max_examples=60)
@given(damage=damages())
def test_a_damaged_file_is_read_or_refused(compression: str, damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        pq.write_table(table_of(ROWS), path, row_group_size=8, compression=compression)
        path.write_bytes(damage(path.read_bytes()))
        read_damaged(lambda: Parquet(path))


@given(damage=st.binary(min_size=20, max_size=20))
def test_what_has_checksums_is_read_right_or_refused(damage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        table = pa.table({"x": np.arange(100)})
        pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
        content = path.read_bytes()
        last = np.arange(90, 100).tobytes()
        at = content.rindex(last)  # of the data; the statistics have the largest number alone
        path.write_bytes(content[:at] + damage + content[at + len(damage) :])
        if content == path.read_bytes():
            assert Parquet(path)[99] == {"x": 99}
            return
        with pytest.raises(errors.DamagedFile, match="in row group 0: .*CRC"):
            Parquet(path)[0]


# --- one by one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, of row groups of 4 rows."""
    where = tmp_path / "data"
    (where / "more").mkdir(parents=True)
    pq.write_table(table_of(ROWS[:9]), where / "0.parquet", row_group_size=4)
    pq.write_table(table_of([]), where / "1.parquet")
    pq.write_table(table_of(ROWS[9:]), where / "more" / "2.parquet", row_group_size=4)
    return where


def test_it_is_a_source(folder: Path) -> None:
    source = Parquet(folder)
    check_laws(source)
    check_processes(source)
    assert (len(source), source.columns) == (20, SCHEMA.names)
    assert source.describe(-1) == f"{folder / 'more' / '2.parquet'}, row 10"
    assert source.describe(9) == f"{folder / 'more' / '2.parquet'}, row 0"
    assert source.describe(8) == f"{folder / '0.parquet'}, row 8"
    check_staleness(lambda: Parquet(folder), folder / "0.parquet")


def test_files_are_given_as_a_path_a_pattern_a_folder_or_a_list(folder: Path) -> None:
    assert len(Parquet(folder / "0.parquet")) == 9
    assert len(Parquet(folder / "*.parquet")) == 9
    assert len(Parquet(str(folder / "**" / "*.parquet"))) == 20
    assert [sample["number"] for sample in Parquet([folder / "more", folder / "0.parquet"]).__getitems__([0, 11])] == [
        9,
        0,
    ]


def test_chosen_columns_are_read_and_no_others(folder: Path) -> None:
    source = Parquet(folder, columns=["text", "number"])
    assert source[1] == {"text": "é1", "number": 1}
    assert list(source[1]) == ["text", "number"]
    with pytest.raises(errors.ArgumentError, match="no column 'odd'"):
        Parquet(folder, columns=["odd"])


def test_opening_reads_the_footers_alone(folder: Path) -> None:
    with patch.object(pq.ParquetFile, "read_row_group", side_effect=AssertionError):
        assert len(Parquet(folder)) == 20


def counted(source: Parquet) -> list[int]:
    """The row groups that are decoded from now on."""
    decoded: list[int] = []
    real = source._decoded

    def decode(group: int) -> Any:
        decoded.append(group)
        return real(group)

    source._decoded = decode  # type: ignore[method-assign]
    return decoded


def test_one_call_reads_each_row_group_once(folder: Path) -> None:
    source = Parquet(folder, cache_bytes=0)
    decoded = counted(source)
    source.__getitems__([19, 0, 5, 1, 18, 4, 2])
    assert decoded == [0, 1, 6]  # the empty file has one, too


def test_row_groups_are_kept_up_to_a_number_of_bytes(folder: Path) -> None:
    source = Parquet(folder, cache_bytes=1 << 20)
    decoded = counted(source)
    for position in (0, 5, 1, 4, 0):
        source[position]
    assert decoded == [0, 1]
    source = Parquet(folder, cache_bytes=0)
    decoded = counted(source)
    for position in (0, 1, 5, 4, 0):
        source[position]
    assert decoded == [0, 1, 0]


def test_threads_decode_a_row_group_once(folder: Path) -> None:
    source = Parquet(folder)
    decoded = counted(source)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda position: source[position % 4]["number"], range(200)))
    assert found == [position % 4 for position in range(200)]
    assert decoded == [0]


def test_no_descriptor_stays_open(folder: Path) -> None:
    source = Parquet(folder)
    before = os.listdir("/proc/self/fd")
    source.__getitems__(range(20))
    assert os.listdir("/proc/self/fd") == before


def test_files_of_different_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": ["1"], "y": [2]}), tmp_path / "1.parquet")
    with pytest.raises(errors.ArgumentError, match=r"'x' is int64 in .*0.parquet and string in .*1.parquet"):
        Parquet(tmp_path)
    assert Parquet(tmp_path, columns="y").__getitems__([1, 0]) == [{"y": 2}, {"y": 1}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"hello, this is text", "not a Parquet file: its first bytes are 68 65 6c 6c"),
        (b"PAR1", "cannot be read, as Parquet"),
        (b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1", "cannot be read, as Parquet"),
    ],
)
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(errors.DamagedFile, match=words):
        Parquet(tmp_path / "x.parquet")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table_of(ROWS), path)
    content = path.read_bytes()
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(errors.DamagedFile):
            Parquet(path)


def test_arguments_that_cannot_work_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PARE" + bytes(20))
    with pytest.raises(errors.ArgumentError, match="is encrypted"):
        Parquet(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(errors.ArgumentError, match="cache_bytes must not be negative, got -1"):
        Parquet(tmp_path, cache_bytes=-1)
