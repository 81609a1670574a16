"""`stoker tune batch`: the largest batch size that fits into memory, and where it stops paying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from stoker.cli.trials import FUNCTION, File, Json, Out


def batch(
    target: Annotated[
        str,
        typer.Argument(
            metavar=FUNCTION,
            help="What makes the step: `make_step()` returns `step(batch)`, or `make_sized_step(batch_size)` `step()`.",
        ),
    ],
    loader: Annotated[
        str | None,
        typer.Option(
            metavar=FUNCTION,
            help="What makes the loader whose first batch a `step(batch)` gets.",
            show_default="make_loader beside it",
        ),
    ] = None,
    start: Annotated[int, typer.Option(min=1, help="The first size to try.")] = 8,
    most: Annotated[int, typer.Option("--max", min=1, help="The largest size to try.")] = 65536,
    memory: Annotated[
        str | None,
        typer.Option(help="What may be used: 2GiB.", show_default="all of the GPU, or four fifths of what is free"),
    ] = None,
    margin: Annotated[float, typer.Option(min=0, max=0.9, help="The share of it that is kept free.")] = 0.05,
    device: Annotated[str | None, typer.Option(help="cuda, or cpu.", show_default="cuda if there is one")] = None,
    verify: Annotated[int, typer.Option(min=1, help="Steps to verify the result with.")] = 8,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds in which sizes that fit are timed, in turn.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Give up on a size after so many seconds.")] = 120.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Find the largest batch size that fits into memory, and how many samples per second each size gives.

    Sizes are doubled until one does not fit, then halved in between. Each runs for real, in a process that may run out
    of memory without harm. The result is a multiple of 32 (of 16 or 8 where it is smaller), verified with several
    steps and some memory to spare. A step that is given its batch gets the first one of the loader, its samples
    repeated; one that is made for a batch size brings its own.

    Example: [bold cyan]stoker tune batch train.py:make_step[/]

    Example: [bold cyan]stoker tune batch train.py:make_sized_step --memory 8GiB --max 4096 --out measured[/]
    """
    from stoker.bench.batch_size import tune_batch
    from stoker.cli.sizes import bytes_in
    from stoker.cli.trials import check_out, conclude, listed, progress
    from stoker.errors import StokerError
    from stoker.view.batch_tables import batch_remarks, batch_table

    check_out(out)
    try:
        with progress() as watch:
            found = tune_batch(
                target,
                loader=loader,
                start=start,
                most=most,
                memory_bytes=None if memory is None else bytes_in(memory, "--memory"),
                device=device,
                margin=margin,
                num_verified=verify,
                num_rounds=repeat,
                limit_seconds=timeout,
                watch=watch,
            )
    except (StokerError, OSError):
        raise
    except Exception as error:
        _tell(error)
        raise typer.Exit(1) from None

    def files() -> Iterator[File]:
        from stoker.view.batch_plots import batch_figure

        yield "batch.json", found.save
        yield "batch.png", batch_figure(found).savefig

    conclude(
        found,
        lambda width: [batch_table(found, width=width), *listed(batch_remarks(found))],
        files(),
        out=out,
        is_json=json,
        is_interrupted=found.is_interrupted,
        is_ok=found.largest is not None,
    )


def _tell(error: Exception) -> None:
    """Print an error of the user's step as Python would, without what is ours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    cause = error.__cause__
    if cause is not None:
        console.print(Text(str(cause).rstrip(), style="dim"), soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), (f"{type(error).__name__}: {error}", "red")), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        console.print(Text(note), soft_wrap=True)
