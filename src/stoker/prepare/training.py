"""A tokenizer out of the inputs it is for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from stoker.prepare.documents import documents as documents_of
from stoker.prepare.inputs import Paths, found
from stoker.prepare.pieces import Piece, cut
from stoker.prepare.report import Progress, Watch
from stoker.prepare.settings import Documents, OnError, Settings
from stoker.prepare.skips import Skips
from stoker.transform.tokenizer import Identity, train_bpe


def tokenizer(
    inputs: Paths,
    *,
    vocab_size: int,
    out: str | os.PathLike[str],
    text_column: str = "text",
    documents: Documents = "file",
    on_error: OnError = "raise",
    specials: Sequence[str] = ("<|endoftext|>",),
    watch: Watch | None = None,
) -> Identity:
    """Train a byte-level BPE on the documents of the inputs, write it to `out` (a .json file), and return what it is.

    Inputs and documents are as for `tokens`. The same documents give the same bytes. Nothing is downloaded.
    """
    settings = Settings(text_column=text_column, documents=documents, on_error=on_error)
    pieces = list(cut(found(inputs), settings))
    return train_bpe(_texts(pieces, settings, watch), vocab_size=vocab_size, out=out, specials=specials)


def _texts(pieces: Sequence[Piece], settings: Settings, watch: Watch | None) -> Iterator[str]:
    num_bytes, done, count = sum(piece.num_bytes for piece in pieces), 0, 0
    for piece in pieces:
        for batch in documents_of(piece, settings, Skips(piece.inputs, raises=settings.on_error == "raise")):
            yield from batch.texts
            count += len(batch.texts)
            if watch is not None:
                num_read = done + batch.num_read
                watch(Progress(stage="training", num_read=num_read, num_bytes=num_bytes, documents=count))
        done += piece.num_bytes
