"""`ArrowFolder` against the rows that were saved."""

from __future__ import annotations

import builtins
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import errors
from stoker.batch.collate import collate
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.protocols import Source
from tests.source.foreign import (
    ROWS,
    SCHEMA,
    check_laws,
    check_processes,
    check_staleness,
    damages,
    plain,
    read_damaged,
    same,
    save_dataset,
    table_of,
    write_arrow,
)

# --- laws

values: dict[Any, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
}
numbers = [kind for kind in values if not (pa.types.is_string(kind) or pa.types.is_large_binary(kind))]


@st.composite
def columns(draw: st.DrawFn, num_rows: int) -> tuple[Any, list[Any]]:
    """A type, and values of it; some are missing."""
    kind = draw(st.sampled_from(list(values)))
    value = values[kind]
    for _ in range(draw(st.integers(0, 2))):
        shape = draw(st.sampled_from(["list", "large", "fixed", "struct"]))
        value = value if draw(st.booleans()) else st.none() | value
        if shape == "struct":
            kind, value = pa.struct({"a": kind}), st.fixed_dictionaries({"a": value})
        elif shape == "fixed":
            kind, value = pa.list_(kind, 2), st.lists(value, min_size=2, max_size=2)
        else:
            kind = pa.list_(kind) if shape == "list" else pa.large_list(kind)
            value = st.lists(value, max_size=4)
    value = value if draw(st.booleans()) else st.none() | value
    return kind, draw(st.lists(value, min_size=num_rows, max_size=num_rows))


def unwrapped(value: Any) -> Any:
    """A sample's value as Arrow would give it: arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [unwrapped(one) for one in value]
    if isinstance(value, dict):
        return {key: unwrapped(one) for key, one in value.items()}
    return value


@given(data=st.data(), num_rows=st.integers(0, 12), batch_rows=st.integers(1, 12), cut=st.integers(0, 12))
def test_any_column_is_read_as_arrow_reads_it(data: st.DataObject, num_rows: int, batch_rows: int, cut: int) -> None:
    kind, column = data.draw(columns(num_rows))
    table = pa.table({"x": pa.array(column, kind), "at": pa.array(range(num_rows), pa.int64())})
    compression = data.draw(st.sampled_from([None, "lz4", "zstd"]))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, "0.arrow"), Path(folder, "1.arrow")]
        for path, part in zip(paths, (table.slice(0, cut), table.slice(cut))):
            write_arrow(path, part, batch_rows=batch_rows, compression=compression)
        source = ArrowFolder(paths)
        assert isinstance(source, Source)
        samples = source.__getitems__(range(len(source)))
        assert repr(unwrapped(samples)) == repr(table.to_pylist())
        assert same([source[position] for position in range(len(source))], samples)
        asked = data.draw(st.lists(st.integers(-num_rows, num_rows - 1), max_size=20)) if num_rows else []
        assert same(source.__getitems__(asked), [samples[position] for position in asked])


@pytest.mark.parametrize("kind", ["stream", "file", "compressed"])
@given(damage=damages())
def test_a_damaged_file_is_read_or_refused(kind: str, damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.arrow")
        if kind == "file":
            with pa.ipc.new_file(str(path), SCHEMA) as writer:
                writer.write_table(table_of(ROWS), max_chunksize=8)
        else:
            write_arrow(path, table_of(ROWS), batch_rows=8, compression="zstd" if kind == "compressed" else None)
        path.write_bytes(damage(path.read_bytes()))
        read_damaged(lambda: ArrowFolder(path))


# --- one by one


def test_a_saved_dataset_is_a_source(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d", [table_of(ROWS[:7]), table_of(ROWS[7:8]), table_of([]), table_of(ROWS[8:])])
    source = ArrowFolder(tmp_path / "d")
    check_laws(source)
    check_processes(source)
    assert (len(source), source.columns) == (20, SCHEMA.names)
    assert source.describe(8) == f"{tmp_path / 'd' / 'data-00003-of-00004.arrow'}, row 0"
    check_staleness(lambda: ArrowFolder(tmp_path / "d"), tmp_path / "d" / "data-00000-of-00004.arrow")


def test_samples_are_what_the_default_collation_takes(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d", [table_of(ROWS)])
    source = ArrowFolder(tmp_path / "d")
    assert plain(source[6]) == {
        "number": 6,
        "text": "é6é6",
        "ids": ["int32", []],
        "maybe": 3.0,
        "is_odd": False,
        "blob": b"\x06",
        "words": [],
        "picture": ["uint8", [[6, 1, 2], [3, 4, 5]]],
        "struct": {"a": 6, "b": ["float64", [1.5, 2.5]]},
    }
    assert source[5]["maybe"] is None and source[4]["struct"] is None
    chosen = ArrowFolder(tmp_path / "d", columns=["picture", "number", "text"])
    assert list(chosen[0]) == ["picture", "number", "text"]
    batch = collate(chosen.__getitems__([3, 1]))
    assert batch["picture"].shape == (2, 2, 3)
    assert (batch["number"].tolist(), batch["text"]) == ([3, 1], ["é3é3é3", "é1"])


def test_a_missing_number_in_a_list_leaves_it_a_list(tmp_path: Path) -> None:
    write_arrow(tmp_path / "x.arrow", pa.table({"x": [[1, None], [2, 3], None]}))
    source = ArrowFolder(tmp_path / "x.arrow")
    assert plain([sample["x"] for sample in source.__getitems__(range(3))]) == [[1, None], ["int64", [2, 3]], None]
    write_arrow(tmp_path / "x.arrow", pa.table({"x": [[math.nan]]}))
    assert np.isnan(ArrowFolder(tmp_path / "x.arrow")[0]["x"]).all()


def test_one_of_several_datasets_is_chosen(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d" / "train", [table_of(ROWS)])
    save_dataset(tmp_path / "d" / "test", [table_of(ROWS[:3])])
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(ArrowFolder(tmp_path / "d", split="test")) == 3
    with pytest.raises(errors.ArgumentError, match="several datasets: train, test\nhint: .*split='train'"):
        ArrowFolder(tmp_path / "d")
    with pytest.raises(errors.ArgumentError, match="no split 'dev'\nhint: it has train, test"):
        ArrowFolder(tmp_path / "d", split="dev")
    with pytest.raises(errors.ArgumentError, match="is a single dataset"):
        ArrowFolder(tmp_path / "d" / "test", split="test")
    with pytest.raises(errors.ArgumentError, match="is only for a folder with a dataset_dict.json"):
        ArrowFolder(tmp_path / "d" / "test" / "*.arrow", split="test")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert len(ArrowFolder(tmp_path / "d")) == 3
    for content in ('{"splits": []}', "[]", "{", '{"splits": 3}', '{"splits": ["../x"]}', '{"splits": [".."]}'):
        (tmp_path / "d" / "dataset_dict.json").write_text(content)
        with pytest.raises(errors.StokerError):
            ArrowFolder(tmp_path / "d")


def test_a_mapping_of_indices_is_followed(tmp_path: Path) -> None:
    for key in ("_indices_files", "_indices_data_files"):
        folder = tmp_path / key
        save_dataset(folder, [table_of(ROWS[:7]), table_of(ROWS[7:])], **{key: [{"filename": "indices.arrow"}]})
        write_arrow(folder / "indices.arrow", pa.table({"indices": pa.array([19, 3, 3, 8], pa.uint64())}))
        source = ArrowFolder(folder)
        check_laws(source)
        assert [source[position]["number"] for position in range(4)] == [19, 3, 3, 8]
        assert source.describe(3).endswith("data-00001-of-00002.arrow, row 1")
        write_arrow(folder / "indices.arrow", pa.table({"indices": pa.array([20], pa.uint64())}))
        with pytest.raises(errors.DamagedFile, match="maps a position to row 20, but there are 20 rows"):
            ArrowFolder(folder)[0]
        write_arrow(folder / "indices.arrow", pa.table({"odd": ["x"]}))
        with pytest.raises(errors.DamagedFile, match="should have one column"):
            ArrowFolder(folder)


def test_the_columns_that_were_chosen_when_saving_are_read(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d", [table_of(ROWS)], _format_columns=["text"])
    assert ArrowFolder(tmp_path / "d").columns == ["text"]
    assert ArrowFolder(tmp_path / "d", columns="ids").columns == ["ids"]
    with pytest.raises(errors.ArgumentError, match="no column 'odd'\nhint: it has number, text"):
        ArrowFolder(tmp_path / "d", columns=["odd"])
    with pytest.raises(errors.ArgumentError, match="columns must not be empty"):
        ArrowFolder(tmp_path / "d", columns=[])
    save_dataset(tmp_path / "all", [table_of(ROWS)], _format_columns=["text"], _output_all_columns=True)
    assert ArrowFolder(tmp_path / "all").columns == SCHEMA.names


def test_a_state_that_lies_is_refused(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d", [table_of(ROWS)])
    state = tmp_path / "d" / "state.json"
    good = json.loads(state.read_text())
    for change, words in (
        ({"_data_files": []}, "lists no data files"),
        ({"_data_files": 3}, "not a list"),
        ({"_data_files": ["x"]}, "lists None"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "lists gone.arrow, which does not exist"),
        ({"_data_files": [{"filename": "../d/data-00000-of-00001.arrow"}]}, "not the name of a file in its folder"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "not the name of a file in its folder"),
        ({"_format_columns": [3]}, "does not list its columns"),
    ):
        state.write_text(json.dumps({**good, **change}))
        with pytest.raises(errors.DamagedFile, match=words):
            ArrowFolder(tmp_path / "d")
    state.write_text(json.dumps({**good, "_data_files": [{"filename": "a.arrow", "skip": 3}]}))
    with pytest.raises(errors.ArgumentError, match="takes only a part"):
        ArrowFolder(tmp_path / "d")
    state.write_text("[" * 100_000)
    with pytest.raises(errors.DamagedFile, match="is not JSON"):
        ArrowFolder(tmp_path / "d")
    state.unlink()
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(errors.DamagedFile, match=r"has no state\.json"):
        ArrowFolder(tmp_path / "d")


@pytest.mark.parametrize("is_file", [False, True])
def test_a_file_cut_off_between_two_batches_is_refused(tmp_path: Path, is_file: bool) -> None:
    path = tmp_path / "x.arrow"
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(str(path), SCHEMA) as writer:
        writer.write_table(table_of(ROWS), max_chunksize=8)
    content = path.read_bytes()
    assert len(ArrowFolder(path)) == 20
    for end in {*range(0, len(content), 7), len(content) - 8, len(content) - 1}:
        path.write_bytes(content[:end])
        with pytest.raises(errors.DamagedFile):
            ArrowFolder(path)
    path.write_bytes(content + bytes(8))
    with pytest.raises(errors.DamagedFile, match="has no end mark at byte"):
        ArrowFolder(path)


def test_offsets_that_lead_out_of_the_data_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    write_arrow(path, pa.table({"x": ["a" * 50, "b" * 50]}))
    content = path.read_bytes()
    offsets = np.array([0, 50, 100], "<i4").tobytes()
    assert content.count(offsets) == 1
    for wrong in ([0, 1 << 30, 100], [0, -5, 100], [90, 50, 100]):
        path.write_bytes(content.replace(offsets, np.array(wrong, "<i4").tobytes()))
        with pytest.raises(errors.DamagedFile, match="in record batch 0"):
            ArrowFolder(path)[0]


@pytest.mark.parametrize("name", ["outside", "inside"])
def test_names_that_are_not_text_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.arrow"
    write_arrow(path, pa.table({"outside": [{"inside": 1}]}))
    path.write_bytes(path.read_bytes().replace(name.encode(), b"\xff" * len(name)))
    with pytest.raises(errors.DamagedFile, match="utf-8"):
        ArrowFolder(path)[0]


def test_files_of_different_columns_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "0.arrow", pa.table({"x": [1]}))
    write_arrow(tmp_path / "1.arrow", pa.table({"x": ["1"]}))
    with pytest.raises(errors.ArgumentError, match="different columns:\nx: int64\nand\nx: string"):
        ArrowFolder(tmp_path / "*.arrow")


def test_dictionary_encoded_columns_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "x.arrow", pa.table({"x": pa.array(["a", "b"]).dictionary_encode()}))
    with pytest.raises(errors.ArgumentError, match="dictionary-encoded columns"):
        ArrowFolder(tmp_path / "x.arrow")


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "x.arrow", pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]))
    with pytest.raises(errors.ArgumentError, match="several columns named x"):
        ArrowFolder(tmp_path / "x.arrow")
    write_arrow(tmp_path / "y.arrow", pa.table({}))
    with pytest.raises(errors.ArgumentError, match="has no columns"):
        ArrowFolder(tmp_path / "y.arrow")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(errors.MissingExtra, match=r"needs pyarrow(.|\n)*pip install 'stoker\[arrow\]'"):
        ArrowFolder(tmp_path)
