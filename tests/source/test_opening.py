"""`open` finds out what is there."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import errors
from stoker.source.array_file import ArrayFile
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
from stoker.source.opening import open as open_any
from stoker.source.parquet import Parquet
from stoker.source.raw_tokens import RawTokens
from stoker.store import Column, Store, Writer, open_array, save_array
from tests.source.foreign import ROWS, save_dataset, table_of, write_arrow, write_llm_c, write_megatron


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with something of everything."""
    np.save(tmp_path / "rows.npy", np.arange(6).reshape(3, 2))
    (tmp_path / "raw.bin").write_bytes(np.arange(7, dtype="<u2").tobytes())
    write_llm_c(tmp_path / "llm.bin", [1, 2])
    write_megatron(tmp_path / "mega", [[1], [2, 3]])
    pq.write_table(table_of(ROWS), tmp_path / "x.parquet")
    save_dataset(tmp_path / "saved", [table_of(ROWS)])
    write_arrow(tmp_path / "stream.arrow", table_of(ROWS))
    with pa.ipc.new_file(str(tmp_path / "feather"), pa.schema({"x": pa.int64()})):
        pass
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    for name, suffix in (("parquets", "parquet"), ("bins", "bin"), ("jsons", "jsonl"), ("npys", "npy")):
        (tmp_path / name / ".cache").mkdir(parents=True)
        (tmp_path / name / ".cache" / "x.bin").write_bytes(b"1")
        (tmp_path / name / "README.md").write_text("about")
        original = {"parquet": "x.parquet", "bin": "raw.bin", "jsonl": "a.jsonl", "npy": "tokens.npy"}[suffix]
        np.save(tmp_path / "tokens.npy", np.arange(5, dtype=np.uint16))
        for number in range(2):
            (tmp_path / name / f"{number}.{suffix}").write_bytes((tmp_path / original).read_bytes())
    return tmp_path


KINDS: dict[str, tuple[type, int]] = {
    "rows.npy": (ArrayFile, 3),
    "raw.bin": (RawTokens, 7),
    "llm.bin": (RawTokens, 2),
    "mega": (Megatron, 2),
    "mega.bin": (Megatron, 2),
    "mega.idx": (Megatron, 2),
    "mega.*": (Megatron, 2),
    "x.parquet": (Parquet, 20),
    "saved": (ArrowFolder, 20),
    "stream.arrow": (ArrowFolder, 20),
    "feather": (ArrowFolder, 0),
    "a.jsonl": (Lines, 2),
    "parquets": (Parquet, 40),
    "bins": (RawTokens, 14),
    "jsons": (Lines, 4),
    "npys": (RawTokens, 10),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_there_is_opened_as_what_it_is(place: Path, name: str) -> None:
    kind, size = KINDS[name]
    source = open_any(place / name)
    found: type = type(source)
    assert found is kind
    if kind is not Lines:  # which would make an index in the user's cache folder
        assert len(source) == size


def test_text_is_opened_packed_or_not(place: Path, tmp_path: Path) -> None:
    source = open_any(place / "b.txt.gz", index_dir=tmp_path / "index")
    assert source.__getitems__([1, 0]) == ["two", "one"]
    assert open_any([place / "a.jsonl", place / "b.txt.gz"], index_dir=tmp_path / "index")[3] == "two"


def test_the_content_counts_more_than_the_name(place: Path) -> None:
    for name, kind in (("rows.npy", ArrayFile), ("x.parquet", Parquet), ("feather", ArrowFolder)):
        (place / name).rename(place / "odd.name")
        assert type(open_any(place / "odd.name")) is kind


def test_a_store_is_opened(tmp_path: Path) -> None:
    with Writer(tmp_path / "store", {"x": Column.fixed("int64")}) as writer:
        writer.append({"x": 7})
    assert isinstance(open_any(tmp_path / "store"), Store)
    with pytest.raises(errors.StoreMismatch):
        open_any(tmp_path / "store", expect={"odd": 3})
    with pytest.raises(errors.ArgumentError, match="no option 'columns'"):
        open_any(tmp_path / "store", columns=["x"])


def test_raw_values_are_opened_with_dtype_and_shape(place: Path) -> None:
    source = open_any(place / "raw.bin", dtype="<u2", shape=(-1, 7))
    assert type(source) is ArrayFile
    assert source[0].tolist() == list(range(7))


def test_options_are_passed_on_and_others_refused(place: Path) -> None:
    assert open_any(place / "x.parquet", columns=["text"]).columns == ["text"]
    assert open_any(place / "raw.bin", dtype="uint8").num_values == 14
    with pytest.raises(errors.ArgumentError, match="no option 'dtype'\nhint: its options are columns, cache_bytes"):
        open_any(place / "x.parquet", dtype="uint8")
    with pytest.raises(errors.ArgumentError, match="no option 'columns'\nhint: it has no options"):
        open_any(place / "mega", columns="x")
    with pytest.raises(errors.ArgumentError, match="expect= is for stores"):
        open_any(place / "x.parquet", expect={})


def test_what_cannot_be_opened_is_refused_with_what_can(place: Path) -> None:
    (place / "odd.xyz").write_bytes(b"something")
    (place / "nothing").mkdir()
    can = r"(.|\n)*hint: what can be opened:(.|\n)*\.parquet"
    with pytest.raises(errors.ArgumentError, match=r"odd\.xyz is none of the kinds" + can):
        open_any(place / "odd.xyz")
    with pytest.raises(errors.ArgumentError, match="nothing holds nothing that can be opened" + can):
        open_any(place / "nothing")
    with pytest.raises(FileNotFoundError, match=r"there is nothing at .*absent" + can):
        open_any(place / "absent")
    with pytest.raises(FileNotFoundError, match="there is nothing at"):
        open_any(place / "*.absent")
    with pytest.raises(FileNotFoundError, match="there is nothing at"):
        open_any([place / "rows.npy", place / "absent"])
    with pytest.raises(errors.ArgumentError, match="list of paths is empty"):
        open_any([])
    with pytest.raises(errors.ArgumentError, match="not one source: 2 files for Lines, Parquet"):
        open_any([place / "a.jsonl", place / "x.parquet"])
    with pytest.raises(errors.ArgumentError, match="neither a file nor a folder"):
        open_any(os.devnull)


def test_a_damaged_file_is_named(place: Path) -> None:
    (place / "x.parquet").write_bytes(b"hello")
    with pytest.raises(errors.DamagedFile, match=r"x\.parquet is not a Parquet file"):
        open_any(place / "x.parquet")
    (place / "rows.npy").write_bytes(b"")
    with pytest.raises(errors.DamagedFile, match="it is empty"):
        open_any(place / "rows.npy")


def test_sources_are_read_by_the_loader(place: Path) -> None:
    from stoker import DataLoader

    batches: list[Any] = list(DataLoader(open_any(place / "x.parquet", columns=["number", "text"]), batch_size=10))
    assert [batch["number"].tolist() for batch in batches] == [list(range(10)), list(range(10, 20))]
    rows = DataLoader(open_any(place / "rows.npy"), batch_size=3, num_workers=1)
    assert [batch.tolist() for batch in rows] == [[[0, 1], [2, 3], [4, 5]]]


def test_files_of_save_array_open_by_their_content(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    save_array(tmp_path / "rows", rows)
    source = open_any(tmp_path / "rows")
    assert len(source) == 4
    assert np.array_equal(source[-1], rows[-1])
    assert np.array_equal(open_array(tmp_path / "rows"), rows)
