"""What the loader itself costs per batch, on datasets that cost nothing.

Whole epochs are timed, with the making of the iterator: torch pays for its shuffle there, and threads for their start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import stoker
from benchmarks.datasets import Same
from benchmarks.report import INK, Report, Saved, Setting, only, span
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TORCH, STATEFUL, OURS, ONE, TWO = "torch", "StatefulDataLoader", "stoker", "stoker, 1 thread", "stoker, 2 threads"
BATCH_SIZES = (32, 256)
ORDERS = ("sequential", "shuffled")
FIRST_BATCH_SIZES = (10**3, 10**6, 10**7)


SAMPLES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.zeros(16),
    "array": lambda: np.zeros(16, dtype=np.float32),
    "int": lambda: 7,
    "dict of two": lambda: {"features": torch.zeros(16), "label": 7},
    "image": lambda: np.zeros((3, 32, 32), dtype=np.float32),
}
"""Kinds of samples, from next to nothing to 12 KiB."""

LOADERS: dict[str, Callable[..., Any]] = {
    TORCH: TorchDataLoader,
    STATEFUL: StatefulDataLoader,
    OURS: stoker.DataLoader,
    ONE: lambda *args, **options: stoker.DataLoader(*args, num_threads=1, **options),
    TWO: lambda *args, **options: stoker.DataLoader(*args, num_threads=2, **options),
}


def run(setting: Setting) -> Report:
    records: list[Measurement] = []
    for kind, sample in SAMPLES.items():
        for batch_size in BATCH_SIZES:
            for order in ORDERS:
                records += _epochs(kind, sample(), batch_size, order, setting)
    for num_samples in FIRST_BATCH_SIZES[: 2 if setting.is_quick else None]:
        records += _first_batches(num_samples, setting)
    return Report(
        name="overhead",
        title="Cost of the loader per batch, on a dataset that costs nothing",
        records=records,
        shows=_shows(records),
        limits=[
            "how loaders compare when samples take time to read or decode. Threads can only lose here, because nobody "
            "has anything to do in the meantime; what they cost is what a batch has to be worth before they pay.",
            "worker processes, pinned memory or a device.",
            "the garbage collector, which is held off while the clock runs.",
            "memory effects: all samples of a dataset are one object, which stays in the cache.",
        ],
        draw=draw,
    )


def _epochs(kind: str, sample: Any, batch_size: int, order: str, setting: Setting) -> list[Measurement]:
    num_batches = 8 if setting.is_quick else 64 if kind == "image" else 400
    dataset = Same(batch_size * num_batches, sample)
    loaders = {name: make(dataset, batch_size, shuffle=order == "shuffled") for name, make in LOADERS.items()}
    return interleaved(
        {name: _epoch(loader, num_batches) for name, loader in loaders.items()},
        case={"what": "epoch", "samples": kind, "batch": batch_size, "order": order, "size": len(dataset)},
        unit="batch",
        rounds=RoundLimits(0.01, min_rounds=2) if setting.is_quick else RoundLimits(7.0, max_rounds=60, min_rounds=20),
        reference=TORCH,
    )


def _epoch(loader: Any, num_batches: int) -> TimedFunction:
    def timed(clock: BlockTimer) -> None:
        with clock.timing(num_batches):
            for _ in loader:
                pass

    return timed


def _first_batches(num_samples: int, setting: Setting) -> list[Measurement]:
    dataset = Same(num_samples, SAMPLES["tensor"]())
    loaders: Mapping[str, Any] = {name: make(dataset, 32, shuffle=True) for name, make in LOADERS.items()}
    is_large = num_samples > 10**5
    return interleaved(
        {name: _first_batch(loader) for name, loader in loaders.items()},
        case={"what": "first batch", "samples": "tensor", "batch": 32, "order": "shuffled", "size": num_samples},
        unit="batch",
        rounds=RoundLimits(0.01, min_rounds=2)
        if setting.is_quick
        else RoundLimits(6.0, max_rounds=100, min_rounds=7 if is_large else 50),
        reference=TORCH,
    )


def _first_batch(loader: Any) -> TimedFunction:
    def timed(clock: BlockTimer) -> None:
        with clock.timing():
            iterator = iter(loader)
            next(iterator)
        if hasattr(iterator, "close"):
            iterator.close()

    return timed


def _shows(records: list[Measurement]) -> list[str]:
    sentences = []
    for batch_size in BATCH_SIZES:
        inline = only(records, OURS, what="epoch", batch=batch_size)
        peers = only(records, STATEFUL, what="epoch", batch=batch_size)
        sentences.append(
            f"batch {batch_size}: Stoker inline takes {span(_ratios(inline))} of the time of torch's loader (median "
            f"ratios of all kinds of samples and orders), StatefulDataLoader {span(_ratios(peers))}."
        )
        tightest = max(inline, key=lambda record: record.median_ratio or 0.0)
        sentences.append(
            f"batch {batch_size}, the tightest case ({tightest.case['samples']}, {tightest.case['order']}): "
            f"{tightest.median:.1f} µs a batch, {tightest.median_ratio:.2f} of torch's time "
            f"(median of the rounds) and {tightest.best_ratio:.2f} (best by best)."
        )
        for name in (ONE, TWO):
            threads = only(records, name, what="epoch", batch=batch_size, samples="tensor")
            inline = only(records, OURS, what="epoch", batch=batch_size, samples="tensor")
            more = [slow.median - quick.median for slow, quick in zip(threads, inline)]
            sentences.append(
                f"batch {batch_size}, tensors: {name.split(', ')[1]} cost {span(more, 0)} µs a batch more than inline."
            )
    for num_samples in sorted({record.case["size"] for record in only(records, TORCH, what="first batch")}):
        torchs, ours = (
            only(records, name, what="first batch", size=num_samples)[0].median / 1000 for name in (TORCH, OURS)
        )
        sentences.append(
            f"first batch of {num_samples:,} shuffled samples: torch after {torchs:.2f} ms, Stoker after {ours:.2f} ms."
        )
    return sentences


def _ratios(records: list[Measurement]) -> list[float]:
    return [record.median_ratio for record in records if record.median_ratio is not None]


def draw(records: list[Measurement], _: Saved) -> Figure:
    """Ratios, not times: they were taken within the rounds, so that other work on the machine moves them least."""
    from matplotlib import pyplot as plt

    inks = dict(zip(LOADERS, INK.values()))
    marks = dict(zip(LOADERS, "|soD^"))
    figure, axes = plt.subplots(1, 3, figsize=(15, 5), width_ratios=(1.5, 1.5, 1.1), layout="constrained")
    rows = [(kind, order) for kind in SAMPLES for order in ORDERS]
    for axis, batch_size in zip(axes, BATCH_SIZES):
        labels = []
        for place, (kind, order) in enumerate(rows):
            found = only(records, what="epoch", batch=batch_size, samples=kind, order=order)
            labels.append(f"{kind}, {order}\n(torch: {found[0].median:.0f} µs)")
            for record in found:
                if record.contender == TORCH or record.median_ratio is None or record.best_ratio is None:
                    continue
                ink = inks[record.contender]
                label = record.contender if not place else None
                axis.plot([record.median_ratio, record.best_ratio], [place] * 2, color=ink, linewidth=1)
                axis.plot(record.median_ratio, place, marks[record.contender], color=ink, markersize=6, label=label)
            ours = only(found, OURS)[0].median_ratio or 0.0
            axis.annotate(
                f"{ours:.2f}",
                (ours, place),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=inks[OURS],
            )
        axis.axvline(1.0, color=INK["torch"], linewidth=1.5, label="torch" if batch_size == BATCH_SIZES[0] else None)
        axis.set_yticks(range(len(rows)), labels, fontsize=7)
        axis.set_ylim(len(rows) - 0.5, -0.7)
        axis.set_xscale("log")
        ticks = [0.1, 0.2, 0.5, 1, 2, 5]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlim(0.08, 9)
        axis.grid(alpha=0.3)
        axis.set_title(f"Whole epochs in batches of {batch_size}", fontsize=10)
        axis.set_xlabel("time by torch's (log; mark: median of rounds, line: to best by best)")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside upper center")
    sizes = sorted({record.case["size"] for record in only(records, what="first batch")})
    for name in LOADERS:
        found = [only(records, name, what="first batch", size=size)[0] for size in sizes]
        axes[2].plot(sizes, [record.median / 1000 for record in found], "o-", markersize=4, color=inks[name])
    axes[2].set_xscale("log")
    axes[2].set_yscale("log")
    axes[2].set_title("First batch of 32 tensors, shuffled", fontsize=10)
    axes[2].set_xlabel("samples in the dataset")
    axes[2].set_ylabel("ms to the first batch (log, median)")
    axes[2].grid(alpha=0.3)
    return figure
