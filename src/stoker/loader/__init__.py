"""`DataLoader`, the one place where the rooms meet."""

from __future__ import annotations

from stoker.loader.dataloader import DataLoader
from stoker.loader.iterator import LoaderIterator

__all__ = ["DataLoader", "LoaderIterator"]
