"""`stoker doctor`: what holds a training back, from watching it, or from a record of it."""

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
"""The exit code of `--fail`, where the command itself went well."""


def doctor(
    ctx: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN.json | -- COMMAND...", help="Records of a run, logs of counters, or two dashes and a command."
        ),
    ],
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the record of the run to this file, for stoker report.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as a line of JSON to stdout.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="End the command after so long, counted from its first batch."),
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail", help=f"Exit with {NOT_HEALTHY} unless the loader keeps up: for CI.")
    ] = False,
) -> None:
    """Say what holds a training back: one verdict, the evidence, the possible gain, what to change.

    The command runs unchanged, with your input, output and signals; torch's loaders and Stoker's are watched in it, in
    all its processes. What the doctor says goes to stderr. Its exit code is the command's own (128 and the number of
    the signal, if one ended it), or 0 if --seconds has ended it; 127 if there is no such command.

    Records of several machines may be given together: they are taken for parts of one run.

    Example: [bold cyan]stoker doctor -- python train.py --lr 3e-4[/]

    Example: [bold cyan]stoker doctor --save run.json --seconds 60 -- torchrun --nproc-per-node 4 train.py[/]

    Example: [bold cyan]stoker doctor run.json[/]

    Example: [bold cyan]stoker doctor live.jsonl[/], a log that `loader.log_stats` writes
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

        attended = watch_command(what, seconds=seconds)
        code, run = 0 if attended.was_stopped else attended.code, attended.run
        notes = _notes(attended.had_loaders, attended.failures)
    from stoker.lab.diagnose.verdict import diagnose

    diagnosis = diagnose(run)
    console = _console(is_error=not is_record)
    # told first: what a whole run was watched for is not lost with a disk that is full
    if json:
        _print_if_read(diagnosis.as_json())
    else:
        _show(diagnosis, notes, console)
    if save is not None:
        run.save(save)
        if not json:
            console.print(
                f"\nThe record is in {save}: stoker report {save} -o report.html", soft_wrap=True, markup=False
            )
    raise typer.Exit(code or (NOT_HEALTHY if fail and not diagnosis.is_healthy else 0))


def _print_if_read(line: str) -> None:
    """Print a line; if nobody reads any more, what is left to do is done all the same."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _close_quietly(1)


def _close_quietly(descriptor: int) -> None:
    """Let what is still to be flushed go nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)


def _console(*, is_error: bool) -> Console:
    """Return what to print to. If nobody reads any more, nothing is printed; the exit code stays the command's."""
    from rich.console import Console

    class Unheard(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            _close_quietly(self.file.fileno())

    return Unheard(stderr=is_error, highlight=False)


def _refuse_for_records(save: Path | None, seconds: float | None) -> None:
    from stoker.errors import ArgumentError

    if save is not None or seconds is not None:
        raise ArgumentError(
            "--save and --seconds are for commands that are watched, not for records",
            hint="write a command after two dashes: stoker doctor --save run.json -- python train.py",
        )


def _check_output(save: Path | None) -> None:
    from stoker.errors import ArgumentError

    if save is not None and not save.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {save.absolute().parent}", hint="make it first, or save elsewhere")
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
        last = text.strip().splitlines()[-1] if text.strip() else "no word of why"
        notes.append(f"watching failed in a process, which went on without it ({last})")
    return notes


def _show(diagnosis: Diagnosis, notes: list[str], console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    colour = "green" if diagnosis.is_healthy else "yellow" if diagnosis.verdict == "nothing-seen" else "red"
    console.print()
    console.print(Text.assemble((diagnosis.verdict, f"bold {colour}"), (f": {diagnosis.says}", "bold")))
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}")

    def listed(title: str, lines: list[str], marks: list[str]) -> None:
        if lines:
            table = Table.grid(padding=(0, 1, 0, 0))
            table.add_column()
            table.add_column(overflow="fold")
            for mark, line in zip(marks, lines):
                table.add_row(f"  {mark}", Text(line))
            console.print(f"\n[bold]{title}[/]")
            console.print(table)

    dashes = ["-"] * len(diagnosis.evidence)
    listed("evidence", diagnosis.evidence, dashes)
    listed("possible gain", [diagnosis.gain] if diagnosis.gain is not None else [], [" "])
    listed("what to do", diagnosis.advice, [f"{number}." for number in range(1, len(diagnosis.advice) + 1)])
    also = [f"{one.about}: {one.what}\n{one.advice}" for one in diagnosis.findings]
    listed("also", also, ["-"] * len(also))
