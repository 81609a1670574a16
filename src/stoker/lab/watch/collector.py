"""Collect what watched processes write: batches with how they were loaded, loaders with their counters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.engine.stats import Copies, Sampled, Stats
from stoker.lab.watch.hook.install import HELLO_SUFFIX
from stoker.lab.watch.hook.recording import FAILURE_SUFFIX
from stoker.lab.watch.hook.spool import (
    BEGINS,
    HANDED,
    TRAINER_SUFFIX,
    WORKER_SUFFIX,
    SpoolReader,
    TrainerRow,
    WorkerRow,
)
from stoker.lab.watch.hook.stoker_loader import STATS_SUFFIX
from stoker.lab.watch.loader_totals import LoaderTotals

MAX_UNCLAIMED = 4096
"""Batches of a worker that were loaded but not yet delivered, and are remembered."""

MOSTLY = 0.8
"""Share of the waiting for an object that iterates over a loader, from which it is the loader that is waited for."""

MIN_COMPARED = 16
"""Samples of a stream that must have been compared to find repetitions."""


class _WorkerFile:
    """What a process that loads batches writes."""

    def __init__(self, reader: SpoolReader) -> None:
        self.reader: SpoolReader | None = reader
        self.note: dict[str, Any] = {}
        self._unclaimed: dict[tuple[int, int], WorkerRow] = {}

    def drain(self) -> None:
        """Read what is new."""
        if self.reader is None:
            return
        for row in self.reader.rows():
            work = WorkerRow(*row)
            self._unclaimed[int(work.turn), int(work.ordinal)] = work
        while len(self._unclaimed) > MAX_UNCLAIMED:
            del self._unclaimed[next(iter(self._unclaimed))]
        self.note = self.reader.note()

    def claim(self, turn: int, ordinal: int) -> WorkerRow | None:
        """Return and forget how a batch was loaded that is now delivered."""
        work = self._unclaimed.pop((turn, ordinal), None)
        if work is not None and not work.sent and self.reader is not None:
            row = self.reader.row(int(work.serial))  # it was still on its way when it was read
            work = WorkerRow(*row) if row is not None else work
        return work

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class Collector:
    """Reads the folder into which watched processes write."""

    def __init__(self, folder: str | Path, *, is_owner: bool = True) -> None:
        self.folder, self._is_owner = Path(folder), is_owner
        self._workers: dict[str, _WorkerFile] = {}
        self._worker_by_pid: dict[int, _WorkerFile] = {}
        self._trainers: dict[str, SpoolReader] = {}
        self._notes: dict[int, dict[str, Any]] = {}
        """Of each process that iterates over loaders."""
        self._totals: dict[tuple[int, int], LoaderTotals] = {}
        self._stoker_stats: dict[int, dict[str, Any]] = {}
        """What Stoker's loaders have counted themselves, by process."""
        self._written: dict[str, int] = {}
        self._read_once: set[str] = set()
        self.failures: list[str] = []
        """Tracebacks of what failed in watching, in the watched processes."""
        self.commands: list[str] = []
        """The processes that imported a module with loaders."""

    # ---------------------------------------------------------------- reading

    def drain(self) -> None:
        """Read what is new. Deliveries are read first, so that how a delivered batch was loaded has been written."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        delivered: list[tuple[int, TrainerRow]] = []
        for name in names:
            if name.endswith(TRAINER_SUFFIX):
                delivered += self._drain_trainer(name)
        for name in names:
            if name.endswith(WORKER_SUFFIX):
                self._drain_worker(name)
            elif name.endswith(STATS_SUFFIX):
                self._read_stats(name)
            elif name.endswith((FAILURE_SUFFIX, HELLO_SUFFIX)) and name not in self._read_once:
                self._read_once.add(name)
                with suppress(OSError):
                    text = (self.folder / name).read_text()
                    (self.failures if name.endswith(FAILURE_SUFFIX) else self.commands).append(text)
        for pid, row in delivered:
            self._add(pid, row)
        for name in [name for name, worker in self._workers.items() if worker.reader is not None]:
            self._close_if_gone(name)

    def _drain_trainer(self, name: str) -> list[tuple[int, TrainerRow]]:
        reader = self._trainers.get(name)
        if reader is None:
            reader = _open(self.folder / name)
            if reader is None:
                return []
            self._trainers[name] = reader
        pid = _pid_of(name)
        self._notes[pid] = reader.note() or self._notes.get(pid, {})
        return [(pid, TrainerRow(*row)) for row in reader.rows()]

    def _drain_worker(self, name: str) -> None:
        worker = self._workers.get(name)
        if worker is None:
            reader = _open(self.folder / name)
            if reader is None:
                return
            worker = self._workers[name] = self._worker_by_pid[_pid_of(name)] = _WorkerFile(reader)
        worker.drain()

    def _read_stats(self, name: str) -> None:
        path = self.folder / name
        with suppress(OSError, ValueError):
            written = path.stat().st_mtime_ns
            if written != self._written.get(name):
                self._stoker_stats[_pid_of(name)] = json.loads(path.read_text())
                self._written[name] = written

    def _close_if_gone(self, name: str) -> None:
        """Close the file of a worker that has exited: a run of many epochs has many of them."""
        try:
            os.kill(_pid_of(name), 0)
        except ProcessLookupError:
            worker = self._workers[name]
            worker.drain()
            worker.close()
            if self._is_owner:
                with suppress(OSError):
                    (self.folder / name).unlink()
        except PermissionError:
            pass

    def _add(self, pid: int, row: TrainerRow) -> None:
        key = pid, int(row.loader)
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = LoaderTotals(pid)
        if row.kind == BEGINS:
            totals.begin(row)
        elif row.kind == HANDED:
            worker = self._worker_by_pid.get(int(row.pid))
            totals.add(row, None if worker is None else worker.claim(int(row.turn), int(row.ordinal)))
        else:
            totals.end(row)

    def close(self) -> None:
        """Close all files."""
        for worker in self._workers.values():
            worker.close()
        for reader in self._trainers.values():
            reader.close()
        self._trainers.clear()

    # ---------------------------------------------------------------- results

    @property
    def trainers(self) -> dict[int, int | None]:
        """The processes that iterate over loaders, each with the thread that does."""
        return {pid: note.get("thread") for pid, note in self._notes.items()}

    @property
    def has_begun(self) -> bool:
        """Whether any batch has been delivered."""
        stoker_stats = [stats for loaders in self._stoker_stats.values() for stats in loaders.values()]
        has_totals = any(len(totals.timeline) for totals in self._totals.values())
        return has_totals or any(stats.get("num_batches") for stats in stoker_stats)

    def stats(self, memory: Mapping[int, int] | None = None) -> list[Stats]:
        """Return the counters of each loader that delivered batches, in each process; `memory` is PSS by process."""
        found = []
        for pid, note in self._notes.items():
            for number in note.get("loaders", {}):
                stats = self._count(pid, number, memory or {})
                if stats is not None and self._find_inside(pid, number, stats, memory or {}) is None:
                    found.append(self._add_notes(stats, pid, number))
        return self._with_copies(found)

    def stats_of(self, pid: int, number: int, memory: Mapping[int, int] | None = None) -> Stats | None:
        """Return the counters of one loader; None if it delivered no batch."""
        stats = self._count(pid, str(number), memory or {})
        if stats is None:
            return None
        inside = self._find_inside(pid, str(number), stats, memory or {})
        if inside is not None:
            return self.stats_of(pid, inside, memory)
        return self._with_copies([self._add_notes(stats, pid, str(number))])[0]

    def _note_of(self, pid: int, number: str) -> dict[str, Any] | None:
        """Return the trainer's note on a loader."""
        note: dict[str, Any] | None = self._notes.get(pid, {}).get("loaders", {}).get(number)
        return note

    def _find_inside(self, pid: int, number: str, stats: Stats, memory: Mapping[int, int]) -> int | None:
        """Return the number of the loader inside a watched object, if that loader is what is waited for: its counters
        then say more, with its workers.
        """
        for inner_number, seconds in (self._note_of(pid, number) or {}).get("inside", {}).items():
            inner = self._count(pid, inner_number, memory)
            if inner is None or abs(inner.num_batches - stats.num_batches) > stats.num_iterations:
                continue  # the object joins or splits batches
            if seconds >= MOSTLY * stats.stages["wait"].waiting_seconds:
                return int(inner_number)
        return None

    def _count(self, pid: int, number: str, memory: Mapping[int, int]) -> Stats | None:
        """Return what was counted of a loader; None if it delivered no batch."""
        note = self._note_of(pid, number)
        if note is None:
            return None
        record = self._stoker_stats.get(pid, {}).get(number)
        if record is not None:
            stats = Stats.from_dict(record)
        else:
            totals = self._totals.get((pid, int(number)))
            if totals is None:
                return None
            stats = totals.stats(note, memory)
        return stats if stats.num_batches else None

    def _add_notes(self, stats: Stats, pid: int, number: str) -> Stats:
        """Return counters with what the hook has noted besides."""
        trainer, loader = self._notes[pid], self._note_of(pid, number) or {}
        workers = [worker.note for worker in self._workers_of(pid, int(number), stats)]
        facts = {**stats.facts, **loader.get("facts", {}), "cuda": bool(trainer.get("copies"))}
        looked = [note["looked"] for note in workers if "looked" in note]
        if looked:
            facts["looked_at_worker"] = any(looked)
        threads = [note["threads"] for note in workers if stats.engine == "threads" and "threads" in note]
        if threads:
            facts["threads_cpu_seconds"] = sum(used["cpu"] for used in threads)
            facts["threads_delay_seconds"] = sum(used["delay"] for used in threads)
        before = [note["before"] for note in workers if "before" in note]
        if before:  # what workers used before they loaded anything, for imports for example
            facts["workers_before"] = [sum(column) for column in zip(*before)]
        is_ranked = stats.kind != "stoker" or stats.num_ranks == 1
        steps = trainer.get("steps", {}).get(number)
        return replace(
            stats,
            name=loader.get("name", ""),
            config={**loader.get("config", {}), **stats.config},
            facts=facts,
            rank=trainer.get("rank", 0) if is_ranked else stats.rank,
            num_ranks=trainer.get("num_ranks", 1) if is_ranked else stats.num_ranks,
            construction_seconds=loader.get("construction_seconds"),
            sampled=_join_samples([note.get("sampled", {}) for note in workers]),
            steps_sampled=Sampled.from_dict(steps) if steps else None,
            duplicate_share=_duplicate_share(loader.get("prints", {})),
        )

    def _workers_of(self, pid: int, number: int, stats: Stats) -> list[_WorkerFile]:
        totals = self._totals.get((pid, number))
        pids = set() if totals is None else totals.pids
        if stats.engine != "processes" or stats.kind == "iterable":
            pids = pids | {pid}
        has_own = stats.kind == "stoker" and stats.engine == "processes"
        return [
            worker
            for name, worker in self._workers.items()
            if _pid_of(name) in pids or (has_own and worker.note.get("loader") == number)
        ]

    def _with_copies(self, found: list[Stats]) -> list[Stats]:
        """Attribute a process's copies to its loader with most batches, as it is unknown whose batches were copied."""
        for note in self._notes.values():
            copies = note.get("copies")
            own = [stats for stats in found if stats.trainer is not None and stats.trainer.pid == note.get("pid")]
            if not copies or not own:
                continue
            main = max(own, key=lambda stats: stats.num_batches)
            if main.copies is None:
                device_seconds = copies["device_seconds"] / copies["timed"] if copies["timed"] else None
                record = Copies(
                    num=copies["num"],
                    num_pageable=copies["pageable"],
                    num_blocking=copies["blocking"],
                    seconds=copies["seconds"],
                    device_seconds=device_seconds,
                )
                found[found.index(main)] = replace(main, copies=record)
        return found


def _join_samples(notes: list[dict[str, Any]]) -> Sampled | None:
    """Return what several processes sampled of themselves as one record."""
    looks = sum(note.get("looks", 0) for note in notes)
    num = sum(note.get("num", 0) + note.get("unplaced", 0) for note in notes)
    if not num:
        return None
    places: dict[str, float] = {}
    for note in notes:
        for place, count in note.get("places", {}).items():
            places[place] = places.get(place, 0.0) + count / num
    return Sampled(
        num=num,
        places=dict(sorted(places.items(), key=lambda item: -item[1])),
        gil_share=sum(note.get("held", 0) for note in notes) / looks if looks else None,
    )


def _duplicate_share(prints: dict[str, int]) -> float | None:
    """Return the share of samples that had come from another worker before; None if that cannot be said."""
    num, num_distinct, num_over_all = (prints.get(name, 0) for name in ("num", "num_distinct", "num_over_all"))
    if num < MIN_COMPARED or num_distinct < num / 2:
        return None  # too few, or samples that are alike within one worker, such as all zeros
    return 1 - num_over_all / num_distinct


def _pid_of(name: str) -> int:
    return int(name.partition("-")[0].partition(".")[0])


def _open(path: Path) -> SpoolReader | None:
    try:
        return SpoolReader(str(path))
    except (OSError, ValueError):  # just being created, or another program's
        return None
