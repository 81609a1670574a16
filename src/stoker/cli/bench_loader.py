"""`stoker bench loader`: how fast a loader is, what it costs, and how that depends on its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.trials import Batches, Json, LoaderTarget, Out, Repeat, Seconds, Step, Timeout

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def loader(
    target: LoaderTarget,
    workers: Annotated[str | None, typer.Option(help="Numbers of workers to try: `0,1,2,4` or `0-4`.")] = None,
    threads: Annotated[str | None, typer.Option(help="Numbers of threads to try (stoker's loader).")] = None,
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
    """Measure a loader: throughput, steadiness, CPU, memory, start-up; for each combination of arguments.

    Any iterable of batches will do, torch's DataLoader unmodified among them. The function need not take arguments:
    they are set on the loader that it builds. Every trial runs in a fresh process, and the order of trials changes from
    round to round, so that a noisy machine harms all alike. `stoker report` draws the run.json.

    Example: [bold cyan]stoker bench loader train:make_loader --workers 0,1,2,4 --out measured[/]
    """
    from stoker.bench.loader_bench import bench_loader
    from stoker.cli.trials import check_out, conclude_sweep, numbers, progress
    from stoker.view.bench_tables import loader_table

    check_out(out)
    sweeps = {
        "workers": numbers(workers, "--workers"),
        "threads": numbers(threads, "--threads"),
        "batch_sizes": numbers(batch_size, "--batch-size"),
        "prefetches": numbers(prefetch, "--prefetch"),
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
        from stoker.view.bench_plots import loader_figures

        return loader_figures(sweep)

    conclude_sweep(sweep, lambda width: loader_table(sweep, width=width), figures, out=out, is_json=json)
