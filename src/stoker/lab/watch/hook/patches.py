"""Functions put in the place of others, which can be put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """What was replaced, and by what it was."""

    def __init__(self) -> None:
        self._undone: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        """Put `around(original)` in the place of `owner.name`; nothing happens if there is no such thing."""
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            return
        wrapped = around(original)
        if callable(original) and not isinstance(wrapped, type):
            functools.update_wrapper(wrapped, original)
        # what was inherited is taken away again, and not put where it did not use to be
        own = vars(owner).get(name, _MISSING)
        self._undone.append((owner, name, own))
        setattr(owner, name, wrapped)

    def undo(self) -> None:
        """Put back all that was replaced, the latest first."""
        while self._undone:
            owner, name, own = self._undone.pop()
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
