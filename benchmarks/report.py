"""What a benchmark leaves behind: a table on the screen, a plot and a record as files, a section in the results."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from stoker.lab.trial.rounds import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out" / "benchmarks"
RESULTS = HERE / "results"

INK = {
    "torch": "#767676",
    "StatefulDataLoader": "#b8860b",
    "stoker": "#c8391b",
    "1 thread": "#2b6ca3",
    "2 threads": "#123c69",
    "SPDL, processes": "#8fbf7f",
    "SPDL, arena": "#2e7d4f",
    "Grain": "#7a4fa3",
}
"""One colour per contender in all plots."""

PACKAGES = ("torch", "torchdata", "spdl", "grain", "numpy", "stoker")
"""Whose versions are told, where a benchmark does not say; ours comes last."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a benchmark is to run."""

    is_quick: bool = False
    """Only see that everything works: a few seconds, numbers without meaning."""
    device: str | None = None
    """Where batches are to arrive, for benchmarks that can measure that: "cuda", or None for the host's memory."""
    texts: tuple[str, ...] = ()
    """Files of text to prepare, instead of text that is made up."""
    photos: str | None = None
    """A folder of photographs, instead of such as are made up."""
    faces: str | None = None
    """A folder of faces, likewise."""
    num_workers: int = 2
    """Of each loader, for benchmarks that let one choose."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, for benchmarks whose numbers are more than times."""

    title: str
    tell: Callable[[Measurement], str]


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found."""

    name: str
    title: str
    records: list[Measurement]
    shows: list[str]
    """What can be read from the numbers, one sentence with numbers each."""
    limits: list[str]
    """What must not be read from them."""
    draw: Callable[[], Figure]
    columns: Sequence[Column] = ()
    """What the table tells about each record, if not the times."""
    extra: dict[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = PACKAGES
    """Whose versions are told."""
    load: list[float] = field(default_factory=list)
    """Runnable processes on the machine before and after, ours among them: how quiet it was."""


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return what kind of machine this is, with the versions of what was compared, and nothing that tells which one."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: found for name in packages if (found := _version(name)) is not None},
        **_accelerator(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # a peer that is not installed is left out
        return None


def _accelerator() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {}
    return {"accelerator": torch.cuda.get_device_name(), "cuda": torch.version.cuda}


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
        "machine": machine(report.packages),
        "load_average": report.load,
        "shows": report.shows,
        "limits": report.limits,
        **report.extra,
        "records": [_rounded(_plain(record)) for record in report.records],
    }
    (folder / f"{report.name}.json").write_text(_json(found))
    figure = report.draw()
    figure.savefig(folder / f"{report.name}.png", dpi=110, bbox_inches="tight")


def save(report: Report) -> None:
    """Write record and plot to the results, and the section that tells about them."""
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
    kind = machine(report.packages)
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
        case = [_told(record.case.get(name, "")) for name in names]
        rows.append(([*case, record.contender, *(column.tell(record) for column in report.columns)], case != before))
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
        case = ["" if record.case == before else _told(record.case.get(name, "")) for name in names]
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


def _told(value: Any) -> str:
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
