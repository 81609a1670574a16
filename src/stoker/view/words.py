"""Numbers in units that people read; what is not known is a dash."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, log10

NONE = "\N{EN DASH}"
_GAP = "\N{NO-BREAK SPACE}"


def digits(value: float, num: int = 3) -> str:
    """Return a number with so many digits that count, and commas: `0.0123`, `1.23`, `123`, `12,346`."""
    if not isfinite(value):
        return NONE
    if value == 0:
        return "0"
    rounded = abs(float(f"{value:.{num}g}"))  # 99.97 is 100, and not 100.0
    size = len(str(int(rounded))) if rounded >= 1 else 0
    if size >= num:
        return f"{value:,.0f}"
    if size:
        return f"{value:.{num - size}f}"
    return f"{value:.{num}g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def duration(seconds: float | None, num: int = 3) -> str:
    """Return a time with the unit that suits it: `31 µs`, `41.2 ms`, `2.10 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None or not isfinite(seconds):
        return NONE
    size = abs(seconds)
    if size >= 3600:
        hours, minutes = divmod(round(size / 60), 60)
        return _signed(seconds, f"{hours:,}{_GAP}h{_GAP}{minutes}{_GAP}min" if minutes else f"{hours:,}{_GAP}h")
    if size >= 120:
        minutes, rest = divmod(round(size), 60)
        return _signed(seconds, f"{minutes}{_GAP}min{_GAP}{rest}{_GAP}s" if rest else f"{minutes}{_GAP}min")
    if size == 0:
        return f"0{_GAP}s"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if size * factor >= 0.9995:
            return f"{trimmed(digits(seconds * factor, num))}{_GAP}{unit}"
    return f"{digits(seconds * 1e9, 2)}{_GAP}ns"


def moment(at: float, *, step: float, high: float) -> str:
    """Return a time on an axis that reaches `high`, so exactly that it differs from the next one, `step` later."""
    if step < 1:
        factor, unit = (1e3, "ms") if high < 1 else (1.0, "s")
        return f"{at * factor:,.{max(0, ceil(-log10(step * factor) - 1e-9))}f}{_GAP}{unit}"
    whole = round(at)
    if high < 120 or not whole:
        return f"{whole}{_GAP}s"
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "min"), (0 if whole >= 3600 else whole % 60, "s"))
    return _GAP.join(f"{value}{_GAP}{unit}" for value, unit in parts if value)


def size(num_bytes: float | None) -> str:
    """Return a size with a binary unit: `1.5 GiB`."""
    if num_bytes is None or not isfinite(num_bytes):
        return NONE
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1000:
            return f"{value:.0f}{_GAP}{unit}" if unit == "bytes" else f"{trimmed(digits(value))}{_GAP}{unit}"
        value /= 1024
    return f"{trimmed(digits(value))}{_GAP}TiB"


def share(part: float | None) -> str:
    """Return a part of 1 in percent: `0.4 %`, `41 %`."""
    if part is None or not isfinite(part):
        return NONE
    percent = 100 * part
    if 0 < abs(percent) < 0.05:
        return f"under{_GAP}0.1{_GAP}%"
    return f"{percent:.1f}{_GAP}%" if abs(percent) < 9.95 and percent != int(percent) else f"{percent:.0f}{_GAP}%"


def times(ratio: float | None) -> str:
    """Return how many times as much, with a sign for it."""
    if ratio is None or not isfinite(ratio):
        return NONE
    if 0 < ratio < 0.1:
        return f"1/{digits(1 / ratio, 2)}{_GAP}\N{MULTIPLICATION SIGN}"
    return f"{trimmed(digits(ratio, 3 if 1 <= ratio < 10 else 2))}{_GAP}\N{MULTIPLICATION SIGN}"


def count(number: float | None) -> str:
    """Return a whole number with commas."""
    return NONE if number is None or not isfinite(number) else f"{number:,.0f}"


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number of things: `1 batch`, `2,000 batches`."""
    return f"{number:,}{_GAP}{noun if number == 1 else several or noun + 's'}"


def cores(value: float | None) -> str:
    """Return how many cores' worth of time: `2.41 cores`."""
    return NONE if value is None or not isfinite(value) else f"{trimmed(digits(value, 2))}{_GAP}cores"


def listed(things: Sequence[str], last: str = "and") -> str:
    """Return things in a sentence: `a, b and c`."""
    return f"{', '.join(things[:-1])} {last} {things[-1]}" if len(things) > 1 else "".join(things)


def _signed(value: float, told: str) -> str:
    return f"-{told}" if value < 0 else told


def trimmed(told: str) -> str:
    """Return a number without zeros at its end that tell nothing: `2.00` is `2`."""
    if "." not in told or "e" in told:
        return told
    return told.rstrip("0").rstrip(".")
