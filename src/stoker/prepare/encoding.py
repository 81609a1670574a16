"""The work on one piece: its documents become tokens, and the tokens shards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import DataError, StaleSource
from stoker.prepare.batch import NOT_ENCODABLE, Batch
from stoker.prepare.choice import Choice
from stoker.prepare.documents import documents
from stoker.prepare.pieces import Piece
from stoker.prepare.settings import Settings
from stoker.prepare.skips import Skips
from stoker.prepare.worker_pool import Cell
from stoker.store import Build
from stoker.transform.tokenizer import Identity, Tokenizer
from stoker.transform.tokenizer.sharing import joined

COLUMN = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Makes pieces of a store; the same piece in the same way whoever calls."""

    build: Build
    settings: Settings
    choice: Choice
    identity: Identity

    def __call__(self, piece: Piece, cell: Cell) -> dict[str, Any]:
        """Write the shards of a piece and return its notes."""
        tokenizer = _opened(self.choice, self.identity)
        skips = Skips(piece.inputs, raises=self.settings.on_error == "raise")
        end = self.identity.end_of_document if self.settings.end_of_document else None
        dtype = np.dtype(self.identity.dtype)
        num_documents = num_tokens = text_bytes = num_before = 0
        with self.build.piece(piece.key) as writer:

            def reading(num_read: int) -> None:
                cell[2] = num_read

            for batch in documents(piece, self.settings, skips, reading):
                ids, lengths, num_bytes = _encoded(tokenizer, batch, skips, piece, num_before)
                if ids.size and int(ids.max()) >= self.identity.vocab_size:
                    raise DataError(
                        f"the tokenizer {self.identity.name} gave the id {int(ids.max())}, but its vocabulary has "
                        f"{self.identity.vocab_size}\nhint: its file and its library do not fit together"
                    )
                values, lengths = with_ends(ids, lengths, end, dtype)
                writer.extend({COLUMN: (values, lengths)})
                num_before += len(batch.texts)
                num_documents += len(lengths)
                num_tokens += len(values)
                text_bytes += num_bytes
                cell[:] = (num_documents, num_tokens, batch.num_read)
            for entry in piece.inputs:  # again: it may have changed while it was read
                entry.check(os.stat(entry.path))
            counts = {"documents": num_documents, "tokens": num_tokens, "text_bytes": text_bytes}
            writer.notes.update(counts, skipped=skips.to_notes())
        return writer.notes


def with_ends(
    ids: NDArray[np.uint32], lengths: NDArray[np.int64], end: int | None, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the ids as `dtype`, with `end` behind each document."""
    if end is None:
        return ids.astype(dtype), lengths
    lengths = lengths + 1
    is_end = np.zeros(len(ids) + len(lengths), np.bool_)
    is_end[np.cumsum(lengths) - 1] = True
    values = np.full(len(is_end), end, dtype)
    values[~is_end] = ids
    return values, lengths


def _encoded(
    tokenizer: Tokenizer, batch: Batch, skips: Skips, piece: Piece, num_before: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
    """Return the ids of a batch, the number of each document, and how many bytes of text that is."""
    try:
        return *tokenizer.encode(batch.texts), batch.num_bytes
    except DataError:
        pass  # one by one, to find out which
    parts, num_bytes = [], 0
    for number, text in enumerate(batch.texts):
        try:
            parts.append(tokenizer.encode([text]))
            num_bytes += len(text.encode())
        except DataError as error:
            reason = str(error).partition("\n")[0]
            if len(piece.inputs) > 1:  # files that are one document each
                skips.note(NOT_ENCODABLE, reason, number=batch.inputs[number] if batch.inputs else 0)
            else:
                skips.note(NOT_ENCODABLE, reason, document=num_before + number, piece_from=piece.start or None)
    return *joined(parts), num_bytes


_tokenizers: dict[tuple[int, Choice], Tokenizer] = {}


def _opened(choice: Choice, identity: Identity) -> Tokenizer:
    """Return the tokenizer as this process has loaded it: what a fork has inherited is not used."""
    key = (os.getpid(), choice)
    if key not in _tokenizers or _tokenizers[key].identity != identity:  # of an earlier run, with another file
        _tokenizers.clear()
        _tokenizers[key] = choice.opened()
    if _tokenizers[key].identity != identity:
        raise StaleSource(choice.spec, what="the tokenizer has changed")
    return _tokenizers[key]
