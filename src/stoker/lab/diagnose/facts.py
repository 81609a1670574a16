"""What the configuration could do better, whatever the verdict: from a loader's arguments, its dataset, the machine.

Each rule looks at one loader and says something only if it is so; what is not known is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stoker.engine.stats import Stats
from stoker.foundation.text import format_bytes, format_count, format_duration, format_percent
from stoker.lab.diagnose.causes import FEWEST_SAMPLES
from stoker.lab.diagnose.diagnosis import Finding
from stoker.lab.diagnose.memory_trend import has_filled, moments_of_training
from stoker.lab.diagnose.reckoning import Reckoning, Surroundings, num_lanes, reckoned, setting
from stoker.lab.diagnose.remedies import MANY_OBJECTS, call, enough_workers
from stoker.lab.watch.run import Run

TILE = 8
"""Matrix units of accelerators work on so many rows at a time."""

FITS_SHARE = 0.4
"""Of the memory: a dataset below it leaves room for the training."""

FEW_BATCHES_READY = 1

SYNCHRONIZING = re.compile(r"\.item\(\)|\.tolist\(\)|\.cpu\(\)|\.numpy\(\)")
SYNCHRONIZING_SHARE, FEWEST_SYNCHRONIZING = 0.1, 3
"""Of the samples of a training loop, at lines that read values from the device: a part, and how many at the least."""

MUCH_BYTES, GROWN_SHARE, SETTLED_SHARE = 256 << 20, 0.3, 0.4
"""Memory that has grown by so much, and by so much of what there was, in the last part of a run."""


class Case:
    """One loader, with the run that it is part of."""

    def __init__(self, run: Run, stats: Stats, verdict: str) -> None:
        self.run, self.stats, self.verdict = run, stats, verdict
        self.config, self.facts, self.machine = stats.config, stats.facts, run.machine
        self.reckoning: Reckoning = reckoned(stats)
        self.num_workers = setting(stats, "num_workers")
        self.is_ours = stats.kind == "stoker"

    def number(self, name: str) -> int:
        """Return a fact that is a number; 0 if it is not known."""
        value = self.facts.get(name)
        return int(value) if isinstance(value, int | float) else 0

    @property
    def memory_bytes(self) -> int:
        """The machine's memory; 0 if it is not known."""
        return int(self.machine.get("memory_bytes") or 0)


def findings(run: Run, *, verdict: str) -> list[Finding]:
    """Return what was found, each thing once however many loaders and ranks it is so for."""
    found: dict[str, Finding] = {}
    for stats in run.loaders:
        if not stats.num_batches:
            continue
        case = Case(run, stats, verdict)
        for rule in RULES:
            for finding in rule(case):
                found.setdefault(finding.about, finding)
    return list(found.values())


def _pinning(case: Case) -> Iterator[Finding]:
    copies, config = case.stats.copies, case.config
    if copies is None or not copies.num or config.get("device"):
        return
    num_pinned = copies.num - copies.num_pageable
    if num_pinned > copies.num / 2 and copies.num_blocking > copies.num / 2:
        yield Finding(
            about="non_blocking",
            what="batches are in pinned memory, and copies are waited for all the same",
            advice="`batch.to(device, non_blocking=True)`: only then the copy goes on beside the training",
        )
    elif copies.num_pageable > copies.num / 2 and copies.num_blocking < copies.num / 2:
        yield Finding(
            about="pin_memory",
            what="copies are non_blocking, but from pageable memory: the driver copies twice, and one is waited for",
            advice=f"{call(pin_memory=True)}, or {call(device='cuda')} of stoker.DataLoader",
        )
    elif copies.num_pageable > copies.num / 2 and not config.get("pin_memory"):
        yield Finding(
            about="pin_memory",
            what="batches go to the device from pageable memory, at a fraction of the bus's speed",
            advice=f"{call(pin_memory=True)} with `batch.to(device, non_blocking=True)`, "
            f"or {call(device='cuda')} of stoker.DataLoader",
        )


def _synchronizing_step(case: Case) -> Iterator[Finding]:
    steps = case.stats.steps_sampled
    if steps is None or steps.num < FEWEST_SAMPLES or case.reckoning.wait_share > 0.8:
        return
    found = {place: share for place, share in steps.places.items() if SYNCHRONIZING.search(place)}
    total = sum(found.values())
    if total < SYNCHRONIZING_SHARE or total * steps.num < FEWEST_SYNCHRONIZING:
        return
    place, share = max(found.items(), key=lambda item: item[1])
    call_name = SYNCHRONIZING.search(place).group()  # type: ignore[union-attr]
    yield Finding(
        about=call_name.strip(".()"),
        what=f"the training loop is at {place} in {format_percent(share)} of samples: each `{call_name}` waits until "
        "the "
        "device has finished, and moves one value at a time",
        advice="keep losses and metrics as tensors (`total += loss.detach()`), and read them once every hundred steps",
    )


def _batch_size(case: Case) -> Iterator[Finding]:
    size = case.config.get("batch_size")
    if isinstance(size, int) and size > TILE and size % TILE:
        below, above = size // TILE * TILE, -(-size // TILE) * TILE
        yield Finding(
            about="batch_size",
            what=f"batch_size={size} is not a multiple of {TILE}: matrix units take as long for it as for {above}",
            advice=f"{call(batch_size=above)}, or {below}",
        )


def _more_workers_than_cores(case: Case) -> Iterator[Finding]:
    cores = int(case.machine.get("cores") or 0)
    lanes = num_lanes(case.stats)
    ranks = len({stats.rank for stats in case.run.loaders})
    if not case.num_workers or not cores or lanes * ranks <= cores or case.reckoning.blocked_share > 0.5:
        return  # those who wait for a disk need no core
    wanted = sum(worker.cpu_seconds + (worker.delay_seconds or 0.0) for worker in case.stats.workers)
    if 0 < wanted * ranks < 0.7 * cores * case.stats.seconds:
        return  # they do not keep them busy
    of_ranks = f" on each of {ranks} ranks" if ranks > 1 else ""
    fitting = max(1, cores // ranks - 1)
    if lanes == case.num_workers:
        fitting = enough_workers(case.reckoning, Surroundings.of(case.run.moments), max(1, cores // ranks)).num_workers
        if fitting >= case.num_workers:
            return  # fewer would be slower
    what, advice = format_count(case.num_workers, "worker"), call(num_workers=fitting)
    if lanes > case.num_workers:
        what = f"{lanes} threads in {what}"
        advice = call(num_workers=min(case.num_workers, fitting), num_threads=max(1, fitting // case.num_workers))
    yield Finding(
        about="num_workers",
        what=f"{what}{of_ranks} share {cores} cores with the trainer: those beyond wait for each other",
        advice=f"{advice}, or num_workers='auto' of stoker.DataLoader",
    )


def _shared_memory(case: Case) -> Iterator[Finding]:
    size = case.machine.get("shared_memory_bytes")
    if case.is_ours or not case.num_workers or not size or not case.stats.num_batches:
        return
    prefetch = setting(case.stats, "prefetch_factor", 2)
    # each worker's batches in store, and the one that is being made; the trainer's own
    num_batches = case.num_workers * (prefetch + 1) + 1
    needed = case.stats.num_bytes / case.stats.num_batches * num_batches
    if needed > 0.8 * size:
        yield Finding(
            about="shm",
            what=f"/dev/shm has {format_bytes(size)}, and {num_batches} batches on their way need "
            f"{format_bytes(needed)}: "
            "workers die of a bus error when it is full",
            advice="`docker run --shm-size=...`, fewer workers or a smaller prefetch_factor; "
            "stoker.DataLoader does not use /dev/shm",
        )


def _python_objects(case: Case) -> Iterator[Finding]:
    num = case.number("num_objects")
    if num < MANY_OBJECTS or not case.num_workers:
        return
    size, where = case.number("object_bytes"), case.facts.get("objects_in")
    forked = case.config.get("start_method") in (None, "fork")
    yield Finding(
        about="copy-on-read",
        what=f"the dataset holds about {num:,} Python objects ({format_bytes(size)}, most in `{where}`): "
        + (
            "looking at one changes its reference count, so that each forked worker comes to copy them all"
            if forked
            else "each worker gets a copy of them, pickled when it starts"
        )
        + f", {format_bytes(size * case.num_workers)} with {case.num_workers} workers",
        advice="keep them in NumPy arrays (of bytes, with offsets, for texts), a pandas or Arrow table, or a store",
    )


def _seeks(case: Case) -> Iterator[Finding]:
    mount = case.facts.get("mount")
    if not isinstance(mount, dict) or case.config.get("order") not in ("shuffle", "shuffled"):
        return
    if not (mount.get("is_remote") or mount.get("is_rotational")):
        return
    data = case.number("files_bytes") + case.number("mapped_bytes")
    if data and case.memory_bytes and data < FITS_SHARE * case.memory_bytes and case.stats.num_iterations > 1:
        return  # after the first epoch it is in memory
    kind = f"a file system over the network ({mount.get('kind')})" if mount.get("is_remote") else "a disk that turns"
    yield Finding(
        about="order",
        what=f"samples are read in a shuffled order from {mount.get('point')}, {kind}: every read is a seek",
        advice=f"{call(order='window')} of stoker.DataLoader, or a store on a local disk (`stoker prepare`)",
    )


def _in_memory(case: Case) -> Iterator[Finding]:
    data, memory = case.number("files_bytes"), case.memory_bytes
    if not data or not memory:
        return
    reads_much = case.config.get("is_iterable") or case.verdict == "storage-bound"
    if data < FITS_SHARE * memory and reads_much:
        yield Finding(
            about="fits in memory",
            what=f"the data is about {format_bytes(data)}, and there are {format_bytes(memory)} of memory",
            advice="read it once, into an array or a store that is memory-mapped, and use it map-style: "
            "any order, no reading",
        )


def _beyond_memory(case: Case) -> Iterator[Finding]:
    held, memory = case.number("array_bytes") + case.number("object_bytes"), case.memory_bytes
    spawned = case.config.get("start_method") in ("spawn", "forkserver") and not case.is_ours
    copies = 1 + (case.num_workers if spawned else 0)
    if memory and held * copies > 0.5 * memory:
        yield Finding(
            about="memory",
            what=f"the dataset holds {format_bytes(held)} in memory"
            + (f", once for the trainer and once for each of {case.num_workers} workers" if copies > 1 else "")
            + f", of {format_bytes(memory)}",
            advice="memory-map it (`np.load(..., mmap_mode='r')`, `stoker.open`) or stream it",
        )


def _workers_that_stay(case: Case) -> Iterator[Finding]:
    firsts = case.stats.first_batch_seconds
    if not case.num_workers or case.config.get("persistent_workers") or case.stats.num_iterations < 2 or not firsts:
        return
    if case.reckoning.start_up_share >= 0.05 and case.verdict != "start-up-bound":
        yield Finding(
            about="persistent_workers",
            what="workers are started anew for each epoch, whose first batch takes "
            f"{format_duration(sum(firsts) / len(firsts))}: {format_percent(case.reckoning.start_up_share)} of the "
            "time",
            advice=call(persistent_workers=True),
        )


def _prefetch(case: Case) -> Iterator[Finding]:
    making, depth = case.stats.making_seconds, case.stats.queue_depth
    if not case.num_workers or depth is None or not making.p50 or not case.stats.num_stalls:
        return
    prefetch = setting(case.stats, "prefetch_factor", 2)
    # how long the training can go on with what is in store
    lasts = prefetch * num_lanes(case.stats) * case.reckoning.step
    is_uneven = making.p99 > 5 * making.p50 and making.p99 > lasts and depth >= FEW_BATCHES_READY
    if is_uneven and case.reckoning.wait_share > 0.03 and making.num >= 50:
        yield Finding(
            about="prefetch_factor",
            what=f"one batch in a hundred takes {format_duration(making.p99)} to make, most take "
            f"{format_duration(making.p50)}, "
            "and the trainer waits for the slow ones",
            advice=f"{call(prefetch_factor=2 * prefetch)}, or {call(in_order=False)} if the order does not matter",
        )


def _stream(case: Case) -> Iterator[Finding]:
    if not case.config.get("is_iterable") or case.num_workers < 2 or case.verdict == "duplicated-data":
        return
    if case.config.get("shard") or case.config.get("worker_init_fn"):
        return
    if case.facts.get("looked_at_worker") is False:
        yield Finding(
            about="get_worker_info",
            what=f"the iterable dataset never asks which of the {case.num_workers} workers it is in: unless what it "
            "reads is shared out by others, every sample comes once per worker",
            advice=f"{call(shard='auto')} of stoker.DataLoader, or `torch.utils.data.get_worker_info()`",
        )


def _memory_in_a_short_run(case: Case) -> Iterator[Finding]:
    """What was looked at for too short a time to call it a leak, and is too much to keep quiet about."""
    known = [moment for moment in moments_of_training(case.run) if moment.private_bytes]
    if case.verdict == "memory-growth" or len(known) < 3 or not has_filled(case.stats):
        return
    # the beginning may need as much as it likes: models, buffers, workers
    start = known[0].at + SETTLED_SHARE * (known[-1].at - known[0].at)
    known = [moment for moment in known if moment.at >= start]
    if len(known) < 2:
        return
    first, last = known[0].private_bytes or 0, known[-1].private_bytes or 0
    most = max(moment.private_bytes or 0 for moment in known)
    if last - first > max(MUCH_BYTES, GROWN_SHARE * first) and last > 0.95 * most:
        yield Finding(
            about="memory growth",
            what=f"memory has grown by {format_bytes(last - first)} in "
            f"{format_duration(known[-1].at - known[0].at)}, from "
            f"{format_bytes(first)} to {format_bytes(last)}: the run is too short to tell whether it goes on",
            advice="watch it for longer, half a minute and more; what a dataset keeps of each sample adds up",
        )


RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _synchronizing_step,
    _pinning,
    _batch_size,
    _more_workers_than_cores,
    _shared_memory,
    _python_objects,
    _seeks,
    _in_memory,
    _beyond_memory,
    _workers_that_stay,
    _prefetch,
    _stream,
    _memory_in_a_short_run,
)
