"""The documents of a piece, in batches that suit a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from stoker.errors import DamagedFile, StaleSource
from stoker.prepare.batch import (
    BATCH_BYTES,
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NO_COLUMN,
    NOT_UTF8,
    TOO_LARGE,
    Batch,
    Gathered,
    not_utf8,
    too_large,
)
from stoker.prepare.columns import ArrowFile, Unreadable
from stoker.prepare.inputs import Input
from stoker.prepare.json_array import from_json_array
from stoker.prepare.line_documents import from_json_lines, from_plain_lines
from stoker.prepare.lines import opened
from stoker.prepare.paragraphs import from_paragraphs
from stoker.prepare.pieces import Piece
from stoker.prepare.settings import Settings
from stoker.prepare.skips import Skips
from stoker.prepare.table_documents import from_table
from stoker.source.compression import unpacked
from stoker.source.line_format import BOM


def documents(
    piece: Piece, settings: Settings, skips: Skips, reading: Callable[[int], None] = lambda _: None
) -> Iterator[Batch]:
    """Yield the documents of a piece in order, in batches of about a MiB; never one without documents.

    `reading` is called with the bytes of the piece that are read so far while a long document is.

    A piece owns the lines and paragraphs that begin in its range. What cannot be used goes to `skips`, which may raise.
    Memory is bounded by the batch and the largest document.
    """
    entry = piece.inputs[0]
    if entry.kind in ("parquet", "arrow"):
        batches = _from_columns(piece, settings.text_column, skips)
    elif entry.kind == "json":
        batches = from_json_lines(piece, settings.text_column, skips)
    elif entry.kind == "json array":
        batches = from_json_array(piece, settings.text_column, skips)
    elif entry.kind in ("csv", "tsv"):
        batches = from_table(piece, settings.text_column, skips)
    elif settings.documents == "line":
        batches = from_plain_lines(piece, skips)
    elif settings.documents == "paragraph":
        batches = from_paragraphs(piece, skips)
    else:
        batches = _from_files(piece, skips, reading)
    return (batch for batch in batches if batch.texts)


def _from_files(piece: Piece, skips: Skips, reading: Callable[[int], None]) -> Iterator[Batch]:
    batch, num_read = Gathered(), 0
    for number, entry in enumerate(piece.inputs):
        batch.add(_whole(entry, number, skips, reading, num_read), number)
        num_read += entry.num_bytes
        if batch.num_bytes >= BATCH_BYTES:
            yield batch.taken(num_read)
    yield batch.taken(num_read)


def _whole(
    entry: Input, number: int, skips: Skips, reading: Callable[[int], None], num_before: int
) -> tuple[str, int] | None:
    parts, size = [], 0
    with opened(entry) as file:
        try:
            for chunk in _chunks(entry, file):
                parts.append(chunk)
                size += len(chunk)
                reading(num_before + min(file.tell(), entry.num_bytes))
                if size > MAX_DOCUMENT_BYTES:
                    skips.note(TOO_LARGE, too_large("the file"), number=number)
                    return None
        except DamagedFile as error:
            skips.note_cut(error, number=number)
            return None
    if entry.compression is None and size != entry.num_bytes:
        raise StaleSource(entry.path, what=f"it had {entry.num_bytes} bytes, and {size} were read")
    raw = b"".join(parts).removeprefix(BOM)
    if not raw:
        skips.note(EMPTY, "the file is empty", number=number)
        return None
    try:
        return raw.decode(), len(raw)
    except UnicodeDecodeError as error:
        skips.note(NOT_UTF8, not_utf8(error), number=number, byte=error.start)
        return None


def _chunks(entry: Input, file: IO[bytes]) -> Iterator[bytes]:
    if entry.compression is not None:
        return unpacked(file, entry.compression, path=Path(entry.path), chunk_bytes=BATCH_BYTES)
    return iter(lambda: file.read(BATCH_BYTES), b"")


def _from_columns(piece: Piece, text_column: str, skips: Skips) -> Iterator[Batch]:
    entry = piece.inputs[0]
    part_name = "row_group" if entry.kind == "parquet" else "record_batch"
    try:
        file = ArrowFile(entry)
    except Unreadable as error:
        skips.note("unreadable", str(error))
        return
    with file:
        try:
            path = file.path_of(text_column)
        except Unreadable as error:
            skips.note(NO_COLUMN, str(error))
            return
        stop = file.num_parts if piece.stop is None else piece.stop
        for part in range(piece.start, stop):
            row = file.first_row(part)
            num_read = piece.num_bytes * (part + 1 - piece.start) // (stop - piece.start)
            try:
                for array in file.texts(part, path):
                    yield Batch(*_column_texts(array, row, skips), num_read)
                    row += len(array)
            except Unreadable as error:
                skips.note("unreadable", str(error), **{part_name: part})


def _column_texts(array: Any, row: int, skips: Skips) -> tuple[list[str], int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not array.null_count:
        try:
            texts = array.to_pylist()
        except UnicodeDecodeError:
            texts = [""]
        if "" not in texts:
            num_bytes = int(pc.sum(pc.binary_length(array.cast(pa.large_string()))).as_py() or 0)
            if num_bytes <= MAX_DOCUMENT_BYTES:
                return texts, num_bytes
    texts, num_bytes = [], 0
    for value in array:
        try:
            text = value.as_py()
            if text:
                size = len(text.encode())
                if size > MAX_DOCUMENT_BYTES:
                    skips.note(TOO_LARGE, too_large("the text"), row=row)
                else:
                    texts.append(text)
                    num_bytes += size
            elif text is None:
                skips.note("null", "the text is missing (null)", row=row)
            else:
                skips.note(EMPTY, "the text is empty", row=row)
        except UnicodeDecodeError as error:
            skips.note(NOT_UTF8, not_utf8(error), row=row)
        row += 1
    return texts, num_bytes
