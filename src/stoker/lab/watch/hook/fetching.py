"""How torch's loader makes batches: its fetchers, timed, in workers and in the trainer alike.

Reading ends where collating begins, which is known by putting a stopwatch before the fetcher's `collate_fn`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from stoker.lab.watch.hook import pickling, recording
from stoker.lab.watch.hook.patches import Patches


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


def install(patches: Patches, torch_data: Any) -> None:
    """Put stopwatches into the fetchers of `torch.utils.data`."""
    fetch = torch_data._utils.fetch
    patches.wrap(fetch._BaseDatasetFetcher, "__init__", lambda original: _numbered(original, patches))
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        patches.wrap(kind, "fetch", _timed)


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


def _timed(original: Any) -> Any:
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
        pickling.unsent.append(serial)


def _note_worker(now: recording.Recording, patches: Patches) -> None:
    """Note which worker this is, if it is one, and from now on whether the dataset looks."""
    import torch.utils.data._utils.worker as torch_worker

    told: Any = torch_worker._worker_info
    if told is None:
        return
    if now.worker_note.get("worker") is None:
        pickling.unsent.clear()
        pickling.install(patches)
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
