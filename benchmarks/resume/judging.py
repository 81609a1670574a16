"""What a run was trained on, from the records of its processes, and what is wrong with that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.resume.jobs import Job

EXACT, REORDERED, WRONG, FAILED, HANGS = "exact", "reordered", "wrong", "failed", "hangs"


@dataclass(frozen=True, slots=True)
class Step:
    """What all ranks together were trained on at a step."""

    epoch: int
    ids: tuple[int, ...]
    """Sorted: which rank had which, and in which place, does not matter to the step."""


@dataclass(frozen=True, slots=True)
class First:
    """What the first batch of a part took, in all its ranks."""

    seconds: float
    """From the start of the training script to the batch, on the slowest rank; imports are done before."""
    reads: int | None
    """Samples read by then, prefetched ones among them. None if the loader has a format of its own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run that was resumed differs from one that was not."""

    kind: str
    """"exact", "reordered" (each sample as often as it should be, in other steps), "wrong", "failed" or "hangs"."""
    lost: int = 0
    """Samples that were trained on less often, summed over the epochs."""
    repeated: int = 0
    """Samples that were trained on more often."""
    text: str = ""
    """The error, if there was one."""
    steps_before: int = 0
    """Steps that the resumed process trained for before the error."""
    firsts: tuple[First, ...] = ()
    """What the first batch took, in each process of the run that got as far."""


def judge(trained: Sequence[Step], expected: Sequence[Step], *, by_epoch: bool) -> Verdict:
    """Compare a run with an uninterrupted one, epoch by epoch, or where epochs cannot be separated, as a whole."""
    if list(trained) == list(expected):
        return Verdict(EXACT)
    found, due = _counts(trained, by_epoch), _counts(expected, by_epoch)
    lost, repeated = (due - found).total(), (found - due).total()
    return Verdict(WRONG if lost or repeated else REORDERED, lost, repeated)


def _counts(steps: Sequence[Step], by_epoch: bool) -> Counter[tuple[int, int]]:
    return Counter((step.epoch if by_epoch else 0, number) for step in steps for number in step.ids)


def read_run(parts: Sequence[Sequence[Job]]) -> list[Step]:
    """Return what a run was trained on. Each part has a job for each rank.

    A part that was killed counts up to its last checkpoint: the part that came next began there.
    """
    steps: list[Step] = []
    for number, jobs in enumerate(parts):
        ranks = [_lines_that_count(job, is_last=number == len(parts) - 1) for job in jobs]
        for lines in zip_longest(*ranks):
            present = [line for line in lines if line is not None]
            ids = sorted(number for line in present for number in line["ids"])
            steps.append(Step(present[0]["epoch"], tuple(ids)))
    return steps


def _lines_that_count(job: Job, *, is_last: bool) -> list[dict[str, Any]]:
    lines = read_lines(job)
    if not is_last:
        saves = [place for place, line in enumerate(lines) if "saved" in line]
        lines = lines[: saves[-1]]
    return [line for line in lines if "ids" in line]


def read_lines(job: Job) -> list[dict[str, Any]]:
    """Return the record of one process."""
    path: Path = job.record(job.part, job.rank)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_firsts(parts: Sequence[Sequence[Job]]) -> tuple[First, ...]:
    """Return what the first batch took, for each part of a run whose ranks all had one."""
    found = []
    for jobs in parts:
        firsts = [next((line for line in read_lines(job) if "seconds" in line), None) for job in jobs]
        lines = [line for line in firsts if line is not None]
        if len(lines) == len(jobs):
            reads = [line["reads"] for line in lines]
            total = sum(reads) if all(number is not None for number in reads) else None
            found.append(First(max(line["seconds"] for line in lines), total))
    return tuple(found)
