"""The largest batch size that fits into memory: the search, trials in child processes, and the record of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path
from statistics import median, stdev
from typing import Any, NamedTuple

from stoker.engine.stats import Plain
from stoker.errors import ArgumentError, WorkerDied
from stoker.foundation import machine
from stoker.lab.trial import batch_child
from stoker.lab.trial.child import Child, ChildEnded, ChildSlow
from stoker.lab.trial.out_of_memory import may_be_out_of_memory, mentions_out_of_memory
from stoker.lab.trial.rounds import in_turn
from stoker.lab.trial.sweep import Watch
from stoker.lab.trial.target import check_spec
from stoker.lab.watch.record_file import load_record, save_record

FORMAT = "stoker-batch"

OK, OUT_OF_MEMORY, SLOW = "ok", "out-of-memory", "slow"

KNEE_SHARE = 0.05
"""Sizes within this share of the best throughput are as good as the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrial(Plain):
    """One trial of a batch size."""

    batch_size: int
    outcome: str = OK
    """"ok", "out-of-memory" or "slow"."""
    step_seconds: list[float] = field(default_factory=list)
    """Of each timed step."""
    peak_bytes: int | None = None
    """Peak memory of the device, or on a CPU of the process."""
    error: str | None = None
    """The error if it did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize(Plain):
    """Summary of all trials of one batch size. Times are in seconds."""

    batch_size: int
    fits: bool
    step_seconds: float | None = None
    """The median of all timed steps, which single disturbances do not move."""
    deviation: float | None = None
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTune(Plain):
    """Result of a search for the largest batch size."""

    format: str = FORMAT
    version: int = 1
    target: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    memory_bytes: int | None = None
    """Memory limit; None if it is all memory of the device."""
    margin: float = 0.0
    """Fraction of it that was kept free in all trials."""
    most: int = 0
    """Larger sizes were not tried."""
    trials: list[BatchTrial] = field(default_factory=list)
    """In the order of execution."""
    largest: int | None = None
    """The largest batch size that fits, a multiple of 32 (or 16, 8 where it is smaller); None if not even 1 does, or if
    it was interrupted before one did."""
    num_verified: int = 0
    """Steps that verified it in a separate process; 0 if interrupted before."""
    stopped: str | None = None
    """Why larger sizes were not tried, if not because of memory."""
    num_repeated: int | None = None
    """Samples of the loader's first batch, which other sizes repeat; None if the step makes its own batch."""
    is_interrupted: bool = False

    def sizes(self) -> list[BatchSize]:
        """Return a summary of each size, smallest first."""
        return [self._size(size) for size in sorted({trial.batch_size for trial in self.trials})]

    def _size(self, size: int) -> BatchSize:
        mine = [trial for trial in self.trials if trial.batch_size == size]
        bad = next((trial for trial in reversed(mine) if trial.outcome != OK), None)
        well = [trial for trial in mine if trial.outcome == OK]
        times = [seconds for trial in well for seconds in trial.step_seconds]
        # a size that failed once, or is larger than one that failed, does not fit, whatever it did before
        fits = bool(well) and bad is None and (self.largest is None or size <= self.largest)
        if not times:
            return BatchSize(batch_size=size, fits=fits, error=bad.error if bad is not None else None)
        return BatchSize(
            batch_size=size,
            fits=fits,
            step_seconds=median(times),
            deviation=stdev(times) if len(times) > 1 else None,
            samples_per_second=size / median(times),
            peak_bytes=max((trial.peak_bytes for trial in well if trial.peak_bytes is not None), default=None),
            error=None if fits or bad is None else bad.error,
        )

    @property
    def knee(self) -> int | None:
        """The smallest size within 5% of the best throughput; None if nothing fits."""
        speeds = self.speeds()
        enough = [size for size, speed in speeds.items() if speed >= (1 - KNEE_SHARE) * max(speeds.values())]
        return enough[0] if enough else None

    @property
    def fastest(self) -> int | None:
        """The size with the best throughput. None if nothing fits."""
        speeds = self.speeds()
        return max(speeds, key=speeds.__getitem__) if speeds else None

    @property
    def is_slower_when_larger(self) -> bool:
        """Whether the largest size is slower than the best by more than 5%."""
        speeds = self.speeds()
        return bool(speeds) and speeds[max(speeds)] < (1 - KNEE_SHARE) * max(speeds.values())

    def speeds(self) -> dict[int, float]:
        """Return the samples per second of each size that fits, smallest first."""
        known = (one for one in self.sizes() if one.fits)
        return {one.batch_size: one.samples_per_second for one in known if one.samples_per_second is not None}

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all."""
        save_record(self, path)

    @staticmethod
    def load(path: str | Path) -> BatchTune:
        """Return what `save` wrote; refuse other files."""
        hint = "`stoker tune batch --out folder` writes one"
        return load_record(BatchTune, path, format_name=FORMAT, what="a record of batch sizes", hint=hint)


MULTIPLES = (32, 16, 8)
"""Sizes are rounded down to a multiple of the first of these that is not larger."""


class SizeSearch(NamedTuple):
    """Result of `search`."""

    largest: int | None
    """The largest size that fits; None if 1 does not."""
    too_large: int | None
    """The smallest size tried that does not fit; None if all fit."""


def round_size(size: int) -> int:
    """Return the largest size worth trying that is not above `size`: 1000 is 992, 31 is 16, 7 is 7."""
    for multiple in MULTIPLES:
        if size >= multiple:
            return size // multiple * multiple
    return size


def search(fits: Callable[[int], bool], *, start: int = 8, most: int = 65536) -> SizeSearch:
    """Return the largest size worth trying, up to `most`, for which `fits` is true.

    Every size below one that fits must fit, too. Each size is tried at most once, and at most `max_trials` in all.
    """
    top = _number(round_size(most))
    low, high = -1, top + 1
    size = round_size(min(start, most))
    while True:
        number = _number(size)
        if not fits(size):
            high = number
            break
        low = number
        if number >= top:
            break
        size = max(round_size(min(2 * size, most)), _size(number + 1))
    while high - low > 1:
        middle = (low + high) // 2
        if fits(_size(middle)):
            low = middle
        else:
            high = middle
    return SizeSearch(_size(low) if low >= 0 else None, _size(high) if high <= top else None)


def next_below(size: int, num: int = 1) -> int | None:
    """Return the `num`-th smaller size worth trying; None if there are not that many."""
    number = _number(round_size(size)) - num
    return _size(number) if number >= 0 else None


def max_trials(*, start: int = 8, most: int = 65536) -> int:
    """Return the maximum number of trials of `search`."""
    start = min(start, most)
    num_doublings = 1 + ceil(log2(most / start)) + 1
    num_between = max(
        _number(round_size(start)) + 1, _number(round_size(most)) - _number(round_size(max(1, most // 2))) + 1
    )
    return num_doublings + ceil(log2(num_between + 1))


def _number(size: int) -> int:
    """Return the number of sizes worth trying below this one."""
    if size < 8:
        return size - 1
    return 7 if size == 8 else 8 if size == 16 else 8 + size // 32


def _size(number: int) -> int:
    """Return the size with that many sizes worth trying below it."""
    if number < 7:
        return number + 1
    return 8 if number == 7 else 16 if number == 8 else 32 * (number - 8)


MARGIN = 0.05
"""Fraction of memory kept free in all trials: batches differ, and memory becomes fragmented."""

FREE_SHARE = 0.8
"""Default limit on a CPU, as a fraction of the free memory."""

NUM_VERIFIED = 8
"""Steps that verify the result."""


def tune_batch(
    target: str,
    *,
    loader: str | None = None,
    start: int = 8,
    most: int = 65536,
    memory_bytes: int | None = None,
    device: str | None = None,
    margin: float = MARGIN,
    num_verified: int = NUM_VERIFIED,
    num_rounds: int = 3,
    limit_seconds: float = 120.0,
    watch: Watch | None = None,
) -> BatchTune:
    """Return the largest batch size that fits into memory, and the throughput of every size tried.

    `target` names a function `make_sized_step(batch_size)` that returns `step()`, which runs one training step of that
    size. Or it names a function `make_step()` that returns `step(batch)`, or a pair (loader, step), as for
    `bench_train`. Then batches repeat the samples of the first batch of the loader, which `loader` makes, or the
    function `make_loader` in the same module. Steps run in child processes, which may run out of memory without harm
    and are then replaced. Other errors of the step are raised unchanged.

    All sizes that fit are timed in `num_rounds` rounds, in a different order each time; the search is the first round.
    `memory_bytes` limits the memory; by default it is all of the GPU, or 80% of the free memory. A trial that takes
    longer than `limit_seconds` ends the search. Ctrl-C returns the results so far, if any.
    """
    check_spec(target, what="a function that makes a step")
    if start < 1 or most < 1:
        raise ArgumentError(
            f"start and most must be positive, got {start} and {most}", hint="leave them out to use the defaults"
        )
    if not 0 <= margin < 1:
        raise ArgumentError(f"margin must be from 0 to 0.9, got {margin}", hint="use 0.05, or leave it out")
    if loader is not None:
        check_spec(loader, what="a function that makes a loader")
    with _SizeTrials(target, loader, memory_bytes, margin, device, limit_seconds) as trials:
        if watch is not None:
            watch = _counting(watch, num_rounds * max_trials(start=start, most=most) + 1)
        is_verified = is_interrupted = False
        try:
            largest, stopped = _searched(trials, start=start, most=most, watch=watch)
            num_down = 1
            while largest is not None and not trials.verified(largest, num_verified, watch):
                # by ever larger steps: how much is missing is unknown, and each attempt costs a process
                largest = next_below(largest, num_down) or next_below(largest)
                num_down *= 2
                stopped = None
            is_verified = largest is not None
            trials.time_again(largest, num_rounds - 1, watch)
        except KeyboardInterrupt:
            if not trials.done:
                raise
            is_interrupted = True
            if not is_verified:
                largest, stopped = trials.largest, "the search was interrupted"
        return BatchTune(
            target=target,
            machine=machine.described(),
            device=trials.device,
            memory_bytes=trials.memory_bytes,
            margin=margin,
            most=most,
            trials=trials.done,
            largest=largest,
            num_verified=num_verified if is_verified else 0,
            stopped=stopped,
            num_repeated=trials.num_repeated,
            is_interrupted=is_interrupted,
        )


def _searched(trials: _SizeTrials, *, start: int, most: int, watch: Watch | None) -> tuple[int | None, str | None]:
    """Return the largest size that fits, and why larger ones were not tried, if not because of memory."""
    try:
        found = search(lambda size: trials.fits(size, watch), start=start, most=most)
    except _TooSlow as slow:
        return trials.largest, str(slow)
    return found.largest, f"sizes above {round_size(most):,} were not tried" if found.too_large is None else None


class _TooSlow(Exception):
    """A trial took too long."""


class _SizeTrials:
    """Runs trials in a child, which is replaced when it has run out of memory."""

    def __init__(
        self,
        target: str,
        loader: str | None,
        memory_bytes: int | None,
        margin: float,
        device: str | None,
        limit_seconds: float,
    ) -> None:
        self._target, self._loader = target, loader
        self._margin, self._wanted, self._limit_seconds = margin, device, limit_seconds
        self.num_repeated: int | None = None
        free = machine.available_bytes()
        self._wanted_bytes, self._host_bytes = memory_bytes, None if free is None else int(FREE_SHARE * free)
        self.device, self.memory_bytes = "cpu", memory_bytes
        self.done: list[BatchTrial] = []
        self._child: Child | None = None
        self._num_tried = 0

    def __enter__(self) -> _SizeTrials:
        try:
            facts = self._ready().ask(None)
        except BaseException:
            self._replace()
            raise
        self.device, self.memory_bytes, self.num_repeated = (
            facts[name] for name in ("device", "memory_bytes", "num_repeated")
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._replace()

    @property
    def largest(self) -> int | None:
        """The largest size tried so far that fits, below all that do not."""
        failed = min((trial.batch_size for trial in self.done if trial.outcome != OK), default=None)
        well = [trial.batch_size for trial in self.done if trial.outcome == OK]
        return max((size for size in well if failed is None or size < failed), default=None)

    def fits(self, size: int, watch: Watch | None) -> bool:
        """Whether a size fits. If it does not, in a process that has tried other sizes, it is tried again in a new one:
        earlier trials may have left memory in use.
        """
        while True:
            is_fresh = not self._num_tried
            if watch is not None:
                watch(0, 0, f"batch size {size:,}")
            trial = self._tried(size, None)
            if trial.outcome == OK:
                self.done.append(trial)
                return True
            self._replace()
            if trial.outcome == SLOW:
                self.done.append(trial)
                raise _TooSlow(f"a trial with {size:,} took longer than {self._limit_seconds:g} s")
            if is_fresh:
                self.done.append(trial)
                return False

    def verified(self, size: int, num_steps: int, watch: Watch | None) -> bool:
        """Whether a size fits for that many steps in a new process."""
        self._replace()
        if watch is not None:
            watch(0, 0, f"batch size {size:,}, verified")
        trial = self._tried(size, num_steps)
        self.done.append(trial)
        self._replace()
        return trial.outcome != OUT_OF_MEMORY

    def time_again(self, largest: int | None, num_rounds: int, watch: Watch | None) -> None:
        """Time all sizes that fit in more rounds."""
        tried = [trial.batch_size for trial in self.done if trial.outcome == OK]
        sizes = sorted({size for size in tried if largest is not None and size <= largest})
        for number in range(num_rounds):
            for size in in_turn(sizes, number):
                if watch is not None:
                    watch(0, 0, f"batch size {size:,}, again")
                trial = self._tried(size, None)
                if trial.outcome == OK:
                    self.done.append(trial)
                else:
                    self._replace()  # it is known to fit: earlier trials have left memory in use

    def _tried(self, size: int, num_timed: int | None) -> BatchTrial:
        child = self._ready()
        self._num_tried += 1
        try:
            found = child.ask(size, num_timed, limit_seconds=self._limit_seconds)
        except ChildSlow:
            return BatchTrial(batch_size=size, outcome=SLOW, error=f"no answer within {self._limit_seconds:g} s")
        except ChildEnded as ended:
            if ended.end != "SIGKILL" and not mentions_out_of_memory(ended.said):
                died = WorkerDied(f"a step with a batch of {size:,}", ends=[ended.end])
                if ended.said:
                    died.add_note(f"it said:\n{ended.said}")
                raise died from None
            reason = ended.said.strip().rpartition("\n")[2]
            if ended.end == "SIGKILL":
                reason = "killed by the system (SIGKILL), probably out of memory"
            return BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=reason)
        except Exception as error:
            if may_be_out_of_memory(error) and any(one.outcome == OK and one.batch_size < size for one in self.done):
                return BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=str(error).strip().partition("\n")[0])
            error.add_note(f"raised with a batch size of {size:,}")
            raise
        if "error" in found:
            return BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=found["error"])
        return BatchTrial(batch_size=size, **found)

    def _ready(self) -> Child:
        if self._child is None:
            memory = (self._wanted_bytes, self._host_bytes, self._margin)
            self._child = Child(batch_child.begin, self._target, self._loader, *memory, self._wanted)
            self._child.wait_until_ready()
        return self._child

    def _replace(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child, self._num_tried = None, 0


def _counting(watch: Watch, total: int) -> Callable[[int, int, str], None]:
    number = 0

    def tell(_: int, __: int, what: str) -> None:
        nonlocal number
        watch(number, max(total, number + 1), what)
        number += 1

    return tell
