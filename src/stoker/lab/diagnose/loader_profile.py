"""Compute from a loader's counters what its time was spent on.

Two questions lead to a verdict. What did the training loop wait for: was the batch still being loaded, or on its way?
And what did the workers do meanwhile: were they on a core, blocked, or ready to run without a core?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from stoker.engine.stats import Stats
from stoker.engine.timing import STALL_SECONDS, STALL_SHARE
from stoker.lab.watch.run import Moment

SMALL_BYTES = 1 << 20
"""A batch smaller than this takes as long from worker to trainer as one of a few bytes."""

GIL_HELD_SHARE = 0.6
"""From here on, work counts as Python: the GIL was held in so many samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """How many cores were in use, on average over a run."""

    cores: int = 0
    """Cores that the run may use; 0 if unknown."""
    trainer_cores: float = 0.0
    workers_cores: float = 0.0
    others_cores: float = 0.0
    trainer_delay_share: float | None = None
    """Share of the time in which the training thread was ready to run but had no core, if measured."""
    is_measured: bool = False
    """Whether use of the cores was measured; otherwise the three numbers are 0 and mean nothing."""

    @property
    def is_crowded(self) -> bool:
        """Whether the cores are taken, and to a large part by other programs."""
        whole = self.trainer_cores + self.workers_cores + self.others_cores
        return self.cores > 0 and whole >= 0.85 * self.cores and self.others_cores >= 0.4 * self.cores

    def with_workers(self, cpu_seconds: float, seconds: float) -> MachineLoad:
        """Return the load with the workers' total CPU time taken into account, if that is more than was sampled.

        Workers that live for less than a sampling interval are missed, and their CPU time is taken for that of others.
        """
        missed = cpu_seconds / seconds - self.workers_cores if self.is_measured and seconds > 0 else 0.0
        if missed <= 0:
            return self
        others_cores = max(0.0, self.others_cores - missed)
        return replace(self, workers_cores=self.workers_cores + missed, others_cores=others_cores)

    @staticmethod
    def of(moments: Sequence[Moment], *, cores: int = 0) -> MachineLoad:
        """Return the means of all moments."""
        delays = [moment.trainer_delay_share for moment in moments if moment.trainer_delay_share is not None]
        measured = [moment for moment in moments if moment.cores]

        def mean(values: list[float]) -> float:
            return fmean(values) if values else 0.0

        return MachineLoad(
            cores=cores,
            trainer_cores=mean([moment.trainer_cores for moment in measured]),
            workers_cores=mean([moment.workers_cores for moment in measured]),
            others_cores=mean([moment.others_cores for moment in measured]),
            trainer_delay_share=fmean(delays) if delays else None,
            is_measured=bool(measured),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProfile:
    """Where one loader's time went. Shares are of the whole time, first batches included, unless they say otherwise."""

    stats: Stats
    period: float
    """Mean time from batch to batch."""
    wait: float
    """The part of it in which the training loop waits."""
    step: float
    making: float
    """How long a worker (or the trainer) takes to load a batch."""
    wait_share: float
    start_up_share: float
    """What first batches cost more than others, as a share of an epoch."""
    delay_share: float
    """Share of the time in which the training thread was ready to run but had no core."""
    copy_share: float
    hand_over_share: float | None
    """Share of the waiting that was for batches already loaded. None if it is unknown when batches were loaded."""
    wait_delay_share: float
    """Share of the waiting in which the training thread was ready to run but had no core."""
    concurrency: int
    """Batches, or parts of them, that can be loaded at the same time."""
    occupancy: float
    """Share of the time in which each worker or thread was busy."""
    work_seconds: float
    """Time for reading, transforming and collating, of all workers and threads together."""
    collate_share: float
    """Share of the work."""
    cpu_share: float
    """Share of the work spent on a core."""
    delay_in_work_share: float
    """Share of the work spent ready to run without a core."""
    blocked_share: float
    """Share of the work spent blocked: on a disk, a network or a lock, or asleep."""
    gil_share: float | None
    least_period: float = 0.0
    """How long all cores need to compute one batch, as far as known: no loader is faster."""

    @property
    def was_observed(self) -> bool:
        """Whether the workers' activity is known; see `workers_were_observed`."""
        return workers_were_observed(self.stats)

    @property
    def is_python(self) -> bool | None:
        """Whether the work is Python rather than native code; None if it was not profiled."""
        return None if self.gil_share is None else self.gil_share >= GIL_HELD_SHARE

    @property
    def batch_bytes(self) -> float:
        """Mean size of a batch."""
        return self.stats.num_bytes / max(1, self.stats.num_batches)

    @property
    def hand_over_seconds(self) -> float:
        """How long a batch takes from worker to trainer, packing and unpacking included."""
        stage = self.stats.stages.get("hand-over")
        return 0.0 if stage is None else stage.busy_seconds / max(1, self.stats.num_batches)

    @property
    def work_per_batch(self) -> float:
        """Seconds of work for one batch."""
        return self.work_seconds / max(1, self.stats.num_batches)

    @property
    def has_threads(self) -> bool:
        """Whether threads load the batches, in the trainer or in workers."""
        return self.stats.engine == "threads" or setting(self.stats, "num_threads") > 1

    @property
    def is_ours(self) -> bool:
        """Whether it is a Stoker loader."""
        return self.stats.kind == "stoker"


def without_other_programs(loader: LoaderProfile, cores: int) -> LoaderProfile:
    """Return an estimate of the profile if no other program had used the machine's cores.

    Loading a batch then takes as long as it was on a core or blocked. As many batches are loaded at a time as there are
    workers or threads, or cores for the part that is computed.
    """
    rest = max(1e-9, 1 - loader.delay_in_work_share)
    making = loader.making * rest
    work_seconds = loader.work_seconds * rest
    work = work_seconds / max(1, loader.stats.num_batches)
    step = max(_least_step(loader), loader.step - _step_delay(loader))
    cpu_share = min(1.0, loader.cpu_share / rest)
    # the time from batch to batch at which workers deliver
    supply = max(work / loader.concurrency, cpu_share * work / max(1, cores))
    wait = making if loader.stats.engine == "inline" else max(0.0, supply - step)
    # a small batch takes long on its way only if the processes that hand it over have no core
    is_small = loader.stats.num_bytes < SMALL_BYTES * loader.stats.num_batches
    in_transit = 0.0 if is_small else loader.wait * max(0.0, (loader.hand_over_share or 0.0) - loader.wait_delay_share)
    hand_over_share = in_transit / wait if 0 < in_transit <= wait else 1.0 if in_transit else None
    wait = max(wait, in_transit)
    period = step + wait
    return replace(
        loader,
        making=making,
        step=step,
        wait=wait,
        period=period,
        wait_share=_share(wait, period),
        occupancy=_share(supply, period),
        work_seconds=work_seconds,
        delay_share=0.0,
        delay_in_work_share=0.0,
        cpu_share=cpu_share,
        blocked_share=min(1.0, loader.blocked_share / rest),
        hand_over_share=hand_over_share,
        wait_delay_share=0.0,
        least_period=0.0,
    )


def _step_delay(loader: LoaderProfile) -> float:
    """Return how long the trainer was ready to run without a core in each training step."""
    delay, waited = loader.delay_share * loader.period, loader.stats.wait_delay_seconds
    if waited is not None:
        return max(0.0, delay - waited / max(1, loader.stats.num_batches))
    # a trainer that loads its batches itself waits for a core while loading, too
    return delay * (loader.step / loader.period if loader.stats.engine == "inline" and loader.period else 1.0)


def _least_step(loader: LoaderProfile) -> float:
    """Return the least that a training step can take: the trainer's CPU time outside of waiting."""
    stats = loader.stats
    if stats.engine == "threads" or stats.trainer is None or stats.wait_cpu_seconds is None:
        return 0.0  # the loader's threads are part of the trainer's process
    own = stats.trainer.cpu_seconds - stats.wait_cpu_seconds
    return min(loader.step, max(0.0, own / max(1, stats.num_batches)))


def limited_by_cores(loader: LoaderProfile, machine: MachineLoad) -> LoaderProfile:
    """Return the profile with `least_period` filled in."""
    computed = machine.trainer_cores * loader.period
    if loader.stats.engine == "processes":
        computed += loader.cpu_share * loader.work_per_batch
    return replace(loader, least_period=min(loader.period, computed / machine.cores)) if machine.cores else loader


def workers_were_observed(stats: Stats) -> bool:
    """Whether it is known what the workers did. It is not for workers started before watching began, nor for workers
    of loaders that are neither torch's nor Stoker's.
    """
    return stats.engine != "processes" or (stats.kind != "iterable" and _work(stats)[0] > 0)


def profile_loader(stats: Stats, *, busy_share: float | None = None) -> LoaderProfile:
    """Return what a loader's time was spent on.

    `busy_share` is the share of the time in which its workers are on a core, as sampled from outside. It is used where
    the workers were not observed: they are then taken to be busy all the time.
    """
    seconds = max(stats.seconds, 1e-9)
    # waiting for a first batch counts as waiting as far as any other batch would take; the rest is start-up
    firsts = sum(min(first, stats.wait_seconds.mean) for first in stats.first_batch_seconds)
    wait_seconds = stats.wait_seconds.mean * stats.wait_seconds.num + firsts
    work, collate, cpu, delay, blocked = _work(stats)
    trainer, concurrency, period = stats.trainer, concurrency_of(stats), stats.batch_seconds.mean
    making = stats.making_seconds.mean
    if busy_share is not None and not workers_were_observed(stats):
        work, making, cpu = concurrency * seconds, concurrency * period, min(1.0, busy_share)
        collate, delay, blocked = 0.0, 0.0, 1 - cpu
    return LoaderProfile(
        stats=stats,
        period=period,
        wait=stats.wait_seconds.mean,
        step=stats.step_seconds.mean,
        making=making,
        wait_share=_share(wait_seconds, seconds),
        start_up_share=_start_up_share(stats),
        delay_share=_share((trainer.delay_seconds or 0.0) if trainer is not None else 0.0, seconds),
        copy_share=_copy_share(stats),
        hand_over_share=_hand_over_share(stats),
        wait_delay_share=_share(stats.wait_delay_seconds or 0.0, stats.wait_seconds.mean * stats.wait_seconds.num),
        concurrency=concurrency,
        occupancy=_share(work / max(1, stats.num_batches), concurrency * period),
        work_seconds=work,
        collate_share=collate,
        cpu_share=cpu,
        delay_in_work_share=delay,
        blocked_share=blocked,
        gil_share=stats.sampled.gil_share if stats.sampled is not None and stats.sampled.num >= 5 else None,
    )


def concurrency_of(stats: Stats) -> int:
    """Return how many batches, or parts of them, a loader loads at the same time."""
    return max(1, setting(stats, "num_workers")) * max(1, setting(stats, "num_threads"))


def setting(stats: Stats, name: str, default: int = 0) -> int:
    """Return an argument that is a positive integer; `default` if it is anything else, such as "auto"."""
    value = stats.config.get(name)
    return value if isinstance(value, int) and value > 0 else default


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def recurring_first_batches(stats: Stats) -> list[float]:
    """Return how long the first batches of epochs were waited for; with persistent workers, all but the very first."""
    firsts = stats.first_batch_seconds
    return firsts[1:] if stats.config.get("persistent_workers") and len(firsts) > 1 else firsts


def batches_per_epoch(stats: Stats) -> float:
    """Return how many batches an epoch has: as many as were seen, or the loader's length if that is more.

    An epoch left early counts to its end: five seconds of watching do not make an epoch five seconds long.
    """
    return max(stats.num_batches / max(1, stats.num_iterations), float(stats.facts.get("num_batches") or 0))


def _start_up_share(stats: Stats) -> float:
    """Return how much longer the first batch of an epoch takes than any other, as a share of the epoch.

    0 for a single epoch of unknown length, of which nothing can be said.
    """
    firsts = recurring_first_batches(stats)
    if not firsts or (stats.num_iterations < 2 and not stats.facts.get("num_batches")):
        return 0.0
    first = fmean(firsts)
    usual = stats.batch_seconds.mean if stats.batch_seconds.num else 0.0
    extra = max(0.0, first - (stats.wait_seconds.mean if stats.wait_seconds.num else 0.0))
    return _share(extra, first + max(0.0, batches_per_epoch(stats) - 1) * usual)


def _copy_share(stats: Stats) -> float:
    """Return the share of the time spent on copies to the device.

    A blocking copy also waits for all that the device still has to do, which is not the copy's fault: where it is known
    how long copies take on the device, no more than that counts.
    """
    copies = stats.copies
    if copies is None or not copies.num or stats.seconds <= 0:
        return 0.0
    seconds = copies.seconds
    if copies.device_seconds is not None:
        on_device = copies.device_seconds * copies.num
        is_ahead = not copies.num_blocking and not copies.num_pageable
        # copies made ahead cost nothing until the device does little else
        seconds = max(0.0, on_device - 0.7 * stats.seconds) if is_ahead else min(seconds, on_device)
    return _share(seconds, stats.seconds)


def _hand_over_share(stats: Stats) -> float | None:
    """Return the share of the waiting that was for batches already loaded: packed, on their way, being unpacked."""
    if stats.kind == "iterable" or stats.engine != "processes" or not stats.laps:
        return None
    asked, handed, made = (np.asarray(stats.laps.get(name, ()), np.float64) for name in ("asked", "handed", "made"))
    if not len(asked) or not len(asked) == len(handed) == len(made):
        return None
    waits = handed - asked
    is_first = np.zeros(len(waits), bool)
    for first in stats.first_batch_seconds:
        nearest = int(np.abs(waits - first).argmin())
        is_first[nearest] |= abs(waits[nearest] - first) < 1e-9
    is_stall = ~is_first & (waits > STALL_SECONDS) & (waits > STALL_SHARE * stats.batch_seconds.mean)
    if not is_stall.any():
        return None
    in_transit = (handed - np.clip(made, asked, np.maximum(asked, handed)))[is_stall].sum()
    return _share(float(in_transit), float(waits[is_stall].sum()))


_WORK = ("read", "transform", "collate")


def _work(stats: Stats) -> tuple[float, float, float, float, float]:
    """Return the seconds of work, and its shares: collating, on a core, without a core, blocked."""
    stages = stats.stages
    read, transform, collate = (stages[name].busy_seconds if name in stages else 0.0 for name in _WORK)
    work = read + transform + collate
    if work <= 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    cpu, delay = _cpu_and_delay(stats)
    cpu = min(max(0.0, cpu), work)
    delay = min(max(0.0, delay), work - cpu)
    blocked = work - cpu - delay
    gil = stats.sampled.gil_share if stats.sampled is not None else None
    # threads that wait for the GIL look blocked: those of the loader, and of a pool that the dataset waits for
    used = max(cpu, _process_cpu_seconds(stats))
    if gil is not None and gil >= GIL_HELD_SHARE and used >= 0.1 * work / max(1, setting(stats, "num_threads")):
        cpu, blocked = cpu + blocked, 0.0
    return work, collate / work, cpu / work, delay / work, blocked / work


def _process_cpu_seconds(stats: Stats) -> float:
    """Return the CPU seconds of the processes that load the batches, with all their threads."""
    if stats.engine == "processes":
        return sum(worker.cpu_seconds for worker in stats.workers)
    return 0.0 if stats.trainer is None else stats.trainer.cpu_seconds


def _cpu_and_delay(stats: Stats) -> tuple[float, float]:
    """Return the CPU seconds of the work, and how long it was ready to run without a core."""
    by_stage = [stats.stages[name].cpu_seconds for name in _WORK if name in stats.stages]
    trainer = stats.trainer
    if stats.engine == "processes" and stats.kind != "iterable":
        delay = sum(worker.delay_seconds or 0.0 for worker in stats.workers)
        before = stats.facts.get("workers_before", (0.0, 0.0))
        if any(seconds is not None for seconds in by_stage):
            return sum(seconds or 0.0 for seconds in by_stage), delay
        return sum(worker.cpu_seconds for worker in stats.workers) - before[0], delay - before[1]
    # what only a doctor measures is known for the part of the work that was watched
    watched = max(1e-3, float(stats.facts.get("watched_share", 1.0)))
    if stats.engine == "threads":
        cpu = stats.facts.get("threads_cpu_seconds")
        if cpu is not None:
            return float(cpu) / watched, float(stats.facts.get("threads_delay_seconds") or 0.0) / watched
    elif stats.wait_cpu_seconds is not None:
        return stats.wait_cpu_seconds / watched, (stats.wait_delay_seconds or 0.0) / watched
    # not measured: the trainer's own time is an upper bound
    return (trainer.cpu_seconds, trainer.delay_seconds or 0.0) if trainer is not None else (0.0, 0.0)
