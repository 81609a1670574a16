"""Watch Stoker's own loader. It counts by itself; what is added is what only a doctor measures."""

from __future__ import annotations

import atexit
import json
import os
import sys
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stoker.lab.watch.hook import device_copies, recording, watched_iteration
from stoker.lab.watch.hook.patches import Patches
from stoker.lab.watch.hook.recording import Recording, giving_up_on_errors
from stoker.lab.watch.hook.watched_iteration import WatchedIteration, WatchedWorkerInit

if TYPE_CHECKING:
    from stoker.engine.stats import Stats

STATS_SUFFIX = ".stats"
ITERATION = "_stoker_iteration"
COST_SHARE = 0.005
"""Share of the trainer's time that writing the counters may take."""
MAX_WRITTEN = 1024
"""Latest batches that are written one by one."""


class _StatsFile:
    """The counters of the loaders of this process, written to a file now and then."""

    def __init__(self, now: Recording | None = None) -> None:
        self._now, self.process = now, os.getpid()
        self.counters: dict[int, Any] = {}
        self.waits: dict[int, list[float]] = {}
        """Of each loader: CPU seconds and delay of the trainer's thread while it waited."""
        self._before: dict[int, float] = {}
        """How much work each loader had done before it was watched."""
        self._past: dict[int, Stats] = {}
        """The counters of earlier loaders with the same number."""
        self._due = perf_counter() + 1.0

    def add(self, now: Recording, number: int, counters: Any) -> None:
        """Write these counters too; forget those of another recording than `now`."""
        if now is not self._now:
            self.__init__(now)  # type: ignore[misc]
        before = self.counters.get(number)
        if before is counters:
            return
        if before is not None:  # the loader was re-created
            self._past[number] = self._stats(number)
        self.counters[number] = counters
        self.waits.setdefault(number, [0.0, 0.0])
        self._before[number] = self._before.get(number, 0.0) + _work_of(counters.stats())

    def write(self, folder: str, *, now: float = 0.0) -> None:
        """Write all counters atomically; given `now`, only if it is time."""
        if (now and now < self._due) or not self.counters or os.getpid() != self.process:
            return
        began = perf_counter()
        content = json.dumps({number: self._record(number) for number in self.counters})
        path = os.path.join(folder, f"{self.process}{STATS_SUFFIX}")
        with open(f"{path}.part", "w") as file:
            file.write(content)
        os.replace(f"{path}.part", path)
        ended = perf_counter()
        self._due = ended + max(1.0, (ended - began) / COST_SHARE)

    def _record(self, number: int) -> dict[str, Any]:
        stats = self._stats(number)
        record: dict[str, Any] = stats.as_dict()
        record["wait_cpu_seconds"], record["wait_delay_seconds"] = self.waits[number]
        if (work := _work_of(stats)) > 0:
            record["facts"]["watched_share"] = 1 - min(self._before[number], work) / work
        return record

    def _stats(self, number: int) -> Stats:
        counters = self.counters[number]
        stats: Stats = replace(counters.stats(), laps=counters.laps.latest(MAX_WRITTEN))
        past = self._past.get(number)
        return stats if past is None else past + stats


def _work_of(stats: Stats) -> float:
    return sum(stats.stages[name].busy_seconds for name in ("read", "transform", "collate"))


stats_file = _StatsFile()


def _write_at_exit() -> None:
    now = recording.current
    if now is not None and now.process == os.getpid():
        with giving_up_on_errors:
            stats_file.write(now.folder)


atexit.register(_write_at_exit)


def install(patches: Patches, dataloader: Any, iterator: Any) -> None:
    """Watch all Stoker loaders in this process."""
    patches.wrap(dataloader.DataLoader, "__iter__", lambda original: _watched_iter(original, patches))
    patches.wrap(iterator.LoaderIterator, "__next__", _watched_next)


def _watched_iter(original: Any, patches: Patches) -> Any:
    is_first = True

    def __iter__(self: Any) -> Any:  # noqa: N807
        nonlocal is_first
        now = recording.current
        if now is None or self._is_foreign:
            return original(self)
        try:
            if is_first:
                is_first = False
                device_copies.install(patches, sys.modules["torch"])
            config = {**self.counters.stats().config, "worker_init_fn": self.worker_init_fn is not None}
            iteration = watched_iteration.begin(now, self, kind="stoker", config=config)
            iteration.is_inline = not config["num_workers"] and not config.get("num_threads")
            stats_file.add(now, iteration.loader, self.counters)
            if not config["num_workers"]:
                now.probe.sees_ours = True
                now.probe.start()
            then = self.worker_init_fn
            self.worker_init_fn = WatchedWorkerInit(now.folder, iteration.loader, then, is_ours=True)
        except Exception:
            recording.give_up()
            return original(self)
        began = perf_counter()
        now.here.is_delivering = True
        try:
            iterator = original(self)
        finally:
            now.here.is_delivering = False
            self.worker_init_fn = then
        iteration.note_inside(began)
        iterator.__dict__[ITERATION] = iteration
        return iterator

    return __iter__


def _watched_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        iteration: WatchedIteration | None = self.__dict__.get(ITERATION)
        now = recording.current
        if iteration is None or now is None or now is not iteration.now:
            return original(self)
        try:
            now.probe.end_step()
            began = perf_counter()
            cpu, delay = now.times()
            is_begun = iteration.is_inline and now.begin_work()
            now.here.is_delivering = True
        except Exception:
            recording.give_up()
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            _note_wait(iteration, cpu, delay, is_over=True)
            raise
        finally:
            now.here.is_delivering = False
            iteration.note_inside(began)
            if is_begun:
                now.end_work()
        _note_wait(iteration, cpu, delay)
        if iteration.fingerprints is not None:
            _compare(iteration, self._counters, batch)
        now.probe.begin_step(iteration.loader)
        return batch

    return __next__


def _note_wait(iteration: WatchedIteration, cpu: float, delay: float, *, is_over: bool = False) -> None:
    with giving_up_on_errors:
        now = iteration.now
        cpu_now, delay_now = now.times()
        waited = stats_file.waits[iteration.loader]
        waited[0] += cpu_now - cpu
        waited[1] += delay_now - delay
        if is_over:
            iteration.end()
        when = perf_counter()
        stats_file.write(now.folder, now=0.0 if is_over else when)
        now.write_trainer_note(now=when)


def _compare(iteration: WatchedIteration, counters: Any, batch: Any) -> None:
    """Compare a batch of a stream with those of other workers, if it is still known which worker loaded it."""
    with giving_up_on_errors:
        from stoker.engine.timing import WIDTH, BatchTimes

        times = counters.laps.unsummed
        if iteration.fingerprints is not None and len(times) >= WIDTH:
            iteration.fingerprints.add(int(times[BatchTimes._fields.index("worker") - WIDTH]), batch)
