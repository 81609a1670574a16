"""`open` finds out what is there."""

from __future__ import annotations

import gzip
import os
import re
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from stoker import errors
from stoker.cli.app import app
from stoker.source import formats
from stoker.source.array_file import ArrayFile
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.formats import FileFormat
from stoker.source.formats import open as open_any
from stoker.source.known_file import files_at
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
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
    with pytest.raises(errors.ArgumentError, match="expect= is only for stores"):
        open_any(place / "x.parquet", expect={})


def test_what_cannot_be_opened_is_refused_with_what_can(place: Path) -> None:
    (place / "odd.xyz").write_bytes(b"something")
    (place / "nothing").mkdir()
    can = r"(.|\n)*hint: what can be opened:(.|\n)*\.parquet"
    with pytest.raises(errors.ArgumentError, match=r"odd\.xyz is not in a known format" + can):
        open_any(place / "odd.xyz")
    with pytest.raises(errors.ArgumentError, match="nothing contains nothing that can be opened" + can):
        open_any(place / "nothing")
    with pytest.raises(FileNotFoundError, match=r"absent does not exist" + can):
        open_any(place / "absent")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_any(place / "*.absent")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_any([place / "rows.npy", place / "absent"])
    with pytest.raises(errors.ArgumentError, match="list of paths is empty"):
        open_any([])
    with pytest.raises(errors.ArgumentError, match="is not one source: it has 2 files for Lines, Parquet"):
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


# ---------------------------------------------------------------- paths


def read_all(source: Any) -> list[Any]:
    return [str(sample) for sample in source.__getitems__(range(len(source)))]


@pytest.mark.parametrize("reader", [Parquet, RawTokens, ArrowFolder, Lines])
def test_every_source_of_several_files_expands_paths_in_the_same_way(reader: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    suffix = {Parquet: ".parquet", RawTokens: ".bin", ArrowFolder: ".arrow", Lines: ".txt"}[reader]
    for number, name in enumerate(["b", "a", "deep/c", ".hidden/d"]):
        path = folder / f"{name}{suffix}"
        table = pa.table({"number": [number]})
        if reader is Parquet:
            pq.write_table(table, path)
        elif reader is ArrowFolder:
            with pa.ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table)
        elif reader is RawTokens:
            np.array([number], np.uint16).tofile(path)
        else:
            path.write_text(f"{number}\n")
    (folder / "other.xyz").write_text("not data")
    options = {"index_dir": tmp_path / "index"} if reader is Lines else {}

    def numbers(paths: Any) -> list[int]:
        return [int(re.sub(r"\D", "", sample)) for sample in read_all(reader(paths, **options))]

    assert numbers(folder) == numbers(str(folder)) == [1, 0, 2]  # sorted by path, without hidden folders
    assert numbers(folder / f"*{suffix}") == [1, 0]
    assert numbers(str(folder / "**" / f"*{suffix}")) == [1, 0, 2]
    assert numbers([folder / f"b{suffix}", str(folder / f"a{suffix}")]) == [0, 1]  # a list keeps its order
    assert numbers([folder / "deep", folder / f"[ab]{suffix}"]) == [2, 1, 0]
    for paths, error in (([], errors.ArgumentError), ([3], errors.ArgumentError), ("*.none", FileNotFoundError)):
        with pytest.raises(error):
            reader(paths)
    with pytest.raises(errors.ArgumentError, match=f"contains no .*{suffix}"):
        (folder / "empty").mkdir()
        reader(folder / "empty")


@pytest.mark.parametrize("reader", [ArrayFile, Megatron])
def test_sources_of_a_single_file_say_so(reader: Any, tmp_path: Path) -> None:
    with pytest.raises(
        errors.ArgumentError, match=f"{reader.__name__} reads a single file, got 2 paths\nhint: pass one"
    ):
        reader([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(errors.ArgumentError, match=f"{reader.__name__} reads a single file, got 3"):
        reader(3)


# ---------------------------------------------------------------- a format of one's own


class Toy:
    """Bytes as samples: a reader as a newcomer would write it."""

    def __init__(self, paths: Any, *, shift: int = 0) -> None:
        files = files_at(paths, suffixes=(".toy",))
        self._data = [byte + shift for file in files for byte in file.head(1000)[3:]]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, position: int) -> int:
        return self._data[position]


def test_a_new_format_is_a_reader_and_a_line_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = FileFormat(
        reader=Toy, summary=".toy of bytes", suffixes=(".toy",), recognizes=lambda _, head: head[:3] == b"TOY"
    )
    monkeypatch.setattr(formats, "FORMATS", [*formats.FORMATS, toy])
    (tmp_path / "toys").mkdir()
    for name, content in (("toys/b.toy", b"TOY\3"), ("toys/a.toy", b"TOY\1\2"), ("named_otherwise", b"TOY\4")):
        (tmp_path / name).write_bytes(content)
    assert list(open_any(tmp_path / "toys")) == [1, 2, 3]
    assert list(open_any(str(tmp_path / "toys" / "*.toy"), shift=1)) == [2, 3, 4]
    assert list(open_any(tmp_path / "named_otherwise")) == [4]
    with pytest.raises(errors.ArgumentError, match="no option 'columns'\nhint: its options are shift"):
        open_any(tmp_path / "toys", columns="x")
    with pytest.raises(FileNotFoundError, match=r"(?s)what can be opened:.*\.toy of bytes"):
        open_any(tmp_path / "absent")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "toys")])
    assert result.exit_code == 0, result.output
    assert re.search(r"opened as +Toy", result.output)


def test_the_guide_lists_every_format_with_its_options() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "stores.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("|")]
    for known in formats.FORMATS[1:]:
        row = " ".join(row for row in rows if any(f"`{suffix}`" in row for suffix in known.suffixes))
        assert row, f"docs/guides/stores.md has no row for {known.summary}"
        options = [name for name, one in signature(known.reader).parameters.items() if one.kind is one.KEYWORD_ONLY]
        if known.reader is not Lines:  # which has a guide of its own
            everywhere = " ".join(rows)
            assert all(f"`{name}=`" in everywhere for name in options), (known.summary, options)
