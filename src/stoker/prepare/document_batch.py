"""Batches of documents for a tokenizer, and the reasons why documents are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from stoker.prepare.inputs import Input
from stoker.source.compression import decompress

BATCH_BYTES = 1 << 20
"""Text in one batch: enough that the overhead of a tokenizer call does not matter, and still little memory."""

MAX_DOCUMENT_BYTES = 256 << 20
"""The largest text that may be one document: tokenizers take a hundred times the memory of one text."""

EMPTY = "empty document"
NO_COLUMN = "no column"
NO_FIELD = "no field"
NOT_CSV = "not CSV"
NOT_ENCODABLE = "not encodable"
NOT_JSON = "not JSON"
NOT_UTF8 = "not UTF-8"
TOO_LARGE = "too large"


class DocumentBatch(NamedTuple):
    """Some documents, in order."""

    texts: list[str]
    num_bytes: int
    """Size of the texts, in UTF-8."""
    num_read: int
    """How much of the piece's `num_bytes` is read so far, for progress."""
    inputs: Sequence[int] = ()
    """The number of each text's input, if a piece has several."""


class PendingBatch:
    """Collects documents for the next batch."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.num_bytes = 0
        self.inputs: list[int] = []

    def add(self, document: tuple[str, int] | None, number: int = 0) -> None:
        """Add a text with its size, from input `number`; None adds nothing."""
        if document is not None:
            self.texts.append(document[0])
            self.num_bytes += document[1]
            self.inputs.append(number)

    @property
    def is_full(self) -> bool:
        """Whether it has reached the size of a batch."""
        return self.num_bytes >= BATCH_BYTES

    def take(self, num_read: int) -> DocumentBatch:
        """Return the documents collected, and start the next batch."""
        batch = DocumentBatch(self.texts, self.num_bytes, num_read, self.inputs if any(self.inputs) else ())
        self.texts, self.num_bytes, self.inputs = [], 0, []
        return batch


def open_input(entry: Input) -> IO[bytes]:
    """Open an input as stored on disk, after checking that it has not changed."""
    file: IO[bytes] = open(entry.path, "rb", buffering=128 << 10)  # noqa: SIM115  # gzip reads 8 KiB at a time
    try:
        entry.check(os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def read_chunks(entry: Input, file: IO[bytes]) -> Iterator[bytes]:
    """Return the decompressed content of an input in chunks of about a MiB."""
    if entry.compression is not None:
        return decompress(file, entry.compression, path=Path(entry.path), chunk_bytes=BATCH_BYTES)
    return iter(lambda: file.read(BATCH_BYTES), b"")


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return the reason to skip bytes that are not text."""
    return f"it is not UTF-8: byte {error.object[error.start]:#04x} at byte {error.start} of it"


def too_large(what: str) -> str:
    """Return the reason to skip a document that no tokenizer could encode."""
    return (
        f"{what} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB, too much for one document; "
        "--documents line or paragraph (documents= in Python) makes smaller ones of plain text"
    )
