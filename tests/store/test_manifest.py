"""The manifest, read with suspicion."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import DamagedFile, NotAStore
from stoker.store import Column, Store, Writer, open_store
from stoker.store.manifest import Manifest, Shard, parsed, read_manifest, write_safely
from tests.store import by_hand

SHARD = Shard("a-000.safetensors", "a", 3, 131072 + 10, 131072, {"t": 5}, "0" * 16)
COLUMNS = {"t": Column.ragged("uint16"), "x": Column("float32", (2, 3))}


def changed(**changes: Any) -> bytes:
    """A manifest of which parts are other ones; a dotted name is a part of the first shard or column."""
    table = json.loads(Manifest(COLUMNS, (SHARD,), {"a": 1}).packed())
    parts = {"shard": table["shards"][0], "column": table["columns"]["t"]}
    for name, value in changes.items():
        place = parts.get(name.partition("_")[0], table)
        key = name.partition("_")[2] if place is not table else name
        if value is ...:
            del place[key]
        else:
            place[key] = value
    return json.dumps(table).encode()


def test_a_manifest_comes_back_as_it_was_packed() -> None:
    manifest = Manifest(COLUMNS, (SHARD,), {"text": "ä\u2028", "list": [1, {"a": None}]})
    assert parsed(manifest.packed(), Path("manifest.json")) == manifest


def test_a_manifest_that_was_changed_is_reported() -> None:
    text = Manifest(COLUMNS, (SHARD,), {"seed": 1}).packed()
    with pytest.raises(DamagedFile, match="its checksum is not that of its text"):
        parsed(text.replace(b'"seed": 1', b'"seed": 3'), Path("manifest.json"))
    with pytest.raises(DamagedFile, match="does not end with its checksum"):
        parsed(text.rpartition(b",")[0] + b"}", Path("manifest.json"))


def test_a_store_without_shards_is_one() -> None:
    assert parsed(Manifest(COLUMNS, ()).packed(), Path("x")).num_samples == 0


def test_the_fingerprint_tells_columns_and_shards_and_nothing_else() -> None:
    prints = {
        Manifest(COLUMNS, (SHARD,)).fingerprint(),
        Manifest(COLUMNS, (SHARD, SHARD)).fingerprint(),
        Manifest({"t": COLUMNS["t"]}, (SHARD,)).fingerprint(),
    }
    assert len(prints) == 3
    assert Manifest(COLUMNS, (SHARD,), {"other": "meta"}).fingerprint() in prints


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "recursion"),
        (b'{"format": "stoker.store", "version": 1}', "'columns' is missing"),
        (b'{"format": "stoker.store", "format": "stoker.store"}', "a name occurs twice"),
        (changed(version=2), "is of version 2, and this is a reader of version 1\nhint: install a newer stoker"),
        (changed(columns=[]), "has no attribute"),
        (changed(columns={}), "the counts of the shard"),
        (changed(columns={}, shards=[], num_samples=0), "it has no columns"),
        (changed(columns={"../x": {}}), "'../x' cannot be the name of a column"),
        (changed(column_shape=[-1]), "is not a column"),
        (changed(column_shape=[1 << 40, 1 << 40]), "NumPy has no arrays of the shape"),
        (changed(column_shape=[0, 1 << 40, 1 << 40]), "NumPy has no arrays of the shape"),
        (changed(column_shape=[1] * 40), "NumPy has no arrays of the shape"),
        (changed(column_dtype="complex128"), "the type 'complex128' is not known"),
        (changed(column_dtype=None), "the type None is not known"),
        (changed(column_dtype="u2"), "the type 'u2' is not known"),
        (changed(column_dtype=["uint8"]), "unhashable"),
        (changed(column_ragged=1), "is not a column"),
        (changed(column_kind="text"), "text must be ragged uint8"),
        (changed(meta=[]), "meta is not a table"),
        (changed(meta=...), "'meta' is missing"),
        (changed(shards=5), "not iterable"),
        (changed(num_samples=4), "it tells of 4 samples, its shards of 3"),
        (changed(shard_file="../../etc/passwd"), "'../../etc/passwd' is not a file of a store"),
        (changed(shard_file="/etc/passwd"), "'/etc/passwd' is not a file of a store"),
        (changed(shard_file=".."), "'..' is not a file of a store"),
        (changed(shard_file=".hidden"), "'.hidden' is not a file of a store"),
        (changed(shard_file="a\n"), "is not a file of a store"),
        (changed(shard_file="a\0"), "is not a file of a store"),
        (changed(shard_file=""), "'' is not a file of a store"),
        (changed(shard_file=5), "5 is not a file of a store"),
        (changed(shard_digest=5), "has no piece or no digest"),
        (changed(shard_digest=...), "'digest' is missing"),
        (changed(shard_num_samples=-3, num_samples=-3), "the counts of the shard a-000.safetensors cannot be"),
        (changed(shard_num_samples=3.0), "the counts of the shard a-000.safetensors cannot be"),
        (changed(shard_num_samples=1 << 62, num_samples=1 << 62), "the counts of the shard"),
        (changed(shard_num_samples=True, num_samples=1), "the counts of the shard"),
        (changed(shard_values={}), "the counts of the shard"),
        (changed(shard_values={"t": 5, "x": 5}), "the counts of the shard"),
        (changed(shard_values=[5]), "has no attribute"),
        (changed(shard_body=131073), "the body of the shard a-000.safetensors cannot begin at byte 131073"),
        (changed(shard_body=196608), "the body of the shard a-000.safetensors cannot begin at byte 196608"),
        (changed(shard_body=65536), "the body of the shard a-000.safetensors cannot begin at byte 65536"),
        (changed(shard_body=0), "the body of the shard a-000.safetensors cannot begin at byte 0"),
        (changed(shard_body=1 << 40, shard_num_bytes=1 << 40), "cannot begin at byte 1099511627776"),
        (changed(shard_num_bytes=(1 << 62) - 1), "the body of the shard"),
    ],
)
def test_a_manifest_that_cannot_be_is_reported(text: bytes, shown: str) -> None:
    with pytest.raises(DamagedFile, match=shown) as caught:
        parsed(text, Path("s/manifest.json"))
    assert caught.value.path == "s/manifest.json"


def test_shards_that_add_up_to_more_than_there_can_be_are_reported(tmp_path: Path) -> None:
    def huge(entry: dict[str, Any]) -> None:
        entry["num_samples"] = (1 << 61) + 5

    arrays = by_hand.of_tokens([1], [0, 1])
    by_hand.write(tmp_path / "s", [arrays, arrays], edit_entry=huge)
    with pytest.raises(DamagedFile, match="it is too big to be true"):
        open_store(tmp_path / "s")


def test_one_file_cannot_be_two_shards(tmp_path: Path) -> None:
    arrays = by_hand.of_tokens([1], [0, 1])
    by_hand.write(tmp_path / "s", [arrays, arrays], edit_entry=lambda entry: entry.update(file="same.safetensors"))
    with pytest.raises(DamagedFile, match="a file occurs twice"):
        open_store(tmp_path / "s")


def test_a_path_without_a_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / ".build").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"name": "an app"}')
    for name, shown in [
        ("nothing", "nothing is not a store: there is nothing at this path\nhint: a store is a folder with a manifest"),
        ("file", "file is not a store: it has no manifest.json"),
        ("empty", "empty is not a store: it has no manifest.json"),
        ("begun", "begun is not a store: its preparation is unfinished"),
        ("other", "other is not a store: its manifest.json is another program's"),
    ]:
        with pytest.raises(NotAStore, match=shown):
            read_manifest(tmp_path / name)


def test_a_manifest_that_is_too_big_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", (1 << 30) + 1)
    with pytest.raises(DamagedFile, match="is too big to be a manifest"):
        read_manifest(tmp_path)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_safely(path, b"old")

    def failing(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="No space left"):
            write_safely(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_written_by_other_code_is_read(tmp_path: Path) -> None:
    by_hand.write(tmp_path / "s", [by_hand.of_tokens([1, 2, 3], [0, 1, 1, 3]), by_hand.of_tokens([4], [0, 1])])
    store = open_store(tmp_path / "s")
    assert [sample["tokens"].tolist() for sample in store.__getitems__(range(4))] == [[1], [], [2, 3], [4]]


def test_what_is_written_is_what_other_code_writes(tmp_path: Path) -> None:
    with Writer(tmp_path / "ours", {"tokens": Column.ragged("uint16")}) as writer:
        writer.extend({"tokens": ([1, 2, 3], [1, 0, 2])})
    theirs = by_hand.write(tmp_path / "theirs", [by_hand.of_tokens([1, 2, 3], [0, 1, 1, 3])])
    [ours] = Store(tmp_path / "ours").manifest.shards
    mine, other = (tmp_path / "ours" / ours.file).read_bytes(), (theirs / "s0.safetensors").read_bytes()
    assert mine[ours.body - 65536 :] == other[ours.body - 65536 :]  # the last checksums, and the arrays
    assert len(mine) == len(other)
