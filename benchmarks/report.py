"""The report of a benchmark: a table on the screen, a plot and a record as files, a section of the results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from stoker.foundation.machine import described
from stoker.lab.plots.plotting import LOADERS
from stoker.lab.trial.rounds import Measurement
from stoker.lab.watch.record_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "benchmarks"
RESULTS = HERE / "results"

INK = {
    **{name: LOADERS[name] for name in ("torch", "StatefulDataLoader", "stoker")},
    "1 thread": "#2b6ca3",
    "2 threads": "#123c69",
    "SPDL, processes": "#8fbf7f",
    "SPDL, arena": "#2e7d4f",
    "Grain": "#7a4fa3",
}
"""A color for each contender, the same in all plots."""

PACKAGES = ("torch", "torchdata", "spdl", "grain", "numpy", "stoker")
"""Packages whose versions are recorded by default; Stoker comes last."""


Saved = Mapping[str, Any]
"""What a benchmark writes beside its records: `extra` of its report."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a benchmark is to run."""

    is_quick: bool = False
    """A smoke test of a few seconds; its numbers mean nothing."""
    device: str | None = None
    """Where batches are delivered, where that can be measured: "cuda", or None for host memory."""
    texts: tuple[str, ...] = ()
    """Text files to prepare, instead of generated text."""
    photos: str | None = None
    """Folder of photographs, instead of generated ones."""
    faces: str | None = None
    """Folder of faces, instead of generated ones."""
    num_workers: int = 2
    """Workers of each loader, in benchmarks with that option."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, for benchmarks that measure more than times."""

    title: str
    format: Callable[[Measurement], str]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a benchmark."""

    name: str
    title: str
    records: list[Measurement]
    shows: list[str]
    """Findings, one sentence with numbers each."""
    limits: list[str]
    """What the numbers do not show."""
    draw: Callable[[list[Measurement], Saved], Figure]
    """Draws the plot from records and `extra`, of this run or of one that was saved."""
    columns: Sequence[Column] = ()
    """Columns of the table, if not the times."""
    extra: dict[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = PACKAGES
    """Packages whose versions are recorded."""
    load: list[float] = field(default_factory=list)
    """Load average of the machine before and after."""


def describe_machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return the kind of machine, with the versions of the packages, and nothing that identifies it."""
    import torch

    found = described()
    for name in packages:
        with suppress(PackageNotFoundError):  # a peer that is not installed is left out
            found[name] = version(name)
    if torch.cuda.is_available():
        found |= {"accelerator": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def show(report: Report, console: Console) -> None:
    """Print the table and the findings."""
    console.print(_table(report))
    for sentence in report.shows:
        console.print(f"  {sentence}")
    console.print()


def write(report: Report, folder: Path) -> None:
    """Write the record and the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "name": report.name,
        "title": report.title,
        "date": date.today().isoformat(),
        "machine": describe_machine(report.packages),
        "load_average": report.load,
        "shows": report.shows,
        "limits": report.limits,
        **report.extra,
        "records": [_rounded(_plain(record)) for record in report.records],
    }
    write_atomically(folder / f"{report.name}.json", _json(found))
    _save_figure(report.draw(report.records, report.extra), folder / f"{report.name}.png")


def redraw(name: str, draw: Callable[[list[Measurement], Saved], Figure]) -> Path:
    """Draw the plot of a saved result again; return its path."""
    saved = json.loads((RESULTS / f"{name}.json").read_text())
    path = RESULTS / f"{name}.png"
    _save_figure(draw([Measurement(**record) for record in saved["records"]], saved), path)
    return path


def _save_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, bbox_inches="tight")


def save(report: Report) -> None:
    """Write record, plot and section to the results."""
    write(report, RESULTS)
    path = RESULTS / "README.md"
    text = path.read_text() if path.exists() else _PREFACE
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))
    sections[report.name] = _section(report)
    path.write_text(
        _PREFACE + "".join(f"## {name}\n{sections[name].rstrip()}\n\n" for name in sorted(sections)).rstrip() + "\n"
    )


_PREFACE = """# Results

Made by `python -m benchmarks --save`; each section is rewritten by its own run. Contenders take turns within one
run, so ratios mean more than times: another machine has other times. All numbers are in the `.json` beside each plot.

"""


def _section(report: Report) -> str:
    kind = describe_machine(report.packages)
    packages = ", ".join(f"{_NAMES.get(name, name)} {kind[name]}" for name in report.packages[:-1] if name in kind)
    where = (
        f"{kind['cores']} cores ({kind['architecture']}, {kind['system']}), "
        + (f"{kind['accelerator']}, " if "accelerator" in kind else "")
        + f"Python {kind['python']}, {packages}; "
        f"load average {' before and '.join(f'{load:.1f}' for load in report.load)} after"
    )
    lines = ["", report.title + ".", "", f"*{date.today().isoformat()}; {where}.*", ""]
    lines += [f"![{report.title}]({report.name}.png)", "", "It shows:", ""]
    lines += [f"- {sentence}" for sentence in report.shows]
    lines += ["", "It does not show:", ""]
    lines += [f"- {sentence}" for sentence in report.limits]
    if report.columns:
        titles, rows = _rows(report)
        lines += ["", f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
        lines += [f"| {' | '.join(row)} |" for row, _ in rows]
    return "\n".join(lines) + "\n"


_NAMES = {"numpy": "NumPy", "spdl": "SPDL", "grain": "Grain"}


def _rows(report: Report) -> tuple[list[str], list[tuple[list[str], bool]]]:
    """Return the titles and the rows of a report with columns of its own, each with whether a new case begins."""
    names = list(dict.fromkeys(name for record in report.records for name in record.case))
    rows = []
    before: list[str] | None = None
    for record in report.records:
        case = [_format_value(record.case.get(name, "")) for name in names]
        rows.append(([*case, record.contender, *(column.format(record) for column in report.columns)], case != before))
        before = case
    return [*names, "contender", *(column.title for column in report.columns)], rows


def _own_table(report: Report) -> Table:
    table = Table(title=report.title, title_justify="left", header_style="bold")
    titles, rows = _rows(report)
    num_left = len(titles) - len(report.columns)
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if place < num_left else "right")
    for place, (row, is_new) in enumerate(rows):
        if is_new and place:
            table.add_section()
        table.add_row(*(row if is_new else [""] * (num_left - 1) + row[num_left - 1 :]))
    return table


def _table(report: Report) -> Table:
    if report.columns:
        return _own_table(report)
    table = Table(title=report.title, title_justify="left", header_style="bold")
    names = list(dict.fromkeys(name for record in report.records for name in record.case))
    for name in names:
        table.add_column(name)
    table.add_column("contender")
    for name in ("best", "median", "p90", "CPU"):
        table.add_column(f"{name} µs", justify="right")
    table.add_column("of reference:\nbest", justify="right")
    table.add_column("\nmedian", justify="right")
    table.add_column("per", style="dim")
    before: dict[str, Any] | None = None
    for record in report.records:
        if before is not None and _kind_of(record.case) != _kind_of(before):
            table.add_section()
        case = ["" if record.case == before else _format_value(record.case.get(name, "")) for name in names]
        times = [_microseconds(time) for time in (record.best, record.median, record.p90, record.median_cpu)]
        ratios = [
            "" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
            for ratio in (record.best_ratio, record.median_ratio)
        ]
        table.add_row(*case, record.contender, *times, *ratios, record.unit)
        before = record.case
    return table


def _kind_of(case: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name not in ("size", "step")}


def power(number: int) -> str:
    """Return a power of ten as one: 10^6."""
    digits = str(number)
    return f"10^{len(digits) - 1}" if digits == "1" + "0" * (len(digits) - 1) and number >= 1000 else digits


def only(records: Sequence[Measurement], contender: str | None = None, **case: Any) -> list[Measurement]:
    """Return the records of a contender in the cases that have these values."""
    return [
        record
        for record in records
        if contender in (None, record.contender) and all(record.case.get(name) == value for name, value in case.items())
    ]


def span(values: Sequence[float], digits: int = 2) -> str:
    """Return the range of `values` in words."""
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _format_value(value: Any) -> str:
    return power(value) if isinstance(value, int) else str(value)


def _microseconds(time: float) -> str:
    return f"{time:,.1f}" if time < 1000 else f"{time:,.0f}"


def _plain(record: Measurement) -> dict[str, Any]:
    found = asdict(record)
    if not found["more"]:
        del found["more"]
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def _json(found: dict[str, Any]) -> str:
    """Return JSON with one record in a line."""
    records = found.pop("records")
    head = json.dumps(found, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(record, ensure_ascii=False)}" for record in records)
    return f'{head},\n "records": [\n{lines}\n ]\n}}\n'
