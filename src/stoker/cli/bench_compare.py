"""`stoker bench compare`: compare loaders on the user's own dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.trials import FUNCTION, Batches, Json, Out, Repeat, Seconds, Timeout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar=FUNCTION, help="Function that returns the dataset: `module:function` or `file.py:function`."
        ),
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    workers: Annotated[str, typer.Option(help="Workers of each loader, or several numbers to compare: `0,2,4`.")] = "2",
    threads: Annotated[int, typer.Option(min=0, help="Also measure Stoker's loader with this many threads.")] = 0,
    prefetch: Annotated[int, typer.Option(min=1, help="Prefetch factor of each loader.")] = 2,
    collate: Annotated[
        str | None, typer.Option(metavar=FUNCTION, help="Function that collates samples, like `collate_fn`.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Compare only this loader with torch's; may be repeated.")
    ] = None,
    repeat: Repeat = 3,
    seconds: Seconds = 3.0,
    batches: Batches = None,
    timeout: Timeout = 300.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare installed loaders on your dataset: Stoker, torch, torchdata, SPDL and Grain.

    All load the same samples in the same order, each in fresh processes, in rounds whose order changes. Ratios are
    taken within a round. Loaders that are not installed, or cannot read the dataset, are skipped with a note.

    Example: [bold cyan]stoker bench compare train:make_dataset --batch-size 64 --workers 2,4 --out compared[/]
    """
    from stoker.cli.trials import check_out, conclude_sweep, parse_numbers, progress
    from stoker.lab.plots.sweep_tables import compare_table
    from stoker.lab.trial.compare import compare as compared

    check_out(out)
    num_workers = parse_numbers(workers, "--workers") or [2]
    with progress() as watch:
        sweep = compared(
            dataset,
            batch_size=batch_size,
            workers=num_workers,
            threads=threads,
            prefetch=prefetch,
            collate=collate,
            only=only,
            seconds=seconds,
            num_batches=batches,
            num_rounds=repeat,
            limit_seconds=timeout,
            watch=watch,
        )

    def figures() -> dict[str, Figure]:
        from stoker.lab.plots.sweep_plots import compare_figures

        return compare_figures(sweep)

    conclude_sweep(sweep, lambda width: compare_table(sweep, width=width), figures, out=out, is_json=json)
