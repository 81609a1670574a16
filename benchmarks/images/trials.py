"""What is asked of one contender, in a process of its own."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.images.contenders import imported
from benchmarks.images.jobs import BATCH_SIZE, Job, Pair, checked
from benchmarks.turns import IDLE_SECONDS, BatchTaker, Turn, taking
from stoker.lab.trial.rounds import wait_until_idle


def serving(name: str, job: Job) -> AbstractContextManager[Callable[[float], Turn]]:
    """Serve turns, timed in the middle of epochs: what workers do between epochs would count otherwise."""
    contender = imported(name)
    split = contender.split
    num_batches = job.photographs.num_in(contender.format_name) // BATCH_SIZE
    taker = BatchTaker(
        contender.make(job),
        lambda batch: _touch(split(batch)),
        num_untimed=4 * job.num_workers + 2,
        epoch_length=math.inf if contender.is_endless else num_batches,
    )

    def answer(seconds: float) -> Turn:
        turn = taker.take(seconds)
        checked(split(taker.draw()))
        return turn

    return taking(taker, answer)


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
    wait_until_idle(IDLE_SECONDS)  # ended while they start, workers of some peers hang
    return seconds
