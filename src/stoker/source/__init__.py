"""Sources: samples from existing data.

Two protocols: a `Source` is addressed by position, a `Stream` is read from its start. A stream with `split` is sharded
across workers and ranks without reading anything twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.foundation.lazy_names import lazy_names

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "ArrayFile": "stoker.source.array_file",
            "ArrowFolder": "stoker.source.arrow_folder",
            "LineStream": "stoker.source.line_stream",
            "Lines": "stoker.source.lines",
            "Megatron": "stoker.source.megatron",
            "Parquet": "stoker.source.parquet",
            "RawTokens": "stoker.source.raw_tokens",
            "Source": "stoker.source.protocols",
            "Splittable": "stoker.source.protocols",
            "Stream": "stoker.source.protocols",
        },
    )
