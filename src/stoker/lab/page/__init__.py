"""Write a run as one self-contained HTML file: verdict, figures and charts; opens from disk without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import ArgumentError

if TYPE_CHECKING:
    from stoker.lab.diagnose.diagnosis import Diagnosis
    from stoker.lab.page.reported_run import ReportedRun
    from stoker.lab.watch.run import Run

__all__ = ["RunReport", "report"]


class RunReport:
    """An HTML page about a run. Notebooks display it, `.save("report.html")` writes it, `str` returns the HTML."""

    def __init__(self, page: str, diagnoses: Sequence[Diagnosis]) -> None:
        self.html = page
        self.diagnoses = list(diagnoses)
        """The diagnosis of the run, and of the run it is compared with."""

    def save(self, path: str | Path) -> Path:
        """Write the page to a file atomically, and return its path."""
        from stoker.lab.watch.record_file import write_atomically

        path = Path(path)
        write_atomically(path, self.html)
        return path

    def __str__(self) -> str:
        return self.html

    def __repr__(self) -> str:
        verdicts = " vs. ".join(one.verdict for one in self.diagnoses)
        return f"<RunReport: {verdicts}; .save(path) writes it>"

    def _repr_html_(self) -> str:
        inside = html.escape(self.html)
        return f'<iframe srcdoc="{inside}" style="width:100%;height:900px;border:0" title="stoker report"></iframe>'


def report(run: Any, *, against: Any = None, title: str | None = None) -> RunReport:
    """Make a page about a run: verdict, figures, timeline, durations, stages, workers, ranks, memory, cores.

    `run` is a `stoker.lab.watch.run.Run` (or a list, one per rank), or a loader. For a loader, the page
    shows what it has counted so far. Memory and cores over time need sampling: `stoker doctor`, `stoker.watch`.

    Args:
        against: another run to compare it with, such as the one before a change.
        title: title of the page (default: the command that was run).
    """
    from stoker.lab.page.document import document

    runs = [_reported_run(run, "" if against is None else "this run")]
    if against is not None:
        runs.append(_reported_run(against, "baseline"))
    return RunReport(document(runs, title=title), [one.diagnosis for one in runs])


def _reported_run(given: Any, name: str) -> ReportedRun:
    from stoker.lab.diagnose.verdict import diagnose
    from stoker.lab.page.reported_run import ReportedRun
    from stoker.lab.watch.run import join_runs

    parts = [_run_of(one) for one in given] if isinstance(given, list | tuple) else [_run_of(given)]
    run = join_runs(parts)
    return ReportedRun(run, diagnose(run), name, parts)


def _run_of(given: Any) -> Run:
    from stoker.foundation.machine import described
    from stoker.lab.watch.run import Run, Stats

    if isinstance(given, Run):
        return given
    if isinstance(given, Stats):
        return Run(title=given.name, machine=described(), seconds=given.seconds, loaders=[given])
    if callable(seen := getattr(given, "run", None)) and isinstance(run := seen(), Run):  # a stoker.watch
        return run
    if callable(counted := getattr(given, "stats", None)) and isinstance(stats := counted(laps=True), Stats):
        title = f"{type(given).__name__} of {type(given.dataset).__name__}"
        return Run(title=title, machine=described(), seconds=stats.seconds, loaders=[stats])
    raise ArgumentError(
        f"expected a run or a loader, got {type(given).__name__}",
        hint="pass a stoker.lab.watch.run.Run, a Stoker loader, or a loader wrapped by stoker.watch",
    )
