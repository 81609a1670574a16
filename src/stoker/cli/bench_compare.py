"""`stoker bench compare`: loaders side by side, on the user's own dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.trials import FUNCTION, Batches, Json, Out, Repeat, Seconds, Timeout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare(
    dataset: Annotated[
        str,
        typer.Argument(metavar=FUNCTION, help="What makes the dataset: `module:function` or `file.py:function`."),
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    workers: Annotated[str, typer.Option(help="Workers of each loader; several numbers are compared: `0,2,4`.")] = "2",
    threads: Annotated[int, typer.Option(min=0, help="Compare stoker's loader with so many threads, too.")] = 0,
    prefetch: Annotated[int, typer.Option(min=1, help="Prefetch factor of each loader.")] = 2,
    collate: Annotated[
        str | None, typer.Option(metavar=FUNCTION, help="What puts samples together, as `collate_fn` does.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this loader beside torch's; may be given several times.")
    ] = None,
    repeat: Repeat = 3,
    seconds: Seconds = 3.0,
    batches: Batches = None,
    timeout: Timeout = 300.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare loaders on a dataset of yours: stoker's, torch's, torchdata's, SPDL's and Grain's, as far as installed.

    All load the same samples in the same order, each in fresh processes, in rounds whose order changes. Ratios are
    taken inside a round. What is not installed, or cannot do the dataset, is left out with a sentence.

    Example: [bold cyan]stoker bench compare train:make_dataset --batch-size 64 --workers 2,4 --out compared[/]
    """
    from stoker.bench.compare import compare as compared
    from stoker.cli.trials import check_out, conclude_sweep, numbers, progress
    from stoker.view.bench_tables import compare_table

    check_out(out)
    num_workers = numbers(workers, "--workers") or [2]
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
        from stoker.view.compare_plots import compare_figures

        return compare_figures(sweep)

    conclude_sweep(sweep, lambda width: compare_table(sweep, width=width), figures, out=out, is_json=json)
