"""Inputs by their format: compressed files, tables, and JSON files that are one array."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import ArgumentError, DamagedFile, DataError
from stoker.prepare import Progress
from stoker.prepare.document_batch import BATCH_BYTES
from stoker.prepare.documents import read_documents
from stoker.prepare.inputs import find_inputs, identify_inputs
from stoker.prepare.pieces import plan_pieces
from stoker.prepare.settings import TokenSettings
from tests.prepare.corpora import decoded, read, texts_in, write_jsonl

TEXTS = ["one", "zwei\n", 'trois, "et" un peu plus', "四", "5 " * 50, "six\n\nseven", "\u2028eight", "nine\r\nten"]

PACKERS: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".bz2": bz2.compress}


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", "prepare", "tokens", *map(str, arguments), "--tokenizer", "bytes"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})


# ---------------------------------------------------------------- xz and bzip2


@pytest.mark.parametrize("suffix", PACKERS)
def test_xz_and_bzip2_are_unpacked(tmp_path: Path, suffix: str) -> None:
    pack = PACKERS[suffix]
    raw = write_jsonl(tmp_path / "a.jsonl", TEXTS * 5000).read_bytes()  # more than is read at a time
    packed = tmp_path / f"b.jsonl{suffix}"
    # in several streams, as parallel compressors write them
    middle = raw.index(b"\n", len(raw) // 2) - 3
    packed.write_bytes(pack(raw[:middle]) + pack(raw[middle:]))
    assert texts_in(packed) == TEXTS * 5000
    lines = stoker.Lines(packed, index_dir=tmp_path / "index")
    assert len(lines) == 5000 * len(TEXTS)
    assert [lines[at]["text"] for at in range(len(TEXTS))] == TEXTS
    assert len(list(lines.stream())) == len(lines)
    found = prepare(packed, "--out", tmp_path / "store")
    assert found.returncode == 0, found.stderr
    assert decoded(tmp_path / "store") == TEXTS * 5000


def test_zeros_between_xz_streams_are_padding(tmp_path: Path) -> None:
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"one\n") + b"\0" * 8 + lzma.compress(b"two\n") + b"\0" * 4)
    assert texts_in(tmp_path / "a.txt.xz", documents="line") == ["one", "two"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_files_that_are_cut_off_or_damaged_are_named(tmp_path: Path, suffix: str) -> None:
    raw = random.Random(1).randbytes(300_000).hex().encode()
    packed = PACKERS[suffix](raw)
    path = tmp_path / f"a.txt{suffix}"
    for content in (packed[:-20], packed[: len(packed) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(DamagedFile, match=r"a\.txt.*the data ends early"):
            texts_in(path)
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 50 + packed[len(packed) // 2 + 50 :])
    with pytest.raises(DamagedFile, match="the data is damaged"):
        texts_in(path)
    path.write_text("no such thing")
    with pytest.raises(DamagedFile, match="though its suffix says so"):
        stoker.Lines(path, index_dir=tmp_path / "index")
    with pytest.raises(DamagedFile):
        texts_in(path)
    path.write_bytes(packed[: len(packed) // 2])
    texts, [notes] = read(path, on_error="skip", documents="line")
    assert notes["reasons"] == {"damaged file": 1}
    assert not texts


@pytest.mark.parametrize("name", ["a.zip", "a.txt.lz4", "a.tar", "a.tar.gz", "a.7z"])
def test_archives_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\3\4")
    with pytest.raises(ArgumentError, match="files cannot be read\nhint: unpack it first"):
        texts_in(tmp_path / name)
    with pytest.raises(ArgumentError, match="files cannot be read"):
        stoker.Lines(tmp_path / name)
    found = prepare(tmp_path / name, "--out", tmp_path / "store")
    assert found.returncode != 0
    assert "unpack it first" in found.stderr
    assert not (tmp_path / "store").exists()


# ---------------------------------------------------------------- tables


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def write_csv(path: Path, texts: list[str], *, delimiter: str = ",", end: str = "\n") -> Path:
    rows = [delimiter.join(["id", "text", "more"])]
    rows += [delimiter.join([str(number), quoted(text), 'say 5"']) for number, text in enumerate(texts)]
    path.write_bytes((end.join(rows) + end).encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_row_of_a_table_is_a_document(tmp_path: Path, name: str, end: str) -> None:
    texts = [*TEXTS, "long " * 50_000, "last"] * 5
    path = write_csv(tmp_path / name, texts, delimiter="\t" if name == "a.tsv" else ",", end=end)
    assert texts_in(path, piece_bytes=1000) == texts
    packed = tmp_path / f"{name}.xz"
    packed.write_bytes(lzma.compress(b"\xef\xbb\xbf" + path.read_bytes().rstrip()))
    assert texts_in(packed) == texts


def test_a_table_is_prepared_on_the_command_line(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", TEXTS)
    found = prepare(path, "--out", tmp_path / "store")
    assert found.returncode == 0, found.stderr
    assert decoded(tmp_path / "store") == TEXTS
    found = prepare(path, "--text-column", "body", "--out", tmp_path / "other")
    assert found.returncode != 0
    assert "it has no column 'body': there are 'id', 'text', 'more'" in " ".join(found.stderr.split())
    assert "--text-column NAME" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("id,text\n1\n2,b\n", "line 2.*it has 1 fields, and the header has 2"),
        ('id,text\n1,"a"b\n2,b\n', "line 2.*a quoted field is followed by 'b'"),
        ('id,text\n1,"a\n2,b\n', "line 2.*a quote is not closed before the file ends"),
        ("id,text\n1,\n", "line 2.*its column 'text' is empty"),
        ("text,text\n1,2\n", "it has 2 columns 'text'"),
    ],
)
def test_rows_that_are_none_are_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=reason):
        texts_in(tmp_path / "a.csv")
    texts, [notes] = read(tmp_path / "a.csv", on_error="skip")
    assert notes["count"] == 1
    assert texts == ([] if "2,b" not in content or "not closed" in reason else ["b"])


def test_a_row_that_is_not_utf8_is_named_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,id\n\na,1\n\xff,2\n\nb,3\n")
    texts, [notes] = read(tmp_path / "a.csv", on_error="skip")
    assert texts == ["a", "b"]
    assert notes["reasons"] == {"not UTF-8": 1}
    assert notes["entries"][0]["line"] == 4


# ---------------------------------------------------------------- one array


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("element", ["object", "text", "nested"])
def test_an_array_of_objects_or_texts_is_read(tmp_path: Path, indent: int | None, element: str) -> None:
    texts = [*TEXTS, "]", "long " * (BATCH_BYTES // 3), "last"]
    by_kind: dict[str, list[Any]] = {
        "object": [{"id": number, "text": text} for number, text in enumerate(texts)],
        "text": texts,
        "nested": [{"text": {"de": text}, "list": [1, [2]]} for text in texts],
    }
    values = by_kind[element]
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf \n" + json.dumps(values, indent=indent, ensure_ascii=False).encode() + b"\n")
    options: dict[str, Any] = {"text_column": "text.de"} if element == "nested" else {}
    assert texts_in(path, piece_bytes=1000, **options) == texts
    (tmp_path / "b.json.bz2").write_bytes(bz2.compress(path.read_bytes()))
    assert texts_in(tmp_path / "b.json.bz2", **options) == texts


def test_an_array_is_prepared_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TEXTS))
    found = prepare(tmp_path / "a.json", "--out", tmp_path / "store")
    assert found.returncode == 0, found.stderr
    assert decoded(tmp_path / "store") == TEXTS


def test_json_with_a_value_in_each_line_is_read_as_before(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.json", TEXTS)
    assert texts_in(path) == TEXTS


@pytest.mark.parametrize(
    ("content", "reason", "texts"),
    [
        ('["a", 5, "b"]', "element 1 of .*it is not an object with a field 'text'", ["a", "b"]),
        ('["a", "", "b"]', "element 1 of .*it is empty", ["a", "b"]),
        ('["a", {"body": 1}, "b"]', "element 1 of .*it has no field 'text': there are 'body'", ["a", "b"]),
        ('["a", {"text": 1}, "b"]', "element 1 of .*its field 'text' is a number", ["a", "b"]),
        ('["a", oops, "b"]', "element 1 of .*not JSON", ["a"]),
        ('["a" "b"]', "element 0 of .*expected a comma or ] after it", []),
        ('["a", "b"', "element 1 of .*expected a comma or ] after it", ["a"]),
        ('["a", "b', "element 1 of .*not JSON", ["a"]),
        ('["a"] "b"', "element 1 of .*the file has more content after the array", ["a"]),
        ('["a", "\udcff"]', "not UTF-8", []),
    ],
)
def test_elements_that_hold_no_text_are_named(tmp_path: Path, content: str, reason: str, texts: list[str]) -> None:
    (tmp_path / "a.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=reason):
        texts_in(tmp_path / "a.json")
    found, [notes] = read(tmp_path / "a.json", on_error="skip")
    assert found == texts
    assert notes["count"] == 1


def test_an_empty_array_holds_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" [ ] ")
    assert texts_in(tmp_path / "a.json") == []


def test_an_array_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.prepare import json_array

    most = 0
    more = json_array._Elements._more

    def watched(self: Any) -> bool:
        nonlocal most
        found = more(self)
        most = max(most, len(self._text))
        return found

    monkeypatch.setattr(json_array._Elements, "_more", watched)
    texts = ["x" * 1000] * 8000
    (tmp_path / "a.json").write_text(json.dumps(texts))
    assert texts_in(tmp_path / "a.json") == texts
    assert most <= 3 * BATCH_BYTES


# ---------------------------------------------------------------- progress


def test_bytes_are_counted_while_one_long_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * (5 * BATCH_BYTES))
    from stoker.prepare.skips import Skips

    [piece] = plan_pieces(identify_inputs(find_inputs(path), ()), TokenSettings(), tokenizer="none")
    seen: list[int] = []
    for _ in read_documents(piece, TokenSettings(), Skips(piece.inputs, raises=True), reading=seen.append):
        pass
    assert seen == [number * BATCH_BYTES for number in range(1, 6)]


def test_a_line_of_progress_never_says_no_documents_each_second() -> None:
    from stoker.cli.prepare import _format_rates

    slow = Progress(stage="tokenizing", num_read=50_000_000, num_bytes=100_000_000, documents=1)
    assert _format_rates(slow, 10.0) == "5.0 MB/s 1 docs"
    fast = Progress(stage="tokenizing", num_read=50_000_000, num_bytes=100_000_000, documents=100)
    assert _format_rates(fast, 10.0) == "5.0 MB/s 10 docs/s"
