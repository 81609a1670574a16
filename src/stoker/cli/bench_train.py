"""`stoker bench train`: time a real training step three ways, to separate loader and model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.trials import FUNCTION, File, Json, Out

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def train(
    target: Annotated[
        str,
        typer.Argument(
            metavar=FUNCTION,
            help="Function that returns `step(batch)`, or a pair (loader, step).",
        ),
    ],
    loader: Annotated[
        str | None,
        typer.Option(
            metavar=FUNCTION, help="Function that returns the loader.", show_default="make_loader in the same file"
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the whole job, to compute GPU-hours lost per day.")] = 1,
    device: Annotated[
        str | None,
        typer.Option(help="Device for the resident batches.", show_default="the loader's device, or cuda"),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; each measures every way once.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.05, help="Seconds to time each way in each round.")] = 2.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Time a real training step three ways: batches on the device, cached batches through the loader, the real loader.

    The differences are stalls: copy (with the handover between processes), preparation (CPU) and fetch (storage), in
    milliseconds per step and GPU-hours per day. Works with any loader, such as torch's DataLoader. With --out,
    `stoker report` draws the run.json.

    Example: [bold cyan]stoker bench train train.py:make_step --gpus 8 --out measured[/]
    """
    from stoker.cli.trials import check_out, conclude, format_notes, progress
    from stoker.lab.plots.train_results import parts_table, train_remarks, ways_table
    from stoker.lab.trial.step_target import step_and_loader
    from stoker.lab.trial.train_bench import bench_train, record_run

    check_out(out)
    step, made = step_and_loader(target, loader)
    with progress() as watch:
        found = bench_train(
            step,
            made,
            target=target,
            seconds=seconds,
            num_rounds=repeat,
            num_gpus=gpus,
            device=device,
            watch=watch,
        )

    def shown(width: int) -> Iterator[Table | Text]:
        yield ways_table(found, width=width)
        if found.has_parts:
            yield parts_table(found, width=width)
        yield from format_notes(train_remarks(found))

    def files() -> Iterator[File]:
        from stoker.lab.plots.train_results import train_figure

        yield "train.json", found.save
        if found.has_parts:
            yield "train.png", train_figure(found).savefig
        run = None if found.is_interrupted else record_run(step, made, seconds=seconds, title=target)
        if run is not None:
            yield "run.json", run.save

    conclude(
        found,
        shown,
        files(),
        out=out,
        is_json=json,
        is_interrupted=found.is_interrupted,
    )
