"""Train a small model from a loader, with the time of each step split into waiting and computing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from examples.demo.data import CLASSES, SERVED_SIDE, Shapes
from examples.demo.machine import Others
from stoker.lab.watch.run import Run as Record
from stoker.lab.watch.watch import Watch
from stoker.loader import DataLoader

BATCH_SIZE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Measurements of a training run, one entry per step."""

    name: str
    wait_seconds: NDArray[np.float64]
    """Time from requesting a batch to receiving it."""
    compute_seconds: NDArray[np.float64]
    """Forward, backward and optimizer step, which are synchronous on a CPU."""
    losses: NDArray[np.float64]
    accuracies: NDArray[np.float64]
    others_cores: float | None
    """Mean cores used by other programs during the run; None if unknown."""
    record: Record
    """The recorded run, for the doctor and the report."""

    @property
    def step_seconds(self) -> NDArray[np.float64]:
        """Total time of each step."""
        return self.wait_seconds + self.compute_seconds

    @property
    def wait_share(self) -> float:
        """Fraction of the time spent waiting for data."""
        return float(self.wait_seconds.sum() / self.step_seconds.sum())

    @property
    def images_per_second(self) -> float:
        """Number of images divided by the total time."""
        return float(len(self.losses) * BATCH_SIZE / self.step_seconds.sum())


def train(dataset: Shapes, *, name: str, num_threads: int, num_steps: int, advance: Callable[[], None]) -> Run:
    """Train a new model for `num_steps` and return the measurements. Only times depend on `num_threads`."""
    model, optimizer = _model()
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, seed=1, num_threads=num_threads)
    measured = np.empty((num_steps, 4))
    watched = Watch(loader)
    batches, others = _endless(watched), Others()
    try:
        for step in range(num_steps):
            begin = perf_counter()
            images, labels = next(batches)
            ready = perf_counter()
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            accuracy = (logits.argmax(1) == labels).float().mean().item()
            measured[step] = ready - begin, perf_counter() - ready, loss.item(), accuracy
            advance()
        others_cores = others.num_cores()  # before joining the loader's threads
        record = replace(watched.run(), title=f"demo, loading {name}")
    finally:
        batches.close()
        watched.close()
    wait, compute, losses, accuracies = measured.T
    return Run(
        name=name,
        wait_seconds=wait,
        compute_seconds=compute,
        losses=losses,
        accuracies=accuracies,
        others_cores=others_cores,
        record=record,
    )


@contextmanager
def one_compute_thread() -> Iterator[None]:
    """Restrict torch to one core, which leaves one for loading on a small machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def warm_up() -> None:
    """Run a few steps on noise, so that one-time set-up of torch is not part of the first run."""
    model, optimizer = _model()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(BATCH_SIZE, 3, SERVED_SIDE, SERVED_SIDE)).sum().backward()
        optimizer.step()


def _endless(loader: Watch[Any]) -> Generator[list[torch.Tensor], None, None]:
    """Yield batches of epoch after epoch. Closing the generator ends the loader's threads."""
    while True:
        batches: Any = iter(loader)
        try:
            yield from batches
        finally:
            batches.close()


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.BatchNorm2d(3)]
        for channels, wider in pairwise((3, 16, 32, 64, 64)):
            layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU(), nn.MaxPool2d(2)]
        model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, len(CLASSES)))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)
