"""What is in a step: which samples, and of packed rows which documents, of which source. The inverse of finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from stoker.plan import Plan
from stoker.source.protocols import mixes_sources


class Content(NamedTuple):
    """A sample in a step, or a part of a document in one of its rows."""

    rank: int
    row: int
    """Which row of the rank's batch it is, or is in."""
    source: str | None
    """The name of its source, in a mixture."""
    epoch: int
    """The epoch, of the source in a mixture."""
    position: int
    """The sample's position in its dataset; of packed rows, the row's."""
    document: int | None
    """None where samples are not packed."""
    offset: int
    """With which of its tokens the part of the document begins."""
    columns: range | None
    """Where in the row it is; None for whole samples."""
    is_padding: bool
    """The sample only fills up the batch."""


def contents(dataset: Any, plan: Plan, step: int, ranks: Iterable[int], num_ranks: int) -> Iterator[Content]:
    """Yield what is in a step, for each of `ranks` row by row."""
    for rank in ranks:
        recipe = plan.recipe(step, rank, num_ranks)
        positions, is_padding = recipe.positions, [False] * len(recipe.positions)
        if recipe.padding is not None:
            is_padding = recipe.padding.tolist()
            if mixes_sources(dataset):
                positions = dataset.in_epoch(recipe.epoch).filling(positions)
        for row, (number, pads) in enumerate(zip(positions.tolist(), is_padding)):
            for source, epoch, position, rows in _resolved(dataset, recipe.epoch, number):
                if not hasattr(rows, "documents"):
                    yield Content(rank, row, source, epoch, position, None, 0, None, pads)
                    continue
                for span in rows.in_epoch(epoch).documents(position):
                    yield Content(rank, row, source, epoch, position, span.document, span.offset, span.columns, pads)


def _resolved(dataset: Any, epoch: int, number: int) -> Iterator[tuple[str | None, int, int, Any]]:
    """Yield the source of a sample, its epoch, the position in it, and the dataset that has it."""
    if not mixes_sources(dataset):
        yield None, epoch, number, dataset
        return
    name, of_source, position = dataset.at(dataset.number(epoch, number))
    for inner, at, place, rows in _resolved(dataset.sources[name], of_source, position):
        yield name if inner is None else f"{name}/{inner}", at, place, rows
