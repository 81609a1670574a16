"""Choose parallelism for `"auto"`, from measurements of one window of batches after another.

The autotuner receives windows of batches and returns the setting for the next one. It uses no clock and no random
numbers, so the same windows give the same decisions. Every change is a trial, judged on the following windows by the
*period*, the time from batch to batch: the training loop's waiting time plus its step time. So workers that slow the
step down by as much as they save in waiting are not kept.

"Workers" are threads that load samples, in any process; `concurrency` is their number.

- The training loop waits: more workers, as long as the period falls; more batches in flight, if workers are idle.
- The machine is crowded and the step suffers from it: fewer workers, if the period does not get worse.
- The training loop does not wait and workers are idle: fewer workers, to save cores and memory.
- Batches are loaded inline and have become costly: workers. The other way is for the next iteration.

A change that failed is tried again at growing intervals, or at once when the work or the step time has changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from stoker.tuning.batch_window import Observation
from stoker.tuning.parallelism import INLINE_SECONDS, Candidate, Kind, Parallelism, SearchSpace

NEGLIGIBLE = 0.03
"""Share of the time spent waiting that does not matter."""

GAIN, LOSS = 0.02, 0.02
"""Minimum gain from more workers, and maximum loss from fewer, as shares of the period."""

DRIFT = 0.03
"""Maximum loss from several reductions in a row."""

RESERVE = 1.1
"""Workers are chosen to be busy for 1 / 1.1 of the time."""

BUSY = 0.85
"""Workers that are busy for less of the time although the training loop waits lack batches in flight."""

CROWDED, DELAYED = 0.75, 0.02
"""The step suffers if this share of the cores is in use, and the training thread waits for a core for more than this
share of the time, or the step time has grown by as much.
"""

FULL = 0.95
"""Workers that are busy for more of the time are too few, even if prefetched batches hide it for a while."""

HANDOVER_SECONDS = 1.5e-4
"""Cost of receiving a batch from a worker: waking up, reading the reply, unpacking."""

WORTH_IT, MOST_AT_ONCE = 0.9, 4
"""To leave inline loading: the factor by which the period has to fall, and the maximum number of first workers."""

HINDERED = 1.1
"""Threads that take this many times as long as one alone slow each other down."""

CHANGED = 1.25
"""If work or step time changes by this factor, earlier results are no longer valid."""

EASED = 0.75
"""Share of the workers to keep if the step suffers."""

HOPE = 0.7
"""Lowest possible cost of a batch, as a share of the lowest cost measured."""

FRESH = 32
"""Number of windows for which the result of a setting is remembered."""

MOST_LOOKS = 3
"""Maximum number of windows for a trial, if noise leaves the result open."""

MOST_PATIENCE = 512
"""Maximum number of windows between two attempts at the same change."""

_PATIENCE: dict[str, int] = {"more": 4, "less": 4, "ahead": 4, "processes": 16, "inline": 16, "workers": 4}


@dataclass(slots=True)
class _Failure:
    """A change that failed, and when to try it again."""

    seen: Observation
    patience: int
    left: int


@dataclass(slots=True)
class _Trial:
    """A change that is being tried."""

    goal: str
    before: Parallelism
    kind: Kind
    """The kind of the setting before."""
    seen: Observation
    """The window before the change."""
    looks: list[Observation]


class Autotuner:
    """Chooses settings within `space`, beginning with `start`. `work` is the cost of a batch for one worker."""

    def __init__(self, space: SearchSpace, start: Parallelism, *, kind: Kind, work: float | None = None) -> None:
        self.space, self.setting, self._work = space, start, work
        self.kind: Kind = kind
        """The ladder of the setting; for inline loading, the ladder it would move to."""
        self._trial: _Trial | None = None
        self._failures: dict[str, _Failure] = {}
        self._barrier: int | None = None
        """The level that was too high, while that is known."""
        self._anchor: Observation | None = None
        """The window before the first reduction."""
        self._best_step: float | None = None
        """The shortest step time measured, while it is attainable."""
        self._known: dict[Parallelism, tuple[int, Observation]] = {}
        """The latest window with each setting, and its number."""
        self._num_windows = 0
        self._latest: Observation | None = None
        """The latest window, or the windows of a trial together."""
        self._before_workers: Observation | None = None
        """The last window of inline loading, if workers were no better: the next iteration may return to it."""
        self._makings: deque[float] = deque(maxlen=FRESH)
        """Cost of a batch in the latest windows."""

    def limit(self, num_workers: int, setting: Parallelism) -> None:
        """Choose at most `num_workers` from now on: more could not be started. The current setting is `setting`."""
        space = self.space
        self.space = replace(
            space,
            processes=tuple(level for level in space.processes if level[0] <= num_workers),
            threads=tuple(level for level in space.threads if level[0] <= num_workers),
        )
        self.setting, self._trial = setting, None

    def observe(self, seen: Observation) -> str | None:
        """Process a window. Return the reason if the setting has changed, otherwise None."""
        trial = self._trial
        self._num_windows += 1
        if trial is not None:
            trial.looks.append(seen)
            seen = _together(trial.looks)
        self._known[self.setting] = (self._num_windows, seen)
        self._makings.append(seen.making)
        self._latest = seen
        if trial is not None:
            is_good = self._judged(trial, seen)
            if is_good is None:
                return None
            self._trial = None
            if not is_good:
                return self._taken_back(trial, seen)
            self._kept(trial)
        for failure in self._failures.values():
            failure.left -= 1
        return self._considered(seen)

    @property
    def is_trying(self) -> bool:
        """Whether the current setting is a trial."""
        return self._trial is not None

    # ---------------------------------------------------------------- trials

    def _judged(self, trial: _Trial, seen: Observation) -> bool | None:
        """Return whether a trial succeeded; None if it is not certain yet."""
        limit = self._limit(trial.goal, trial.seen)
        away = abs(seen.period - limit) / trial.seen.period
        noise = (seen.noise**2 + trial.seen.noise**2) ** 0.5
        if away < noise and len(trial.looks) < MOST_LOOKS:
            return None
        if trial.goal == "less" and trial.seen.stall_share < NEGLIGIBLE:
            return seen.period <= limit and seen.busy_share(self.setting.concurrency) < FULL
        return seen.period <= limit

    def _limit(self, goal: str, before: Observation) -> float:
        """Return the longest period with which a change counts as a success."""
        if goal not in ("less", "inline"):
            return before.period * (1 - GAIN)
        least = before.period if self._anchor is None else min(before.period, self._anchor.period * (1 + DRIFT - LOSS))
        return least * (1 + LOSS)

    def _kept(self, trial: _Trial) -> None:
        self._failures.pop(trial.goal, None)
        if trial.goal != "less":
            self._anchor = None
        if trial.goal == "more":
            self._failures.pop("less", None)
        elif trial.goal == "less":
            self._barrier = None

    def _taken_back(self, trial: _Trial, seen: Observation) -> str | None:
        tried, kind, self.setting, self.kind = self.setting, self.kind, trial.before, trial.kind
        result = f"{_ms(seen.period)} per batch with {tried}, {_ms(trial.seen.period)} before"
        if trial.goal == "more":
            self._barrier = self._level_of(tried)
            between = (self._level() + self._barrier) // 2
            # if it did no harm, half of it would not help either
            is_harmful = seen.period > trial.seen.period * (1 + GAIN)
            if is_harmful and between > self._level() and self._try("more", self._on(between), trial.seen):
                return f"{result}: try half-way"
        elif trial.goal == "less":
            self._best_step = trial.seen.step  # the step takes that long by itself
            result += f"; workers were {seen.busy_share(tried.concurrency):.0%} busy"
        elif trial.goal == "inline" and not seen.can_have_workers:
            self.setting = tried
            return None
        elif trial.goal == "workers":  # only the next iteration can load inline again
            self.setting, self.kind, self._before_workers = tried, kind, trial.seen
            self._fail("workers", trial.seen)
            return None
        self._fail(trial.goal, trial.seen)
        return f"{result}: reverted"

    def _fail(self, goal: str, seen: Observation, *, is_tried: bool = True) -> None:
        failed = self._failures.get(goal)
        patience = _PATIENCE[goal] if failed is None else failed.patience
        if failed is not None and is_tried:
            patience = min(2 * patience, MOST_PATIENCE)
        self._failures[goal] = _Failure(seen, patience, patience)

    def _try(self, goal: str, setting: Parallelism, seen: Observation, *, kind: Kind | None = None) -> bool:
        """Change the setting for a trial, unless its result is already known to be bad."""
        when, known = self._known.get(setting, (-FRESH, seen))
        is_known = self._num_windows - when < FRESH and not _has_changed(known, seen, of_work=False)
        if is_known and known.period > self._limit(goal, seen):
            self._fail(goal, seen, is_tried=False)
            return False
        self._trial = _Trial(goal, self.setting, self.kind, seen, [])
        self.setting, self.kind = setting, kind or self.kind
        return True

    def _may_try(self, goal: str, seen: Observation) -> bool:
        failure = self._failures.get(goal)
        if failure is None:
            return True
        if _has_changed(failure.seen, seen, of_work=not self.setting.is_inline):
            del self._failures[goal]
            self._barrier = self._anchor = None
            return True
        return failure.left <= 0

    # ---------------------------------------------------------------- what to try

    def _considered(self, seen: Observation) -> str | None:
        if self.setting.is_inline:
            return self._workers(seen)
        least, _ = self.space.ahead
        most = max(least, seen.most_ahead // max(1, self.setting.num_workers))
        if self.setting.prefetch_factor > most:
            self.setting = replace(self.setting, prefetch_factor=most)
            return "not enough memory for more batches in flight"
        if self._best_step is None or seen.step < self._best_step:
            self._best_step = seen.step
        concurrency = self.setting.concurrency
        is_slowed = seen.delay_share > DELAYED or seen.step - self._best_step > DELAYED * seen.period
        if seen.cpu_share > CROWDED and is_slowed and self._less(seen, int(EASED * concurrency)):
            return (
                f"{seen.cpu_share:.0%} of the cores are in use, and the training thread waits for a core for "
                f"{seen.delay_share:.0%} of {_ms(seen.period)}; its step takes {_ms(seen.step)}, at best "
                f"{_ms(self._best_step)}"
            )
        if seen.stall_share > NEGLIGIBLE:
            return self._hurried(seen)
        num_needed = ceil(RESERVE * seen.making / seen.period) if seen.period else 1
        if self._less(seen, max(num_needed, concurrency // 2)):
            return f"the training loop does not wait, and workers are {seen.busy_share(concurrency):.0%} busy"
        return None

    def _hurried(self, seen: Observation) -> str | None:
        """Choose a change for a training loop that waits."""
        concurrency = self.setting.concurrency
        why = (
            f"the training loop waits {seen.stall_share:.0%} of {_ms(seen.period)} per batch; workers are "
            f"{seen.busy_share(concurrency):.0%} busy"
        )
        is_idle = seen.busy_share(concurrency) < BUSY
        if is_idle and not (self.is_at_the_top and self.kind == "threads") and self._ahead(seen):
            return why
        if self._more(seen):
            return why
        if self._processes(seen):
            return f"{why}; more threads do not help"
        return why if is_idle and self._ahead(seen) else None

    def _more(self, seen: Observation) -> bool:
        ladder, at = self.space.candidates(self.kind), self._level()
        top = len(ladder) - 1
        if at >= top or not self._may_try("more", seen):
            return False
        if self._barrier is not None and "more" in self._failures:
            self._barrier = None  # measured long ago
        if self._barrier is not None:
            top = self._barrier - 1
            if at >= top:
                self._fail("more", seen)
                return False
        wanted = self._wanted(seen)
        level = next((level for level in range(at + 1, top) if _concurrency(ladder[level]) >= wanted), top)
        return self._try("more", self._on(level), seen)

    def _wanted(self, seen: Observation) -> int:
        """Return how many workers would be enough: more than now, at most twice as many."""
        concurrency = self.setting.concurrency
        enough = seen.making / seen.step if seen.step > 0 else 2 * concurrency
        return min(max(ceil(RESERVE * enough), concurrency + 1), 2 * concurrency)

    def _processes(self, seen: Observation) -> bool:
        """Try processes instead of threads, which may be waiting for the GIL."""
        ladder = self.space.processes
        if self.kind != "threads" or len(ladder) < 2:
            return False
        concurrency = self.setting.concurrency
        slow_each_other = (
            self._work is None or seen.making > HINDERED * self._work or seen.busy_share(concurrency) < BUSY
        )
        if not (slow_each_other or _concurrency(ladder[-1]) > concurrency) or not self._may_try("processes", seen):
            return False
        num_workers, num_threads = ladder[min(len(ladder), self._wanted(seen)) - 1]
        setting = replace(self.setting, num_workers=num_workers, num_threads=num_threads)
        return self._try("processes", setting, seen, kind="processes")

    def _ahead(self, seen: Observation) -> bool:
        most = min(self.space.ahead[1], seen.most_ahead // max(1, self.setting.num_workers))
        wanted = min(most, 2 * self.setting.prefetch_factor)
        if wanted <= self.setting.prefetch_factor or not self._may_try("ahead", seen):
            return False
        return self._try("ahead", replace(self.setting, prefetch_factor=wanted), seen)

    def _less(self, seen: Observation, concurrency: int) -> bool:
        """Try this many workers, if that is fewer than now."""
        ladder, at = self.space.candidates(self.kind), self._level()
        level = next((level for level in range(at) if _concurrency(ladder[level]) >= concurrency), at)
        if level == at or not self._may_try("less", seen):
            return False
        if HOPE * min(self._makings) / _concurrency(ladder[level]) > self._limit("less", seen):
            return False  # too few even without contention
        if self._anchor is None or _has_changed(self._anchor, seen, of_work=False):
            self._anchor = seen
        return self._try("less", self._on(level), seen)

    def begin_iteration(self) -> str | None:
        """Try loading inline, which can only begin with an iteration. Return the reason if the setting has changed.

        That is for batches that cost almost nothing compared with the step or with sending them.
        """
        seen, inline = self._latest, replace(self.setting, num_workers=0, num_threads=0)
        if seen is None or self._trial is not None or self.setting.is_inline:
            return None
        before, self._before_workers = self._before_workers, None
        if before is not None and seen.period > before.period * (1 - GAIN):
            self.setting = inline
            return f"{_ms(seen.period)} per batch with workers, {_ms(before.period)} without"
        if not self.space.can_be_inline or seen.making > INLINE_SECONDS:
            return None
        if seen.step + seen.making > seen.period * (1 + LOSS) or not self._may_try("inline", seen):
            return None
        if not self._try("inline", inline, seen):
            return None
        return f"loading a batch takes {_ms(seen.making)}, the training step {_ms(seen.step)}"

    def _workers(self, seen: Observation) -> str | None:
        """Try workers instead of loading inline, if that would pay off."""
        ladder = self.space.candidates(self.kind)
        if not ladder or not seen.can_have_workers:
            return None
        enough = ceil(RESERVE * seen.making / seen.step) if seen.step > 0 else MOST_AT_ONCE
        level = next(
            (at for at, level in enumerate(ladder) if _concurrency(level) >= min(enough, MOST_AT_ONCE)), len(ladder) - 1
        )
        expected = max(seen.step, seen.making / _concurrency(ladder[level])) + HANDOVER_SECONDS
        if expected > WORTH_IT * seen.period or not self._may_try("workers", seen):
            return None
        if not self._try("workers", self._on(level), seen):
            return None
        return f"loading a batch takes {_ms(seen.making)}, the training step {_ms(seen.step)}"

    # ---------------------------------------------------------------- candidate lists

    @property
    def is_at_the_top(self) -> bool:
        """Whether no more workers are allowed."""
        return not self.setting.is_inline and self._level() == len(self.space.candidates(self.kind)) - 1

    def _level_of(self, setting: Parallelism) -> int:
        """Return the level of a setting on its ladder; between two levels, the lower one."""
        ladder = self.space.candidates(self.kind)
        return max((at for at, level in enumerate(ladder) if _concurrency(level) <= setting.concurrency), default=0)

    def _level(self) -> int:
        return self._level_of(self.setting)

    def _on(self, level: int) -> Parallelism:
        num_workers, num_threads = self.space.candidates(self.kind)[level]
        return replace(self.setting, num_workers=num_workers, num_threads=num_threads)


def _concurrency(level: Candidate) -> int:
    return max(1, level[0]) * max(1, level[1])


def _has_changed(then: Observation, now: Observation, *, of_work: bool = True) -> bool:
    """Return whether the step time, or the cost of a batch, has changed."""

    def differ(a: float, b: float) -> bool:
        return max(a, b) > CHANGED * min(a, b) and max(a, b) > 0.02 * now.period

    return differ(then.step, now.step) or (of_work and differ(then.making, now.making))


def _together(looks: list[Observation]) -> Observation:
    """Combine several windows into one."""
    if len(looks) == 1:
        return looks[0]
    last = looks[-1]
    periods = [look.period for look in looks]
    mean = fmean(periods)
    between = (sum((period - mean) ** 2 for period in periods) / (len(looks) - 1) / len(looks)) ** 0.5 / mean
    within = fmean(look.noise for look in looks) / len(looks) ** 0.5
    return replace(
        last,
        num_batches=sum(look.num_batches for look in looks),
        wait=fmean(look.wait for look in looks),
        stall=fmean(look.stall for look in looks),
        step=fmean(look.step for look in looks),
        making=fmean(look.making for look in looks),
        noise=max(between, within),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
