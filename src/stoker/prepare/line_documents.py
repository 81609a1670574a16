"""Documents out of lines: each line is one, or a JSON object that holds one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.prepare.batch import (
    BATCH_BYTES,
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NO_FIELD,
    NOT_JSON,
    NOT_UTF8,
    TOO_LARGE,
    Batch,
    not_utf8,
    too_large,
)
from stoker.prepare.inputs import Input
from stoker.prepare.lines import Lines, lines_of, opened
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips
from stoker.source.line_format import LineFormat


def from_plain_lines(piece: Piece, skips: Skips) -> Iterator[Batch]:
    """Yield the lines of a piece. An empty line is an empty document."""
    bad = BadLines(piece.inputs[0], skips)
    for lines in lines_of(piece, skips, stop=piece.stop):
        yield Batch(*(_at_once(lines.raw) or _one_by_one(lines, bad)), lines.num_read)


def from_json_lines(piece: Piece, text_column: str, skips: Skips) -> Iterator[Batch]:
    """Yield one field of the JSON objects that the lines of a piece are. Blank lines are no documents."""
    field, bad = Field(text_column), BadLines(piece.inputs[0], skips)
    for lines in lines_of(piece, skips, stop=piece.stop):
        yield Batch(*field.texts(lines, bad), lines.num_read)


class BadLines:
    """Where lines go that hold no document."""

    def __init__(self, entry: Input, skips: Skips) -> None:
        self._entry, self._skips = entry, skips

    def note(self, kind: str, reason: str, *, line: int | None, byte: int) -> None:
        """Leave a line out, or raise. For an error its number is counted; for a ledger that would take too long."""
        if line is None and self._skips.raises:
            line = self._counted(byte)
        self._skips.note(kind, reason, line=line, byte=byte)

    def _counted(self, byte: int) -> int:
        count, left = 1, byte
        with opened(self._entry) as file:
            while left and (block := file.read(min(left, BATCH_BYTES))):
                count += block.count(b"\n")
                left -= len(block)
        return count


def _at_once(raw: bytes) -> tuple[list[str], int] | None:
    """Return all lines, if each of them is a document: the way that nearly all text takes."""
    if b"\r" in raw or len(raw) > MAX_DOCUMENT_BYTES:
        return None
    try:
        texts = raw.removesuffix(b"\n").decode().split("\n")
    except UnicodeDecodeError:
        return None
    return None if "" in texts else (texts, len(raw) - raw.count(b"\n"))


def _one_by_one(lines: Lines, bad: BadLines) -> tuple[list[str], int]:
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


class Field:
    """The field of JSON objects that holds the text."""

    def __init__(self, name: str) -> None:
        self._name, self._path = name, name.split(".")
        self._parse = LineFormat("json").parser(None)

    def texts(self, lines: Lines, bad: BadLines) -> tuple[list[str], int]:
        """Return the texts of some lines and their size."""
        texts, num_bytes, parse, name = [], 0, self._parse, self._name
        for raw, byte, line in lines.each():
            try:
                value = parse(raw)
                text = value[name] if type(value) is dict and name in value else self._nested(value)
                size = _size_of(text, name)
            except ValueError as error:
                if not raw.strip():  # looked at here alone, so that good lines pay nothing for it
                    continue
                bad.note(*reason_of(error), line=line, byte=byte)
                continue
            texts.append(text)
            num_bytes += size
        return texts, num_bytes

    def text(self, value: Any) -> tuple[str, int]:
        """Return the text of one value and its size; ValueError if it has none."""
        text = self._nested(value)
        return text, _size_of(text, self._name)

    def _nested(self, value: Any) -> Any:
        if isinstance(value, dict) and self._name in value:
            return value[self._name]
        for name in self._path:
            if not isinstance(value, dict):
                raise Unusable(NO_FIELD, f"it is no object with a field {self._name!r}")
            if name not in value:
                there = ", ".join(map(repr, list(value)[:8])) or "none"
                raise Unusable(NO_FIELD, f"it has no field {self._name!r}: there are {there}")
            value = value[name]
        return value


def _size_of(text: Any, name: str) -> int:
    """Return the size of a text; ValueError if it is none that can be used."""
    if type(text) is not str:
        raise Unusable("not text", f"its field {name!r} is {_named(text)}, not text")
    if not text:
        raise Unusable(EMPTY, f"its field {name!r} is empty")
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_DOCUMENT_BYTES:
        raise Unusable(TOO_LARGE, too_large(f"its field {name!r}"))
    return size


class Unusable(ValueError):
    """A line without a document."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def reason_of(error: ValueError) -> tuple[str, str]:
    """Return the kind of what is wrong with a line, and what it is."""
    if isinstance(error, Unusable):
        return error.kind, str(error)
    if isinstance(error, UnicodeEncodeError):
        return "half a character", "its text has half of a surrogate pair, which is no character"
    if isinstance(error, UnicodeDecodeError):
        return NOT_UTF8, not_utf8(error)
    return NOT_JSON, str(error)


def _named(value: Any) -> str:
    names: dict[type, str] = {
        type(None): "null", bool: "true or false", int: "a number", float: "a number", list: "a list",
    }  # fmt: skip
    return names.get(type(value), "an object")
