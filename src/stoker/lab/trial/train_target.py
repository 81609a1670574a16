"""The step and the loader that a user names for `stoker bench train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.override import check_iterable
from stoker.lab.trial.step_shape import check_needs_no_size, check_takes_batch
from stoker.lab.trial.target import called, check_spec, resolved

MAKE_LOADER = "make_loader"
"""What makes the loader, beside what makes the step, if nothing else is said."""


def step_and_loader(target: str, loader_target: str | None = None) -> tuple[Callable[[Any], Any], Any]:
    """Return the step that `target` makes, and its loader.

    A function that makes a step returns a callable `step(batch)`, or a pair (loader, step). In the first case the
    loader is what `loader_target` makes, or the function `make_loader` in the same module.
    """
    place, name = check_spec(target, what="a function that makes a step")
    if loader_target is not None:
        check_spec(loader_target, what="a function that makes a loader")
    make_step = resolved(target, what="a function that makes a step")
    check_needs_no_size(make_step, f"{name}()")
    made = called(make_step)
    if isinstance(made, tuple | list):
        if len(made) != 2 or not callable(made[1]):
            raise ArgumentError(
                f"{name}() returned a {type(made).__name__} of {len(made)}, and not (loader, step)",
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
        told = "None" if made is None else type(made).__name__
        raise ArgumentError(
            f"{name}() returned {told}, which is no step",
            hint="return a function that takes a batch, or (loader, function)"
            + ("; a `return` is often forgotten" if made is None else ""),
        )
    check_takes_batch(made, f"{name}()")
    if loader_target is not None:
        return made, _loader(loader_target)
    try:
        make_loader = resolved(f"{place}:{MAKE_LOADER}")
    except ArgumentError:
        raise ArgumentError(
            f"{name}() returned a step and no loader, and there is no {place}:{MAKE_LOADER}",
            hint=f"name one by --loader, write `def {MAKE_LOADER}(): ...` beside it, or return (loader, step)",
        ) from None
    loader = called(make_loader)
    check_iterable(loader, make_loader)
    return made, loader


def _loader(target: str) -> Any:
    make_loader = resolved(target, what="a function that makes a loader")
    loader = called(make_loader)
    check_iterable(loader, make_loader)
    return loader
