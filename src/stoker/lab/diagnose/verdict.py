"""The verdict on a run: a function of its record and nothing else.

What is wrong with the data or would end the run comes first. Of what costs time, the costliest is the verdict; where
nothing costs a tenth of it, the loader keeps up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from stoker.engine.stats import Stats
from stoker.foundation.text import format_bytes, format_duration, format_percent
from stoker.lab.diagnose import causes, remedies, slow_rank
from stoker.lab.diagnose.causes import KEEPS_UP, LEAST_WAIT_SECONDS
from stoker.lab.diagnose.diagnosis import VERDICTS, Diagnosis
from stoker.lab.diagnose.facts import findings
from stoker.lab.diagnose.memory_trend import Growth, growth_of, has_filled, moments_of_training
from stoker.lab.diagnose.reckoning import (
    Reckoning,
    Surroundings,
    num_lanes,
    reckoned,
    recurring_firsts,
    setting,
    within,
)
from stoker.lab.watch.run import Run

LEAST_START_SECONDS = 5e-3
"""First batches that come sooner are there at once."""

MUCH_ELSEWHERE = 0.2
"""From this part of a run on, it is told that so much of it lies outside of loops."""

FEWEST_STEPS = 3
"""Batches after the first one of an epoch, or epochs, without which there is nothing to judge by."""

DUPLICATED = 0.2
"""From here on, workers of a stream read the same data: chance would have it far lower."""


def diagnose(run: Run) -> Diagnosis:
    """Return what holds a run back: one verdict, why, the possible gain, and what to change."""
    seen = [stats for stats in run.loaders if stats.num_batches > 0]
    enough = [
        stats for stats in seen if stats.batch_seconds.num >= FEWEST_STEPS or stats.num_iterations >= FEWEST_STEPS
    ]
    if not enough:
        return _nothing_seen(run, seen)
    of_workers = sum(worker.cpu_seconds for stats in run.loaders for worker in stats.workers)
    around = Surroundings.of(run.moments).with_workers(of_workers, run.seconds)
    growth = None
    if any(has_filled(stats) for stats in enough):
        growth = growth_of(moments_of_training(run), memory_bytes=run.machine.get("memory_bytes"))
    found = _duplicated(enough) or (growth and _growing(enough, growth)) or _costliest(run, enough, around)
    notes = findings(run, verdict=found.verdict)
    evidence = [*found.evidence, *_elsewhere(run)]
    return Diagnosis.from_dict(found.as_dict() | {"evidence": evidence, "findings": [note.as_dict() for note in notes]})


def _elsewhere(run: Run) -> list[str]:
    """Return how much of the run no loader has to do with, if that is much: shares of time are those of loops."""
    by_rank: dict[int, float] = {}
    for stats in run.loaders:
        by_rank[stats.rank] = by_rank.get(stats.rank, 0.0) + stats.seconds
    outside = run.seconds - max(by_rank.values(), default=0.0)
    if not run.moments or outside < max(MUCH_ELSEWHERE * run.seconds, 1.0):
        return []
    loops = "the loop over this loader" if len(run.loaders) == 1 else "loops over these loaders"
    return [
        f"{format_duration(outside)} of {format_duration(run.seconds)} were spent outside of {loops}: that is not "
        "judged here"
    ]


# -------------------------------------------------------------------- what comes first


def _nothing_seen(run: Run, seen: list[Stats]) -> Diagnosis:
    if seen:
        num_batches = sum(stats.num_batches for stats in seen)
        says = f"{num_batches} batch{'es' * (num_batches != 1)} came: too few to judge by"
        advice = ["let it run for a few seconds more: some batches after the first one are needed"]
    else:
        says = "no loader gave a batch, as far as was seen"
        advice = [
            "watch the process that trains: `stoker doctor -- python train.py`, or `stoker.watch(loader)` in its code",
            "loaders that are neither torch's, torchdata's nor Stoker's are seen by `stoker.watch(loader)` alone",
        ]
    return Diagnosis(
        verdict="nothing-seen", says=says, advice=advice, findings=findings(run, verdict="nothing-seen") if seen else []
    )


def _duplicated(enough: list[Stats]) -> Diagnosis | None:
    worst = max(enough, key=lambda stats: stats.duplicate_share or 0.0)
    share = worst.duplicate_share or 0.0
    if share < DUPLICATED:
        return None
    num_workers = setting(worst, "num_workers")
    evidence = [
        f"{format_percent(share)} of the samples that were looked at had come from another of the {num_workers} workers"
    ]
    if worst.facts.get("looked_at_worker") is False:
        evidence.append("the dataset never looks at torch.utils.data.get_worker_info(): each worker reads all of it")
    return Diagnosis(
        verdict="duplicated-data",
        says=f"every sample comes about {1 / max(1e-9, 1 - share):.1f} times an epoch: {VERDICTS['duplicated-data']}",
        evidence=evidence,
        gain=f"{format_percent(share)} of each epoch is a repetition; without it, an epoch is as much shorter",
        gain_share=share,
        advice=remedies.duplicated(worst),
    )


def _growing(enough: list[Stats], growth: Growth) -> Diagnosis:
    stats = max(enough, key=lambda stats: stats.seconds)
    period = stats.batch_seconds.mean
    who = "workers" if growth.of_workers_share >= 0.5 else "trainer's process"
    evidence = [
        f"{format_bytes(growth.grown_bytes)} more in {format_duration(growth.seconds)}, steadily, without pages of "
        "files",
        f"{format_percent(growth.of_workers_share)} of it in workers, the rest in the trainer",
    ]
    if period > 0:
        evidence.append(f"that is {format_bytes(growth.bytes_per_second * period)} for each batch")
    if growth.seconds_left is not None:
        left = format_duration(growth.seconds_left, digits=2)
        evidence.append(f"at this rate the machine's memory lasts for another {left}")
    return Diagnosis(
        verdict="memory-growth",
        says=f"memory of the {who} grows by {format_bytes(growth.bytes_per_second * 60)} a minute, batch after batch",
        evidence=evidence,
        gain="the run goes on after memory would have run out",
        advice=remedies.growing(stats, growth),
    )


# -------------------------------------------------------------------- what costs time


def _costliest(run: Run, enough: list[Stats], around: Surroundings) -> Diagnosis:
    main = {rank: _main([one for one in enough if one.rank == rank]) for rank in {one.rank for one in enough}}
    lanes = sum(num_lanes(stats) for stats in main.values() if stats.engine == "processes")
    busy_share = around.workers_cores / lanes if lanes and around.is_measured else None
    reckonings = {rank: reckoned(stats, busy_share=busy_share) for rank, stats in main.items()}
    if len(reckonings) == 1:  # several may share the machine, or have one each
        reckonings = {rank: within(one, around, int(run.machine.get("cores") or 0)) for rank, one in reckonings.items()}
    # what all ranks have in common shows in the one in the middle
    usual = sorted(reckonings.values(), key=lambda one: one.wait_share)[(len(reckonings) - 1) // 2]
    cores = int(run.machine.get("cores") or 0)
    # what a loader counts includes what its thread did between epochs, and moments what it did before and after
    delay = min(usual.delay_share, 1.0 if around.trainer_delay_share is None else around.trainer_delay_share)
    usual = replace(usual, delay_share=delay)
    candidates: list[tuple[float, Callable[[], Diagnosis]]] = [
        (usual.wait_share if usual.wait > LEAST_WAIT_SECONDS else 0.0, lambda: causes.waiting(usual, around, cores)),
        (usual.start_up_share if _is_slow_to_start(usual) else 0.0, lambda: causes.starting(usual)),
        (usual.copy_share, lambda: causes.copying(usual)),
        (
            delay if delay * usual.period > LEAST_WAIT_SECONDS else 0.0,
            lambda: causes.crowded(usual, around, cores, delay),
        ),
    ]
    if len(reckonings) > 1:
        slow, loss = slow_rank.slowest(reckonings)
        candidates.insert(0, (loss, lambda: slow_rank.late(slow, reckonings, around, cores, loss)))
    loss, tell = max(candidates, key=lambda candidate: candidate[0])
    return tell() if loss >= KEEPS_UP else causes.healthy(usual)


def _is_slow_to_start(one: Reckoning) -> bool:
    firsts = recurring_firsts(one.stats)
    return bool(firsts) and fmean(firsts) > LEAST_START_SECONDS


def _main(loaders: list[Stats]) -> Stats:
    """Return the loader that most time is lost with; the one that ran longest, if none loses any to speak of."""

    def lost(stats: Stats) -> float:
        return stats.wait_seconds.mean * stats.wait_seconds.num + sum(stats.first_batch_seconds)

    costliest = max(loaders, key=lost)
    longest = max(loaders, key=lambda stats: stats.seconds)
    return costliest if lost(costliest) >= KEEPS_UP * longest.seconds else longest
