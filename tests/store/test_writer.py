"""Writing stores."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from stoker.errors import ArgumentError, NotAStore
from stoker.store import Build, Column, Writer, open_store
from stoker.store.column import SAFETENSORS_NAMES

TOKENS = {"t": Column.ragged("uint16")}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_samples_come_back_in_their_order(tmp_path: Path) -> None:
    columns = {"text": Column.text(), "data": Column.blob(), "x": Column("float32", (2,)), "t": Column.ragged("int8")}
    samples = [{"text": "ä" * n, "data": bytes(n), "x": [n, -n], "t": list(range(n))} for n in range(7)]
    with Writer(tmp_path / "s", columns, shard_bytes=100) as writer:
        for sample in samples:
            writer.append(sample)
        assert writer.num_samples == 7
    store = open_store(tmp_path / "s")
    assert len(store.manifest.shards) > 2
    for found, sample in zip(store.__getitems__(range(7)), samples):
        assert found["text"] == sample["text"] and found["data"] == sample["data"]
        assert found["x"].tolist() == sample["x"] and found["t"].tolist() == sample["t"]


def test_columns_are_those_of_the_first_sample(tmp_path: Path) -> None:
    with Writer(tmp_path / "s") as writer:
        writer.append({"image": np.zeros((2, 3), np.uint8), "label": 5, "name": "a", "file": b"x"})
    columns = {name: column.described() for name, column in open_store(tmp_path / "s").columns.items()}
    assert columns == {"image": "uint8[2, 3]", "label": "int64", "name": "text", "file": "bytes"}
    with Writer(tmp_path / "many") as writer:
        writer.extend({"t": (np.arange(5, dtype=np.uint16), [2, 3]), "x": np.zeros((2, 4), np.float32)})
    columns = {name: column.described() for name, column in open_store(tmp_path / "many").columns.items()}
    assert columns == {"t": "uint16[*]", "x": "float32[4]"}


def test_what_is_given_may_be_changed_afterwards(tmp_path: Path) -> None:
    buffer = np.zeros(3, np.uint16)
    with Writer(tmp_path / "s", {"t": Column.ragged("uint16"), "x": Column("uint16", (3,))}) as writer:
        for number in range(4):
            buffer[:] = number
            writer.append({"t": buffer, "x": buffer})
            writer.extend({"t": (buffer, [3]), "x": buffer[None]})
        buffer[:] = 9
    assert open_store(tmp_path / "s").read("x", range(8))[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert open_store(tmp_path / "s").read_ragged("t", range(8))[0].tolist() == np.repeat(range(4), 6).tolist()


@pytest.mark.parametrize("dtype", SAFETENSORS_NAMES)
def test_safetensors_reads_our_shards(tmp_path: Path, dtype: str) -> None:
    values = (np.arange(24) % 2).astype(dtype)
    with Writer(tmp_path / "s", {"t": Column.ragged(dtype), "x": Column(dtype, (2, 3))}) as writer:
        writer.extend({"t": (values[:7], [3, 0, 4, 0]), "x": values.reshape(4, 2, 3)})
    [shard] = open_store(tmp_path / "s").manifest.shards
    with safe_open(tmp_path / "s" / shard.file, "numpy") as file:
        assert file.metadata()["format"] == "stoker.shard"
        assert set(file.keys()) == {"stoker.checksums", "t", "t.offsets", "x"}
        assert file.get_tensor("t.offsets").tolist() == [0, 3, 3, 7, 7]
        for name, expected in (("t", values[:7]), ("x", values.reshape(4, 2, 3))):
            found = file.get_tensor(name)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)


def test_data_begins_at_a_page_and_arrays_are_aligned(tmp_path: Path) -> None:
    columns = {"a": Column("uint8", (3,)), "b": Column.ragged("float64"), "c": Column("uint16"), "d": Column.text()}
    with Writer(tmp_path / "s", columns) as writer:
        for number in range(5):
            writer.append({"a": [1, 2, 3], "b": [0.5] * number, "c": number, "d": "x" * number})
    [shard] = open_store(tmp_path / "s").manifest.shards
    data = (tmp_path / "s" / shard.file).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    assert begin % 65536 == shard.body % 65536 == 0
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            size = {"F64": 8, "I64": 8, "U64": 8, "U16": 2, "U8": 1}[entry["dtype"]]
            assert (begin + entry["data_offsets"][0]) % size == 0


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        (Column("uint8"), 256, "'c' is a column of uint8, which cannot represent every value of the int64 given\nhint"),
        (Column("uint8"), -1, "cannot represent every value"),
        (Column("uint64"), -1, "cannot represent every value"),
        (Column("int64"), 0.5, "cannot represent every value of the float64"),
        (Column("int64"), float("nan"), "cannot represent every value of the float64"),
        (Column("int64"), 1 << 70, "cannot represent every value of the object"),
        (Column("float64"), (1 << 53) + 1, "cannot represent every value of the int64"),
        (Column("float16"), 1e300, "cannot represent every value of the float64"),
        (Column("float32"), 1j, "cannot represent every value of the complex128"),
        (Column("complex64"), 1e300, "cannot represent every value of the float64"),
        (Column("int64"), "5", "cannot represent every value of the <U1"),
        (Column("bool"), 2, "cannot represent every value"),
        (Column("uint8", (2,)), [1, 2, 3], "'c' is a column of uint8\\[2\\], got values of shape"),
        (Column("uint8", (2,)), [[1], [1, 2]], "'c' cannot be converted to an array"),
        (Column.ragged("uint8"), 5, "'c' is a column of uint8\\[\\*\\], got values of shape"),
        (Column.ragged("uint8"), [[5]], "got values of shape"),
        (Column.text(), b"x", "'c' is a column of text, not of bytes\nhint: pass a str"),
        (Column.text(), "\ud800", "'c' has text that is not Unicode"),
        (Column.blob(), "x", "'c' is a column of bytes, not of str\nhint: pass bytes"),
        (Column.blob(), 5, "'c' is a column of bytes, not of int"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(tmp_path: Path, column: Column, value: Any, shown: str) -> None:
    with Writer(tmp_path / "s", {"c": column}) as writer:
        with pytest.raises(ArgumentError, match=shown):
            writer.append({"c": value})
        assert writer.num_samples == 0
    assert len(open_store(tmp_path / "s")) == 0


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (Column("uint8"), 255.0, 255),
        (Column("float16"), 0.1, np.float16(0.1)),
        (Column("float32"), float("inf"), float("inf")),
        (Column("complex64"), 0.1, np.complex64(0.1)),
        (Column("uint16"), np.array(3, ">u2"), 3),
        (Column("bool"), 1, True),
        (Column("int64"), np.uint64(5), 5),
    ],
)
def test_what_a_column_can_hold_is_converted(tmp_path: Path, column: Column, value: Any, expected: Any) -> None:
    with Writer(tmp_path / "s", {"c": column}) as writer:
        writer.append({"c": value})
    assert open_store(tmp_path / "s")[0]["c"] == expected


def test_not_a_number_is_kept(tmp_path: Path) -> None:
    with (
        warnings.catch_warnings(),
        Writer(tmp_path / "s", {"c": Column("float16"), "d": Column("complex64")}) as writer,
    ):
        warnings.simplefilter("error")
        writer.append({"c": float("nan"), "d": complex("nan")})
    assert np.isnan([open_store(tmp_path / "s")[0][name] for name in "cd"]).all()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"t": ([1], [1])}, "samples have no x\nhint: pass a value for every column"),
        ({"t": ([1], [1]), "x": [1], "y": [1]}, "the store has no column 'y'\nhint: add it"),
        ({"t": [1, 2, 3], "x": [1]}, "'t' is ragged, and needs a pair\nhint: pass \\(values, lengths\\)"),
        ({"t": ([1, 2], [1]), "x": [1]}, "'t' has 2 values, but its lengths add up to 1"),
        ({"t": ([1, 2], [3, -1]), "x": [1, 2]}, "the lengths of 't' are not a list of counts"),
        ({"t": ([1, 2], [2.0]), "x": [1]}, "the lengths of 't' are not a list of counts"),
        ({"t": ([], [1 << 62] * 4), "x": [1] * 4}, "'t' has 0 values, but its lengths add up to"),
        ({"t": ([1, 2], [2]), "x": [1, 2]}, "different numbers of samples: {'t': 1, 'x': 2}"),
        ({"t": ([1], [1]), "x": 5}, "got values of shape"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(tmp_path: Path, given: dict[str, Any], shown: str) -> None:
    with Writer(tmp_path / "s", {"t": Column.ragged("uint8"), "x": Column("int64")}) as writer:
        with pytest.raises(ArgumentError, match=shown):
            writer.extend(given)
        assert writer.num_samples == 0


def test_text_that_is_handed_over_as_bytes_is_looked_at(tmp_path: Path) -> None:
    def values(data: bytes) -> Any:
        return np.frombuffer(data, np.uint8)

    with Writer(tmp_path / "s", {"t": Column.text()}) as writer:
        with pytest.raises(ArgumentError, match="'t' is a column of text, but is not UTF-8"):
            writer.extend({"t": (values(b"a\xff"), [1, 1])})
        with pytest.raises(ArgumentError, match="a length of 't' ends within a character\nhint: lengths of text count"):
            writer.extend({"t": (values("ää".encode()), [1, 3])})
        writer.extend({"t": (values("äöü".encode()), [2, 0, 4, 0])})
    assert [sample["t"] for sample in open_store(tmp_path / "s").__getitems__(range(4))] == ["ä", "", "öü", ""]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"precious")
    with pytest.raises(ArgumentError, match="exists already, and is not a store\nhint: choose a new or an empty fold"):
        Writer(tmp_path, TOKENS)
    with pytest.raises(ArgumentError, match="exists already, and is not a store"):
        Build(tmp_path, TOKENS).piece("a")
    with pytest.raises(ArgumentError, match="exists already, and is not a store"):
        Build(tmp_path, TOKENS).finish([])
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    with pytest.raises(ArgumentError, match="exists already, and is not a store"):
        Writer(tmp_path, TOKENS, overwrite=True)
    with pytest.raises(ArgumentError, match="exists already, and is not a store"):
        Writer(model, TOKENS)
    assert names(tmp_path) == ["manifest.json", "model.safetensors"]
    assert model.read_bytes() == b"precious"


def test_a_store_is_replaced_only_when_told_so_and_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    def fill(writer: Writer, value: int) -> None:
        for _ in range(5):
            writer.append({"t": [value] * 4})

    with Writer(tmp_path / "s", TOKENS, shard_bytes=20) as writer:
        fill(writer, 1)
    with pytest.raises(ArgumentError, match="contains a store already\nhint: pass overwrite=True"):
        Writer(tmp_path / "s", TOKENS)
    for value in (2, 3):
        with Writer(tmp_path / "s", TOKENS, shard_bytes=20, overwrite=True) as writer:
            fill(writer, value)
            old = open_store(tmp_path / "s")
            assert old.read_ragged("t", range(5))[0].tolist() == [value - 1] * 20
        new = open_store(tmp_path / "s")
        assert new.read_ragged("t", range(5))[0].tolist() == [value] * 20
        assert old.read_ragged("t", range(5))[0].tolist() == [value - 1] * 20
        assert names(tmp_path / "s") == sorted(
            ["manifest.json", "pieces.json", *(shard.file for shard in new.manifest.shards)]
        )


def test_a_writer_that_fails_leaves_no_store_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Writer(tmp_path / "s", TOKENS, shard_bytes=1500) as writer:
        for number in range(1000):
            writer.append({"t": [number]})
        raise KeyError
    with pytest.raises(NotAStore, match="its preparation is unfinished"):
        open_store(tmp_path / "s")
    with Writer(tmp_path / "s", TOKENS, shard_bytes=1500, resume=True) as writer:
        assert 0 < writer.num_samples < 1000
        for number in range(writer.num_samples, 1000):
            writer.append({"t": [number]})
    assert open_store(tmp_path / "s").read_ragged("t", range(1000))[0].tolist() == list(range(1000))
    assert ".build" not in names(tmp_path / "s")


def test_to_go_on_a_writer_needs_its_columns(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="resume=True needs the columns"):
        Writer(tmp_path / "s", resume=True)
    with pytest.raises(ArgumentError, match="nothing was written, so the columns are unknown"):
        Writer(tmp_path / "s").close()


@pytest.mark.parametrize("meta", [{"a": float("nan")}, {"a": np.int64(5)}, {"a": "\ud800"}, {(1, 2): 3}])
def test_meta_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, meta: Any) -> None:
    with pytest.raises(ArgumentError, match="meta cannot be stored as JSON"):
        Writer(tmp_path / "s", TOKENS, meta=meta)
    build = Build(tmp_path / "s", TOKENS)
    with pytest.raises(ArgumentError, match="meta cannot be stored as JSON"):
        build.finish([], meta=meta)
    assert not (tmp_path / "s").exists()


def test_pieces_are_put_together_in_the_order_of_their_keys(tmp_path: Path) -> None:
    build = pickle.loads(pickle.dumps(Build(tmp_path / "s", TOKENS, shard_bytes=40)))
    for key in ("b", "c", "a"):
        with build.piece(key) as piece:
            piece.extend({"t": (np.full(20, ord(key)), [2] * 10)})
            piece.notes["skipped"] = [key]
            assert piece.num_samples == 10
    record = build.record("a")
    assert record is not None and record["notes"] == {"skipped": ["a"]}
    assert [entry["num_samples"] for entry in record["shards"]] == [3, 3, 3, 1]
    store = build.finish(["a", "b", "c"], meta={"x": 1})
    assert store.meta == {"x": 1}
    assert store.read_ragged("t", range(30))[0].tolist() == [97] * 20 + [98] * 20 + [99] * 20
    assert build.record("b") == Build(tmp_path / "s", TOKENS, shard_bytes=40).record("b")
    assert Build(tmp_path / "s", {"t": Column.ragged("int16")}, shard_bytes=40).record("b") is None
    assert Build(tmp_path / "s", TOKENS).record("b") is None


def test_a_store_is_made_again_of_old_pieces_and_new_ones(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS)
    for key in "ab":
        with build.piece(key) as piece:
            piece.append({"t": [ord(key)]})
    build.finish(["a", "b"])
    with build.piece("c") as piece:
        piece.append({"t": [99]})
    assert open_store(tmp_path / "s").read_ragged("t", range(2))[0].tolist() == [97, 98]
    store = build.finish(["c", "a"])
    assert store.read_ragged("t", range(2))[0].tolist() == [99, 97]
    assert build.record("b") is None
    assert names(tmp_path / "s") == ["a-000.safetensors", "c-000.safetensors", "manifest.json", "pieces.json"]


def test_a_piece_that_is_missing_or_named_twice_is_refused(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS)
    with build.piece("a") as piece:
        piece.append({"t": [1]})
    with pytest.raises(ArgumentError, match="piece 'b' is not complete\nhint: write it first"):
        build.finish(["a", "b"])
    with pytest.raises(ArgumentError, match="piece 'a' occurs twice"):
        build.finish(["a", "a"])
    os.truncate(tmp_path / "s" / "a-000.safetensors", 100)
    assert build.record("a") is None
    with pytest.raises(ArgumentError, match="piece 'a' is not complete"):
        build.finish(["a"])


@pytest.mark.parametrize("key", ["", "A", "a/b", "..", "a-b", "x" * 65, "ä"])
def test_what_cannot_be_a_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ArgumentError, match="is not a valid key"):
        Build(tmp_path / "s", TOKENS).piece(key)


def test_nothing_remains_of_a_piece_that_failed(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS, shard_bytes=20)
    for is_closed in (False, True):
        with pytest.raises(KeyError), build.piece("a") as piece:
            piece.extend({"t": (np.arange(100), [10] * 10)})
            if is_closed:
                piece.close()
                with pytest.raises(ArgumentError, match="the piece is complete already"):
                    piece.append({"t": [1]})
            raise KeyError
        assert names(tmp_path / "s") == [".build"] and names(tmp_path / "s" / ".build") == []
        assert build.record("a") is None


def test_after_a_failed_write_no_sample_can_be_lost_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(28, "No space left on device")

    writer = Writer(tmp_path / "s", TOKENS, shard_bytes=1500)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="No space left"):
            for number in range(1000):
                writer.append({"t": [number]})
    for again in (lambda: writer.append({"t": [1]}), lambda: writer.extend({"t": ([1], [1])}), writer.close):
        with pytest.raises(ArgumentError, match="an earlier shard could not be written"):
            again()
    writer = Writer(tmp_path / "s", TOKENS, shard_bytes=1500, resume=True)
    for number in range(writer.num_samples, 1000):
        writer.append({"t": [number]})
    assert writer.close().read_ragged("t", range(1000))[0].tolist() == list(range(1000))


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", "5", "[" * 100_000, '{"shards": 5}', '{"columns": NaN}', "nul\0"],
)
def test_records_that_are_damaged_are_none(tmp_path: Path, damage: str) -> None:
    build = Build(tmp_path / "s", TOKENS)
    for key in "ab":
        with build.piece(key) as piece:
            piece.append({"t": [1]})
    build.finish(["a", "b"])
    with build.piece("c") as piece:
        piece.append({"t": [1]})
    (tmp_path / "s" / ".build" / "c.json").write_text(damage)
    assert build.record("c") is None
    (tmp_path / "s" / "pieces.json").write_text(damage)
    assert build.record("a") is None
    (tmp_path / "s" / "pieces.json").write_text(json.dumps({"a": {"shard_bytes": build.shard_bytes}, "b": 5}))
    assert build.record("a") is build.record("b") is None


def test_a_record_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS)
    with build.piece("a") as piece:
        piece.append({"t": [1]})
    path = tmp_path / "s" / ".build" / "a.json"
    record = json.loads(path.read_text())
    record["shards"][0]["file"] = "../s/a-000.safetensors"
    path.write_text(json.dumps(record))
    assert build.record("a") is None


def test_a_store_needs_columns_and_room(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a store needs at least one column"):
        Build(tmp_path, {})
    with pytest.raises(ArgumentError, match="shard_bytes must be positive"):
        Build(tmp_path, TOKENS, shard_bytes=0)
    with pytest.raises(ArgumentError, match="'a b' is not a valid column name"):
        Build(tmp_path, {"a b": Column("uint8")})


def test_big_samples_do_not_take_many_times_their_size(tmp_path: Path) -> None:
    import tracemalloc

    sample = np.zeros(8 << 20, np.uint8)
    with Writer(tmp_path / "s", {"x": Column("uint8", (8 << 20,))}, shard_bytes=8 << 20) as writer:
        tracemalloc.start()
        try:
            for _ in range(3):
                writer.append({"x": sample})
            assert tracemalloc.get_traced_memory()[1] < 6 * (8 << 20)
        finally:
            tracemalloc.stop()


def test_discarding_leaves_a_store_that_is_there(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS)
    with build.piece("a") as piece:
        piece.append({"t": [1]})
    build.finish(["a"])
    with build.piece("b") as piece:
        piece.append({"t": [2]})
    build.discard()
    assert build.record("b") is None
    assert open_store(tmp_path / "s")[0]["t"].tolist() == [1]
