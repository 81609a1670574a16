"""Numbers as people read them in a diagnosis."""

from __future__ import annotations


def time_told(seconds: float) -> str:
    """Return a duration with a unit that suits it: `25 µs`, `0.31 ms`, `41 ms`, `2.1 s`, `3.5 h`."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 90:
        return f"{seconds / 60:.0f} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    ms = seconds * 1000
    if 0 < ms < 0.1:
        return f"{ms * 1000:.0f} µs" if ms >= 0.01 else f"{ms * 1000:.1f} µs"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def share_told(share: float) -> str:
    """Return a share in percent: `0.4 %`, `38 %`."""
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def size_told(num_bytes: float) -> str:
    """Return a size: `512 bytes`, `3.1 MB`."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def count_told(number: float, noun: str) -> str:
    """Return a number of things: `1 worker`, `2 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
