"""One iteration over a loader, as the trainer's process records it."""

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
from stoker.lab.watch.hook.batch_contents import num_samples_of, prints_of
from stoker.lab.watch.hook.dataset_facts import facts_of, lengths_of
from stoker.lab.watch.hook.probe import is_of_library
from stoker.lab.watch.hook.spool import BEGINS, ENDS, HANDED

SIZED_FIRST, SIZED_EVERY = 4, 64
"""Batches that are looked at for their size: the first ones, and one out of so many."""

PRINTED_FIRST = 64
"""Batches of each worker of a stream that are compared with those of the others."""

_made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""What is known of loaders from when they were made."""
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_new_numbers = count()
_places: dict[str, list[tuple[ref[Any], int]]] = {}
"""By the line that made them and all that they look like: loaders, and the numbers by which they are known."""
_on: set[int] = set()
"""The loaders that are being iterated over, or were left in the middle."""

MOST_ALIKE = 8
"""Loaders that look the same, are there at the same time, and are told apart."""


class WatchedIteration:
    """An iteration that is on."""

    def __init__(self, now: recording.Recording, loader: int, iteration: int) -> None:
        self.now, self.loader, self.iteration = now, loader, iteration
        self.setup_seconds = 0.0
        """How long making the iterator took, which the first batch is charged with."""
        self.num_laps = 0
        self.is_inline = False
        """Whether it is the thread that asks which makes batches, as far as the hook has to see to that being known."""
        self.worker, self.pid, self.turn, self.ordinal = -1, 0, -1, -1
        """Who made the batch that is handed over now, as far as that is known."""
        self.prints: Prints | None = None
        self._wait = (0.0, 0.0, 0.0)

    def ask(self) -> None:
        """The trainer asks for a batch."""
        now = self.now
        now.probe.end_step()
        now.here.is_asking = True
        self.worker, self.pid, self.turn, self.ordinal = -1, 0, -1, -1
        self._wait = (perf_counter() - self.setup_seconds, *now.times())
        self.setup_seconds = 0.0

    def hand(self, batch: Any) -> None:
        """The trainer has it."""
        handed = perf_counter()
        now, here = self.now, self.now.here
        here.is_asking = False
        asked, cpu, delay = self._wait
        cpu_now, delay_now = now.times()
        number = self.num_laps
        self.num_laps = number + 1
        num_samples = num_samples_of(batch)
        is_sized = number < SIZED_FIRST or not number % SIZED_EVERY
        process_cpu, read_bytes = now.used()
        now.add_lap(
            HANDED,
            self.loader,
            self.iteration,
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
        if self.prints is not None:
            self.prints.add(self.worker, batch)
        now.note_laps(now=handed)
        now.probe.begin_step(self.loader)

    def mark(self, kind: float) -> None:
        """Note that the iteration begins or ends."""
        now = self.now
        now.here.is_asking = False
        when, (_, delay), (cpu, read_bytes) = perf_counter(), now.times(), now.used()
        blank = [0.0] * 8
        now.add_lap(kind, self.loader, self.iteration, when, when, -1, *blank, 0.0, cpu, delay, read_bytes)
        now.note_laps()


class Prints:
    """Tells whether workers of a stream give the same samples, from some of their bytes."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._before = told.get("num_distinct", 0), told.get("num_over_all", 0)
        """Of the iterations before: what comes again in the next one is no repetition."""
        self._by_worker: dict[int, set[int]] = {}
        self._num_batches: dict[int, int] = {}

    def add(self, worker: int, batch: Any) -> None:
        """Look at a batch, unless enough were looked at."""
        num_batches = self._num_batches.get(worker, 0)
        if num_batches >= PRINTED_FIRST:
            return
        self._num_batches[worker] = num_batches + 1
        prints = prints_of(batch)
        own = self._by_worker.setdefault(worker, set())
        told = self._told
        told["num"] = told.get("num", 0) + len(prints)
        own.update(prints)
        distinct = [len(own) for own in self._by_worker.values()]
        told["num_distinct"] = self._before[0] + sum(distinct)
        """Within each worker, added up."""
        told["num_over_all"] = self._before[1] + len(set().union(*self._by_worker.values()))


def begun(now: recording.Recording, loader: Any, *, kind: str, config: dict[str, Any]) -> WatchedIteration:
    """Return the record of an iteration over `loader` that begins now."""
    known = _known_of(loader)
    number = _succeeded(loader, kind, known.get("name"), config)
    loaders = now.trainer_note.setdefault("loaders", {})
    told = loaders.get(str(number))
    if told is None:
        told = loaders[str(number)] = {"kind": kind, **known, "iterations": 0}
        told["facts"] = facts_of(loader)
    told["config"] = config
    told["iterations"] += 1
    _on.add(number)
    now.trainer_note["thread"] = threading.get_native_id()
    now.trainer_note.update(ranks())
    course = WatchedIteration(now, number, told["iterations"])
    if config.get("is_iterable") and (config.get("num_workers") or 0) > 1:
        course.prints = Prints(told.setdefault("prints", {}))
    course.mark(BEGINS)
    now.probe.start()
    return course


def note_inside(course: WatchedIteration, began: float) -> None:
    """Note, if this is inside of something that is watched as a whole, that the loader was waited for since `began`."""
    within = course.now.here.within
    whole = None if within is None else course.now.trainer_note.get("loaders", {}).get(str(within))
    if whole is not None:
        inside, number = whole.setdefault("inside", {}), str(course.loader)
        inside[number] = inside.get(number, 0.0) + perf_counter() - began


def number_of(loader: Any) -> int:
    """Return the number by which a loader is known in this process."""
    try:
        number = _numbers.get(loader)
        if number is None:
            number = _numbers[loader] = next(_new_numbers)
    except TypeError:  # cannot be referred to weakly, or hashed: its address has to do
        return id(loader)
    return number


def _succeeded(loader: Any, kind: str, name: str | None, config: dict[str, Any]) -> int:
    """Return the number of a loader. One that is made anew for every epoch is one loader, and goes by one number: that
    of the one before, which was made by the same line in the same way and is gone. Where such ones are kept, and
    become many, it is enough that nobody iterates over them.
    """
    try:
        if not name or loader in _numbers:
            return number_of(loader)
        look = repr((kind, name, sorted(config.items()), lengths_of(loader)))
    except Exception:  # whatever a user's class does
        return number_of(loader)
    places = _places.setdefault(look, [])
    for at, (before, number) in enumerate(places):
        if before() is None or (len(places) >= MOST_ALIKE and number not in _on):
            places[at] = ref(loader), number
            _numbers[loader] = number
            return number
    number = number_of(loader)
    places.append((ref(loader), number))
    return number


def note_made(loader: Any, seconds: float) -> None:
    """Note how long a loader took to make, and where that was written."""
    told = {"construction_seconds": seconds, "name": _where(loader)}
    try:
        _made[loader] = told
    except TypeError:
        return


def _known_of(loader: Any) -> dict[str, Any]:
    try:
        return _made.get(loader, {})
    except TypeError:
        return {}


def ended(course: WatchedIteration) -> None:
    """The iteration is over."""
    _on.discard(course.loader)
    course.mark(ENDS)


def ranks() -> dict[str, int]:
    """Return which rank this process is, out of how many."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "num_ranks": distributed.get_world_size()}
        return {"rank": int(os.environ["RANK"]), "num_ranks": int(os.environ["WORLD_SIZE"])}
    except (KeyError, ValueError, AttributeError, RuntimeError):
        return {"rank": 0, "num_ranks": 1}


def _where(loader: Any) -> str:
    """Return the line that made a loader: the innermost one of the user's own, and not of a library that makes loaders
    for others; without one, the innermost that is not part of a constructor of it.
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
    """A `worker_init_fn` that lets the worker be looked at, before it calls the one that it stands for."""

    def __init__(self, folder: str, loader: int, then: Callable[[int], Any] | None, *, is_ours: bool) -> None:
        self.folder, self.loader, self.then, self.is_ours = folder, loader, then, is_ours

    def __call__(self, worker: int) -> None:
        """Begin to record in this process."""
        try:
            if self.is_ours:
                now = recording.begin(self.folder)
                used = usage_of()
                before = (0.0, 0.0) if used is None else (used.cpu_seconds, used.delay_seconds)
                now.note_work(loader=self.loader, worker=worker, before=before)
                now.probe.sees_ours = True
                now.probe.start()
            else:
                from stoker.lab.watch.hook.install import attach

                attach(self.folder)
        except Exception:
            recording.give_up()
        if self.then is not None:
            self.then(worker)
