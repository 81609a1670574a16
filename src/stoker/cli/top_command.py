"""A command that is shown while it runs: its loaders above, the end of what it writes below."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from typing import IO, TYPE_CHECKING

from stoker.bench.signals import keep_signals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stoker.bench.run import Run

NUM_LINES = 12
"""Lines of the command's output that are shown, at the most."""

TAIL_BYTES = 1 << 14

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""What moves the cursor or changes colours: it belongs to a screen of the command's own."""


def shown(command: list[str], console: Console, *, every: float) -> int:
    """Run a command, show its loaders until it is over, and return its exit code."""
    keep_signals()
    from stoker.bench.attendance import attend

    if not console.is_terminal:
        return attend(command, teller=_Lines(), every_seconds=every).code
    from rich.live import Live

    # it has no name, so that nothing is left of it whatever ends us
    with tempfile.TemporaryFile() as output:
        picture = _Picture(output, console)
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                attended = attend(
                    command,
                    teller=lambda run: live.update(picture.drawn(run), refresh=True),
                    every_seconds=every,
                    output=output.fileno(),
                )
        finally:
            _printed(output)
        console.print(picture.drawn(attended.run, with_output=False))
        for failure in attended.failures:
            last = failure.strip().splitlines()[-1:]
            print(f"watching failed in a process, which went on without it ({''.join(last)})", file=sys.stderr)
        return attended.code


class _Picture:
    """What the screen shows."""

    def __init__(self, output: IO[bytes], console: Console) -> None:
        from stoker.view.live import Tracks, letters_of

        self._output, self._letters, self._console = output, letters_of(console), console
        self._tracks = Tracks()

    def drawn(self, run: Run, *, with_output: bool = True) -> RenderableType:
        """Return what was seen so far, and the end of what the command has written."""
        from rich.console import Group
        from rich.text import Text

        from stoker.bench.verdict import diagnose
        from stoker.view.live import frame

        self._tracks.add(run.loaders)
        lines, height = [], None
        if with_output:
            lines = last_lines(self._output, max(3, min(NUM_LINES, self._console.height // 3)))
            height = max(1, self._console.height - max(1, len(lines)))
        if len(self._tracks):
            above = frame(self._tracks, diagnosis=diagnose(run), letters=self._letters, height=height)
        else:
            above = Text("no batch has come yet", style="dim")
        if not with_output:
            return above
        return Group(Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis"), above)


class _Lines:
    """Prints a line for each loader that has gone on, to stderr: the output is the command's."""

    def __init__(self) -> None:
        from stoker.view.live import Tracks

        self._tracks = Tracks()
        self._told: dict[int, int] = {}

    def __call__(self, run: Run) -> None:
        from stoker.view.live import line

        self._tracks.add(run.loaders)
        for track in self._tracks.all:
            if track.latest.num_batches and self._told.get(id(track)) != track.latest.num_batches:
                self._told[id(track)] = track.latest.num_batches
                try:
                    print(line(track), file=sys.stderr, flush=True)
                except OSError:  # nobody reads it any more; the command goes on
                    return


def last_lines(output: IO[bytes], num: int) -> list[str]:
    """Return the end of what a command has written, without what belongs to a screen."""
    size = os.fstat(output.fileno()).st_size
    begin = max(0, size - TAIL_BYTES)
    text = os.pread(output.fileno(), TAIL_BYTES, begin).decode(errors="replace")
    # of a line that is written again and again, as progress bars do, the last state counts
    lines = [_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]
    if begin:
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines[-num:]


def _printed(output: IO[bytes]) -> None:
    """Print all that the command has written, now that the screen is free."""
    output.seek(0)
    sys.stdout.flush()
    try:
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except OSError:  # nobody reads it any more
        pass
