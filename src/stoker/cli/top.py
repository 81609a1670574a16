"""`stoker top`: loaders while they run."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.commands import check_command
from stoker.cli.given import has_dashes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stoker.bench.diagnosis import Diagnosis
    from stoker.view.live import Tail, Tracks

PATIENCE = 0.25
"""Seconds between two looks at the files where there is no terminal, at the most: a line appears as good as at once."""


def top(
    ctx: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | -- COMMAND",
            help="Files of stats, which `loader.log_stats(FILE)` writes; or two dashes and a command.",
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print what the files tell, and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds from one picture to the next.")] = 1.0,
) -> None:
    """Show loaders while they run: throughput, steps, waiting, stages, queue, CPU, memory, and the verdict.

    It follows files that `loader.log_stats("run.jsonl", every=2)` writes, and waits for those that are not there yet.
    Several ranks may share a file or have one each. Where there is no terminal, it prints a line for each record.
    Ctrl-C ends it.

    A command after two dashes runs as it is; loaders in it, torch's too, are watched as `stoker doctor` does. The
    terminal shows the end of what it writes, and all of it when it is over. Its exit code is the command's.

    Example: [bold cyan]stoker top run.jsonl[/]

    Example: [bold cyan]stoker top --once rank*.jsonl[/]

    Example: [bold cyan]stoker top -- python train.py[/]
    """
    from rich.console import Console

    console = Console(highlight=False)
    if has_dashes(ctx) or not _are_files(what):
        _refuse_once(once)
        check_command(what, verb="top", has_dashes=has_dashes(ctx))
        from stoker.cli.top_command import shown

        raise typer.Exit(shown(what, console, every=every))
    from stoker.view.live import Tail, Tracks

    tails = [Tail(path) for path in what]
    tracks = Tracks()
    if once:
        _read(tails, tracks)
        _check_something_is_there(tails, tracks)
        console.print(_frame(tails, tracks, console))
        return
    try:
        if console.is_terminal:
            _live(tails, tracks, console, every)
        else:
            _lines(tails, tracks, every)
    except KeyboardInterrupt:
        pass  # the way to end it


def _are_files(what: list[str]) -> bool:
    """Whether these are files, of which some may come later, and not a command that somebody gave without dashes."""
    first = Path(what[0])
    if first.suffix in (".json", ".jsonl"):
        return True
    return shutil.which(what[0]) is None and not (first.is_file() and len(what) > 1 and _is_script(first))


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _refuse_once(once: bool) -> None:
    from stoker.errors import ArgumentError

    if once:
        raise ArgumentError(
            "--once is for files, and a command has not told anything yet when it starts",
            hint="`stoker doctor -- COMMAND` tells once, when the command is over",
        )


def _read(tails: list[Tail], tracks: Tracks) -> bool:
    """Take what is new; say whether anything was."""
    is_new = False
    for tail in tails:
        records = tail.read()
        tracks.add(records, source=str(tail.path))
        is_new = is_new or bool(records)
    return is_new


def _live(tails: list[Tail], tracks: Tracks, console: Console, every: float) -> None:
    """Draw on the whole screen until Ctrl-C, and leave the last picture when that is over."""
    from rich.live import Live

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                _read(tails, tracks)
                live.update(_frame(tails, tracks, console, height=console.height), refresh=True)
                time.sleep(every)
    finally:
        console.print(_frame(tails, tracks, console))  # whole: what is no longer seen can be scrolled to


def _lines(tails: list[Tail], tracks: Tracks, every: float) -> None:
    """Print a line for each loader that has told something new, until Ctrl-C."""
    from stoker.view.live import line

    for tail in tails:
        if tail.changed is None:
            print(f"waiting for {tail.path}", file=sys.stderr, flush=True)
    told: dict[int, object] = {}
    while True:
        if _read(tails, tracks):
            for track in tracks.all:
                if told.get(id(track)) is not track.latest:
                    told[id(track)] = track.latest
                    print(line(track), flush=True)
        time.sleep(min(every, PATIENCE))


def _frame(tails: list[Tail], tracks: Tracks, console: Console, *, height: int | None = None) -> RenderableType:
    from stoker.view.live import frame, letters_of

    now = time.time()
    ages = {str(tail.path): now - changed for tail in tails if (changed := tail.changed) is not None}
    remarks = [f"waiting for {tail.path}" for tail in tails if tail.changed is None]
    remarks += [f"nothing in {tail.path} yet" for tail in tails if tail.changed is not None and not len(tracks)]
    remarks += [f"{tail.num_bad:,} lines of {tail.path} are no records" for tail in tails if tail.num_bad]
    return frame(
        tracks,
        diagnosis=_diagnosis(tracks),
        ages=ages,
        remarks=remarks,
        letters=letters_of(console),
        height=height,
    )


def _diagnosis(tracks: Tracks) -> Diagnosis | None:
    if not len(tracks):
        return None
    from stoker.bench.run import Run
    from stoker.bench.verdict import diagnose

    loaders = [track.latest for track in tracks.all]
    return diagnose(Run(loaders=loaders, seconds=max(stats.seconds for stats in loaders)))


def _check_something_is_there(tails: list[Tail], tracks: Tracks) -> None:
    from stoker.errors import ArgumentError

    if len(tracks):
        return
    gone = [str(tail.path) for tail in tails if tail.changed is None]
    hint = 'loader.log_stats("run.jsonl", every=2) writes records; without --once, `stoker top` waits for them'
    if gone:
        raise ArgumentError(f"there is no file {gone[0]}", hint=hint)
    raise ArgumentError(f"{tails[0].path} holds no record of a loader", hint=hint)
