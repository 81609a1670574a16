"""Datasets on disk: a folder with a manifest and shards, written safely, mapped into memory, checked when read.

`docs/format.md` specifies every byte.
"""

from __future__ import annotations

from stoker.store.build import Build, PieceWriter
from stoker.store.column import Column
from stoker.store.crops import Crops
from stoker.store.reader import Store, open_store
from stoker.store.saved_array import create_array, open_array, save_array
from stoker.store.verify import Damage, Verdict, verify
from stoker.store.writer import Writer

__all__ = [
    "Build",
    "Column",
    "Crops",
    "Damage",
    "PieceWriter",
    "Store",
    "Verdict",
    "Writer",
    "create_array",
    "open_array",
    "open_store",
    "save_array",
    "verify",
]
