"""What planning and mapping take as the documents become many, each number in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.packing import limit
from benchmarks.packing.planners import drawn

DRAWN_TOGETHER = 1_000_000
CHECKED_UP_TO = 10**7
"""Documents that are looked through one by one afterwards: more than stoker sorts in one go."""


@dataclass(frozen=True, slots=True)
class Size:
    """What so many documents took."""

    num_documents: int
    length: int
    plan_seconds: float | None
    """From the counts of lengths to groups of rows, where that is a step of its own."""
    seconds: float
    """From lengths to tables that tell which documents are in a row, and in which row a document is."""
    cpu_seconds: float
    peak_bytes: int
    """The most that the process had in memory."""
    before_bytes: int
    """What it had before: the interpreter, and NumPy."""
    waste: float


class _Lengths:
    """Lengths, drawn a million at a time, so that they take no memory; and how long drawing them takes."""

    def __init__(self, num_documents: int) -> None:
        self.num_documents, self.seconds, self.cpu_seconds = num_documents, 0.0, 0.0

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for seed, first in enumerate(range(0, self.num_documents, DRAWN_TOGETHER)):
            begin, cpu = time.perf_counter(), time.process_time()
            some = drawn(min(DRAWN_TOGETHER, self.num_documents - first), seed=seed)
            self.seconds += time.perf_counter() - begin
            self.cpu_seconds += time.process_time() - cpu
            yield some


def planned_alone(num_documents: int, length: int) -> Size:
    """Plan and map, in this process, which should be a fresh one."""
    from stoker.compose.packs.pack_planning import plan_best_fit
    from stoker.plan.packing import best_fit

    plan_best_fit([drawn(1000)], length=length, window=None, long="split")  # what is imported at first use
    before = _peak_bytes()
    lengths = _Lengths(num_documents)
    begin, cpu = time.perf_counter(), time.process_time()
    layout = plan_best_fit(lengths, length=length, window=None, long="split")
    seconds = time.perf_counter() - begin - lengths.seconds
    cpu_seconds = time.process_time() - cpu - lengths.cpu_seconds
    peak = _peak_bytes()
    counts = np.zeros(length + 1, np.int64)
    of_classes = layout.classes[layout.classes[:, 2] < length]
    counts[of_classes[:, 2]] = of_classes[:, 1]
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        best_fit(counts, length)
        times.append(time.perf_counter() - begin)
    if num_documents <= CHECKED_UP_TO:
        _check(layout, np.concatenate(list(lengths)), length)
    facts = layout.facts
    waste = 1 - facts.num_tokens / (facts.num_rows * length)
    return Size(num_documents, length, min(times), seconds, cpu_seconds, peak, before, waste)


def _check(layout: Any, lengths: NDArray[np.int64], length: int) -> None:
    """See that the map has every document where it should be: by length, then by number, after those of full rows."""
    order = np.asarray(layout.order)
    num_full = int((lengths // length).sum())
    rest = lengths % length
    assert (order[:num_full] == np.repeat(np.arange(len(lengths)), lengths // length)).all()
    assert (order[num_full:] == np.argsort(rest, kind="stable")[np.count_nonzero(rest == 0) :]).all()


def in_c_alone(num_documents: int, length: int) -> Size:
    """The same in C, item by item, with all lengths in memory."""
    functions = limit.library()
    lengths = np.concatenate(list(_Lengths(num_documents)))
    limit.best_fit(functions, lengths[:1000], length)
    before = _peak_bytes()
    begin, cpu = time.perf_counter(), time.process_time()
    found = limit.best_fit(functions, lengths, length)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    waste = 1 - int(lengths.sum()) / (found.num_rows * length)
    return Size(num_documents, length, None, seconds, cpu_seconds, _peak_bytes(), before, waste)


def _peak_bytes() -> int:
    """Return the most that this process had in memory. `ru_maxrss` would begin with what its parent had."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
