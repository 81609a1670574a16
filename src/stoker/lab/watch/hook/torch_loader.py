"""Watch torch's loader: when batches are requested and delivered, which worker loads them, and how long that takes.

torchdata's `StatefulDataLoader` derives from it and overrides what is watched here, so it is watched in the same way.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, thread_time
from typing import Any

from stoker.lab.watch.hook import device_copies, recording, watched_iteration
from stoker.lab.watch.hook.patches import Patches
from stoker.lab.watch.hook.recording import Recording, giving_up_on_errors
from stoker.lab.watch.hook.watched_iteration import WatchedIteration, WatchedWorkerInit

ITERATION, DELIVERIES = "_stoker_iteration", "_stoker_deliveries"
RECORDED_ARGUMENTS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "in_order",
    "drop_last",
    "timeout",
)


def install(patches: Patches, torch_data: Any) -> None:
    """Watch all loaders of `torch.utils.data` in this process."""
    module, fetch = torch_data.dataloader, torch_data._utils.fetch
    patches.wrap(fetch._BaseDatasetFetcher, "__init__", lambda original: _numbered_fetcher(original, patches))
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        patches.wrap(kind, "fetch", _timed_fetch)
    patches.wrap(module.DataLoader, "__init__", _timed_init)
    patches.wrap(module.DataLoader, "__iter__", lambda original: _watched_iter(original, patches))
    patches.wrap(module._BaseDataLoaderIter, "__next__", _watched_next)
    patches.wrap(module._BaseDataLoaderIter, "_reset", _watched_reset)
    patches.wrap(module._MultiProcessingDataLoaderIter, "_process_data", _noted_worker)


def install_stateful(patches: Patches, module: Any) -> None:
    """Watch torchdata's loaders, too, once torch's are."""
    patches.wrap(module.StatefulDataLoader, "__init__", _timed_init)
    patches.wrap(module.StatefulDataLoader, "__iter__", lambda original: _watched_iter(original, patches))
    patches.wrap(module._StatefulMultiProcessingDataLoaderIter, "_process_data", _noted_worker)


# -------------------------------------------------------------------- in the trainer


class _WorkerDeliveries:
    """Which worker delivered which batch: each worker delivers its batches in the order in which it loaded them."""

    def __init__(self) -> None:
        self.turn = 0
        """Iterations that the workers have finished: persistent workers have a fetcher for each."""
        self.latest: tuple[int, int] | None = None
        """The worker that delivered the latest batch, and which of its batches it was."""
        self._num_by_worker: dict[int, int] = {}

    def begin_again(self) -> None:
        """Note that persistent workers begin another iteration."""
        self.turn += 1
        self._num_by_worker.clear()

    def add(self, worker: int) -> None:
        """Note which worker delivered a batch."""
        ordinal = self._num_by_worker.get(worker, 0)
        self._num_by_worker[worker] = ordinal + 1
        self.latest = worker, ordinal

    def last(self, expected: int) -> tuple[int, int] | None:
        """Return the latest delivery; if none was noted, that of the expected worker, which may be -1 for unknown."""
        if self.latest is None and expected >= 0:
            self.add(expected)
        return self.latest


def config_of(loader: Any) -> dict[str, Any]:
    """Return the arguments of torch's loader as plain values."""
    config = {name: _plain(getattr(loader, name, None)) for name in RECORDED_ARGUMENTS}
    context, sampler = getattr(loader, "multiprocessing_context", None), getattr(loader, "sampler", None)
    kind = type(sampler).__name__
    is_iterable = getattr(loader, "_dataset_kind", 0) == 1
    shuffles = kind == "RandomSampler" or bool(getattr(sampler, "shuffle", False))
    orders = {"SequentialSampler": "sequential", "_InfiniteConstantSampler": "stream"}
    if config["batch_size"] is None:
        config["batch_size"] = _plain(getattr(getattr(loader, "batch_sampler", None), "batch_size", None))
    start_method = None
    if config["num_workers"] and context is not None:
        start_method = context.get_start_method()
    elif config["num_workers"]:
        import multiprocessing

        start_method = multiprocessing.get_start_method(allow_none=True) or "fork"
    return config | {
        "start_method": start_method,
        "num_threads": 0,
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        "order": "stream" if is_iterable else "shuffle" if shuffles else orders.get(kind, "own"),
        "is_iterable": is_iterable,
        "worker_init_fn": getattr(loader, "worker_init_fn", None) is not None,
        "collate_fn": getattr(getattr(loader, "collate_fn", None), "__qualname__", None),
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _timed_init(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        began = perf_counter()
        original(self, *args, **named)
        with giving_up_on_errors:
            watched_iteration.note_made(self, perf_counter() - began)

    return __init__


def _watched_iter(original: Any, patches: Patches) -> Any:
    is_first = True

    def __iter__(self: Any) -> Any:  # noqa: N807
        nonlocal is_first
        now = recording.current
        if now is None:
            return original(self)
        try:
            if is_first:  # only now is torch certain to be imported completely
                is_first = False
                _install_pickler(patches)
                device_copies.install(patches, sys.modules["torch"])
            config = config_of(self)
            iteration = watched_iteration.begin(now, self, kind="torch", config=config)
        except Exception:
            recording.give_up()
            return original(self)
        began = perf_counter()
        with _watched_workers(self, now, iteration.loader, config):
            iterator = original(self)
        iteration.setup_seconds = perf_counter() - began
        iteration.note_inside(began)
        iterator.__dict__[ITERATION] = iteration
        return iterator

    return __iter__


@contextmanager
def _watched_workers(loader: Any, now: Recording, number: int, config: dict[str, Any]) -> Iterator[None]:
    """Let workers started in this block be watched, if neither a fork nor a doctor's environment sees to that."""
    if config["start_method"] in (None, "fork") or os.environ.get("STOKER_DOCTOR") == now.folder:
        yield
        return
    then = loader.worker_init_fn
    loader.worker_init_fn = WatchedWorkerInit(now.folder, number, then, is_ours=False)
    try:
        yield
    finally:
        loader.worker_init_fn = then


def _watched_reset(original: Any) -> Any:
    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **named: Any) -> Any:
        if not first_iter:
            _deliveries_of(self).begin_again()
        return original(self, loader, first_iter, *args, **named)

    return _reset


def _watched_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        iteration: WatchedIteration | None = self.__dict__.get(ITERATION)
        if iteration is None or recording.current is not iteration.now:
            return original(self)
        try:
            began = perf_counter()
            iteration.ask()
            expected = _expected_worker(self)
            deliveries = _deliveries_of(self)
            deliveries.latest = None
        except Exception:
            recording.give_up()
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            iteration.note_inside(began)
            with giving_up_on_errors:
                iteration.end()
            raise
        except BaseException:
            iteration.now.here.is_asking = False
            raise
        with giving_up_on_errors:
            if not self._num_workers:
                iteration.pid = iteration.now.process
                iteration.turn, iteration.ordinal = iteration.now.here.last_work
            else:
                latest = deliveries.last(expected)
                if latest is not None:
                    iteration.worker, iteration.ordinal = latest
                    iteration.turn, iteration.pid = deliveries.turn, self._workers[iteration.worker].pid or 0
            iteration.hand(batch)
            iteration.note_inside(began)
        return batch

    return __next__


def _noted_worker(original: Any) -> Any:
    def _process_data(self: Any, data: Any, *args: Any) -> Any:
        batch = original(self, data, *args)  # raises what a worker has raised
        if args:  # older versions of torch do not pass the worker
            _deliveries_of(self).add(args[0])
        return batch

    return _process_data


def _deliveries_of(iterator: Any) -> _WorkerDeliveries:
    deliveries: _WorkerDeliveries | None = iterator.__dict__.get(DELIVERIES)
    if deliveries is None:
        deliveries = iterator.__dict__[DELIVERIES] = _WorkerDeliveries()
    return deliveries


def _expected_worker(iterator: Any) -> int:
    """Return the worker whose batch comes next; -1 if that is unknown."""
    tasks = iterator.__dict__.get("_task_info")
    task = None if tasks is None else tasks.get(iterator._rcvd_idx)
    return task[0] if task else -1


# -------------------------------------------------------------------- where batches are loaded: workers, or the trainer


class CollateTimer:
    """Takes the place of a fetcher's `collate_fn`, and notes when it is called: reading ends there."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self.collate_fn = collate_fn
        self.began = self.cpu_began = 0.0
        self.num_samples = 0

    def __call__(self, data: Any) -> Any:
        """Collate."""
        self.num_samples = len(data) if isinstance(data, list) else 1
        self.began, self.cpu_began = perf_counter(), thread_time()
        return self.collate_fn(data)


def _numbered_fetcher(original: Any, patches: Patches) -> Any:
    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        original(self, *args, **named)
        now = recording.current
        if now is not None:
            with giving_up_on_errors:
                self._stoker_turn, self._stoker_ordinal = next(now.turns), 0
                _note_worker(now, patches)

    return __init__


def _timed_fetch(original: Any) -> Any:
    def fetch(self: Any, *args: Any, **named: Any) -> Any:
        now = recording.current
        turn = getattr(self, "_stoker_turn", None)
        if now is None or turn is None:
            return original(self, *args, **named)
        try:
            collate = self.collate_fn
            if type(collate) is not CollateTimer:
                collate = self.collate_fn = CollateTimer(collate)
                now.probe.start()
            collate.began = 0.0
            is_begun = now.begin_work()
            began, cpu, delay = perf_counter(), thread_time(), now.times()[1]
        except Exception:
            recording.give_up()
            return original(self, *args, **named)
        try:
            batch = original(self, *args, **named)
        finally:
            if is_begun:
                now.end_work()
        with giving_up_on_errors:
            _note_work(now, self, collate, began, cpu, delay)
        return batch

    return fetch


def _note_work(now: Recording, fetcher: Any, collate: CollateTimer, began: float, cpu: float, delay: float) -> None:
    made, cpu_made = perf_counter(), thread_time()
    collating = collate.began or made
    cpu_collating = collate.cpu_began if collate.began else cpu_made
    turn, ordinal = fetcher._stoker_turn, fetcher._stoker_ordinal
    fetcher._stoker_ordinal = ordinal + 1
    now.here.last_work = turn, ordinal
    is_sent = "worker" in now.worker_note
    serial = now.add_worker_row(
        turn,
        ordinal,
        began,
        made,
        0.0 if is_sent else made,
        collating - began,
        cpu_collating - cpu,
        made - collating,
        cpu_made - cpu_collating,
        now.times()[1] - delay,
        collate.num_samples,
        *now.used(),
    )
    if is_sent:
        unsent.append(serial)


def _note_worker(now: Recording, patches: Patches) -> None:
    """If this is a worker, note which one, and from now on whether the dataset asks which one it is."""
    import torch.utils.data._utils.worker as torch_worker

    info: Any = torch_worker._worker_info
    if info is None:
        return
    if now.worker_note.get("worker") is None:
        unsent.clear()
        _install_pickler(patches)
        now.write_worker_note(worker=info.id, looked=False)
    torch_worker._worker_info = _noting_access(info, now)


def _noting_access(info: Any, now: Recording) -> Any:
    """Return torch's `WorkerInfo` as it is, except that reading its attributes is noted."""
    kind: Any = type(info)
    if getattr(kind, "_stoker_looks", False):
        return info
    names = getattr(kind, "__dataclass_fields__", None) or vars(info)

    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        if not name.startswith("_") and not now.worker_note.get("looked"):
            with giving_up_on_errors:
                now.write_worker_note(looked=True)
        return kind.__getattribute__(self, name)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        # pickled as torch's own class, which others know; the newer protocols insist on the actual class
        return _with_class(kind, self, names).__reduce_ex__(min(protocol, 1))

    methods = {"__getattribute__": __getattribute__, "__reduce_ex__": __reduce_ex__}
    names_of_kind = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    noting: Any = type(kind.__name__, (kind,), {**methods, **names_of_kind, "_stoker_looks": True})
    return _with_class(noting, info, names)


def _with_class(kind: Any, info: Any, names: Any) -> Any:
    copied: Any = object.__new__(kind)
    for name in names:
        object.__setattr__(copied, name, getattr(info, name))
    return copied


# -------------------------------------------------------------------- on the way from workers to the trainer

unsent: deque[int] = deque()
"""The rows of batches that this worker has loaded and not yet pickled."""


def _install_pickler(patches: Patches) -> None:
    """Time the pickling in multiprocessing's queues, through which torch's batches travel."""
    import multiprocessing.queues as queues

    if not getattr(queues._ForkingPickler, "_stoker_times", False):  # type: ignore[attr-defined]
        patches.wrap(queues, "_ForkingPickler", _timed_pickler)


def note_pickled(message: Any) -> None:
    """Note that a message has been pickled in this process: perhaps a batch, on its way to the trainer."""
    now = recording.current
    if now is None or not unsent or not (type(message) is tuple and len(message) == 2 and type(message[0]) is int):
        return
    made = message[1]
    if type(made) is tuple and made:  # torchdata's workers send their number and state behind the batch
        made = made[0]
    if type(made).__name__ not in ("ExceptionWrapper", "_IterableDatasetStopIteration"):
        now.put_sent(unsent.popleft(), perf_counter())


def _timed_pickler(original: Any) -> Any:
    original_loads = original.loads

    class TimedPickler(original):  # type: ignore[misc]
        _stoker_times = True

        @classmethod
        def dumps(cls, message: Any, protocol: Any = None) -> Any:
            content = original.dumps(message, protocol)
            with giving_up_on_errors:
                note_pickled(message)
            return content

        @staticmethod
        def loads(content: Any, /, **named: Any) -> Any:
            now = recording.current
            if now is None or not now.here.is_asking:
                return original_loads(content, **named)
            began = perf_counter()
            message = original_loads(content, **named)
            now.here.unpack_seconds += perf_counter() - began
            return message

    return TimedPickler
