"""How fast batches come from worker processes, on a dataset that costs nothing.

Each contender has a process of its own (see `benchmarks.turns`): a training loop with its workers, started and warmed
up before anything is measured, and kept through all rounds in one long epoch.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from math import prod
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import stoker
from benchmarks.datasets import Same
from benchmarks.report import INK, Column, Report, Saved, Setting, only, span
from benchmarks.turns import IDLE_SECONDS, BatchTaker, Turn, series_of, take_turns, taking
from stoker.foundation.machine import tree_cpu_seconds
from stoker.lab.trial import contenders
from stoker.lab.trial.contenders import LoaderArguments
from stoker.lab.trial.rounds import Measurement, measurement_of, wait_until_idle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TORCH, STATEFUL, OURS = "torch", "StatefulDataLoader", "stoker"
SPDL_POOL, SPDL_ARENA, GRAIN = "SPDL, processes", "SPDL, arena", "Grain"
COPY_ONE, COPY_TWO, COPY_DEVICE = "memcpy, 1 process", "memcpy, 2 processes", "copies of one pinned batch"
OURS_PINNED = "stoker, pin_memory, .to"
BATCH_SIZE = 64
PREFETCH_FACTOR = 2
NUM_SAMPLES = BATCH_SIZE * 10**9
"""One epoch is longer than any run."""
NUM_WORKERS = (1, 2, 4)
NUM_WORKERS_DEVICE = (2, 4, 8)
GOALS = {2: 6.0}
GOALS_DEVICE = {2: 6.0, 4: 3.5}
"""How many times as fast as torch we want to be, by the number of workers."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch is made of."""

    size: str
    kind: str
    shape: tuple[int, ...]
    """Of one sample, in 32-bit numbers."""

    @property
    def num_bytes(self) -> int:
        return BATCH_SIZE * prod(self.shape) * 4 * (2 if self.kind == "dict" else 1)

    def sample(self) -> Any:
        """Return a sample full of ones. Tensors are made from arrays, so that torch starts no threads for it."""
        if self.kind == "dict":
            tokens = [torch.from_numpy(np.ones(self.shape, dtype=np.int32)) for _ in range(2)]
            return {"tokens": tokens[0], "targets": tokens[1], "length": 1}
        return torch.from_numpy(np.ones(self.shape, dtype=np.float32))


LOADS = (
    Load("0.1 MB", "tensor", (400,)),
    Load("1 MB", "tensor", (4096,)),
    Load("10 MB", "tensor", (3, 114, 114)),
    Load("38.5 MB", "tensor", (3, 224, 224)),
)
DICT = Load("1 MB", "dict", (2048,))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure."""

    num_rounds: int
    seconds: float
    """Of one turn."""
    warm_up_seconds: float = 1.0


# ---------------------------------------------------------------- contenders: each returns an iterator


def _loader(name: str, load: Load, num_workers: int) -> Iterator[Any]:
    """Iterate over one of the loaders of `stoker bench compare`."""
    return iter(contenders.CONTENDERS[name].make(_arguments(load.sample(), num_workers)))


def _arguments(sample: Any, num_workers: int) -> LoaderArguments:
    return LoaderArguments(
        dataset=Same(NUM_SAMPLES, sample),
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        prefetch_factor=PREFETCH_FACTOR,
    )


def _pinned(make: Any, load: Load, num_workers: int, **options: Any) -> Iterator[Any]:
    dataset = Same(NUM_SAMPLES, load.sample())
    found: Iterator[Any] = iter(
        make(dataset, BATCH_SIZE, num_workers=num_workers, prefetch_factor=PREFETCH_FACTOR, **options)
    )
    return found


def _spdl_arena(load: Load, num_workers: int) -> Iterator[Any]:
    """What SPDL recommends: one process full of threads, here with its pool of shared segments, made for large batches.

    The pool holds what is in the queue, and one batch each that is written, waits and is used.
    """
    num_segments = PREFETCH_FACTOR * num_workers + 3
    arena = import_module("spdl.pipeline").SharedMemorySegmentPool(load.num_bytes + 4096, num_segments)
    return iter(contenders.spdl_pipeline(_arguments(load.sample(), num_workers), arena=arena))


def _grain(load: Load, num_workers: int) -> Iterator[Any]:
    """Grain's loader, of arrays: its batches are arrays, and to convert each sample would cost time."""
    sample = load.sample()
    arrays = {key: np.asarray(value) for key, value in sample.items()} if load.kind == "dict" else sample.numpy()
    return iter(contenders.grain_loader(_arguments(arrays, num_workers)))


CONTENDERS: dict[str, Callable[[Load, int], Iterator[Any]]] = {
    TORCH: partial(_loader, contenders.TORCH),
    STATEFUL: partial(_loader, contenders.STATEFUL),
    OURS: partial(_loader, contenders.OURS),
    SPDL_POOL: partial(_loader, contenders.SPDL_PROCESSES),
    SPDL_ARENA: _spdl_arena,
    GRAIN: _grain,
}
NEEDS = {STATEFUL: "torchdata", SPDL_POOL: "spdl", SPDL_ARENA: "spdl", GRAIN: "grain"}


# ---------------------------------------------------------------- in the child


def serving(contender: str, load: Load, num_workers: int) -> AbstractContextManager[Callable[[float], Turn]]:
    """Serve turns of a loader."""
    return taking(_taker(CONTENDERS[contender](load, num_workers), _touch, num_workers))


def _taker(
    iterator: Iterator[Any],
    touch: Callable[[Any], None],
    num_workers: int,
    finish: Callable[[], object] = lambda: None,
) -> BatchTaker:
    # twice what torch holds: others have a queue more on the way
    return BatchTaker(iterator, touch, num_untimed=max(8, 2 * PREFETCH_FACTOR * num_workers), finish=finish)


def _touch(batch: Any) -> None:
    """Read one number of each tensor or array, and see that it is the right one."""
    for part in batch.values() if isinstance(batch, dict) else (batch,):
        if part.reshape(-1)[0].item() != 1:
            raise ValueError(f"a batch holds {part.reshape(-1)[0]} where 1 was sent")


@contextmanager
def copying(load: Load, num_processes: int) -> Iterator[Callable[[float], Turn]]:
    """Write the same bytes to shared memory, and do nothing else: what no loader can beat with as many processes."""
    context = multiprocessing.get_context("fork")
    num_slots = 2 * PREFETCH_FACTOR
    memory = mmap.mmap(-1, num_processes * num_slots * load.num_bytes)
    slots = np.frombuffer(memory, dtype=np.float32).reshape(num_processes, num_slots, BATCH_SIZE, -1)
    slots.fill(0)  # every page is there before anything is measured
    shared = mmap.mmap(-1, 8 * (num_processes + 1))
    state = np.frombuffer(shared, dtype=np.int64)  # whether to run, then the batches written by each
    go = context.Event()
    source = np.ones(load.num_bytes // BATCH_SIZE // 4, dtype=np.float32)

    def work(number: int) -> None:
        mine, written = slots[number - 1], 0
        while True:
            go.wait()
            while state[0]:
                np.copyto(mine[written % num_slots], source)  # one call for the 64 samples of a batch
                written += 1
                state[number] = written

    workers = [context.Process(target=work, args=(number + 1,), daemon=True) for number in range(num_processes)]
    for worker in workers:
        worker.start()

    def turn(seconds: float) -> Turn:
        state[0] = 1
        go.set()
        enough = state[1:] + num_slots
        while (state[1:] < enough).any():
            time.sleep(0.01)
        cpu, begin, written = tree_cpu_seconds(os.getpid()), time.perf_counter(), int(state[1:].sum())
        time.sleep(seconds)
        written, taken = int(state[1:].sum()) - written, time.perf_counter() - begin
        cpu = tree_cpu_seconds(os.getpid()) - cpu
        go.clear()
        state[0] = 0
        wait_until_idle(IDLE_SECONDS)
        return Turn(written, taken, cpu)

    yield turn
    for worker in workers:
        worker.kill()
        worker.join()


# ---------------------------------------------------------------- into a device


def serving_device(
    contender: str, load: Load, num_workers: int, device: str
) -> AbstractContextManager[Callable[[float], Turn]]:
    """Play the trainer whose batches arrive on a device. It adds one number of each to a sum, on its own stream."""
    num_touched = 0
    total = torch.zeros((), device=device)

    def touch(batch: Any) -> None:
        nonlocal num_touched
        if not batch.is_cuda:
            batch = batch.to(device, non_blocking=True)
        total.add_(batch[0, 0, 0, 0])
        num_touched += 1

    def finish() -> None:
        nonlocal num_touched
        torch.cuda.synchronize()
        if total.item() != num_touched:
            raise ValueError(f"{num_touched} batches add up to {total.item()}: some were read before they had arrived")
        total.zero_()
        num_touched = 0

    if contender == COPY_DEVICE:
        iterator = _pinned_again_and_again(load)
    elif contender == TORCH:
        iterator = _pinned(TorchDataLoader, load, num_workers, pin_memory=True)
    elif contender == OURS_PINNED:
        iterator = _pinned(stoker.DataLoader, load, num_workers, pin_memory=True)
    else:
        iterator = _pinned(stoker.DataLoader, load, num_workers, device=device)
    return taking(_taker(iterator, touch, num_workers, finish))


def _pinned_again_and_again(load: Load) -> Iterator[Any]:
    batch = torch.ones((BATCH_SIZE, *load.shape)).pin_memory()
    for number in range(10**9):
        if number % 8 == 7:
            torch.cuda.synchronize()  # or copies without end would be waiting
        yield batch


# ---------------------------------------------------------------- running


def run(setting: Setting) -> Report:
    return _run_device(setting, setting.device) if setting.device else _run_host(setting)


def _run_host(setting: Setting) -> Report:
    present = [name for name in CONTENDERS if name not in NEEDS or find_spec(NEEDS[name]) is not None]
    pace = Pace(1, 0.1, 0.1) if setting.is_quick else Pace(5, 1.0)
    records: list[Measurement] = []
    for load, num_workers in _cases(setting):
        servings: dict[str, tuple[Any, ...]] = {name: (serving, name, load, num_workers) for name in present}
        if load.kind == "tensor" and num_workers in (1, 2):
            servings[(COPY_ONE, COPY_TWO)[num_workers - 1]] = (copying, load, num_workers)
        case = {"batch": load.size, "of": load.kind, "workers": num_workers}
        records += _rounds(servings, load, case, pace)
    missing = [name for name in CONTENDERS if name not in present]
    return Report(
        name="transport",
        title="Batches from worker processes, on a dataset that costs nothing",
        records=records,
        shows=_shows(records) + ([f"left out, because not installed: {', '.join(missing)}."] if missing else []),
        limits=[
            "how loaders compare when samples take time to read or decode: nothing but the way of a batch from worker "
            "to trainer is measured. All samples are one object, which stays in the worker's cache.",
            "a training step: the trainer reads one number of each tensor and asks for the next batch.",
            f"{max(NUM_WORKERS)} workers on as many cores, where there are fewer.",
            "equal work. torch and StatefulDataLoader make a shared-memory file for every tensor, write the batch into "
            "it, and pass its descriptor. StatefulDataLoader sends the workers' states along. SPDL's processes "
            "collate, and pass a descriptor as torch does; SPDL's arena (one process with as many threads as others "
            "have workers) collates, then copies into a reused shared segment; Grain stacks into a new named segment, "
            "starts with spawn, and gives arrays. stoker writes samples into reused shared slots. All deliver in "
            f"order; each holds {PREFETCH_FACTOR} batches per worker ahead, SPDL and Grain a few more on the way.",
            "memcpy as a loader: nobody waits for a batch or reads it.",
        ],
        draw=draw,
        columns=_COLUMNS,
        extra={"batch_size": BATCH_SIZE, "prefetch_factor": PREFETCH_FACTOR, "left_out": missing},
    )


def _cases(setting: Setting) -> list[tuple[Load, int]]:
    if setting.is_quick:
        return [(LOADS[1], 2)]
    return [(load, num_workers) for load in LOADS for num_workers in NUM_WORKERS] + [(DICT, 2)]


def _run_device(setting: Setting, device: str) -> Report:
    load = LOADS[-1]
    pace = Pace(1, 0.2, 0.2) if setting.is_quick else Pace(5, 1.2)
    has_device = "device" in signature(stoker.DataLoader).parameters
    names = [TORCH, *([OURS] if has_device else []), OURS_PINNED, COPY_DEVICE]
    records: list[Measurement] = []
    for num_workers in NUM_WORKERS_DEVICE[: 1 if setting.is_quick else None]:
        servings: dict[str, tuple[Any, ...]] = {
            name: (serving_device, name, load, num_workers, device) for name in names
        }
        case = {"batch": load.size, "of": load.kind, "workers": num_workers}
        records += _rounds(servings, load, case, pace)
    return Report(
        name="transport_device",
        title="Batches from worker processes into the memory of a GPU, on a dataset that costs nothing",
        records=records,
        shows=_shows_device(records)
        + ([] if has_device else ["left out: stoker's `device=`, which this version does not have."]),
        limits=[
            "how loaders compare when samples take time to read or decode. All samples are one object.",
            "a training step: the trainer adds one number of each batch to a sum on the device, and waits for the "
            "device at the end of each turn.",
            "equal work: torch is `pin_memory=True` and `.to(device, non_blocking=True)`, so a thread of its own "
            "copies each batch to page-locked memory; stoker is `device=`, and beside it `pin_memory=True` and `.to`.",
            "copies of one pinned batch as a loader: nobody writes it.",
        ],
        draw=draw,
        columns=_COLUMNS,
        extra={"batch_size": BATCH_SIZE, "prefetch_factor": PREFETCH_FACTOR},
    )


def _rounds(servings: Mapping[str, tuple[Any, ...]], load: Load, case: dict[str, Any], pace: Pace) -> list[Measurement]:
    turns = take_turns(servings, num_rounds=pace.num_rounds, seconds=pace.seconds, warm_up_seconds=pace.warm_up_seconds)
    series = {name: series_of(taken) for name, taken in turns.items()}
    base = series[TORCH].wall
    return [
        measurement_of(name, series[name], base, case, "batch", _more(turns[name], load.num_bytes)) for name in servings
    ]


def _more(turns: Sequence[Turn], num_bytes: int) -> dict[str, Any]:
    rates = [turn.num_batches / turn.seconds for turn in turns]
    found: dict[str, Any] = {
        "batch_bytes": num_bytes,
        "batches_per_second": median(rates),
        "gigabytes_per_second": median(rates) * num_bytes / 1e9,
        "num_batches": round(sum(turn.num_batches for turn in turns)),
    }
    waits = np.concatenate([turn.wait_seconds for turn in turns])
    if len(waits):
        found["next_p50"], found["next_p99"] = (float(np.percentile(waits, part)) * 1e6 for part in (50, 99))
    return found


# ---------------------------------------------------------------- telling


def _speed(record: Measurement) -> float:
    """Return how many times as fast as torch, in the same rounds."""
    return 1 / record.median_ratio if record.median_ratio else 0.0


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_COLUMNS = (
    Column("batches/s", lambda record: _number(record.more["batches_per_second"])),
    Column("GB/s", lambda record: f"{record.more['gigabytes_per_second']:.2f}"),
    Column("times torch", lambda record: f"{_speed(record):.2f}"),
    Column("CPU µs per batch", lambda record: _number(record.median_cpu)),
    Column("next: p50 µs", lambda record: _number(record.more.get("next_p50"))),
    Column("p99 µs", lambda record: _number(record.more.get("next_p99"))),
)


def _shows(records: list[Measurement]) -> list[str]:
    sentences = []
    counts = sorted({record.case["workers"] for record in records})
    for num_workers in counts:
        summary = []
        for ours in only(records, OURS, workers=num_workers):
            torchs = only(records, TORCH, **ours.case)[0]
            summary.append(
                f"{ours.case['batch']}{'' if ours.case['of'] == 'tensor' else ' (dict)'} "
                f"{_number(ours.more['batches_per_second'])} against {_number(torchs.more['batches_per_second'])}, "
                f"{_speed(ours):.1f}x"
            )
        goal = ""
        if num_workers in GOALS:
            least = min(_speed(ours) for ours in only(records, OURS, workers=num_workers))
            verdict = "reached" if least >= GOALS[num_workers] else f"not reached (the least is {least:.1f}x)"
            goal = f" The goal of {GOALS[num_workers]:g}x is {verdict}."
        sentences.append(f"{_workers(num_workers)}, batches/s of stoker against torch: {'; '.join(summary)}.{goal}")
    for name in (STATEFUL, SPDL_POOL, SPDL_ARENA, GRAIN):
        speeds = [_speed(record) for record in only(records, name)]
        if speeds:
            sentences.append(f"{name}: {span(speeds)} of torch's batches/s.")
    ratios = [ours.median_cpu / only(records, TORCH, **ours.case)[0].median_cpu for ours in only(records, OURS)]
    sentences.append(f"CPU time of trainer and workers per batch, stoker by torch: {span(ratios)}.")
    shares = [
        ours.more["batches_per_second"] / limit.more["batches_per_second"]
        for ours in only(records, OURS)
        for limit in _limits(records, **ours.case)
    ]
    if shares:
        sentences.append(f"stoker reaches {span(shares)} of what copying alone does with as many processes.")
    return sentences


def _limits(records: list[Measurement], **case: Any) -> list[Measurement]:
    return [record for record in only(records, **case) if record.contender in (COPY_ONE, COPY_TWO)]


def _workers(num_workers: int) -> str:
    return f"{num_workers} worker{'s' if num_workers > 1 else ''}"


def _shows_device(records: list[Measurement]) -> list[str]:
    sentences = []
    for num_workers in sorted({record.case["workers"] for record in records}):
        found = {record.contender: record for record in only(records, workers=num_workers)}
        summary = ", ".join(
            f"{name} {_number(record.more['batches_per_second'])}"
            + ("" if name == TORCH else f" ({_speed(record):.1f}x)")
            for name, record in found.items()
        )
        goal = ""
        if OURS in found and num_workers in GOALS_DEVICE:
            is_reached = _speed(found[OURS]) >= GOALS_DEVICE[num_workers]
            goal = f" The goal of {GOALS_DEVICE[num_workers]:g}x is {'reached' if is_reached else 'not reached'}."
        sentences.append(f"{_workers(num_workers)}, batches/s into the device: {summary}.{goal}")
    return sentences


_INKS = {
    **{name: INK[name] for name in CONTENDERS},
    OURS_PINNED: "#e59a86",
    COPY_DEVICE: "black",
}
_MARKS = dict(zip(CONTENDERS, "soDv^P"))


def draw(records: list[Measurement], _: Saved) -> Figure:
    is_device = any(record.contender == COPY_DEVICE for record in records)
    return _draw_device(records) if is_device else _draw_host(records)


def _draw_host(records: list[Measurement]) -> Figure:
    from matplotlib import pyplot as plt
    from matplotlib.patheffects import withStroke

    counts = sorted({record.case["workers"] for record in records})
    figure, axes = plt.subplots(
        2,
        len(counts),
        figsize=(1 + 4.6 * len(counts), 8.2),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=(1.5, 1),
        layout="constrained",
    )
    for column, num_workers in enumerate(counts):
        top, bottom = axes[0][column], axes[1][column]
        found = only(records, of="tensor", workers=num_workers)
        for name in CONTENDERS:
            mine = only(found, name)
            if mine:
                ours = {"linewidth": 2.4, "zorder": 5} if name == OURS else {"linewidth": 1.2}
                sizes = [record.more["batch_bytes"] / 1e6 for record in mine]
                rates = [record.more["batches_per_second"] for record in mine]
                style = {"marker": _MARKS[name], "markersize": 5, "color": _INKS[name], **ours}
                top.plot(sizes, rates, label=name, **style)
                bottom.plot(sizes, [record.median_cpu / 1e3 for record in mine], **style)
        for record in only(found, OURS):
            top.annotate(
                f"{_speed(record):.1f}x",
                (record.more["batch_bytes"] / 1e6, record.more["batches_per_second"]),
                xytext=(5, 6),
                textcoords="offset points",
                fontsize=8,
                color=_INKS[OURS],
                weight="bold",
                path_effects=[withStroke(linewidth=3, foreground="white")],  # other lines pass here
                zorder=6,
            )
        _draw_limit(top, bottom, only(records, COPY_ONE if num_workers == 1 else COPY_TWO, of="tensor"))
        top.set_title(_workers(num_workers), fontsize=10)
        for axis in (top, bottom):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
        ticks = {record.more["batch_bytes"] / 1e6: record.case["batch"].split()[0] for record in found}
        bottom.set_xticks(list(ticks), list(ticks.values()))
        bottom.minorticks_off()
        bottom.set_xlabel("MB in a batch of 64 (log)")
    axes[0][0].margins(x=0.1, y=0.1)
    axes[0][0].set_ylabel("batches/s (log, median of rounds; number: stoker by torch)")
    axes[1][0].set_ylabel("CPU ms per batch,\ntrainer and workers (log)")
    handles, labels = axes[0][min(1, len(counts) - 1)].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=len(labels), loc="outside upper center")
    return figure


def _draw_limit(top: Axes, bottom: Axes, limits: list[Measurement]) -> None:
    sizes = [record.more["batch_bytes"] / 1e6 for record in limits]
    style: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}
    top.plot(
        sizes,
        [record.more["batches_per_second"] for record in limits],
        label="copying alone, at most 2 processes",
        **style,
    )
    bottom.plot(sizes, [record.median_cpu / 1e3 for record in limits], **style)


def _draw_device(records: list[Measurement]) -> Figure:
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", width_ratios=(1.6, 1))
    counts = sorted({record.case["workers"] for record in records})
    names = [name for name in dict.fromkeys(record.contender for record in records) if name != COPY_DEVICE]
    width = 0.8 / len(names)
    for place, num_workers in enumerate(counts):
        for number, name in enumerate(names):
            record = only(records, name, workers=num_workers)[0]
            at = place + (number - (len(names) - 1) / 2) * width
            left.bar(
                at, record.more["batches_per_second"], width * 0.92, color=_INKS[name], label=None if place else name
            )
            right.bar(at, record.median_cpu / 1e3, width * 0.92, color=_INKS[name])
            summary = f"{record.more['batches_per_second']:.0f}" + ("" if name == TORCH else f"\n{_speed(record):.1f}x")
            left.annotate(
                summary,
                (at, record.more["batches_per_second"]),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    limit = median(record.more["batches_per_second"] for record in only(records, COPY_DEVICE))
    left.axhline(limit, color="black", linestyle=":", linewidth=1.2, label=COPY_DEVICE)
    left.margins(y=0.14)
    left.set_ylabel("batches/s into the device (median of rounds; x: by torch)")
    right.set_ylabel("CPU ms per batch, trainer and workers")
    for axis in (left, right):
        axis.set_xticks(range(len(counts)), [_workers(count) for count in counts])
        axis.grid(alpha=0.3, axis="y")
        axis.set_axisbelow(True)
    figure.legend(fontsize=8, ncols=len(names) + 1, loc="outside upper center")
    return figure
