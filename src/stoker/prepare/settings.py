"""Settings of a preparation of tokens, and the size of pieces."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from stoker.errors import ArgumentError

Documents = Literal["file", "line", "paragraph"]
OnError = Literal["raise", "skip"]

CODE = "2"
"""Version of the code that turns inputs into shards. Raised whenever the same input would give other bytes."""

_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 4 << 20, 64 << 20
_NUM_PIECES = 64
"""Minimum number of pieces, so that workers end at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Everything that determines a store of tokens, except the inputs and the tokenizer."""

    text_column: str = "text"
    """Column, or field of a JSON object, that contains the text; dots separate the names of nested ones."""
    documents: Documents = "file"
    """What one document of plain text is."""
    end_of_document: bool = True
    """Whether a token ends each document."""
    shuffle: int | None = None
    """Seed of the order of documents; None keeps the order of the inputs."""
    on_error: OnError = "raise"
    piece_bytes: int = _MAX_PIECE_BYTES
    """Approximate size of the inputs of one piece."""

    def __post_init__(self) -> None:
        check_choice("documents", self.documents, get_args(Documents))
        check_choice("on_error", self.on_error, get_args(OnError))
        check_piece_bytes(self.piece_bytes)
        if not self.text_column or not all(self.text_column.split(".")):
            raise ArgumentError(
                f"text_column must be a name, got {self.text_column!r}", hint="pass for instance 'text' or 'data.text'"
            )
        if self.shuffle is not None and not 0 <= self.shuffle < 1 << 64:
            raise ArgumentError(f"shuffle must be a seed, got {self.shuffle}", hint="pass a number from 0 to 2**64 - 1")

    def to_meta(self) -> dict[str, Any]:
        """Return the settings as kept in the manifest."""
        return asdict(self)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `ArgumentError` unless the value is one of the choices."""
    if value not in choices:
        raise ArgumentError(f"unknown {name}={value!r}", hint=f"choose one of {', '.join(choices)}")


def check_piece_bytes(piece_bytes: int) -> None:
    """Raise `ArgumentError` unless this can be the size of pieces."""
    if piece_bytes < 1:
        raise ArgumentError(f"piece_bytes must be positive, got {piece_bytes}", hint="pass a size, such as 64 << 20")


def choose_piece_bytes(num_bytes: int) -> int:
    """Return the default size of pieces for inputs of this size: a power of two that gives some dozens of pieces.

    It depends only on the inputs, not on the machine, so that the same inputs give the same shards everywhere.
    """
    share = num_bytes // _NUM_PIECES
    return max(_MIN_PIECE_BYTES, min(_MAX_PIECE_BYTES, 1 << max(0, share - 1).bit_length()))
