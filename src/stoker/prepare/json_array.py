"""Read documents from a JSON file that is one array of texts, or of objects that contain one."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from stoker.errors import DamagedFile
from stoker.prepare.document_batch import (
    BATCH_BYTES,
    EMPTY,
    MAX_DOCUMENT_BYTES,
    NOT_JSON,
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
from stoker.prepare.line_documents import TextField, Unusable, reason_of
from stoker.prepare.pieces import Piece
from stoker.prepare.skips import Skips

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


def json_array_documents(piece: Piece, text_column: str, skips: Skips) -> Iterator[DocumentBatch]:
    """Yield the elements of an array that are texts, and one field of those that are objects.

    The file is parsed incrementally: memory is bounded by the batch and the largest element.
    """
    field, batch = TextField(text_column), PendingBatch()
    elements = _Elements(piece.inputs[0], skips)
    for number, value in enumerate(elements.values()):
        try:
            if type(value) is str:
                if not value:
                    raise Unusable(EMPTY, "it is empty")
                batch.add((value, len(value.encode())))
            else:
                batch.add(field.text(value))
        except ValueError as error:
            skips.note(*reason_of(error), element=number)
        if batch.is_full:
            yield batch.take(min(elements.num_read, piece.num_bytes))
    yield batch.take(piece.num_bytes)


class _Elements:
    """The elements of a JSON array in a file."""

    def __init__(self, entry: Input, skips: Skips) -> None:
        self._entry, self._skips = entry, skips
        self.num_read = 0
        self._text, self._at, self._is_whole = "", 0, False
        self._wanted = BATCH_BYTES

    def values(self) -> Iterator[Any]:
        """Yield one after the other. A parse error ends the file: where the next element begins is unknown."""
        with open_input(self._entry) as file:
            self._chunks = self._decoded(file)
            number = 0
            try:
                self._more()
                self._skip_space()
                self._at += 1  # the bracket
                if self._next() == "]":
                    self._at += 1
                else:
                    while True:
                        value = self._value()
                        delimiter = self._next()
                        if delimiter not in (",", "]"):
                            raise _BadElement(NOT_JSON, f"expected a comma or ] after it, got {delimiter!r}")
                        self._at += 1
                        yield value
                        number += 1
                        if delimiter == "]":
                            break
                if self._next():
                    raise _BadElement(NOT_JSON, "the file has more content after the array")
            except _BadElement as error:
                self._skips.note(error.kind, f"{error}; it and everything after it is skipped", element=number)
            except _Truncated:
                return

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if isinstance(error, RecursionError):
                    raise _BadElement(NOT_JSON, "it is nested too deeply") from error
                if self._grow():
                    continue
                raise _BadElement(NOT_JSON, f"it is not JSON: {error.msg}") from error
            if end == len(self._text) and self._grow():
                continue  # a number may continue
            self._at = end
            return value

    def _grow(self) -> bool:
        """Read more of an incomplete element; twice as much each time, so that it is parsed only a few times."""
        held = len(self._text) - self._at
        if held > MAX_DOCUMENT_BYTES:
            raise _BadElement(TOO_LARGE, too_large("the element"))
        while len(self._text) - self._at < 2 * held + 1:
            if not self._more():
                return len(self._text) - self._at > held
        return True

    def _next(self) -> str:
        """Return the next character that is not a space, without consuming it; "" at the end of the file."""
        while True:
            self._skip_space()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _more(self) -> bool:
        chunk = next(self._chunks, "")
        if chunk:
            self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)

    def _decoded(self, file: IO[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            for chunk in read_chunks(self._entry, file):
                self.num_read = file.tell()
                if text := decoder.decode(chunk):
                    yield text
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _BadElement(NOT_UTF8, not_utf8(error)) from error
        except DamagedFile as error:
            self._skips.note_truncated(error)
            raise _Truncated from error


class _BadElement(Exception):
    """The rest of a file cannot be parsed."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Truncated(Exception):
    """The rest of a file cannot be decompressed, and that is noted."""
