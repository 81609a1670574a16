"""Record one iteration over a loader in the trainer's process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from itertools import count
from time import perf_counter
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from stoker.foundation import trees
from stoker.foundation.machine import usage_of
from stoker.lab.watch.hook import recording
from stoker.lab.watch.hook.batch_samples import num_samples_of, sample_fingerprints
from stoker.lab.watch.hook.dataset_facts import facts_of, lengths_of
from stoker.lab.watch.hook.probe import is_of_library
from stoker.lab.watch.hook.spool import BEGINS, ENDS, HANDED

SIZED_FIRST, SIZED_EVERY = 4, 64
"""Batches whose size is measured: the first ones, and one out of so many."""

MAX_COMPARED = 64
"""Batches of each worker of a stream that are compared with those of the others."""

MAX_ALIKE = 8
"""Loaders that look the same, exist at the same time, and have numbers of their own."""

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""What was noted of loaders when they were created."""
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_new_numbers = count()
_places: dict[str, list[tuple[ref[Any], int]]] = {}
"""Loaders and their numbers, by the line that created them and everything that they look like."""
_running: set[int] = set()
"""The loaders that are iterated over, or were left in the middle."""


class WatchedIteration:
    """A running iteration."""

    def __init__(self, now: recording.Recording, loader: int, number: int) -> None:
        self.now, self.loader, self.number = now, loader, number
        self.setup_seconds = 0.0
        """How long creating the iterator took, which counts as waiting for the first batch."""
        self.num_batches = 0
        self.is_inline = False
        """Whether the requesting thread loads batches itself, and only the hook can note that."""
        self.worker, self.pid, self.turn, self.ordinal = -1, 0, -1, -1
        """Where the batch being delivered was loaded, as far as that is known."""
        self.fingerprints: SampleFingerprints | None = None
        self._wait = (0.0, 0.0, 0.0)

    def ask(self) -> None:
        """Record that the trainer requests a batch."""
        now = self.now
        now.probe.end_step()
        now.here.is_asking = True
        self.worker, self.pid, self.turn, self.ordinal = -1, 0, -1, -1
        self._wait = (perf_counter() - self.setup_seconds, *now.times())
        self.setup_seconds = 0.0

    def hand(self, batch: Any) -> None:
        """Record that the trainer received the batch."""
        handed = perf_counter()
        now, here = self.now, self.now.here
        here.is_asking = False
        asked, cpu, delay = self._wait
        cpu_now, delay_now = now.times()
        number = self.num_batches
        self.num_batches = number + 1
        num_samples = num_samples_of(batch)
        is_sized = number < SIZED_FIRST or not number % SIZED_EVERY
        process_cpu, read_bytes = now.used()
        now.add_trainer_row(
            HANDED,
            self.loader,
            self.number,
            asked,
            handed,
            self.worker,
            self.pid,
            self.turn,
            self.ordinal,
            here.unpack_seconds,
            here.copy_seconds,
            num_samples,
            trees.num_bytes(batch) if is_sized else 0,
            cpu_now - cpu,
            delay_now - delay,
            process_cpu,
            delay_now,
            read_bytes,
        )
        here.unpack_seconds = here.copy_seconds = 0.0
        if self.fingerprints is not None:
            self.fingerprints.add(self.worker, batch)
        now.write_trainer_note(now=handed)
        now.probe.begin_step(self.loader)

    def mark(self, kind: float) -> None:
        """Record that the iteration begins or ends."""
        now = self.now
        now.here.is_asking = False
        when, (_, delay), (cpu, read_bytes) = perf_counter(), now.times(), now.used()
        blank = [0.0] * 8
        now.add_trainer_row(kind, self.loader, self.number, when, when, -1, *blank, 0.0, cpu, delay, read_bytes)
        now.write_trainer_note()

    def end(self) -> None:
        """Record the end of the iteration."""
        _running.discard(self.loader)
        self.mark(ENDS)

    def note_inside(self, began: float) -> None:
        """If this loader is iterated inside an object that is watched, note that it was waited for since `began`."""
        within = self.now.here.within
        whole = None if within is None else self.now.trainer_note.get("loaders", {}).get(str(within))
        if whole is not None:
            inside, number = whole.setdefault("inside", {}), str(self.loader)
            inside[number] = inside.get(number, 0.0) + perf_counter() - began


class SampleFingerprints:
    """Counts samples of a stream that several workers deliver, recognized by some of their bytes."""

    def __init__(self, note: dict[str, Any]) -> None:
        self._note = note
        self._before = note.get("num_distinct", 0), note.get("num_over_all", 0)
        """Of earlier iterations: a sample that comes again in the next iteration is not a repetition."""
        self._by_worker: dict[int, set[int]] = {}
        self._num_batches: dict[int, int] = {}

    def add(self, worker: int, batch: Any) -> None:
        """Count a batch, unless enough of this worker's were counted."""
        num_batches = self._num_batches.get(worker, 0)
        if num_batches >= MAX_COMPARED:
            return
        self._num_batches[worker] = num_batches + 1
        found = sample_fingerprints(batch)
        own, note = self._by_worker.setdefault(worker, set()), self._note
        note["num"] = note.get("num", 0) + len(found)
        own.update(found)
        # within each worker, added up; and over all workers
        note["num_distinct"] = self._before[0] + sum(len(own) for own in self._by_worker.values())
        note["num_over_all"] = self._before[1] + len(set().union(*self._by_worker.values()))


def begin(now: recording.Recording, loader: Any, *, kind: str, config: dict[str, Any]) -> WatchedIteration:
    """Record that an iteration over `loader` begins."""
    known = _noted_of(loader)
    number = _number_like_before(loader, kind, known.get("name"), config)
    loaders = now.trainer_note.setdefault("loaders", {})
    note = loaders.get(str(number))
    if note is None:
        note = loaders[str(number)] = {"kind": kind, **known, "iterations": 0}
        note["facts"] = facts_of(loader)
    note["config"] = config
    note["iterations"] += 1
    _running.add(number)
    now.trainer_note["thread"] = threading.get_native_id()
    now.trainer_note.update(_ranks())
    iteration = WatchedIteration(now, number, note["iterations"])
    if config.get("is_iterable") and (config.get("num_workers") or 0) > 1:
        iteration.fingerprints = SampleFingerprints(note.setdefault("prints", {}))
    iteration.mark(BEGINS)
    now.probe.start()
    return iteration


def number_of(loader: Any) -> int:
    """Return the number by which a loader is known in this process."""
    try:
        number = _numbers.get(loader)
        if number is None:
            number = _numbers[loader] = next(_new_numbers)
    except TypeError:  # not hashable, or not weakly referable
        return id(loader)
    return number


def _number_like_before(loader: Any, kind: str, name: str | None, config: dict[str, Any]) -> int:
    """Return the number of a loader. A loader re-created in every epoch keeps its number: that of a loader that was
    created by the same line in the same way and is gone. If such loaders are kept, and there are many, it is enough
    that the other one is not iterated over.
    """
    try:
        if not name or loader in _numbers:
            return number_of(loader)
        look = repr((kind, name, sorted(config.items()), lengths_of(loader)))
    except Exception:  # whatever a user's class does
        return number_of(loader)
    places = _places.setdefault(look, [])
    for at, (before, number) in enumerate(places):
        if before() is None or (len(places) >= MAX_ALIKE and number not in _running):
            places[at] = ref(loader), number
            _numbers[loader] = number
            return number
    number = number_of(loader)
    places.append((ref(loader), number))
    return number


def note_made(loader: Any, seconds: float) -> None:
    """Note how long creating a loader took, and the line that created it."""
    try:
        _made[loader] = {"construction_seconds": seconds, "name": _creating_line(loader)}
    except TypeError:
        return


def _noted_of(loader: Any) -> dict[str, Any]:
    try:
        return _made.get(loader, {})
    except TypeError:
        return {}


def _ranks() -> dict[str, int]:
    """Return the rank of this process, and the number of ranks."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "num_ranks": distributed.get_world_size()}
        return {"rank": int(os.environ["RANK"]), "num_ranks": int(os.environ["WORLD_SIZE"])}
    except (KeyError, ValueError, AttributeError, RuntimeError):
        return {"rank": 0, "num_ranks": 1}


def _creating_line(loader: Any) -> str:
    """Return the line that created a loader: the innermost line of the user's own code, not of a library that creates
    loaders for others; without one, the innermost that is not part of a constructor of the loader.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_locals.get("self") is loader:
        frame = frame.f_back
    own: FrameType | None = frame
    while own is not None and is_of_library(own.f_code.co_filename):
        own = own.f_back
    frame = own or frame
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class WatchedWorkerInit:
    """A `worker_init_fn` that starts recording in the worker, and then calls the user's own."""

    def __init__(self, folder: str, loader: int, then: Callable[[int], Any] | None, *, is_ours: bool) -> None:
        self.folder, self.loader, self.then, self.is_ours = folder, loader, then, is_ours

    def __call__(self, worker: int) -> None:
        """Start recording in this process."""
        with recording.giving_up_on_errors:
            if self.is_ours:
                now = recording.begin(self.folder)
                used = usage_of()
                before = (0.0, 0.0) if used is None else (used.cpu_seconds, used.delay_seconds)
                now.write_worker_note(loader=self.loader, worker=worker, before=before)
                now.probe.sees_ours = True
                now.probe.start()
            else:
                from stoker.lab.watch.hook.install import attach

                attach(self.folder)
        if self.then is not None:
            self.then(worker)
