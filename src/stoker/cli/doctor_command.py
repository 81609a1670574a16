"""`stoker doctor`: diagnose what slows a run down, by watching it or from its record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.program import check_program, has_dashes
from stoker.cli.records import SUFFIXES, load_records

if TYPE_CHECKING:
    from rich.console import Console

    from stoker.lab.diagnose.diagnosis import Diagnosis

NOT_HEALTHY = 3
"""Exit code of `--fail` if the command itself succeeded."""


def doctor(
    ctx: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN.json | -- COMMAND...", help="Run records, stats logs, or two dashes and a command to run."
        ),
    ],
    save: Annotated[Path | None, typer.Option("--save", help="Save the run record here, for stoker report.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis to stdout as a line of JSON.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="Stop the command this many seconds after its first batch."),
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail", help=f"Exit with {NOT_HEALTHY} unless the loader keeps up: for CI.")
    ] = False,
) -> None:
    """Diagnose what is slowing training down: one verdict, the evidence, the possible gain, what to change.

    The command runs unchanged, with your input, output and signals. Torch's and Stoker's loaders are watched in all its
    processes. The diagnosis goes to stderr. The exit code is the command's own (128 plus the signal's number if a
    signal ended it), 0 if --seconds ended it, and 127 if the command does not exist.

    Several records given together, such as those of several machines, count as parts of one run.

    Example: [bold cyan]stoker doctor -- python train.py --lr 3e-4[/]

    Example: [bold cyan]stoker doctor --save run.json --seconds 60 -- torchrun --nproc-per-node 4 train.py[/]

    Example: [bold cyan]stoker doctor run.json[/]

    Example: [bold cyan]stoker doctor live.jsonl[/], a log written by `loader.log_stats`
    """
    is_record = all(part.endswith(SUFFIXES) for part in what) and not has_dashes(ctx)
    if is_record:
        _refuse_for_records(save, seconds)
        from stoker.lab.watch.run import join_runs

        code, run, notes = 0, join_runs(load_records([Path(part) for part in what])), []
    else:
        check_program(what, command="doctor", has_dashes=has_dashes(ctx))
        _check_output(save)
        from stoker.foundation.processes import block_forwarded_signals

        block_forwarded_signals()
        from stoker.lab.watch.watched_command import watch_command

        watched = watch_command(what, seconds=seconds)
        code, run = 0 if watched.was_stopped else watched.code, watched.run
        notes = _notes(watched.had_loaders, watched.failures)
    from stoker.lab.diagnose.verdict import diagnose

    diagnosis = diagnose(run)
    console = _console(is_error=not is_record)
    # printed before saving, which fails if the disk is full
    if json:
        _print_if_read(diagnosis.as_json())
    else:
        print_diagnosis(diagnosis, console, notes=notes)
    if save is not None:
        run.save(save)
        if not json:
            console.print(
                f"\nThe record is in {save}: stoker report {save} -o report.html", soft_wrap=True, markup=False
            )
    raise typer.Exit(code or (NOT_HEALTHY if fail and not diagnosis.is_healthy else 0))


def _print_if_read(line: str) -> None:
    """Print a line; continue if the reader of stdout is gone."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _discard_output(1)


def _discard_output(descriptor: int) -> None:
    """Send whatever is still to be flushed to /dev/null."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)


def _console(*, is_error: bool) -> Console:
    """Return a console that goes quiet if its reader is gone, so that the exit code stays the command's."""
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            _discard_output(self.file.fileno())

    return QuietConsole(stderr=is_error, highlight=False)


def _refuse_for_records(save: Path | None, seconds: float | None) -> None:
    from stoker.errors import ArgumentError

    if save is not None or seconds is not None:
        raise ArgumentError(
            "--save and --seconds work with a command to watch, not with records",
            hint="write a command after two dashes: stoker doctor --save run.json -- python train.py",
        )


def _check_output(save: Path | None) -> None:
    from stoker.errors import ArgumentError

    if save is not None and not save.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {save.absolute().parent}", hint="create it, or save elsewhere")
    if save is not None and save.is_dir():
        raise ArgumentError(f"{save} is a folder", hint=f"name a file in it: --save {save / 'run.json'}")


def _notes(had_loaders: bool, failures: list[str]) -> list[str]:
    notes = []
    if not had_loaders:
        notes.append(
            "no process of the command has imported torch.utils.data or stoker where it could be watched: "
            "is it Python, run without -I, -E or -S, and with the PYTHONPATH that the doctor gives it?"
        )
    for text in failures:
        last = text.strip().splitlines()[-1] if text.strip() else "unknown reason"
        notes.append(f"watching failed in a process, which continued without it ({last})")
    return notes


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, notes: list[str] | None = None) -> None:
    """Print a diagnosis with colors, wrapped to the console's width."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    color = "green" if diagnosis.is_healthy else "yellow" if diagnosis.verdict == "nothing-seen" else "red"
    console.print()
    console.print(Text.assemble((diagnosis.verdict, f"bold {color}"), (f": {diagnosis.says}", "bold")))
    for note in notes or ():
        console.print(f"[yellow]note:[/] {escape(note)}")
    for title, lines in diagnosis.sections():
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column()
        table.add_column(overflow="fold")
        for mark, line in lines:
            table.add_row(f"  {mark}", Text(line))
        console.print(f"\n[bold]{title}[/]")
        console.print(table)
