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
"""Steps before the clock starts, where nothing is made ahead; also what a step does only at first is then done."""


class Resident:
    """The same few batches, on the device, again and again."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches, self._number = list(batches), 0
        self.num_warm, self.iterator = NUM_WARM, None

    def take(self) -> Any:
        """Return the next."""
        self._number += 1
        return with_new_containers(self._batches[self._number % len(self._batches)])


class Iterated:
    """A loader, iterated over as a trainer does, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.iterator: Iterator[Any] | None = None
        self._num_taken = 0

    @property
    def num_warm(self) -> int:
        """Steps before the clock starts: as many as may have been made ahead, with the arguments as they are now."""
        return NUM_WARM + num_ahead_of(arguments_of(self._loader))

    def take(self) -> Any:
        """Return the next batch of the epoch; the first one of the next after its end was told."""
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
        """End the iteration, and with it workers as far as they can be told to."""
        close = getattr(self.iterator, "close", None)
        self.iterator = None
        if callable(close):
            close()


class Window:
    """The steps of one round of one way, timed. Starts of epochs are left out, with as many steps as are made ahead."""

    def __init__(
        self, source: Resident | Iterated, step: Step, *, clock: Ticks, gauge: WorkTimeGauge | None = None
    ) -> None:
        self._source, self._step, self._clock, self._gauge = source, step, clock, gauge
        self._own = machine.Clock()
        self.seconds = self.wait_seconds = 0.0
        self.num_steps = 0
        self.periods: list[float] = []
        self.effort = WorkTime()
        """Of whoever makes batches, while the clock ran."""
        self.waiting = WorkTime()
        """Of the trainer's own thread, while it waited."""
        self.is_short = False
        """Whether epochs are too short to leave out what was made ahead at their starts."""

    def run(self, num_steps: int) -> Window:
        """Time so many steps."""
        num_warm = self._source.num_warm
        try:
            while self.num_steps < num_steps:
                before = self.num_steps
                if self._warmed(num_warm):
                    self._time(num_steps - self.num_steps)
                if self.num_steps == before:  # the epoch was over before the clock ran: in the next it starts sooner
                    num_warm, self.is_short = num_warm // 2, True
        finally:
            self._own.close()
        return self

    def _warmed(self, num_warm: int) -> bool:
        """Step without the clock; return False if the epoch ends meanwhile."""
        try:
            for _ in range(num_warm):
                self._step(self._source.take())
        except StopIteration:
            return False
        return True

    def _time(self, num_steps: int) -> None:
        """Step by the clock until there are enough, or the epoch is over."""
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
            # The end of an epoch takes its time, too, which is no step's.
            self.seconds += sum(periods) if is_over else ended - began
            self.num_steps += num_done
            self.effort += self._effort(ended) - before

    def _effort(self, now: float) -> WorkTime:
        return WorkTime() if self._gauge is None else self._gauge.read(self._source.iterator, now)


class Ticks:
    """The time from step to step, by the trainer's clock."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def synchronize(self) -> None:
        """Nothing runs on behind our back."""

    def start(self) -> None:
        """Begin."""
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        """A step is done."""
        self._times.append(time.perf_counter())

    def periods(self) -> list[float]:
        """Return how long each step took."""
        return [after - before for before, after in zip(self._times, self._times[1:])]


class WaitingTicks(Ticks):
    """The same where a device computes on that has no clock for us: each step is waited for."""

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        torch.accelerator.synchronize()

    def tick(self) -> None:
        """A step is done, when it is."""
        self.synchronize()
        super().tick()


class CudaTicks(Ticks):
    """The same by the device's clock: steps are only begun when they return, and are not waited for one by one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        torch.cuda.synchronize(self._device)

    def start(self) -> None:
        """Begin."""
        self._events = [self._recorded()]

    def tick(self) -> None:
        """A step has been begun; the device notes when it is done."""
        self._events.append(self._recorded())

    def periods(self) -> list[float]:
        """Return how long each step took, from the end of the one before."""
        return [before.elapsed_time(after) / 1e3 for before, after in zip(self._events, self._events[1:])]

    def _recorded(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


MIN_STEPS, MAX_STEPS = 8, 2000
"""Timed in a round."""

SMALL_SHARE, SMALL_SHARE_WATCHED = 0.02, 0.1
"""A stall of less than this part of a step is not split: what workers do while they are ahead says nothing of it. The
other is for workers of whom it is not known how long they are busy."""

SETTLE_SECONDS = 5.0
"""How long loaders may take at the most to make ahead what they may."""


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
    """Return how long a training step takes each of the three ways, and what follows from it.

    `step(batch)` is a whole step: it may copy the batch to the device by itself, and need not wait for the device.
    `seconds` is about how long each way is timed in each round. Ctrl-C ends it and returns what there is by then, if
    there is anything.
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
        windows: dict[str, list[Window]] = {name: [] for name in sources}
        is_interrupted = False
        try:
            for number in range(num_rounds):
                for name in in_turn(list(sources), number):
                    tell(sum(map(len, windows.values())) + 1, len(sources) * num_rounds + 1, f"{name} batches")
                    window = Window(sources[name], step, clock=clock, gauge=gauges[name]).run(num_steps[name])
                    windows[name].append(window)
                    wait_until_idle(SETTLE_SECONDS)
        except KeyboardInterrupt:
            if not any(windows.values()):
                raise
            is_interrupted = True
    windows = {name: done for name, done in windows.items() if done}
    # the real loader comes last in the first round: if it has had its turn, the others have, too
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
    """Return a record of training with a loader for some seconds, watched, for `stoker report` and `stoker doctor`.

    None if there was not a single batch.
    """
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
    """Train for a while, so that arguments that are "auto" are chosen by the time that others are made like them."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        with suppress(StopIteration):
            step(source.take())


def _num_steps(source: Resident | Iterated, step: Step, seconds: float, clock: Ticks) -> int:
    """Return how many steps fill the time of a round."""
    window = Window(source, step, clock=clock).run(2)
    return max(MIN_STEPS, min(MAX_STEPS, round(seconds * window.num_steps / max(window.seconds, 1e-9))))


def _place(device: str | torch.device | None, loader: Any, batches: list[Any]) -> torch.device:
    """Return where resident batches are to be: where the loader delivers, or else where a step would want them."""
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


def _way(name: str, windows: Sequence[Window]) -> Way:
    return Way(
        name=name,
        num_steps=sum(window.num_steps for window in windows),
        step_seconds=[window.seconds / window.num_steps for window in windows],
        wait_seconds=[window.wait_seconds / window.num_steps for window in windows],
        quantiles=Quantiles(**quantiles([period for window in windows for period in window.periods])),
    )


def _effort(windows: Mapping[str, Sequence[Window]], gauge: WorkTimeGauge | None, kind: str) -> WorkTime | None:
    """Return what those who make the real loader's batches used while they were timed; None if nobody is known."""
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
    windows: Mapping[str, Sequence[Window]], effort: WorkTime | None, gauge: WorkTimeGauge | None
) -> tuple[float | None, str]:
    """Return how much of their busy time those who make batches were blocked, and how that is known, or why not."""
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


def _notes(loader: Any, cached: Any, windows: Mapping[str, Sequence[Window]]) -> list[str]:
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
    told = machine.described()
    if place.type == "cuda":
        told["gpu"] = torch.cuda.get_device_name(place)
    return told
