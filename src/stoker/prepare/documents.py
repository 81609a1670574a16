"""Read the documents of a piece, in batches for a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stoker.errors import DamagedFile, StaleSource
from stoker.prepare.arrow_text import ArrowTextFile, Unreadable
from stoker.prepare.csv_documents import csv_documents
from stoker.prepare.document_batch import (
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NO_COLUMN,
    NOT_UTF8,
    TOO_LARGE,
    DocumentBatch,
    PendingBatch,
    not_utf8,
    open_input,
    read_chunks,
    too_large,
)
from stoker.prepare.inputs import Input
from stoker.prepare.json_array import json_array_documents
from stoker.prepare.line_documents import json_documents, line_documents, paragraph_documents
from stoker.prepare.pieces import Piece
from stoker.prepare.settings import TokenSettings
from stoker.prepare.skips import Skips
from stoker.source.line_format import BOM


def read_documents(
    piece: Piece, settings: TokenSettings, skips: Skips, reading: Callable[[int], None] = lambda _: None
) -> Iterator[DocumentBatch]:
    """Yield the documents of a piece in order, in batches of about a MiB that are never empty.

    `reading` is called, while a long document is read, with the bytes of the piece read so far.

    A piece owns the lines and paragraphs that begin in its range. Unusable documents are passed to `skips`, which may
    raise. Memory is bounded by the batch and the largest document.
    """
    entry = piece.inputs[0]
    if entry.kind in ("parquet", "arrow"):
        batches = _from_columns(piece, settings.text_column, skips)
    elif entry.kind == "json":
        batches = json_documents(piece, settings.text_column, skips)
    elif entry.kind == "json array":
        batches = json_array_documents(piece, settings.text_column, skips)
    elif entry.kind in ("csv", "tsv"):
        batches = csv_documents(piece, settings.text_column, skips)
    elif settings.documents == "line":
        batches = line_documents(piece, skips)
    elif settings.documents == "paragraph":
        batches = paragraph_documents(piece, skips)
    else:
        batches = _from_files(piece, skips, reading)
    return (batch for batch in batches if batch.texts)


def _from_files(piece: Piece, skips: Skips, reading: Callable[[int], None]) -> Iterator[DocumentBatch]:
    batch, num_read = PendingBatch(), 0
    for number, entry in enumerate(piece.inputs):
        batch.add(_read_whole(entry, number, skips, reading, num_read), number)
        num_read += entry.num_bytes
        if batch.is_full:
            yield batch.take(num_read)
    yield batch.take(num_read)


def _read_whole(
    entry: Input, number: int, skips: Skips, reading: Callable[[int], None], num_before: int
) -> tuple[str, int] | None:
    parts, size = [], 0
    with open_input(entry) as file:
        try:
            for chunk in read_chunks(entry, file):
                parts.append(chunk)
                size += len(chunk)
                reading(num_before + min(file.tell(), entry.num_bytes))
                if size > MAX_DOCUMENT_BYTES:
                    skips.note(TOO_LARGE, too_large("the file"), number=number)
                    return None
        except DamagedFile as error:
            skips.note_truncated(error, number=number)
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


def _from_columns(piece: Piece, text_column: str, skips: Skips) -> Iterator[DocumentBatch]:
    entry = piece.inputs[0]
    part_name = "row_group" if entry.kind == "parquet" else "record_batch"
    try:
        file = ArrowTextFile(entry)
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
                    yield DocumentBatch(*_column_texts(array, row, skips), num_read)
                    row += len(array)
            except Unreadable as error:
                skips.note("unreadable", str(error), **{part_name: part})


def _column_texts(array: Any, row: int, skips: Skips) -> tuple[list[str], int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not array.null_count:  # all at once, if each text is usable: the common case
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
