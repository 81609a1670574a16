"""What a large dataset costs in memory, once in the trainer and again in each worker.

One loader at a time, in a fresh process: a dataset with one large array, an epoch in which the workers read every page
of it, and then the proportional set size (PSS) of the trainer and of all that it started, while they are still there.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader as TorchDataLoader

import stoker
from benchmarks.datasets import Touched
from benchmarks.report import INK, Column, Report, Saved, Setting, only
from benchmarks.turns import IDLE_SECONDS, run_alone
from stoker.foundation.machine import pss_bytes, tree, tree_cpu_seconds
from stoker.lab.trial.rounds import Measurement, Series, in_turn, measurement_of, wait_until_idle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TORCH, OURS = "torch", "stoker"
NAMES = (TORCH, OURS)
METHODS = ("fork", "spawn")
NUM_WORKERS = (1, 2, 4)
NUM_BYTES = 1_000_000_000
ROW_BYTES = 1 << 16
BATCH_SIZE = 64


@dataclass(frozen=True, slots=True)
class Use:
    """Memory in use."""

    before_bytes: int
    """By the trainer with its dataset, before there was a loader."""
    trainer_bytes: int
    workers_bytes: int
    """By all processes that the trainer started."""
    num_processes: int
    seconds: float
    """The epoch took, the start of the workers with it."""
    cpu_seconds: float


def use(name: str, method: str, num_workers: int, num_bytes: int) -> Use:
    """Read a dataset once, in a process that has not done so before."""
    dataset = Touched(num_bytes, ROW_BYTES)
    make: Any = {TORCH: TorchDataLoader, OURS: stoker.DataLoader}[name]
    before = pss_bytes() or 0
    cpu, begin = tree_cpu_seconds(os.getpid()), time.perf_counter()
    loader = make(dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context=method, persistent_workers=True)
    num_samples = sum(len(batch) for batch in loader)
    seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds(os.getpid()) - cpu
    assert num_samples == len(dataset)
    wait_until_idle(IDLE_SECONDS)
    trainer, *workers = (pss_bytes(pid) or 0 for pid in tree(os.getpid()))
    return Use(before, trainer, sum(workers), len(workers), seconds, cpu)


def run(setting: Setting) -> Report:
    num_bytes = NUM_BYTES // 20 if setting.is_quick else NUM_BYTES
    records: list[Measurement] = []
    methods = METHODS[1:] if setting.is_quick else METHODS
    for method in methods:
        for number, num_workers in enumerate((2,) if setting.is_quick else NUM_WORKERS):
            found: dict[str, Use] = {
                name: run_alone(use, name, method, num_workers, num_bytes) for name in in_turn(NAMES, number)
            }
            for name in NAMES:
                mine = found[name]
                more = {
                    "before_bytes": mine.before_bytes,
                    "trainer_bytes": mine.trainer_bytes,
                    "workers_bytes": mine.workers_bytes,
                    "total_bytes": mine.trainer_bytes + mine.workers_bytes,
                    "num_processes": mine.num_processes,
                }
                series = Series([mine.seconds * 1e6], [mine.cpu_seconds * 1e6])
                case = {"start": method, "workers": num_workers}
                records.append(measurement_of(name, series, [found[TORCH].seconds * 1e6], case, "epoch", more))
    return Report(
        name="memory",
        title=f"Memory of trainer and workers, with a dataset of one array of {num_bytes / 1e9:g} GB",
        records=records,
        shows=_shows(records, num_bytes),
        limits=[
            "datasets of many Python objects: forked workers write to each object that they look at (its reference "
            "count), and so copy the pages it is on.",
            "batches that are under way: samples are single numbers here.",
            "the most that was in use at any time, such as while a dataset is sent to spawned workers.",
            "several runs: each number was measured once. Memory varies little; times, which are in the record, do.",
        ],
        draw=draw,
        columns=(
            Column("trainer before, GB", lambda record: f"{record.more['before_bytes'] / 1e9:.2f}"),
            Column("trainer, GB", lambda record: f"{record.more['trainer_bytes'] / 1e9:.2f}"),
            Column("all workers, GB", lambda record: f"{record.more['workers_bytes'] / 1e9:.2f}"),
            Column("together, GB", lambda record: f"{record.more['total_bytes'] / 1e9:.2f}"),
            Column("processes beside trainer", lambda record: str(record.more["num_processes"])),
            Column("start and epoch, s", lambda record: f"{record.median / 1e6:.2f}"),
        ),
        extra={"dataset_bytes": num_bytes},
    )


def _shows(records: list[Measurement], num_bytes: int) -> list[str]:
    sentences = []
    for method in dict.fromkeys(record.case["start"] for record in records):
        summary = []
        for name in NAMES:
            found = only(records, name, start=method)
            few, many = found[0], found[-1]
            num_more = many.case["workers"] - few.case["workers"]
            grown = (many.more["total_bytes"] - few.more["total_bytes"]) / 1e9
            summary.append(
                f"{name} {many.more['total_bytes'] / 1e9:.2f} GB with {many.case['workers']} workers"
                + (f", {grown / num_more:.2f} GB for each further worker" if num_more else "")
            )
        sentences.append(f"{method}: {'; '.join(summary)}. The dataset is {num_bytes / 1e9:g} GB.")
    return sentences


def draw(records: list[Measurement], saved: Saved) -> Figure:
    num_bytes = saved["dataset_bytes"]
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(record.case["start"] for record in records))
    figure, (axes,) = plt.subplots(
        1, len(methods), figsize=(1 + 5 * len(methods), 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, method in zip(axes, methods):
        counts = [record.case["workers"] for record in only(records, TORCH, start=method)]
        for place, num_workers in enumerate(counts):
            for shift, name in ((-0.2, TORCH), (0.2, OURS)):
                more = only(records, name, start=method, workers=num_workers)[0].more
                trainer, workers = more["trainer_bytes"] / 1e9, more["workers_bytes"] / 1e9
                first = not place
                axis.bar(place + shift, trainer, 0.37, color=INK[name], label=f"{name}: trainer" if first else None)
                axis.bar(
                    place + shift,
                    workers,
                    0.37,
                    bottom=trainer,
                    color=INK[name],
                    alpha=0.5,
                    label=f"{name}: all workers" if first else None,
                )
                axis.annotate(
                    f"{trainer + workers:.2f}",
                    (place + shift, trainer + workers),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
        axis.axhline(num_bytes / 1e9, color="black", linestyle=":", linewidth=1.2, label="the dataset")
        axis.set_xticks(range(len(counts)), [f"{count} worker{'s' if count > 1 else ''}" for count in counts])
        axis.set_title(method, fontsize=10)
        axis.grid(alpha=0.3, axis="y")
        axis.set_axisbelow(True)
        axis.margins(y=0.1)
    axes[0].set_ylabel("GB (PSS), after every page was read")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside upper center")
    return figure
