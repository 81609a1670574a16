"""`python -m benchmarks.scale`: measure how the cost of loading grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from benchmarks.scale.growth import PLACES, QUICK, measure_scale
from benchmarks.scale.plots import scale_figure
from benchmarks.scale.record import AXES, Limit
from benchmarks.scale.tables import scale_remarks, scale_table
from stoker.cli.app import errors_as_messages
from stoker.cli.trials import File, Json, Out, check_out, conclude, format_notes, parse_bytes, progress, text_file

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def scale(
    over: Annotated[
        list[str] | None,
        typer.Option(help="What to vary: samples, workers, ranks or steps; may be repeated.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer sizes, each twice.")] = False,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Measurements per size, interleaved.", show_default="5; quick: 2")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.5, help="Time limit in seconds per size; skip what would exceed it.", show_default="10; quick: 3"
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit, such as 2GiB; skip what would exceed it.",
            show_default="a quarter of the free memory, at most 4 GiB",
        ),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure how a loader's cost grows: with samples (to 10^9), workers, ranks and steps done.

    Samples cost nothing to load here, so what remains is the cost of the loader: time to the first batch, per batch
    and per state_dict, and memory. torch's DataLoader, and StatefulDataLoader if installed, are measured too, within
    the limits on time and memory. A slope of 0 is a flat line.

    Example: python -m benchmarks.scale --quick

    Example: python -m benchmarks.scale --out measured
    """
    with errors_as_messages():
        check_out(out)
        most = Limit.usual().memory_bytes if memory is None else parse_bytes(memory, "--memory")
        limit = Limit(seconds=seconds or (3.0 if quick else 10.0), memory_bytes=most)
        with progress() as watch:
            found = measure_scale(
                axes=over or AXES,
                repetitions=repeat or (2 if quick else 5),
                places=QUICK if quick else PLACES,
                limit=limit,
                notify=watch,
            )

        def files() -> Iterator[File]:
            yield "scale.json", found.save
            yield "scale.csv", text_file(found.csv)
            yield "scale.png", scale_figure(found).savefig

        conclude(
            found,
            lambda width: [scale_table(found, width=width), *format_notes(scale_remarks(found))],
            files(),
            out=out,
            is_json=json,
            is_interrupted=found.is_interrupted,
        )


if __name__ == "__main__":
    app()
