"""What one process records while it is watched: spool files, which threads load batches, which loaders are iterated.

There is one recording in a process at a time, `recording.current`. A forked child gets a recording of its own.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import traceback
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any

from stoker.foundation.machine import Clock
from stoker.lab.watch.hook.probe import Probe
from stoker.lab.watch.hook.spool import TRAINER_SUFFIX, WORKER_SUFFIX, SpoolWriter, TrainerRow, WorkerRow

NOTE_SECONDS = 0.5
"""Minimum time between two notes, which cost more than a row does."""

FAILURE_SUFFIX = ".failure"

BRIEF = ("num_workers", "num_threads", "batch_size", "prefetch_factor", "persistent_workers", "is_iterable")
"""Arguments that are noted even if there is no room for the others."""


class ThreadState(threading.local):
    """What the calling thread is doing: several threads may iterate over loaders at the same time."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.is_asking = False
        """Whether it waits for a batch."""
        self.is_delivering = False
        """Whether it is in Stoker's own loader, which counts its copies to the device itself."""
        self.unpack_seconds = 0.0
        """How long data from workers was unpickled since the last batch."""
        self.copy_seconds = 0.0
        """How long tensors were copied to the device since the last batch."""
        self.last_work = (-1, -1)
        """Turn and ordinal of the batch loaded last."""
        self.within: int | None = None
        """The number of the watched object that delivers a batch now; loaders iterated meanwhile are inside it."""


class Recording:
    """What this process writes for a doctor. No file is created before there is something to write."""

    def __init__(self, folder: str) -> None:
        self.folder, self.process = folder, os.getpid()
        self.working: dict[int, float] = {}
        """The threads known to load a batch now, and since when."""
        self.last_work = (0.0, 0.0)
        """When the batch finished last was begun and finished."""
        self.here = ThreadState()
        self.worker_note: dict[str, Any] = {}
        self.trainer_note: dict[str, Any] = {}
        self.turns = count()
        """Numbers for fetchers, in the order in which they are created, whatever thread they are in."""
        self.probe = Probe(self)
        self._writers: dict[str, SpoolWriter] = {}
        self._lock = threading.RLock()
        self._noted = 0.0

    # ---------------------------------------------------------------- writing

    def _writer(self, suffix: str) -> SpoolWriter:
        writer = self._writers.get(suffix)
        if writer is None:
            with self._lock:
                writer = self._writers.get(suffix)
                if writer is None:
                    width = len((WorkerRow if suffix == WORKER_SUFFIX else TrainerRow)._fields)
                    path = os.path.join(self.folder, f"{self.process}-{time.monotonic_ns()}{suffix}")
                    writer = self._writers[suffix] = SpoolWriter(path, width)
        return writer

    def add_worker_row(self, *values: float) -> int:
        """Write a `WorkerRow` without its serial number, which is returned."""
        writer = self._writers.get(WORKER_SUFFIX)
        if writer is None:
            writer = self._writer(WORKER_SUFFIX)
            self.write_worker_note()
        return writer.add(*values)

    def put_sent(self, serial: int, sent: float) -> None:
        """Write when the batch with this serial number had been pickled."""
        self._writer(WORKER_SUFFIX).put(serial, WorkerRow._fields.index("sent"), sent)

    def add_trainer_row(self, *values: float) -> None:
        """Write a `TrainerRow` without its serial number."""
        self._writer(TRAINER_SUFFIX).add(*values)

    def write_worker_note(self, **values: Any) -> None:
        """Update and write the note on this process as a worker."""
        with self._lock:
            self.worker_note.update(values, pid=self.process)
            self._writer(WORKER_SUFFIX).note(self.worker_note)

    def write_trainer_note(self, *, now: float = 0.0) -> None:
        """Write the note on the loaders that are iterated here; given `now`, only if the last one is old."""
        if now and now - self._noted < NOTE_SECONDS:
            return
        self._noted = now or time.perf_counter()
        with self._lock:
            note, writer = self.trainer_note, self._writer(TRAINER_SUFFIX)
            note["pid"] = self.process
            note["steps"] = self.probe.sampled_steps
            if writer.note(note):
                return
            # dozens of loaders, or large facts: names matter more than facts, and those more than most arguments
            loaders = note.get("loaders", {}).values()
            for loader in loaders:
                loader.pop("facts", None)
            if not writer.note(note):
                for loader in loaders:
                    loader["config"] = {name: loader["config"][name] for name in BRIEF if loader["config"].get(name)}
                writer.note(note)

    # ---------------------------------------------------------------- working

    def begin_work(self) -> bool:
        """Note that the calling thread loads a batch; return False if that is noted already."""
        thread = threading.get_ident()
        if thread in self.working:  # for an object that is watched as a whole
            return False
        self.working[thread] = time.perf_counter()
        return True

    def end_work(self) -> None:
        """Note that the batch is loaded."""
        began = self.working.pop(threading.get_ident(), None)
        if began is not None:
            self.last_work = began, time.perf_counter()

    # ---------------------------------------------------------------- times

    def times(self) -> tuple[float, float]:
        """Return how long the calling thread was on a core, and ready to run without one."""
        clock = self.here.clock
        if clock is None:
            clock = self.here.clock = Clock()
        return clock.times()

    @staticmethod
    def used() -> tuple[float, float]:
        """Return the CPU seconds of this process, and the bytes that it read from disk."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime, usage.ru_inblock * 512.0

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        """End the probe and close the files. Their contents stay for readers."""
        self.probe.stop()
        with self._lock:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()


current: Recording | None = None


def begin(folder: str) -> Recording:
    """Let this process record into `folder`, unless it does already."""
    global current
    if current is None or current.folder != folder or current.process != os.getpid():
        current = Recording(folder)
    return current


def end() -> None:
    """Stop recording."""
    global current
    recording, current = current, None
    if recording is not None and recording.process == os.getpid():
        recording.close()


def give_up() -> None:
    """Stop recording because the recording has failed; the training continues as if it were not watched.

    The error being handled is written to where the doctor finds it.
    """
    global current
    recording, current = current, None
    if recording is not None:
        path = os.path.join(recording.folder, f"{os.getpid()}{FAILURE_SUFFIX}")
        with suppress(OSError), open(path, "a") as file:
            file.write(traceback.format_exc())
        recording.working.clear()
        with suppress(Exception):
            recording.probe.stop(waits=False)


class _GivingUp:
    """A block whose errors end the recording, and do not reach the training."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        give_up()
        return True


giving_up_on_errors = _GivingUp()
"""Use as `with giving_up_on_errors:`; afterwards `current` is another recording, or None, if the block has failed."""


def _after_in_child() -> None:
    global current
    if current is not None:
        current = Recording(current.folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_in_child)
