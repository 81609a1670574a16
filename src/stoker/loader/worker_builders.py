"""What a worker process runs: builders that take requests off the wire and encode their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.batch import stack_plainly
from stoker.batch.builder import Builders, MapBuilders
from stoker.batch.result import BatchResult, EndOfStream, encode_result
from stoker.engine.engine_protocols import BatchBuilder
from stoker.engine.slots.slot_writer import SlotWriter
from stoker.loader.requests import decode_recipe
from stoker.loader.sample_costs import CostRequest, SampleCostBuilder
from stoker.source.protocols import set_epoch


class WorkerInit:
    """Called first in a worker process: sets it up, and lets the user do so."""

    def __init__(self, worker_init_fn: Callable[[int], Any] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        """Set the process up, and call the user's function."""
        stack_plainly()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class WorkerBuilders:
    """The builders of a worker process. A request is the epoch that the user has set, and what is to be built.

    The epoch is forwarded to the dataset before anything is read in it.
    """

    def __init__(self, builders: Builders[Any], chosen_epoch: int | None) -> None:
        self._builders, self._chosen_epoch = builders, chosen_epoch

    def builder(self, content: tuple[int | None, Any], slot: SlotWriter) -> BatchBuilder[Any]:
        """Return the builder of a batch, or of a measurement of what samples cost."""
        recipe, hint = self._received(content)
        if isinstance(recipe, CostRequest):
            return self._cost_builder(recipe)
        builder: BatchBuilder[Any] = self._builders.builder(recipe, slot, hint)
        return builder

    def build(self, content: tuple[int | None, Any], slot: SlotWriter) -> Any:
        """Return what a request asks for, built by the main thread alone."""
        recipe, hint = self._received(content)
        if isinstance(recipe, CostRequest):
            return self._cost_builder(recipe).finish()
        return self._builders.build(recipe, slot, hint)

    @staticmethod
    def encode(result: Any) -> Any:
        """Return a result in the form in which it is sent to the trainer's process."""
        return encode_result(result) if isinstance(result, BatchResult | EndOfStream) else result

    def close(self, *, at_exit: bool = False) -> None:
        """Let go of what is being read."""
        self._builders.close(at_exit=at_exit)

    def _received(self, content: tuple[int | None, Any]) -> tuple[Any, Any]:
        epoch, item = content
        if epoch is not None and epoch != self._chosen_epoch:
            self._chosen_epoch = epoch
            set_epoch(self._builders.dataset, epoch)
        return decode_recipe(item) if type(item) is tuple else (item, None)

    def _cost_builder(self, request: CostRequest) -> SampleCostBuilder:
        assert isinstance(self._builders, MapBuilders)
        return SampleCostBuilder(self._builders, request)
