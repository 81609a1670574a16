"""What is asked of one contender, in a process of its own."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stand import become_quiet, cpu_seconds, family, pss_bytes
from benchmarks.tokens.corpus import CORPORA, Corpus
from benchmarks.tokens.loaders import Order, Pair, checked, imported


@dataclass(frozen=True, slots=True)
class Turn:
    """What a contender did in one turn."""

    num_batches: int
    seconds: float
    cpu_seconds: float
    """Of the trainer and all its workers."""
    some_tokens: bytes
    """The first tokens of a row, as they are in the corpus."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a loader began."""

    seconds: float
    """From before it was made until the first batch was there."""
    cpu_seconds: float
    """Of the trainer and all workers, until then."""
    digest: str
    """Of the first batch."""


@dataclass(frozen=True, slots=True)
class Use:
    """Memory that each worker has, on average."""

    private_bytes: int
    """That is nobody else's, the corpus left out: its pages are the page cache's, whoever maps them."""
    pss_bytes: int
    """The corpus and all else, what is shared counted in parts."""
    num_processes: int
    """Beside the trainer."""
    trainer_bytes: int
    """PSS of the trainer."""
    seconds: float
    cpu_seconds: float


@contextmanager
def serving(name: str, corpus: Corpus, order: Order) -> Iterator[Callable[[float], Turn]]:
    """Play the trainer that takes batches from a loader, epoch after epoch.

    The clock stands still while an epoch begins: fast loaders begin several in a turn, slow ones none. It runs again
    after some batches, more than anyone holds ready.
    """
    contender = imported(name)
    loader = contender.make(corpus, order)
    split = contender.split
    num_untimed = max(8, 8 * order.num_workers)
    epoch: Iterator[Any] = iter(())

    def drawn() -> Pair:
        nonlocal epoch
        for batch in epoch:
            return split(batch)
        epoch = iter(loader)
        return split(next(epoch))

    def timed(seconds: float) -> tuple[int, float, float]:
        """Return how many batches came in so much time, or until the epoch was over; with the time and CPU time."""
        for _ in range(num_untimed):
            _touch(drawn())
        clock, num_batches = time.perf_counter, 0
        cpu = cpu_seconds(os.getpid())
        begin = now = clock()
        end = begin + seconds
        for batch in epoch:
            _touch(split(batch))
            num_batches += 1
            now = clock()
            if now >= end:
                break
        return num_batches, now - begin, cpu_seconds(os.getpid()) - cpu

    def turn(seconds: float) -> Turn:
        num_batches, taken, cpu = 0, 0.0, 0.0
        while taken < seconds:
            more = timed(seconds - taken)
            num_batches, taken, cpu = num_batches + more[0], taken + more[1], cpu + more[2]
        some = checked(drawn())[-1, :32].astype(np.uint16).tobytes()
        become_quiet(os.getpid())
        return Turn(num_batches, taken, cpu, some)

    gc.collect()
    gc.freeze()  # the collector stays on, but need not look through what was imported
    yield turn
    close = getattr(epoch, "close", None)
    if close is not None:
        close()


def _touch(pair: Pair) -> None:
    """Read one number each of tokens and labels."""
    if pair[0][0, 1].item() != pair[1][0, 0].item():
        raise ValueError("labels are not the next tokens")


def start(name: str, corpus: Corpus, order: Order, state: bytes | None = None) -> Start:
    """Make a loader and take its first batch, from where a state was saved if one is given."""
    contender = imported(name)
    saved = None if state is None else pickle.loads(state)
    gc.collect()
    cpu, begin = cpu_seconds(os.getpid()), time.perf_counter()
    loader = contender.make(corpus, order)
    if saved is not None:
        loader.load_state_dict(saved)
    epoch = iter(loader)
    pair = contender.split(next(epoch))
    seconds, cpu = time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu
    found = Start(seconds, cpu, _digest(pair))
    become_quiet(os.getpid())  # ended while they start, workers of some peers hang
    return found


def state_at(name: str, corpus: Corpus, order: Order, step: int) -> tuple[bytes, str]:
    """Go there for real, and return the state and the digest of the batch that follows."""
    contender = imported(name)
    loader = contender.make(corpus, order)
    epoch = iter(loader)
    for _ in range(step):
        next(epoch)
    state = pickle.dumps(loader.state_dict())
    return state, _digest(contender.split(next(epoch)))


def _digest(pair: Pair) -> str:
    return hashlib.sha256(checked(pair).tobytes()).hexdigest()


def use(name: str, corpus: Corpus, order: Order, num_batches: int) -> Use:
    """Take batches from workers, and tell what memory those have then."""
    contender = imported(name)
    cpu, begin = cpu_seconds(os.getpid()), time.perf_counter()
    loader = contender.make(corpus, order)
    epoch = iter(loader)
    for _ in range(num_batches):
        batch = next(epoch, None)
        if batch is None:
            epoch = iter(loader)
            batch = next(epoch)
        _touch(contender.split(batch))
    seconds, cpu = time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu
    become_quiet(os.getpid())
    trainer, *workers = family(os.getpid())
    num_workers = order.num_workers
    return Use(
        sum(_private_bytes(worker) for worker in workers) // num_workers,
        sum(pss_bytes(worker) for worker in workers) // num_workers,
        len(workers),
        pss_bytes(trainer),
        seconds,
        cpu,
    )


def _private_bytes(pid: int) -> int:
    """Return what only this process has, leaving out mapped files of the corpora.

    A file's page that only one process happens to map counts as private to it, though the kernel can drop it at will.
    """
    total, is_counted = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, *rest = line.split()
        if not word.endswith(":"):
            is_counted = str(CORPORA) not in line
        elif is_counted and word in ("Private_Clean:", "Private_Dirty:"):
            total += int(rest[0]) * 1024
    return total
