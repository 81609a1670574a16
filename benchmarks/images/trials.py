"""What is asked of one contender, in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from benchmarks.images.contenders import imported
from benchmarks.images.jobs import BATCH_SIZE, Job, Pair, checked
from benchmarks.stand import become_quiet, cpu_seconds, family, pss_bytes

LOOK_SECONDS = 0.1
"""Between two looks at the memory: adding it up takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a contender did in one turn."""

    num_images: int
    seconds: float
    cpu_seconds: float
    """Of the trainer and all its workers."""
    batch_seconds: list[float] = field(default_factory=list)
    """From one batch to the next."""
    peak_bytes: int = 0
    """The most proportional memory of trainer and workers, if it was looked at."""


@contextmanager
def serving(name: str, job: Job) -> Iterator[Callable[[float, bool], Turn]]:
    """Play the trainer that takes batches from a loader, epoch after epoch.

    The clock runs in the middle of epochs alone: after more batches than anyone holds ready, and before as many are
    left, for what workers do between them would otherwise count for less, or more, than it is.
    """
    contender = imported(name)
    loader = contender.make(job)
    split = contender.split
    num_untimed = 4 * job.num_workers + 2
    length = math.inf if contender.is_endless else job.photographs.num_in(contender.format_name) // BATCH_SIZE
    assert length > 2 * num_untimed, "epochs are too short"
    epoch: Iterator[Any] = iter(())
    num_left = 0.0

    def drawn() -> Pair:
        nonlocal epoch, num_left
        if num_left <= 0:
            epoch, num_left = iter(loader), length
        num_left -= 1
        return split(next(epoch))

    def timed(seconds: float) -> tuple[list[float], float]:
        """Return the times from batch to batch until so much time has passed or the epoch is nearly over; CPU time."""
        if num_left <= 2 * num_untimed:
            while num_left > 0:
                _touch(drawn())
        for _ in range(num_untimed):
            _touch(drawn())
        clock, taken = time.perf_counter, []
        cpu = cpu_seconds(os.getpid())
        before = clock()
        end = before + seconds
        while before < end and num_left > num_untimed:
            _touch(drawn())
            now = clock()
            taken.append(now - before)
            before = now
        return taken, cpu_seconds(os.getpid()) - cpu

    def turn(seconds: float, is_looked_at: bool) -> Turn:
        taken: list[float] = []
        cpu = 0.0
        with _looking(is_looked_at) as peak:
            while sum(taken) < seconds:
                more, cpu_more = timed(seconds - sum(taken))
                taken, cpu = taken + more, cpu + cpu_more
        checked(drawn())
        become_quiet(os.getpid())
        return Turn(len(taken) * BATCH_SIZE, sum(taken), cpu, taken, max(peak, default=0))

    gc.collect()
    gc.freeze()  # the collector stays on, but need not look through what was imported
    yield turn
    close = getattr(epoch, "close", None)
    if close is not None:
        close()


@contextmanager
def _looking(is_wanted: bool) -> Iterator[list[int]]:
    """Look at the memory of this process and its descendants while the block runs."""
    peak: list[int] = []
    is_over = Event()

    def look() -> None:
        while not is_over.wait(LOOK_SECONDS):
            total = 0
            for pid in family(os.getpid()):
                with contextlib.suppress(OSError):
                    total += pss_bytes(pid)
            peak.append(total)

    thread = Thread(target=look)
    if is_wanted:
        thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        if is_wanted:
            thread.join()


def _touch(pair: Pair) -> None:
    """Read one number each of pictures and labels."""
    pictures, labels = pair
    if int(pictures[0, 0, 0, 0]) > 255 or int(labels[0]) < 0:
        raise ValueError("a batch of something else")


def start(name: str, job: Job) -> float:
    """Return the seconds from before a loader was made until its first batch was there; imports do not count."""
    contender = imported(name)
    gc.collect()
    begin = time.perf_counter()
    epoch = iter(contender.make(job))
    pair = contender.split(next(epoch))
    seconds = time.perf_counter() - begin
    checked(pair)
    become_quiet(os.getpid())  # ended while they start, workers of some peers hang
    return seconds
