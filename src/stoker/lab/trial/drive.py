"""A loader driven like a training loop would, and timed: in the process that plays the trainer.

What is counted is the middle of epochs. At the start of an epoch batches come in a burst, all that were made while the
first was waited for; counting those would flatter whoever fetches most ahead. Only where epochs are too short to have a
middle are whole epochs counted, with their starts.
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
"""Batches of which one is looked at for its bytes; and the first ones."""

LONG_ENOUGH = 2
"""An epoch has a middle if it has so many times the batches that are fetched ahead."""

PATIENCE = 4
"""How many times as long as asked for driving may take, where starts of epochs take most of the time."""

NUM_KEPT = 2000
"""The latest batches whose times are told one by one."""

NAMES = ("num_workers", "num_threads", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory", "in_order")
"""The arguments that a loader is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """For how long to drive."""

    seconds: float = 3.0
    num_batches: int | None = None
    """Count so many batches, whatever time it takes, instead of those of `seconds`."""
    warm_up_seconds: float | None = None
    """At most that long before anything is counted; by default as long as `seconds`, and a second at least."""


class Drive:
    """One loader on its way. `first()` comes first, then `counted()`."""

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
        """How long the first batch of each epoch after the first was waited for, from the end of the one before."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The loader's own arguments, as far as it tells them."""
        return arguments_of(self.loader)

    def first(self) -> float:
        """Return how long the first batch takes, with all that is started for it."""
        begin = time.perf_counter()
        self._iterator = iter(self.loader)
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            raise ArgumentError(
                "the loader gave no batch",
                hint="see that its dataset is neither empty nor shorter than a batch (`drop_last`)",
            ) from None
        self._handed = time.perf_counter()
        self._num_in_epoch = 1
        self._size(num_samples_in(self._batch, expected=self._expected))
        return self._handed - begin

    @property
    def latest(self) -> Any:
        """The latest batch."""
        return self._batch

    def counted(
        self,
        pace: Pace,
        cpu_seconds: Callable[[], float] = time.process_time,
        arguments: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the times and counts of the batches that come now, when as many have passed as are fetched ahead.

        How many that are is judged from the loader's own arguments, unless others are told.
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
        count = self._begun(cpu_seconds, has_middle=has_middle)
        while not count.is_enough(pace, time.perf_counter(), is_epoch_over=False):
            if self._advance():
                self._note(count, num_ahead)
            elif count.is_enough(pace, time.perf_counter(), is_epoch_over=True):
                break
            elif count.has_middle and self._num_in_epoch < LONG_ENOUGH * num_ahead:
                count = self._begun(cpu_seconds, has_middle=False)
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
        return self._told(count)

    def close(self) -> None:
        """Let go of the loader, and end its workers as far as it can be told to."""
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
        """Begin another epoch, with its first batch. What can be iterated only once is made anew."""
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
                "the loader gave no batch when it was iterated again",
                hint="return a loader that can be iterated for several epochs, or one whose epoch is longer",
            )
        self._asked = begin
        self.epoch_starts.append(self._handed - begin)

    def _note(self, count: _Count, num_ahead: int) -> None:
        """Count the latest batch, if it is to be counted, and do the step."""
        asked, handed = self._asked, self._handed
        num_samples = num_samples_in(self._batch, expected=self._expected)
        self._size(num_samples)
        is_counted = self._num_in_epoch > num_ahead or not count.has_middle
        self._do_step()
        done = time.perf_counter()
        count.num_all_samples += num_samples
        if is_counted:
            count.asked.append(asked)
            count.handed.append(handed)
            count.waits.append(handed - asked)
            count.steps.append(done - handed)
            count.num_samples += num_samples
            count.seconds += done - asked

    def _do_step(self) -> None:
        if self._step is not None:
            self._step(self._batch)

    def _begun(self, cpu_seconds: Callable[[], float], *, has_middle: bool) -> _Count:
        """Return a new count; without a middle, it begins with an epoch."""
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

    def _told(self, count: _Count) -> dict[str, Any]:
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
            "laps": {"asked": list(count.asked[-NUM_KEPT:]), "handed": list(count.handed[-NUM_KEPT:])},
        }


class _Count:
    """What was counted so far."""

    def __init__(self, *, has_middle: bool) -> None:
        self.has_middle = has_middle
        self.waits, self.steps, self.asked, self.handed = array("d"), array("d"), array("d"), array("d")
        self.seconds = self.began = self.cpu_seconds = 0.0
        self.num_samples = self.num_all_samples = 0

    def is_enough(self, pace: Pace, now: float, *, is_epoch_over: bool) -> bool:
        """Whether there is no need to go on, or no time."""
        taken = now - self.began
        if pace.num_batches is not None:
            return len(self.waits) >= pace.num_batches
        if not self.has_middle:  # whole epochs, unless they take too long
            return len(self.waits) > 1 and taken >= pace.seconds * (1 if is_epoch_over else 2)
        return len(self.waits) > 1 and (self.seconds >= pace.seconds or taken >= PATIENCE * pace.seconds)


def num_ahead_of(arguments: Mapping[str, Any]) -> int:
    """Return how many batches a loader with these arguments may have ready before they are asked for."""
    numbers = (arguments.get("num_workers"), arguments.get("num_threads"), arguments.get("prefetch_factor"))
    workers, threads, prefetch = (number if isinstance(number, int) else 0 for number in numbers)
    # what is on its way is fetched ahead, too; threads of one worker make one batch together, or one each
    return 2 + max(workers, 1 if threads else 0) * (max(prefetch, 2) + max(threads, 1))


def batch_size_of(loader: Any) -> int | None:
    """Return how many samples a loader puts into a batch, if it tells."""
    for inner in (loader, getattr(loader, "batch_sampler", None)):
        told = getattr(inner, "batch_size", None)
        if isinstance(told, int) and not isinstance(told, bool):
            return told
    return None


def arguments_of(loader: Any) -> dict[str, Any]:
    """Return the arguments that a loader has, as far as they can be seen on it."""
    found = {}
    for name in NAMES:
        value = getattr(loader, name, None)
        if hasattr(loader, name) and (value is None or isinstance(value, bool | int | float | str)):
            found[name] = value
    return found


def kind_of(loader: Any) -> str:
    """Return whose loader it is: "stoker", "torch", or "iterable" for anything else."""
    homes = [cls.__module__ for cls in type(loader).__mro__]
    if any(home == "stoker" or home.startswith("stoker.loader") for home in homes):
        return "stoker"
    known = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")
    return "torch" if any(home.startswith(known) for home in homes) else "iterable"


def quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return what durations are like, under the names of `stoker.engine.stats.Quantiles`."""
    num = len(seconds)
    if not num:
        return {"num": 0}
    ordered = sorted(seconds)
    mean = sum(ordered) / num
    at = {name: ordered[min(num - 1, int(share * num))] for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    deviation = (sum((one - mean) ** 2 for one in ordered) / num) ** 0.5
    return {"num": num, "mean": mean, "deviation": deviation, **at, "most": ordered[-1]}


def _synchronize() -> None:
    """Let devices finish: what was only begun must not count as done."""
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
