"""Check what the configuration could do better, whatever the verdict: a loader's arguments, its dataset, the machine.

Each check looks at one loader and returns a finding only if it is sure. What is unknown is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from stoker.engine.stats import Stats
from stoker.foundation.text import format_bytes, format_count, format_duration, format_percent
from stoker.lab.diagnose.advice import MANY_OBJECTS, loader_call
from stoker.lab.diagnose.diagnosis import Finding
from stoker.lab.diagnose.evidence import MIN_STEP_SAMPLES
from stoker.lab.diagnose.loader_profile import MachineLoad, concurrency_of, profile_loader, setting
from stoker.lab.diagnose.verdicts.memory_growth import has_filled, moments_of_training
from stoker.lab.diagnose.worker_counts import enough_workers
from stoker.lab.watch.run import Run

TILE = 8
"""Matrix units of accelerators work on so many rows at a time."""

FITS_SHARE = 0.4
"""A dataset smaller than this share of the memory leaves room for the training."""

MIN_READY = 1
"""Batches in the queue from which late ones are due to batch times that vary."""

SYNCHRONIZING = re.compile(r"\.item\(\)|\.tolist\(\)|\.cpu\(\)|\.numpy\(\)")
SYNCHRONIZING_SHARE, MIN_SYNCHRONIZING = 0.1, 3
"""Samples of a training loop at lines that read values from the device: a share, and how many at least."""

MUCH_BYTES, GROWN_SHARE, SETTLED_SHARE = 256 << 20, 0.3, 0.4
"""Growth of memory worth mentioning: in bytes, as a share of what was used, and after this share of the run."""


class ConfiguredLoader:
    """A loader, with the run that it is part of."""

    def __init__(self, run: Run, stats: Stats, verdict: str) -> None:
        self.run, self.stats, self.verdict = run, stats, verdict
        self.config, self.facts, self.machine = stats.config, stats.facts, run.machine
        self.profile = profile_loader(stats)
        self.num_workers = setting(stats, "num_workers")
        self.cores, self.memory_bytes = (int(run.machine.get(name) or 0) for name in ("cores", "memory_bytes"))
        """0 if unknown."""

    def number(self, name: str) -> int:
        """Return a fact that is a number; 0 if it is unknown."""
        value = self.facts.get(name)
        return int(value) if isinstance(value, int | float) else 0


class ConfigurationCheck(NamedTuple):
    """A check of a loader's configuration."""

    covers: str
    """What it looks for, as listed in docs/guides/doctor.md."""
    find: Callable[[ConfiguredLoader], Finding | None]


CHECKS: list[ConfigurationCheck] = []


def _check(covers: str) -> Callable[[Callable[[ConfiguredLoader], Finding | None]], None]:
    return lambda find: CHECKS.append(ConfigurationCheck(covers, find))


def check_configuration(run: Run, *, verdict: str) -> list[Finding]:
    """Return the findings, each once for however many loaders and ranks it holds."""
    found: dict[str, Finding] = {}
    for stats in run.loaders:
        if stats.num_batches:
            loader = ConfiguredLoader(run, stats, verdict)
            for check in CHECKS:
                if (finding := check.find(loader)) is not None:
                    found.setdefault(finding.about, finding)
    return list(found.values())


@_check("training loops that read single values from the device, such as `total += loss.item()`")
def _synchronizing_step(loader: ConfiguredLoader) -> Finding | None:
    steps = loader.stats.steps_sampled
    if steps is None or steps.num < MIN_STEP_SAMPLES or loader.profile.wait_share > 0.8:
        return None
    found = {place: share for place, share in steps.places.items() if SYNCHRONIZING.search(place)}
    total = sum(found.values())
    if total < SYNCHRONIZING_SHARE or total * steps.num < MIN_SYNCHRONIZING:
        return None
    place, share = max(found.items(), key=lambda item: item[1])
    call = SYNCHRONIZING.search(place).group()  # type: ignore[union-attr]
    return Finding(
        about=call.strip(".()"),
        what=f"the training loop is at {place} in {format_percent(share)} of samples: each `{call}` waits until the "
        "device has finished, and moves one value at a time",
        advice="keep losses and metrics as tensors (`total += loss.detach()`), and read them once every hundred steps",
    )


@_check("pinned memory without `non_blocking`, and the reverse")
def _pinning(loader: ConfiguredLoader) -> Finding | None:
    copies, config = loader.stats.copies, loader.config
    if copies is None or not copies.num or config.get("device"):
        return None
    is_pinned, is_blocking = 2 * copies.num_pageable < copies.num, 2 * copies.num_blocking > copies.num
    is_pageable, is_ahead = 2 * copies.num_pageable > copies.num, 2 * copies.num_blocking < copies.num
    on_device = f"or {loader_call(device='cuda')} of stoker.DataLoader"
    if is_pinned and is_blocking:
        return Finding(
            about="non_blocking",
            what="batches are in pinned memory, but copies are still waited for",
            advice="`batch.to(device, non_blocking=True)`: only then does the copy overlap with the training",
        )
    if is_pageable and is_ahead:
        return Finding(
            about="pin_memory",
            what="copies are non_blocking, but from pageable memory: the driver copies twice, and one copy blocks",
            advice=f"{loader_call(pin_memory=True)}, {on_device}",
        )
    if is_pageable and not config.get("pin_memory"):
        return Finding(
            about="pin_memory",
            what="batches go to the device from pageable memory, at a fraction of the bus's speed",
            advice=f"{loader_call(pin_memory=True)} with `batch.to(device, non_blocking=True)`, {on_device}",
        )
    return None


@_check("a batch size that is not a multiple of 8")
def _batch_size(loader: ConfiguredLoader) -> Finding | None:
    size = loader.config.get("batch_size")
    if not isinstance(size, int) or size <= TILE or not size % TILE:
        return None
    below, above = size // TILE * TILE, -(-size // TILE) * TILE
    return Finding(
        about="batch_size",
        what=f"batch_size={size} is not a multiple of {TILE}: matrix units take as long for it as for {above}",
        advice=f"{loader_call(batch_size=above)}, or {below}",
    )


@_check("more workers than cores")
def _more_workers_than_cores(loader: ConfiguredLoader) -> Finding | None:
    stats, cores, num_workers = loader.stats, loader.cores, loader.num_workers
    concurrency = concurrency_of(stats)
    ranks = len({other.rank for other in loader.run.loaders})
    if not num_workers or not cores or concurrency * ranks <= cores or loader.profile.blocked_share > 0.5:
        return None  # workers that wait for a disk need no core
    wanted = sum(worker.cpu_seconds + (worker.delay_seconds or 0.0) for worker in stats.workers)
    if 0 < wanted * ranks < 0.7 * cores * stats.seconds:
        return None  # they do not keep the cores busy
    fitting = max(1, cores // ranks - 1)
    what, arguments = format_count(num_workers, "worker"), {"num_workers": fitting}
    if concurrency > num_workers:
        what = f"{concurrency} threads in {what}"
        arguments = {"num_workers": min(num_workers, fitting), "num_threads": max(1, fitting // num_workers)}
    else:
        machine = MachineLoad.of(loader.run.moments, cores=max(1, cores // ranks))
        arguments = {"num_workers": enough_workers(loader.profile, machine).num_workers}
        if arguments["num_workers"] >= num_workers:
            return None  # fewer would be slower
    of_ranks = f" on each of {ranks} ranks" if ranks > 1 else ""
    return Finding(
        about="num_workers",
        what=f"{what}{of_ranks} compete for {cores} cores with the trainer",
        advice=f"{loader_call(**arguments)}, or num_workers='auto' of stoker.DataLoader",
    )


@_check("a `/dev/shm` too small for the batches in flight")
def _shared_memory(loader: ConfiguredLoader) -> Finding | None:
    stats, size = loader.stats, loader.machine.get("shared_memory_bytes")
    if loader.profile.is_ours or not loader.num_workers or not size:
        return None
    prefetch = setting(stats, "prefetch_factor", 2)
    # each worker's finished batches and the one it is loading; the trainer's own
    num_batches = loader.num_workers * (prefetch + 1) + 1
    needed = loader.profile.batch_bytes * num_batches
    if needed <= 0.8 * size:
        return None
    return Finding(
        about="shm",
        what=f"/dev/shm has {format_bytes(size)}, and {num_batches} batches in flight need {format_bytes(needed)}: "
        "workers die of a bus error when it is full",
        advice="`docker run --shm-size=...`, fewer workers or a smaller prefetch_factor; "
        "stoker.DataLoader does not use /dev/shm",
    )


@_check("a dataset with hundreds of thousands of Python objects, which each worker copies by reading them")
def _python_objects(loader: ConfiguredLoader) -> Finding | None:
    num = loader.number("num_objects")
    if num < MANY_OBJECTS or not loader.num_workers:
        return None
    size, where = loader.number("object_bytes"), loader.facts.get("objects_in")
    why = "each worker gets a copy of them, pickled when it starts"
    if loader.config.get("start_method") in (None, "fork"):
        why = "reading one changes its reference count, so each forked worker gradually copies them all"
    return Finding(
        about="copy-on-read",
        what=f"the dataset holds about {num:,} Python objects ({format_bytes(size)}, most in `{where}`): {why}, "
        f"{format_bytes(size * loader.num_workers)} with {format_count(loader.num_workers, 'worker')}",
        advice="keep them in NumPy arrays (of bytes, with offsets, for strings), a pandas or Arrow table, or a store",
    )


@_check("a shuffled order on a spinning disk or network storage")
def _seeks(loader: ConfiguredLoader) -> Finding | None:
    mount = loader.facts.get("mount")
    if not isinstance(mount, dict) or loader.config.get("order") not in ("shuffle", "shuffled"):
        return None
    if not (mount.get("is_remote") or mount.get("is_rotational")):
        return None
    data = loader.number("files_bytes") + loader.number("mapped_bytes")
    if data and loader.memory_bytes and data < FITS_SHARE * loader.memory_bytes and loader.stats.num_iterations > 1:
        return None  # after the first epoch it is in memory
    kind = f"network storage ({mount.get('kind')})" if mount.get("is_remote") else "a spinning disk"
    return Finding(
        about="order",
        what=f"samples are read in a shuffled order from {mount.get('point')}, {kind}: every read is a seek",
        advice=f"{loader_call(order='window')} of stoker.DataLoader, or a store on a local disk (`stoker prepare`)",
    )


@_check("data that would fit in memory")
def _fits_in_memory(loader: ConfiguredLoader) -> Finding | None:
    data, memory = loader.number("files_bytes"), loader.memory_bytes
    reads_much = loader.config.get("is_iterable") or loader.verdict == "storage-bound"
    if not data or data >= FITS_SHARE * memory or not reads_much:
        return None
    return Finding(
        about="fits in memory",
        what=f"the data is about {format_bytes(data)}, and there are {format_bytes(memory)} of memory",
        advice="read it once, into an array or a memory-mapped store, and use it map-style: any order, no reading",
    )


@_check("data that does not fit in memory")
def _beyond_memory(loader: ConfiguredLoader) -> Finding | None:
    held, memory = loader.number("array_bytes") + loader.number("object_bytes"), loader.memory_bytes
    spawned = loader.config.get("start_method") in ("spawn", "forkserver") and not loader.profile.is_ours
    copies = 1 + (loader.num_workers if spawned else 0)
    if not memory or held * copies <= 0.5 * memory:
        return None
    workers = format_count(loader.num_workers, "worker")
    return Finding(
        about="memory",
        what=f"the dataset holds {format_bytes(held)} in memory"
        + (f", once for the trainer and once for each of {workers}" if copies > 1 else "")
        + f", of {format_bytes(memory)}",
        advice="memory-map it (`np.load(..., mmap_mode='r')`, `stoker.open`) or stream it",
    )


@_check("workers restarted in every epoch")
def _restarted_workers(loader: ConfiguredLoader) -> Finding | None:
    firsts, share = loader.stats.first_batch_seconds, loader.profile.start_up_share
    if not loader.num_workers or loader.config.get("persistent_workers") or loader.stats.num_iterations < 2:
        return None
    if not firsts or share < 0.05 or loader.verdict == "start-up-bound":
        return None
    first = format_duration(sum(firsts) / len(firsts))
    return Finding(
        about="persistent_workers",
        what=f"workers are restarted in every epoch, whose first batch takes {first}: {format_percent(share)} of the "
        "time",
        advice=loader_call(persistent_workers=True),
    )


@_check("a `prefetch_factor` too small for batch times that vary")
def _prefetch(loader: ConfiguredLoader) -> Finding | None:
    making, depth = loader.stats.making_seconds, loader.stats.queue_depth
    if not loader.num_workers or depth is None or not making.p50 or not loader.stats.num_stalls:
        return None
    prefetch = setting(loader.stats, "prefetch_factor", 2)
    # how long the batches in the queue last
    lasts = prefetch * concurrency_of(loader.stats) * loader.profile.step
    is_uneven = making.p99 > 5 * making.p50 and making.p99 > lasts and depth >= MIN_READY
    if not is_uneven or loader.profile.wait_share <= 0.03 or making.num < 50:
        return None
    return Finding(
        about="prefetch_factor",
        what=f"one batch in a hundred takes {format_duration(making.p99)} to load, most take "
        f"{format_duration(making.p50)}, and the training loop waits for the slow ones",
        advice=f"{loader_call(prefetch_factor=2 * prefetch)}, or {loader_call(in_order=False)} if the order does not "
        "matter",
    )


@_check("an iterable dataset that never asks which worker it is in")
def _stream(loader: ConfiguredLoader) -> Finding | None:
    if not loader.config.get("is_iterable") or loader.num_workers < 2 or loader.verdict == "duplicated-data":
        return None
    if loader.config.get("shard") or loader.config.get("worker_init_fn"):
        return None
    if loader.facts.get("looked_at_worker") is not False:
        return None
    return Finding(
        about="get_worker_info",
        what=f"the iterable dataset never asks which of the {loader.num_workers} workers it is in: unless its input is "
        "split in another way, every sample comes once per worker",
        advice=f"{loader_call(shard='auto')} of stoker.DataLoader, or `torch.utils.data.get_worker_info()`",
    )


@_check("memory that grew much in a run too short to call it a leak")
def _memory_in_a_short_run(loader: ConfiguredLoader) -> Finding | None:
    known = [moment for moment in moments_of_training(loader.run) if moment.private_bytes]
    if loader.verdict == "memory-growth" or len(known) < 3 or not has_filled(loader.stats):
        return None
    # at the beginning, models, buffers and workers need memory
    start = known[0].at + SETTLED_SHARE * (known[-1].at - known[0].at)
    known = [moment for moment in known if moment.at >= start]
    if len(known) < 2:
        return None
    first, last = known[0].private_bytes or 0, known[-1].private_bytes or 0
    most = max(moment.private_bytes or 0 for moment in known)
    if last - first <= max(MUCH_BYTES, GROWN_SHARE * first) or last <= 0.95 * most:
        return None
    return Finding(
        about="memory growth",
        what=f"memory grew by {format_bytes(last - first)} in {format_duration(known[-1].at - known[0].at)}, from "
        f"{format_bytes(first)} to {format_bytes(last)}: the run is too short to say whether it goes on",
        advice="watch for half a minute or longer; what a dataset keeps of each sample adds up",
    )
