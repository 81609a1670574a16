"""When and where a sample, or a document, comes."""

from __future__ import annotations

from typing import Any, NamedTuple

from stoker.errors import ArgumentError
from stoker.plan import Plan
from stoker.source.protocols import has_epochs, mixes_sources


class SampleLocation(NamedTuple):
    """A place at which a sample, or a part of a document, comes."""

    epoch: int
    """The loader's."""
    step: int
    rank: int
    row: int
    """Which row of the rank's batch it is, or is in."""
    columns: range | None
    """Where in the row a document is; None for whole samples."""
    is_skipped: bool
    """The step is passed over."""


def find_locations(
    dataset: Any, plan: Plan, number: int, *, epoch: int, num_ranks: int, source: str | None
) -> list[SampleLocation]:
    """Return where sample `number` comes; of packed rows, where document `number` does, from its beginning on."""
    mixture = dataset if mixes_sources(dataset) else None
    if (mixture is None) != (source is None):
        raise ArgumentError(
            "samples of a mixture are found by source" if mixture else f"source={source!r}, but there is only one",
            hint=f"pass source= one of {', '.join(map(repr, mixture.sources))}" if mixture else "leave out source",
        )
    rows: Any = dataset
    if mixture is not None:
        if source not in mixture.sources:
            raise ArgumentError(
                f"there is no source {source!r}", hint=f"the sources are {', '.join(map(repr, mixture.sources))}"
            )
        rows = mixture.sources[source]
    spans: list[tuple[int, range | None]] = [(number, None)]
    if hasattr(rows, "find") and has_epochs(rows) and not mixes_sources(rows):
        spans = [(span.row, span.columns) for span in rows.in_epoch(epoch).find(number)]
    found = []
    for position, columns in spans:
        when = epoch
        if mixture is not None:
            assert source is not None
            sample = mixture.find(source, position, epoch)
            if sample is None:
                continue
            when, position = mixture.place(sample)
        if when < plan.origin.epoch:  # it came before this plan, which may have other lengths
            continue
        place = plan.find(position, epoch=when, num_ranks=num_ranks)
        if place is not None:
            found.append(SampleLocation(when, place.step, place.rank, place.row, columns, place.is_skipped))
    return found
