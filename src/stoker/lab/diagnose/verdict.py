"""The verdict on a run: a function of its record and nothing else.

Problems with the data, or that would end the run, come first. Of what costs time, the costliest is the verdict; where
nothing costs a tenth of the time, the loader keeps up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stoker.engine.stats import Stats
from stoker.foundation.text import format_duration
from stoker.lab.diagnose import verdicts
from stoker.lab.diagnose.configuration import check_configuration
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.loader_profile import (
    LoaderProfile,
    MachineLoad,
    concurrency_of,
    limited_by_cores,
    profile_loader,
    without_other_programs,
)
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause
from stoker.lab.diagnose.worker_counts import own_workers_take_cores
from stoker.lab.watch.run import Run

KEEPS_UP = 0.1
"""What costs less than this share of the time does not hold a run back."""

MIN_WAIT_SECONDS = 5e-5
"""Shorter waits for batches are as long as measuring them takes."""

MUCH_ELSEWHERE = 0.2
"""From this share of a run on, time outside of loops is mentioned."""

MIN_STEPS = 3
"""Batches after the first one of an epoch, or epochs, needed for a verdict."""

LATE_BATCH_CAUSES: tuple[LateBatchCause, ...] = (
    verdicts.noisy_neighbour.VERDICT,
    verdicts.transport_bound.VERDICT,
    verdicts.collate_bound.VERDICT,
    verdicts.storage_bound.VERDICT,
    verdicts.python_bound.VERDICT,
    verdicts.decode_bound.VERDICT,
)
"""Why batches may come late. The first that holds is the cause; the last one always holds."""


def diagnose(run: Run) -> Diagnosis:
    """Return what slows a run down: one verdict, why, the possible gain, and what to change."""
    seen = [stats for stats in run.loaders if stats.num_batches > 0]
    enough = [stats for stats in seen if stats.batch_seconds.num >= MIN_STEPS or stats.num_iterations >= MIN_STEPS]
    if enough:
        found = (
            verdicts.duplicated_data.diagnose(enough)
            or verdicts.memory_growth.diagnose(run, enough)
            or _diagnose_costliest(run, enough)
        )
    else:
        found = verdicts.nothing_seen.diagnose(sum(stats.num_batches for stats in seen))
    return replace(
        found,
        evidence=[*found.evidence, *(_time_elsewhere(run) if enough else [])],
        findings=check_configuration(run, verdict=found.verdict),
    )


def find_late_batch_cause(loader: LoaderProfile, machine: MachineLoad) -> LateBatchCause:
    """Return why a loader's batches come late."""
    return next(cause for cause in LATE_BATCH_CAUSES if cause.holds(loader, machine))


def _time_elsewhere(run: Run) -> list[str]:
    """Return how much of the run was outside of loops over loaders, if that is much: no share of it is judged."""
    by_rank: dict[int, float] = {}
    for stats in run.loaders:
        by_rank[stats.rank] = by_rank.get(stats.rank, 0.0) + stats.seconds
    outside = run.seconds - max(by_rank.values(), default=0.0)
    if not run.moments or outside < max(MUCH_ELSEWHERE * run.seconds, 1.0):
        return []
    loops = "the loop over this loader" if len(run.loaders) == 1 else "loops over these loaders"
    spent = f"{format_duration(outside)} of {format_duration(run.seconds)}"
    return [f"{spent} were spent outside of {loops}: not judged here"]


def _diagnose_costliest(run: Run, enough: list[Stats]) -> Diagnosis:
    cores = int(run.machine.get("cores") or 0)
    of_workers = sum(worker.cpu_seconds for stats in run.loaders for worker in stats.workers)
    machine = MachineLoad.of(run.moments, cores=cores).with_workers(of_workers, run.seconds)
    ranks = _profile_ranks(enough, machine)
    # what all ranks have in common shows in the one in the middle
    usual = sorted(ranks.values(), key=lambda loader: loader.wait_share)[(len(ranks) - 1) // 2]
    # counters include what the thread did between epochs, moments what it did before and after
    delay = min(usual.delay_share, 1.0 if machine.trainer_delay_share is None else machine.trainer_delay_share)
    usual = replace(usual, delay_share=delay)
    wait_loss = usual.wait_share if usual.wait > MIN_WAIT_SECONDS else 0.0
    delay_loss = delay if delay * usual.period > MIN_WAIT_SECONDS else 0.0
    candidates: list[tuple[float, Callable[[], Diagnosis]]] = [
        (wait_loss, lambda: _diagnose_late_batches(usual, machine)),
        (verdicts.start_up_bound.loss(usual), lambda: verdicts.start_up_bound.diagnose(usual)),
        (usual.copy_share, lambda: verdicts.copy_bound.diagnose(usual)),
        (delay_loss, lambda: _diagnose_contention(usual, machine, delay)),
    ]
    if len(ranks) > 1:
        slow, rank_loss = verdicts.slow_rank.find_slowest(ranks)
        candidates.insert(0, (rank_loss, lambda: _diagnose_slow_rank(slow, ranks, machine, rank_loss)))
    loss, describe = max(candidates, key=lambda candidate: candidate[0])
    return describe() if loss >= KEEPS_UP else verdicts.compute_bound.diagnose(usual)


def _profile_ranks(enough: list[Stats], machine: MachineLoad) -> dict[int, LoaderProfile]:
    """Return the profile of each rank's main loader."""
    main = {rank: _main([one for one in enough if one.rank == rank]) for rank in {stats.rank for stats in enough}}
    num_workers = sum(concurrency_of(stats) for stats in main.values() if stats.engine == "processes")
    busy_share = machine.workers_cores / num_workers if num_workers and machine.is_measured else None
    ranks = {rank: profile_loader(stats, busy_share=busy_share) for rank, stats in main.items()}
    if len(ranks) > 1:  # they may share the machine, or have one each
        return ranks
    return {rank: limited_by_cores(loader, machine) for rank, loader in ranks.items()}


def _main(loaders: list[Stats]) -> Stats:
    """Return the loader that most time is lost with; the one that ran longest, if none loses much."""

    def lost(stats: Stats) -> float:
        return stats.wait_seconds.mean * stats.wait_seconds.num + sum(stats.first_batch_seconds)

    costliest = max(loaders, key=lost)
    longest = max(loaders, key=lambda stats: stats.seconds)
    return costliest if lost(costliest) >= KEEPS_UP * longest.seconds else longest


def _diagnose_late_batches(loader: LoaderProfile, machine: MachineLoad) -> Diagnosis:
    cause = find_late_batch_cause(loader, machine)
    if cause is verdicts.noisy_neighbour.VERDICT:
        loss = loader.wait_share * max(loader.delay_in_work_share, loader.wait_delay_share)
        return _diagnose_contention(loader, machine, loss)
    return cause.diagnose(loader, machine)


def _diagnose_contention(loader: LoaderProfile, machine: MachineLoad, loss: float) -> Diagnosis:
    """Return the diagnosis of a loader that waits for cores, with what it would be like without other programs."""
    alone = without_other_programs(loader, machine.cores)
    own_cause = None
    if not own_workers_take_cores(loader, machine) and loader.was_observed:
        saved = 1 - alone.period / loader.period if loader.period > 0 else 0.0
        if saved >= KEEPS_UP:  # no more is lost to others than would be saved without them
            loss = min(loss, saved)
        if alone.wait_share >= KEEPS_UP and alone.wait > MIN_WAIT_SECONDS:
            own_cause = find_late_batch_cause(alone, MachineLoad(cores=machine.cores))
    return verdicts.noisy_neighbour.diagnose(loader, machine, loss, alone=alone, own_cause=own_cause)


def _diagnose_slow_rank(
    slow: LoaderProfile, ranks: dict[int, LoaderProfile], machine: MachineLoad, loss: float
) -> Diagnosis:
    cause = find_late_batch_cause(slow, machine) if verdicts.slow_rank.waits_for_data(slow, ranks, loss) else None
    return verdicts.slow_rank.diagnose(slow, ranks, machine, loss, cause=cause)
