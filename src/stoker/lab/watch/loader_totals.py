"""Count for a loader that does not count by itself, from what was recorded of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.engine.stats import ProcessStats, Stats
from stoker.engine.timing import FOLDED_TOGETHER, WIDTH, BatchTimeline, BatchTimes
from stoker.lab.watch.hook.spool import TrainerRow, WorkerRow


@dataclass(slots=True)
class _WorkerUse:
    """What the processes with one worker number have used."""

    num_batches: int = 0
    busy_seconds: float = 0.0
    delay_seconds: float = 0.0
    pid: int = 0


class LoaderTotals:
    """The counters of one loader in one process."""

    def __init__(self, trainer: int) -> None:
        self.timeline = BatchTimeline()
        self._trainer = trainer
        self._num_iterations = self._num_samples = 0
        self._sized_bytes = self._num_sized = 0
        self._num_known = 0
        self._read_cpu = self._collate_cpu = self._wait_cpu = self._wait_delay = 0.0
        self._workers: dict[int, _WorkerUse] = {}
        self._used: dict[int, tuple[int, float, float]] = {}
        """Of each process: which worker it is, its CPU seconds, and the bytes that it read."""
        self._last: TrainerRow | None = None
        """The row before, of the running iteration."""
        self._trainer_used = [0.0, 0.0, 0.0]
        """Of the trainer, within iterations: CPU seconds, the delay of its thread, and the bytes that it read."""

    @property
    def pids(self) -> set[int]:
        """The processes that loaded batches."""
        return set(self._used)

    def begin(self, row: TrainerRow) -> None:
        """Count the beginning of an iteration."""
        self._num_iterations += 1
        self.timeline.begin()
        self._last = row

    def end(self, row: TrainerRow) -> None:
        """Count the end of an iteration."""
        self._add_trainer(row)
        self._last = None

    def add(self, row: TrainerRow, work: WorkerRow | None) -> None:
        """Count a batch; `work` is how it was loaded, if that is known."""
        self._add_trainer(row)
        self._wait_cpu += row.wait_cpu
        self._wait_delay += row.wait_delay
        if row.num_bytes:
            self._sized_bytes += int(row.num_bytes)
            self._num_sized += 1
        if work is None:
            # as if it was loaded while it was waited for, which is all that is certain
            began, made, sent = row.asked, row.handed, row.handed
            read, collate = (row.handed - row.asked if row.worker < 0 else 0.0), 0.0
            self._num_samples += int(row.num_samples)
        else:
            began, made, sent = work.began, work.made, work.sent or work.made
            read, collate = work.read, work.collate
            self._num_samples += int(work.num_samples)
            self._add_work(row, work)
        times = BatchTimes(
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
        self.timeline.extend(times)
        if len(self.timeline.unsummed) >= FOLDED_TOGETHER * WIDTH:
            self.timeline.fold()

    def _add_trainer(self, row: TrainerRow) -> None:
        before, self._last = self._last, row
        if before is not None:
            used = (row.cpu - before.cpu, row.delay - before.delay, row.read_bytes - before.read_bytes)
            self._trainer_used = [total + max(0.0, more) for total, more in zip(self._trainer_used, used)]

    def _add_work(self, row: TrainerRow, work: WorkerRow) -> None:
        self._num_known += 1
        self._read_cpu += work.read_cpu
        self._collate_cpu += work.collate_cpu
        self._used[int(row.pid)] = int(row.worker), work.cpu, work.read_bytes
        worker = self._workers.setdefault(int(row.worker), _WorkerUse())
        worker.num_batches += 1
        worker.busy_seconds += work.made - work.began
        worker.delay_seconds += work.delay
        worker.pid = int(row.pid)

    def stats(self, loader: dict[str, Any], memory: Mapping[int, int]) -> Stats:
        """Return the counters. `loader` is the trainer's note on the loader, `memory` PSS by process."""
        config = loader.get("config", {})
        is_known = self._num_known > 0
        stats = Stats.of_timeline(
            self.timeline,
            engine="processes" if config.get("num_workers") else "inline",
            kind=loader.get("kind", "iterable"),
            config=config,
            num_iterations=self._num_iterations,
            num_samples=self._num_samples,
            num_bytes=self._sized_bytes * len(self.timeline) // self._num_sized if self._num_sized else 0,
            wait_cpu_seconds=self._wait_cpu,
            wait_delay_seconds=self._wait_delay,
            trainer=self._trainer_stats(memory),
            workers=self._worker_stats(memory),
            laps=self.timeline.latest(),
        )
        cpu = {"wait": self._wait_cpu, "read": self._read_cpu if is_known else self._wait_cpu}
        if is_known:
            cpu["collate"] = self._collate_cpu
        stages = {name: replace(stage, cpu_seconds=cpu.get(name)) for name, stage in stats.stages.items()}
        if is_known:
            return replace(stats, stages=stages)
        return replace(stats, stages=stages, queue_depth=None, queue_empty_share=None)

    def _trainer_stats(self, memory: Mapping[int, int]) -> ProcessStats:
        cpu, delay, read_bytes = self._trainer_used
        here = self._workers.get(-1, _WorkerUse())
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

    def _worker_stats(self, memory: Mapping[int, int]) -> list[ProcessStats]:
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
