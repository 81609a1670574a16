"""Runs as they could have been seen: loaders simulated batch by batch, and counted as real ones are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush

import numpy as np

from stoker.engine.stats import Copies, ProcessStats, Quantiles, Sampled, Stage
from stoker.engine.timing import BatchTimeline, BatchTimes
from stoker.lab.watch.run import Moment, Run, Stats

Cost = Callable[[np.random.Generator, int], float]

GIB = 1 << 30


def simulated(
    *,
    num_batches: int = 1200,
    num_workers: int = 4,
    prefetch: int = 2,
    making: Cost,
    step: Cost,
    send: float = 0.0004,
    batch_size: int = 64,
    rank: int = 0,
    num_ranks: int = 1,
    name: str = "",
    seed: int = 0,
    parts: tuple[float, float, float] = (0.55, 0.4, 0.05),
) -> Stats:
    """Return what a loader would have counted whose batches and steps cost what they are said to.

    Workers take batches in turn, as long as there is room; `parts` of the making are reading, transforming, collating.
    """
    rng = np.random.default_rng(seed)
    laps = BatchTimeline()
    laps.begin()
    now, last = 1000.0, -1
    free = [(now, worker) for worker in range(max(1, num_workers))]
    ready: dict[int, tuple[float, ...]] = {}
    begun = 0

    def begin_one(earliest: float) -> None:
        nonlocal begun
        at, worker = heappop(free)
        began = max(at, earliest)
        cost = making(rng, begun)
        made = began + cost
        ready[begun] = (worker, began, made, made + send, *(part * cost for part in parts))
        heappush(free, (made + send, worker))
        begun += 1

    for _ in range(min(num_batches, num_workers * prefetch)):
        begin_one(now)
    for number in range(num_batches):
        asked = now
        if not num_workers:
            cost = making(rng, number)
            read, transform, collate = (part * cost for part in parts)
            lap = BatchTimes(
                asked=asked,
                handed=asked + cost,
                worker=-1,
                began=asked,
                made=asked + cost,
                sent=asked + cost,
                read=read,
                transform=transform,
                collate=collate,
                unpack=0,
                copy=0,
            )
            laps.extend(lap)
            now = asked + cost
        else:
            worker, began, made, sent, read, transform, collate = ready.pop(number)
            handed = max(asked, sent) + 0.00015
            lap = BatchTimes(
                asked=asked,
                handed=handed,
                worker=worker,
                began=began,
                made=made,
                sent=sent,
                read=read,
                transform=transform,
                collate=collate,
                unpack=0.0001,
                copy=0,
            )
            laps.extend(lap)
            now = handed
            if begun < num_batches:
                begin_one(handed)
        last = number
        now += step(rng, number)
    assert last == num_batches - 1
    return _summed_up(laps, num_workers, batch_size, rank, num_ranks, name)


def _summed_up(laps: BatchTimeline, num_workers: int, batch_size: int, rank: int, num_ranks: int, name: str) -> Stats:
    latest = laps.latest()
    sums = laps.sums
    seconds = laps.periods.total + sum(laps.first_seconds)
    busy = sum(sums[one] for one in ("read", "transform", "collate", "pack"))
    workers = [
        ProcessStats(
            pid=4000 + rank * 100 + worker,
            role=f"worker {worker}",
            cpu_seconds=0.9 * laps.busy_by_worker.get(worker, 0.0),
            delay_seconds=0.02 * seconds,
            read_bytes=worker * GIB // 3,
            pss_bytes=GIB + worker * (1 << 26),
            num_batches=laps.num_by_worker.get(worker, 0),
            busy_seconds=laps.busy_by_worker.get(worker, 0.0),
        )
        for worker in range(num_workers)
    ]
    return Stats(
        name=name,
        engine="processes" if num_workers else "inline",
        config={"batch_size": batch_size, "num_workers": num_workers, "num_threads": 0, "prefetch_factor": 2},
        rank=rank,
        num_ranks=num_ranks,
        seconds=seconds,
        num_iterations=1,
        num_batches=len(laps),
        num_samples=len(laps) * batch_size,
        num_bytes=len(laps) * batch_size * 3 * 224 * 224,
        first_batch_seconds=list(laps.first_seconds),
        construction_seconds=0.2,
        import_seconds=2.1,
        batch_seconds=Quantiles.of(laps.periods),
        wait_seconds=Quantiles.of(laps.waits),
        step_seconds=Quantiles.of(laps.steps),
        making_seconds=Quantiles.of(laps.makings),
        stages={
            "read": Stage(busy_seconds=sums["read"], waiting_seconds=max(0.0, num_workers * seconds - busy)),
            "transform": Stage(busy_seconds=sums["transform"]),
            "collate": Stage(busy_seconds=sums["collate"]),
            "hand-over": Stage(busy_seconds=sums["pack"] + sums["unpack"], waiting_seconds=sums["ready"]),
            "copy": Stage(busy_seconds=sums["copy"]),
            "wait": Stage(waiting_seconds=laps.waits.total + sum(laps.first_seconds)),
        },
        num_stalls=laps.num_stalls,
        stall_seconds=laps.stall_seconds,
        queue_depth=laps.mean_depth,
        queue_empty_share=laps.num_empty / max(1, laps.num_asked),
        trainer=ProcessStats(
            pid=4000 + rank * 100,
            role="trainer",
            cpu_seconds=0.6 * seconds,
            delay_seconds=0.001 * seconds,
            read_bytes=0,
            pss_bytes=3 * GIB,
        ),
        workers=workers,
        laps=latest,
    )


def moments(
    seconds: float, *, num: int = 240, cores: int = 8, workers: float = 2.5, growth: float = 0.0, seed: int = 0
) -> list[Moment]:
    """Return samples of a machine: evenly spaced, a little noisy, memory growing by a share of itself."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(num):
        warm = min(1.0, number / 12)
        used = np.clip(rng.normal(workers * warm, 0.15), 0, None)
        trainer = float(np.clip(rng.normal(0.8, 0.08), 0, None))
        others = float(np.clip(rng.normal(0.2, 0.1), 0, None)) + (2.0 if num * 0.6 < number < num * 0.7 else 0.0)
        load = (used + trainer + others) / cores
        busy = np.clip(rng.normal(load, 0.12, cores) + np.linspace(0.25, -0.25, cores) * load, 0, 1)
        found.append(
            Moment(
                at=seconds * (number + 1) / num,
                trainer_pss_bytes=int((2.4 + 0.6 * warm) * GIB),
                workers_pss_bytes=int(4 * GIB * warm * (1 + growth * number / num)),
                private_bytes=int((2.0 + 2.5 * warm * (1 + growth * number / num) + rng.uniform(0, 0.01)) * GIB),
                trainer_cores=round(trainer, 3),
                workers_cores=round(float(used), 3),
                others_cores=round(others, 3),
                trainer_delay_share=round(float(np.clip(rng.normal(0.01, 0.01), 0, 1)), 4),
                cores=[round(float(one), 3) for one in busy],
            )
        )
    return found


MACHINE = {
    "cores": 8,
    "quota_cores": None,
    "memory_bytes": 64 * GIB,
    "shared_memory_bytes": 32 * GIB,
    "system": "Linux",
    "architecture": "x86_64",
    "python": "3.11.9",
}


def _steady(seconds: float, spread: float = 0.03) -> Cost:
    return lambda rng, number: float(max(1e-5, rng.normal(seconds, spread * seconds)))


def _sometimes(seconds: float, *, every: int, slow: float) -> Cost:
    """Batches of about so many seconds; now and then a few in a row are slow, as when a disk is busy."""
    return lambda rng, number: float(
        rng.lognormal(np.log(seconds), 0.2) + (slow * rng.uniform(0.5, 1.5) if number % every >= every - 6 else 0.0)
    )


@cache
def healthy() -> Run:
    """A loader that keeps up."""
    stats = simulated(
        making=_sometimes(0.055, every=100_000, slow=0), step=_steady(0.032), num_batches=1500, name="train"
    )
    stats = replace(stats, decisions=["num_workers=4: 2 left 9.1 ms of waiting per step, 8 no less than 4"])
    return Run(
        title="python train.py --model resnet50", machine=MACHINE, seconds=52.0, loaders=[stats], moments=moments(52.0)
    )


@cache
def starved() -> Run:
    """Too few workers, and a disk that stalls now and then."""
    stats = simulated(
        making=_sometimes(0.09, every=300, slow=0.8),
        step=_steady(0.032),
        num_batches=6000,
        num_workers=2,
        name="train",
        seed=3,
    )
    stats = replace(
        stats,
        sampled=Sampled(
            num=812,
            places={
                "images.py:88 decode": 0.61,
                "dataset.py:41 __getitem__": 0.22,
                "transforms.py:120 rotate": 0.12,
                "dataset.py:30 open": 0.05,
            },
            gil_share=0.31,
        ),
        copies=Copies(num=6000, num_pageable=6000, num_blocking=6000, seconds=3.1),
    )
    seconds = stats.seconds + 4
    return Run(
        title="python train.py --workers 2",
        machine=MACHINE,
        seconds=seconds,
        loaders=[stats],
        moments=moments(seconds, workers=1.7, seed=1),
    )


@cache
def ranks(num_ranks: int = 4, slow: int = 2) -> Run:
    """Several ranks, one of which has a slow disk: the others wait for it in their step."""
    loaders = [
        simulated(
            making=_steady(0.16 if rank == slow else 0.07, 0.1),
            step=_steady(0.03 if rank == slow else 0.041),
            rank=rank,
            num_ranks=num_ranks,
            num_batches=800,
            name="train",
            seed=rank,
        )
        for rank in range(num_ranks)
    ]
    valid = [
        simulated(
            making=_steady(0.02),
            step=_steady(0.012),
            rank=rank,
            num_ranks=num_ranks,
            num_batches=60,
            num_workers=1,
            name="valid",
            seed=50 + rank,
        )
        for rank in range(num_ranks)
    ]
    return Run(
        title="torchrun --nproc-per-node 4 train.py",
        machine={**MACHINE, "cores": 32},
        seconds=45.0,
        loaders=[*loaders, *valid],
        moments=moments(45.0, cores=32, workers=12, seed=5),
    )


@cache
def one_batch() -> Run:
    """A run of a single batch, made in the trainer."""
    stats = simulated(making=_steady(0.05), step=_steady(0.01), num_batches=1, num_workers=0)
    return Run(title="smoke test", machine=MACHINE, seconds=0.2, loaders=[stats], moments=moments(0.2, num=1))


def guide_records() -> list[Stats]:
    """Return two records of a loader whose worker waits for the disk, for the sample of `stoker top` in the guide."""
    return [_guide_record(num_batches) for num_batches in (400, 800)]


def _guide_record(num_batches: int) -> Stats:
    late = max(0, num_batches - 400)  # less waiting in the second half
    seconds = 0.0080 * (num_batches - late) + 0.0062 * late
    wait = seconds - 0.0040 * num_batches
    return Stats(
        name="train",
        engine="processes",
        config={"batch_size": 16, "num_workers": 1, "num_threads": 0, "prefetch_factor": 2},
        seconds=seconds,
        num_iterations=1,
        num_batches=num_batches,
        num_samples=16 * num_batches,
        first_batch_seconds=[0.12],
        batch_seconds=Quantiles(num=num_batches, mean=seconds / num_batches, p50=0.0069, p90=0.0085, p99=0.0121),
        wait_seconds=Quantiles(num=num_batches, mean=wait / num_batches, p50=0.0028, p90=0.0042, p99=0.0078),
        step_seconds=Quantiles(num=num_batches, mean=0.0040, p50=0.0039, p90=0.0044, p99=0.0051),
        making_seconds=Quantiles(num=num_batches, mean=0.0066, p50=0.0064, p90=0.0078, p99=0.0105),
        stages={
            "read": Stage(busy_seconds=0.86 * seconds, waiting_seconds=0.08 * seconds),
            "collate": Stage(busy_seconds=0.021 * seconds),
            "hand-over": Stage(busy_seconds=0.03 * seconds, waiting_seconds=0.11 * seconds),
            "wait": Stage(waiting_seconds=wait),
        },
        num_stalls=num_batches // 8,
        stall_seconds=0.4 * wait,
        queue_depth=0.22,
        queue_empty_share=0.84,
        trainer=ProcessStats(pid=1, role="trainer", cpu_seconds=0.31 * seconds, pss_bytes=812_000_000),
        workers=[
            ProcessStats(
                pid=2,
                role="worker 0",
                cpu_seconds=0.24 * seconds,
                read_bytes=16 * 110_000 * num_batches,
                pss_bytes=204_000_000,
                num_batches=num_batches,
                busy_seconds=0.91 * seconds,
                delay_seconds=0.004 * seconds,
            )
        ],
    )
