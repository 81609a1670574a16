"""Who decides for `"auto"`: one window of batches after the other, by what was measured and nothing else.

A pilot looks at windows of batches and says with which setting the next one is made. It has neither a clock nor random
numbers: the same windows make it decide the same. Every change is a trial, which the window after it judges by the
*period*, the time from batch to batch: waiting and the trainer's own step together, so that hands which take from the
trainer what they save it are not kept.

- The trainer waits: more hands, as long as the period falls; more in flight, where hands are idle all the same.
- The machine is crowded, and the trainer suffers from it: fewer hands, if the period does not get worse.
- Nobody waits, and hands are idle: fewer, so that what costs nothing is not used either.

What has failed is tried again later and later, or at once where the work or the step has changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from stoker.tuning.batch_window import Observation
from stoker.tuning.parallelism import INLINE_SECONDS, Candidate, Kind, Parallelism, SearchSpace

NEGLIGIBLE = 0.03
"""A part of the time that nobody minds waiting."""

GAIN, LOSS = 0.02, 0.02
"""What more of something has to bring, and what less of it may cost, as a part of the period."""

DRIFT = 0.03
"""What doing with less, step by step, may cost all in all."""

RESERVE = 1.1
"""Hands are counted so that they are busy for 1 / 1.1 of the time."""

BUSY = 0.85
"""Hands that work less than this while the trainer waits are waiting for something else than for each other."""

CROWDED, DELAYED = 0.75, 0.02
"""The trainer suffers where so much of the cores is in use, and its thread waits for one for more than this part of the
time, or its step has become longer by as much.
"""

FULL = 0.95
"""Hands that are busy for more than this are too few, even if what lies ready hides it for a while."""

HANDOVER_SECONDS = 1.5e-4
"""What a batch that others have made costs the trainer: it has to be woken up, to receive it and to unpack it."""

WORTH_IT, MOST_AT_ONCE = 0.9, 4
"""What the period has to become for others to be started, and how many of them are at the most."""

HINDERED = 1.1
"""Threads that take so many times as long as one alone are in each other's way."""

CHANGED = 1.25
"""Work or a step so many times as long, or as short, as it was: what is known is of another time."""

EASED = 0.75
"""How many hands are left to a trainer that suffers."""

HOPE = 0.7
"""What a batch might cost at the best, as a part of the least that was seen."""

FRESH = 32
"""Windows for which it is believed what was seen with a setting."""

MOST_LOOKS = 3
"""Windows that a trial gets where one leaves it open."""

MOST_PATIENCE = 512
"""Windows between two tries of the same, when others have failed."""

_PATIENCE: dict[str, int] = {"more": 4, "less": 4, "ahead": 4, "processes": 16, "inline": 16, "away": 4}


@dataclass(slots=True)
class _Failure:
    """A goal that was not reached, and when it is worth another try."""

    seen: Observation
    patience: int
    left: int


@dataclass(slots=True)
class _Trial:
    """A change that the next windows judge."""

    goal: str
    before: Parallelism
    kind: Kind
    """That of before."""
    seen: Observation
    """Before."""
    looks: list[Observation]


class Autotuner:
    """Decides on the setting, within `room`, from `start` on. `work` is what a batch costs one hand, if known."""

    def __init__(self, room: SearchSpace, start: Parallelism, *, kind: Kind, work: float | None = None) -> None:
        self.room, self.setting, self._work = room, start, work
        self.kind: Kind = kind
        """On which ladder the setting is; inline, which one it would be on."""
        self._trial: _Trial | None = None
        self._failures: dict[str, _Failure] = {}
        self._barrier: int | None = None
        """A rung that was too much, as long as that is known."""
        self._anchor: Observation | None = None
        """What was seen before it was tried to do with less."""
        self._best_step: float | None = None
        """The shortest that was seen, for as long as that could be had."""
        self._known: dict[Parallelism, tuple[int, Observation]] = {}
        """What was seen last with each setting, and in which window."""
        self._num_windows = 0
        self._makings: deque[float] = deque(maxlen=FRESH)
        """What a batch has cost in the latest windows."""

    def limit(self, num_workers: int, setting: Parallelism) -> None:
        """Choose no more workers than this from now on, for more could not be started. Now there is `setting`."""
        room = self.room
        self.room = replace(
            room,
            processes=tuple(rung for rung in room.processes if rung[0] <= num_workers),
            threads=tuple(rung for rung in room.threads if rung[0] <= num_workers),
        )
        self.setting, self._trial = setting, None

    def observe(self, seen: Observation) -> str | None:
        """Take in a window. Return why the setting has changed, or None if it has not."""
        trial = self._trial
        self._num_windows += 1
        if trial is not None:
            trial.looks.append(seen)
            seen = _together(trial.looks)
        self._known[self.setting] = (self._num_windows, seen)
        self._makings.append(seen.making)
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
        """Whether the present setting is on trial."""
        return self._trial is not None

    # ---------------------------------------------------------------- trials

    def _judged(self, trial: _Trial, seen: Observation) -> bool | None:
        """Return whether a trial was good; None if that is not certain yet."""
        limit = self._limit(trial.goal, trial.seen)
        away = abs(seen.period - limit) / trial.seen.period
        noise = (seen.noise**2 + trial.seen.noise**2) ** 0.5
        if away < noise and len(trial.looks) < MOST_LOOKS:
            return None
        if trial.goal == "less" and trial.seen.stall_share < NEGLIGIBLE:
            return seen.period <= limit and seen.busy_share(self.setting.num_hands) < FULL
        return seen.period <= limit

    def _limit(self, goal: str, before: Observation) -> float:
        """Return the longest period with which a goal counts as reached."""
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

    def _taken_back(self, trial: _Trial, seen: Observation) -> str:
        tried, self.setting, self.kind = self.setting, trial.before, trial.kind
        told = f"{_ms(seen.period)} a batch with {tried}, {_ms(trial.seen.period)} without"
        if trial.goal == "more":
            self._barrier = self._rung_of(tried)
            between = (self._rung() + self._barrier) // 2
            # if it was not even harmful, less of it would not be of use either
            is_harmful = seen.period > trial.seen.period * (1 + GAIN)
            if is_harmful and between > self._rung() and self._try("more", self._on(between), trial.seen):
                return f"{told}: the middle"
        elif trial.goal == "less":
            self._best_step = trial.seen.step  # it is the step's own time, then, and nobody's fault
            told += f"; hands were busy for {seen.busy_share(tried.num_hands):.0%} of the time"
        elif trial.goal == "inline" and not seen.can_leave:
            self.setting = tried
            return f"{told}, and no worker can be had any more"
        self._fail(trial.goal, trial.seen)
        return f"{told}: back"

    def _fail(self, goal: str, seen: Observation, *, is_tried: bool = True) -> None:
        failed = self._failures.get(goal)
        patience = _PATIENCE[goal] if failed is None else failed.patience
        if failed is not None and is_tried:
            patience = min(2 * patience, MOST_PATIENCE)
        self._failures[goal] = _Failure(seen, patience, patience)

    def _try(self, goal: str, setting: Parallelism, seen: Observation, *, kind: Kind | None = None) -> bool:
        """Change the setting for a trial, unless it is known what would come of it."""
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
            return self._away(seen)
        least, _ = self.room.ahead
        most = max(least, seen.most_ahead // max(1, self.setting.num_workers))
        if self.setting.prefetch_factor > most:
            self.setting = replace(self.setting, prefetch_factor=most)
            return "there is not the memory for more batches in flight"
        if self._best_step is None or seen.step < self._best_step:
            self._best_step = seen.step
        inline = self._inline(seen)
        if inline is not None:
            return inline
        hands = self.setting.num_hands
        is_slowed = seen.delay_share > DELAYED or seen.step - self._best_step > DELAYED * seen.period
        if seen.cpu_share > CROWDED and is_slowed and self._less(seen, int(EASED * hands)):
            return (
                f"{seen.cpu_share:.0%} of the cores are in use, and the trainer's thread has none for "
                f"{seen.delay_share:.0%} of {_ms(seen.period)}; its step takes {_ms(seen.step)}, and has taken "
                f"{_ms(self._best_step)}"
            )
        if seen.stall_share > NEGLIGIBLE:
            return self._hurried(seen)
        num_needed = ceil(RESERVE * seen.making / seen.period) if seen.period else 1
        if self._less(seen, max(num_needed, hands // 2)):
            return f"nobody waits, and hands are busy for {seen.busy_share(hands):.0%} of {_ms(seen.period)}"
        return None

    def _hurried(self, seen: Observation) -> str | None:
        """The trainer waits."""
        hands = self.setting.num_hands
        why = (
            f"the trainer waits {seen.stall_share:.0%} of {_ms(seen.period)}, and hands are busy for "
            f"{seen.busy_share(hands):.0%} of the time"
        )
        is_idle = seen.busy_share(hands) < BUSY
        if is_idle and not (self.is_at_the_top and self.kind == "threads") and self._ahead(seen):
            return why
        if self._more(seen):
            return why
        if self._processes(seen):
            return f"{why}; more threads do not help"
        return why if is_idle and self._ahead(seen) else None

    def _more(self, seen: Observation) -> bool:
        ladder, at = self.room.ladder(self.kind), self._rung()
        top = len(ladder) - 1
        if at >= top or not self._may_try("more", seen):
            return False
        if self._barrier is not None and "more" in self._failures:
            self._barrier = None  # that was long ago
        if self._barrier is not None:
            top = self._barrier - 1
            if at >= top:
                self._fail("more", seen)
                return False
        wanted = self._wanted(seen)
        rung = next((rung for rung in range(at + 1, top) if _hands(ladder[rung]) >= wanted), top)
        return self._try("more", self._on(rung), seen)

    def _wanted(self, seen: Observation) -> int:
        """Return how many hands would be enough, more than there are and at most twice as many."""
        hands = self.setting.num_hands
        enough = seen.making / seen.step if seen.step > 0 else 2 * hands
        return min(max(ceil(RESERVE * enough), hands + 1), 2 * hands)

    def _processes(self, seen: Observation) -> bool:
        """Threads have brought what they could: perhaps they wait for the interpreter's lock."""
        ladder = self.room.processes
        if self.kind != "threads" or len(ladder) < 2:
            return False
        hands = self.setting.num_hands
        are_in_the_way = self._work is None or seen.making > HINDERED * self._work or seen.busy_share(hands) < BUSY
        if not (are_in_the_way or _hands(ladder[-1]) > hands) or not self._may_try("processes", seen):
            return False
        num_workers, num_threads = ladder[min(len(ladder), self._wanted(seen)) - 1]
        setting = replace(self.setting, num_workers=num_workers, num_threads=num_threads)
        return self._try("processes", setting, seen, kind="processes")

    def _ahead(self, seen: Observation) -> bool:
        most = min(self.room.ahead[1], seen.most_ahead // max(1, self.setting.num_workers))
        wanted = min(most, 2 * self.setting.prefetch_factor)
        if wanted <= self.setting.prefetch_factor or not self._may_try("ahead", seen):
            return False
        return self._try("ahead", replace(self.setting, prefetch_factor=wanted), seen)

    def _less(self, seen: Observation, num_hands: int) -> bool:
        """Try to do with so many hands, if that is less than there are."""
        ladder, at = self.room.ladder(self.kind), self._rung()
        rung = next((rung for rung in range(at) if _hands(ladder[rung]) >= num_hands), at)
        if rung == at or not self._may_try("less", seen):
            return False
        if HOPE * min(self._makings) / _hands(ladder[rung]) > self._limit("less", seen):
            return False  # however little they are in each other's way, they are too few
        if self._anchor is None or _has_changed(self._anchor, seen, of_work=False):
            self._anchor = seen
        return self._try("less", self._on(rung), seen)

    def _inline(self, seen: Observation) -> str | None:
        """Try to do without anybody, if making a batch is next to nothing beside the step, or beside the hand-over."""
        if not self.room.can_be_inline or seen.making > INLINE_SECONDS:
            return None
        if seen.step + seen.making > seen.period * (1 + LOSS) or not self._may_try("inline", seen):
            return None
        if not self._try("inline", replace(self.setting, num_workers=0, num_threads=0), seen):
            return None
        return f"making a batch takes {_ms(seen.making)}, and the trainer's step {_ms(seen.step)}"

    def _away(self, seen: Observation) -> str | None:
        """Batches are made here; let others make them, if that pays."""
        ladder = self.room.ladder(self.kind)
        if not ladder or not seen.can_leave:
            return None
        enough = ceil(RESERVE * seen.making / seen.step) if seen.step > 0 else MOST_AT_ONCE
        rung = next(
            (at for at, rung in enumerate(ladder) if _hands(rung) >= min(enough, MOST_AT_ONCE)), len(ladder) - 1
        )
        expected = max(seen.step, seen.making / _hands(ladder[rung])) + HANDOVER_SECONDS
        if expected > WORTH_IT * seen.period or not self._may_try("away", seen):
            return None
        if not self._try("away", self._on(rung), seen):
            return None
        return f"making a batch takes {_ms(seen.making)}, and the trainer's step {_ms(seen.step)}"

    # ---------------------------------------------------------------- ladders

    @property
    def is_at_the_top(self) -> bool:
        """Whether there are as many hands as there may be."""
        return not self.setting.is_inline and self._rung() == len(self.room.ladder(self.kind)) - 1

    def _rung_of(self, setting: Parallelism) -> int:
        """Return where a setting is on its ladder; between two rungs, on the lower one."""
        ladder = self.room.ladder(self.kind)
        return max((at for at, rung in enumerate(ladder) if _hands(rung) <= setting.num_hands), default=0)

    def _rung(self) -> int:
        return self._rung_of(self.setting)

    def _on(self, rung: int) -> Parallelism:
        num_workers, num_threads = self.room.ladder(self.kind)[rung]
        return replace(self.setting, num_workers=num_workers, num_threads=num_threads)


def _hands(rung: Candidate) -> int:
    return max(1, rung[0]) * max(1, rung[1])


def _has_changed(then: Observation, now: Observation, *, of_work: bool = True) -> bool:
    """Return whether the trainer's step, or the work on a batch, is another one than it was."""

    def differ(a: float, b: float) -> bool:
        return max(a, b) > CHANGED * min(a, b) and max(a, b) > 0.02 * now.period

    return differ(then.step, now.step) or (of_work and differ(then.making, now.making))


def _together(looks: list[Observation]) -> Observation:
    """Return several windows as one."""
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
