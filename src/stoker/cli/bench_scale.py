"""`stoker bench scale`: how the cost of loading grows, and where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from stoker.cli.trials import File, Json, Out


def scale(
    over: Annotated[
        list[str] | None,
        typer.Option(help="What to vary: samples, workers, ranks or steps; may be repeated.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer places, each measured twice.")] = False,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Measurements at each place, interleaved.", show_default="5; quick: 2")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.5, help="What would take longer at one place is left out.", show_default="10; quick: 3"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="What would take more is left out: 2GiB.", show_default="a quarter of what is free, 4 GiB"),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure how a loader's cost grows: with samples (to 10^9), workers, ranks and steps done.

    Samples cost nothing here, so that what is left is the loader's own: the time to the first batch, of a batch, of a
    state, and memory. torch's DataLoader, and StatefulDataLoader where it is installed, run beside ours as far as the
    limits on time and memory let them. A slope of 0 is a flat line.

    Example: [bold cyan]stoker bench scale --quick[/]

    Example: [bold cyan]stoker bench scale --out measured[/]
    """
    from stoker.bench.scale import PLACES, QUICK, measure_scale
    from stoker.bench.scale_record import AXES, Limit
    from stoker.cli.sizes import bytes_in
    from stoker.cli.trials import check_out, conclude, listed, progress, text_file
    from stoker.view.scale_tables import scale_remarks, scale_table

    check_out(out)
    most = Limit.usual().memory_bytes if memory is None else bytes_in(memory, "--memory")
    limit = Limit(seconds=seconds or (3.0 if quick else 10.0), memory_bytes=most)
    with progress() as watch:
        found = measure_scale(
            axes=over or AXES,
            repetitions=repeat or (2 if quick else 5),
            places=QUICK if quick else PLACES,
            limit=limit,
            tell=watch,
        )

    def files() -> Iterator[File]:
        from stoker.view.scale_plots import scale_figure

        yield "scale.json", found.save
        yield "scale.csv", text_file(found.csv)
        yield "scale.png", scale_figure(found).savefig

    conclude(
        found,
        lambda width: [scale_table(found, width=width), *listed(scale_remarks(found))],
        files(),
        out=out,
        is_json=json,
        is_interrupted=found.is_interrupted,
    )
