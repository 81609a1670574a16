"""What to do about each verdict: most useful first, with the argument to write."""

from __future__ import annotations

import re
from math import ceil
from typing import Any, NamedTuple

from stoker.engine.stats import Stage, Stats
from stoker.lab.diagnose.memory_trend import Growth
from stoker.lab.diagnose.reckoning import SMALL_BYTES, Reckoning, Surroundings, setting

MOST_LANES = 64
MANY_OBJECTS = 500_000
MOSTLY_COMPUTES = 0.4
"""Work that is blocked for less than this part of it, delays aside, is work for cores."""
COPYING = re.compile(r"\.copy\(|\bnp\.array\(|\.astype\(|\.clone\(|\bbytes\(|\btorch\.tensor\(")
"""A line of source code that copies an array."""


def call(**arguments: Any) -> str:
    """Return a loader's call with these arguments, as it is written."""
    told = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"`DataLoader(..., {told})`"


def wanted_lanes(one: Reckoning) -> int:
    """Return how many would have to make batches at a time so that none is waited for, and a little more."""
    pace = max(one.step, one.least_period)
    if one.step <= 0 or one.making <= 0:
        return 2 * one.num_lanes
    # a batch that several threads share is in the making for a part of the time that it takes one of them
    work = one.work_seconds / max(1, one.stats.num_batches) if one.work_seconds else one.making
    return max(ceil(1.2 * work / pace), one.num_lanes + 1)


def needed_lanes(one: Reckoning, most: int) -> int:
    """Return how many should, as a next step: four times as many are one, wherever the end may be."""
    return max(1, min(wanted_lanes(one), max(16, 4 * one.num_lanes), most))


class Crew(NamedTuple):
    """So many workers, and what would come of them."""

    num_workers: int
    period: float
    """From batch to batch."""


def enough_workers(one: Reckoning, around: Surroundings, cores: int) -> Crew:
    """Return how few of a loader's workers would do, if none had to wait for a core but for the work there is.

    From batch to batch it takes as long as the training's own step, as the making by so many workers, or as long as
    all that is computed takes on all cores, whichever is the longest.
    """
    stats = one.stats
    num_workers, threads = max(1, setting(stats, "num_workers")), max(1, setting(stats, "num_threads"))
    work = one.work_seconds / max(1, stats.num_batches)
    step = max(0.0, one.step - one.delay_share * one.period)
    trainer_cores = around.trainer_cores
    if not around.is_measured and stats.trainer is not None and stats.seconds > 0:
        trainer_cores = stats.trainer.cpu_seconds / stats.seconds
    computed = one.cpu_share * work + trainer_cores * one.period
    least = max(step, computed / max(1, cores))
    work *= 1 - one.delay_in_work_share

    def period(number: int) -> float:
        return max(least, work / (number * threads))

    # what mostly computes gains nothing from being more than the cores, however long it seems to be blocked now
    is_computing = one.blocked_share <= MOSTLY_COMPUTES * (one.blocked_share + one.cpu_share)
    most = max(1, min(num_workers, cores // threads)) if is_computing and cores else num_workers
    number = next(few for few in range(1, most + 1) if period(few) <= 1.03 * period(most))
    return Crew(number, period(number))


def _is_ours(stats: Stats) -> bool:
    return stats.kind == "stoker"


def _slowest_place(one: Reckoning) -> str | None:
    sampled = one.stats.sampled
    if sampled is None or not sampled.places:
        return None
    place, share = max(sampled.places.items(), key=lambda item: item[1])
    return place if share >= 0.2 else None


def _more_readers(one: Reckoning, lanes: int) -> list[str] | None:
    """Return how a stream is read by more workers; None if it is no stream.

    Threads are of no use, for one reads it; and workers that do not share it out read the same, again and again.
    """
    stats = one.stats
    if not stats.config.get("is_iterable"):
        return None
    if stats.facts.get("looked_at_worker") or stats.config.get("worker_init_fn"):
        return [f"{call(num_workers=lanes)}: the dataset looks at which worker it is in, so each reads its share"]
    ours = "" if _is_ours(stats) else "`from stoker import DataLoader`, "
    advice = [
        f"{ours}{call(num_workers=lanes, shard='auto')} and a dataset with `split(index, count)`, which returns a part "
        f"of it: {lanes} parts are read at a time, and every sample comes once"
    ]
    if not _is_ours(stats):
        advice.append(
            f"or {call(num_workers=lanes)} and a dataset that reads its share, by `get_worker_info()`: without that, "
            f"every sample comes {lanes} times"
        )
    if not stats.config.get("num_workers"):
        advice.append(f"{call(num_workers=1)} without any of it: it is read while the training computes")
    return advice


def duplicated(stats: Stats) -> list[str]:
    """Workers of a stream that read the same."""
    own = "or let the dataset take its share: `iter` over every `num_workers`-th sample, from `get_worker_info().id` on"
    if _is_ours(stats):
        return [f"{call(shard='auto')}: every sample comes once, whatever the number of workers and ranks", own]
    return [
        f"`from stoker import DataLoader`, {call(shard='auto')}: every sample comes once, whatever the workers",
        own,
        "or `num_workers=1`, if one is enough",
    ]


def growing(stats: Stats, growth: Growth) -> list[str]:
    """Memory that grows."""
    advice = []
    reads_here = stats.engine != "processes"
    if growth.of_workers_share >= 0.5 or reads_here:
        num_objects = stats.facts.get("num_objects") or 0
        if num_objects >= MANY_OBJECTS and not reads_here:
            advice.append(
                f"the dataset holds {num_objects:,} Python objects in `{stats.facts.get('objects_in')}`: forked "
                "workers copy them by and by, by looking at them; keep them in NumPy arrays, or in a store"
            )
        advice.append(
            "look in the dataset for what it keeps of each sample: a list or dict that is added to, "
            "`functools.lru_cache` without a size, files that are opened and not closed"
        )
    if growth.of_workers_share >= 0.5:
        advice.append("until it is found, without persistent_workers the workers start afresh in each epoch")
    else:
        advice += [
            "look in the training loop for tensors that are kept: `losses.append(loss)` keeps the whole graph, "
            "`losses.append(loss.item())` a number",
            "batches that are kept keep their memory: clone what is needed of them",
        ]
    return advice


def waiting(verdict: str, one: Reckoning, cores: int) -> list[str]:
    """Batches that come late."""
    if verdict == "storage-bound":
        return _storage(one)
    return {
        "decode-bound": _decoding,
        "python-bound": _python,
        "collate-bound": _collating,
        "transport-bound": _transport,
    }[verdict](one, max(1, cores))


def _storage(one: Reckoning) -> list[str]:
    stats = one.stats
    lanes = needed_lanes(one, MOST_LANES)
    prefetch = setting(stats, "prefetch_factor", 2)
    threads = call(num_workers=1, num_threads=lanes)
    wanted = wanted_lanes(one)
    more = f"; a first step, as {wanted} would have to be on their way to keep up" if wanted > lanes else ""
    readers = _more_readers(one, lanes)
    if lanes <= one.num_lanes:
        advice = [f"{one.num_lanes} reads are on their way at a time, which is many: quicker storage, or less to read"]
    elif readers is not None:
        advice = readers
    elif _is_ours(stats):
        advice = [f"{threads}: {lanes} reads at a time, which cost threads and no processes{more}"]
    elif stats.kind == "torch":
        advice = [
            f"{call(num_workers=lanes)}: {lanes} reads at a time; blocked workers need no core, but memory each{more}",
            f"`from stoker import DataLoader`, {threads}: as many reads at a time, by threads of one process",
        ]
    else:
        advice = [f"let {lanes} reads be on their way at a time, by threads or processes{more}"]
    if stats.engine != "inline" and stats.making_seconds.p99 > 4 * stats.making_seconds.p50 > 0:
        advice.append(
            f"{call(prefetch_factor=2 * prefetch)}: batches differ much, and more of them in store evens it out"
        )
    mount = stats.facts.get("mount") or {}
    if stats.config.get("order") == "shuffle" and (mount.get("is_remote") or mount.get("is_rotational")):
        advice.append(f"{call(order='window')} of stoker.DataLoader: shuffled, and near-sequential on the disk")
    advice.append("if they are many small files: put them into a store (`stoker prepare`), read in large pieces")
    return advice


def _no_more_than_cores(one: Reckoning, cores: int) -> list[str]:
    """Return the advice for more workers than there are cores for what they compute."""
    num_workers = setting(one.stats, "num_workers")
    if not 0 < cores < num_workers or one.blocked_share > 0.3 or one.stats.config.get("is_iterable"):
        return []
    return [
        f"{call(num_workers=cores)}: {num_workers} workers that compute take turns on {cores} cores, and need memory"
    ]


def _decoding(one: Reckoning, cores: int) -> list[str]:
    stats = one.stats
    lanes = needed_lanes(one, cores)
    advice = []
    place = _slowest_place(one)
    copies = place is not None and COPYING.search(place) is not None
    if copies:
        advice.append(
            f"{place} copies: a view or `torch.from_numpy` shares the memory instead, and so does "
            "`astype(..., copy=False)`"
        )
    readers = _more_readers(one, lanes)
    if lanes > one.num_lanes and readers is not None:
        advice += readers
    elif lanes > one.num_lanes:
        threads = call(num_workers=1, num_threads=lanes)
        if _is_ours(stats):
            advice.append(f"{threads}: native code runs on several cores of one process")
        else:
            advice.append(f"{call(num_workers=lanes)}: of {cores} cores, {one.num_lanes} made batches")
            advice.append(f"`from stoker import DataLoader`, {threads}: the same on one process's memory")
    else:
        advice += _no_more_than_cores(one, cores)
        advice.append(f"all {cores} cores may be used already: what helps is less work for each sample")
    advice.append(
        "do once what is done in every epoch: decode, resize or tokenize ahead (`stoker prepare images`, "
        "`stoker prepare tokens`)" + (f"; most time goes into {place}" if place and not copies else "")
    )
    advice.append("pictures: `stoker.images` decodes no more pixels than it needs, and on the GPU with decode='auto'")
    return advice


def _python(one: Reckoning, cores: int) -> list[str]:
    stats = one.stats
    lanes = needed_lanes(one, cores)
    place = _slowest_place(one)
    advice = []
    readers = _more_readers(one, lanes)
    if readers is not None and lanes > one.num_lanes:
        advice += readers
    elif (stats.engine == "threads" or setting(stats, "num_threads") > 1) and one.num_lanes > cores > 1:
        # more than there are cores: they are there to wait, too, and each process has to have its share of them
        advice.append(
            f"{call(num_workers=cores, num_threads=ceil(one.num_lanes / cores))}: as many at a time, with a GIL for "
            "each process; threads of one process take turns with it"
        )
    elif stats.engine == "threads" or setting(stats, "num_threads") > 1:
        advice.append(
            f"{call(num_workers=min(cores, max(2, one.num_lanes)), num_threads=0)}: "
            "processes in the place of threads, which take turns with the GIL"
        )
    elif lanes > one.num_lanes:
        advice.append(f"{call(num_workers=lanes)}: each process has a GIL of its own; there are {cores} cores")
    else:
        advice += _no_more_than_cores(one, cores)
        advice.append(f"all {cores} cores may be used already: what helps is less work for each sample")
    mostly_collates = one.collate_share >= 0.3
    advice.append(
        (f"most time goes into {place}: " if place and ("collate" not in place or mostly_collates) else "")
        + "do it with NumPy or torch for many values at a time, or once and ahead (`stoker prepare`)"
    )
    return advice


def _collating(one: Reckoning, cores: int) -> list[str]:
    stats = one.stats
    name = stats.config.get("collate_fn")
    place = _slowest_place(one)
    ours = "" if _is_ours(stats) else "`from stoker import DataLoader`: "
    if name in (None, "default_collate"):
        advice = [] if _is_ours(stats) else [f"{ours}samples go straight to their place in the batch"]
        advice.append("let a sample be few and large arrays: each field of each sample is put in its place by itself")
    else:
        advice = [
            f"`{name}` is yours: put samples together with one call for all of them (`np.stack`, `torch.stack`), not "
            "one by one" + (f"; most time goes into {place}" if place else ""),
            f"{ours}without collate_fn, samples go straight to their place in the batch",
        ]
    advice.append("a dataset with `__getitems__(positions)` can make whole batches itself")
    lanes = needed_lanes(one, cores)
    if lanes > one.num_lanes or stats.engine == "inline":
        readers = _more_readers(one, lanes)
        advice += readers or [f"{call(num_workers=lanes)}: collated beside the training; there are {cores} cores"]
    return advice


def _transport(one: Reckoning, cores: int) -> list[str]:
    stats = one.stats
    ours = "`from stoker import DataLoader`: workers collate straight into memory that the trainer shares"
    if stats.num_bytes / max(1, stats.num_batches) < SMALL_BYTES:  # what a batch costs is its way, however small it is
        advice = ["`batch_size`: larger batches, which take as long on their way"]
        hand_over = stats.stages.get("hand-over", Stage()).busy_seconds / max(1, stats.num_batches)
        if one.making < max(hand_over, one.wait):
            advice.insert(0, f"{call(num_workers=0)}: a batch is made sooner than it is handed over")
        return advice if _is_ours(stats) else [*advice, f"{ours}, and say little more than where"]
    small = "send small types and widen them afterwards: images as uint8, tokens as uint16"
    if _is_ours(stats):
        return [
            f"{small}: `DataLoader(..., device='cuda', to=torch.float32)` widens on the device",
            "objects other than tensors and arrays are pickled one by one: put lists of them into arrays",
            f"{call(num_workers=0, num_threads=max(2, min(4, cores)))}: threads have nothing to hand over",
        ]
    return [f"{ours}, and nothing is copied on the way", small]


def starting(one: Reckoning) -> list[str]:
    """First batches that cost much."""
    stats = one.stats
    advice = []
    if stats.config.get("num_workers") and not stats.config.get("persistent_workers"):
        advice.append(f"{call(persistent_workers=True)}: workers stay from epoch to epoch")
    if stats.config.get("start_method") in ("spawn", "forkserver"):
        advice.append(
            f"{call(multiprocessing_context='fork')} starts workers without importing everything again; "
            "or import less at the top of the script"
        )
    if not stats.config.get("num_workers"):
        advice.append(
            "look at what the dataset does when it is iterated over, or reads its first sample: it does it again"
        )
    elif stats.config.get("persistent_workers"):
        advice.append("look at what `worker_init_fn` and the first sample do: files opened, models loaded")
    else:
        advice.append("make `worker_init_fn` and the unpickling of the dataset lighter: they run in every worker")
    advice.append("make epochs longer: several passes over the data in one, or fewer and larger ones")
    return advice


def copying(one: Reckoning) -> list[str]:
    """Copies to the device that are waited for."""
    stats = one.stats
    copies = stats.copies
    assert copies is not None
    ours = "`from stoker import DataLoader`, " + call(device="cuda")
    if _is_ours(stats):
        ours = call(device="cuda")
    advice = [f"{ours}: copied ahead, from page-locked memory, on a stream of its own"]
    if not _is_ours(stats) and copies.num_pageable:
        advice.append(
            f"or {call(pin_memory=True)} and `batch.to(device, non_blocking=True)`; one without the other does nothing"
        )
    elif not _is_ours(stats) and copies.num_blocking:
        advice.append("or `batch.to(device, non_blocking=True)`: memory is pinned, but copies are waited for")
    advice.append(
        "send small types, and widen them on the device: `to=torch.float32`, `normalize=...` of stoker.DataLoader"
    )
    return advice


def are_our_workers(one: Reckoning, around: Surroundings, cores: int) -> bool:
    """Whether it is the loader's own workers that have the cores, and not other programs."""
    if not around.is_measured:
        return setting(one.stats, "num_workers") > max(1, cores)
    return bool(one.stats.config.get("num_workers")) and around.workers_cores >= around.others_cores


def crowded(one: Reckoning, around: Surroundings, cores: int, *, are_ours: bool) -> list[str]:
    """Cores that others have."""
    stats = one.stats
    num_workers = setting(stats, "num_workers")
    own_threads = (
        "`torch.set_num_threads(1)` in what uses torch, and `OMP_NUM_THREADS=1` for other libraries: threads that find "
        "no core hold each other up"
    )
    if are_ours and num_workers:
        few, period = enough_workers(one, around, cores)
        if few >= num_workers or period > 0.97 * one.period:
            fewer = [f"{call(num_workers=few)}: as fast as {num_workers} on {cores} cores, with less memory"]
            return [
                *(fewer if few < num_workers else []),
                "less work for each sample, or more cores: those there are have enough to do with what is made and "
                "trained; what is done in every epoch can be done once and ahead (`stoker prepare`)",
                own_threads,
            ]
        return [
            f"{call(num_workers=few)}: as many as the work needs; others take cores that the trainer wants in time",
            f"{call(num_workers='auto')} of stoker.DataLoader finds the number, and watches the trainer's delay",
            own_threads,
        ]
    others = f"use {around.others_cores:.1f} cores" if around.is_measured else "may use the cores"
    return [
        *_no_more_than_cores(one, cores),
        f"other programs {others} on this machine: end them, move them, or `nice` them",
        "in a container or on a cluster, ask for more cores, and for ones of your own",
        own_threads,
    ]


def slow_rank(one: Reckoning, cause: str, around: Surroundings, cores: int) -> list[str]:
    """One rank that is late."""
    advice = [f"look at what is different for rank {one.stats.rank}: its disk, its share of the data, its neighbours"]
    if cause == "compute-bound":
        return [*advice, "its device may be slower, hotter or shared: compare `nvidia-smi` on it with the others"]
    if cause == "noisy-neighbour":
        return [*advice, *crowded(one, around, cores, are_ours=are_our_workers(one, around, cores))]
    return [*advice, *waiting(cause, one, cores)]
