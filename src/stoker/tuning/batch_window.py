"""Windows of batches and their measurements, on which `"auto"` bases its decisions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, stdev

LEAST_BATCHES, LEAST_SECONDS = 16, 0.25
"""Minimum size of a window. It also contains at least twice the number of batches in flight."""

LEAST_OF_SLOW, SLOW_SECONDS = 6, 4.0
"""If batches are slow, this many are enough after this time."""

STARVING = 0.4
"""A training loop that waits for this share of the time needs no long window."""

PAUSE_SECONDS, PAUSE_TIMES, NUM_REMEMBERED = 1.0, 10, 32
"""A step that takes longer than this, and this many times as long as any recent step, is validation or a checkpoint."""

CLIPPED_TIMES = 3
"""The longest step of a window counts at most this many times the second longest: it may be an outlier."""

NUM_BLOCKS = 4
"""Parts of a window; the spread of their means is the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Measurements of a window. Times are in seconds per batch."""

    num_batches: int
    wait: float
    """Time that the training loop waited for a batch."""
    stall: float
    """The part of it during which the batch was not loaded yet."""
    step: float
    """Step time of the training loop."""
    making: float
    """Work on a batch, summed over all workers."""
    noise: float = 0.0
    """Standard error of the period, as a share of it."""
    cpu_share: float = 0.0
    """Share of the usable cores in use, by any process."""
    delay_share: float = 0.0
    """Share of the time that the training thread was ready to run but had no core."""
    most_ahead: int = 1 << 30
    """Number of batches in flight that fit into memory."""
    can_have_workers: bool = True
    """Whether the training process can still start worker processes after it has read data itself."""

    @property
    def period(self) -> float:
        """Time from batch to batch."""
        return self.wait + self.step

    @property
    def stall_share(self) -> float:
        """Share of the time that the training loop waited for a batch to be loaded."""
        return self.stall / self.period if self.period else 0.0

    def busy_share(self, concurrency: int) -> float:
        """Return the share of the time that this many workers were busy."""
        return min(1.0, self.making / (concurrency * self.period)) if concurrency and self.period else 0.0


class BatchWindow:
    """Collects timings of batches until a window is complete. Costs a microsecond per batch."""

    def __init__(self, *, least_seconds: float = LEAST_SECONDS) -> None:
        self._least_seconds = least_seconds
        self._last: float | None = None
        self._num_since_pause = 0
        self._latest: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self.begin(0)

    def begin(self, num_passed: int, *, num_in_flight: int = 0) -> None:
        """Begin a window after ignoring `num_passed` batches, which were already in flight."""
        self._num_left, self._num_in_flight = num_passed, num_in_flight
        self.num_seen = 0
        self._wait = self._stall = self._step = self._making = 0.0
        self._longest = self._second = 0.0
        self._blocks = _Blocks()

    def pause(self) -> None:
        """Note that an iteration ends or begins: the time between two batches is not a step, and workers warm up.

        If iterations are short, only a third of one is ignored.
        """
        self._last = None
        num_ignored = self._num_in_flight + 2
        if self._num_since_pause:
            num_ignored = min(num_ignored, self._num_since_pause // 3)
        self._num_left = max(self._num_left, num_ignored)
        self._num_since_pause = 0

    def add(self, asked: float, handed: float, made: float, making: float) -> bool:
        """Add a batch; return whether the window is complete.

        `made` is when it was ready, `making` the work on it.
        """
        last, self._last = self._last, handed
        self._num_since_pause += 1
        if last is None:
            return False
        step, wait = asked - last, handed - asked
        if step > PAUSE_SECONDS and len(self._latest) > 1 and step > PAUSE_TIMES * max(self._latest):
            self._num_left = max(self._num_left, self._num_in_flight + 1)  # all in flight were finished meanwhile
        self._latest.append(step)
        if self._num_left > 0:
            self._num_left -= 1
            return False
        self.num_seen += 1
        self._step += step
        self._wait += wait
        if made > asked:
            self._stall += min(made - asked, wait)
        self._making += making
        if step > self._second:
            self._longest, self._second = (step, self._longest) if step > self._longest else (self._longest, step)
        self._blocks.add(step + wait)
        return self.num_seen >= LEAST_OF_SLOW and self._is_enough(self.num_seen)

    def _is_enough(self, count: int) -> bool:
        twice, seconds = 2 * self._num_in_flight, self._wait + self._step
        if seconds < self._least_seconds:
            return False
        if count >= max(LEAST_BATCHES, twice) or (seconds >= SLOW_SECONDS and count >= twice // 2):
            return True
        return self._wait > STARVING * seconds and count >= twice

    def observation(
        self,
        *,
        cpu_share: float = 0.0,
        delay_share: float = 0.0,
        most_ahead: int = 1 << 30,
        can_have_workers: bool = True,
    ) -> Observation:
        """Return the measurements of the window, together with those of the caller."""
        count = self.num_seen
        odd = max(0.0, self._longest - CLIPPED_TIMES * self._second)
        return Observation(
            num_batches=count,
            wait=self._wait / count,
            stall=self._stall / count,
            step=(self._step - odd) / count,
            making=self._making / count,
            noise=self._blocks.noise(),
            cpu_share=cpu_share,
            delay_share=delay_share,
            most_ahead=most_ahead,
            can_have_workers=can_have_workers,
        )


class _Blocks:
    """Sums of consecutive numbers, with block sizes that double so that there are at most `MOST` sums."""

    MOST = 128

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._size, self._open, self._num_open = 1, 0.0, 0

    def add(self, value: float) -> None:
        self._open += value
        self._num_open += 1
        if self._num_open < self._size:
            return
        sums = self._sums
        sums.append(self._open)
        self._open, self._num_open = 0.0, 0
        if len(sums) == self.MOST:
            self._sums = [one + other for one, other in zip(sums[::2], sums[1::2])]
            self._size *= 2

    def noise(self) -> float:
        """Return the standard error of the mean, as a share of it, from the means of parts of the window.

        Neighboring batches are not independent: several workers may deliver theirs at once.
        """
        size = len(self._sums) // NUM_BLOCKS
        means = [fmean(self._sums[at : at + size]) for at in range(0, size * NUM_BLOCKS, size)] if size else []
        whole = fmean(means) if means else 0.0
        return float(stdev(means) / NUM_BLOCKS**0.5 / whole) if whole > 0 else 0.0
