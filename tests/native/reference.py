"""The same as the library does, as plainly as it can be said."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray


def filled(
    flat: NDArray[Any],
    spans: list[list[tuple[int, int, bool]]],
    rows: list[int],
    outputs: dict[str, NDArray[Any]],
    *,
    pad: int,
    ignored: int,
) -> None:
    """Write rows, of each of which the spans (element, size, has_next) are given."""
    for row, parts in zip(rows, spans):
        tokens: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        ids: list[int] = []
        borders = [0]
        length = outputs["tokens"].shape[1]
        for number, (element, size, has_next) in enumerate(parts):
            tokens += flat[element : element + size].tolist()
            labels += flat[element + 1 : element + size].tolist()
            if size:
                labels += [int(flat[element + size]) if has_next else ignored]
            positions += range(size)
            ids += [number] * size
            borders.append(len(tokens))
        rest = length - len(tokens)
        outputs["tokens"][row] = np.array(tokens + [pad] * rest, np.int64).astype(outputs["tokens"].dtype)
        outputs["labels"][row] = np.array(labels + [ignored] * rest, np.int64).astype(outputs["labels"].dtype)
        outputs["positions"][row] = [*positions, *range(rest)]
        outputs["document_ids"][row] = ids + [-1] * rest
        outputs["cu_seqlens"][row] = borders + [length] * (outputs["cu_seqlens"].shape[1] - len(borders))


def apportioned(weights: list[int]) -> list[int]:
    """Return whose turn it is, slot by slot, with fractions."""
    period, left = sum(weights), {who for who, weight in enumerate(weights) if weight}
    if len(left) == 1:
        return [left.pop()] * period
    parts = 2 * len(left) - 2
    turns = [0] * len(weights)
    slots = []
    for slot in range(1, period + 1):
        begun = []
        for who in left:
            share = Fraction(period, parts * weights[who])
            if ceil((turns[who] * parts + 1) * share) <= slot:
                begun.append((floor(((turns[who] + 1) * parts - 1) * share) + 1, who))
        who = min(begun)[1]
        turns[who] += 1
        if turns[who] == weights[who]:
            left.discard(who)
        slots.append(who)
    return slots
