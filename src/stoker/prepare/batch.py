"""Documents on their way to a tokenizer, and the words for what is wrong with some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BATCH_BYTES = 1 << 20
"""Text in one batch: enough that a call of the tokenizer costs nothing beside its work, and still little memory."""

MAX_DOCUMENT_BYTES = 256 << 20
"""The largest text that may be one document: tokenizers take a hundred times the memory of what they get at once."""

EMPTY = "empty document"
NO_COLUMN = "no column"
NO_FIELD = "no field"
NOT_CSV = "not CSV"
NOT_ENCODABLE = "not encodable"
NOT_JSON = "not JSON"
NOT_UTF8 = "not UTF-8"
TOO_LARGE = "too large"


class Batch(NamedTuple):
    """Some documents, in order."""

    texts: list[str]
    num_bytes: int
    """Of the texts, in UTF-8."""
    num_read: int
    """How much of the piece's `num_bytes` is read by now, for whoever watches."""
    inputs: Sequence[int] = ()
    """The number of the input that each text is of, where a piece has several."""


class Gathered:
    """Documents for the next batch."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.num_bytes = 0
        self.inputs: list[int] = []

    def add(self, document: tuple[str, int] | None, number: int = 0) -> None:
        """Add a text with its size, from input `number`; or nothing."""
        if document is not None:
            self.texts.append(document[0])
            self.num_bytes += document[1]
            self.inputs.append(number)

    @property
    def is_full(self) -> bool:
        """Whether it is as large as batches are."""
        return self.num_bytes >= BATCH_BYTES

    def taken(self, num_read: int) -> Batch:
        """Return what was gathered, and begin anew."""
        batch = Batch(self.texts, self.num_bytes, num_read, self.inputs if any(self.inputs) else ())
        self.texts, self.num_bytes, self.inputs = [], 0, []
        return batch


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with bytes that are not text."""
    return f"it is not UTF-8: byte {error.object[error.start]:#04x} at byte {error.start} of it"


def too_large(what: str) -> str:
    """Return what is wrong with a document that no tokenizer could take."""
    return (
        f"{what} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB, too much for one document; "
        "--documents line or paragraph (documents= in Python) makes smaller ones of plain text"
    )
