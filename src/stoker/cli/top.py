"""`stoker top`: show running loaders."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from stoker.cli.program import check_program, has_dashes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stoker.lab.diagnose.diagnosis import Diagnosis
    from stoker.lab.live import Tail, Tracks
    from stoker.lab.watch.run import Run

PATIENCE = 0.25
"""Maximum polling interval in seconds without a terminal: lines appear almost at once."""

NUM_LINES = 12
"""Maximum lines of the command's output shown."""

TAIL_BYTES = 1 << 14

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Escape sequences that move the cursor or change colors: removed from the shown output."""


def top(
    ctx: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | -- COMMAND",
            help="Stats files written by `loader.log_stats(FILE)`; or two dashes and a command.",
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the current stats and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Refresh interval in seconds.")] = 1.0,
) -> None:
    """Show running loaders: throughput, steps, waiting, stages, queue, CPU, memory and verdict.

    Follows files written by `loader.log_stats("run.jsonl", every=2)`, and waits for those that do not exist yet. Ranks
    may share a file or have one each. Without a terminal, it prints one line per record. Press Ctrl-C to exit.

    A command after two dashes runs unchanged; its loaders, torch's too, are watched as by `stoker doctor`. The terminal
    shows the end of the command's output, and all of it when the command ends. The exit code is the command's.

    Example: [bold cyan]stoker top run.jsonl[/]

    Example: [bold cyan]stoker top --once rank*.jsonl[/]

    Example: [bold cyan]stoker top -- python train.py[/]
    """
    from rich.console import Console

    console = Console(highlight=False)
    if has_dashes(ctx) or not _are_files(what):
        _refuse_once(once)
        check_program(what, command="top", has_dashes=has_dashes(ctx))
        raise typer.Exit(run_and_show(what, console, every=every))
    from stoker.lab.live import Tail, Tracks

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
        pass  # the normal way to exit


def _are_files(what: list[str]) -> bool:
    """Return whether these are files, perhaps not yet existing, rather than a command given without dashes."""
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
            "--once works with files only: a command has no stats when it starts",
            hint="`stoker doctor -- COMMAND` prints a diagnosis when the command ends",
        )


def _read(tails: list[Tail], tracks: Tracks) -> bool:
    """Read new records; return whether there were any."""
    is_new = False
    for tail in tails:
        records = tail.read()
        tracks.add(records, source=str(tail.path))
        is_new = is_new or bool(records)
    return is_new


def _live(tails: list[Tail], tracks: Tracks, console: Console, every: float) -> None:
    """Draw full-screen until Ctrl-C, then print the last frame."""
    from rich.live import Live

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                _read(tails, tracks)
                live.update(_frame(tails, tracks, console, height=console.height), refresh=True)
                time.sleep(every)
    finally:
        console.print(_frame(tails, tracks, console))  # in full: the terminal can scroll


def _lines(tails: list[Tail], tracks: Tracks, every: float) -> None:
    """Print a line for each loader with new stats, until Ctrl-C."""
    from stoker.lab.live import line

    for tail in tails:
        if tail.changed is None:
            print(f"waiting for {tail.path}", file=sys.stderr, flush=True)
    printed: dict[int, object] = {}
    while True:
        if _read(tails, tracks):
            for track in tracks.all:
                if printed.get(id(track)) is not track.latest:
                    printed[id(track)] = track.latest
                    print(line(track), flush=True)
        time.sleep(min(every, PATIENCE))


def _frame(tails: list[Tail], tracks: Tracks, console: Console, *, height: int | None = None) -> RenderableType:
    from stoker.lab.live import LiveFrame, letters_of

    now = time.time()
    ages = {str(tail.path): now - changed for tail in tails if (changed := tail.changed) is not None}
    remarks = [f"waiting for {tail.path}" for tail in tails if tail.changed is None]
    remarks += [f"nothing in {tail.path} yet" for tail in tails if tail.changed is not None and not len(tracks)]
    remarks += [f"{tail.num_bad:,} lines of {tail.path} are not records" for tail in tails if tail.num_bad]
    return LiveFrame(
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
    from stoker.lab.diagnose.verdict import diagnose
    from stoker.lab.watch.run import Run

    loaders = [track.latest for track in tracks.all]
    return diagnose(Run(loaders=loaders, seconds=max(stats.seconds for stats in loaders)))


def _check_something_is_there(tails: list[Tail], tracks: Tracks) -> None:
    from stoker.errors import ArgumentError

    if len(tracks):
        return
    gone = [str(tail.path) for tail in tails if tail.changed is None]
    hint = 'loader.log_stats("run.jsonl", every=2) writes records; without --once, `stoker top` waits for them'
    if gone:
        raise ArgumentError(f"file {gone[0]} does not exist", hint=hint)
    raise ArgumentError(f"{tails[0].path} contains no loader records", hint=hint)


def run_and_show(command: list[str], console: Console, *, every: float) -> int:
    """Run a command, show its loaders above the end of its output until it ends, and return its exit code."""
    from stoker.foundation.processes import block_forwarded_signals
    from stoker.lab.watch.watched_command import watch_command

    block_forwarded_signals()

    if not console.is_terminal:
        return watch_command(command, on_run=_TopLines(), every_seconds=every).code
    from rich.live import Live

    # unnamed, so that nothing is left behind however this process ends
    with tempfile.TemporaryFile() as output:
        screen = _TopScreen(output, console)
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                attended = watch_command(
                    command,
                    on_run=lambda run: live.update(screen.drawn(run), refresh=True),
                    every_seconds=every,
                    output=output.fileno(),
                )
        finally:
            _print_output(output)
        console.print(screen.drawn(attended.run, with_output=False))
        for failure in attended.failures:
            last = failure.strip().splitlines()[-1:]
            print(f"watching failed in a process, which continued without it ({''.join(last)})", file=sys.stderr)
        return attended.code


class _TopScreen:
    """The contents of the screen."""

    def __init__(self, output: IO[bytes], console: Console) -> None:
        from stoker.lab.live import Tracks, letters_of

        self._output, self._letters, self._console = output, letters_of(console), console
        self._tracks = Tracks()

    def drawn(self, run: Run, *, with_output: bool = True) -> RenderableType:
        """Return the stats so far, and the end of the command's output."""
        from rich.console import Group
        from rich.text import Text

        from stoker.lab.diagnose.verdict import diagnose
        from stoker.lab.live import LiveFrame

        self._tracks.add(run.loaders)
        lines, height = [], None
        if with_output:
            lines = last_lines(self._output, max(3, min(NUM_LINES, self._console.height // 3)))
            height = max(1, self._console.height - max(1, len(lines)))
        above: RenderableType = Text("no batches yet", style="dim")
        if len(self._tracks):
            above = LiveFrame(self._tracks, diagnosis=diagnose(run), letters=self._letters, height=height)
        if not with_output:
            return above
        return Group(Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis"), above)


class _TopLines:
    """Prints a line to stderr for each loader with new batches; stdout belongs to the command."""

    def __init__(self) -> None:
        from stoker.lab.live import Tracks

        self._tracks = Tracks()
        self._num_printed: dict[int, int] = {}

    def __call__(self, run: Run) -> None:
        from stoker.lab.live import line

        self._tracks.add(run.loaders)
        for track in self._tracks.all:
            if track.latest.num_batches and self._num_printed.get(id(track)) != track.latest.num_batches:
                self._num_printed[id(track)] = track.latest.num_batches
                try:
                    print(line(track), file=sys.stderr, flush=True)
                except OSError:  # the reader is gone; the command continues
                    return


def last_lines(output: IO[bytes], num: int) -> list[str]:
    """Return the last lines of a command's output, without escape sequences."""
    size = os.fstat(output.fileno()).st_size
    begin = max(0, size - TAIL_BYTES)
    text = os.pread(output.fileno(), TAIL_BYTES, begin).decode(errors="replace")
    # for a line rewritten with carriage returns, as by progress bars, the last state counts
    lines = [_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]
    if begin:
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines[-num:]


def _print_output(output: IO[bytes]) -> None:
    """Print the full output of the command after the screen is closed."""
    output.seek(0)
    sys.stdout.flush()
    try:
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except OSError:  # the reader is gone
        pass
