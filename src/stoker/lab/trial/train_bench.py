"""The real training step, three ways: batches resident on the device, cached batches through the loader, the loader.

The ways take turns, round by round, so that a noisy machine harms all alike. Loaders stay open between their turns;
what they have prefetched meanwhile is used up before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from statistics import fmean
from typing import Any

import torch

from stoker.engine.stats import Quantiles
from stoker.errors import ArgumentError
from stoker.foundation import machine
from stoker.lab.trial.batch_contents import num_samples_in, with_new_containers
from stoker.lab.trial.drive import arguments_of, batch_size_of, kind_of, num_ahead_of, quantiles
from stoker.lab.trial.ready_batches import (
    cached_loader,
    device_of,
    on_device,
    take_batches,
    widening_of,
)
from stoker.lab.trial.rounds import in_turn, wait_until_idle
from stoker.lab.trial.sweep import Watch
from stoker.lab.trial.train_record import CACHED, REAL, RESIDENT, WAYS, TrainBench, Way
from stoker.lab.trial.work_time import ProcessGauge, ThreadGauge, WorkTime, WorkTimeGauge, gauge_of
from stoker.lab.watch.run import Run

Step = Callable[[Any], Any]

NUM_WARM = 3
"""Untimed steps where nothing is prefetched; after them, one-time work of the step is done."""


class Resident:
    """Yields the same few batches on the device again and again."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches, self._number = list(batches), 0
        self.num_warm, self.iterator = NUM_WARM, None

    def take(self) -> Any:
        """Return the next."""
        self._number += 1
        return with_new_containers(self._batches[self._number % len(self._batches)])


class Iterated:
    """Iterates over a loader, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.iterator: Iterator[Any] | None = None
        self._num_taken = 0

    @property
    def num_warm(self) -> int:
        """Untimed steps: as many as may have been prefetched with the current arguments."""
        return NUM_WARM + num_ahead_of(arguments_of(self._loader))

    def take(self) -> Any:
        """Return the next batch; raise `StopIteration` at the end of an epoch, then start the next."""
        if self.iterator is None:
            self.iterator, self._num_taken = iter(self._loader), 0
        try:
            batch = next(self.iterator)
        except StopIteration:
            self.iterator = None
            if not self._num_taken:
                raise ArgumentError(
                    "the loader has no more batches: it can be iterated only once",
                    hint="return a loader that can be iterated again, or one with more batches than are measured",
                ) from None
            raise
        self._num_taken += 1
        return batch

    def close(self) -> None:
        """Close the iterator, which ends the workers of most loaders."""
        close = getattr(self.iterator, "close", None)
        self.iterator = None
        if callable(close):
            close()


class StepTimer:
    """Times the steps of one way in one round. Starts of epochs are excluded, with as many steps as are prefetched."""

    def __init__(
        self, source: Resident | Iterated, step: Step, *, clock: Ticks, gauge: WorkTimeGauge | None = None
    ) -> None:
        self._source, self._step, self._clock, self._gauge = source, step, clock, gauge
        self._own = machine.Clock()
        self.seconds = self.wait_seconds = 0.0
        self.num_steps = 0
        self.periods: list[float] = []
        self.effort = WorkTime()
        """Of the workers, while the clock ran."""
        self.waiting = WorkTime()
        """Of the training thread, while it waited."""
        self.is_short = False
        """Whether epochs are too short to exclude prefetched batches at their starts."""

    def run(self, num_steps: int) -> StepTimer:
        """Time that many steps."""
        num_warm = self._source.num_warm
        try:
            while self.num_steps < num_steps:
                before = self.num_steps
                if self._warmed(num_warm):
                    self._time(num_steps - self.num_steps)
                if self.num_steps == before:  # the epoch ended before the clock started: start it sooner in the next
                    num_warm, self.is_short = num_warm // 2, True
        finally:
            self._own.close()
        return self

    def _warmed(self, num_warm: int) -> bool:
        """Run untimed steps; return False if the epoch ends."""
        try:
            for _ in range(num_warm):
                self._step(self._source.take())
        except StopIteration:
            return False
        return True

    def _time(self, num_steps: int) -> None:
        """Time steps until there are enough or the epoch ends."""
        clock, take, step, own = self._clock, self._source.take, self._step, self._own
        clock.synchronize()
        began = time.perf_counter()
        before = self._effort(began)
        clock.start()
        num_done, is_over = 0, False
        for _ in range(num_steps):
            asked, used = time.perf_counter(), own.times()
            try:
                batch = take()
            except StopIteration:
                is_over = True
                break
            handed, after = time.perf_counter(), own.times()
            step(batch)
            clock.tick()
            self.wait_seconds += handed - asked
            self.waiting += WorkTime(handed - asked, after[0] - used[0], after[1] - used[1])
            num_done += 1
        clock.synchronize()
        ended = time.perf_counter()
        if num_done:
            periods = clock.periods()
            self.periods += periods
            # the end of an epoch takes time that belongs to no step
            self.seconds += sum(periods) if is_over else ended - began
            self.num_steps += num_done
            self.effort += self._effort(ended) - before

    def _effort(self, now: float) -> WorkTime:
        return WorkTime() if self._gauge is None else self._gauge.read(self._source.iterator, now)


class Ticks:
    """Times steps by the clock of the training thread."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def synchronize(self) -> None:
        """Do nothing: on a CPU, steps are synchronous."""

    def start(self) -> None:
        """Start the clock."""
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        """Note the end of a step."""
        self._times.append(time.perf_counter())

    def periods(self) -> list[float]:
        """Return how long each step took."""
        return [after - before for before, after in zip(self._times, self._times[1:])]


class WaitingTicks(Ticks):
    """Times steps on a device without events, by waiting for each step."""

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.accelerator.synchronize()

    def tick(self) -> None:
        """Wait for the step, and note its end."""
        self.synchronize()
        super().tick()


class CudaTicks(Ticks):
    """Times steps by CUDA events, without waiting for each step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def start(self) -> None:
        """Start the clock."""
        self._events = [self._recorded()]

    def tick(self) -> None:
        """Let the device record the end of the step."""
        self._events.append(self._recorded())

    def periods(self) -> list[float]:
        """Return how long each step took, from the end of the one before."""
        return [before.elapsed_time(after) / 1e3 for before, after in zip(self._events, self._events[1:])]

    def _recorded(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


MIN_STEPS, MAX_STEPS = 8, 2000
"""Limits on the timed steps of a round."""

SMALL_SHARE, SMALL_SHARE_WATCHED = 0.02, 0.1
"""Stalls below the first fraction of a step are not split, because workers that keep up are mostly idle; below the
second if it is unknown how long the workers are busy."""

SETTLE_SECONDS = 5.0
"""How long loaders may take at most to prefetch all they may."""


def bench_train(
    step: Step,
    loader: Any,
    *,
    target: str = "",
    seconds: float = 2.0,
    num_rounds: int = 5,
    num_gpus: int = 1,
    device: str | torch.device | None = None,
    watch: Watch | None = None,
) -> TrainBench:
    """Time a training step three ways.

    `step(batch)` is a whole step. It may copy the batch to the device itself, and need not wait for the device.
    `seconds` is the approximate time per way and round. Ctrl-C returns the results so far, if any.
    """
    if num_rounds < 1 or seconds <= 0:
        raise ArgumentError("num_rounds and seconds must be positive", hint="leave them out to use the defaults")
    if not callable(step):
        raise ArgumentError(
            f"the step is {type(step).__name__}, which cannot be called", hint="pass a function that takes a batch"
        )
    tell = watch or (lambda *_: None)
    tell(0, 3 * num_rounds + 1, "the first batches")
    kind = kind_of(loader)
    batches = take_batches(loader)
    place = _place(device, loader, batches)
    clock = CudaTicks(place) if place.type == "cuda" else Ticks() if place.type == "cpu" else WaitingTicks()
    with ExitStack() as stack:
        real = Iterated(loader)
        stack.callback(real.close)
        if getattr(loader, "auto", None) is not None:
            _run_in(real, step, seconds)
        num_steps = {REAL: _num_steps(real, step, seconds, clock)}
        wait_until_idle(SETTLE_SECONDS)
        resident = [on_device(one, place, widening_of(loader)) for one in batches]
        sources: dict[str, Resident | Iterated] = {RESIDENT: Resident(resident)}
        cached = cached_loader(loader, batches)
        if cached is not None:
            between = sources[CACHED] = Iterated(cached)
            stack.callback(between.close)
        for name, source in sources.items():
            try:
                num_steps[name] = _num_steps(source, step, seconds, clock)
            except Exception as error:
                if name == RESIDENT and device is None:
                    error.add_note(f"this batch lies on {place}; if the step wants it elsewhere, say so: --device cpu")
                raise
            wait_until_idle(SETTLE_SECONDS)
        sources[REAL] = real
        gauges = {RESIDENT: None, CACHED: gauge_of(cached, kind), REAL: gauge_of(loader, kind)}
        windows: dict[str, list[StepTimer]] = {name: [] for name in sources}
        is_interrupted = False
        try:
            for number in range(num_rounds):
                for name in in_turn(list(sources), number):
                    tell(sum(map(len, windows.values())) + 1, len(sources) * num_rounds + 1, f"{name} batches")
                    window = StepTimer(sources[name], step, clock=clock, gauge=gauges[name]).run(num_steps[name])
                    windows[name].append(window)
                    wait_until_idle(SETTLE_SECONDS)
        except KeyboardInterrupt:
            if not any(windows.values()):
                raise
            is_interrupted = True
    windows = {name: done for name, done in windows.items() if done}
    # the real loader comes last in the first round: if it was measured, so were the others
    effort = _effort(windows, gauges[REAL], kind) if REAL in windows else None
    share, how = _blocked_share(windows, effort, gauges[REAL]) if REAL in windows else (None, "")
    return TrainBench(
        target=target,
        machine=_described(place),
        device=str(place),
        num_gpus=num_gpus,
        kind=kind,
        config=arguments_of(loader),
        num_samples=num_samples_in(batches[0], expected=batch_size_of(loader)),
        ways=[_way(name, windows[name]) for name in WAYS if name in windows],
        blocked_share=share,
        making_cpu_seconds=None if effort is None else effort.cpu_seconds / sum(one.num_steps for one in windows[REAL]),
        split_by=how,
        counts_slowing=place.type == "cpu",
        notes=_notes(loader, cached, windows),
        is_interrupted=is_interrupted,
    )


def record_run(step: Step, loader: Any, *, seconds: float = 2.0, title: str = "") -> Run | None:
    """Train for some seconds and return a record for `stoker report` and `stoker doctor`; None without any batch."""
    from stoker.lab.watch.watch import watch

    with watch(loader, name=title) as watched:
        deadline = time.perf_counter() + seconds
        for batch in watched:
            step(batch)
            if time.perf_counter() > deadline:
                break
        run = watched.run()
    return run if run.loaders and run.loaders[0].num_batches else None


def _run_in(source: Iterated, step: Step, seconds: float) -> None:
    """Train for a while, so that arguments that are "auto" are chosen before other loaders are made like it."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        with suppress(StopIteration):
            step(source.take())


def _num_steps(source: Resident | Iterated, step: Step, seconds: float, clock: Ticks) -> int:
    """Return the number of steps of a round."""
    window = StepTimer(source, step, clock=clock).run(2)
    return max(MIN_STEPS, min(MAX_STEPS, round(seconds * window.num_steps / max(window.seconds, 1e-9))))


def _place(device: str | torch.device | None, loader: Any, batches: list[Any]) -> torch.device:
    """Return the device of resident batches: where the loader delivers, or else the GPU if available."""
    if device is not None:
        place = torch.device(device)
    else:
        given = getattr(loader, "_device", None) or device_of(batches[0])
        place = given if given is not None and given.type != "cpu" else torch.device("cpu")
        if place.type == "cpu" and torch.cuda.is_available():
            place = torch.device("cuda")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"device {str(place)!r}: CUDA is not available", hint="leave it out, or use cpu")
    return torch.device("cuda", torch.cuda.current_device()) if str(place) == "cuda" else place


def _way(name: str, windows: Sequence[StepTimer]) -> Way:
    return Way(
        name=name,
        num_steps=sum(window.num_steps for window in windows),
        step_seconds=[window.seconds / window.num_steps for window in windows],
        wait_seconds=[window.wait_seconds / window.num_steps for window in windows],
        quantiles=Quantiles(**quantiles([period for window in windows for period in window.periods])),
    )


def _effort(windows: Mapping[str, Sequence[StepTimer]], gauge: WorkTimeGauge | None, kind: str) -> WorkTime | None:
    """Return what the workers of the real loader used while it was timed; None if they are unknown."""
    if gauge is None and kind == "iterable":
        return None
    total = sum((window.waiting if gauge is None else window.effort for window in windows[REAL]), WorkTime())
    if isinstance(gauge, ThreadGauge):
        others = sum((window.effort for window in windows[CACHED]), WorkTime())
        scale = sum(window.num_steps for window in windows[REAL]) / sum(one.num_steps for one in windows[CACHED])
        total = total._replace(
            cpu_seconds=max(0.0, total.cpu_seconds - scale * others.cpu_seconds),
            delay_seconds=max(0.0, total.delay_seconds - scale * others.delay_seconds),
        )
    return total


def _blocked_share(
    windows: Mapping[str, Sequence[StepTimer]], effort: WorkTime | None, gauge: WorkTimeGauge | None
) -> tuple[float | None, str]:
    """Return the fraction of the workers' busy time that they were blocked, and how it was measured, or why not."""
    real = fmean(window.seconds / window.num_steps for window in windows[REAL])
    stall = real - fmean(window.seconds / window.num_steps for window in windows.get(CACHED, windows[RESIDENT]))
    if stall < SMALL_SHARE * real:
        return None, "the loader keeps up, so there is no stall to split"
    if effort is None:
        return (
            None,
            "it is unknown what loads the batches of this loader, so fetching and preparation are reported together",
        )
    if isinstance(gauge, ProcessGauge) and stall < SMALL_SHARE_WATCHED * real:
        return None, "the stall is too small to split by what the workers did"
    how = gauge.how if gauge is not None else "by the CPU time of the training thread, which loads the batches"
    share = effort.blocked_share
    return share, how if share is not None else "the system does not report what the workers did"


def _notes(loader: Any, cached: Any, windows: Mapping[str, Sequence[StepTimer]]) -> list[str]:
    found = []
    if cached is None:
        found.append(
            "cached batches cannot be sent through this kind of loader, so the copy is included in the data stall"
        )
    elif type(loader).__iter__ is not type(cached).__iter__:
        found.append(f"cached batches went through {type(cached).__name__}, not through {type(loader).__name__}")
    if getattr(loader, "auto", None) is not None:
        found.append(f'arguments are "auto", and may have changed meanwhile; in the end they were {loader.auto}')
    if getattr(loader, "_decode", "cpu") != "cpu":
        found.append("images are decoded on the device: cached batches are decoded already, so decoding counts as data")
    if (getattr(loader, "num_threads", None) or 0) > 1:
        found.append("a thread that waits for the GIL looks blocked, so part of the fetch stall may be that")
    if any(window.is_short for window in windows.get(REAL, ())):
        found.append(
            "epochs are short, so batches prefetched at their starts are included; with longer epochs there are fewer"
        )
    return found


def _described(place: torch.device) -> dict[str, Any]:
    facts = machine.described()
    if place.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(place)
    return facts
