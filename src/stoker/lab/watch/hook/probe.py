"""Sample where threads are now and then: which line, and whether in Python or in native code.

Sampling runs only while a doctor watches. It covers the threads that load batches, and the training loop between
batches.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import threading
from collections import Counter
from math import inf
from random import Random
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

import stoker
from stoker.foundation.machine import current_frames, thread_times
from stoker.lab.watch.hook.periodic_thread import PeriodicThread, Wakeup

if TYPE_CHECKING:
    from stoker.lab.watch.hook.recording import Recording

EVERY_SECONDS = 0.03
"""Between samples, on average. A sample costs some tens of microseconds, so all of them cost about a thousandth of the
time. If samples came as regularly as batches do, all might hit the same part of a batch.
"""

MAX_WEIGHT = 30
"""How many samples a single one may count for. A thread that releases the GIL often but only for moments may keep
another one waiting for a second, in which the GIL was held.
"""

MAX_PLACES, MAX_STEP_PLACES, MAX_SOURCE = 12, 6, 60

_OURS = os.path.dirname(stoker.__file__)
_HOOK = os.path.dirname(os.path.abspath(__file__))
_LOADER_THREAD = re.compile(r"stoker-\d+")
"""Names of the Stoker loader's threads."""
LOADING_FILES = tuple(os.path.join(_OURS, name) for name in ("batch/builder.py", "loader/stream.py"))
"""Where batches are built: a thread with a frame in one of these loads one."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None})
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of libraries, including those of other environments."""


_Place = tuple[tuple[str, str, str], int]
"""File, function and the library function called there; and the line."""


class Probe:
    """Samples the threads of this process that load batches."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        chance = Random().uniform  # a generator of its own: the user's random numbers stay as they are
        self._thread = PeriodicThread("stoker-probe", lambda: EVERY_SECONDS * chance(0.5, 1.5), self._tick)
        self.start, self.stop = self._thread.start, self._thread.stop
        self.sees_ours = False
        """Whether there may be threads of a Stoker loader, which are recognized by the code that they run."""
        self._num = self._num_held = self._num_looks = self._num_unplaced = 0
        self._places: dict[tuple[str, str, str], Counter[int]] = {}
        self._threads: dict[int, tuple[float, float]] = {}
        self._steps: dict[int, tuple[int, Counter[_Place]]] = {}
        """For each thread between two batches: of which loader, and where it was sampled since the first one."""
        self._step_places: dict[int, Counter[_Place]] = {}
        """By loader."""

    def begin_step(self, loader: int) -> None:
        """Note that the calling thread received a batch and trains on it."""
        self._steps[threading.get_ident()] = loader, Counter()

    def end_step(self) -> None:
        """Note that the calling thread requests the next batch. Time after a loop's last batch does not count."""
        loader, seen = self._steps.pop(threading.get_ident(), (0, None))
        if seen:
            self._step_places.setdefault(loader, Counter()).update(seen)

    @property
    def sampled_steps(self) -> dict[str, Any]:
        """Where training loops were between batches, by loader: the number of samples, and the share of each place."""
        return {str(loader): _shares(seen) for loader, seen in list(self._step_places.items())}

    @property
    def sampled(self) -> dict[str, Any]:
        """How many samples there are, in how many of them the GIL was held, and where threads were."""
        ordered = sorted(self._places.items(), key=lambda item: -item[1].total())[:MAX_PLACES]
        return {
            "num": self._num,
            "unplaced": self._num_unplaced,
            "looks": self._num_looks,
            "held": self._num_held,
            "places": {_format_place(*key, lines.most_common(1)[0][0]): lines.total() for key, lines in ordered},
        }

    @property
    def threads(self) -> dict[str, float]:
        """The total CPU time and delay of the loader's threads in this process."""
        return {
            "cpu": sum(cpu for cpu, _ in self._threads.values()),
            "delay": sum(delay for _, delay in self._threads.values()),
        }

    def _tick(self, wakeup: Wakeup) -> None:
        try:
            self._sample(wakeup)
        except Exception:
            from stoker.lab.watch.hook import recording

            recording.give_up()

    def _sample(self, wakeup: Wakeup) -> None:
        recording = self._recording
        due = perf_counter() - max(0.0, wakeup.gil_wait_seconds)
        num_seen = 0
        weight = 1 + min(MAX_WEIGHT - 1, int(wakeup.gil_wait_seconds / EVERY_SECONDS)) if wakeup.is_gil_held else 1
        if recording.working or self.sees_ours or self._steps:
            for ident, frame in current_frames().items():
                if (step := self._steps.get(ident)) is not None:
                    step[1][_place(frame)] += weight
                    continue
                # a thread that has begun since did not hold the GIL when it was requested
                if recording.working.get(ident, inf) <= due or (self.sees_ours and is_loading(frame)):
                    num_seen += 1
                    key, line = _place(frame)
                    self._places.setdefault(key, Counter())[line] += weight
        # a batch was being loaded, and is finished: it is unknown where the thread was
        began, made = recording.last_work
        is_over = wakeup.is_gil_held and not num_seen and (began <= due or weight > 1) and due <= made
        if num_seen or is_over:
            self._num += weight * num_seen
            self._num_unplaced += weight * is_over
            self._num_looks += weight
            self._num_held += weight * wakeup.is_gil_held
            if self.sees_ours:
                self._look_at_threads()
            threads = {"threads": self.threads} if self.sees_ours else {}
            recording.write_worker_note(sampled=self.sampled, **threads)

    def _look_at_threads(self) -> None:
        for thread in threading.enumerate():
            native_id = thread.native_id
            if native_id is not None and _LOADER_THREAD.fullmatch(thread.name):
                times = thread_times(self._recording.process, native_id)
                if times is not None:
                    self._threads[native_id] = times


def _shares(seen: Counter[_Place]) -> dict[str, Any]:
    num = seen.total()
    places = {_format_place(*key, line): times / num for (key, line), times in seen.most_common(MAX_STEP_PLACES)}
    return {"num": num, "places": places}


def is_loading(frame: FrameType | None) -> bool:
    """Whether a thread loads a batch of a Stoker loader."""
    while frame is not None:
        if frame.f_code.co_filename in LOADING_FILES:
            return True
        frame = frame.f_back
    return False


def is_of_library(file: str) -> bool:
    """Whether a file belongs to Python, Stoker or another installed package, rather than to the user."""
    return file.startswith((*_LIBRARIES, _OURS, "<frozen ")) or any(part in file for part in _INSTALLED)


def _place(leaf: FrameType) -> _Place:
    """Return where a thread is: the innermost line of the user's code, and the library function called there."""
    while leaf.f_back is not None and leaf.f_code.co_filename.startswith(_HOOK):  # the hook's own frames
        leaf = leaf.f_back
    frame: FrameType | None = leaf
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_of_library(name) and not name.startswith("<"):
            break
        frame = frame.f_back
    own = leaf if frame is None else frame
    inner = "" if own is leaf else f"{_short(leaf.f_code.co_filename)} {leaf.f_code.co_name}"
    return (own.f_code.co_filename, own.f_code.co_name, inner), own.f_lineno


def _format_place(file: str, function: str, inner: str, line: int) -> str:
    source = linecache.getline(file, line).strip()
    source = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 1]}…"
    return f"{_short(file)}:{line} {function}" + (f" `{source}`" if source else "") + (f" > {inner}" if inner else "")


def _short(file: str) -> str:
    """Return a file's name with its folder."""
    return os.path.join(*file.split(os.sep)[-2:]) if os.sep in file else file
