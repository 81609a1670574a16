"""The table, the findings and the plot."""

from __future__ import annotations

from typing import Any

COLUMNS: tuple[Any, ...] = ()
figure: Any = None
limits: Any = None
shows: Any = None
