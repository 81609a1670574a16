"""Map values to positions on a chart, and choose round tick values."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between two ends to 0..1; values outside are clamped."""

    low: float
    high: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high = (log10(self.low), log10(self.high)) if self.is_log else (self.low, self.high)
        at = (log10(value) if value > 0 else low) if self.is_log else value
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.0

    def ticks(self, about: int = 5) -> list[float]:
        """Return about that many round values between the ends."""
        return _decades(self.low, self.high, about) if self.is_log else _steps(self.low, self.high, about)


def reaching(value: float) -> Scale:
    """Return a scale from 0 to a value, or to 1 if the value is 0."""
    return Scale(0.0, value if value > _NOTHING else 1.0)


_NOTHING = 1e-30
"""Ends closer than this count as equal."""


def _steps(low: float, high: float, about: int) -> list[float]:
    if not high - low > _NOTHING:
        return [low]
    step = round_step((high - low) / max(1, about))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def round_step(raw: float) -> float:
    """Round up to the next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def byte_ticks(high: float, about: int = 4) -> list[float]:
    """Return round numbers of bytes from 0 to `high`."""
    step = round_step(high / about)
    if step * 2 > high:  # a tick only at 0 is useless
        step /= 2
    return [number * step for number in range(int(high / step + 1e-9) + 1)]


_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def time_ticks(low: float, high: float, about: int = 6) -> tuple[list[float], float]:
    """Return round times between two (in seconds, minutes or hours), and their spacing."""
    if not high - low > _NOTHING:
        return [low], 1.0
    raw = (high - low) / max(1, about)
    days = 86400 * ceil(raw / 86400)
    step: float = round_step(raw) if raw <= 1 else next((one for one in _TIMES if one >= raw), days)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)], step


def _decades(low: float, high: float, about: int) -> list[float]:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    every = max(1, ceil((last - first) / max(1, about)))
    tens = [10.0**power for power in range(first, last + 1, every)]
    if every == 1 and len(tens) <= about // 2 + 1:
        tens = [factor * ten for ten in tens for factor in (1, 2, 5)]
    return [value for value in tens if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
