"""What a preparation was asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from stoker.errors import ArgumentError
from stoker.prepare.inputs import Input

Documents = Literal["file", "line", "paragraph"]
OnError = Literal["raise", "skip"]

CODE = "2"
"""The version of what turns inputs into shards. It is raised whenever the same input would give other bytes."""

_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 4 << 20, 64 << 20
_NUM_PIECES = 64
"""How many pieces there should be at least, so that workers end at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that decides what is in the store, but for the inputs and the tokenizer."""

    text_column: str = "text"
    """The column, or the field of a JSON object, that holds the text; dots lead into nested ones."""
    documents: Documents = "file"
    """What one document of a plain text is."""
    end_of_document: bool = True
    """A token ends each document."""
    shuffle: int | None = None
    """The seed of the order of documents; None keeps that of the inputs."""
    on_error: OnError = "raise"
    piece_bytes: int = _MAX_PIECE_BYTES
    """About how much of the inputs becomes one piece."""

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("documents", self.documents, get_args(Documents)),
            ("on_error", self.on_error, get_args(OnError)),
        ):
            if value not in choices:
                raise ArgumentError(f"{name}={value!r} is not known", hint=f"pass one of {', '.join(choices)}")
        if not self.text_column or not all(self.text_column.split(".")):
            raise ArgumentError(f"text_column={self.text_column!r} names nothing", hint="pass a name, such as 'text'")
        if self.piece_bytes < 1:
            raise ArgumentError(f"piece_bytes={self.piece_bytes} is not positive", hint="pass a size, such as 64 << 20")
        if self.shuffle is not None and not 0 <= self.shuffle < 1 << 64:
            raise ArgumentError(f"shuffle={self.shuffle} is no seed", hint="pass a number from 0 to 2**64 - 1")

    def to_meta(self) -> dict[str, Any]:
        """Return what a manifest keeps of it."""
        return asdict(self)


def fitting_piece_bytes(inputs: Sequence[Input]) -> int:
    """Return how large pieces are where nobody says so: a power of two that gives some dozens of pieces.

    It depends on the inputs' sizes alone, never on the machine: whoever prepares the same inputs gets the same shards.
    """
    share = sum(entry.num_bytes for entry in inputs) // _NUM_PIECES
    return max(_MIN_PIECE_BYTES, min(_MAX_PIECE_BYTES, 1 << max(0, share - 1).bit_length()))
