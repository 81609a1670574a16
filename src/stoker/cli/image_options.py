"""Options for the location of images and labels, shared by commands that open images."""

from __future__ import annotations

from typing import Annotated, Any

import typer

LabelsOption = Annotated[
    str | None, typer.Option(help="A .csv, .tsv or .parquet file of labels, or 'none' (default: those found).")
]
ImageColumnOption = Annotated[str | None, typer.Option(help="Column or extension of the images.")]
LabelOption = Annotated[str | None, typer.Option(help="Column, extension or JSON field of the labels.")]
SplitOption = Annotated[str | None, typer.Option(help="Split of a Hugging Face dataset.")]


def image_options(*, labels: str | None = None, **options: Any) -> dict[str, Any]:
    """Return keyword arguments for `stoker.images` from the options given."""
    found = {name: value for name, value in options.items() if value is not None}
    if labels is not None:
        found["labels"] = False if labels == "none" else labels
    return found
