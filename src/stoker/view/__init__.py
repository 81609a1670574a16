"""Draw what a model sees: images of batches, packed rows and attention masks.

Results are Pillow images, which notebooks display; `.save(path)` writes one to a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoker.view.showing import batch, mask

if TYPE_CHECKING:
    report: Callable[..., Any]

__all__ = ["batch", "mask"]


def __getattr__(name: str) -> Any:
    """Return `stoker.report` under its earlier name, `stoker.view.report`."""
    if name == "report":
        import stoker

        return stoker.report
    raise AttributeError(f"module 'stoker.view' has no attribute {name!r}")
