"""`stoker prepare images`: files of pictures into a store."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.pictures import Column, Label, Labels, Split, image_options

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.prepare import ImageReport

_SHOWN_BAD = 5


class OnErrorOption(StrEnum):
    """What becomes of pictures that cannot be used."""

    stop = "raise"
    skip = "skip"


def images(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="A folder of pictures; or tar shards, Parquet, or a Hugging Face dataset with them."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the store; it is made.")],
    max_side: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Make pictures smaller whose longer side is larger than this.")
    ] = None,
    short_side: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Make pictures smaller whose shorter side is larger than this, e.g. 256."),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Of the JPEG files that are made, 1 to 100; by default 90.")
    ] = None,
    labels: Labels = None,
    columns: Annotated[
        str | None, typer.Option(metavar="FILE,LABEL", help="The columns of that table, if they are not plain.")
    ] = None,
    column: Column = None,
    label: Label = None,
    split: Split = None,
    apply_exif_orientation: Annotated[
        bool | None,
        typer.Option(help="Put pictures upright that say how they were taken, as is done by default, or never."),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="A sub-folder without pictures is a class too, and no error.")
    ] = False,
    on_error: Annotated[
        OnErrorOption, typer.Option(help="Stop at a picture that cannot be used, or leave it out and list it.")
    ] = OnErrorOption.stop,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one for each core.")] = None,
    piece_mib: Annotated[
        int | None,
        typer.Option(help="MiB of pictures in one piece; by default as in a store that is there, or 4 to 64."),
    ] = None,
) -> None:
    """Turn pictures into a store, on all cores, in pieces: as they are, or smaller.

    Stop it whenever you like: the same command goes on where it was. Run again, it makes what changed, or nothing.

    Example: [bold cyan]stoker prepare images photos --out data/photos --short-side 256[/]
    """
    from rich.console import Console

    from stoker import prepare
    from stoker.cli.prepare import _Display, _escaped

    errors = Console(stderr=True, highlight=False)
    options = image_options(labels=labels, column=column, label=label, split=split, allow_empty=allow_empty or None)
    if columns is not None:
        options["columns"] = [name.strip() for name in columns.split(",")]
    try:
        with _Display(errors) as display:
            report = prepare.images(
                source,
                out=out,
                max_side=max_side,
                short_side=short_side,
                quality=quality,
                apply_exif_orientation=apply_exif_orientation,
                on_error=on_error.value,
                workers=workers,
                piece_bytes=None if piece_mib is None else piece_mib << 20,
                watch=display.show,
                **options,
            )
    except KeyboardInterrupt:
        errors.print("stopped; what is finished is kept: [bold]run the same command again[/] to go on", soft_wrap=True)
        raise
    console = Console(highlight=False)
    if report.is_up_to_date:
        console.print(f"[green]{_escaped(report.path)} is up to date[/]: pictures and settings are as they were")
    console.print(_table(report))
    for line in report.bad[:_SHOWN_BAD]:
        console.print(f"  skipped {_escaped(line)}", soft_wrap=True)
    console.print(f"next: [bold cyan]stoker.images({_escaped(repr(str(report.path)))})[/]", soft_wrap=True)


def _table(report: ImageReport) -> Table:
    from rich import box
    from rich.table import Table

    from stoker.cli.prepare import _escaped, _skipped
    from stoker.foundation.text import format_bytes, format_duration

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    share = report.image_bytes / max(1, report.source_bytes)
    kept = report.pictures - report.reencoded
    made = f"{report.reencoded:,} made anew, {kept:,} as they were" if report.reencoded else "all as they were"
    rows = [("pictures", f"{report.pictures:,} ({made})")]
    if report.classes is not None:
        rows.append(("classes", f"{report.classes:,}"))
    size = f"{format_bytes(report.source_bytes)} before, {format_bytes(report.image_bytes)} now ({share:.0%})"
    rows.append(("size", size if report.reencoded else format_bytes(report.source_bytes)))
    if report.before is not None and report.after is not None:
        before, after = report.before, report.after
        rows += [
            ("each", f"{format_bytes(round(before.bytes_each))} before, {format_bytes(round(after.bytes_each))} now"),
            (
                "decoding",
                f"{before.decode_ms:.2f} ms before, {after.decode_ms:.2f} ms now, whole and by one core "
                f"({after.num_tried} tried)",
            ),
        ]
    rows.append(("on disk", format_bytes(report.disk_bytes)))
    if not report.is_up_to_date:
        pieces = f"{report.num_pieces:,}, of which {report.num_reused:,} were there from before"
        if report.num_removed:
            pieces += f"; removed: {report.num_removed:,}"
        rows += [("pieces", pieces), ("time", format_duration(report.seconds))]
    rows += [("skipped", _skipped(report)), ("where", _escaped(report.path))]
    for row in rows:
        table.add_row(*row)
    return table
