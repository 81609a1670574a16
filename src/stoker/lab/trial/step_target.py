"""The training step, and its loader, that a user names for `stoker bench train` and `stoker tune batch`.

A step is called with a batch that a loader gives; or the function that makes the step is called with a batch size, and
the step makes a batch of that size itself. Signatures tell which, before anything runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.override import check_iterable
from stoker.lab.trial.target import call_with, check_spec, resolve_function

BATCHED = "`def make_step(): ...; return step`, with `def step(batch): ...`"
SIZED = "`def make_sized_step(batch_size): ...; return step`, with `def step(): ...`"


def takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; True if its signature is unknown."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # native code
        return True
    return True


def takes_batch_size(make_step: Callable[..., Any]) -> bool:
    """Whether a function takes a batch size: it has a parameter of that name, or needs an argument."""
    try:
        names = inspect.signature(make_step).parameters
    except (TypeError, ValueError):
        return True
    return "batch_size" in names or not takes(make_step)


def check_needs_no_size(make_step: Callable[..., Any], name: str) -> None:
    """Raise `ArgumentError` for a function that needs a batch size, where a loader gives batches."""
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
    """Raise `ArgumentError` for a step that needs a batch, although it was made for a batch size."""
    if not takes(step):
        raise ArgumentError(
            f"{name} returned a step that needs a batch, though it was made for a batch size",
            hint=f"write {SIZED}; or {BATCHED}, and `def make_loader(): ...` beside it, which gives the batch",
        )


MAKE_LOADER = "make_loader"
"""The default name of the function that makes the loader, in the file of the one that makes the step."""


def step_and_loader(target: str, loader_target: str | None = None) -> tuple[Callable[[Any], Any], Any]:
    """Return the step that `target` makes, and its loader.

    The function returns `step(batch)`, or a pair (loader, step). In the first case the loader comes from
    `loader_target`, or from the function `make_loader` in the same module.
    """
    place, name = check_spec(target, what="a function that makes a step")
    if loader_target is not None:
        check_spec(loader_target, what="a function that makes a loader")
    make_step = resolve_function(target, what="a function that makes a step")
    check_needs_no_size(make_step, f"{name}()")
    made = call_with(make_step)
    if isinstance(made, tuple | list):
        if len(made) != 2 or not callable(made[1]):
            raise ArgumentError(
                f"{name}() returned a {type(made).__name__} of {len(made)}, expected (loader, step)",
                hint="return a function that takes a batch, or a pair of a loader and such a function",
            )
        loader, step = made
        if loader_target is not None:
            loader = _loader(loader_target)
        else:
            check_iterable(loader, make_step)
        check_takes_batch(step, f"{name}()")
        return step, loader
    if not callable(made):
        found = "None" if made is None else type(made).__name__
        raise ArgumentError(
            f"{name}() returned {found}, expected a step",
            hint="return a function that takes a batch, or (loader, function)"
            + ("; did you forget `return`?" if made is None else ""),
        )
    check_takes_batch(made, f"{name}()")
    if loader_target is not None:
        return made, _loader(loader_target)
    try:
        make_loader = resolve_function(f"{place}:{MAKE_LOADER}")
    except ArgumentError:
        raise ArgumentError(
            f"{name}() returned a step without a loader, and {place}:{MAKE_LOADER} does not exist",
            hint=f"name one by --loader, write `def {MAKE_LOADER}(): ...` beside it, or return (loader, step)",
        ) from None
    loader = call_with(make_loader)
    check_iterable(loader, make_loader)
    return made, loader


def _loader(target: str) -> Any:
    make_loader = resolve_function(target, what="a function that makes a loader")
    loader = call_with(make_loader)
    check_iterable(loader, make_loader)
    return loader
