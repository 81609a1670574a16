"""Numbers as people read them."""

from __future__ import annotations


def bytes_told(num_bytes: int) -> str:
    """Return a size with a binary unit: `1.5 GiB`."""
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_told(seconds: float) -> str:
    """Return a duration with a unit that suits it: `0.3 ms`, `41 ms`, `2.10 s`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 block`, `2,000 blocks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
