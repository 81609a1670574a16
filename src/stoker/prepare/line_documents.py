"""Read documents from text: lines, paragraphs, and JSON objects of which each is a line; plain or compressed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from stoker.errors import DamagedFile
from stoker.prepare.document_batch import (
    BATCH_BYTES,
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NO_FIELD,
    NOT_JSON,
    NOT_UTF8,
    TOO_LARGE,
    DocumentBatch,
    PendingBatch,
    not_utf8,
    open_input,
    too_large,
)
from stoker.prepare.inputs import Input
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips
from stoker.source.compression import decompress
from stoker.source.line_file import LineFile
from stoker.source.line_format import BOM, LineFormat
from stoker.source.line_reader import LineReader

_BLANK_LINE = re.compile(rb"^[ \t\r\v\f]*\n", re.MULTILINE)

_DECOMPRESSED_BYTES = 64 << 10
"""Decompressed at a time; a truncated file loses the last chunk."""


class LineBlock(NamedTuple):
    """Complete lines of a file, and their location."""

    raw: bytes
    byte: int
    """Offset of the first one in the decompressed data."""
    line: int | None
    """Number of the first one, from 1; None if the lines before it were not read."""
    num_read: int

    def each(self) -> Iterator[tuple[bytes, int, int | None]]:
        """Yield each line without its end, with its byte and number."""
        byte, line = self.byte, self.line
        pieces = self.raw.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            yield piece.removesuffix(b"\r"), byte, line
            byte += len(piece) + 1
            line = None if line is None else line + 1
        if last:  # the last line of the file has no line feed
            yield last, byte, line


def read_lines(piece: Piece, skips: Skips, *, stop: int | None) -> Iterator[LineBlock]:
    """Yield the lines that begin between the piece's start and `stop`, about a MiB at a time."""
    entry = piece.inputs[0]
    line: int | None = None if piece.start else 1
    raws = _plain_lines(entry, piece.start, stop) if entry.compression is None else _decompressed_lines(entry, skips)
    for raw, byte, num_read in raws:
        has_mark = byte == 0 and raw.startswith(BOM)
        dropped = len(BOM) if has_mark else 0
        yield LineBlock(raw[dropped:], byte + dropped, line, min(num_read, piece.num_bytes))
        line = None if line is None else line + raw.count(b"\n")


def _plain_lines(entry: Input, start: int, stop: int | None) -> Iterator[tuple[bytes, int, int]]:
    path = Path(os.path.abspath(entry.path))
    file = LineFile(path, entry.num_bytes, entry.mtime_ns, None, LineFormat("text"))
    with LineReader(file, chunk_bytes=BATCH_BYTES) as reader:
        if reader.skip_to(start):
            while raw := reader.lines_before(stop):
                yield raw, reader.offset - len(raw), reader.offset - start


def _decompressed_lines(entry: Input, skips: Skips) -> Iterator[tuple[bytes, int, int]]:
    held: list[bytes] = []
    size = byte = 0
    with open_input(entry) as file:
        for chunk in _decompressed(entry, file, skips):
            held.append(chunk)
            size += len(chunk)
            end = chunk.rfind(b"\n") + 1
            if size < BATCH_BYTES or not end:
                continue
            rest = chunk[end:]
            held[-1] = chunk[:end]
            raw = b"".join(held)
            yield raw, byte, file.tell()
            byte += len(raw)
            held, size = [rest], len(rest)
    if (raw := b"".join(held)) and (not skips.is_truncated or b"\n" in raw):
        if skips.is_truncated:
            raw = raw[: raw.rfind(b"\n") + 1]  # the line at which the data ended is incomplete
        yield raw, byte, entry.num_bytes


def _decompressed(entry: Input, file: IO[bytes], skips: Skips) -> Iterator[bytes]:
    assert entry.compression is not None
    try:
        yield from decompress(file, entry.compression, path=Path(entry.path), chunk_bytes=_DECOMPRESSED_BYTES)
    except DamagedFile as error:
        skips.note_truncated(error)


def line_documents(piece: Piece, skips: Skips) -> Iterator[DocumentBatch]:
    """Yield the lines of a piece. An empty line is an empty document."""
    bad = BadLines(piece.inputs[0], skips)
    for lines in read_lines(piece, skips, stop=piece.stop):
        yield DocumentBatch(*(_at_once(lines.raw) or _one_by_one(lines, bad)), lines.num_read)


def json_documents(piece: Piece, text_column: str, skips: Skips) -> Iterator[DocumentBatch]:
    """Yield one field of the JSON objects in the lines of a piece. Blank lines are ignored."""
    field, bad = TextField(text_column), BadLines(piece.inputs[0], skips)
    for lines in read_lines(piece, skips, stop=piece.stop):
        yield DocumentBatch(*field.texts(lines, bad), lines.num_read)


class BadLines:
    """Skips lines without a document."""

    def __init__(self, entry: Input, skips: Skips) -> None:
        self._entry, self._skips = entry, skips

    def note(self, kind: str, reason: str, *, line: int | None, byte: int) -> None:
        """Skip a line, or raise. For an error its number is counted; for the ledger that would take too long."""
        if line is None and self._skips.raises:
            line = self._count_lines(byte)
        self._skips.note(kind, reason, line=line, byte=byte)

    def _count_lines(self, byte: int) -> int:
        count, left = 1, byte
        with open_input(self._entry) as file:
            while left and (block := file.read(min(left, BATCH_BYTES))):
                count += block.count(b"\n")
                left -= len(block)
        return count


def _at_once(raw: bytes) -> tuple[list[str], int] | None:
    """Return all lines, if each of them is a document, as in nearly all text; else None."""
    if b"\r" in raw or len(raw) > MAX_DOCUMENT_BYTES:
        return None
    try:
        texts = raw.removesuffix(b"\n").decode().split("\n")
    except UnicodeDecodeError:
        return None
    return None if "" in texts else (texts, len(raw) - raw.count(b"\n"))


def _one_by_one(lines: LineBlock, bad: BadLines) -> tuple[list[str], int]:
    texts, num_bytes = [], 0
    for raw, byte, line in lines.each():
        if len(raw) > MAX_DOCUMENT_BYTES:
            bad.note(TOO_LARGE, too_large("the line"), line=line, byte=byte)
            continue
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            bad.note(NOT_UTF8, not_utf8(error), line=line, byte=byte)
            continue
        if not text:
            bad.note(EMPTY, "the line is empty", line=line, byte=byte)
            continue
        texts.append(text)
        num_bytes += len(raw)
    return texts, num_bytes


class TextField:
    """The field of JSON objects that contains the text."""

    def __init__(self, name: str) -> None:
        self._name, self._path = name, name.split(".")
        self._parse = LineFormat("json").parser(None)

    def texts(self, lines: LineBlock, bad: BadLines) -> tuple[list[str], int]:
        """Return the texts in some lines and their size."""
        texts, num_bytes, parse, name = [], 0, self._parse, self._name
        for raw, byte, line in lines.each():
            try:
                value = parse(raw)
                text = value[name] if type(value) is dict and name in value else self._nested(value)
                size = _size_of(text, name)
            except ValueError as error:
                if not raw.strip():  # checked only here, so that it costs nothing for good lines
                    continue
                bad.note(*reason_of(error), line=line, byte=byte)
                continue
            texts.append(text)
            num_bytes += size
        return texts, num_bytes

    def text(self, value: Any) -> tuple[str, int]:
        """Return the text in one value and its size; raise ValueError if it has none."""
        text = self._nested(value)
        return text, _size_of(text, self._name)

    def _nested(self, value: Any) -> Any:
        if isinstance(value, dict) and self._name in value:
            return value[self._name]
        for name in self._path:
            if not isinstance(value, dict):
                raise Unusable(NO_FIELD, f"it is not an object with a field {self._name!r}")
            if name not in value:
                there = ", ".join(map(repr, list(value)[:8])) or "none"
                raise Unusable(NO_FIELD, f"it has no field {self._name!r}: there are {there}")
            value = value[name]
        return value


def _size_of(text: Any, name: str) -> int:
    """Return the size of a text; raise ValueError if it is not usable."""
    if type(text) is not str:
        raise Unusable("not text", f"its field {name!r} is {_json_type(text)}, not text")
    if not text:
        raise Unusable(EMPTY, f"its field {name!r} is empty")
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_DOCUMENT_BYTES:
        raise Unusable(TOO_LARGE, too_large(f"its field {name!r}"))
    return size


class Unusable(ValueError):
    """A line without a usable document."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def reason_of(error: ValueError) -> tuple[str, str]:
    """Return the kind of error of a line, and its description."""
    if isinstance(error, Unusable):
        return error.kind, str(error)
    if isinstance(error, UnicodeEncodeError):
        return "half a character", "its text has half of a surrogate pair, which is not a character"
    if isinstance(error, UnicodeDecodeError):
        return NOT_UTF8, not_utf8(error)
    return NOT_JSON, str(error)


def _json_type(value: Any) -> str:
    names: dict[type, str] = {
        type(None): "null", bool: "true or false", int: "a number", float: "a number", list: "a list",
    }  # fmt: skip
    return names.get(type(value), "an object")


def paragraph_documents(piece: Piece, skips: Skips) -> Iterator[DocumentBatch]:
    """Yield the texts between blank lines. It belongs to the piece in which the blank line before it begins."""
    stop = piece.stop
    batch = PendingBatch()
    parts: list[bytes] = []
    is_ours = not piece.start
    size = begin = 0
    for lines in read_lines(piece, skips, stop=None):
        raw, at = lines.raw, 0
        if not is_ours and stop is not None and lines.byte >= stop:
            break
        for blank in _BLANK_LINE.finditer(raw):
            if is_ours:
                parts.append(raw[at : blank.start()])
                batch.add(_paragraph(parts, begin, skips))
            parts, size, at = [], 0, blank.end()
            # the first line of the file begins at 0, even if a byte order mark was removed
            begin, place = lines.byte + at, lines.byte + blank.start() if blank.start() or lines.line != 1 else 0
            is_ours = stop is None or place < stop
            if not is_ours:
                yield batch.take(piece.num_bytes)
                return
            if batch.is_full:
                yield batch.take(min(piece.num_bytes, lines.byte + at - piece.start))
        if is_ours:
            parts.append(raw[at:])
            size += len(raw) - at
            if size > MAX_DOCUMENT_BYTES:
                skips.note(TOO_LARGE, too_large("the paragraph"), byte=begin)
                parts, is_ours = [], False
    if is_ours:
        batch.add(_paragraph(parts, begin, skips))
    yield batch.take(piece.num_bytes)


def _paragraph(parts: list[bytes], begin: int, skips: Skips) -> tuple[str, int] | None:
    raw = b"".join(parts).removesuffix(b"\n").removesuffix(b"\r")
    if not raw.strip():
        return None
    try:
        return raw.decode(), len(raw)
    except UnicodeDecodeError as error:
        skips.note(NOT_UTF8, not_utf8(error), byte=begin)
        return None
