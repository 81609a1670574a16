"""Compute how many workers or threads a loader should have."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad, setting

MAX_BLOCKED = 64
"""Most workers or threads that are advised for work that is blocked."""

MIN_STEP_SECONDS = 1e-9
"""A step of a damaged record may be shorter, and would need more workers than there are numbers."""

MOSTLY_COMPUTES = 0.4
"""Work of which less than this is blocked, delays aside, is limited by cores."""


def wanted_concurrency(loader: LoaderProfile) -> int:
    """Return how many batches would have to be loaded at a time so that none is late, and a little more."""
    if loader.step <= 0 or loader.making <= 0:
        return 2 * loader.concurrency
    # threads that share a batch have it in progress for a fraction of the time that one of them would take
    work = loader.work_per_batch if loader.work_seconds else loader.making
    return max(ceil(1.2 * work / max(loader.step, loader.least_period, MIN_STEP_SECONDS)), loader.concurrency + 1)


def next_concurrency(loader: LoaderProfile, most: int) -> int:
    """Return how many to try next: what is wanted, but at most four times as many as now."""
    return max(1, min(wanted_concurrency(loader), max(16, 4 * loader.concurrency), most))


class WorkerCount(NamedTuple):
    """So many workers, and what they would achieve."""

    num_workers: int
    period: float
    """From batch to batch."""


def enough_workers(loader: LoaderProfile, machine: MachineLoad) -> WorkerCount:
    """Return how few of a loader's workers would do, if none had to wait for a core except for the work there is.

    The time from batch to batch is the longest of three: the training step, loading by so many workers, and the time
    that all cores need for everything that is computed.
    """
    stats, cores = loader.stats, machine.cores
    num_workers, num_threads = max(1, setting(stats, "num_workers")), max(1, setting(stats, "num_threads"))
    step = max(0.0, loader.step - loader.delay_share * loader.period)
    trainer_cores = machine.trainer_cores
    if not machine.is_measured and stats.trainer is not None and stats.seconds > 0:
        trainer_cores = stats.trainer.cpu_seconds / stats.seconds
    computed = loader.cpu_share * loader.work_per_batch + trainer_cores * loader.period
    least = max(step, computed / max(1, cores))
    work = loader.work_per_batch * (1 - loader.delay_in_work_share)

    def period(number: int) -> float:
        return max(least, work / (number * num_threads))

    # work that mostly computes gains nothing from more workers than cores, however blocked it looks now
    is_computing = loader.blocked_share <= MOSTLY_COMPUTES * (loader.blocked_share + loader.cpu_share)
    most = max(1, min(num_workers, cores // num_threads)) if is_computing and cores else num_workers
    number = next(few for few in range(1, most + 1) if period(few) <= 1.03 * period(most))
    return WorkerCount(number, period(number))


def own_workers_take_cores(loader: LoaderProfile, machine: MachineLoad) -> bool:
    """Whether it is the loader's own workers that take the cores, rather than other programs."""
    if not machine.is_measured:
        return setting(loader.stats, "num_workers") > max(1, machine.cores)
    return bool(loader.stats.config.get("num_workers")) and machine.workers_cores >= machine.others_cores
