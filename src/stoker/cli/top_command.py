"""Run a command and show its loaders, above the end of its output."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from typing import IO, TYPE_CHECKING

from stoker.foundation.processes import block_forwarded_signals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stoker.lab.watch.run import Run

NUM_LINES = 12
"""Maximum lines of the command's output shown."""

TAIL_BYTES = 1 << 14

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Escape sequences that move the cursor or change colors: removed from the shown output."""


def run_and_show(command: list[str], console: Console, *, every: float) -> int:
    """Run a command, show its loaders until it ends, and return its exit code."""
    block_forwarded_signals()
    from stoker.lab.watch.watched_command import watch_command

    if not console.is_terminal:
        return watch_command(command, teller=_Lines(), every_seconds=every).code
    from rich.live import Live

    # unnamed, so that nothing is left behind however this process ends
    with tempfile.TemporaryFile() as output:
        picture = _Screen(output, console)
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                attended = watch_command(
                    command,
                    teller=lambda run: live.update(picture.drawn(run), refresh=True),
                    every_seconds=every,
                    output=output.fileno(),
                )
        finally:
            _print_output(output)
        console.print(picture.drawn(attended.run, with_output=False))
        for failure in attended.failures:
            last = failure.strip().splitlines()[-1:]
            print(f"watching failed in a process, which continued without it ({''.join(last)})", file=sys.stderr)
        return attended.code


class _Screen:
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
        from stoker.lab.live import frame

        self._tracks.add(run.loaders)
        lines, height = [], None
        if with_output:
            lines = last_lines(self._output, max(3, min(NUM_LINES, self._console.height // 3)))
            height = max(1, self._console.height - max(1, len(lines)))
        if len(self._tracks):
            above = frame(self._tracks, diagnosis=diagnose(run), letters=self._letters, height=height)
        else:
            above = Text("no batches yet", style="dim")
        if not with_output:
            return above
        return Group(Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis"), above)


class _Lines:
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
