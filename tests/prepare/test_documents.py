from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.errors import BadLine, DamagedFile, DataError, StaleSource
from stoker.prepare.document_batch import BATCH_BYTES
from stoker.prepare.documents import read_documents
from stoker.prepare.inputs import find_inputs, identify_inputs
from stoker.prepare.pieces import plan_pieces
from stoker.prepare.settings import TokenSettings
from stoker.prepare.skips import MAX_ENTRIES, Skips
from tests.prepare.corpora import read, texts_in, write_arrow, write_gzip, write_jsonl, write_parquet

TEXTS = ["one", "zwei\n", "trois et un peu plus", "四", "5 " * 50, "six\r\n\r\nseven", "\u2028eight"]


def test_the_documents_of_every_kind_of_file_are_the_same(tmp_path: Path) -> None:
    assert texts_in(write_jsonl(tmp_path / "a.jsonl", TEXTS)) == TEXTS
    assert texts_in(write_parquet(tmp_path / "a.parquet", TEXTS)) == TEXTS
    assert texts_in(write_arrow(tmp_path / "a.arrow", TEXTS)) == TEXTS
    assert texts_in(write_gzip(tmp_path / "b.jsonl.gz", (tmp_path / "a.jsonl").read_text())) == TEXTS


def test_zstd_is_read_too(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    write_jsonl(tmp_path / "a.jsonl", TEXTS)
    packed = zstandard.ZstdCompressor().compress((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "b.jsonl.zst").write_bytes(packed)
    assert texts_in(tmp_path / "b.jsonl.zst") == TEXTS


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_plain_text_by_file_line_and_paragraph(tmp_path: Path, piece_bytes: int) -> None:
    text = "\ufeffa line\nanother\n  \n\nnext\nand on\r\n\r\n\tlast"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_text("b")
    options = {"piece_bytes": piece_bytes}
    assert texts_in(tmp_path, **options) == [text[1:], "b"]
    assert texts_in(tmp_path, documents="paragraph", **options) == ["a line\nanother", "next\nand on", "\tlast", "b"]
    lines, notes = read(tmp_path, documents="line", on_error="skip", **options)
    assert lines == ["a line", "another", "  ", "next", "and on", "\tlast", "b"]
    assert sum(noted["count"] for noted in notes) == 2


def test_compressed_text_is_one_document_or_many(tmp_path: Path) -> None:
    path = write_gzip(tmp_path / "a.txt.gz", "one\n\ntwo\n")
    assert texts_in(path) == ["one\n\ntwo\n"]
    assert texts_in(path, documents="paragraph") == ["one", "two"]


def test_texts_larger_than_a_batch_come_whole(tmp_path: Path) -> None:
    texts = ["a" * (BATCH_BYTES + 5), "ü" * BATCH_BYTES, "c"] + ["d" * 1000] * 2000
    assert texts_in(write_jsonl(tmp_path / "a.jsonl", texts), piece_bytes=1 << 20) == texts
    assert texts_in(write_parquet(tmp_path / "a.parquet", texts, row_group_size=1000)) == texts
    content = (tmp_path / "a.jsonl").read_text()
    assert texts_in(write_gzip(tmp_path / "b.jsonl.gz", content)) == texts
    (tmp_path / "c.txt").write_text("\n\n".join(texts))
    assert texts_in(tmp_path / "c.txt", documents="paragraph", piece_bytes=1 << 20) == texts
    assert texts_in(tmp_path / "c.txt", documents="paragraph", piece_bytes=1 << 10) == texts


def test_a_nested_field_is_found_by_dots(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "deep"}}\n{"a.b": "named so"}\n')
    assert texts_in(tmp_path / "a.jsonl", text_column="a.b") == ["deep", "named so"]
    pq.write_table(pa.table({"a": [{"b": "deep", "c": 1}]}), tmp_path / "a.parquet")
    assert texts_in(tmp_path / "a.parquet", text_column="a.b") == ["deep"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_every_type_of_text_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(TEXTS).cast(kind)})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert texts_in(tmp_path / "a.arrow") == TEXTS


BAD_LINES = [
    (b'{"text": "x"', "not JSON"),
    (b'{"text": "\xff"}', "not UTF-8"),
    (b'{"other": 1}', "no field"),
    (b'["text"]', "no field"),
    (b'{"text": null}', "not text"),
    (b'{"text": 7}', "not text"),
    (b'{"text": ""}', "empty document"),
    (b'{"text": "\\ud800"}', "half a character"),
]


@pytest.mark.parametrize(("line", "kind"), BAD_LINES, ids=lambda value: str(value))
@pytest.mark.parametrize("piece_bytes", [15, 1 << 20])
def test_a_line_without_a_document_is_skipped_or_named(
    tmp_path: Path, line: bytes, kind: str, piece_bytes: int
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n' * 2 + line + b'\n{"text": "fine"}\n')
    texts, notes = read(tmp_path, on_error="skip", piece_bytes=piece_bytes)
    assert texts == ["ok", "ok", "fine"]
    [entry] = [entry for noted in notes for entry in noted["entries"]]
    assert (entry["kind"], entry["byte"], entry["input"]) == (kind, 30, 0)
    verb = "parsed" if kind in ("not JSON", "not UTF-8") else "used"
    with pytest.raises(DataError, match=rf"line 3 \(byte 30\) of .*a.jsonl cannot be {verb}: ") as raised:
        texts_in(tmp_path, piece_bytes=piece_bytes)
    assert isinstance(raised.value, BadLine) == (verb == "parsed")


@pytest.mark.parametrize("piece_bytes", [1, 15, 1 << 20])
def test_blank_lines_between_objects_are_no_documents(tmp_path: Path, piece_bytes: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"text": "one"}\n\r\n \t\n\n{"text": "two"}\n\n  ')
    assert texts_in(tmp_path, piece_bytes=piece_bytes) == ["one", "two"]
    texts, notes = read(tmp_path, piece_bytes=piece_bytes, on_error="skip")
    assert texts == ["one", "two"]
    assert not any(noted["count"] for noted in notes)


def test_a_field_of_another_name_is_shown_with_the_option_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "content": "a"}\n')
    with pytest.raises(DataError, match=r"has no field 'text': there are 'id', 'content'\nhint: .*--text-column NAME"):
        texts_in(tmp_path)


@pytest.mark.parametrize("documents", ["file", "line", "paragraph"])
def test_text_that_is_not_utf8_is_skipped_or_named(tmp_path: Path, documents: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\nb\xffd\n\ngood again\n")
    texts, notes = read(tmp_path, documents=documents, on_error="skip")
    assert texts == ([] if documents == "file" else ["good", "good again"])
    assert notes[0]["reasons"]["not UTF-8"] == 1
    with pytest.raises(DataError, match="byte 0xff|is empty"):
        texts_in(tmp_path, documents=documents)


def test_rows_without_text_are_skipped_or_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["a", "b", "c", "d", "e", None, "", "f"])
    texts, notes = read(tmp_path, on_error="skip")
    assert texts == ["a", "b", "c", "d", "e", "f"]
    entries = [entry for noted in notes for entry in noted["entries"]]
    assert [(entry["row"], entry["kind"]) for entry in entries] == [(5, "null"), (6, "empty document")]
    with pytest.raises(DataError, match=r"row 5 of .*a.parquet cannot be used: the text is missing"):
        texts_in(tmp_path)


def test_a_row_that_is_not_utf8_is_skipped_or_named(tmp_path: Path) -> None:
    broken = pa.array([b"ok", b"\xff\xfe", b"fine"])
    texts = pa.Array.from_buffers(pa.string(), 3, broken.buffers())
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_stream(file, pa.schema({"text": pa.string()})) as writer,
    ):
        writer.write_batch(pa.record_batch({"text": texts}))
    assert texts_in(tmp_path, on_error="skip") == ["ok", "fine"]
    with pytest.raises(DataError, match=r"row 1 of .*: it is not UTF-8"):
        texts_in(tmp_path)


def test_a_column_that_is_not_there_or_not_text_is_shown_with_those_that_are(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["a"], column="content")
    with pytest.raises(DataError, match=r"no column 'text': there are 'id', 'content'\nhint: .*--text-column NAME"):
        texts_in(tmp_path)
    with pytest.raises(DataError, match="its column 'id' contains int64, not text"):
        texts_in(tmp_path, text_column="id")
    assert texts_in(tmp_path, text_column="content") == ["a"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 and nothing more PAR1", b"not at all" * 9], ids=repr)
def test_a_broken_parquet_file_is_skipped_or_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    write_parquet(tmp_path / "b.parquet", ["fine"])
    texts, notes = read(tmp_path, on_error="skip")
    assert texts == ["fine"]
    assert notes[0]["reasons"] == {"unreadable": 1}
    with pytest.raises(DataError, match=r"a.parquet cannot be used: .*\nhint: fix it"):
        texts_in(tmp_path)


def test_a_broken_row_group_costs_what_is_in_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [f"text {number}" for number in range(12)])
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    texts, notes = read(tmp_path, on_error="skip")
    assert texts == [f"text {number}" for number in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert notes[0]["entries"][0]["row_group"] == 1
    with pytest.raises(DataError, match=r"row group 1 of .*a.parquet cannot be used"):
        texts_in(tmp_path)


def test_a_compressed_file_that_is_cut_off_gives_its_whole_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {number} {number * 7919 % 10007}"}) for number in range(40000)]
    whole = gzip.compress("\n".join(lines).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) * 2 // 3])
    texts, notes = read(tmp_path, on_error="skip")
    assert 10000 < len(texts) < 40000
    assert texts == [json.loads(line)["text"] for line in lines[: len(texts)]]
    assert notes[0]["reasons"] == {"damaged file": 1}
    with pytest.raises(DamagedFile, match="the data ends early"):
        texts_in(tmp_path)


def test_empty_files_hold_no_documents_or_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.jsonl").touch()
    assert texts_in(tmp_path, documents="line") == texts_in(tmp_path, documents="paragraph") == []
    with pytest.raises(DataError, match="the file is empty"):
        texts_in(tmp_path)


def test_a_file_too_large_for_one_document_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.prepare.documents.MAX_DOCUMENT_BYTES", 10)
    monkeypatch.setattr("stoker.prepare.line_documents.MAX_DOCUMENT_BYTES", 10)
    (tmp_path / "a.txt").write_text("eleven bytes\nand more")
    with pytest.raises(DataError, match="--documents line or paragraph"):
        texts_in(tmp_path)
    with pytest.raises(DataError, match="too much for one document"):
        texts_in(tmp_path, documents="paragraph")


def test_a_text_too_large_for_one_document_is_left_out_of_every_kind_of_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("documents", "line_documents"):
        monkeypatch.setattr(f"stoker.prepare.{module}.MAX_DOCUMENT_BYTES", 10)
    texts = ["short", "longer than ten bytes", "0123456789"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    write_jsonl(tmp_path / "a.jsonl", texts)
    write_parquet(tmp_path / "a.parquet", texts)
    for name in ("a.txt", "a.jsonl", "a.parquet"):
        left, [noted] = read(tmp_path / name, documents="line", on_error="skip")
        assert left == ["short", "0123456789"]
        assert noted["reasons"] == {"too large": 1}


def test_the_ledger_of_a_piece_is_bounded_and_its_counts_are_exact(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n' * (MAX_ENTRIES + 50))
    [noted] = read(tmp_path, on_error="skip")[1]
    assert noted["count"] == MAX_ENTRIES + 50
    assert noted["reasons"] == {"empty document": MAX_ENTRIES + 50}
    assert len(noted["entries"]) == MAX_ENTRIES


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_file_that_changes_after_it_was_hashed_is_noticed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_parquet(path, ["x"]) if name == "a.parquet" else write_jsonl(path, ["x"])
    settings = TokenSettings()
    [piece] = plan_pieces(identify_inputs(find_inputs(tmp_path), ()), settings, tokenizer="none")
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(StaleSource):
        list(read_documents(piece, settings, Skips(piece.inputs, raises=False)))


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 4])
def test_a_blank_line_behind_a_byte_order_mark_costs_no_paragraph(tmp_path: Path, piece_bytes: int) -> None:
    (tmp_path / "a.txt").write_text("\ufeff\none\n\ntwo\n")
    assert texts_in(tmp_path, documents="paragraph", piece_bytes=piece_bytes) == ["one", "two"]


def test_a_stream_that_is_cut_off_between_two_record_batches_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["a", "b", "c", "d"], batch_rows=2)
    with pa.memory_map(str(path)) as file:
        pa.ipc.open_stream(file).read_next_batch()
        end = file.tell()
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(DataError, match="the file is truncated"):
        texts_in(path)
    texts, [noted] = read(path, on_error="skip")
    assert (texts, noted["reasons"]) == ([], {"unreadable": 1})


@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize(
    "lie", [(0, 4, 2_000_000_000, 12, 16), (0, 4, 8, 12, 2_000_000_000), (-2_000_000_000, 4, 8, 12, 16)]
)
def test_offsets_that_lead_out_of_the_data_are_not_followed(
    tmp_path: Path, lie: tuple[int, ...], is_dictionary: bool
) -> None:
    texts = pa.array(["one ", "two ", "tree", "four"])
    table = pa.table({"text": texts.dictionary_encode() if is_dictionary else texts})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    offsets, lies = (struct.pack("<5i", *places) for places in ((0, 4, 8, 12, 16), lie))
    content = (tmp_path / "a.arrow").read_bytes()
    assert content.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(content.replace(offsets, lies))
    with pytest.raises(DataError, match="cannot be used"):
        texts_in(tmp_path)


def test_two_columns_of_one_name_are_reported(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="it has 2 columns 'text'"):
        texts_in(tmp_path)


def test_a_column_whose_name_is_not_utf8_makes_a_file_unreadable(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["x"], column="textual")
    path.write_bytes(path.read_bytes().replace(b"textual", b"text\xff\xffl"))
    with pytest.raises(DataError, match="UTF-8|cannot be used"):
        texts_in(path)
