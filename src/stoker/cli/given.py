"""Facts about the raw command line, passed to commands through the context."""

from __future__ import annotations

from typing import Any, NamedTuple


class Given(NamedTuple):
    """The `obj` of a command's context."""

    has_dashes: bool
    """Whether `--` was given: everything after it is a command."""


def has_dashes(ctx: Any) -> bool:
    """Return whether `--` was given, according to the context."""
    return isinstance(ctx.obj, Given) and ctx.obj.has_dashes
