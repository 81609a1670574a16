"""How Stoker's own loader is watched. It counts by itself; what is added is what only a doctor looks at."""

from __future__ import annotations

import atexit
import json
import os
import sys
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from stoker.lab.watch.hook import device_copies, recording
from stoker.lab.watch.hook import watched_iteration as courses
from stoker.lab.watch.hook.patches import Patches

if TYPE_CHECKING:
    from stoker.engine.stats import Stats

STATS = ".stats"
COURSE = "_stoker_course"
COST_SHARE = 0.005
"""Of the trainer's time, for writing down what was counted."""
LATEST_LAPS = 1024
"""Batches that are written down one by one."""


class _Counted:
    """The counters of the loaders of this process, written down now and then."""

    def __init__(self, now: recording.Recording | None = None) -> None:
        self._now, self.process = now, os.getpid()
        self.counters: dict[int, Any] = {}
        self.waits: dict[int, list[float]] = {}
        """Of each loader: CPU seconds and delay of the trainer's thread while it waited."""
        self._before: dict[int, float] = {}
        """How much work each loader had done before it was watched."""
        self._gone: dict[int, Stats] = {}
        """What was counted by those that went by the same number before, and are gone."""
        self._due = perf_counter() + 1.0

    def add(self, now: recording.Recording, number: int, counters: Any) -> None:
        """Write down these too; and no longer those of another recording than `now`."""
        if now is not self._now:
            self.__init__(now)  # type: ignore[misc]
        before = self.counters.get(number)
        if before is counters:
            return
        if before is not None:  # it was made anew
            self._gone[number] = self._counted(number)
        self.counters[number] = counters
        self.waits.setdefault(number, [0.0, 0.0])
        self._before[number] = self._before.get(number, 0.0) + _work_of(counters.stats())

    def write(self, folder: str, *, now: float = 0.0) -> None:
        """Write all stats, whole or not at all; with `now`, only if it is time."""
        if (now and now < self._due) or not self.counters or os.getpid() != self.process:
            return
        began = perf_counter()
        content = json.dumps({number: self.told(number) for number in self.counters})
        path = os.path.join(folder, f"{self.process}{STATS}")
        with open(f"{path}.part", "w") as file:
            file.write(content)
        os.replace(f"{path}.part", path)
        ended = perf_counter()
        self._due = ended + max(1.0, (ended - began) / COST_SHARE)

    def told(self, number: int) -> dict[str, Any]:
        """Return the stats of one loader, as plain values."""
        stats = self._counted(number)
        told: dict[str, Any] = stats.as_dict()
        told["wait_cpu_seconds"], told["wait_delay_seconds"] = self.waits[number]
        if (work := _work_of(stats)) > 0:
            told["facts"]["watched_share"] = 1 - min(self._before[number], work) / work
        return told

    def _counted(self, number: int) -> Stats:
        """Return what the loaders of one number have counted."""
        counters = self.counters[number]
        stats: Stats = replace(counters.stats(), laps=counters.laps.latest(LATEST_LAPS))
        gone = self._gone.get(number)
        if gone is None:
            return stats
        from stoker.lab.watch.succession import added_up

        return added_up(gone, stats)


def _work_of(stats: Stats) -> float:
    return sum(stats.stages[name].busy_seconds for name in ("read", "transform", "collate"))


counted = _Counted()


def _write_down() -> None:
    now = recording.current
    if now is not None and now.process == os.getpid():
        try:
            counted.write(now.folder)
        except Exception:
            recording.give_up()


atexit.register(_write_down)


def install(patches: Patches, dataloader: Any, iterator: Any) -> None:
    """Watch every loader of Stoker's in this process."""
    patches.wrap(dataloader.DataLoader, "__iter__", lambda original: _iterated(original, patches))
    patches.wrap(iterator.LoaderIterator, "__next__", _handed)


def _iterated(original: Any, patches: Patches) -> Any:
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
            course = courses.begun(now, self, kind="stoker", config=config)
            course.is_inline = not config["num_workers"] and not config.get("num_threads")
            counted.add(now, course.loader, self.counters)
            if not config["num_workers"]:
                now.probe.sees_ours = True
                now.probe.start()
            then = self.worker_init_fn
            self.worker_init_fn = courses.WatchedWorkerInit(now.folder, course.loader, then, is_ours=True)
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
        courses.note_inside(course, began)
        iterator.__dict__[COURSE] = course
        return iterator

    return __iter__


def _handed(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807
        course = self.__dict__.get(COURSE)
        now = recording.current
        if course is None or now is not course.now:
            return original(self)
        try:
            now.probe.end_step()
            began = perf_counter()
            cpu, delay = now.times()
            is_begun = course.is_inline and now.begin_work()
            now.here.is_delivering = True
        except Exception:
            recording.give_up()
            return original(self)
        try:
            batch = original(self)
        except StopIteration:
            _note(now, course, cpu, delay, is_over=True)
            raise
        finally:
            now.here.is_delivering = False
            courses.note_inside(course, began)
            if is_begun:
                now.end_work()
        _note(now, course, cpu, delay)
        if course.prints is not None:
            _compare(course, self._counters, batch)
        now.probe.begin_step(course.loader)
        return batch

    return __next__


def _note(
    now: recording.Recording, course: courses.WatchedIteration, cpu: float, delay: float, *, is_over: bool = False
) -> None:
    try:
        cpu_now, delay_now = now.times()
        waited = counted.waits[course.loader]
        waited[0] += cpu_now - cpu
        waited[1] += delay_now - delay
        if is_over:
            courses.ended(course)
        when = perf_counter()
        counted.write(now.folder, now=0.0 if is_over else when)
        now.note_laps(now=when)
    except Exception:
        recording.give_up()


def _compare(course: courses.WatchedIteration, counters: Any, batch: Any) -> None:
    """Look at a batch of a stream, if it is still known who made it."""
    try:
        from stoker.engine.timing import WIDTH, BatchTimes

        laps = counters.laps.unsummed
        if course.prints is not None and len(laps) >= WIDTH:
            course.prints.add(int(laps[BatchTimes._fields.index("worker") - WIDTH]), batch)
    except Exception:
        recording.give_up()
