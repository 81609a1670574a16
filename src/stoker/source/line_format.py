"""Formats of lines: text, JSON, CSV, TSV, raw bytes, or a function of the user."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stoker.errors import ArgumentError, BadLine

FormatName = Literal["text", "json", "csv", "tsv", "bytes"]
Parse = FormatName | Callable[[bytes], Any]

BOM = b"\xef\xbb\xbf"

_SUFFIXES: dict[str, FormatName] = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv",
}  # fmt: skip
DELIMITERS = {"csv": ",", "tsv": "\t"}
_decode_json = json.JSONDecoder().decode


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How the lines of a file are parsed."""

    name: str
    """Name of the format, or `module.function` of the user's function."""
    function: Callable[[bytes], Any] | None = None
    """The user's function, if any."""

    @property
    def is_text(self) -> bool:
        """Whether lines must be UTF-8, so that many lines can be decoded at once."""
        return self.function is None and self.name != "bytes"

    @property
    def has_header(self) -> bool:
        """Whether the first line of a file has the names of its columns, and is not a sample."""
        return self.function is None and self.name in DELIMITERS

    @property
    def drops_bom(self) -> bool:
        """Whether a byte order mark at the start of a file is removed; `"bytes"` are unchanged."""
        return self.function is not None or self.name != "bytes"

    def parser(self, header: bytes | None) -> LineParser:
        """Return the parser for a file; `header` is its first line if `has_header`, without line end and BOM.

        An invalid header does not raise here, but for every line of the file: the number of positions does not depend
        on whether lines can be parsed.
        """
        if self.function is not None:
            return LineParser(is_text=False, function=_guarded(self.function, self.name))
        if self.name == "bytes":
            return LineParser(is_text=False, function=None)
        if self.name == "text":
            return LineParser(is_text=True, function=None)
        if self.name == "json":
            return LineParser(is_text=True, function=_parse_json)
        return LineParser(is_text=True, function=_record_parser(header or b"", DELIMITERS[self.name]))


@dataclass(frozen=True, slots=True)
class LineParser:
    """Parses a line, without its line end, into a sample. Raises ValueError if it is invalid."""

    is_text: bool
    function: Callable[[Any], Any] | None
    """Takes `str` if `is_text`, else `bytes`; None: the line itself is the sample."""

    def __call__(self, line: bytes) -> Any:
        """Return the sample in `line`."""
        content = line.decode() if self.is_text else line
        return content if self.function is None else self.function(content)


def format_of(path: Path, parse: Parse | None) -> LineFormat:
    """Return the format given by `parse`; if it is None, by the suffix of `path`."""
    if parse is None:
        return LineFormat(_SUFFIXES.get(path.suffix.lower(), "text"))
    if isinstance(parse, str):
        if parse not in get_args(FormatName):
            names = ", ".join(map(repr, get_args(FormatName)))
            raise ArgumentError(f"unknown parse={parse!r}", hint=f"pass one of {names}, or a function that takes bytes")
        return LineFormat(parse)
    if not callable(parse):
        raise ArgumentError(
            f"parse must be the name of a format or a function, got {parse!r}",
            hint="pass a function that takes the bytes of a line",
        )
    name = getattr(parse, "__qualname__", type(parse).__qualname__)
    return LineFormat(f"{getattr(parse, '__module__', '')}.{name}", parse)


def bad_line(error: BaseException, *, path: Path, line: int | None, offset: int) -> BadLine:
    """Return the error of a parser as a `BadLine` with the location."""
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is not UTF-8: byte {error.object[error.start]:#04x} at byte {error.start} of the line"
    else:
        reason = str(error)
    return BadLine(path, line=line, offset=offset, reason=reason)


def _parse_json(text: str) -> Any:
    try:
        return _decode_json(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise ValueError("the line is empty; each line must be one JSON value") from error
        raise ValueError(
            f"it is not JSON: {error.msg} at character {error.pos + 1}; each line must be one JSON value"
        ) from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def _guarded(function: Callable[[bytes], Any], name: str) -> Callable[[bytes], Any]:
    def guarded(line: bytes) -> Any:
        try:
            return function(line)
        except (ValueError, StopIteration) as error:
            # StopIteration too: raised inside an iterator, it would silently end the data.
            raise ValueError(f"{name} raised {type(error).__name__}: {error}") from error

    return guarded


def _record_parser(header: bytes, delimiter: str) -> Callable[[str], dict[str, str]]:
    """Return a function that parses a line into a dict with the names in `header`."""
    try:
        names = fields_of(header.decode(), delimiter)
        if names == [""]:
            raise ValueError("it is empty")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the column {twice!r} occurs twice")
    except ValueError as error:
        unusable = ValueError(f"the header (line 1 of the file) cannot be used: {error}")

        def refuse(text: str) -> dict[str, str]:  # noqa: ARG001
            raise ValueError(str(unusable)) from unusable.__cause__

        return refuse

    def record(text: str) -> dict[str, str]:
        fields = fields_of(text, delimiter)
        if len(fields) != len(names):
            found = f"{len(fields)} fields" if text else "no fields (the line is empty)"
            raise ValueError(f"it has {found}, and the header has {len(names)}")
        return dict(zip(names, fields))

    return record


def fields_of(text: str, delimiter: str) -> list[str]:
    """Return the fields of one CSV line. Quotes inside a quoted field are doubled.

    The csv module limits fields to 128 KiB, and that limit can be changed only for the whole process.
    """
    if '"' not in text:
        return text.split(delimiter)
    fields: list[str] = []
    start = 0
    while True:
        if text.startswith('"', start):
            field, end = _quoted(text, start + 1)
            if end < len(text) and text[end] != delimiter:
                raise ValueError(f"a quoted field is followed by {text[end]!r} at character {end + 1}")
        else:
            end = text.find(delimiter, start)
            end = len(text) if end < 0 else end
            field = text[start:end]
        fields.append(field)
        if end == len(text):
            return fields
        start = end + 1


class UnclosedQuote(ValueError):
    """A quoted field continues past the end of the text."""


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return the content of the quoted field that begins at `start`, and the index after its closing quote."""
    parts: list[str] = []
    while True:
        end = text.find('"', start)
        if end < 0:
            raise UnclosedQuote(
                "a quote is not closed on this line (fields with line breaks in them are not supported)"
            )
        if not text.startswith('"', end + 1):
            parts.append(text[start:end])
            return "".join(parts), end + 1
        parts.append(text[start : end + 1])
        start = end + 2
