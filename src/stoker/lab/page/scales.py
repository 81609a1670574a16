"""Map values to positions on a chart, choose round tick values, and draw paths. Positions go from 0 to 1, y upward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from stoker.foundation.text import format_moment
from stoker.lab.page.templating import short

Tick = tuple[float, str]
"""Position along an axis, and label."""

_NOTHING = 1e-30
"""Ends closer than this count as equal."""


@dataclass(frozen=True, slots=True)
class AxisScale:
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
        if self.is_log:
            return _decades(self.low, self.high, about)
        if not self.high - self.low > _NOTHING:
            return [self.low]
        return _multiples(round_step((self.high - self.low) / max(1, about)), self.low, self.high)

    def time_axis(self) -> list[Tick]:
        """Return labels for a scale of seconds."""
        ticks, step = time_ticks(self.low, self.high)
        return [(self(at), format_moment(at, step=step, high=self.high)) for at in ticks]


def reaching(value: float) -> AxisScale:
    """Return a scale from 0 to a value, or to 1 if the value is 0."""
    return AxisScale(0.0, value if value > _NOTHING else 1.0)


def round_step(raw: float) -> float:
    """Round up to the next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def byte_ticks(high: float, about: int = 4) -> list[float]:
    """Return round numbers of bytes from 0 to `high`."""
    step = round_step(high / about)
    if step * 2 > high:  # a tick only at 0 is useless
        step /= 2
    return _multiples(step, 0.0, high)


_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def time_ticks(low: float, high: float, about: int = 6) -> tuple[list[float], float]:
    """Return round times between two (in seconds, minutes or hours), and their spacing."""
    if not high - low > _NOTHING:
        return [low], 1.0
    raw = (high - low) / max(1, about)
    days = 86400 * ceil(raw / 86400)
    step: float = round_step(raw) if raw <= 1 else next((one for one in _TIMES if one >= raw), days)
    return _multiples(step, low, high), step


def _multiples(step: float, low: float, high: float) -> list[float]:
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, about: int) -> list[float]:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    every = max(1, ceil((last - first) / max(1, about)))
    tens = [10.0**power for power in range(first, last + 1, every)]
    if every == 1 and len(tens) <= about // 2 + 1:
        tens = [factor * ten for ten in tens for factor in (1, 2, 5)]
    return [value for value in tens if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def line_path(xs: Sequence[float], ys: Sequence[float], *, height: int) -> str:
    """Return the points of a line as an SVG path, without the letter that starts it."""
    return "L".join(f"{short(1000 * x)} {short(height * (1 - y))}" for x, y in zip(xs, ys))


def area_path(xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float], *, height: int) -> str:
    """Return the area between two lines as an SVG path."""
    back = line_path([*reversed(xs)], [*reversed(bottoms)], height=height)
    return f"M{line_path(xs, tops, height=height)}L{back}Z"


def column_path(edges: Sequence[float], tops: Sequence[float], *, height: int, base: float = 0.0) -> str:
    """Return adjacent columns as an SVG path; there is one more edge than tops."""
    ground = short(height * (1 - base))
    steps = "".join(f"V{short(height * (1 - top))}H{short(1000 * right)}" for right, top in zip(edges[1:], tops))
    return f"M{short(1000 * edges[0])} {ground}{steps}V{ground}Z"
