"""The tokenizer of a preparation: chosen, compared on the inputs, opened in each process, or trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeVar

from stoker.prepare.documents import read_documents
from stoker.prepare.inputs import Paths, find_inputs
from stoker.prepare.pieces import Piece, cut_inputs
from stoker.prepare.report import PreparationProgress, Watch
from stoker.prepare.settings import Documents, OnError, TokenSettings
from stoker.prepare.skips import Skips
from stoker.prepare.worker_pool import Cell, WorkerPool
from stoker.transform.tokenizer import Identity, Tokenizer, open_tokenizer, train_bpe

J = TypeVar("J")

Backend = Literal["auto", "reference", "gigatoken"]

_NUM_SAMPLED = 8
"""Pieces from all over the input whose beginning is compared."""
_SAMPLE_BYTES = 128 << 10
"""Text from each of these pieces. The reference takes about thirty milliseconds for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """A tokenizer and the library to use."""

    spec: str
    end_of_document: str | int | None = None
    backend: Backend = "auto"
    pattern: str | None = None
    """Split pattern of a tiktoken file with an unknown name."""

    def open(self) -> Tokenizer:
        """Load it."""
        return open_tokenizer(
            self.spec, end_of_document=self.end_of_document, backend=self.backend, pattern=self.pattern
        )


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What is known about a tokenizer after it was opened."""

    identity: Identity
    backend: str
    fallback_reason: str | None


def library_versions(identity: Identity) -> dict[str, str]:
    """Return the version of the reference library by its name.

    Other libraries that make the same ids are not recorded: stores are equal whichever made them.
    """
    name = {"huggingface": "tokenizers"}.get(identity.kind, identity.kind)
    try:
        return {name: version(name)} if name != "bytes" else {}
    except PackageNotFoundError:
        return {}


def identify_tokenizer(choice: TokenizerChoice, *, in_child: bool) -> TokenizerFacts:
    """Open the tokenizer and return what is known about it.

    Use a child process if workers will be forked: libraries start threads, which do not survive a fork.
    """
    return _run(_identify, choice, in_child=in_child)


def compare_on_inputs(
    choice: TokenizerChoice, pieces: Sequence[Piece], settings: TokenSettings, *, in_child: bool
) -> tuple[TokenizerChoice, TokenizerFacts]:
    """Return the choice for all workers, after comparing the ids of gigatoken with the reference on some documents."""
    step = max(1, len(pieces) // _NUM_SAMPLED)
    facts = _run(_compare, (choice, pieces[::step][:_NUM_SAMPLED], settings), in_child=in_child)
    return choice if facts.backend == "gigatoken" else replace(choice, backend="reference"), facts


def _run(work: Callable[[J, Cell], TokenizerFacts], job: J, *, in_child: bool) -> TokenizerFacts:
    with WorkerPool(work, num_workers=int(in_child), describe=lambda _: "loading the tokenizer") as pool:
        [(_, facts)] = pool.results([job])
    return facts


def _identify(choice: TokenizerChoice, _: Cell) -> TokenizerFacts:
    tokenizer = choice.open()
    return TokenizerFacts(tokenizer.identity, tokenizer.backend, tokenizer.fallback_reason)


def _compare(job: tuple[TokenizerChoice, Sequence[Piece], TokenSettings], _: Cell) -> TokenizerFacts:
    choice, pieces, settings = job
    tokenizer = choice.open()
    if tokenizer.backend == "gigatoken":
        for piece in pieces:
            batch = next(read_documents(piece, settings, Skips(piece.inputs, raises=False)), None)
            size, texts = 0, []
            for text in batch.texts if batch is not None else ():
                texts.append(text[: _SAMPLE_BYTES - size])
                size += len(texts[-1])
                if size >= _SAMPLE_BYTES:
                    break
            tokenizer.check(texts)
    return TokenizerFacts(tokenizer.identity, tokenizer.backend, tokenizer.fallback_reason)


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
    """Train a byte-level BPE on the documents of the inputs, write it to `out` (a .json file), return its identity.

    Inputs and documents are as for `tokens`. The same documents give the same bytes. Nothing is downloaded.
    """
    settings = TokenSettings(text_column=text_column, documents=documents, on_error=on_error)
    pieces = list(cut_inputs(find_inputs(inputs), settings))
    return train_bpe(_texts(pieces, settings, watch), vocab_size=vocab_size, out=out, specials=specials)


def _texts(pieces: Sequence[Piece], settings: TokenSettings, watch: Watch | None) -> Iterator[str]:
    num_bytes, done, count = sum(piece.num_bytes for piece in pieces), 0, 0
    for piece in pieces:
        for batch in read_documents(piece, settings, Skips(piece.inputs, raises=settings.on_error == "raise")):
            yield from batch.texts
            count += len(batch.texts)
            if watch is not None:
                num_read = done + batch.num_read
                watch(PreparationProgress(stage="training", num_read=num_read, num_bytes=num_bytes, documents=count))
        done += piece.num_bytes
