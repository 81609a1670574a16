"""Assemble the page: one self-contained file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

from markupsafe import Markup

from stoker._version import __version__
from stoker.foundation.text import format_bytes, format_count, format_duration, format_number, format_percent
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdicts import VERDICTS
from stoker.lab.key_figures import TILE, figures_for
from stoker.lab.page.comparison import differences_figure, settings_figure, summarize
from stoker.lab.page.durations import durations
from stoker.lab.page.machine_use import core_strips, cpu_chart, memory_chart
from stoker.lab.page.reported_run import MAX_OTHERS, ReportedLoader, ReportedRun
from stoker.lab.page.run_tables import (
    copies_table,
    decisions_list,
    places_table,
    processes_table,
    ranks_table,
    settings_tables,
)
from stoker.lab.page.templating import capitalize, render
from stoker.lab.page.time_use import time_use
from stoker.lab.page.timeline import timeline


class _Section(NamedTuple):
    ident: str
    title: str
    parts: Sequence[Markup | None]


def document(runs: Sequence[ReportedRun], *, title: str | None = None) -> str:
    """Return the HTML page about a run, or comparing two runs."""
    is_compared = len(runs) > 1
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = render(
        "page.html",
        heading=title or " vs. ".join(one.run.title or "A run" for one in runs),
        version=__version__,
        # inline styles, only the page's own script, no external resources
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        style=Markup(style),
        script=Markup(script),
        runs=[(one, ", ".join(filter(None, _describe(one)))) for one in runs],
        answer=summarize(*runs) if is_compared else None,
        cards=[_verdict_card(one.diagnosis, of=one.name, is_folded=is_compared) for one in runs],
        sections=[*_sections(runs)],
    )
    return str(page)


def _describe(reported: ReportedRun) -> Iterator[str]:
    """Yield what is known about a run and its machine, in a few words each."""
    run, machine = reported.run, reported.run.machine
    how = "watched" if reported.is_watched else "in the loop"
    yield f"{how} for {format_duration(run.seconds)}" if run.seconds else ""
    if reported.lead is not None:
        stats = reported.lead.stats
        yield f"{format_count(stats.num_batches, 'batch', 'batches')} of {reported.lead.name}"
        yield format_count(stats.num_ranks, "rank") if stats.num_ranks > 1 else ""
    known = {"cores": "{} cores", "memory_bytes": "{}", "system": "{}", "architecture": "{}", "python": "Python {}"}
    for name, form in known.items():
        if (value := machine.get(name)) is not None:
            yield form.format(format_bytes(value) if name == "memory_bytes" else value)


def _verdict_card(diagnosis: Diagnosis, *, of: str = "", is_folded: bool = False) -> Markup:
    """Return the verdict with its evidence, gain and advice; `is_folded` collapses the evidence."""
    mood, sign = ("well", "\N{HEAVY CHECK MARK}") if diagnosis.is_healthy else ("ill", "!")
    if diagnosis.verdict == "nothing-seen":
        mood, sign = "unknown", "?"
    name = diagnosis.verdict if diagnosis.verdict.endswith("-bound") else diagnosis.verdict.replace("-", " ")
    whole = ""
    if diagnosis.gain and "of the time" in diagnosis.gain:
        is_of_batches = diagnosis.verdict == "slow-rank"  # a slow rank is late by that share of each batch
        whole = " (from batch to batch)" if is_of_batches else " (in the loop, including first batches)"
    verdict = VERDICTS.get(diagnosis.verdict)
    parts = {"why": diagnosis.evidence, "other findings": diagnosis.findings}
    return render(
        "verdict.html",
        diagnosis=diagnosis,
        of=of,
        mood=mood,
        sign=sign,
        name=capitalize(name),
        meaning=verdict.meaning if verdict is not None else None,
        whole=whole,
        summary=capitalize(", and ".join(name for name, found in parts.items() if found)) if is_folded else "",
    )


def _sections(runs: Sequence[ReportedRun]) -> Iterator[_Section]:
    if len(runs) > 1:
        yield _Section("differences", "Differences", [differences_figure(*runs), settings_figure(*runs)])
    else:
        yield _Section("figures", "Figures", [_tiles(runs[0])])
    leads = [(_lead_name(one), one.lead, one) for one in runs if one.lead is not None]
    if leads:
        named = [(name, loader) for name, loader, _ in leads]
        timelines = [timeline(loader, ident=f"timeline-{at}", of=_of(name)) for at, (name, loader) in enumerate(named)]
        yield _Section("batches", "Batches", [*timelines, durations(named)])
        times = [(name, loader.stats, one.run if one.is_watched else None) for name, loader, one in leads]
        yield _Section("time", "Time", [time_use(times)])
        yield _Section("workers", "Workers", [part for name, loader in named for part in _workers(loader, _of(name))])
    ranks = [ranks_table(group, of=_of(one.name)) for one in runs for group in one.groups]
    if any(ranks):
        yield _Section("ranks", "Ranks", ranks)
    # separately for each file of a run: each may come from another machine
    parts = [
        (f"{one.name} {f'part {at + 1}' if len(one.parts) > 1 else ''}".strip(), part)
        for one in runs
        for at, part in enumerate(one.parts or [one.run])
    ]
    yield _Section("machine", "Machine", [memory_chart(parts), cpu_chart(parts), core_strips(parts)])
    others = [*_others(runs)]
    if others:
        yield _Section("others", "Other loaders", others)
    yield _Section("settings", "Settings", [settings_tables(one) for one in runs])


def _tiles(run: ReportedRun) -> Markup:
    """Return the figures of the main loader as tiles."""
    has_ranks = run.lead is not None and len(run.groups[0].loaders) > 1
    return render(
        "tiles.html",
        rank=run.lead.rank_name if run.lead is not None and has_ranks else "",
        figures=figures_for(TILE),
        measured=run.measured,
    )


def _workers(loader: ReportedLoader, of: str = "") -> list[Markup | None]:
    stats = loader.stats
    return [
        processes_table(stats, of=of),
        places_table(stats, of=of),
        copies_table(stats, of=of),
        decisions_list(stats, of=of),
    ]


def _others(runs: Sequence[ReportedRun]) -> Iterator[Markup]:
    """Yield all loaders except the main one, collapsed."""
    number = len(runs)
    for run in runs:
        for loader in run.others[:MAX_OTHERS]:
            stats = loader.stats
            yield render(
                "loader.html",
                name=f"{run.name} {loader.name}".strip(),
                line=f"{format_count(stats.num_batches, 'batch', 'batches')}, "
                f"{format_number(stats.samples_per_second)} samples/s, waiting {format_percent(stats.wait_share)}",
                parts=[
                    timeline(loader, ident=f"timeline-{number}"),
                    durations([("", loader)]),
                    time_use([("", stats, None)]),
                    *_workers(loader),
                ],
            )
            number += 1
        if num_hidden := len(run.others[MAX_OTHERS:]):
            yield Markup('<p class="missing">{:,} more appear only in the tables of ranks.</p>').format(num_hidden)


def _lead_name(run: ReportedRun) -> str:
    """Return the display name of the main loader: its run and its rank, if there are several."""
    has_ranks = len(run.groups[0].loaders) > 1
    return ", ".join(filter(None, (run.name, run.lead.rank_name if run.lead is not None and has_ranks else "")))


def _of(name: str) -> str:
    return f", {name}" if name else ""
