"""torch.compile: a loop over a loader may be inside a compiled function. Only what is done with batches is compiled."""

from __future__ import annotations

from types import ModuleType

ROOMS = (
    *(
        "batch",
        "compose",
        "deliver",
        "engine",
        "foundation",
        "loader",
        "native",
        "plan",
        "source",
        "store",
        "transform",
    ),
    "tuning",
)
"""What makes batches. Masks are not among them: models call them."""


def install(module: ModuleType) -> None:
    """Let Dynamo leave our code alone, as it does that of torch's loader. `module` is its list of what to trace."""
    for room in ROOMS:
        module.add(f"stoker.{room}")
