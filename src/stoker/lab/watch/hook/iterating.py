"""How torch's loader is iterated over: when batches are asked for and handed over, and who made them.

torchdata's `StatefulDataLoader` derives from it, and does anew what is watched here; so it is watched in the same way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from stoker.lab.watch.hook import copying, pickling, recording
from stoker.lab.watch.hook import watched_iteration as courses
from stoker.lab.watch.hook.opening import Opening
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
                pickling.install(patches)
                copying.install(patches, sys.modules["torch"])
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
    loader.worker_init_fn = Opening(now.folder, number, then, is_ours=False)
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
