"""One run of a preparation: reuse the pieces that are complete, and make the others in worker processes.

What a piece is and how it is made (tokens, a random order, images) is passed in.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.prepare.pieces import key_of
from stoker.prepare.report import PreparationProgress, Stage, Watch
from stoker.prepare.store_target import Target
from stoker.prepare.worker_pool import NUM_COUNTS, Cell, WorkerPool
from stoker.store import Build
from stoker.store.lock import Lock, locked

Notes = dict[str, Any]
"""What is recorded with a piece: JSON values, among them its counts."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Job(Protocol):
    """A piece of a store: a frozen dataclass."""

    @property
    def key(self) -> str:
        """Identity of the piece; part of its shards' names."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of its input, for progress and for the order of work."""
        ...

    def describe(self) -> str:
        """Return which piece it is, for messages."""
        ...


J = TypeVar("J", bound=Job)


@contextmanager
def start_run(target: Target, *, num_workers: int, watch: Watch | None) -> Iterator[PieceRun]:
    """Lock the target, remove what a killed run left half-written, and give the run."""
    with locked(target.unfinished) as lock:
        target.clear_up()
        try:
            yield PieceRun(target, lock, num_workers=num_workers, watch=watch)
        except OSError as error:
            if error.errno in _DISK_FULL:
                error.add_note("finished pieces are kept")
                error.add_note("hint: free space on the disk and run the same command again: it continues")
            raise


class PieceRun:
    """Makes what is missing in a target, which it has locked, and counts the pieces."""

    def __init__(self, target: Target, lock: Lock, *, num_workers: int, watch: Watch | None) -> None:
        self._target, self._lock = target, lock
        self.num_workers, self._watch = num_workers, watch
        self.num_pieces = self.num_made = self.num_removed = 0

    def complete(
        self,
        build: Build,
        pieces: Sequence[J],
        work_for: Callable[[Sequence[J]], Callable[[J, Cell], Notes]],
        *,
        stage: Stage,
        on_error: Literal["raise", "skip"],
    ) -> tuple[list[J], list[Notes]]:
        """Make the pieces that are missing; return all pieces, with their final keys, and the notes of each.

        `work_for` is called with the missing pieces, if there are any, and returns the function that makes one.
        """
        chosen: list[J] = []
        notes: dict[str, Notes] = {}
        for piece in pieces:
            record = build.record(piece.key)
            if record is not None and on_error == "raise" and record["notes"]["skipped"]["count"]:
                # A piece with something skipped cannot be used with on_error="raise". It is made again under another
                # name, to raise the error, so that the existing store keeps its shards if that fails.
                piece = replace(piece, key=key_of(piece.key, "nothing left out"))  # type: ignore[type-var]
                record = build.record(piece.key)
            if record is not None:
                notes[piece.key] = record["notes"]
            chosen.append(piece)
        self.num_pieces += len(chosen)
        missing = [piece for piece in chosen if piece.key not in notes]
        if missing:
            notes |= self.make(missing, work_for(missing), stage=stage)
        return chosen, [notes[piece.key] for piece in chosen]

    def make(self, jobs: Sequence[J], work: Callable[[J, Cell], Notes], *, stage: Stage) -> dict[str, Notes]:
        """Make pieces in worker processes, and return the notes of each by key."""
        jobs = sorted(jobs, key=lambda job: -job.num_bytes)  # the largest first, so that workers end at the same time
        num_bytes = sum(job.num_bytes for job in jobs)
        done = Counter[str]()
        notes: dict[str, Notes] = {}

        def report(counts: Sequence[int] = (0,) * NUM_COUNTS) -> None:
            if self._watch is not None:
                documents, tokens, num_read = counts
                self._watch(
                    PreparationProgress(
                        stage=stage,
                        num_read=done["num_read"] + num_read,
                        num_bytes=num_bytes,
                        documents=done["documents"] + documents,
                        tokens=done["tokens"] + tokens,
                        pieces_done=len(notes),
                        num_pieces=len(jobs),
                    )
                )

        report()
        num_workers = min(self.num_workers, len(jobs))
        with WorkerPool(
            work, num_workers=num_workers, describe=lambda job: job.describe(), watch=report, begin=self._lock.leave
        ) as pool:
            for number, noted in pool.results(jobs):
                job = jobs[number]
                notes[job.key] = noted
                # "pictures" is the name in stores of images, whose format must not change
                documents = noted["documents"] if "documents" in noted else noted["pictures"]
                done.update(documents=documents, tokens=noted.get("tokens", 0), num_read=job.num_bytes)
                self.num_made += 1
                report()
        return notes

    def finish(self, build: Build, keys: Sequence[str], *, meta: Mapping[str, Any], keeps_read: bool = False) -> None:
        """Write the manifest of the store, and count the pieces of the previous one that it removes."""
        before = self._target.piece_keys()
        build.finish(keys, meta=meta, keeps_read=keeps_read)
        self.num_removed = len(before - self._target.piece_keys())


def count_skips(notes: Iterable[Notes]) -> Counter[str]:
    """Return how much was skipped, by reason."""
    reasons: Counter[str] = Counter()
    for noted in notes:
        reasons.update(noted["skipped"]["reasons"])
    return reasons


def checked_workers(workers: int | None) -> int:
    """Return the number of worker processes: by default one per core."""
    if workers is not None and workers < 0:
        raise ArgumentError(
            f"workers must not be negative, got {workers}", hint="pass a number of processes; 0 works in this process"
        )
    return machine.num_cores() if workers is None else workers
