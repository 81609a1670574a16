"""Attention within the documents of packed rows: masks, and arguments for calls that take no mask.

Every function takes a packed batch, on any device, or the one tensor it needs from it; a single row counts as a batch
of one. Nothing here waits for the device, except `nested`. Query `q` sees key `k` where both are of the same document
and `k <= q`; padding is a document of its own, so that every query has a key.
"""

from stoker.masks.block_mask import flex
from stoker.masks.calls import flash, nested, sdpa, varlen
from stoker.masks.dense_mask import dense, from_eos
from stoker.masks.document_ids import document_ids_from_eos, positions_from_ids

__all__ = [
    "dense",
    "document_ids_from_eos",
    "flash",
    "flex",
    "from_eos",
    "nested",
    "positions_from_ids",
    "sdpa",
    "varlen",
]
