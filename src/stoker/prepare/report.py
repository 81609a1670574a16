"""What a preparation tells: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Stage = Literal["hashing", "tokenizing", "shuffling", "training", "pictures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage is."""

    stage: Stage
    num_read: int
    """Bytes of the inputs that are done."""
    num_bytes: int
    """Of them all, without what was done before."""
    documents: int = 0
    """Or pictures."""
    tokens: int = 0
    pieces_done: int = 0
    num_pieces: int = 0


Watch = Callable[[Progress], None]
"""Is told about ten times a second, in the thread that prepares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was prepared."""

    path: Path
    documents: int
    tokens: int
    text_bytes: int
    """Of all documents, in UTF-8."""
    skipped: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Why documents were skipped, and how many each time; `skipped.jsonl` says where."""
    dtype: str
    disk_bytes: int
    """Of all shards."""
    num_pieces: int
    num_made: int
    """Pieces that were made now; the others were there."""
    num_removed: int = 0
    """Pieces of the store that was there before which this one does not have."""
    made_bytes: int
    """Text in them."""
    seconds: float
    backend: str
    """Who made the ids; empty where none were made."""
    fallback_reason: str | None = None
    """Why gigatoken did not, though it might have."""
    is_up_to_date: bool = False
    """There was nothing to do at all: the store is as it was."""

    @property
    def num_reused(self) -> int:
        """Pieces that were there."""
        return max(0, self.num_pieces - self.num_made)
