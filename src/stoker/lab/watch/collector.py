"""What watched processes have written down, put together: batches with who made them, loaders with their counters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.engine.stats import Sampled, Stats
from stoker.lab.watch.hook.install import HELLO
from stoker.lab.watch.hook.recording import FAILURE
from stoker.lab.watch.hook.spool import BEGINS, HANDED, LAPS, WORK, LapRow, Reader, Work
from stoker.lab.watch.hook.stoker_loader import STATS
from stoker.lab.watch.loader_totals import Account

MOST_UNCLAIMED = 4096
"""Batches of a worker that were made and not handed over, and are remembered."""

MOSTLY = 0.8
"""Of the waiting for something that iterates over a loader: from here on, it is the loader that is waited for."""


class _Maker:
    """A process that makes batches."""

    def __init__(self, reader: Reader) -> None:
        self.reader: Reader | None = reader
        self.note: dict[str, Any] = {}
        self._unclaimed: dict[tuple[int, int], Work] = {}

    def drain(self) -> None:
        """Take in what is new."""
        if self.reader is None:
            return
        for row in self.reader.rows():
            work = Work(*row)
            self._unclaimed[int(work.turn), int(work.ordinal)] = work
        while len(self._unclaimed) > MOST_UNCLAIMED:
            del self._unclaimed[next(iter(self._unclaimed))]
        self.note = self.reader.note()

    def claimed(self, turn: int, ordinal: int) -> Work | None:
        """Return the making of a batch that has been handed over."""
        work = self._unclaimed.pop((turn, ordinal), None)
        if work is not None and not work.sent and self.reader is not None:
            row = self.reader.row(int(work.serial))  # it was still on its way when it was read
            work = Work(*row) if row is not None else work
        return work

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class Collector:
    """Reads a folder into which watched processes write."""

    def __init__(self, folder: str | Path, *, is_owner: bool = True) -> None:
        self.folder, self._is_owner = Path(folder), is_owner
        self._makers: dict[str, _Maker] = {}
        self._maker_by_pid: dict[int, _Maker] = {}
        self._laps: dict[str, Reader] = {}
        self._notes: dict[int, dict[str, Any]] = {}
        """Of each process that iterates over loaders."""
        self._accounts: dict[tuple[int, int], Account] = {}
        self._counted: dict[int, dict[str, Any]] = {}
        """What Stoker's loaders have counted themselves, by process."""
        self._written: dict[str, int] = {}
        self._heard: set[str] = set()
        self.failures: list[str] = []
        """What has failed of ours, in the processes that were watched."""
        self.commands: list[str] = []
        """The processes in which there were loaders to be watched."""

    # ---------------------------------------------------------------- reading

    def drain(self) -> None:
        """Take in what is new. What was handed over is read first: then it is sure that its making has been written."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        handed: list[tuple[int, LapRow]] = []
        for name in names:
            if name.endswith(LAPS):
                handed += self._drain_laps(name)
        for name in names:
            if name.endswith(WORK):
                self._drain_work(name)
            elif name.endswith(STATS):
                self._read_stats(name)
        self._note_words(names)
        for pid, row in handed:
            self._take(pid, row)
        for maker_name in [name for name, maker in self._makers.items() if maker.reader is not None]:
            self._forget_if_gone(maker_name)

    def _drain_laps(self, name: str) -> list[tuple[int, LapRow]]:
        reader = self._laps.get(name)
        if reader is None:
            reader = _opened(self.folder / name)
            if reader is None:
                return []
            self._laps[name] = reader
        pid = _pid_of(name)
        self._notes[pid] = reader.note() or self._notes.get(pid, {})
        return [(pid, LapRow(*row)) for row in reader.rows()]

    def _drain_work(self, name: str) -> None:
        maker = self._makers.get(name)
        if maker is None:
            reader = _opened(self.folder / name)
            if reader is None:
                return
            maker = self._makers[name] = self._maker_by_pid[_pid_of(name)] = _Maker(reader)
        maker.drain()

    def _read_stats(self, name: str) -> None:
        path = self.folder / name
        with suppress(OSError, ValueError):
            written = path.stat().st_mtime_ns
            if written != self._written.get(name):
                self._counted[_pid_of(name)] = json.loads(path.read_text())
                self._written[name] = written

    def _note_words(self, names: list[str]) -> None:
        for kind, words in ((FAILURE, self.failures), (HELLO, self.commands)):
            for name in names:
                if name.endswith(kind) and name not in self._heard:
                    self._heard.add(name)
                    with suppress(OSError):
                        words.append((self.folder / name).read_text())

    def _forget_if_gone(self, name: str) -> None:
        """Let go of the file of a worker that is gone: a run of many epochs has many of them."""
        pid = _pid_of(name)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            maker = self._makers[name]
            maker.drain()
            maker.close()
            if self._is_owner:
                with suppress(OSError):
                    (self.folder / name).unlink()
        except PermissionError:
            pass

    def _take(self, pid: int, row: LapRow) -> None:
        key = pid, int(row.loader)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(pid)
        if row.kind == BEGINS:
            account.begin(row)
        elif row.kind == HANDED:
            account.add(row, self._work_of(row))
        else:
            account.end(row)

    def _work_of(self, row: LapRow) -> Work | None:
        maker = self._maker_by_pid.get(int(row.pid))
        return None if maker is None else maker.claimed(int(row.turn), int(row.ordinal))

    def close(self) -> None:
        """Let go of all files."""
        for maker in self._makers.values():
            maker.close()
        for reader in self._laps.values():
            reader.close()
        self._laps.clear()

    # ---------------------------------------------------------------- telling

    @property
    def trainers(self) -> dict[int, int | None]:
        """The processes that iterate over loaders, each with the thread that does."""
        return {pid: note.get("thread") for pid, note in self._notes.items()}

    @property
    def has_begun(self) -> bool:
        """Whether any batch has been handed over."""
        is_ours = any(stats.get("num_batches") for told in self._counted.values() for stats in told.values())
        return is_ours or any(len(account.laps) for account in self._accounts.values())

    def stats(self, memory: Mapping[int, int] | None = None) -> list[Stats]:
        """Return the counters of each loader of each process, those with batches alone; `memory` is PSS by process."""
        found = []
        for pid, note in self._notes.items():
            loaders = note.get("loaders", {})
            for number, told in loaders.items():
                stats = self._stats(pid, number, told, memory or {})
                if stats is None or not stats.num_batches:
                    continue
                if self._inside(pid, stats, told, memory or {}) is None:
                    found.append(self._told(stats, pid, int(number), told))
        return self._with_copies(found)

    def stats_of(self, pid: int, number: int, memory: Mapping[int, int] | None = None) -> Stats | None:
        """Return the counters of one loader; None if it has given no batch."""
        told = self._notes.get(pid, {}).get("loaders", {}).get(str(number))
        stats = None if told is None else self._stats(pid, str(number), told, memory or {})
        if stats is None or not stats.num_batches:
            return None
        inside = self._inside(pid, stats, told, memory or {})
        if inside is not None:
            return self.stats_of(pid, inside, memory)
        return self._with_copies([self._told(stats, pid, number, told)])[0]

    def _inside(self, pid: int, stats: Stats, told: dict[str, Any], memory: Mapping[int, int]) -> int | None:
        """Return the number of the loader that something else stands for, if that is what is waited for: then its
        counters, with its workers, tell all that is to be told.
        """
        loaders = self._notes.get(pid, {}).get("loaders", {})
        for number, seconds in told.get("inside", {}).items():
            inner = self._stats(pid, number, loaders[number], memory) if number in loaders else None
            if inner is None or abs(inner.num_batches - stats.num_batches) > stats.num_iterations:
                continue  # batches are put together, or taken apart, on the way
            if seconds >= MOSTLY * stats.stages["wait"].waiting_seconds:
                return int(number)
        return None

    def _stats(self, pid: int, number: str, told: dict[str, Any], memory: Mapping[int, int]) -> Stats | None:
        counted = self._counted.get(pid, {}).get(number)
        if counted is not None:
            return Stats.from_dict(counted)
        account = self._accounts.get((pid, int(number)))
        return None if account is None else account.stats(told, memory)

    def _told(self, stats: Stats, pid: int, number: int, told: dict[str, Any]) -> Stats:
        """Return counters with what a doctor has looked at besides."""
        note = self._notes[pid]
        makers = self._makers_of(pid, number, stats)
        facts = {**stats.facts, **told.get("facts", {}), "cuda": bool(note.get("copies"))}
        looked = [maker.note["looked"] for maker in makers if "looked" in maker.note]
        if looked:
            facts["looked_at_worker"] = any(looked)
        threads = [maker.note["threads"] for maker in makers if stats.engine == "threads" and "threads" in maker.note]
        if threads:
            facts["threads_cpu_seconds"] = sum(one["cpu"] for one in threads)
            facts["threads_delay_seconds"] = sum(one["delay"] for one in threads)
        before = [maker.note["before"] for maker in makers if "before" in maker.note]
        if before:  # what workers had used before they made anything, by importing for one
            facts["workers_before"] = [sum(column) for column in zip(*before)]
        is_ranked = stats.kind != "stoker" or stats.num_ranks == 1
        return replace(
            stats,
            name=told.get("name", ""),
            config={**told.get("config", {}), **stats.config},
            facts=facts,
            rank=note.get("rank", 0) if is_ranked else stats.rank,
            num_ranks=note.get("num_ranks", 1) if is_ranked else stats.num_ranks,
            construction_seconds=told.get("construction_seconds"),
            sampled=_sampled([maker.note.get("sampled", {}) for maker in makers]),
            steps_sampled=Sampled.from_dict(steps) if (steps := note.get("steps", {}).get(str(number))) else None,
            duplicate_share=_duplicate_share(told.get("prints", {})),
        )

    def _makers_of(self, pid: int, number: int, stats: Stats) -> list[_Maker]:
        account = self._accounts.get((pid, number))
        pids = set() if account is None else account.pids
        if stats.engine != "processes" or stats.kind == "iterable":
            pids = pids | {pid}
        return [
            maker
            for name, maker in self._makers.items()
            if _pid_of(name) in pids
            or (stats.kind == "stoker" and stats.engine == "processes" and maker.note.get("loader") == number)
        ]

    def _with_copies(self, found: list[Stats]) -> list[Stats]:
        """Give what a process has copied to the loader of its that gave most batches: it cannot be told apart."""
        for note in self._notes.values():
            copies = note.get("copies")
            own = [stats for stats in found if stats.trainer is not None and stats.trainer.pid == note.get("pid")]
            if not copies or not own:
                continue
            main = max(own, key=lambda stats: stats.num_batches)
            if main.copies is None:
                found[found.index(main)] = replace(main, copies=_copies(copies))
        return found


def _copies(told: dict[str, Any]) -> Any:
    from stoker.engine.stats import Copies

    return Copies(
        num=told["num"],
        num_pageable=told["pageable"],
        num_blocking=told["blocking"],
        seconds=told["seconds"],
        device_seconds=told["device_seconds"] / told["timed"] if told["timed"] else None,
    )


def _sampled(notes: list[dict[str, Any]]) -> Sampled | None:
    """Return what several processes have seen of themselves, together."""
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
    """Return which share of samples had come from another worker before; None if they cannot be told apart."""
    num, num_distinct, num_over_all = (prints.get(name, 0) for name in ("num", "num_distinct", "num_over_all"))
    if num < 16 or num_distinct < num / 2:
        return None  # too few, or samples that are alike within one worker: all zeros, perhaps
    return 1 - num_over_all / num_distinct


def _pid_of(name: str) -> int:
    return int(name.partition("-")[0].partition(".")[0])


def _opened(path: Path) -> Reader | None:
    try:
        return Reader(str(path))
    except (OSError, ValueError):  # just being made, or not by us
        return None
