"""Build the delivery of a loader's batches to their device. Imported only for loaders with `device=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stoker.batch.builder import Builders, MapBuilders
from stoker.batch.ledger import Skipped
from stoker.batch.result import BatchResult, EndOfStream
from stoker.deliver import Delivery, NvJpeg
from stoker.engine.engine_protocols import Engine
from stoker.loader.build_iteration import batch_builders

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def build_delivery(
    loader: DataLoader[Any], device: torch.device, engine: Engine[BatchResult | EndOfStream]
) -> Engine[BatchResult | EndOfStream]:
    """Return an engine whose batches are on the device, decoded, widened and normalized as the arguments say."""
    fallback: Any = None if loader._decode == "cpu" else HostDecodeFallback(batch_builders(loader))
    return Delivery(
        engine,
        device,
        depth=loader.prefetch_factor or 1,
        widen=loader._widening,
        of=_batch_of,
        replaced=_with_batch,
        on_rest=None if loader._ring is None else loader._ring.unwatch,
        decoder=None if loader._decode == "cpu" else NvJpeg,
        rescue=fallback,
        split=loader.split,
        counter=loader.counters.copies,
    )


def _batch_of(made: BatchResult | EndOfStream) -> Any:
    return made.batch if isinstance(made, BatchResult) else None


def _with_batch(made: BatchResult | EndOfStream, batch: Any) -> BatchResult | EndOfStream:
    return made._replace(batch=batch) if isinstance(made, BatchResult) else made


class HostDecodeFallback:
    """Reads images that the device could not decode in the trainer's process, as a worker would.

    What cannot be read here either is an error, or is replaced and noted.
    """

    def __init__(self, builders: Builders[Any]) -> None:
        assert isinstance(builders, MapBuilders)
        self._builders = builders

    def read(self, made: BatchResult, position: Any, row: int) -> tuple[Any, list[Skipped]]:
        """Return a batch of the sample at `position` alone, and what is to go into the ledger."""
        skipped: list[Skipped] = []
        samples = self._builders.read(made.recipe, [position], skipped, row)
        return self._builders.collation.collate(made.recipe, samples), skipped

    @staticmethod
    def noted(made: BatchResult, notes: Sequence[list[Skipped]]) -> BatchResult:
        """Return a batch with more for the ledger."""
        return made._replace(skipped=[*made.skipped, *(entry for skipped in notes for entry in skipped)])
