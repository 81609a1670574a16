"""The options that say where pictures and their labels are, for every verb that opens pictures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Labels = Annotated[
    str | None, typer.Option(help="A .csv, .tsv or .parquet of labels, or 'none'; by default those that are there.")
]
Column = Annotated[str | None, typer.Option(help="The column, or extension, of the pictures.")]
Label = Annotated[str | None, typer.Option(help="The column, extension or JSON field of the labels.")]
Split = Annotated[str | None, typer.Option(help="The split of a Hugging Face dataset.")]


def opening(*, labels: str | None = None, **options: Any) -> dict[str, Any]:
    """Return what `stoker.images` is told of options that were given."""
    found = {name: value for name, value in options.items() if value is not None}
    if labels is not None:
        found["labels"] = False if labels == "none" else labels
    return found
