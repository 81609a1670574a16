"""Packed rows made by hand, from the lengths of their spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from stoker.compose.packs.block_tables import block_fields, block_tables


@dataclass(frozen=True)
class Rows:
    """Rows of `length` columns: the sizes of the documents in each; what is left over is padding."""

    length: int
    sizes: Sequence[Sequence[int]]
    blocks: int | None = None

    def batch(self, device: str = "cpu") -> dict[str, Tensor]:
        """Return the fields that masks need."""
        most = max(len(sizes) for sizes in self.sizes) + 2
        ids = np.full((len(self.sizes), self.length), -1, np.int32)
        cu_seqlens = np.full((len(self.sizes), most + 1), self.length, np.int32)
        for row, sizes in enumerate(self.sizes):
            ends = np.cumsum([0, *sizes])
            assert ends[-1] <= self.length
            for number, (begin, end) in enumerate(pairwise(ends)):
                ids[row, begin:end] = number
            cu_seqlens[row, : len(ends)] = ends
        fields: dict[str, Any] = {"document_ids": ids, "cu_seqlens": cu_seqlens}
        if self.blocks is not None:
            shapes = block_fields(self.length, self.blocks)
            fields |= {name: np.full((len(ids), *shape), -9, kind) for name, (shape, kind) in shapes.items()}
            block_tables(cu_seqlens, self.length, self.blocks, fields)
        return {name: torch.from_numpy(values).to(device) for name, values in fields.items()}

    def brute_force(self) -> Tensor:
        """Return the mask, pair by pair."""
        mask = torch.zeros(len(self.sizes), self.length, self.length, dtype=torch.bool)
        for row, sizes in enumerate(self.sizes):
            begin = 0
            for size in (*sizes, self.length - sum(sizes)):
                for query in range(begin, begin + size):
                    for key in range(begin, query + 1):
                        mask[row, query, key] = True
                begin += size
        return mask


@st.composite
def rows(draw: st.DrawFn, *, is_filled: bool = False, with_blocks: bool = True, most: int = 48) -> Rows:
    """Draw rows of equal length, with or without padding at their ends."""
    length = draw(st.integers(1, most))
    lists = []
    for _ in range(draw(st.integers(1, 3))):
        # Borders all over the row, and at times only at its beginning.
        borders = draw(st.sets(st.integers(1, length), max_size=8))
        ends = sorted(borders | {length}) if is_filled else sorted(borders)
        lists.append([end - begin for begin, end in zip([0, *ends], ends)])
    blocks = draw(st.sampled_from([2, 4, 8, 16, 64])) if with_blocks else None
    return Rows(length, lists, blocks)
