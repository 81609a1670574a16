"""`stoker bench loader`: measure the speed and cost of a loader, depending on its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.trials import Batches, Json, LoaderTarget, Out, Repeat, Seconds, Step, Timeout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def loader(
    target: LoaderTarget,
    workers: Annotated[str | None, typer.Option(help="Numbers of workers to try: `0,1,2,4` or `0-4`.")] = None,
    threads: Annotated[str | None, typer.Option(help="Numbers of threads to try (Stoker's loader only).")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Batch sizes to try.")] = None,
    prefetch: Annotated[str | None, typer.Option(help="Prefetch factors to try.")] = None,
    step: Step = None,
    repeat: Repeat = 3,
    seconds: Seconds = 3.0,
    batches: Batches = None,
    timeout: Timeout = 300.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure a loader for each combination of arguments: throughput, variation, CPU, memory and start-up.

    Works with any iterable of batches, such as torch's DataLoader. The function need not take arguments: they are set
    on the loader that it returns. Every trial runs in a fresh process, and the order of trials changes from round to
    round, so that noise affects every configuration equally. `stoker report` draws the run.json.

    Example: [bold cyan]stoker bench loader train:make_loader --workers 0,1,2,4 --out measured[/]
    """
    from stoker.cli.trials import check_out, conclude_sweep, parse_numbers, progress
    from stoker.lab.plots.sweep_tables import loader_table
    from stoker.lab.trial.sweep import bench_loader

    check_out(out)
    sweeps = {
        "workers": parse_numbers(workers, "--workers"),
        "threads": parse_numbers(threads, "--threads"),
        "batch_sizes": parse_numbers(batch_size, "--batch-size"),
        "prefetches": parse_numbers(prefetch, "--prefetch"),
    }
    with progress() as watch:
        sweep = bench_loader(
            target,
            **sweeps,
            step=step,
            seconds=seconds,
            num_batches=batches,
            num_rounds=repeat,
            limit_seconds=timeout,
            records_run=out is not None,
            watch=watch,
        )

    def figures() -> dict[str, Figure]:
        from stoker.lab.plots.sweep_plots import loader_figures

        return loader_figures(sweep)

    conclude_sweep(sweep, lambda width: loader_table(sweep, width=width), figures, out=out, is_json=json)
