"""What transforms are told: sizes, sides, ranges and chances, in all the ways in which torchvision takes them."""

from __future__ import annotations

import operator
from typing import Any

from stoker.errors import ArgumentError


def pair(name: str, value: Any) -> tuple[int, int]:
    """Return height and width, of one number for both or of two."""
    sides = _whole_numbers(value)
    if len(sides) == 1:
        sides *= 2
    if len(sides) != 2 or min(sides) < 1:
        raise ArgumentError(f"{name}={value!r} is no size in pixels", hint="give one whole number, or (height, width)")
    return sides[0], sides[1]


def is_one_side(value: Any) -> bool:
    """Return whether a size is that of one side only."""
    return len(_whole_numbers(value)) == 1


def four(name: str, value: Any) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom, of one number for all, of (left and right, top and bottom), or of four."""
    sides = _whole_numbers(value)
    if len(sides) in (1, 2, 4) and min(sides) >= 0:
        left, top, right, bottom = sides * (4 // len(sides))
        return left, top, right, bottom
    raise ArgumentError(
        f"{name}={value!r} is no number of pixels", hint="give one, (left and right, top and bottom), or four"
    )


def filling(value: Any) -> int | tuple[int, ...]:
    """Return what to fill with: one number for all channels, or one for each."""
    levels = _whole_numbers(value)
    if not levels:
        raise ArgumentError(f"fill={value!r} is no colour", hint="give a number from 0 to 255, or one for each channel")
    return levels[0] if len(levels) == 1 else levels


def numbers(name: str, value: Any, *, above: float = -float("inf")) -> tuple[float, float]:
    """Return the two ends of a range, the smaller first, the larger above `above` and the smaller not below it."""
    try:
        first, last = map(float, value)
    except (TypeError, ValueError):
        first, last = 1.0, 0.0
    if not (above <= first <= last and last > above):
        beyond = "" if above == -float("inf") else f" beyond {above:g}"
        raise ArgumentError(f"{name}={value!r} is no range", hint=f"give two numbers{beyond}, the smaller first")
    return first, last


def probability(p: Any) -> float:
    """Return p, which must be a probability."""
    number = one_number(p)
    if number is None or not 0 <= number <= 1:
        raise ArgumentError(f"p={p!r} is no probability", hint="give a number from 0 to 1")
    return number


def one_number(value: Any) -> float | None:
    """Return a number of any kind, NumPy's too; None if it is none."""
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def check_filter(interpolation: Any, antialias: Any) -> None:
    """Raise `ArgumentError` unless it is bilinear and antialiased, said as torchvision or Pillow do, or by name."""
    if getattr(interpolation, "value", interpolation) not in ("bilinear", 2) or not antialias:
        raise ArgumentError(
            f"interpolation={interpolation!r}, antialias={antialias} is not done here",
            hint="ours is bilinear and antialiased; pass torchvision's own transform instead, which runs unchanged",
        )


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """Return one whole number or several, also NumPy's; none if any is something else."""
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
