"""The two shapes of a function that makes a training step, told apart by signatures before anything runs.

Either the step is called with a batch, which a loader gives; or the function is called with a batch size, and the step
brings a batch of that size with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stoker.errors import ArgumentError

BATCHED = "`def make_step(): ...; return step`, with `def step(batch): ...`"
SIZED = "`def make_sized_step(batch_size): ...; return step`, with `def step(): ...`"


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with so many arguments; True of one that does not tell."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # native code
        return True
    return True


def takes_batch_size(make_step: Callable[..., Any]) -> bool:
    """Whether a function makes a step of some batch size: it has a parameter of that name, or needs an argument."""
    try:
        names = inspect.signature(make_step).parameters
    except (TypeError, ValueError):
        return True
    return "batch_size" in names or not takes(make_step)


def check_needs_no_size(make_step: Callable[..., Any], name: str) -> None:
    """Raise `ArgumentError` for a function that has to be given a batch size, where a loader gives batches."""
    if not takes(make_step) and takes(make_step, 8):
        raise ArgumentError(
            f"{name} needs an argument, such as a batch size, and here a loader gives the batches",
            hint=f"write {BATCHED}; the other shape, {SIZED}, is for `stoker tune batch`, which takes both",
        )


def check_takes_batch(step: Callable[..., Any], name: str) -> None:
    """Raise `ArgumentError` for a step that cannot be called with a batch."""
    if not takes(step, None):
        raise ArgumentError(
            f"{name} returned a step that cannot be called with a batch",
            hint=f"write {BATCHED}; for `stoker tune batch` alone, {SIZED} will do",
        )


def check_brings_batch(step: Callable[..., Any], name: str) -> None:
    """Raise `ArgumentError` for a step that has to be given a batch, though it was made for a batch size."""
    if not takes(step):
        raise ArgumentError(
            f"{name} returned a step that needs a batch, though it was made for a batch size",
            hint=f"write {SIZED}; or {BATCHED}, and `def make_loader(): ...` beside it, which gives the batch",
        )
