"""Iterate over a loader as a training loop does, and time it.

Only the middle of epochs is measured. At the start of an epoch batches come in a burst: all that were loaded while the
first one was pending. Measuring those would flatter the loader that prefetches most. Epochs too short to have a middle
are measured whole, with their starts.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.batch_contents import num_bytes_in, num_samples_in

SIZED_EVERY = 64
"""The size in bytes of every 64th batch is computed, and of the first few."""

LONG_ENOUGH = 2
"""An epoch has a middle if it has this many times the batches that are prefetched."""

PATIENCE = 4
"""Limit on the total time, as a multiple of the time to measure, where starts of epochs take most of it."""

NAMES = ("num_workers", "num_threads", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory", "in_order")
"""Arguments that are read from a loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to measure."""

    seconds: float = 3.0
    num_batches: int | None = None
    """Measure this many batches, however long that takes, instead of `seconds`."""
    warm_up_seconds: float | None = None
    """Maximum warm-up; by default `seconds`, but at least one second."""


class LoaderDrive:
    """One loader that is iterated. Call `first()`, then `measure()`."""

    def __init__(self, make: Callable[[], Any], step: Callable[[Any], Any] | None = None) -> None:
        self._make, self._step = make, step
        self.loader = make()
        self._expected = batch_size_of(self.loader)
        self._iterator: Iterator[Any] | None = None
        self._batch: Any = None
        self._num_in_epoch = 0
        self._asked = self._handed = 0.0
        self._num_sized_batches = self._num_sized_samples = self._sized_bytes = 0
        self.epoch_starts = array("d")
        """How long the first batch of each later epoch took, from the end of the epoch before."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The loader's arguments, as far as it has them as attributes."""
        return arguments_of(self.loader)

    def first(self) -> float:
        """Return how long the first batch takes, including the start of workers."""
        begin = time.perf_counter()
        self._iterator = iter(self.loader)
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            raise no_batch_error() from None
        self._handed = time.perf_counter()
        self._num_in_epoch = 1
        self._size(num_samples_in(self._batch, expected=self._expected))
        return self._handed - begin

    @property
    def latest(self) -> Any:
        """The latest batch."""
        return self._batch

    def measure(
        self,
        pace: Pace,
        cpu_seconds: Callable[[], float] = time.process_time,
        arguments: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure batches, after as many as may have been prefetched.

        Their number follows from the loader's arguments, or from `arguments` if given.
        """
        num_ahead = num_ahead_of(self.arguments if arguments is None else arguments)
        warm_up_seconds = max(1.0, pace.seconds) if pace.warm_up_seconds is None else pace.warm_up_seconds
        begin = time.perf_counter()
        self._do_step()
        has_middle = True
        while has_middle and self._num_in_epoch <= num_ahead and time.perf_counter() - begin < warm_up_seconds:
            has_middle = self._advance()
            if has_middle:
                self._do_step()
        count = self._new_count(cpu_seconds, has_middle=has_middle)
        while not count.is_enough(pace, time.perf_counter(), is_epoch_over=False):
            if self._advance():
                self._note(count, num_ahead)
            elif count.is_enough(pace, time.perf_counter(), is_epoch_over=True):
                break
            elif count.has_middle and self._num_in_epoch < LONG_ENOUGH * num_ahead:
                count = self._new_count(cpu_seconds, has_middle=False)
            else:
                self._begin_epoch()
                self._note(count, num_ahead)
        over = time.perf_counter()
        _synchronize()
        # what the device was still at belongs to the steps that only began it
        count.seconds += time.perf_counter() - over
        if not count.has_middle:
            count.seconds = time.perf_counter() - count.began
        count.cpu_seconds = cpu_seconds() - count.cpu_seconds
        return self._summary(count)

    def close(self) -> None:
        """Release the loader, and close its iterator, which ends the workers of most loaders."""
        close = getattr(self._iterator, "close", None)
        self._batch = self._iterator = self.loader = None
        if callable(close):
            close()

    # ---------------------------------------------------------------- one batch

    def _advance(self) -> bool:
        """Take the next batch; return False if the epoch is over."""
        assert self._iterator is not None
        self._asked = time.perf_counter()
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            return False
        self._handed = time.perf_counter()
        self._num_in_epoch += 1
        return True

    def _begin_epoch(self) -> None:
        """Begin another epoch, with its first batch. A loader that can be iterated only once is made again."""
        begin = self._asked
        assert self.loader is not None
        iterator = iter(self.loader)
        if iterator is self.loader or iterator is self._iterator:
            self.loader = self._make()
            iterator = iter(self.loader)
        self._iterator = iterator
        self._num_in_epoch = 0
        if not self._advance():
            raise ArgumentError(
                "the loader returned no batch when it was iterated again",
                hint="return a loader that can be iterated for several epochs, or one whose epoch is longer",
            )
        self._asked = begin
        self.epoch_starts.append(self._handed - begin)

    def _note(self, count: _Count, num_ahead: int) -> None:
        """Run the step on the latest batch, and count it unless it may have been prefetched at an epoch's start."""
        asked, handed = self._asked, self._handed
        num_samples = num_samples_in(self._batch, expected=self._expected)
        self._size(num_samples)
        is_counted = self._num_in_epoch > num_ahead or not count.has_middle
        self._do_step()
        done = time.perf_counter()
        count.num_all_samples += num_samples
        if is_counted:
            count.waits.append(handed - asked)
            count.steps.append(done - handed)
            count.num_samples += num_samples
            count.seconds += done - asked

    def _do_step(self) -> None:
        if self._step is not None:
            self._step(self._batch)

    def _new_count(self, cpu_seconds: Callable[[], float], *, has_middle: bool) -> _Count:
        """Return a new count; without a middle, it starts with an epoch."""
        _synchronize()
        count = _Count(has_middle=has_middle)
        count.cpu_seconds = cpu_seconds()
        count.began = time.perf_counter()
        if not has_middle:
            self._asked = count.began
            self._begin_epoch()
            self._note(count, 0)
        return count

    def _size(self, num_samples: int) -> None:
        if self._num_sized_batches < 4 or not self._num_in_epoch % SIZED_EVERY:
            self._sized_bytes += num_bytes_in(self._batch)
            self._num_sized_samples += num_samples
            self._num_sized_batches += 1

    def _summary(self, count: _Count) -> dict[str, Any]:
        bytes_per_sample = self._sized_bytes / max(1, self._num_sized_samples)
        return {
            "seconds": count.seconds,
            "num_batches": len(count.waits),
            "num_samples": count.num_samples,
            "num_bytes": round(bytes_per_sample * count.num_samples),
            "batch_seconds": quantiles([wait + step for wait, step in zip(count.waits, count.steps)]),
            "wait_seconds": quantiles(count.waits),
            "step_seconds": quantiles(count.steps),
            "epoch_start_seconds": list(self.epoch_starts[-100:]),
            "counts_epoch_starts": not count.has_middle,
            "cpu_seconds": count.cpu_seconds,
            "num_cpu_samples": count.num_all_samples,
        }


class _Count:
    """Times and numbers so far."""

    def __init__(self, *, has_middle: bool) -> None:
        self.has_middle = has_middle
        self.waits, self.steps = array("d"), array("d")
        self.seconds = self.began = self.cpu_seconds = 0.0
        self.num_samples = self.num_all_samples = 0

    def is_enough(self, pace: Pace, now: float, *, is_epoch_over: bool) -> bool:
        """Whether enough was measured, or the time is up."""
        taken = now - self.began
        if pace.num_batches is not None:
            return len(self.waits) >= pace.num_batches
        if not self.has_middle:  # whole epochs, unless they take too long
            return len(self.waits) > 1 and taken >= pace.seconds * (1 if is_epoch_over else 2)
        return len(self.waits) > 1 and (self.seconds >= pace.seconds or taken >= PATIENCE * pace.seconds)


def no_batch_error() -> ArgumentError:
    """Return the error for a loader without a single batch."""
    return ArgumentError(
        "the loader returned no batch",
        hint="check that its dataset is not empty, nor shorter than a batch with `drop_last`",
    )


def num_ahead_of(arguments: Mapping[str, Any]) -> int:
    """Return how many batches a loader with these arguments may prefetch."""
    numbers = (arguments.get("num_workers"), arguments.get("num_threads"), arguments.get("prefetch_factor"))
    workers, threads, prefetch = (number if isinstance(number, int) else 0 for number in numbers)
    # batches in transit count too; threads of one worker load one batch together, or one each
    return 2 + max(workers, 1 if threads else 0) * (max(prefetch, 2) + max(threads, 1))


def batch_size_of(loader: Any) -> int | None:
    """Return the batch size of a loader; None if unknown."""
    for inner in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(inner, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None


def arguments_of(loader: Any) -> dict[str, Any]:
    """Return the arguments that a loader has as attributes."""
    found = {}
    for name in NAMES:
        value = getattr(loader, name, None)
        if hasattr(loader, name) and (value is None or isinstance(value, bool | int | float | str)):
            found[name] = value
    return found


def kind_of(loader: Any) -> str:
    """Return the kind of loader: "stoker", "torch", or "iterable" for anything else."""
    homes = [cls.__module__ for cls in type(loader).__mro__]
    if any(home == "stoker" or home.startswith("stoker.loader") for home in homes):
        return "stoker"
    known = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")
    return "torch" if any(home.startswith(known) for home in homes) else "iterable"


def quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return mean, deviation and quantiles, as arguments of `stoker.engine.stats.Quantiles`."""
    num = len(seconds)
    if not num:
        return {"num": 0}
    ordered = sorted(seconds)
    mean = sum(ordered) / num
    at = {name: ordered[min(num - 1, int(share * num))] for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    deviation = (sum((one - mean) ** 2 for one in ordered) / num) ** 0.5
    return {"num": num, "mean": mean, "deviation": deviation, **at, "most": ordered[-1]}


def _synchronize() -> None:
    """Wait for devices: work that was only launched must not count as done."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available():
        if torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                if torch.cuda.memory_reserved(device):  # it is in use here: others would first have to be set up
                    torch.cuda.synchronize(device)
    elif torch.accelerator.is_available():
        torch.accelerator.synchronize()
