"""What the verbs that measure share: options, lists of numbers, progress, and how results are told and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text

    from stoker.bench.sweep import Sweep, Watch
    from stoker.engine.stats import Plain

FUNCTION = "MODULE:FUNCTION"
"""What functions are named by in a command's help."""

LoaderTarget = Annotated[
    str,
    typer.Argument(metavar=FUNCTION, help="What makes the loader: `module:function` or `file.py:function`."),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar=FUNCTION, help="What makes the step done between batches: it returns a function of one batch."
    ),
]
Repeat = Annotated[int, typer.Option(min=1, help="Trials of each configuration; their order changes every time.")]
Seconds = Annotated[float, typer.Option(min=0.05, help="Count so long in each trial.")]
Batches = Annotated[int | None, typer.Option(min=2, help="Count so many batches in each trial instead.")]
Timeout = Annotated[float, typer.Option(min=1, help="Give up a trial after so many seconds.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="A folder for the numbers (JSON, CSV) and plots (PNG).", show_default="none"),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")]

File: TypeAlias = tuple[str, Callable[[Path], object]]
"""The name of a file, and what writes it to a path."""


def numbers(text: str | None, option: str) -> list[int] | None:
    """Return a list of numbers given as `0,1,2,4` or `1-4`, or both."""
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
            f"{option} {text!r} is not a list of numbers", hint=f"write {option} 0,1,2,4 or {option} 1-4"
        )
    return list(dict.fromkeys(found))


def check_out(out: Path | None) -> None:
    """Refuse, before anything is measured, where results could not be written or drawn."""
    if out is None:
        return
    from stoker.errors import ArgumentError
    from stoker.view.plotting import require_matplotlib

    require_matplotlib()
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"{out} is not a folder", hint="give the name of a folder; it is made if need be")
    out.mkdir(parents=True, exist_ok=True)


@contextmanager
def progress() -> Iterator[Watch]:
    """Show how far a measurement is, on the error stream, while the block is open."""
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
        disable=not console.is_terminal,  # or an empty line would be all that is seen of it
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
    """Print what was measured, as one JSON object or as what `shown` gives for so many columns; then write it.

    It is printed first: what has taken an hour is not lost with a disk that is full. `files` are drawn one by one, each
    when the one before it is there, and only if there is a folder for them. It ends with an error code if it was
    interrupted, or did not go well.
    """
    from rich.console import Console
    from rich.text import Text

    from stoker.cli.app import INTERRUPTED
    from stoker.view.columns import MANY

    console = Console(highlight=False, quiet=is_json)
    if is_json:
        print(record.as_json(), flush=True)
    else:
        width = console.width
        console.width = MANY  # tables are as narrow as they can be: if that is not enough, lines run on uncut
        for one in shown(width):
            console.print(one, soft_wrap=isinstance(one, Text))
    if is_interrupted:
        console.print(Text("- interrupted: only what was done by then is here"), soft_wrap=True)
    try:
        for path in _written(files, out) if out is not None else ():
            console.print(Text.assemble(("wrote", "dim"), f" {path}"), soft_wrap=True)
    except KeyboardInterrupt:
        console.print(Text("- interrupted: only the files above were written"), soft_wrap=True)
        is_interrupted = True
    if is_interrupted or not is_ok:
        raise typer.Exit(INTERRUPTED if is_interrupted else 1)


def _written(files: Iterable[File], out: Path) -> Iterator[Path]:
    """Write files to a folder; yield each when it is there."""
    for name, write in files:
        path = out / name
        try:
            write(path)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        yield path


def text_file(text: Callable[[], str]) -> Callable[[Path], object]:
    """Return what writes a text to a path, for `conclude`; it is made only then."""
    from stoker.bench.whole_file import whole_or_not

    return lambda path: whole_or_not(path, text())


def listed(remarks: Iterable[str]) -> Iterator[Text]:
    """Yield what has to be said beside a table, for `conclude`. Names in it are the user's: nothing is markup."""
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
    """Do what `conclude` does with the trials of several configurations.

    `table` gets the columns there are; `record` is told as JSON if that is more than the sweep; `verdict` comes last.
    """
    from dataclasses import replace

    told = record or replace(sweep, run=None)
    is_ok = any(trial.is_ok for trial in sweep.trials)

    def shown(width: int) -> Iterator[Table | Text]:
        from rich.text import Text

        from stoker.view.bench_tables import failures, remarks, title

        yield Text(title(sweep))
        if is_ok:
            yield table(width)
        yield from listed(remarks(sweep))
        yield from failures(sweep)
        if verdict is not None:
            yield verdict

    def files() -> Iterator[File]:
        from stoker.bench.record_file import save_record

        yield f"{sweep.verb}.json", lambda path: save_record(told, path)
        yield f"{sweep.verb}.csv", text_file(sweep.results_csv)
        yield f"{sweep.verb}_trials.csv", text_file(sweep.trials_csv)
        yield f"{sweep.verb}_processes.csv", text_file(sweep.processes_csv)
        if sweep.run is not None:  # before the plots, which can be drawn again
            yield "run.json", sweep.run.save
        for name, figure in figures().items():
            yield f"{name}.png", figure.savefig

    conclude(told, shown, files(), out=out, is_json=is_json, is_interrupted=sweep.is_interrupted, is_ok=is_ok)
