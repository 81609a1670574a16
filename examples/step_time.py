"""Step time against workers: 50 ms to load a batch, 15 ms to train on it, 0 to 4 workers, torch's loader and ours.

    python step_time.py                        # a short run, printed
    python step_time.py --out step_time.png    # five rounds, drawn

Loading and training sleep, as if waiting for a disk and for a GPU, so that the result is the same on every machine:
without workers one comes after the other; with them, whichever is slower sets the pace.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from stoker import DataLoader

LOAD, STEP, BATCH_SIZE = 0.050, 0.015, 16
WORKERS = range(5)
LOADERS: dict[str, Any] = {"torch": TorchDataLoader, "stoker": DataLoader}


class Sleeping:
    """Samples that take 50 ms for each batch of them."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitems__(self, positions: list[int]) -> list[torch.Tensor]:
        time.sleep(LOAD)
        return [torch.zeros(8)] * len(positions)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.__getitems__([position])[0]


def step_seconds(loader: Any, *, num_steps: int) -> float:
    """Return how long a step takes, once what was loaded ahead at the start is used up."""
    batches: Iterator[Any] = iter(loader)
    for _ in islice(batches, 2 * loader.num_workers + 2):
        time.sleep(STEP)
    begin = time.perf_counter()
    for _ in islice(batches, num_steps):
        time.sleep(STEP)
    seconds = (time.perf_counter() - begin) / num_steps
    if hasattr(batches, "close"):
        batches.close()
    return seconds


def expected(num_workers: int) -> float:
    """Return what theory says: one after the other, or the slower of the two."""
    return max(LOAD / num_workers, STEP) if num_workers else LOAD + STEP


def measured(*, num_rounds: int, num_steps: int) -> dict[str, list[list[float]]]:
    """Return the times of all rounds, by loader and number of workers; loaders and workers take turns."""
    found: dict[str, list[list[float]]] = {name: [[] for _ in WORKERS] for name in LOADERS}
    for number in range(num_rounds):
        turn = [(name, num_workers) for num_workers in WORKERS for name in LOADERS]
        for name, num_workers in turn[::-1] if number % 2 else turn:
            loader = LOADERS[name](Sleeping(), BATCH_SIZE, num_workers=num_workers)
            found[name][num_workers].append(step_seconds(loader, num_steps=num_steps))
    return found


def draw(found: dict[str, list[list[float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), dpi=100, layout="constrained")
    axes = figure.subplots()
    theory = [1e3 * expected(num_workers) for num_workers in WORKERS]
    axes.plot(
        WORKERS, theory, color="#b8c0c8", linewidth=6, label="max(load / workers, step); without workers, the sum"
    )
    axes.axhline(1e3 * STEP, color="#22262b", linewidth=1, linestyle=":")
    axes.text(0, 1e3 * STEP - 1, "the step alone: 15 ms", va="top", fontsize=9, color="#22262b")
    for name, color, shift in (("torch", "#767676", -0.04), ("stoker", "#c8391b", 0.04)):
        means = [1e3 * fmean(times) for times in found[name]]
        errors = [1e3 * stdev(times) if len(times) > 1 else 0.0 for times in found[name]]
        places = [num_workers + shift for num_workers in WORKERS]
        axes.errorbar(places, means, yerr=errors, fmt="o", color=color, capsize=5, markersize=6, label=name)
        for num_workers, mean in enumerate(means) if name == "stoker" else ():
            axes.annotate(f"{mean:.1f}", (num_workers, mean), xytext=(8, 6), textcoords="offset points", fontsize=9)
    axes.set_xticks(list(WORKERS))
    axes.set_xlim(-0.3, 4.4)
    axes.set_ylim(0, 75)
    axes.set_xlabel("workers")
    axes.set_ylabel("ms from step to step")
    axes.set_title("50 ms to load a batch, 15 ms to train on it", loc="left", fontweight="bold")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e6e9")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the plot to write; measures for about two minutes")
    out = parser.parse_args().out
    warnings.filterwarnings("ignore", "This DataLoader will create")  # workers that sleep need no core of their own
    found = measured(num_rounds=1, num_steps=6) if out is None else measured(num_rounds=5, num_steps=40)
    print("ms per step  theory " + "".join(f"{name:>{9 if out is None else 16}}" for name in LOADERS))
    for num_workers in WORKERS:
        times = [found[name][num_workers] for name in LOADERS]
        columns = [
            f"{1e3 * fmean(one):9.1f}" + (f" ± {1e3 * stdev(one):4.1f}" if len(one) > 1 else "") for one in times
        ]
        print(f"{num_workers} workers {1e3 * expected(num_workers):10.1f} " + "".join(columns))
    if out is not None:
        draw(found, out)
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
