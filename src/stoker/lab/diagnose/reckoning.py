"""What a loader's time was spent on, reckoned from its counters.

Two questions lead to a verdict. What did the trainer wait for: was the batch still being made, or on its way? And what
were those doing who made it: were they on a core, blocked, or ready and without a core?
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
"""A batch below this takes as long from worker to trainer as one of a few bytes."""

LOCK_HELD = 0.6
"""From here on, work counts as Python: the interpreter's lock was held at so many looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What went on beside the loaders, on average over a run."""

    trainer_cores: float = 0.0
    workers_cores: float = 0.0
    others_cores: float = 0.0
    trainer_delay_share: float | None = None
    """For which the trainer's thread was ready and had no core, if that was looked at."""
    is_measured: bool = False
    """Whether the cores were looked at; otherwise the numbers of them are 0 and mean nothing."""

    def is_crowded(self, cores: int) -> bool:
        """Whether the machine's cores are taken, and to a large part by other programs."""
        whole = self.trainer_cores + self.workers_cores + self.others_cores
        return cores > 0 and whole >= 0.85 * cores and self.others_cores >= 0.4 * cores

    def with_workers(self, cpu_seconds: float, seconds: float) -> Surroundings:
        """Return the means with what workers have used in all, if that is more than was seen of them.

        Workers that live shorter than it is from look to look are not seen, and what they use counts as that of others.
        """
        unseen = cpu_seconds / seconds - self.workers_cores if self.is_measured and seconds > 0 else 0.0
        if unseen <= 0:
            return self
        return replace(
            self,
            workers_cores=self.workers_cores + unseen,
            others_cores=max(0.0, self.others_cores - unseen),
        )

    @staticmethod
    def of(moments: Sequence[Moment]) -> Surroundings:
        """Return the means of all moments."""
        delays = [moment.trainer_delay_share for moment in moments if moment.trainer_delay_share is not None]
        moments = [moment for moment in moments if moment.cores]
        if not moments:
            return Surroundings(trainer_delay_share=fmean(delays) if delays else None)
        return Surroundings(
            trainer_cores=fmean(moment.trainer_cores for moment in moments),
            workers_cores=fmean(moment.workers_cores for moment in moments),
            others_cores=fmean(moment.others_cores for moment in moments),
            is_measured=True,
            trainer_delay_share=fmean(delays) if delays else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoning:
    """One loader's time. Shares are of the whole time, first batches included, unless it says otherwise."""

    stats: Stats
    period: float
    """From batch to batch, on average."""
    wait: float
    """Of that, waiting."""
    step: float
    making: float
    """How long a batch takes to make, by whoever makes it."""
    wait_share: float
    start_up_share: float
    """What first batches cost more than others, of an epoch."""
    delay_share: float
    """For which the trainer's thread was ready and had no core."""
    copy_share: float
    hand_over_share: float | None
    """Of the waiting: for batches that were made already. None if it is not known when batches were made."""
    wait_delay_share: float
    """Of the waiting, for which the trainer's thread was ready and had no core."""
    num_lanes: int
    """Batches, or parts of them, that can be made at the same time."""
    occupancy: float
    """For which part of the time each of them was at work."""
    work_seconds: float
    """Of all that make batches together: reading, transforming and collating."""
    collate_share: float
    """Of the work."""
    cpu_share: float
    """Of the work, on a core."""
    delay_in_work_share: float
    """Of the work, ready and without a core."""
    blocked_share: float
    """Of the work, blocked: for a disk, a network, a lock, asleep."""
    gil_share: float | None
    least_period: float = 0.0
    """What all that is computed for a batch takes on all cores, as far as that is known: no loader is quicker."""

    @property
    def is_seen(self) -> bool:
        """Whether those who make batches were seen at work. Workers that were there before anybody watched were not,
        nor are those of loaders that are neither torch's nor ours.
        """
        return is_seen(self.stats)

    @property
    def is_python(self) -> bool | None:
        """Whether the work is Python rather than native code; None if nobody has looked."""
        if self.gil_share is not None:
            return self.gil_share >= LOCK_HELD
        return None


def undisturbed(one: Reckoning, cores: int) -> Reckoning:
    """Return an estimate of the reckoning if no other program had used the machine's cores.

    Making a batch then takes as long as it was on a core or blocked, and as many are made at a time as there are
    workers or threads, or cores for what is computed.
    """
    rest = max(1e-9, 1 - one.delay_in_work_share)
    making = one.making * rest
    work_seconds = one.work_seconds * rest
    work = work_seconds / max(1, one.stats.num_batches)
    step = max(_least_step(one.stats, one.step), one.step - _step_delay(one))
    cpu_share = min(1.0, one.cpu_share / rest)
    supply = max(work / one.num_lanes, cpu_share * work / max(1, cores))
    """From batch to batch, of those that make them."""
    wait = making if one.stats.engine == "inline" else max(0.0, supply - step)
    # what is small is on its way for long only if those who hand it over have no core
    is_small = one.stats.num_bytes < SMALL_BYTES * one.stats.num_batches
    on_its_way = 0.0 if is_small else one.wait * max(0.0, (one.hand_over_share or 0.0) - one.wait_delay_share)
    hand_over_share = on_its_way / wait if 0 < on_its_way <= wait else 1.0 if on_its_way else None
    wait = max(wait, on_its_way)
    period = step + wait
    return replace(
        one,
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
        blocked_share=min(1.0, one.blocked_share / rest),
        hand_over_share=hand_over_share,
        wait_delay_share=0.0,
        least_period=0.0,
    )


def _step_delay(one: Reckoning) -> float:
    """Return for how much of a training step the trainer was ready and had no core."""
    delay, waited = one.delay_share * one.period, one.stats.wait_delay_seconds
    if waited is not None:
        return max(0.0, delay - waited / max(1, one.stats.num_batches))
    # a trainer that makes its batches itself waits for a core in either part
    return delay * (one.step / one.period if one.stats.engine == "inline" and one.period else 1.0)


def _least_step(stats: Stats, step: float) -> float:
    """Return what a training step takes at the least: the CPU time of the trainer that is not spent on waiting."""
    if stats.engine == "threads" or stats.trainer is None or stats.wait_cpu_seconds is None:
        return 0.0  # threads of the loader are part of the trainer's process
    own = stats.trainer.cpu_seconds - stats.wait_cpu_seconds
    return min(step, max(0.0, own / max(1, stats.num_batches)))


def within(one: Reckoning, around: Surroundings, cores: int) -> Reckoning:
    """Return a reckoning that knows how much the cores can do."""
    computed = around.trainer_cores * one.period
    if one.stats.engine == "processes":
        computed += one.cpu_share * one.work_seconds / max(1, one.stats.num_batches)
    return replace(one, least_period=min(one.period, computed / cores)) if cores else one


def is_seen(stats: Stats) -> bool:
    """Whether it was seen how a loader's batches were made."""
    return stats.engine != "processes" or (stats.kind != "iterable" and _work(stats)[0] > 0)


def reckoned(stats: Stats, *, busy_share: float | None = None) -> Reckoning:
    """Return what a loader's time was spent on.

    `busy_share` is the part of the time for which its workers are on a core, as seen from outside. It counts where they
    were not seen at work: then they are taken to be at it all the time.
    """
    seconds = max(stats.seconds, 1e-9)
    # a first batch is waited for as any other is, beside what it costs to begin
    firsts = sum(min(first, stats.wait_seconds.mean) for first in stats.first_batch_seconds)
    wait_seconds = stats.wait_seconds.mean * stats.wait_seconds.num + firsts
    work, collate, cpu, delay, blocked = _work(stats)
    trainer, lanes, period = stats.trainer, num_lanes(stats), stats.batch_seconds.mean
    making = stats.making_seconds.mean
    if busy_share is not None and not is_seen(stats):
        work, making, cpu = lanes * seconds, lanes * period, min(1.0, busy_share)
        collate, delay, blocked = 0.0, 0.0, 1 - cpu
    return Reckoning(
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
        num_lanes=lanes,
        occupancy=_share(work / max(1, stats.num_batches), lanes * period),
        work_seconds=work,
        collate_share=collate,
        cpu_share=cpu,
        delay_in_work_share=delay,
        blocked_share=blocked,
        gil_share=stats.sampled.gil_share if stats.sampled is not None and stats.sampled.num >= 5 else None,
    )


def num_lanes(stats: Stats) -> int:
    """Return how many hands a loader has."""
    return max(1, setting(stats, "num_workers")) * max(1, setting(stats, "num_threads"))


def setting(stats: Stats, name: str, default: int = 0) -> int:
    """Return an argument that is a number; `default` if it is none, such as "auto"."""
    value = stats.config.get(name)
    return value if isinstance(value, int) and value > 0 else default


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def recurring_firsts(stats: Stats) -> list[float]:
    """Return how long the first batches of epochs were waited for; of workers that stay, without their one start."""
    firsts = stats.first_batch_seconds
    return firsts[1:] if stats.config.get("persistent_workers") and len(firsts) > 1 else firsts


def _start_up_share(stats: Stats) -> float:
    """Return what part of an epoch its first batch takes more than any other would.

    An epoch that was left half-way is reckoned to its end, if that is known: whoever looks for five seconds does not
    mean an epoch of five seconds. With one epoch of unknown length there is no telling.
    """
    firsts = recurring_firsts(stats)
    promised = stats.facts.get("num_batches")
    if not firsts or (stats.num_iterations < 2 and not promised):
        return 0.0
    num_seen = stats.num_batches / max(1, stats.num_iterations)
    num_batches = max(num_seen, float(promised or 0))
    first = fmean(firsts)
    usual = stats.batch_seconds.mean if stats.batch_seconds.num else 0.0
    extra = max(0.0, first - (stats.wait_seconds.mean if stats.wait_seconds.num else 0.0))
    return _share(extra, first + max(0.0, num_batches - 1) * usual)


def _copy_share(stats: Stats) -> float:
    """Return what part of the time went into copies to the device.

    A blocking copy also waits for all that the device still has to do, which is no fault of the copy: if it is known
    how long copies take there, no more than that counts.
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
    """Return which part of the waiting was for batches that had been made: packed, on their way, being unpacked."""
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
    on_the_way = (handed - np.clip(made, asked, np.maximum(asked, handed)))[is_stall].sum()
    return _share(float(on_the_way), float(waits[is_stall].sum()))


def _work(stats: Stats) -> tuple[float, float, float, float, float]:
    """Return the seconds of work, and which part of them is collating, on a core, without a core, and blocked."""
    stages = stats.stages
    read, transform, collate = (stages[name].busy_seconds if name in stages else 0.0 for name in _WORK)
    work = read + transform + collate
    if work <= 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    cpu, delay = _used(stats)
    cpu = min(max(0.0, cpu), work)
    delay = min(max(0.0, delay), work - cpu)
    blocked = work - cpu - delay
    gil = stats.sampled.gil_share if stats.sampled is not None else None
    # threads that wait for the GIL look blocked: those of the loader, and of a pool that the dataset waits for
    used = max(cpu, _process_cpu_seconds(stats))
    if gil is not None and gil >= LOCK_HELD and used >= 0.1 * work / max(1, setting(stats, "num_threads")):
        cpu, blocked = cpu + blocked, 0.0
    return work, collate / work, cpu / work, delay / work, blocked / work


_WORK = ("read", "transform", "collate")


def _process_cpu_seconds(stats: Stats) -> float:
    """Return the CPU seconds of the processes that make the batches, with all their threads."""
    if stats.engine == "processes":
        return sum(worker.cpu_seconds for worker in stats.workers)
    return 0.0 if stats.trainer is None else stats.trainer.cpu_seconds


def _used(stats: Stats) -> tuple[float, float]:
    """Return the CPU seconds of the work, and how long it was ready and had no core."""
    told = [stats.stages[name].cpu_seconds for name in _WORK if name in stats.stages]
    trainer = stats.trainer
    if stats.engine == "processes" and stats.kind != "iterable":
        delay = sum(worker.delay_seconds or 0.0 for worker in stats.workers)
        before = stats.facts.get("workers_before", (0.0, 0.0))
        if any(one is not None for one in told):
            return sum(one or 0.0 for one in told), delay
        return sum(worker.cpu_seconds for worker in stats.workers) - before[0], delay - before[1]
    # what only a doctor looks at is known of that part of the work alone which was watched
    watched = max(1e-3, float(stats.facts.get("watched_share", 1.0)))
    if stats.engine == "threads":
        cpu = stats.facts.get("threads_cpu_seconds")
        if cpu is not None:
            return float(cpu) / watched, float(stats.facts.get("threads_delay_seconds") or 0.0) / watched
    elif stats.wait_cpu_seconds is not None:
        return stats.wait_cpu_seconds / watched, (stats.wait_delay_seconds or 0.0) / watched
    # nobody has looked: the trainer's own time is the most that it can have been
    return (trainer.cpu_seconds, trainer.delay_seconds or 0.0) if trainer is not None else (0.0, 0.0)
