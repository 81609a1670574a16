"""Parse memory sizes such as 2GiB."""

from __future__ import annotations

import re

UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{letter: 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
}


def parse_bytes(text: str, option: str) -> int:
    """Parse a size such as `2GiB`, `500 MB` or `1.5G` into bytes; errors name `option`."""
    from stoker.errors import ArgumentError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    units = {name.lower(): size for name, size in UNITS.items()}
    num_bytes = 0 if match is None else int(float(match[1]) * units.get(match[2].lower(), 0))
    if num_bytes < 1:
        raise ArgumentError(
            f"{option} must be a memory size, got {text!r}", hint=f"write {option} 2GiB or {option} 500MB"
        )
    return num_bytes
