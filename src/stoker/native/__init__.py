"""C helpers for what runs in every batch, compiled if a C compiler was available when Stoker was installed.

None of them is required: each function returns False where the library is not loaded, and NumPy then does the same,
slower. `STOKER_NATIVE=0` turns them off; `stoker about` shows whether they are in use.
"""

from stoker.native.apportionment import apportion
from stoker.native.blocks import block_tables
from stoker.native.faults import JpegFault
from stoker.native.jpeg_headers import JpegHeader, jpeg_header
from stoker.native.library import describe, describe_jpeg, without
from stoker.native.pixels import decode_jpeg, has_jpeg, resize
from stoker.native.spans import ArrayParts, FoundSpans, RowMemory, SpanFinder
from stoker.native.token_rows import can_gather, fill_rows, gather_rows

__all__ = [
    "ArrayParts",
    "FoundSpans",
    "JpegFault",
    "JpegHeader",
    "RowMemory",
    "SpanFinder",
    "apportion",
    "block_tables",
    "can_gather",
    "decode_jpeg",
    "describe",
    "describe_jpeg",
    "fill_rows",
    "gather_rows",
    "has_jpeg",
    "jpeg_header",
    "resize",
    "without",
]
