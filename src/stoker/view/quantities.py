"""Measured numbers as people read them, with a unit that suits all of them and no more digits than they are worth."""

from __future__ import annotations

from math import floor, log10

BYTES = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def significant(value: float, deviation: float | None = None) -> str:
    """Return a number with three digits, or as many as its standard deviation leaves sure: `1,234`, `0.0123`."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - floor(log10(abs(float(f"{value:.3g}")))))  # 99.97 is 100, not 100.0
    if deviation:
        decimals = min(decimals, max(0, 1 - floor(log10(deviation))))
    return f"{value:,.{min(decimals, 9)}f}"


def with_deviation(value: float | None, deviation: float | None, *, scale: float = 1.0) -> str:
    """Return `41.2 ± 0.3`; without a deviation the number alone, and a dash where there is none."""
    if value is None:
        return "-"
    if not deviation:
        return significant(value / scale)
    told = significant(value / scale, deviation / scale)
    decimals = len(told.partition(".")[2])
    return f"{told} ± {deviation / scale:,.{max(decimals, _decimals(deviation / scale))}f}"


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a duration is told, and its seconds: `("ms", 0.001)`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return unit, size
    return "ns", 1e-9


def seconds_told(seconds: float | None) -> str:
    """Return a duration: `41.2 ms`."""
    if seconds is None:
        return "-"
    unit, size = time_unit(seconds)
    return f"{significant(seconds / size)} {unit}"


def bytes_told(num_bytes: float | None, most: float | None = None) -> str:
    """Return a size: `182 MB`; with one that is no smaller beside it, unless it is told alike: `49.1 / 52.0 MB`."""
    if num_bytes is None:
        return "-"
    unit, size = next((pair for pair in BYTES if abs(num_bytes) >= pair[1]), ("B", 1.0))
    told = significant(num_bytes / size) if size > 1 else f"{num_bytes:.0f}"
    beside = told if most is None else significant(most / size)
    return f"{told} {unit}" if beside == told else f"{told} / {beside} {unit}"


def _decimals(deviation: float) -> int:
    """Return the decimals that show one digit of a deviation."""
    return max(0, -floor(log10(deviation))) if deviation > 0 else 0
