"""A run as a page: one HTML file with the verdict, the figures and charts, which opens from disk without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import ArgumentError

if TYPE_CHECKING:
    from stoker.bench.diagnosis import Diagnosis
    from stoker.bench.run import Run
    from stoker.view.page.subject import Subject

__all__ = ["Report", "report"]


class Report:
    """A page about a run. Notebooks show it by itself, `.save("report.html")` writes it, `str` is its HTML."""

    def __init__(self, page: str, diagnoses: Sequence[Diagnosis]) -> None:
        self.html = page
        self.diagnoses = list(diagnoses)
        """What is said about the run, and about the one it is compared with."""

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all, and return where it is."""
        from stoker.bench.whole_file import whole_or_not

        path = Path(path)
        whole_or_not(path, self.html)
        return path

    def __str__(self) -> str:
        return self.html

    def __repr__(self) -> str:
        said = " beside ".join(one.verdict for one in self.diagnoses)
        return f"<Report: {said}; .save(path) writes it>"

    def _repr_html_(self) -> str:
        inside = html.escape(self.html)
        return f'<iframe srcdoc="{inside}" style="width:100%;height:900px;border:0" title="stoker report"></iframe>'


def report(run: Any, *, against: Any = None, title: str | None = None) -> Report:
    """Return a page about a run: verdict, figures, timeline, durations, stages, workers, ranks, memory, cores.

    `run` is a `stoker.bench.run.Run`; or several of them, if each rank has recorded its own; or a loader, of which the
    page then tells what it has counted so far: not memory and cores over time, which somebody has to look at
    (`stoker doctor`, `stoker.watch`).

    Args:
        against: another run to compare it with, such as the one before a change.
        title: what stands at the top; by default what was run.
    """
    from stoker.view.page.document import document

    subjects = [_subject(run, "" if against is None else "this run")]
    if against is not None:
        subjects.append(_subject(against, "baseline"))
    return Report(document(subjects, title=title), [one.diagnosis for one in subjects])


def _subject(given: Any, name: str) -> Subject:
    from stoker.bench.parts import joined
    from stoker.bench.verdict import diagnose
    from stoker.view.page.subject import Subject

    parts = [_run_of(one) for one in given] if isinstance(given, list | tuple) else [_run_of(given)]
    run = joined(parts)
    return Subject(run, diagnose(run), name, parts)


def _run_of(given: Any) -> Run:
    from stoker.bench.run import Run, Stats
    from stoker.foundation.machine import described

    if isinstance(given, Run):
        return given
    if isinstance(given, Stats):
        return Run(title=given.name, machine=described(), seconds=given.seconds, loaders=[given])
    if callable(seen := getattr(given, "run", None)) and isinstance(run := seen(), Run):  # it is watched
        return run
    if callable(counted := getattr(given, "stats", None)) and isinstance(stats := counted(laps=True), Stats):
        title = f"{type(given).__name__} of {type(given.dataset).__name__}"
        return Run(title=title, machine=described(), seconds=stats.seconds, loaders=[stats])
    raise ArgumentError(
        f"{type(given).__name__} tells nothing of a run",
        hint="give a stoker.bench.run.Run, a loader of stoker's, or any other that stoker.watch watches",
    )
