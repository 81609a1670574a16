"""Numbers and lists as people read them: one way to write each for errors, reports, tables, plots and pages.

Three digits that count, one space before the unit, decimal units for bytes, no space before a percent sign. What is not
known is a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isfinite, log10

UNKNOWN = "-"
TIMES = "\N{MULTIPLICATION SIGN}"

_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many digits that count, and commas: `0.0123`, `1.23`, `123`, `12,346`."""
    if value is None or not isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    rounded = abs(float(f"{value:.{digits}g}"))  # 99.97 is 100, not 100.0
    if rounded < 1e-4:
        return f"{value:.1e}"
    decimals = max(0, digits - 1 - floor(log10(rounded)))
    return f"{value:,.{decimals}f}"


def format_duration(seconds: float | None, digits: int = 3) -> str:
    """Return a time with the unit that suits it: `31 µs`, `41.2 ms`, `2.1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"-{format_duration(-seconds, digits)}"
    if seconds >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    if seconds >= 120 and digits < 3:
        return f"{seconds / 60:.0f} min"
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds == 0:
        return "0 s"
    unit, size = time_unit(seconds)
    return f"{trim_zeros(format_number(seconds / size, digits if size > 1e-9 else 2))} {unit}"


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit that suits a time, and its size in seconds: `("ms", 0.001)`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:  # what rounds up to one of them is one
            return unit, size
    return "ns", 1e-9


def format_moment(at: float, *, step: float, high: float) -> str:
    """Return a time on an axis that reaches `high`, with enough digits to differ from the next one, `step` later."""
    if step < 1:
        factor, unit = (1e3, "ms") if high < 1 else (1.0, "s")
        return f"{at * factor:,.{max(0, ceil(-log10(step * factor) - 1e-9))}f} {unit}"
    whole = round(at)
    if high < 120 or not whole:
        return f"{whole} s"
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "min"), (0 if whole >= 3600 else whole % 60, "s"))
    return " ".join(f"{value} {unit}" for value, unit in parts if value)


def format_bytes(num_bytes: float | None) -> str:
    """Return a size in decimal units: `512 bytes`, `3.25 MB`, `1.5 GB`."""
    if num_bytes is None or not isfinite(num_bytes):
        return UNKNOWN
    value = float(num_bytes)
    for unit in _BYTE_UNITS:
        if abs(value) < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        value /= 1000
    if unit == "bytes":
        return f"{value:.0f} byte{'' if round(value) == 1 else 's'}"
    return f"{trim_zeros(format_number(value))} {unit}"


def format_percent(share: float | None) -> str:
    """Return a part of 1 in percent: `0.4%`, `41%`."""
    if share is None or not isfinite(share):
        return UNKNOWN
    percent = 100 * share
    if 0 < abs(percent) < 0.05:
        return "under 0.1%"
    return f"{percent:.1f}%" if abs(percent) < 9.95 and percent != int(percent) else f"{percent:.0f}%"


def format_ratio(ratio: float | None) -> str:
    """Return how many times as much: 1.5 times, with a sign for it."""
    if ratio is None or not isfinite(ratio):
        return UNKNOWN
    if 0 < ratio < 0.1:
        return f"1/{format_number(1 / ratio, 2)}{TIMES}"
    return f"{trim_zeros(format_number(ratio, 3 if 1 <= ratio < 10 else 2))}{TIMES}"


def format_count(number: float | None, noun: str = "", plural: str | None = None) -> str:
    """Return a number of things: `1 batch`, `2,000 batches`; without a noun the number alone."""
    if number is None or not isfinite(number):
        return UNKNOWN
    if not noun:
        return f"{number:,.0f}"
    shown = f"{number:,.0f}" if number == int(number) else format_number(number)
    return f"{shown} {noun if number == 1 else plural or noun + 's'}"


def format_cores(cores: float | None) -> str:
    """Return how many cores' worth of time: `2.4 cores`."""
    if cores is None or not isfinite(cores):
        return UNKNOWN
    return f"{trim_zeros(format_number(cores, 2))} cores"


def format_spread(value: float | None, deviation: float | None, *, scale: float = 1.0) -> str:
    """Return a mean with its standard deviation, `41.2 ± 0.3`, and no more digits than that leaves certain."""
    if value is None:
        return UNKNOWN
    value /= scale
    if not deviation or not value:
        return format_number(value)
    deviation /= scale
    rounded = abs(float(f"{value:.3g}"))
    decimals = max(0, min(2 - floor(log10(rounded)), 1 - floor(log10(deviation))))
    return f"{value:,.{decimals}f} ± {deviation:,.{max(decimals, -floor(log10(deviation)))}f}"


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Return things as a sentence lists them: `a, b and c`."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def trim_zeros(number: str) -> str:
    """Return a written number without zeros at the end of its fraction: `2.00` is `2`."""
    if "." not in number or "e" in number:
        return number
    return number.rstrip("0").rstrip(".")
