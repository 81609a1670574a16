"""How long the first batch takes when workers have to be started and a large dataset has to reach them.

Every start is a fresh process: it makes the dataset and the loader, and is timed from `iter(loader)` on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader as TorchDataLoader

import stoker
from benchmarks.datasets import Objects, Rows
from benchmarks.report import INK, Column, Report, Saved, Setting, only
from benchmarks.turns import run_alone
from stoker.foundation.machine import tree, tree_cpu_seconds
from stoker.lab.trial.rounds import QUIET_SECONDS, Measurement, Series, in_turn, measurement_of, wait_until_idle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TORCH, OURS = "torch", "stoker"
NAMES = (TORCH, OURS)
DATASETS: dict[str, Callable[[int], Any]] = {"array": Rows, "objects": Objects}
METHODS = ("spawn", "fork")
NUM_WORKERS = (1, 2, 4, 8)
NUM_BYTES = 200_000_000
BATCH_SIZE = 64
NUM_ROUNDS = 3
LIMIT_SECONDS = 30
GOAL = 1.5
"""How much longer than with one worker the first batch may take with eight, spawned."""


@dataclass(frozen=True, slots=True)
class Start:
    """How one start went."""

    first_seconds: float
    """Until the first batch was there."""
    quiet_seconds: float
    """Until all workers were up and had nothing more to do. A loader may give its first batch long before."""
    cpu_seconds: float
    """Of the trainer and all workers, until then."""
    num_processes: int
    """That there were then, beside the trainer."""


def start(name: str, dataset_name: str, method: str, num_workers: int, num_bytes: int) -> Start:
    """Start a loader, in a process that has not done so before."""
    dataset = DATASETS[dataset_name](num_bytes)
    make: Any = {TORCH: TorchDataLoader, OURS: stoker.DataLoader}[name]
    loader = make(dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context=method)
    cpu, begin = tree_cpu_seconds(os.getpid()), time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first_seconds = time.perf_counter() - begin
    # A loader may start its workers by and by, as batches are taken: go on as a training step of 20 ms would.
    num_expected = num_workers + (method == "spawn")  # which brings a tracker of resources
    while _num_children() < num_expected and time.perf_counter() - begin < LIMIT_SECONDS:
        time.sleep(0.02)
        next(iterator)
    wait_until_idle(LIMIT_SECONDS)
    quiet_seconds = time.perf_counter() - begin - QUIET_SECONDS
    used = tree_cpu_seconds(os.getpid()) - cpu
    return Start(first_seconds, quiet_seconds, used, _num_children())


def _num_children() -> int:
    return len(list(tree(os.getpid()))) - 1


def run(setting: Setting) -> Report:
    num_bytes, num_rounds = (NUM_BYTES // 10, 1) if setting.is_quick else (NUM_BYTES, NUM_ROUNDS)
    counts = (1, 2) if setting.is_quick else NUM_WORKERS
    datasets = ("array",) if setting.is_quick else tuple(DATASETS)
    methods = METHODS[1:] if setting.is_quick else METHODS
    starts: dict[tuple[str, ...], list[Start]] = {}
    # contenders within a round, not cases: what comes next to each other is compared with each other
    for number in range(num_rounds):
        for dataset in datasets:
            for method in methods:
                for num_workers in counts:
                    for name in in_turn(NAMES, number):
                        key = (name, dataset, method, str(num_workers))
                        found = run_alone(start, name, dataset, method, num_workers, num_bytes)
                        starts.setdefault(key, []).append(found)
    records = []
    for dataset in datasets:
        for method in methods:
            for num_workers in counts:
                for name in NAMES:
                    mine = starts[name, dataset, method, str(num_workers)]
                    one = starts[name, dataset, method, "1"]
                    torchs = starts[TORCH, dataset, method, str(num_workers)]
                    more = {
                        "first_seconds": median(found.first_seconds for found in mine),
                        "quiet_seconds": median(found.quiet_seconds for found in mine),
                        "num_processes": median(found.num_processes for found in mine),
                        "to_one_worker": median(
                            many.first_seconds / single.first_seconds for many, single in zip(mine, one)
                        ),
                    }
                    series = Series(
                        [found.first_seconds * 1e6 for found in mine], [found.cpu_seconds * 1e6 for found in mine]
                    )
                    base = [found.first_seconds * 1e6 for found in torchs]
                    case = {"dataset": dataset, "start": method, "workers": num_workers}
                    records.append(measurement_of(name, series, base, case, "start", more))
    return Report(
        name="startup",
        title=f"Time to the first batch, with a dataset of {num_bytes // 10**6} MB",
        records=records,
        shows=_shows(records),
        limits=[
            "the import of torch in the trainer, or the making of the dataset: both were done before. Spawned "
            "workers import torch themselves, and that is timed.",
            "when workers are up by their own account: it is taken from when nobody uses CPU time any more.",
            "datasets that open files or connections in their workers.",
            "later epochs, or persistent workers.",
            "starts of eight workers on eight cores, where there are fewer: they share what there is.",
            "a disk: Python and torch are in the page cache.",
        ],
        draw=draw,
        columns=(
            Column("first batch, s", lambda record: f"{record.more['first_seconds']:.2f}"),
            Column("by torch's", lambda record: f"{record.median_ratio:.2f}"),
            Column("by 1 worker's", lambda record: f"{record.more['to_one_worker']:.2f}"),
            Column("all workers up, s", lambda record: f"{record.more['quiet_seconds']:.2f}"),
            Column("CPU s until then", lambda record: f"{record.median_cpu / 1e6:.2f}"),
            Column("processes", lambda record: f"{record.more['num_processes']:.0f}"),
        ),
        extra={"dataset_bytes": num_bytes},
    )


def _shows(records: list[Measurement]) -> list[str]:
    sentences = []
    most = max(record.case["workers"] for record in records)
    for dataset in dict.fromkeys(record.case["dataset"] for record in records):
        for method in dict.fromkeys(record.case["start"] for record in records):
            summary = []
            for name in NAMES:
                one, many = (
                    only(records, name, dataset=dataset, start=method, workers=count)[0] for count in (1, most)
                )
                summary.append(
                    f"{name} {one.more['first_seconds']:.2f} s with 1 worker and {many.more['first_seconds']:.2f} s "
                    f"with {most} ({many.more['to_one_worker']:.2f} times), which are all up after "
                    f"{many.more['quiet_seconds']:.2f} s"
                )
            goal = ""
            if method == "spawn":
                is_reached = many.more["to_one_worker"] <= GOAL
                goal = f" The goal of {GOAL:g} times for stoker is {'reached' if is_reached else 'not reached'}."
            sentences.append(f"{dataset}, {method}: {'; '.join(summary)}.{goal}")
    return sentences


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    panels = list(dict.fromkeys((record.case["dataset"], record.case["start"]) for record in records))
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1 + 3.6 * len(panels), 4),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for axis, (dataset, method) in zip(axes[0], panels):
        for name in NAMES:
            found = only(records, name, dataset=dataset, start=method)
            counts = [record.case["workers"] for record in found]
            firsts = [record.more["first_seconds"] for record in found]
            axis.plot(counts, firsts, "o-", color=INK[name], label=f"{name}, first batch")
            quiet = [record.more["quiet_seconds"] for record in found]
            axis.plot(counts, quiet, ".:", color=INK[name], linewidth=1, label=f"{name}, all workers up")
            axis.annotate(
                f"{found[-1].more['to_one_worker']:.1f}x",
                (counts[-1], firsts[-1]),
                xytext=(5, -3),
                textcoords="offset points",
                fontsize=8,
                color=INK[name],
                weight="bold",
            )
        axis.set_title(f"{dataset}, {method}", fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.set_yscale("log")
        axis.margins(x=0.15)
        axis.grid(alpha=0.3)
        axis.set_xlabel("workers (number: by 1 worker's)")
    axes[0][0].set_ylabel("seconds from iter(loader) (log, median)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside upper center")
    return figure
