"""What one process records while it is watched: its files, who works in it, and the loaders that are iterated in it.

There is one recording in a process at a time, `recording.current`. A forked child gets one of its own.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import traceback
from contextlib import suppress
from itertools import count
from typing import Any

from stoker.foundation.machine import Clock
from stoker.lab.watch.hook.probe import Probe
from stoker.lab.watch.hook.spool import LAPS, WORK, LapRow, Strip, Work

NOTED_EVERY = 0.5
"""Seconds between two notes, which cost more than a row does."""

FAILURE = ".failure"

BRIEF = ("num_workers", "num_threads", "batch_size", "prefetch_factor", "persistent_workers", "is_iterable")
"""What is told of arguments where there is room for no more."""


class _Clocks(threading.local):
    """The clock of the thread that asks."""

    def __init__(self) -> None:
        self.clock = Clock()


class Here(threading.local):
    """What goes on in the thread that asks: several may iterate over loaders at the same time."""

    def __init__(self) -> None:
        self.is_asking = False
        """Whether it waits for a batch."""
        self.is_delivering = False
        """Whether Stoker's own loader is at it, which counts its copies to the device itself."""
        self.unpack_seconds = 0.0
        """How long what came from workers was unpickled, since the last lap."""
        self.copy_seconds = 0.0
        """How long tensors were copied to the device, since the last lap."""
        self.last_work = (-1, -1)
        """Turn and ordinal of what was made last."""
        self.within: int | None = None
        """The number of what is watched as a whole and gives a batch now; loaders that it iterates are inside it."""


class Recording:
    """What this process tells a doctor. Nothing is written before there is something to tell."""

    def __init__(self, folder: str) -> None:
        self.folder, self.process = folder, os.getpid()
        self.working: dict[int, float] = {}
        """The threads that are making a batch now, as far as they say so, and since when."""
        self.last_work = (0.0, 0.0)
        """When the latest batch was begun and made, of those that are made."""
        self.here = Here()
        self.worker_note: dict[str, Any] = {}
        self.trainer_note: dict[str, Any] = {}
        self.turns = count()
        """Numbers for fetchers, as they come; one for each, whatever thread it is in."""
        self.probe = Probe(self)
        self._clocks = _Clocks()
        self._strips: dict[str, Strip] = {}
        self._lock = threading.RLock()
        self._noted = 0.0

    # ---------------------------------------------------------------- writing

    def _strip(self, kind: str) -> Strip:
        strip = self._strips.get(kind)
        if strip is None:
            with self._lock:
                strip = self._strips.get(kind)
                if strip is None:
                    width = len(Work._fields) if kind == WORK else len(LapRow._fields)
                    path = os.path.join(self.folder, f"{self.process}-{time.monotonic_ns()}{kind}")
                    strip = self._strips[kind] = Strip(path, width)
        return strip

    def add_work(self, *values: float) -> int:
        """Write what `Work` has, without the serial number, which is returned."""
        strip = self._strips.get(WORK)
        if strip is None:
            strip = self._strip(WORK)
            self.note_work()
        return strip.add(*values)

    def put_sent(self, serial: int, sent: float) -> None:
        """Write when a batch had left."""
        self._strip(WORK).put(serial, Work._fields.index("sent"), sent)

    def add_lap(self, *values: float) -> None:
        """Write what `LapRow` has, without the serial number."""
        self._strip(LAPS).add(*values)

    def note_work(self, **told: Any) -> None:
        """Write the note about who works here."""
        with self._lock:
            self.worker_note.update(told, pid=self.process)
            self._strip(WORK).note(self.worker_note)

    def note_laps(self, *, now: float = 0.0) -> None:
        """Write the note about the loaders that are iterated here; with `now`, only if the last one is old."""
        if now and now - self._noted < NOTED_EVERY:
            return
        self._noted = now or time.perf_counter()
        with self._lock:
            note = self.trainer_note
            note["pid"] = self.process
            note["steps"] = self.probe.sampled_steps
            if self._strip(LAPS).note(note):
                return
            # dozens of loaders, or one with much to tell: what they are called is worth more than what they read
            for told in note.get("loaders", {}).values():
                told.pop("facts", None)
            if not self._strip(LAPS).note(note):
                for told in note.get("loaders", {}).values():
                    told["config"] = {name: told["config"][name] for name in BRIEF if told["config"].get(name)}
                self._strip(LAPS).note(note)

    # ---------------------------------------------------------------- working

    def begin_work(self) -> bool:
        """Note that the calling thread makes a batch; return whether it is not known to do so already."""
        thread = threading.get_ident()
        if thread in self.working:  # for something that is watched as a whole
            return False
        self.working[thread] = time.perf_counter()
        return True

    def end_work(self) -> None:
        """Note that the batch is made."""
        began = self.working.pop(threading.get_ident(), None)
        if began is not None:
            self.last_work = began, time.perf_counter()

    # ---------------------------------------------------------------- times

    def times(self) -> tuple[float, float]:
        """Return how long the calling thread was on a core, and was ready and had none."""
        return self._clocks.clock.times()

    @staticmethod
    def used() -> tuple[float, float]:
        """Return the CPU seconds of this process, and the bytes that it read from disks."""
        told = resource.getrusage(resource.RUSAGE_SELF)
        return told.ru_utime + told.ru_stime, told.ru_inblock * 512.0

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        """End the probe and let go of the files. Their contents stay for whoever reads them."""
        self.probe.stop()
        with self._lock:
            for strip in self._strips.values():
                strip.close()
            self._strips.clear()


current: Recording | None = None


def begin(folder: str) -> Recording:
    """Let this process record into `folder`, if it does not yet."""
    global current
    if current is None or current.folder != folder or current.process != os.getpid():
        current = Recording(folder)
    return current


def end() -> None:
    """Record no more."""
    global current
    recording, current = current, None
    if recording is not None and recording.process == os.getpid():
        recording.close()


def give_up() -> None:
    """Record no more, because something of ours has failed; the training goes on as if nobody had watched.

    What has failed is left where the doctor finds it. Called where the error is being handled.
    """
    global current
    recording, current = current, None
    if recording is not None:
        tell_failure(recording.folder, traceback.format_exc())
        recording.working.clear()
        with suppress(Exception):
            recording.probe.stop(waits=False)


def tell_failure(folder: str, text: str) -> None:
    """Leave word of what has failed."""
    with suppress(OSError), open(os.path.join(folder, f"{os.getpid()}{FAILURE}"), "a") as file:
        file.write(text)


def _after_in_child() -> None:
    global current
    if current is not None:
        current = Recording(current.folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
