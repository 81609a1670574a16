from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from stoker import prepare
from stoker.cli import inspect as inspecting
from stoker.cli.app import app
from stoker.cli.samples import format_value
from stoker.foundation.text import format_bytes
from stoker.store import Build, Column, Store, Writer, open_store


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "160"})


def found(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    shown: dict[str, Any] = json.loads(result.output)
    return shown


@pytest.fixture
def store(tmp_path: Path) -> Store:
    columns = {
        "image": Column.fixed("uint8", (3, 4, 4)),
        "caption": Column.text(),
        "jpeg": Column.blob(),
        "boxes": Column.ragged("float32", (4,)),
        "label": Column.fixed("int64"),
    }
    meta = {"note": "made [b]by hand[/b]", "path": "not the store's", "settings": {"side": 4, "flip": False}}
    with Writer(tmp_path / "store", columns, meta=meta, shard_bytes=1 << 16) as writer:
        for number in range(1001):
            writer.append(
                {
                    "image": np.full((3, 4, 4), number % 200, np.uint8),
                    "caption": f"picture\n{number}",
                    "jpeg": b"\xff\xd8" * (number % 50),
                    "boxes": np.zeros((number % 3, 4), np.float32),
                    "label": number,
                }
            )
    return open_store(tmp_path / "store")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(7):
        (folder / f"{number}.txt").write_text(f"the stoker feeds boiler {number}")
    return folder


def test_a_store_tells_its_columns_counts_and_sizes(store: Store) -> None:
    result = run(store.path)
    assert result.exit_code == 0, result.output
    size = sum(path.stat().st_size for path in store.path.glob("*.safetensors"))
    assert re.search(r"samples +1,001\b", result.output)
    assert f"{format_bytes(size)} in {len(store.manifest.shards)} shards, {size / 1001:.1f} bytes" in result.output
    assert re.search(r"note +made \[b\]by hand\[/b\]", result.output)
    assert re.search(r"path +not the store's", result.output)
    assert re.search(r"settings +side 4, flip no", result.output)
    assert re.search(rf"fingerprint +{store.fingerprint}", result.output)
    assert re.search(r"image +uint8\[3, 4, 4\]", result.output)
    assert re.search(r"jpeg +bytes +49,000 +49\.0 +0 +", result.output)
    assert re.search(r"boxes +float32\[\*, 4\] +1,000 +1\.0 +0 +1 +2\b", result.output)


def test_a_terminal_of_80_columns_shows_whole_numbers(tmp_path: Path) -> None:
    columns = {"tokens": Column.ragged("uint16"), "a_rather_long_name_of_a_column": Column.ragged("float32", (4, 4))}
    with Writer(tmp_path / "store", columns) as writer:
        for size in (1, 1_234_567):
            writer.append({"tokens": np.zeros(size, np.uint16), list(columns)[1]: np.zeros((3, 4, 4), np.float32)})
    output = CliRunner().invoke(app, ["inspect", str(tmp_path / "store")], env={"COLUMNS": "80"}).output
    assert re.search(r"tokens +uint16\[\*\] +1,234,568 +617,284\.0 +1 +1 +1,234,567\b", output)
    assert "\u2026" not in output.partition("mean to max")[0]


def test_samples_are_shown_from_the_first_to_the_last(store: Store) -> None:
    result = run(store.path, "--samples", "3")
    heads = [line.split()[0] for line in result.output.splitlines() if re.match(r"[\d,]+ .*safetensors sample", line)]
    assert heads == ["0", "500", "1,000"]
    assert "uint8[3, 4, 4] from 100 to 100" in result.output
    assert "picture⏎500" in result.output
    assert "0 bytes:" in result.output
    assert run(store.path, "--samples", "0").output.count("safetensors") == 0


def test_lengths_of_a_long_store_are_looked_at_here_and_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "RUN_LENGTH", 16)
    assert found(store.path)["columns"]["jpeg"]["per_sample"]["num_looked_at"] == 256
    assert "values per sample, of 256 samples" in run(store.path).output


def test_the_same_is_there_as_json(store: Store) -> None:
    shown = found(store.path, "--samples", "2")
    assert shown["kind"] == "store"
    assert shown["path"] == str(store.path)
    assert shown["num_samples"] == 1001
    assert shown["meta"] == store.meta
    assert shown["columns"]["boxes"]["num_values"] == 1000
    assert shown["columns"]["boxes"]["per_sample"]["p95"] == 2
    [first, last] = shown["samples"]
    assert last["values"]["label"] == 1000
    assert last["values"]["jpeg"] == {"type": "bytes", "num_bytes": 0, "hex": ""}
    assert first["values"]["boxes"] == {"type": "float32[0, 4]", "values": []}
    assert first["where"].endswith("safetensors sample 0")


def test_tokens_are_decoded_by_the_tokenizer_of_the_store(texts: Path, tmp_path: Path) -> None:
    prepare.tokens(texts, tokenizer="bytes", out=tmp_path / "tokens", workers=0)
    result = run(tmp_path / "tokens", "--samples", "7")
    assert result.exit_code == 0, result.output
    for number in range(7):
        assert f"the stoker feeds boiler {number}" in result.output
    assert re.search(r"tokenizer +\(bytes, sha256 \w{16}\.\.\.\), 257 ids, end of document 256", result.output)
    assert re.search(r"origin +7 files, \d+ bytes", result.output)
    assert f"{texts}/4.txt (25 bytes)" in result.output
    assert "... 2 more" in result.output
    assert re.search(r"counts +documents 7, tokens 182", result.output)


def test_ids_are_shown_where_the_tokenizer_is_gone_and_it_says_why(texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "far" / "tokenizer.json"
    file.parent.mkdir()
    prepare.tokenizer(texts, vocab_size=300, out=file)
    prepare.tokens(texts, tokenizer=file, out=tmp_path / "tokens", workers=0, backend="reference")
    kept = tmp_path / "tokens" / "tokenizer.json"
    assert kept.read_bytes() == file.read_bytes()  # a store has its tokenizer with it
    assert found(tmp_path / "tokens", "--samples", "1")["samples"][0]["decoded"]
    kept.unlink()
    shown = found(tmp_path / "tokens", "--samples", "1")
    assert shown["samples"][0]["decoded"] == {}
    assert "pass --tokenizer" in shown["tokenizer_remark"]
    assert "ids are not decoded: tokenizer.json was not found in the store" in run(tmp_path / "tokens").output

    [text] = found(tmp_path / "tokens", "--samples", "1", "--tokenizer", file)["samples"][0]["decoded"].values()
    assert text.startswith("the stoker feeds boiler 0")

    beside = tmp_path / "tokenizer.json"
    beside.write_bytes(file.read_bytes())
    assert found(tmp_path / "tokens", "--samples", "1")["samples"][0]["decoded"]
    prepare.tokenizer(texts, vocab_size=280, out=beside)
    assert "has changed: its digest" in found(tmp_path / "tokens")["tokenizer_remark"]
    assert (
        "decoded with a different tokenizer" in found(tmp_path / "tokens", "--tokenizer", "bytes")["tokenizer_remark"]
    )


@pytest.mark.parametrize(
    ("name", "kind", "seen"),
    [("rows.npy", "ArrayFile", "int64[3]"), ("train.bin", "RawTokens", "64 values: 0 1 2"), ("a.txt", "Lines", "one")],
)
def test_other_data_tells_what_it_can(name: str, kind: str, seen: str, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(30).reshape(10, 3))
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    result = run(tmp_path / name)
    assert result.exit_code == 0, result.output
    assert re.search(rf"opened as +{kind}", result.output)
    assert seen in result.output
    shown = found(tmp_path / name, "--samples", "2")
    assert shown["kind"] == kind
    assert len(shown["samples"]) == 2


def test_an_unfinished_store_is_said_to_be_one(tmp_path: Path) -> None:
    build = Build(tmp_path / "store", {"label": Column.fixed("int64")})
    with build.piece("a") as piece:
        piece.append({"label": 1})
    result = run(tmp_path / "store")
    assert result.exit_code == 1
    assert "its preparation is unfinished" in result.stderr


def test_an_empty_store_has_nothing_to_show(tmp_path: Path) -> None:
    Writer(tmp_path / "empty", {"text": Column.text()}).close()
    result = run(tmp_path / "empty")
    assert result.exit_code == 0, result.output
    assert re.search(r"samples +0\b", result.output)


def test_a_damaged_store_tells_what_it_can(store: Store) -> None:
    shard = store.manifest.shards[0]
    path = store.path / shard.file
    data = bytearray(path.read_bytes())
    data[shard.body] ^= 1
    path.write_bytes(data)
    result = run(store.path)
    assert result.exit_code == 1
    assert re.search(r"samples +1,001\b", result.output)
    assert "is damaged in block 0" in result.output
    assert "error: " in result.stderr


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path / "none")
    assert result.exit_code == 1
    assert "does not exist" in result.stderr


def test_bytes_that_are_text_are_shown_as_text() -> None:
    assert format_value(b"cat/7.jpg") == "9 bytes: 'cat/7.jpg'"
    assert format_value(b"cat\xff") == "4 bytes: 63 61 74 ff"
    assert format_value(b"a\n") == "2 bytes: 61 0a"
