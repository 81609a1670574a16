"""`stoker report`: a page about a run that was watched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="The record of a run, or what `loader.log_stats(FILE)` has written, of which the latest counters are "
            "shown; several, if each rank or machine has written its own.",
        ),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="The record of another run to compare it with. Once for each of its parts."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="What stands at the top; by default what was run.")] = None,
) -> None:
    """Write a page about a run: verdict, figures, timeline of batches, stages, workers, ranks, memory, cores.

    It is one file, which any browser opens from disk, without a network. `stoker doctor --save run.json -- python
    train.py` writes a record of a run.

    Example: [bold cyan]stoker report run.json -o report.html[/]

    Example: [bold cyan]stoker report after.json --against before.json[/]

    Example: [bold cyan]stoker report rank0.json rank1.json[/]

    Example: [bold cyan]stoker report live.jsonl[/]
    """
    _check_output(out, [*runs, *(against or ())])
    from stoker.cli.records import loaded
    from stoker.foundation.text import format_bytes
    from stoker.view import report as reported

    page = reported(loaded(runs), against=loaded(against) if against else None, title=title)
    page.save(out)
    for diagnosis, whose in zip(page.diagnoses, ("", "baseline: ")):
        print(f"{whose}{diagnosis.verdict}: {diagnosis.says}")
    print(f"{out}: {format_bytes(len(page.html.encode()))}")


def _check_output(out: Path, inputs: list[Path]) -> None:
    from stoker.errors import ArgumentError

    if out.is_dir():
        raise ArgumentError(f"{out} is a folder", hint=f"name a file in it, such as {out / 'report.html'}")
    if not out.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {out.absolute().parent}", hint="make it first, or write elsewhere")
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise ArgumentError(f"{out} is one of the records to be read", hint="write the page elsewhere: -o report.html")
