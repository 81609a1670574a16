"""The dense mask in one pass on a GPU. Shapes: B rows of T columns.

torch's broadcast comparison runs at a tenth of a GPU's write bandwidth; this kernel reaches that bandwidth.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_QUERIES, NUM_KEYS = 64, 256
"""The tile that one program writes: of the sizes tried on an H200, the one as fast as filling memory."""


@triton.jit  # type: ignore[untyped-decorator]
def _write(ids, out, length, num_queries: tl.constexpr, num_keys: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(2).to(tl.int64)
    queries = tl.program_id(1) * num_queries + tl.arange(0, num_queries)
    keys = tl.program_id(0) * num_keys + tl.arange(0, num_keys)
    ids += row * length
    of_queries = tl.load(ids + queries, mask=queries < length, other=0)
    of_keys = tl.load(ids + keys, mask=keys < length, other=0)
    is_seen = (of_queries[:, None] == of_keys[None, :]) & (keys[None, :] <= queries[:, None])
    places = out + (row * length + queries[:, None].to(tl.int64)) * length + keys[None, :]
    tl.store(places, is_seen.to(tl.int8), mask=(queries[:, None] < length) & (keys[None, :] < length))


def causal(ids: Tensor) -> Tensor:
    """Return the mask [B, T, T] of `ids` [B, T] on a GPU: same document, and key not after query."""
    num_rows, length = ids.shape
    out = torch.empty((num_rows, length, length), dtype=torch.bool, device=ids.device)
    grid = (triton.cdiv(length, NUM_KEYS), triton.cdiv(length, NUM_QUERIES), num_rows)
    with torch.cuda.device(ids.device):
        _write[grid](ids.contiguous(), out.view(torch.int8), length, num_queries=NUM_QUERIES, num_keys=NUM_KEYS)
    return out
