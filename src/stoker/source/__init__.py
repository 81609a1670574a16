"""Sources: samples from existing data.

Two protocols: a `Source` is addressed by position, a `Stream` is read from its start. A stream with `split` is sharded
across workers and ranks without reading anything twice.
"""

from __future__ import annotations

from stoker.source.array_file import ArrayFile
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.line_stream import LineStream
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
from stoker.source.parquet import Parquet
from stoker.source.protocols import Source, Splittable, Stream
from stoker.source.raw_tokens import RawTokens

__all__ = [
    "ArrayFile",
    "ArrowFolder",
    "LineStream",
    "Lines",
    "Megatron",
    "Parquet",
    "RawTokens",
    "Source",
    "Splittable",
    "Stream",
]
