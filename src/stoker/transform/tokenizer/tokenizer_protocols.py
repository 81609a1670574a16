"""Interface between tokenizers and their callers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.transform.tokenizer.identity import Identity

Encoded: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Concatenated ids of several texts, and the number of ids of each text."""


class Tokenizer(Protocol):
    """Encodes text to ids and decodes ids. Pickles as its path; not thread-safe."""

    @property
    def identity(self) -> Identity:
        """Identity of this tokenizer."""
        ...

    @property
    def backend(self) -> str:
        """The library in use: `tokenizers`, `tiktoken`, `sentencepiece`, `bytes` or `gigatoken`."""
        ...

    @property
    def fallback_reason(self) -> str | None:
        """The reason why gigatoken is not used although allowed; None if it is used, or was not allowed."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the concatenated ids of all texts, and the number of ids of each.

        No tokens are added, padded or truncated, and special tokens in the text are treated as ordinary text. The ids
        of a text do not depend on the other texts. A text that cannot be encoded raises a `DataError` that names it.
        """
        ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Return the text of `ids`, including special tokens; incomplete characters become U+FFFD."""
        ...

    def check(self, texts: Iterable[str]) -> None:
        """Compare the ids with the reference library's on these texts, if another library is in use.

        On a difference, fall back to the reference from now on (see `fallback_reason`), or raise a `DataError` if
        gigatoken was requested explicitly.
        """
        ...


class Library(Protocol):
    """One library with one tokenizer loaded: the interface that `Tokenizer` is built on."""

    @property
    def library(self) -> str:
        """The library's name."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def specials(self) -> dict[str, int]:
        """Ids of special tokens, which no text encodes to."""
        ...

    @property
    def marks(self) -> list[str]:
        """Texts that the library matches, or deliberately skips, before it splits text into words."""
        ...

    def find(self, token: str) -> int | None:
        """Return the id of the token with exactly this text, special or not, or None."""
        ...

    def usual_end(self) -> int | None:
        """Return the end-of-document or end-of-sequence id from the tokenizer's own settings, if any."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Like `Tokenizer.encode`, but errors of the library pass through."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Like `Tokenizer.decode`, but errors of the library pass through."""
        ...
