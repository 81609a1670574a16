"""The seam to whoever needs ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.transform.tokenizer.identity import Identity

Encoded: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""The ids of some texts one after the other, and how many belong to each text."""


class Tokenizer(Protocol):
    """Text to ids and back. Picklable, as its path; used by one thread at a time."""

    @property
    def identity(self) -> Identity:
        """Which tokenizer this is."""
        ...

    @property
    def backend(self) -> str:
        """Who makes the ids now: `tokenizers`, `tiktoken`, `sentencepiece`, `bytes` or `gigatoken`."""
        ...

    @property
    def fallback_reason(self) -> str | None:
        """Why gigatoken is not used although it was allowed; None where it is used, or was not allowed."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all texts one after the other, and the number of ids of each.

        Nothing is added, padded or cut off, and the text of a special token is text like any other. The ids of a text
        do not depend on the texts beside it. A text that cannot be encoded raises a `DataError` that says which.
        """
        ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Return the text of `ids`, special tokens included; a character that was cut becomes U+FFFD."""
        ...

    def check(self, texts: Iterable[str]) -> None:
        """Compare the ids that are made with the reference's on these texts, if another library makes them.

        A difference turns to the reference from here on (see `fallback_reason`), or is a `DataError` where gigatoken
        was asked for by name.
        """
        ...


class Library(Protocol):
    """One library with one tokenizer loaded: what a kind of tokenizer has to offer to become a `Tokenizer`."""

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
        """Tokens that no text turns into."""
        ...

    @property
    def marks(self) -> list[str]:
        """The texts that the library looks for, or takes care not to find, before it splits text into words."""
        ...

    def find(self, token: str) -> int | None:
        """Return the id of the token with this very text, special or not, or None."""
        ...

    def usual_end(self) -> int | None:
        """Return the id that the tokenizer's own settings name as the end of a document or sequence, if any does."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Tokenizer.encode`, except that it raises whatever the library raises."""
        ...

    def decode(self, ids: list[int]) -> str:
        """As `Tokenizer.decode`, except that it raises whatever the library raises."""
        ...
