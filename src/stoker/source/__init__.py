"""Samples out of what users already have.

Two protocols: a `Source` is addressed by position, a `Stream` is read from its start. A stream that
can `split` shares itself out among workers and ranks without reading anything twice.
"""

from __future__ import annotations

from stoker.source.line_stream import LineStream
from stoker.source.lines import Lines
from stoker.source.protocols import Source, Splittable, Stream

__all__ = ["LineStream", "Lines", "Source", "Splittable", "Stream"]
