"""The counters of a loader that does not count by itself, from what was seen of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.engine.stats import ProcessStats, Quantiles, Stage, Stats
from stoker.engine.timing import FOLDED_TOGETHER, WIDTH, BatchTimeline, BatchTimes
from stoker.lab.watch.hook.spool import LapRow, Work


@dataclass(slots=True)
class _Worker:
    """What those who had one place among the workers have used."""

    num_batches: int = 0
    busy_seconds: float = 0.0
    delay_seconds: float = 0.0
    pid: int = 0


class Account:
    """One loader in one process, lap by lap."""

    def __init__(self, trainer: int) -> None:
        self.laps = BatchTimeline()
        self._trainer = trainer
        self._num_iterations = self._num_samples = 0
        self._sized_bytes = self._num_sized = 0
        self._cpu = {"read": 0.0, "collate": 0.0}
        self._num_known = 0
        self._wait_cpu = self._wait_delay = 0.0
        self._workers: dict[int, _Worker] = {}
        self._used: dict[int, tuple[int, float, float]] = {}
        """Of each process: which worker it is, its CPU seconds, and the bytes that it read."""
        self._last: LapRow | None = None
        """The row before, of the iteration that is on."""
        self._trainer_used = [0.0, 0.0, 0.0]
        """Of the trainer, within iterations: CPU seconds, the delay of its thread, and the bytes that it read."""

    @property
    def pids(self) -> set[int]:
        """The processes that made batches."""
        return set(self._used)

    def begin(self, row: LapRow) -> None:
        """An iteration begins."""
        self._num_iterations += 1
        self.laps.begin()
        self._last = row

    def end(self, row: LapRow) -> None:
        """An iteration is over."""
        self._note_trainer(row)
        self._last = None

    def add(self, row: LapRow, work: Work | None) -> None:
        """Count a batch, with how it was made if that is known."""
        self._note_trainer(row)
        self._wait_cpu += row.wait_cpu
        self._wait_delay += row.wait_delay
        if row.num_bytes:
            self._sized_bytes += int(row.num_bytes)
            self._num_sized += 1
        if work is None:
            waited = row.handed - row.asked
            # who made it is not known: as if it was made while it was waited for, which is all that is sure
            began, made, sent = row.asked, row.handed, row.handed
            read, collate = (waited if row.worker < 0 else 0.0), 0.0
            self._num_samples += int(row.num_samples)
        else:
            began, made, sent = work.began, work.made, work.sent or work.made
            read, collate = work.read, work.collate
            self._num_samples += int(work.num_samples)
            self._note_work(row, work)
        self.laps.extend(
            BatchTimes(
                asked=row.asked,
                handed=row.handed,
                copy=row.copy,
                began=began,
                made=made,
                read=read,
                transform=0.0,
                collate=collate,
                worker=row.worker,
                sent=sent,
                unpack=row.unpack,
            )
        )
        if len(self.laps.unsummed) >= FOLDED_TOGETHER * WIDTH:
            self.laps.fold()

    def _note_trainer(self, row: LapRow) -> None:
        before, self._last = self._last, row
        if before is not None:
            pairs = ((row.cpu, before.cpu), (row.delay, before.delay), (row.read_bytes, before.read_bytes))
            for number, (now, then) in enumerate(pairs):
                self._trainer_used[number] += max(0.0, now - then)

    def _note_work(self, row: LapRow, work: Work) -> None:
        self._num_known += 1
        self._cpu["read"] += work.read_cpu
        self._cpu["collate"] += work.collate_cpu
        self._used[int(row.pid)] = int(row.worker), work.cpu, work.read_bytes
        worker = self._workers.setdefault(int(row.worker), _Worker())
        worker.num_batches += 1
        worker.busy_seconds += work.made - work.began
        worker.delay_seconds += work.delay
        worker.pid = int(row.pid)

    def stats(self, told: dict[str, Any], memory: Mapping[int, int]) -> Stats:
        """Return what was counted; `told` is what is known of the loader, `memory` is PSS by process."""
        laps = self.laps
        laps.fold()
        config = told.get("config", {})
        seconds = laps.periods.total + sum(laps.first_seconds) + laps.forgotten_seconds
        num_workers = config.get("num_workers") or 0
        is_known = self._num_known > 0
        return Stats(
            kind=told.get("kind", "iterable"),
            engine="processes" if num_workers else "inline",
            config=config,
            seconds=seconds,
            num_iterations=self._num_iterations,
            num_batches=len(laps),
            num_samples=self._num_samples,
            num_bytes=self._sized_bytes * len(laps) // self._num_sized if self._num_sized else 0,
            first_batch_seconds=list(laps.first_seconds),
            batch_seconds=Quantiles.of(laps.periods),
            wait_seconds=Quantiles.of(laps.waits),
            step_seconds=Quantiles.of(laps.steps),
            making_seconds=Quantiles.of(laps.makings),
            stages=self._stages(seconds, num_workers, is_known=is_known),
            wait_cpu_seconds=self._wait_cpu,
            wait_delay_seconds=self._wait_delay,
            num_stalls=laps.num_stalls,
            stall_seconds=laps.stall_seconds,
            queue_depth=laps.mean_depth if is_known else None,
            queue_empty_share=laps.num_empty / laps.num_asked if is_known and laps.num_asked else None,
            trainer=self._trainers(memory),
            workers=self._workers_stats(memory),
            laps=laps.latest(),
        )

    def _stages(self, seconds: float, num_workers: int, *, is_known: bool) -> dict[str, Stage]:
        laps, sums = self.laps, self.laps.sums
        busy = sums["read"] + sums["collate"] + sums["pack"]
        cpu = self._cpu if is_known else {"read": self._wait_cpu, "collate": None}
        return {
            "read": Stage(
                busy_seconds=sums["read"],
                waiting_seconds=max(0.0, num_workers * seconds - busy),
                cpu_seconds=cpu["read"],
            ),
            "transform": Stage(),
            "collate": Stage(busy_seconds=sums["collate"], cpu_seconds=cpu["collate"]),
            "hand-over": Stage(busy_seconds=sums["pack"] + sums["unpack"], waiting_seconds=sums["ready"]),
            "copy": Stage(busy_seconds=sums["copy"]),
            "wait": Stage(
                waiting_seconds=laps.waits.total + sum(laps.first_seconds) + laps.forgotten_seconds,
                cpu_seconds=self._wait_cpu,
            ),
        }

    def _trainers(self, memory: Mapping[int, int]) -> ProcessStats:
        cpu, delay, read_bytes = self._trainer_used
        here = self._workers.get(-1, _Worker())
        return ProcessStats(
            pid=self._trainer,
            role="trainer",
            cpu_seconds=cpu,
            delay_seconds=delay,
            read_bytes=int(read_bytes),
            pss_bytes=memory.get(self._trainer),
            num_batches=here.num_batches or None,
            busy_seconds=here.busy_seconds or None,
        )

    def _workers_stats(self, memory: Mapping[int, int]) -> list[ProcessStats]:
        return [
            ProcessStats(
                pid=worker.pid,
                role=f"worker {number}",
                cpu_seconds=sum(cpu for who, cpu, _ in self._used.values() if who == number),
                delay_seconds=worker.delay_seconds,
                read_bytes=int(sum(size for who, _, size in self._used.values() if who == number)),
                pss_bytes=memory.get(worker.pid),
                num_batches=worker.num_batches,
                busy_seconds=worker.busy_seconds,
            )
            for number, worker in sorted(self._workers.items())
            if number >= 0
        ]
