"""`stoker tune batch`: find the largest batch size that fits into memory, and the speed of each size."""

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
            help="Function that returns the step: `make_step()` returns `step(batch)`, or "
            "`make_sized_step(batch_size)` returns `step()`.",
        ),
    ],
    loader: Annotated[
        str | None,
        typer.Option(
            metavar=FUNCTION,
            help="Function that returns the loader whose first batch is passed to `step(batch)`.",
            show_default="make_loader in the same file",
        ),
    ] = None,
    start: Annotated[int, typer.Option(min=1, help="First size to try.")] = 8,
    most: Annotated[int, typer.Option("--max", min=1, help="Largest size to try.")] = 65536,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory limit, such as 2GiB.", show_default="all of the GPU, or 80% of the free memory"),
    ] = None,
    margin: Annotated[float, typer.Option(min=0, max=0.9, help="Fraction of the memory to keep free.")] = 0.05,
    device: Annotated[str | None, typer.Option(help="cuda or cpu.", show_default="cuda if available")] = None,
    verify: Annotated[int, typer.Option(min=1, help="Steps to verify the result with.")] = 8,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds of timing the sizes that fit.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Abort a size after this many seconds.")] = 120.0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Find the largest batch size that fits into memory, and the samples per second of each size.

    Sizes are doubled until one does not fit, then bisected. Each runs in a subprocess, so an out-of-memory error is
    harmless. The result is a multiple of 32 (16 or 8 for small sizes), verified with several steps and some memory to
    spare. `step(batch)` gets the loader's first batch, with samples repeated; a step made for a batch size makes its
    own batches.

    Example: [bold cyan]stoker tune batch train.py:make_step[/]

    Example: [bold cyan]stoker tune batch train.py:make_sized_step --memory 8GiB --max 4096 --out measured[/]
    """
    from stoker.cli.trials import check_out, conclude, format_notes, parse_bytes, progress
    from stoker.errors import StokerError
    from stoker.lab.plots.batch_size_results import batch_remarks, batch_table
    from stoker.lab.trial.batch_size import tune_batch

    check_out(out)
    try:
        with progress() as watch:
            found = tune_batch(
                target,
                loader=loader,
                start=start,
                most=most,
                memory_bytes=None if memory is None else parse_bytes(memory, "--memory"),
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
        _print_step_error(error)
        raise typer.Exit(1) from None

    def files() -> Iterator[File]:
        from stoker.lab.plots.batch_size_results import batch_figure

        yield "batch.json", found.save
        yield "batch.png", batch_figure(found).savefig

    conclude(
        found,
        lambda width: [batch_table(found, width=width), *format_notes(batch_remarks(found))],
        files(),
        out=out,
        is_json=json,
        is_interrupted=found.is_interrupted,
        is_ok=found.largest is not None,
    )


def _print_step_error(error: Exception) -> None:
    """Print an error of the user's step with its traceback, without Stoker's frames."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    cause = error.__cause__
    if cause is not None:
        console.print(Text(str(cause).rstrip(), style="dim"), soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), (f"{type(error).__name__}: {error}", "red")), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        console.print(Text(note), soft_wrap=True)
