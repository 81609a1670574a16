"""Overlap: loading, copying and computing at the same time, so that a step takes as long as the longest of them.

python overlap.py                      # three cases, printed
python overlap.py --out overlap.png    # vary load and compute; plot them with their sum and maximum
"""

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from stoker import DataLoader

NUM_WORKERS, BATCH_SIZE, NUM_WARM, NUM_STEPS = 2, 64, 12, 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE, UNIT = (224, 0.005) if DEVICE == "cuda" else (8, 0.002)  # pixels, seconds: without a GPU a sketch will do
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

FIXED, VARIED = 0.015, (0.005, 0.010, 0.015, 0.020, 0.025, 0.030)
"""For the plot: one of load and compute stays, the other is varied."""


class Photos:
    """Images that take `seconds` a batch to load on any machine: it sleeps, as if waiting for a disk."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.image = seconds, torch.ones(3, SIDE, SIDE, dtype=torch.uint8)

    def __len__(self) -> int:
        return BATCH_SIZE * (NUM_WARM + NUM_STEPS)

    def __getitems__(self, positions: list[int]) -> list[torch.Tensor]:
        time.sleep(self.seconds)
        return [self.image] * len(positions)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.__getitems__([position])[0]


def computing(seconds: float) -> Callable[[torch.Tensor], Any]:
    """Return a training step of about `seconds`: matrix products on a GPU; without one, a sleep stands for it."""
    if DEVICE == "cpu":
        return lambda _: time.sleep(seconds)
    weights = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16) / 64

    def step(images: torch.Tensor, num_products: int = 100) -> float:
        x = images.flatten(1)[:, :4096].repeat(128, 1)
        for _ in range(num_products):
            x = x @ weights
        return x.mean().item()  # waits for the device, as logging the loss at every step does

    images = torch.ones(BATCH_SIZE, 3, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
    num_products = round(100 * seconds / min(timed(lambda: step(images)) for _ in range(3)))
    return lambda images: step(images, num_products)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def seconds_per_step(loader: Iterable[torch.Tensor], compute: Callable[[torch.Tensor], Any]) -> float:
    batches = iter(loader)
    for _ in range(NUM_WARM):
        compute(next(batches))
    return timed(lambda: [compute(batch) for batch in batches]) / NUM_STEPS


def loaders(load: float) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return a loader that gives a batch every `load` seconds in the trainer itself, and one that does so ahead."""
    options: dict[str, Any] = {"device": DEVICE, "to": torch.bfloat16, "normalize": (MEAN, STD)}
    # each of the workers takes its time, and together they give a batch every `load` seconds
    slow = Photos(load * NUM_WORKERS)
    ahead = DataLoader(slow, BATCH_SIZE, num_workers=NUM_WORKERS, persistent_workers=True, **options)
    return DataLoader(Photos(load), BATCH_SIZE, **options), ahead


def print_table() -> None:
    """Print three cases, each part measured alone and both together."""
    print(f"milliseconds per step on {DEVICE}, {NUM_WORKERS} workers")
    print("  load  compute  one after the other  overlapped  max(load, compute)  ratio")
    for load, compute in ((4 * UNIT, 2 * UNIT), (3 * UNIT, 3 * UNIT), (2 * UNIT, 4 * UNIT)):
        step = computing(compute)
        one_by_one, ahead = loaders(load)
        loading = seconds_per_step(ahead, lambda _: None)
        images = next(iter(one_by_one))
        assert images.dtype is torch.bfloat16
        assert images.device.type == DEVICE
        alone = seconds_per_step([images] * (NUM_WARM + NUM_STEPS), step)
        before, after = seconds_per_step(one_by_one, step), seconds_per_step(ahead, step)
        longest = max(loading, alone)
        row = [1e3 * seconds for seconds in (loading, alone, before, after, longest)]
        print("{:6.1f}{:9.1f}{:21.1f}{:12.1f}{:20.1f}".format(*row) + f"{after / longest:7.2f}")
        assert DEVICE == "cpu" or after < 0.9 * before


def draw(path: Path, *, num_rounds: int = 5) -> None:
    """Draw the step's time with overlap and without, against the time to load and the time to compute."""
    from matplotlib.figure import Figure
    from rich.progress import track

    cases = [[(varied, FIXED) for varied in VARIED], [(FIXED, varied) for varied in VARIED]]
    found: dict[tuple[float, float, str], list[float]] = {}
    # all cases in each round, so that a noisy moment harms none alone
    for _ in track(range(num_rounds), description="measuring"):
        for load, compute in (*cases[0], *cases[1]):
            step = computing(compute)
            for name, loader in zip(("off", "on"), loaders(load)):
                found.setdefault((load, compute, name), []).append(seconds_per_step(loader, step))
    figure = Figure(figsize=(9.5, 4.2), dpi=100, layout="constrained")
    xs = [1e3 * varied for varied in VARIED]
    names = (("load", "compute"), ("compute", "load"))
    for axes, panel, (varied, fixed) in zip(figure.subplots(1, 2, sharey=True), cases, names):
        axes.plot(xs, [1e3 * sum(case) for case in panel], color="#d0c3da", linewidth=5, label="load + compute")
        axes.plot(xs, [1e3 * max(case) for case in panel], color="#b5d8c8", linewidth=5, label="max(load, compute)")
        for name, color in (("off", "#7a4fa3"), ("on", "#1f7a55")):
            times = [found[(*case, name)] for case in panel]
            means, errors = [1e3 * fmean(one) for one in times], [1e3 * stdev(one) for one in times]
            axes.errorbar(xs, means, yerr=errors, fmt="o", color=color, capsize=4, label=f"overlap {name}")
        axes.set_xlabel(f"ms to {varied} a batch; {fixed} takes {1e3 * FIXED:.0f} ms")
        axes.set_ylim(0, 52)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e6e9")
    figure.axes[0].set_ylabel("ms from step to step")
    figure.axes[0].legend(frameon=False, loc="upper left")
    copied = "copied to the GPU on a side stream" if DEVICE == "cuda" else "loading and computing sleep"
    figure.suptitle(f"Loading ahead of computing ({copied})", x=0.01, ha="left", fontweight="bold")
    figure.savefig(path)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the plot to write; measures for about three minutes")
    out = parser.parse_args().out
    print_table() if out is None else draw(out)


if __name__ == "__main__":
    main()
