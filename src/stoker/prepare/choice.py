"""Which tokenizer, opened by each process for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeVar

from stoker.prepare.documents import documents
from stoker.prepare.pieces import Piece
from stoker.prepare.settings import Settings
from stoker.prepare.skips import Skips
from stoker.prepare.worker_pool import Cell, WorkerPool
from stoker.transform.tokenizer import Identity, Tokenizer, open_tokenizer

J = TypeVar("J")

Backend = Literal["auto", "reference", "gigatoken"]

_NUM_SAMPLED = 8
_SAMPLE_BYTES = 128 << 10
"""Of text from each of the pieces that are looked into. The reference takes some thirty milliseconds for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A tokenizer by its name, and who makes its ids."""

    spec: str
    end_of_document: str | int | None = None
    backend: Backend = "auto"
    pattern: str | None = None
    """How a tiktoken file's tokenizer splits text, where its name does not tell."""

    def opened(self) -> Tokenizer:
        """Load it."""
        return open_tokenizer(
            self.spec, end_of_document=self.end_of_document, backend=self.backend, pattern=self.pattern
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a tokenizer once it was opened."""

    identity: Identity
    backend: str
    fallback_reason: str | None


def library_versions(identity: Identity) -> dict[str, str]:
    """Return the version of the library whose ids these are, by its name.

    Others that make the same ids are not told of: stores are equal whoever made them.
    """
    name = {"huggingface": "tokenizers"}.get(identity.kind, identity.kind)
    try:
        return {name: version(name)} if name != "bytes" else {}
    except PackageNotFoundError:
        return {}


def inspected(choice: Choice, *, is_away: bool) -> Findings:
    """Return which tokenizer it is.

    With `is_away` a child process looks: libraries start threads that would not survive the forks of workers.
    """
    return _asked(_identify, choice, is_away=is_away)


def settled(choice: Choice, pieces: Sequence[Piece], settings: Settings, *, is_away: bool) -> tuple[Choice, Findings]:
    """Return the choice that all workers make alike, after some of the documents were looked at.

    Where another library than the reference makes the ids, they are compared on documents from all over the input.
    """
    step = max(1, len(pieces) // _NUM_SAMPLED)
    findings = _asked(_compare, (choice, pieces[::step][:_NUM_SAMPLED], settings), is_away=is_away)
    return choice if findings.backend == "gigatoken" else replace(choice, backend="reference"), findings


def _asked(work: Callable[[J, Cell], Findings], job: J, *, is_away: bool) -> Findings:
    with WorkerPool(work, num_workers=int(is_away), described=_described) as crew:
        [(_, findings)] = crew.results([job])
    return findings


def _described(_: object) -> str:
    return "loading the tokenizer"


def _identify(choice: Choice, _: Cell) -> Findings:
    tokenizer = choice.opened()
    return Findings(tokenizer.identity, tokenizer.backend, tokenizer.fallback_reason)


def _compare(job: tuple[Choice, Sequence[Piece], Settings], _: Cell) -> Findings:
    choice, pieces, settings = job
    tokenizer = choice.opened()
    if tokenizer.backend == "gigatoken":
        for piece in pieces:
            for batch in documents(piece, settings, Skips(piece.inputs, raises=False)):
                size, texts = 0, []
                for text in batch.texts:
                    texts.append(text[: _SAMPLE_BYTES - size])
                    size += len(texts[-1])
                    if size >= _SAMPLE_BYTES:
                        break
                tokenizer.check(texts)
                break
    return Findings(tokenizer.identity, tokenizer.backend, tokenizer.fallback_reason)
