"""What was written on the command line, and is not passed on to verbs."""

from __future__ import annotations

from typing import Any, NamedTuple


class Given(NamedTuple):
    """The `obj` of a verb's context."""

    has_dashes: bool
    """Whether there were two dashes, after which a command is meant whatever it looks like."""


def has_dashes(ctx: Any) -> bool:
    """Whether there were two dashes, as far as a context knows."""
    return isinstance(ctx.obj, Given) and ctx.obj.has_dashes
