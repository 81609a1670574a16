"""A thread that looks now and then where the others are: which line, and whether in Python or in native code.

It runs only while a doctor watches. It looks at the threads that make batches and at the training loop between two
batches; everything else is passed over.
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
from stoker.lab.watch.hook.periodic_thread import PeriodicThread, Rest

if TYPE_CHECKING:
    from stoker.lab.watch.hook.recording import Recording

EVERY_SECONDS = 0.03
"""Between two looks, on average. A look costs some tens of microseconds, so that all of them together stay near a
thousandth. Looks that came as regularly as batches do might all see the same part of them.
"""

MOST_LOOKS = 30
"""What a single look counts for at the most. Whoever lets go of the interpreter's lock often, and for a moment only,
may keep a thread that waits for it waiting for a second: in which it was held.
"""

MAX_PLACES, MAX_STEP_PLACES, MAX_SOURCE = 12, 6, 60

_OURS = os.path.dirname(stoker.__file__)
_HOOK = os.path.dirname(os.path.abspath(__file__))
_CREW = re.compile(r"stoker-\d+")
"""What the loader's threads are called."""
_MAKERS = tuple(os.path.join(_OURS, "loader", name) for name in ("work.py", "stream.py"))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None})
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of libraries, those of other environments included."""


_Place = tuple[tuple[str, str, str], int]
"""File, function and what of a library it has called there; and the line."""


class Probe:
    """Looks at the threads of this process that make batches."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        chance = Random().uniform  # of its own: nobody's numbers are drawn
        self._ticker = PeriodicThread("stoker-probe", lambda: EVERY_SECONDS * chance(0.5, 1.5), self._tick)
        self.start, self.stop = self._ticker.start, self._ticker.stop
        self.sees_ours = False
        """Whether there may be threads of Stoker's loader, which are known by what they run."""
        self._num = self._num_held = self._num_looks = self._num_unplaced = 0
        self._places: dict[tuple[str, str, str], Counter[int]] = {}
        self._threads: dict[int, tuple[float, float]] = {}
        self._steps: dict[int, tuple[int, Counter[_Place]]] = {}
        """For each thread that is between two batches: of which loader, and where it was seen since the first one."""
        self._step_places: dict[int, Counter[_Place]] = {}
        """By loader."""

    def begin_step(self, loader: int) -> None:
        """The calling thread has got a batch, and trains on it."""
        self._steps[threading.get_ident()] = loader, Counter()

    def end_step(self) -> None:
        """The calling thread asks for the next batch. What follows the last batch of a loop is not counted."""
        loader, seen = self._steps.pop(threading.get_ident(), (0, None))
        if seen:
            self._step_places.setdefault(loader, Counter()).update(seen)

    @property
    def sampled_steps(self) -> dict[str, Any]:
        """Where training loops were between batches, by loader: the number of samples, and the share of each place."""
        return {str(loader): _shares(seen) for loader, seen in list(self._step_places.items())}

    @property
    def sampled(self) -> dict[str, Any]:
        """What was seen: how many looks, at how many of them the lock was held, and where."""
        ordered = sorted(self._places.items(), key=lambda item: -item[1].total())[:MAX_PLACES]
        return {
            "num": self._num,
            "unplaced": self._num_unplaced,
            "looks": self._num_looks,
            "held": self._num_held,
            "places": {_told(*key, lines.most_common(1)[0][0]): lines.total() for key, lines in ordered},
        }

    @property
    def threads(self) -> dict[str, float]:
        """The CPU time and the delay of the loader's threads in this process, all together."""
        return {
            "cpu": sum(cpu for cpu, _ in self._threads.values()),
            "delay": sum(delay for _, delay in self._threads.values()),
        }

    def _tick(self, rest: Rest) -> None:
        try:
            self._look(rest)
        except Exception:
            from stoker.lab.watch.hook import recording

            recording.give_up()

    def _look(self, rest: Rest) -> None:
        recording = self._recording
        due = perf_counter() - max(0.0, rest.lock_seconds)
        num_seen = 0
        num_looks = 1 + min(MOST_LOOKS - 1, int(rest.lock_seconds / EVERY_SECONDS)) if rest.is_held else 1
        if recording.working or self.sees_ours or self._steps:
            for ident, frame in current_frames().items():
                if (step := self._steps.get(ident)) is not None:
                    step[1][_place(frame)] += num_looks
                    continue
                # whoever has begun since did not hold the lock when it was wanted
                if recording.working.get(ident, inf) <= due or (self.sees_ours and _makes(frame)):
                    num_seen += 1
                    key, line = _place(frame)
                    self._places.setdefault(key, Counter())[line] += num_looks
        # it was at work, and is not any more: who knows where
        began, made = recording.last_work
        is_over = rest.is_held and not num_seen and (began <= due or num_looks > 1) and due <= made
        if num_seen or is_over:
            self._num += num_looks * num_seen
            self._num_unplaced += num_looks * is_over
            self._num_looks += num_looks
            self._num_held += num_looks * rest.is_held
            if self.sees_ours:
                self._look_at_threads()
            told = {"threads": self.threads} if self.sees_ours else {}
            recording.note_work(sampled=self.sampled, **told)

    def _look_at_threads(self) -> None:
        for thread in threading.enumerate():
            native_id = thread.native_id
            if native_id is not None and _CREW.fullmatch(thread.name):
                times = thread_times(self._recording.process, native_id)
                if times is not None:
                    self._threads[native_id] = times


def _shares(seen: Counter[_Place]) -> dict[str, Any]:
    num = seen.total()
    places = {_told(*key, line): times / num for (key, line), times in seen.most_common(MAX_STEP_PLACES)}
    return {"num": num, "places": places}


def _makes(frame: FrameType | None) -> bool:
    """Whether a thread makes a batch of Stoker's loader."""
    while frame is not None:
        if frame.f_code.co_filename in _MAKERS:
            return True
        frame = frame.f_back
    return False


def is_of_library(file: str) -> bool:
    """Whether a file is Python's, ours, or of anything else that is installed, and not the user's own."""
    return file.startswith((*_LIBRARIES, _OURS, "<frozen ")) or any(part in file for part in _INSTALLED)


def _place(leaf: FrameType) -> _Place:
    """Return where a thread is: the innermost line of the user's own, and what of a library it has called there."""
    while leaf.f_back is not None and leaf.f_code.co_filename.startswith(_HOOK):  # it is at nothing of ours
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


def _told(file: str, function: str, inner: str, line: int) -> str:
    source = linecache.getline(file, line).strip()
    source = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 1]}…"
    return f"{_short(file)}:{line} {function}" + (f" `{source}`" if source else "") + (f" > {inner}" if inner else "")


def _short(file: str) -> str:
    """Return a file's name with the folder it is in."""
    return os.path.join(*file.split(os.sep)[-2:]) if os.sep in file else file
