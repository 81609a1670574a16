"""Build the worker processes of a loader. Imported only for loaders with workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.batch.result import BatchResult, EndOfStream
from stoker.engine.processes.engine import Processes
from stoker.engine.processes.worker import WorkerJob
from stoker.engine.processes.worker_requests import WorkerOptions
from stoker.engine.slots.batch_pickle import SMALL_BYTES
from stoker.engine.slots.ring import Ring
from stoker.foundation.finalizer import Finalizer
from stoker.loader.build_iteration import batch_builders
from stoker.loader.worker_builders import WorkerBuilders, WorkerInit
from stoker.plan import derived_key
from stoker.tuning.parallelism import Parallelism

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


def build_workers(
    loader: DataLoader[Any], setting: Parallelism, *, epoch: int, context: Any, is_page_locked: bool
) -> Processes[BatchResult | EndOfStream]:
    """Return a loader's worker processes: those that persist from the iteration before, or new ones."""
    if loader._ring is not None and loader._ring.is_foreign:
        loader._ring = loader._processes = None  # they are the parent's, and so are its slots
    if loader._processes is not None:
        return loader._processes
    is_delivered = loader._device is not None and loader._device.type == "cuda"
    if loader._ring is None:
        # a delivery sees to it that slots are not used again before their copies are complete
        loader._ring = Ring(_page_lock() if is_page_locked else None, is_watched=is_delivered)
        Finalizer(loader, loader._ring.close)
    options = WorkerOptions(
        num_workers=setting.num_workers,
        num_threads=setting.num_threads,
        prefetch_factor=setting.prefetch_factor,
        context=context,
        seed=derived_key(loader._schedule.seed, epoch) >> 1,
        timeout=loader.timeout,
        in_order=loader.in_order,
        is_assigned=loader._is_stream,
        # what goes to a device at once need not be kept apart from its batch
        small_bytes=0 if is_delivered else SMALL_BYTES,
        pins_small=is_page_locked,
        most_workers=0 if loader.auto is None else loader.auto.most_workers,
    )
    builders = WorkerBuilders(batch_builders(loader), loader._chosen_epoch)
    job = WorkerJob(builders, loader._schedule.dataset, WorkerInit(loader.worker_init_fn))
    workers: Processes[BatchResult | EndOfStream] = Processes(
        job, options, loader._ring, is_persistent=loader.persistent_workers, totals=loader.counters.worker_totals
    )
    if loader.persistent_workers:
        loader._processes = workers
    return workers


def _page_lock() -> Any:
    from stoker.deliver import CudaPageLock

    return CudaPageLock()
