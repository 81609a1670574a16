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


def test_a_manifest_that_was_changed_is_told() -> None:
    text = Manifest(COLUMNS, (SHARD,), {"seed": 1}).packed()
    with pytest.raises(DamagedFile, match="its checksum does not match"):
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
    ("text", "told"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "recursion"),
        (b'{"format": "stoker.store", "version": 1}', "'columns' is missing"),
        (b'{"format": "stoker.store", "format": "stoker.store"}', "a name occurs twice"),
        (changed(version=2), "has version 2, but only version 1 is supported\nhint: install a newer stoker"),
        (changed(columns=[]), "has no attribute"),
        (changed(columns={}), "inconsistent counts for shard"),
        (changed(columns={}, shards=[], num_samples=0), "it has no columns"),
        (changed(columns={"../x": {}}), "'../x' is not a valid column name"),
        (changed(column_shape=[-1]), "is not a column"),
        (changed(column_shape=[1 << 40, 1 << 40]), "is too large for NumPy"),
        (changed(column_shape=[0, 1 << 40, 1 << 40]), "is too large for NumPy"),
        (changed(column_shape=[1] * 40), "is too large for NumPy"),
        (changed(column_dtype="complex128"), "unknown dtype 'complex128'"),
        (changed(column_dtype=None), "unknown dtype None"),
        (changed(column_dtype="u2"), "unknown dtype 'u2'"),
        (changed(column_dtype=["uint8"]), "unhashable"),
        (changed(column_ragged=1), "is not a column"),
        (changed(column_kind="text"), "text must be ragged uint8"),
        (changed(meta=[]), "meta is not a JSON object"),
        (changed(meta=...), "'meta' is missing"),
        (changed(shards=5), "not iterable"),
        (changed(num_samples=4), "it has 4 samples, but its shards 3"),
        (changed(shard_file="../../etc/passwd"), "'../../etc/passwd' is not a valid name of a shard"),
        (changed(shard_file="/etc/passwd"), "'/etc/passwd' is not a valid name of a shard"),
        (changed(shard_file=".."), "'..' is not a valid name of a shard"),
        (changed(shard_file=".hidden"), "'.hidden' is not a valid name of a shard"),
        (changed(shard_file="a\n"), "is not a valid name of a shard"),
        (changed(shard_file="a\0"), "is not a valid name of a shard"),
        (changed(shard_file=""), "'' is not a valid name of a shard"),
        (changed(shard_file=5), "5 is not a valid name of a shard"),
        (changed(shard_digest=5), "has no piece or no digest"),
        (changed(shard_digest=...), "'digest' is missing"),
        (changed(shard_num_samples=-3, num_samples=-3), "inconsistent counts for shard a-000.safetensors"),
        (changed(shard_num_samples=3.0), "inconsistent counts for shard a-000.safetensors"),
        (changed(shard_num_samples=1 << 62, num_samples=1 << 62), "inconsistent counts for shard"),
        (changed(shard_num_samples=True, num_samples=1), "inconsistent counts for shard"),
        (changed(shard_values={}), "inconsistent counts for shard"),
        (changed(shard_values={"t": 5, "x": 5}), "inconsistent counts for shard"),
        (changed(shard_values=[5]), "has no attribute"),
        (changed(shard_body=131073), "the body of shard a-000.safetensors cannot begin at byte 131073"),
        (changed(shard_body=196608), "the body of shard a-000.safetensors cannot begin at byte 196608"),
        (changed(shard_body=65536), "the body of shard a-000.safetensors cannot begin at byte 65536"),
        (changed(shard_body=0), "the body of shard a-000.safetensors cannot begin at byte 0"),
        (changed(shard_body=1 << 40, shard_num_bytes=1 << 40), "cannot begin at byte 1099511627776"),
        (changed(shard_num_bytes=(1 << 62) - 1), "the body of shard"),
    ],
)
def test_a_manifest_that_cannot_be_is_told(text: bytes, told: str) -> None:
    with pytest.raises(DamagedFile, match=told) as caught:
        parsed(text, Path("s/manifest.json"))
    assert caught.value.path == "s/manifest.json"


def test_shards_that_add_up_to_more_than_there_can_be_are_told(tmp_path: Path) -> None:
    def huge(entry: dict[str, Any]) -> None:
        entry["num_samples"] = (1 << 61) + 5

    arrays = by_hand.of_tokens([1], [0, 1])
    by_hand.write(tmp_path / "s", [arrays, arrays], edit_entry=huge)
    with pytest.raises(DamagedFile, match="its sizes are too large"):
        open_store(tmp_path / "s")


def test_one_file_cannot_be_two_shards(tmp_path: Path) -> None:
    arrays = by_hand.of_tokens([1], [0, 1])
    by_hand.write(tmp_path / "s", [arrays, arrays], edit_entry=lambda entry: entry.update(file="same.safetensors"))
    with pytest.raises(DamagedFile, match="a file occurs twice"):
        open_store(tmp_path / "s")


def test_a_path_without_a_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / ".build").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"name": "an app"}')
    for name, told in [
        ("nothing", "nothing is not a store: the path does not exist\nhint: a store is a folder with a manifest"),
        ("file", "file is not a store: it has no manifest.json"),
        ("empty", "empty is not a store: it has no manifest.json"),
        ("begun", "begun is not a store: its preparation is unfinished"),
        ("other", "other is not a store: its manifest.json is from another program"),
    ]:
        with pytest.raises(NotAStore, match=told):
            read_manifest(tmp_path / name)


def test_a_manifest_that_is_too_big_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", (1 << 30) + 1)
    with pytest.raises(DamagedFile, match="is too large for a manifest"):
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
