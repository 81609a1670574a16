"""Parse arguments of transforms (sizes, paddings, ranges, probabilities) in all forms that torchvision accepts."""

from __future__ import annotations

import operator
from typing import Any

from stoker.errors import ArgumentError


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return (height, width) from one number for both, or from two."""
    sides = _whole_numbers(value)
    if len(sides) == 1:
        sides *= 2
    if len(sides) != 2 or min(sides) < 1:
        raise ArgumentError(f"{name} must be a size in pixels, got {value!r}", hint="pass one int, or (height, width)")
    return sides[0], sides[1]


def is_one_side(value: Any) -> bool:
    """Return whether a size gives only one side."""
    return len(_whole_numbers(value)) == 1


def four(name: str, value: Any) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom from one number for all, from (horizontal, vertical), or from four."""
    sides = _whole_numbers(value)
    if len(sides) in (1, 2, 4) and min(sides) >= 0:
        left, top, right, bottom = sides * (4 // len(sides))
        return left, top, right, bottom
    raise ArgumentError(
        f"{name} must be pixels, got {value!r}", hint="pass one int, (left and right, top and bottom), or four"
    )


def filling(value: Any) -> int | tuple[int, ...]:
    """Return the fill value: one number for all channels, or one per channel."""
    levels = _whole_numbers(value)
    if not levels:
        raise ArgumentError(
            f"fill must be a color, got {value!r}", hint="pass a number from 0 to 255, or one per channel"
        )
    return levels[0] if len(levels) == 1 else levels


def numbers(name: str, value: Any, *, above: float = -float("inf")) -> tuple[float, float]:
    """Return a range (low, high), with `above` <= low <= high and `above` < high."""
    try:
        first, last = map(float, value)
    except (TypeError, ValueError):
        first, last = 1.0, 0.0
    if not (above <= first <= last and last > above):
        beyond = "" if above == -float("inf") else f" beyond {above:g}"
        raise ArgumentError(
            f"{name} must be a range (low, high), got {value!r}", hint=f"pass two numbers{beyond}, the smaller first"
        )
    return first, last


def probability(p: Any) -> float:
    """Return p as a float; raise `ArgumentError` unless it is a probability."""
    number = one_number(p)
    if number is None or not 0 <= number <= 1:
        raise ArgumentError(f"p must be a probability, got {p!r}", hint="pass a number from 0 to 1")
    return number


def one_number(value: Any) -> float | None:
    """Return a number, including NumPy scalars, as a float; None if the value is not a number."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def check_filter(interpolation: Any, antialias: Any) -> None:
    """Raise `ArgumentError` unless the filter is bilinear and antialiased (torchvision or Pillow constant, or name)."""
    if getattr(interpolation, "value", interpolation) not in ("bilinear", 2) or not antialias:
        raise ArgumentError(
            f"interpolation={interpolation!r}, antialias={antialias} is not supported",
            hint="only bilinear with antialiasing is; use torchvision's own transform instead, which runs unchanged",
        )


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """Return one or more ints, including NumPy's, as a tuple; empty if any is not an int."""
    if isinstance(value, bool | str):
        return ()
    try:
        return (operator.index(value),)
    except TypeError:
        pass
    try:
        return tuple(map(operator.index, value))
    except TypeError:
        return ()
