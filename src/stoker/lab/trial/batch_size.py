"""The largest batch size that fits into memory, tried for real in child processes, with what each size achieves."""

from __future__ import annotations

from collections.abc import Callable

from stoker.errors import ArgumentError, WorkerDied
from stoker.foundation import machine
from stoker.lab.trial import batch_child
from stoker.lab.trial.batch_record import OK, OUT_OF_MEMORY, SLOW, BatchTrial, BatchTune
from stoker.lab.trial.batch_search import max_trials, next_below, rounded, search
from stoker.lab.trial.child import Child, ChildEnded, ChildSlow
from stoker.lab.trial.out_of_memory import may_be_out_of_memory, tells_of_memory
from stoker.lab.trial.rounds import in_turn
from stoker.lab.trial.sweep import Watch
from stoker.lab.trial.target import check_spec

MARGIN = 0.05
"""The share of memory that is kept free in all trials: batches differ, and allocators leave gaps in time."""

FREE_SHARE = 0.8
"""Of the memory that is free on this machine, what a step may use unless something else is said."""

NUM_VERIFIED = 8
"""Steps that the result is verified with."""


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
    """Return the largest batch size that fits into memory, and the throughput of every size that was tried.

    `target` names a function `make_sized_step(batch_size)` that returns a callable without arguments: each call runs
    one training step of so many samples. Or it names a function `make_step()` that returns `step(batch)`, or a pair
    (loader, step), as for `bench_train`: then batches are the first one of the loader, with its samples repeated, and
    the loader is what `loader` makes, or the function `make_loader` beside it. Either is called in child processes,
    which may run out of memory without harm; one that did is replaced. Another error of the step's is raised as it is.

    All sizes that fit are timed in `num_rounds` rounds, in another order each time, so that a noisy moment harms none
    alone; the search itself is the first. `memory_bytes` is what the process may use; by default all of the GPU, or
    four fifths of what is free here. A trial that takes longer than `limit_seconds` ends the search. Ctrl-C ends it and
    returns what there is by then, if there is anything.
    """
    check_spec(target, what="a function that makes a step")
    if start < 1 or most < 1:
        raise ArgumentError(f"batch sizes from {start} to {most} cannot be tried", hint="give numbers above 0")
    if not 0 <= margin < 1:
        raise ArgumentError(f"margin={margin} is no share of the memory", hint="give one from 0 to 0.9, such as 0.05")
    if loader is not None:
        check_spec(loader, what="a function that makes a loader")
    with _Trials(target, loader, memory_bytes, margin, device, limit_seconds) as trials:
        if watch is not None:
            watch = _counting(watch, num_rounds * max_trials(start=start, most=most) + 1)
        is_verified = is_interrupted = False
        try:
            largest, stopped = _searched(trials, start=start, most=most, watch=watch)
            num_down = 1
            while largest is not None and not trials.verified(largest, num_verified, watch):
                # by ever more: how much is missing is not known, and each time costs a process
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


def _searched(trials: _Trials, *, start: int, most: int, watch: Watch | None) -> tuple[int | None, str | None]:
    """Return the largest size that fits, and why larger ones were not tried, if memory was not the reason."""
    try:
        found = search(lambda size: trials.fits(size, watch), start=start, most=most)
    except _TooSlow as slow:
        return trials.largest, str(slow)
    return found.largest, f"sizes above {rounded(most):,} were not tried" if found.too_large is None else None


class _TooSlow(Exception):
    """A trial took too long."""


class _Trials:
    """Trials in a child that is kept while it is well."""

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

    def __enter__(self) -> _Trials:
        try:
            told = self._ready().ask(None)
        except BaseException:
            self._replace()
            raise
        self.device, self.memory_bytes, self.num_repeated = (
            told[name] for name in ("device", "memory_bytes", "num_repeated")
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._replace()

    @property
    def largest(self) -> int | None:
        """The largest size that fits, of those tried so far: below all that do not."""
        failed = min((trial.batch_size for trial in self.done if trial.outcome != OK), default=None)
        well = [trial.batch_size for trial in self.done if trial.outcome == OK]
        return max((size for size in well if failed is None or size < failed), default=None)

    def fits(self, size: int, watch: Watch | None) -> bool:
        """Whether a size fits. One that does not, in a process that had others before, is tried again in a new one:
        what those have left behind is not its fault.
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
        """Whether a size fits for so many steps in a process of its own."""
        self._replace()
        if watch is not None:
            watch(0, 0, f"batch size {size:,}, verified")
        trial = self._tried(size, num_steps)
        self.done.append(trial)
        self._replace()
        return trial.outcome != OUT_OF_MEMORY

    def time_again(self, largest: int | None, num_rounds: int, watch: Watch | None) -> None:
        """Time all sizes that fit once more, so many times, in turn."""
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
                    self._replace()  # that it fits is known; what others have left behind here says nothing

    def _tried(self, size: int, num_timed: int | None) -> BatchTrial:
        child = self._ready()
        self._num_tried += 1
        try:
            found = child.ask(size, num_timed, limit_seconds=self._limit_seconds)
        except ChildSlow:
            return BatchTrial(batch_size=size, outcome=SLOW, error=f"no answer within {self._limit_seconds:g} s")
        except ChildEnded as ended:
            if ended.end != "SIGKILL" and not tells_of_memory(ended.said):
                died = WorkerDied(f"a step with a batch of {size:,}", ends=[ended.end])
                if ended.said:
                    died.add_note(f"it said:\n{ended.said}")
                raise died from None
            told = "killed by the system, as for a lack of memory" if ended.end == "SIGKILL" else _last_line(ended.said)
            return BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=told)
        except Exception as error:
            if may_be_out_of_memory(error) and any(one.outcome == OK and one.batch_size < size for one in self.done):
                return BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=_first_line(error))
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _counting(watch: Watch, total: int) -> Callable[[int, int, str], None]:
    number = 0

    def tell(_: int, __: int, what: str) -> None:
        nonlocal number
        watch(number, max(total, number + 1), what)
        number += 1

    return tell
