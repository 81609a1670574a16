"""`stoker report`: write a page about a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Record of a run, or a file written by `loader.log_stats(FILE)`, whose latest counters are shown; "
            "several if each rank or machine has written its own.",
        ),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="Record of another run to compare with; repeat for each of its parts."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Output file.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page (default: the command that was run).")] = None,
) -> None:
    """Write a page about a run: verdict, figures, timeline of batches, stages, workers, ranks, memory, cores.

    The page is one HTML file, which any browser opens without a network. `stoker doctor --save run.json -- python
    train.py` records a run.

    Example: [bold cyan]stoker report run.json -o report.html[/]

    Example: [bold cyan]stoker report after.json --against before.json[/]

    Example: [bold cyan]stoker report rank0.json rank1.json[/]

    Example: [bold cyan]stoker report live.jsonl[/]
    """
    _check_output(out, [*runs, *(against or ())])
    from stoker.cli.records import load_records
    from stoker.foundation.text import format_bytes
    from stoker.lab.page import report as make_report

    page = make_report(load_records(runs), against=load_records(against) if against else None, title=title)
    page.save(out)
    for diagnosis, whose in zip(page.diagnoses, ("", "baseline: ")):
        print(f"{whose}{diagnosis.verdict}: {diagnosis.says}")
    print(f"{out}: {format_bytes(len(page.html.encode()))}")


def _check_output(out: Path, inputs: list[Path]) -> None:
    from stoker.errors import ArgumentError

    if out.is_dir():
        raise ArgumentError(f"{out} is a folder", hint=f"give a file name, such as {out / 'report.html'}")
    if not out.absolute().parent.is_dir():
        raise ArgumentError(
            f"folder {out.absolute().parent} does not exist", hint="create it first, or write elsewhere"
        )
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise ArgumentError(f"{out} is one of the input records", hint="write the page elsewhere: -o report.html")
