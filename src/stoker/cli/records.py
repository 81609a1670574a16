"""Load the records given to commands: run records, and logs of counters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.lab.watch.run import Run

SUFFIXES = (".json", ".jsonl")
"""File name suffixes of records."""


def load_records(paths: list[Path]) -> list[Run]:
    """Load the parts of one run; raise an error that names files that do not belong together."""
    from stoker.lab.watch.run import Run, join_runs

    runs = [_load_log(path) or Run.load(path) for path in paths]
    join_runs(runs, names=[str(path) for path in paths])
    return runs


def _load_log(path: Path) -> Run | None:
    """Return the latest counters of each loader and rank in a log; None if the file is not a log."""
    from stoker.lab.live import Tail, Tracks, is_log
    from stoker.lab.watch.run import Run

    if not path.is_file() or not is_log(path):
        return None
    tracks = Tracks()
    tracks.add(Tail(path).read())
    loaders = [track.latest for track in tracks.all]
    return Run(title=path.name, seconds=max(stats.seconds for stats in loaders), loaders=loaders) if loaders else None
