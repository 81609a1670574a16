"""Make one piece of a store of tokens: encode its documents, or read documents in random order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import DataError, StaleSource
from stoker.plan import permutation
from stoker.prepare.document_batch import NOT_ENCODABLE, DocumentBatch
from stoker.prepare.documents import read_documents
from stoker.prepare.pieces import Piece, key_of
from stoker.prepare.settings import TokenSettings
from stoker.prepare.skips import Skips
from stoker.prepare.tokenizers import TokenizerChoice
from stoker.prepare.worker_pool import Cell
from stoker.store import Build, Store, open_store
from stoker.transform.tokenizer import Identity, Tokenizer
from stoker.transform.tokenizer.chunked_encoding import joined

COLUMN = "tokens"

_READ_VALUES = 1 << 20
"""Approximate number of tokens read at a time while shuffling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """Makes pieces of a store; the same piece gives the same bytes in every process."""

    build: Build
    settings: TokenSettings
    choice: TokenizerChoice
    identity: Identity

    def __call__(self, piece: Piece, cell: Cell) -> dict[str, Any]:
        """Write the shards of a piece and return its notes."""
        tokenizer = _open_tokenizer(self.choice, self.identity)
        skips = Skips(piece.inputs, raises=self.settings.on_error == "raise")
        end = self.identity.end_of_document if self.settings.end_of_document else None
        dtype = np.dtype(self.identity.dtype)
        num_documents = num_tokens = text_bytes = num_before = 0
        with self.build.piece(piece.key) as writer:

            def reading(num_read: int) -> None:
                cell[2] = num_read

            for batch in read_documents(piece, self.settings, skips, reading):
                ids, lengths, num_bytes = _encode(tokenizer, batch, skips, piece, num_before)
                if ids.size and int(ids.max()) >= self.identity.vocab_size:
                    raise DataError(
                        f"the tokenizer {self.identity.name} returned id {int(ids.max())}, but its vocabulary has "
                        f"{self.identity.vocab_size}\nhint: its file and its library do not match"
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
    """Return the ids as `dtype`, with `end` after each document."""
    if end is None:
        return ids.astype(dtype), lengths
    lengths = lengths + 1
    is_end = np.zeros(len(ids) + len(lengths), np.bool_)
    is_end[np.cumsum(lengths) - 1] = True
    values = np.full(len(is_end), end, dtype)
    values[~is_end] = ids
    return values, lengths


def _encode(
    tokenizer: Tokenizer, batch: DocumentBatch, skips: Skips, piece: Piece, num_before: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
    """Return the ids of a batch, the number of ids of each document, and the size of the encoded text in bytes."""
    try:
        return *tokenizer.encode(batch.texts), batch.num_bytes
    except DataError:
        pass  # one by one, to find the bad text
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


_tokenizers: dict[tuple[int, TokenizerChoice], Tokenizer] = {}


def _open_tokenizer(choice: TokenizerChoice, identity: Identity) -> Tokenizer:
    """Return the tokenizer, loaded once by each process: a copy inherited through a fork is not used."""
    key = (os.getpid(), choice)
    if key not in _tokenizers or _tokenizers[key].identity != identity:  # of an earlier run, with another file
        _tokenizers.clear()
        _tokenizers[key] = choice.open()
    if _tokenizers[key].identity != identity:
        raise StaleSource(choice.spec, what="the tokenizer has changed")
    return _tokenizers[key]


# ---------------------------------------------------------------------------- shuffling


@dataclass(frozen=True, slots=True)
class ShuffledPiece:
    """A piece of the shuffled store: documents `start` to `stop` (exclusive) of the new order."""

    start: int
    stop: int
    num_bytes: int
    """Approximate size of their text."""
    key: str

    def describe(self) -> str:
        """Return which piece it is, for messages."""
        return f"the piece of shuffled documents {self.start} to {self.stop}"


def plan_shuffled_pieces(
    keys: Sequence[str], *, num_documents: int, text_bytes: int, piece_bytes: int, seed: int
) -> list[ShuffledPiece]:
    """Return the pieces of a shuffled store, each of about `piece_bytes`; `keys` are those of the unshuffled one."""
    num_pieces = max(1, min(num_documents, -(-text_bytes // piece_bytes)))
    whole = key_of(list(keys), num_documents, seed, num_pieces)
    pieces = []
    for number in range(num_pieces):
        start, stop = (num_documents * at // num_pieces for at in (number, number + 1))
        size = text_bytes * stop // num_documents - text_bytes * start // num_documents
        pieces.append(ShuffledPiece(start, stop, size, key_of(whole, number)))
    return pieces


class Shuffling:
    """Writes pieces of a shuffled store, in the order given by the seed."""

    def __init__(self, build: Build, *, source: Path, num_documents: int, seed: int) -> None:
        self._build, self._source, self._num_documents, self._seed = build, source, num_documents, seed
        self._store: tuple[int, Store] | None = None
        """The unshuffled store, with the id of the process that opened it."""

    def __call__(self, piece: ShuffledPiece, cell: Cell) -> dict[str, Any]:
        """Write the shards of a piece and return its notes."""
        if self._store is None or self._store[0] != os.getpid():  # once per process: blocks are verified once, too
            self._store = os.getpid(), open_store(self._source)
        store = self._store[1]
        order = permutation(self._num_documents, self._seed)
        num_values = sum(shard.values[COLUMN] for shard in store.manifest.shards)
        step = max(1, _READ_VALUES * self._num_documents // max(1, num_values))
        num_documents, num_tokens = piece.stop - piece.start, 0
        with self._build.piece(piece.key) as writer:
            for start in range(piece.start, piece.stop, step):
                stop = min(piece.stop, start + step)
                values, lengths = store.read_ragged(COLUMN, order.forward(np.arange(start, stop, dtype=np.int64)))
                writer.extend({COLUMN: (values, lengths)})
                num_tokens += len(values)
                done = stop - piece.start
                cell[:] = (done, num_tokens, piece.num_bytes * done // num_documents)
            writer.notes.update(documents=num_documents, tokens=num_tokens)
        return writer.notes
