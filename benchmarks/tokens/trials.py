"""What is asked of one contender, in a process of its own."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.tokens.corpus import CORPORA, Corpus
from benchmarks.tokens.loaders import Order, Pair, checked, imported
from benchmarks.turns import IDLE_SECONDS, BatchTaker, Turn, taking
from stoker.foundation.machine import pss_bytes, tree, tree_cpu_seconds
from stoker.lab.trial.rounds import wait_until_idle


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


def serving(name: str, corpus: Corpus, order: Order) -> AbstractContextManager[Callable[[float], Turn]]:
    """Serve turns; the sample of each is the first tokens of a row, as they are in the corpus."""
    contender = imported(name)
    split = contender.split
    taker = BatchTaker(
        contender.make(corpus, order), lambda batch: _touch(split(batch)), num_untimed=max(8, 8 * order.num_workers)
    )

    def answer(seconds: float) -> Turn:
        turn = taker.take(seconds)
        some = checked(split(taker.draw()))[-1, :32].astype(np.uint16).tobytes()
        return replace(turn, sample=some)

    return taking(taker, answer)


def _touch(pair: Pair) -> None:
    """Read one number each of tokens and labels."""
    if pair[0][0, 1].item() != pair[1][0, 0].item():
        raise ValueError("labels are not the next tokens")


def start(name: str, corpus: Corpus, order: Order, state: bytes | None = None) -> Start:
    """Make a loader and take its first batch, from where a state was saved if one is given."""
    contender = imported(name)
    saved = None if state is None else pickle.loads(state)
    gc.collect()
    cpu, begin = tree_cpu_seconds(os.getpid()), time.perf_counter()
    loader = contender.make(corpus, order)
    if saved is not None:
        loader.load_state_dict(saved)
    epoch = iter(loader)
    pair = contender.split(next(epoch))
    seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds(os.getpid()) - cpu
    found = Start(seconds, cpu, _digest(pair))
    wait_until_idle(IDLE_SECONDS)  # ended while they start, workers of some peers hang
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
    cpu, begin = tree_cpu_seconds(os.getpid()), time.perf_counter()
    loader = contender.make(corpus, order)
    epoch = iter(loader)
    for _ in range(num_batches):
        batch = next(epoch, None)
        if batch is None:
            epoch = iter(loader)
            batch = next(epoch)
        _touch(contender.split(batch))
    seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds(os.getpid()) - cpu
    wait_until_idle(IDLE_SECONDS)
    trainer, *workers = tree(os.getpid())
    num_workers = order.num_workers
    return Use(
        sum(_private_bytes(worker) for worker in workers) // num_workers,
        sum(pss_bytes(worker) or 0 for worker in workers) // num_workers,
        len(workers),
        pss_bytes(trainer) or 0,
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
