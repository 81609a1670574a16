"""Encoded pictures out of what users have: folders, lists, tar archives, columns of tables, stores."""

from __future__ import annotations

from stoker.source.images.listing import EXTENSIONS
from stoker.source.images.opening import open_pictures
from stoker.source.images.protocols import Encoded, Pictures

__all__ = ["EXTENSIONS", "Encoded", "Pictures", "open_pictures"]
