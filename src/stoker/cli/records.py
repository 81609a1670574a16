"""What was recorded of a run, as verbs are given it: records, and logs of counters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.bench.run import Run

SUFFIXES = (".json", ".jsonl")
"""How the names of such files end."""


def loaded(paths: list[Path]) -> list[Run]:
    """Return the parts of one run, as they are; what does not belong together is refused by its names."""
    from stoker.bench.parts import joined
    from stoker.bench.run import Run

    runs = [_counted(path) or Run.load(path) for path in paths]
    joined(runs, names=[str(path) for path in paths])
    return runs


def _counted(path: Path) -> Run | None:
    """Return what a log of counters told last, of each loader and rank; None if the file is none."""
    from stoker.bench.run import Run
    from stoker.view.live import Tail, Tracks, is_log

    if not path.is_file() or not is_log(path):
        return None
    tracks = Tracks()
    tracks.add(Tail(path).read())
    loaders = [track.latest for track in tracks.all]
    return Run(title=path.name, seconds=max(stats.seconds for stats in loaders), loaders=loaders) if loaders else None
