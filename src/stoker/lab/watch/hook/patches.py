"""Replace functions of other modules, and put them back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """The functions that were replaced, and the originals."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `around(original)`; do nothing if it does not exist."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        wrapped = around(original)
        if callable(original) and not isinstance(wrapped, type):
            functools.update_wrapper(wrapped, original)
        # an inherited attribute is removed again, rather than set where it was not before
        self._originals.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, wrapped)

    def undo(self) -> None:
        """Put all originals back, the latest first."""
        while self._originals:
            owner, name, own = self._originals.pop()
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
