"""How torch's loader is iterated over: when batches are asked for and handed over, and who made them.

torchdata's `StatefulDataLoader` derives from it, and does anew what is watched here; so it is watched in the same way.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, thread_time
from typing import Any

from stoker.lab.watch.hook import device_copies, recording
from stoker.lab.watch.hook import watched_iteration as courses
from stoker.lab.watch.hook.patches import Patches

COURSE, TALLY = "_stoker_course", "_stoker_tally"
_NAMES = (
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
    """Watch every loader of `torch.utils.data` in this process."""
    module = torch_data.dataloader
    patches.wrap(module.DataLoader, "__init__", _made)
    patches.wrap(module.DataLoader, "__iter__", lambda original: _iterated(original, patches))
    patches.wrap(module._BaseDataLoaderIter, "__next__", _handed)
    patches.wrap(module._BaseDataLoaderIter, "_reset", _begun_again)
    patches.wrap(module._MultiProcessingDataLoaderIter, "_process_data", _processed)


def install_stateful(patches: Patches, module: Any) -> None:
    """Watch every loader of torchdata's, too, once torch's are."""
    patches.wrap(module.StatefulDataLoader, "__init__", _made)
    patches.wrap(module.StatefulDataLoader, "__iter__", lambda original: _iterated(original, patches))
    patches.wrap(module._StatefulMultiProcessingDataLoaderIter, "_process_data", _processed)


class _Tally:
    """What the workers of an iterator have given: each gives its batches in the order in which it made them."""

    def __init__(self) -> None:
        self.turn = 0
        """Iterations that they have done before: workers that stay have a fetcher for each."""
        self.latest: tuple[int, int] | None = None
        """Who gave the latest batch, and which one of this worker's it was."""
        self._num_by_worker: dict[int, int] = {}

    def begin_again(self) -> None:
        """Workers that stay begin another iteration."""
        self.turn += 1
        self._num_by_worker.clear()

    def note(self, worker: int) -> None:
        """Note who has given a batch."""
        ordinal = self._num_by_worker.get(worker, 0)
        self._num_by_worker[worker] = ordinal + 1
        self.latest = worker, ordinal


def config_of(loader: Any) -> dict[str, Any]:
    """Return the arguments of torch's loader as plain values."""
    told = {name: _plain(getattr(loader, name, None)) for name in _NAMES}
    context = getattr(loader, "multiprocessing_context", None)
    sampler = type(getattr(loader, "sampler", None)).__name__
    is_iterable = getattr(loader, "_dataset_kind", 0) == 1
    shuffles = sampler == "RandomSampler" or bool(getattr(getattr(loader, "sampler", None), "shuffle", False))
    orders = {"SequentialSampler": "sequential", "_InfiniteConstantSampler": "stream"}
    if told["batch_size"] is None:
        told["batch_size"] = _plain(getattr(getattr(loader, "batch_sampler", None), "batch_size", None))
    if not told["num_workers"]:
        told["start_method"] = None
    elif context is not None:
        told["start_method"] = context.get_start_method()
    else:
        import multiprocessing

        told["start_method"] = multiprocessing.get_start_method(allow_none=True) or "fork"
    return told | {
        "num_threads": 0,
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        "order": "stream" if is_iterable else "shuffle" if shuffles else orders.get(sampler, "own"),
        "is_iterable": is_iterable,
        "worker_init_fn": getattr(loader, "worker_init_fn", None) is not None,
        "collate_fn": getattr(getattr(loader, "collate_fn", None), "__qualname__", None),
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _made(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        began = perf_counter()
        original(self, *args, **named)
        try:
            courses.note_made(self, perf_counter() - began)
        except Exception:
            recording.give_up()

    return __init__


def _iterated(original: Any, patches: Patches) -> Any:
    is_first = True

    def __iter__(self: Any) -> Any:  # noqa: N807
        nonlocal is_first
        now = recording.current
        if now is None:
            return original(self)
        try:
            if is_first:  # only now torch is sure to be imported as a whole
                is_first = False
                install_pickler(patches)
                device_copies.install(patches, sys.modules["torch"])
            config = config_of(self)
            course = courses.begun(now, self, kind="torch", config=config)
        except Exception:
            recording.give_up()
            return original(self)
        began = perf_counter()
        with _opened(self, now, course.loader, config):
            iterator = original(self)
        course.setup_seconds = perf_counter() - began
        courses.note_inside(course, began)
        iterator.__dict__[COURSE] = course
        return iterator

    return __iter__


@contextmanager
def _opened(loader: Any, now: recording.Recording, number: int, config: dict[str, Any]) -> Iterator[None]:
    """Let workers that are started meanwhile be watched, if neither a fork nor a doctor's environment does."""
    if config["start_method"] in (None, "fork") or os.environ.get("STOKER_DOCTOR") == now.folder:
        yield
        return
    then = loader.worker_init_fn
    loader.worker_init_fn = courses.WatchedWorkerInit(now.folder, number, then, is_ours=False)
    try:
        yield
    finally:
        loader.worker_init_fn = then


def _begun_again(original: Any) -> Any:
    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **named: Any) -> Any:
        if not first_iter:
            _tally_of(self).begin_again()
        return original(self, loader, first_iter, *args, **named)

    return _reset


def _handed(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        course: courses.WatchedIteration | None = self.__dict__.get(COURSE)
        if course is None or recording.current is not course.now:
            return original(self)
        try:
            began = perf_counter()
            course.ask()
            awaited = _awaited(self)
            tally = _tally_of(self)
            tally.latest = None
        except Exception:
            recording.give_up()
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            courses.note_inside(course, began)
            _quietly(courses.ended, course)
            raise
        except BaseException:
            course.now.here.is_asking = False
            raise
        try:
            if not self._num_workers:
                course.pid = course.now.process
                course.turn, course.ordinal = course.now.here.last_work
            else:
                if tally.latest is None and awaited >= 0:
                    tally.note(awaited)
                _note_maker(self, course, tally)
            course.hand(batch)
            courses.note_inside(course, began)
        except Exception:
            recording.give_up()
        return batch

    return __next__


def _processed(original: Any) -> Any:
    def _process_data(self: Any, data: Any, *args: Any) -> Any:
        batch = original(self, data, *args)  # raises what a worker has raised
        if args:  # torch did not always tell who made it
            _tally_of(self).note(args[0])
        return batch

    return _process_data


def _tally_of(iterator: Any) -> _Tally:
    tally: _Tally | None = iterator.__dict__.get(TALLY)
    if tally is None:
        tally = iterator.__dict__[TALLY] = _Tally()
    return tally


def _awaited(iterator: Any) -> int:
    """Return the worker whose batch comes next; -1 if that is not known."""
    tasks = iterator.__dict__.get("_task_info")
    task = None if tasks is None else tasks.get(iterator._rcvd_idx)
    return task[0] if task else -1


def _note_maker(iterator: Any, course: courses.WatchedIteration, tally: _Tally) -> None:
    """Note who made the batch that is handed over, if that is known."""
    if tally.latest is not None:
        course.worker, course.ordinal = tally.latest
        course.turn, course.pid = tally.turn, iterator._workers[course.worker].pid or 0


def _quietly(do: Any, *args: Any) -> None:
    try:
        do(*args)
    except Exception:
        recording.give_up()


# -------------------------------------------------------------------- how batches are made


class Stopwatch:
    """Stands before a fetcher's `collate_fn`, and notes when it is called."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self.collate_fn = collate_fn
        self.began = self.cpu_began = 0.0
        self.num_samples = 0

    def __call__(self, data: Any) -> Any:
        """Collate."""
        self.num_samples = len(data) if isinstance(data, list) else 1
        self.began, self.cpu_began = perf_counter(), thread_time()
        return self.collate_fn(data)


def install_fetchers(patches: Patches, torch_data: Any) -> None:
    """Put stopwatches into the fetchers of `torch.utils.data`."""
    fetch = torch_data._utils.fetch
    patches.wrap(fetch._BaseDatasetFetcher, "__init__", lambda original: _numbered(original, patches))
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        patches.wrap(kind, "fetch", _timed_fetch)


def _numbered(original: Any, patches: Patches) -> Any:
    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        original(self, *args, **named)
        now = recording.current
        if now is None:
            return
        try:
            self._stoker_turn, self._stoker_ordinal = next(now.turns), 0
            _note_worker(now, patches)
        except Exception:
            recording.give_up()

    return __init__


def _timed_fetch(original: Any) -> Any:
    def fetch(self: Any, *args: Any, **named: Any) -> Any:
        now = recording.current
        turn = getattr(self, "_stoker_turn", None)
        if now is None or turn is None:
            return original(self, *args, **named)
        try:
            stopwatch = self.collate_fn
            if type(stopwatch) is not Stopwatch:
                stopwatch = self.collate_fn = Stopwatch(stopwatch)
                now.probe.start()
            stopwatch.began = 0.0
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
        try:
            _note(now, self, stopwatch, began, cpu, delay)
        except Exception:
            recording.give_up()
        return batch

    return fetch


def _note(now: recording.Recording, fetcher: Any, stopwatch: Stopwatch, began: float, cpu: float, delay: float) -> None:
    made, cpu_made = perf_counter(), thread_time()
    collating = stopwatch.began or made
    cpu_collating = stopwatch.cpu_began if stopwatch.began else cpu_made
    turn, ordinal = fetcher._stoker_turn, fetcher._stoker_ordinal
    fetcher._stoker_ordinal = ordinal + 1
    now.here.last_work = turn, ordinal
    is_sent = "worker" in now.worker_note
    serial = now.add_work(
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
        stopwatch.num_samples,
        *now.used(),
    )
    if is_sent:
        unsent.append(serial)


def _note_worker(now: recording.Recording, patches: Patches) -> None:
    """Note which worker this is, if it is one, and from now on whether the dataset looks."""
    import torch.utils.data._utils.worker as torch_worker

    told: Any = torch_worker._worker_info
    if told is None:
        return
    if now.worker_note.get("worker") is None:
        unsent.clear()
        install_pickler(patches)
        now.note_work(worker=told.id, looked=False)
    torch_worker._worker_info = _looked_at(told, now)


def _looked_at(told: Any, now: recording.Recording) -> Any:
    """Return torch's `WorkerInfo` as it is, but for noting that somebody has looked at it."""
    kind: Any = type(told)
    if getattr(kind, "_stoker_looks", False):
        return told
    names = getattr(kind, "__dataclass_fields__", None) or vars(told)

    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        if not name.startswith("_") and not now.worker_note.get("looked"):
            try:
                now.note_work(looked=True)
            except Exception:
                recording.give_up()
        return kind.__getattribute__(self, name)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        # pickled as torch's own, which others know; by an old protocol, for the new ones insist on the class
        return _like(kind, self, names).__reduce_ex__(min(protocol, 1))

    methods = {"__getattribute__": __getattribute__, "__reduce_ex__": __reduce_ex__}
    names_of_kind = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    looked: Any = type(kind.__name__, (kind,), {**methods, **names_of_kind, "_stoker_looks": True})
    return _like(looked, told, names)


def _like(kind: Any, told: Any, names: Any) -> Any:
    again: Any = object.__new__(kind)
    for name in names:
        object.__setattr__(again, name, getattr(told, name))
    return again


# -------------------------------------------------------------------- how batches travel

unsent: deque[int] = deque()
"""The rows of batches that this worker has made and not yet pickled."""


def install_pickler(patches: Patches) -> None:
    """Put a stopwatch into multiprocessing's queues, unless there is one."""
    import multiprocessing.queues as queues

    if not getattr(queues._ForkingPickler, "_stoker_times", False):  # type: ignore[attr-defined]
        patches.wrap(queues, "_ForkingPickler", _timed_pickler)


def note_pickled(message: Any) -> None:
    """Note that a message has been pickled in this process: perhaps a batch, on its way to the trainer."""
    now = recording.current
    if now is None or not unsent or not (type(message) is tuple and len(message) == 2 and type(message[0]) is int):
        return
    made = message[1]
    if type(made) is tuple and made:  # torchdata's workers tell who they are, and their state, behind what they made
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
            try:
                note_pickled(message)
            except Exception:
                recording.give_up()
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
