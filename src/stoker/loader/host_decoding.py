"""Pictures that the device could not decode, read in the trainer's process instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.batch.ledger import Skipped
from stoker.loader.work import BatchResult, MapMaker


class HostDecodeFallback:
    """Reads samples as a worker would: what cannot be read here either is an error, or is replaced and noted."""

    def __init__(self, maker: MapMaker) -> None:
        self._maker = maker

    def read(self, made: BatchResult, position: Any, row: int) -> tuple[Any, list[Skipped]]:
        """Return a batch of the sample at `position` alone, and what is to go into the ledger."""
        skipped: list[Skipped] = []
        samples = self._maker.read(made.recipe, [position], skipped, row)
        return self._maker.finish(made.recipe, samples), skipped

    @staticmethod
    def noted(made: BatchResult, notes: Sequence[list[Skipped]]) -> BatchResult:
        """Return a batch with more for the ledger."""
        return made._replace(skipped=[*made.skipped, *(entry for skipped in notes for entry in skipped)])
