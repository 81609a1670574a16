"""What to do about a sample that cannot be read, and the list of those that could not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stoker.errors import ArgumentError, TooManySkipped

KEPT = 10_000
"""Entries a ledger keeps: enough to look into a cause, bounded for a run of any length. The count goes on."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do about a sample that cannot be read.

    With `action="skip"` the sample is replaced by another one, chosen from (seed, epoch, position): the same one
    wherever and whenever the batch is made, so that shapes and steps stay equal on all ranks. Every such sample is
    listed in `DataLoader.ledger`. When more are bad than the limits allow, the loader raises `TooManySkipped`.
    """

    action: Literal["raise", "skip"] = "skip"
    max_skipped: int | None = None
    """Raise when more samples than this were skipped."""
    max_rate: float | None = 0.01
    """Raise when more than this part of the samples served were skipped..."""
    grace: int = 10
    """...but not before this many were."""

    def __post_init__(self) -> None:
        if self.action not in ("raise", "skip"):
            raise ArgumentError(f"on_error={self.action!r} is not known", hint="choose 'raise', 'skip' or Policy(...)")
        if self.max_skipped is not None and self.max_skipped < 0:
            raise ArgumentError(
                f"max_skipped={self.max_skipped} is negative", hint="give a count, or None for no limit"
            )
        if self.max_rate is not None and not 0 <= self.max_rate <= 1:
            raise ArgumentError(f"max_rate={self.max_rate} is not a rate", hint="give a number from 0 to 1, or None")

    @classmethod
    def named(cls, on_error: str | Policy) -> Policy:
        """Return the policy that a word or a value stands for."""
        return on_error if isinstance(on_error, Policy) else cls(action=on_error)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Skipped:
    """One sample that could not be read."""

    epoch: int
    step: int
    position: Any
    reason: str
    """The exception, in one line."""
    where: str | None = None
    """The file, if the dataset tells."""
    replaced_by: Any = None
    """The position of the sample that was served instead; None in a stream, which just goes on."""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"position {self.position}{where}, epoch {self.epoch}, step {self.step}: {self.reason}"


class Ledger:
    """The samples skipped so far, in the order of the stream; the last ten thousand are kept."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.num_skipped = 0
        self.num_served = 0
        self._entries: deque[Skipped] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Skipped]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return self.num_skipped

    def __repr__(self) -> str:
        return f"<Ledger: {self.num_skipped} skipped of {self.num_served} served>"

    def record(self, skipped: Iterable[Skipped]) -> None:
        """Add entries; raise if that is more than the policy allows."""
        for entry in skipped:
            self._entries.append(entry)
            self.num_skipped += 1
        limits = []
        if self.policy.max_skipped is not None and self.num_skipped > self.policy.max_skipped:
            limits.append(f"max_skipped={self.policy.max_skipped}")
        if (
            self.policy.max_rate is not None
            and self.num_skipped > self.policy.grace
            and self.num_skipped > self.policy.max_rate * self.num_served
        ):
            limits.append(f"max_rate={self.policy.max_rate}")
        if limits:
            raise TooManySkipped(
                skipped=self.num_skipped,
                served=self.num_served,
                limit=" and ".join(limits),
                recent=[str(entry) for entry in list(self._entries)[-5:]],
            )
