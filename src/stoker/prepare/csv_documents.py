"""Read documents from CSV and TSV files: the text column of each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stoker.prepare.document_batch import (
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NO_COLUMN,
    NOT_CSV,
    NOT_UTF8,
    TOO_LARGE,
    DocumentBatch,
    PendingBatch,
    not_utf8,
    too_large,
)
from stoker.prepare.line_documents import read_lines
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips
from stoker.source.line_format import DELIMITERS, UnclosedQuote, fields_of


class _CsvRow(NamedTuple):
    """A row: its fields, or what is wrong with it."""

    fields: list[str]
    line: int
    byte: int
    wrong: tuple[str, str] | None
    num_read: int


def csv_documents(piece: Piece, text_column: str, skips: Skips) -> Iterator[DocumentBatch]:
    """Yield one column of the rows of a file, whose first row names the columns. Blank lines are ignored.

    A quoted field may contain delimiters, doubled quotes and line breaks.
    """
    batch = PendingBatch()
    records = _records(piece, DELIMITERS[piece.inputs[0].kind], skips)
    header = next(records, None)
    if header is None:
        return
    names, column = header.fields, -1
    if header.wrong is not None:
        skips.note(*header.wrong, line=header.line, byte=header.byte)
        return
    if names.count(text_column) != 1:
        there = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        problem = f"{names.count(text_column)} columns" if text_column in names else "no column"
        skips.note(
            NO_COLUMN, f"it has {problem} {text_column!r}: there are {there}", line=header.line, byte=header.byte
        )
        return
    column, num_read = names.index(text_column), 0
    for record in records:
        num_read = record.num_read
        wrong = record.wrong
        if wrong is None and len(record.fields) != len(names):
            wrong = (NOT_CSV, f"it has {len(record.fields)} fields, and the header has {len(names)}")
        if wrong is None:
            text = record.fields[column]
            size = len(text) if text.isascii() else len(text.encode())
            if not text:
                wrong = (EMPTY, f"its column {text_column!r} is empty")
            elif size > MAX_DOCUMENT_BYTES:
                wrong = (TOO_LARGE, too_large(f"its column {text_column!r}"))
            else:
                batch.add((text, size))
        if wrong is not None:
            skips.note(*wrong, line=record.line, byte=record.byte)
        if batch.is_full:
            yield batch.take(num_read)
    yield batch.take(num_read)


def _records(piece: Piece, delimiter: str, skips: Skips) -> Iterator[_CsvRow]:
    held: list[bytes] = []
    """Lines of an unfinished row: a quote is open."""
    size = line = byte = number = num_read = 0
    for lines in read_lines(piece, skips, stop=None):
        at, num_read = lines.byte, lines.num_read
        parts = lines.raw.split(b"\n")
        last = parts.pop()
        for position, raw in enumerate([*parts, last] if last else parts):
            number += 1
            if held:
                held.append(raw)
                size += len(raw)
                is_over = b'"' in raw.replace(b'""', b"") or size > MAX_DOCUMENT_BYTES
            else:
                held, size, line, byte, is_over = [raw], len(raw), number, at, True
            at += len(raw) + (position < len(parts))
            if is_over:
                record = _record(held, delimiter, line, byte, num_read)
                if record is None and size <= MAX_DOCUMENT_BYTES:
                    continue
                held = []
                if record is None:
                    wrong = (TOO_LARGE, too_large("the row"))
                    record = _CsvRow([], line, byte, wrong, num_read)
                if record.fields != [""] or record.wrong is not None:
                    yield record
    if held and not skips.is_truncated:
        yield _CsvRow([], line, byte, (NOT_CSV, "a quote is not closed before the file ends"), num_read)


def _record(held: list[bytes], delimiter: str, line: int, byte: int, num_read: int) -> _CsvRow | None:
    """Return the row made of these lines; None if it continues on the next line."""
    try:
        text = b"\n".join(held).removesuffix(b"\r").decode()
        return _CsvRow(fields_of(text, delimiter), line, byte, None, num_read)
    except UnicodeDecodeError as error:
        return _CsvRow([], line, byte, (NOT_UTF8, not_utf8(error)), num_read)
    except UnclosedQuote:
        return None
    except ValueError as error:
        return _CsvRow([], line, byte, (NOT_CSV, str(error)), num_read)
