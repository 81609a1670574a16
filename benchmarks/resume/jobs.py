"""What a training process is to do, and the record that it leaves.

A *run* is a training from its beginning to its last epoch. It is done by several processes, one after the other: each
but the last is killed at a given step, and the next one resumes from the last checkpoint. With several ranks there are
as many processes at a time.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NUM_SAMPLES = 1000
NUM_EPOCHS = 3
SEED = 7
SAVE_EVERY = 5
"""Steps between checkpoints."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a training is run."""

    num_workers: int
    num_ranks: int = 1
    batch_size: int = 10
    """Over all ranks together. It divides the samples, those of each rank and those of each worker."""

    @property
    def share(self) -> int:
        """Samples in a batch of one rank."""
        return self.batch_size // self.num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do."""

    data: str
    """The folder with the datasets of loaders that have a format of their own."""
    folder: str
    """The run's folder: checkpoints and records are here."""
    part: int
    """Number of this process in its run; from 1 on, it resumes."""
    shape: Shape
    rank: int = 0
    is_distributed: bool = False
    """Whether the script is written for several ranks: one part of the run, maybe another one than this, has some."""
    saved_at: int | None = None
    """The step behind which the last checkpoint is to be written, counted from the beginning of the run."""
    stopped_at: int | None = None
    """The step behind which the process is killed."""
    saved_after: int | None = None
    """Instead: the epoch behind whose loop the checkpoint is written, and the process killed."""

    @property
    def checkpoint(self) -> Path:
        """Where the name of the last complete checkpoint is, and the place of the training."""
        return Path(self.folder, "checkpoint.json")

    @property
    def reads(self) -> Path:
        """Where each sample that is read leaves a byte."""
        return Path(self.folder, f"reads-{self.part}-{self.rank}")

    def record(self, part: int, rank: int) -> Path:
        """Return where a process leaves its record."""
        return Path(self.folder, f"record-{part}-{rank}.jsonl")


@dataclass(slots=True)
class Place:
    """Where a training script is; saved with every checkpoint."""

    epoch: int = 0
    step_in_epoch: int = 0
    samples_in_epoch: int = 0
    step: int = 0
    """Since the beginning of the run."""
    folder: str = ""
    """Where the checkpoint is."""


class Recorder:
    """Writes down what one process trains on, says when a checkpoint is due, and kills the process."""

    def __init__(self, job: Job, barrier: Any) -> None:
        self.job = job
        self.step = 0
        self._barrier = barrier
        self._file = job.record(job.part, job.rank).open("w")
        self._begin: float | None = time.perf_counter()

    def trained(self, epoch: int, ids: Sequence[int]) -> None:
        """Record one step of training."""
        self.step += 1
        line: dict[str, Any] = {"epoch": epoch, "ids": list(ids)}
        if self._begin is not None:
            line["seconds"] = time.perf_counter() - self._begin
            line["reads"] = self.job.reads.stat().st_size if self.job.reads.exists() else None
            self._begin = None
        self._write(line)

    def is_due(self) -> bool:
        """Whether a checkpoint is to be written behind the step that was just recorded."""
        last = self.job.saved_at
        return last is not None and self.step <= last and (last - self.step) % SAVE_EVERY == 0

    def is_due_after(self, epoch: int) -> bool:
        """Whether a checkpoint is to be written behind the loop of an epoch."""
        return self.job.saved_after == epoch

    def saved(self) -> None:
        """Record that a checkpoint was written."""
        self._write({"saved": self.step})

    def stop_if_due(self) -> None:
        """Kill the process, and with it the other ranks, if this is the step for it."""
        if self.job.stopped_at is not None and self.step >= self.job.stopped_at:
            self.stop()

    def stop(self) -> None:
        """Kill the process when all ranks are here."""
        self._write({"stopped": self.step})
        self.wait_for_ranks()
        os.kill(os.getpid(), signal.SIGKILL)

    def finished(self) -> None:
        """Record that the training came to its end."""
        self._write({"finished": self.step})

    def wait_for_ranks(self) -> None:
        """Return when all ranks have called this."""
        self._barrier.wait()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read_place(job: Job) -> Place | None:
    """Return where the last complete checkpoint was written; None in a run's first process."""
    return Place(**json.loads(job.checkpoint.read_text())) if job.part else None


def write_place(job: Job, place: Place) -> None:
    """Make a checkpoint the last complete one, in one step."""
    draft = job.checkpoint.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(place)))
    draft.replace(job.checkpoint)


class Samples:
    """A map-style dataset in which every sample is its own number. It counts how many are read, by whatever process."""

    def __init__(self, job: Job) -> None:
        self._reads = str(job.reads)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, position: int) -> dict[str, int]:
        with open(self._reads, "ab") as file:
            file.write(b".")
        return {"ids": int(position)}

    def __repr__(self) -> str:  # Grain compares it when it resumes
        return "Samples()"
