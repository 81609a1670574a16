"""Lightning and Fabric."""

from __future__ import annotations

from types import ModuleType


def install(module: ModuleType) -> None:
    """Do nothing yet."""
