from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from stoker.cli.app import app
from stoker.store import Column, Store, Writer, open_store


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    columns = {"tokens": Column.ragged("uint16"), "label": Column.fixed("int64")}
    with Writer(tmp_path / "store", columns, shard_bytes=300_000) as writer:
        for number in range(2000):
            writer.append({"tokens": np.arange(number % 500), "label": number})
    return open_store(tmp_path / "store")


def damage(store: Store, shard: int, block: int, byte: int = 7) -> Path:
    path = store.path / store.manifest.shards[shard].file
    data = bytearray(path.read_bytes())
    data[store.manifest.shards[shard].body + (block << 16) + byte] ^= 1
    path.write_bytes(data)
    return path


def test_a_sound_store_is_said_to_be_sound(store: Store) -> None:
    result = run(store.path)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("intact ")
    assert f"in {len(store.manifest.shards)} shards" in result.output
    assert "verifying" not in result.output  # no bar where nobody looks


def test_each_damaged_block_is_named(store: Store) -> None:
    first, other = damage(store, 0, 2), damage(store, 2, 0)
    damage(store, 2, 1)
    result = run(store.path)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    begin = store.manifest.shards[0].body + 2 * 65536
    assert lines[0].startswith(f"damaged {first.name} block 2, bytes {begin:,} to {begin + 65536:,}, of tokens: ")
    assert lines[1].startswith(f"damaged {other.name} block 0, ")
    assert lines[2].startswith(f"damaged {other.name} block 1, ")
    assert lines[3].startswith(f"damaged 3 blocks, in 2 of {len(store.manifest.shards)} shards")
    assert lines[4].startswith("hint: ")


def test_files_that_are_gone_or_cut_off_are_named(store: Store) -> None:
    gone, cut = (store.path / shard.file for shard in store.manifest.shards[:2])
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    damage(store, 2, 0)
    result = run(store.path)
    assert result.exit_code == 1
    assert f"damaged {gone.name}: is listed in the manifest, but missing" in result.output
    assert f"damaged {cut.name}: is truncated" in result.output
    assert "damaged 1 block and 2 files as a whole, in 3 of " in result.output


def test_what_is_no_store_is_an_error(tmp_path: Path, store: Store) -> None:
    assert "is not a store" in run(tmp_path).stderr
    assert run(tmp_path / "none").exit_code == 1
    manifest = store.path / "manifest.json"
    table = json.loads(manifest.read_text())
    del table["shards"]
    manifest.write_text(json.dumps(table))
    result = run(store.path)
    assert result.exit_code == 1
    assert "'shards' is missing" in result.stderr


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    Writer(tmp_path / "empty", {"label": Column.fixed("int64")}).close()
    result = run(tmp_path / "empty")
    assert result.exit_code == 0, result.output
    assert "intact 0 blocks in 0 shards" in result.output


# ---------------------------------------------------------------- pictures


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "cats").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    for number in range(5):
        Image.fromarray(noise).save(folder / "cats" / f"{number}.jpg")
    return folder


def test_sound_pictures_are_said_to_be_sound(photos: Path) -> None:
    result = run("images", photos)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("intact 5 images, ")
    assert "kinds 5 JPEG" in result.output
    assert "decoding" not in result.output  # no bar where nobody looks


def test_bad_pictures_are_named_with_reasons_and_summed_up(photos: Path) -> None:
    whole = (photos / "cats" / "0.jpg").read_bytes()
    (photos / "cats" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "cats" / "3.jpg").write_bytes(b"")
    Image.open(photos / "cats" / "4.jpg").save(photos / "cats" / "[bold].png", format="JPEG")
    result = run("images", photos, "--workers", "0")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith(f"truncated {photos}/cats/1.jpg: ")
    assert lines[1].startswith(f"empty {photos}/cats/3.jpg: ")
    assert lines[2].startswith("bad 2 of 6 images, ")
    assert lines[2].endswith(": 1 truncated, 1 empty")
    assert lines[3] == "kinds 4 JPEG"
    assert lines[4] == f"odd 1 JPEG named .png: {photos}/cats/[bold].png"
    assert lines[5].startswith("hint: ")


def test_pictures_as_json(photos: Path) -> None:
    (photos / "cats" / "2.jpg").write_bytes(b"not an image at all")
    result = run("images", photos, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["num_images"], told["is_sound"], told["formats"]) == (5, False, {"JPEG": 4})
    assert told["num_bad"] == {"not an image": 1}
    assert told["bad"] == [
        {"path": f"{photos}/cats/2.jpg", "kind": "not an image", "reason": "it looks like text"},
    ]


def test_a_column_of_pictures_is_chosen_by_name(photos: Path, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good = (photos / "cats" / "0.jpg").read_bytes()
    pq.write_table(pa.table({"first": [good], "second": [b"not an image"]}), tmp_path / "a.parquet")
    assert run("images", tmp_path / "a.parquet", "--column", "first").exit_code == 0
    assert run("images", tmp_path / "a.parquet", "--column", "second").output.startswith("not an image ")


def test_a_path_that_is_no_text_is_told_all_the_same(photos: Path) -> None:
    odd = os.fsencode(photos) + b"\xff"
    os.rename(photos, odd)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "verify", "images", odd, "--json"],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode(json.loads(done.stdout)["path"]) == odd


def test_a_store_is_what_is_meant_whatever_its_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.path.parent)
    assert run("store").output.startswith("intact ")  # the folder is called so
    assert run("store", "store").output.startswith("intact ")
    store.path.rename(store.path.parent / "images")
    assert run("images").output.startswith("intact ")
    assert run("./images").output.startswith("intact ")


def test_a_folder_of_pictures_is_no_store_and_says_where_to_go(photos: Path) -> None:
    result = run(photos)
    assert result.exit_code == 1
    assert f"`stoker verify images {photos}` checks them" in result.output


def test_nothing_to_verify_is_a_usage_error() -> None:
    assert run("images").exit_code == 2
    assert "FOLDER" in run("images").output
    assert "images FOLDER" in run().output
