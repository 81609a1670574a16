"""Shared by the measuring commands: options, lists of numbers, progress, and output of results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text

    from stoker.engine.stats import Plain
    from stoker.lab.trial.sweep import Sweep, Watch

FUNCTION = "MODULE:FUNCTION"
"""Metavar for functions in help texts."""

LoaderTarget = Annotated[
    str,
    typer.Argument(metavar=FUNCTION, help="Function that returns the loader: `module:function` or `file.py:function`."),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar=FUNCTION, help="Function that returns the training step, `step(batch)`, to run between batches."
    ),
]
Repeat = Annotated[int, typer.Option(min=1, help="Trials per configuration, in changing order.")]
Seconds = Annotated[float, typer.Option(min=0.05, help="Seconds to measure in each trial.")]
Batches = Annotated[int | None, typer.Option(min=2, help="Batches to measure in each trial, instead of seconds.")]
Timeout = Annotated[float, typer.Option(min=1, help="Abort a trial after this many seconds.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Output folder for numbers (JSON, CSV) and plots (PNG).", show_default="none"),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]

File: TypeAlias = tuple[str, Callable[[Path], object]]
"""File name, and a function that writes the file to a path."""


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """Parse a list of numbers given as `0,1,2,4` or `1-4`, or both."""
    from stoker.errors import ArgumentError

    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise ArgumentError(
            f"{option} must be a list of numbers, got {text!r}", hint=f"write {option} 0,1,2,4 or {option} 1-4"
        )
    return list(dict.fromkeys(found))


_BYTE_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")},
    **{letter: 1024 ** (power + 1) for power, letter in enumerate("KMGT")},
}


def parse_bytes(text: str, option: str) -> int:
    """Parse a size such as `2GiB`, `500 MB` or `1.5G` into bytes; errors name `option`."""
    from stoker.errors import ArgumentError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    units = {name.lower(): size for name, size in _BYTE_UNITS.items()}
    num_bytes = 0 if match is None else int(float(match[1]) * units.get(match[2].lower(), 0))
    if num_bytes < 1:
        raise ArgumentError(
            f"{option} must be a memory size, got {text!r}", hint=f"write {option} 2GiB or {option} 500MB"
        )
    return num_bytes


def check_out(out: Path | None) -> None:
    """Raise an error, before anything is measured, if results could not be written or drawn."""
    if out is None:
        return
    from stoker.errors import ArgumentError
    from stoker.lab.plots.plotting import require_matplotlib

    require_matplotlib()
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"{out} is not a folder", hint="give a folder; it is created if missing")
    out.mkdir(parents=True, exist_ok=True)


@contextmanager
def progress() -> Iterator[Watch]:
    """Show the progress of a measurement on stderr while the block is open."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # otherwise it would print only an empty line
    ) as bar:
        task = bar.add_task("starting", total=None)

        def watch(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield watch


def conclude(
    record: Plain,
    shown: Callable[[int], Iterable[Table | Text]],
    files: Iterable[File],
    *,
    out: Path | None,
    is_json: bool,
    is_interrupted: bool,
    is_ok: bool = True,
) -> None:
    """Print the results, as one JSON object or as `shown(width)`; then write the files.

    Results are printed first, so that an hour of measurements is not lost to a full disk. `files` are made one by one,
    and only if there is an output folder. Exit with an error code if the measurement was interrupted or failed.
    """
    from rich.console import Console
    from rich.text import Text

    from stoker.cli.app import INTERRUPTED
    from stoker.lab.plots.tables import MANY

    console = Console(highlight=False, quiet=is_json)
    if is_json:
        print(record.as_json(), flush=True)
    else:
        width = console.width
        console.width = MANY  # tables are as narrow as possible; beyond that, lines are not wrapped
        for one in shown(width):
            console.print(one, soft_wrap=isinstance(one, Text))
    if is_interrupted:
        console.print(Text("- interrupted: results so far"), soft_wrap=True)
    try:
        for path in _write_files(files, out) if out is not None else ():
            console.print(Text.assemble(("wrote", "dim"), f" {path}"), soft_wrap=True)
    except KeyboardInterrupt:
        console.print(Text("- interrupted: only the files above were written"), soft_wrap=True)
        is_interrupted = True
    if is_interrupted or not is_ok:
        raise typer.Exit(INTERRUPTED if is_interrupted else 1)


def _write_files(files: Iterable[File], out: Path) -> Iterator[Path]:
    """Write files to a folder; yield each path when it is written."""
    for name, write in files:
        path = out / name
        try:
            write(path)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        yield path


def text_file(text: Callable[[], str]) -> Callable[[Path], object]:
    """Return a function that writes a text to a path, for `conclude`; the text is made only then."""
    from stoker.lab.watch.record_file import write_atomically

    return lambda path: write_atomically(path, text())


def format_notes(remarks: Iterable[str]) -> Iterator[Text]:
    """Yield the notes on a table, for `conclude`. They contain user-defined names, so markup is disabled."""
    from rich.text import Text

    for remark in remarks:
        yield Text(f"- {remark}")


def conclude_sweep(
    sweep: Sweep,
    table: Callable[[int], Table],
    figures: Callable[[], dict[str, Figure]],
    *,
    out: Path | None,
    is_json: bool,
    record: Plain | None = None,
    verdict: Text | None = None,
) -> None:
    """Like `conclude`, for the trials of several configurations.

    `table` gets the available width; `record` replaces the sweep in the JSON output; `verdict` is printed last.
    """
    from dataclasses import replace

    saved = record or replace(sweep, run=None)
    is_ok = any(trial.is_ok for trial in sweep.trials)

    def shown(width: int) -> Iterator[Table | Text]:
        from rich.text import Text

        from stoker.lab.plots.sweep_tables import failures, format_title, remarks

        yield Text(format_title(sweep))
        if is_ok:
            yield table(width)
        yield from format_notes(remarks(sweep))
        yield from failures(sweep)
        if verdict is not None:
            yield verdict

    def files() -> Iterator[File]:
        from stoker.lab.watch.record_file import save_record

        yield f"{sweep.verb}.json", lambda path: save_record(saved, path)
        yield f"{sweep.verb}.csv", text_file(sweep.results_csv)
        yield f"{sweep.verb}_trials.csv", text_file(sweep.trials_csv)
        yield f"{sweep.verb}_processes.csv", text_file(sweep.processes_csv)
        if sweep.run is not None:  # before the plots, which can be redrawn
            yield "run.json", sweep.run.save
        for name, figure in figures().items():
            yield f"{name}.png", figure.savefig

    conclude(saved, shown, files(), out=out, is_json=is_json, is_interrupted=sweep.is_interrupted, is_ok=is_ok)
