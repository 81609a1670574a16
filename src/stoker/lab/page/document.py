"""Assemble the page: one self-contained file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.resources import files

from stoker._version import __version__
from stoker.foundation.text import format_bytes, format_count, format_duration, format_number, format_percent
from stoker.lab.page import colors
from stoker.lab.page.comparison import differences, settings, summarize
from stoker.lab.page.durations import durations
from stoker.lab.page.each_core import each_core
from stoker.lab.page.figures import tiles
from stoker.lab.page.frame import missing, section
from stoker.lab.page.machine_use import cores_time, memory
from stoker.lab.page.markup import Child, Markup, join, tag
from stoker.lab.page.occupancy import occupancy
from stoker.lab.page.processes import places, processes
from stoker.lab.page.ranks import ranks
from stoker.lab.page.settings import copies, decisions, settings_tables
from stoker.lab.page.subject import MOST_OTHERS, Loader, Subject
from stoker.lab.page.timeline import timeline
from stoker.lab.page.verdict_card import card


def document(subjects: Sequence[Subject], *, title: str | None = None) -> str:
    """Return the HTML page about a run, or comparing two runs."""
    run = subjects[0]
    heading = title or (run.title if len(subjects) == 1 else f"{run.title} vs. {subjects[1].title}")
    parts = [part for part in _parts(subjects) if part is not None]
    style = colors.style() + files(__package__).joinpath("page.css").read_text("utf-8")
    script = files(__package__).joinpath("page.js").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"stoker {__version__}"),
        tag("title", f"{heading} - stoker report"),
        tag("link", rel="icon", href="data:,"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the verdict", href="#verdict", class_="skip"),
        _header(heading, subjects),
        tag("nav", [tag("a", _TITLES[ident], href=f"#{ident}") for ident, _ in parts], aria_label="Parts of this page"),
        tag("main", *(part for _, part in parts)),
        tag("footer", tag("p", f"Made by stoker {__version__}. This file needs no network and sends no data.")),
        tag("div", id="tip", role="tooltip", hidden=True),
        Markup(f"<script>{script}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _policy(script: str) -> str:
    """Return the content security policy: inline styles, only the page's own script, no external resources."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"


_TITLES = {
    "verdict": "Verdict",
    "figures": "Figures",
    "differences": "Differences",
    "batches": "Batches",
    "time": "Time",
    "workers": "Workers",
    "ranks": "Ranks",
    "machine": "Machine",
    "others": "Other loaders",
    "settings": "Settings",
}


def _header(heading: str, subjects: Sequence[Subject]) -> Markup:
    return tag(
        "header",
        tag("p", "stoker report", class_="brand"),
        tag("h1", heading),
        [tag("p", _about(one), class_="about") for one in subjects],
    )


def _about(subject: Subject) -> Child:
    run, machine = subject.run, subject.run.machine
    how = "watched" if subject.is_watched else "in the loop"
    facts = [f"{how} for {format_duration(run.seconds)}" if run.seconds else ""]
    if subject.lead is not None:
        stats = subject.lead.stats
        facts.append(format_count(stats.num_batches, "batch", "batches") + f" of {subject.lead.name}")
        facts.append(format_count(stats.num_ranks, "rank") if stats.num_ranks > 1 else "")
    known = {"cores": "{} cores", "memory_bytes": "{}", "system": "{}", "architecture": "{}", "python": "Python {}"}
    for name, form in known.items():
        if machine.get(name) is not None:
            value = format_bytes(machine[name]) if name == "memory_bytes" else str(machine[name])
            facts.append(form.format(value))
    return join(
        tag("strong", f"{subject.name}: ") if subject.name else None,
        f"{run.title}; " if subject.name and run.title else None,
        ", ".join(filter(None, facts)),
    )


def _parts(subjects: Sequence[Subject]) -> Iterator[tuple[str, Markup]]:
    """Yield the sections of the page with their ids, in order."""
    run = subjects[0]
    is_compared = len(subjects) > 1
    cards = [card(one.diagnosis, of=one.name, is_folded=is_compared) for one in subjects]
    comes_to = summarize(*subjects) if is_compared else None
    yield "verdict", tag("section", comes_to, tag("div", cards, class_="cards"), id="verdict", aria_label="Verdict")
    if is_compared:
        yield "differences", section("differences", "Differences", differences(*subjects), settings(*subjects))
    else:
        shown = tiles(run) or missing("No loader was found, so there are no figures.")
        yield "figures", section("figures", "Figures", _rank_note(run), shown)
    if any(one.lead is not None for one in subjects):
        yield from _about_loaders(subjects)
    several = [ranks(group, of=_of(one.name)) for one in subjects for group in one.groups]
    if any(several):
        yield "ranks", section("ranks", "Ranks", *several)
    yield "machine", section("machine", "Machine", *_machine(subjects))
    others = [*_others(subjects)]
    if others:
        yield "others", section("others", "Other loaders", *others)
    yield "settings", section("settings", "Settings", *(settings_tables(one) for one in subjects))


def _rank_note(subject: Subject) -> Markup | None:
    """Return a note on which rank the figures belong to, if there are several."""
    if subject.lead is None or len(subject.groups[0].loaders) < 2:
        return None
    text = f"Figures of {subject.lead.rank_name}, which waits longest for data, unless noted otherwise."
    return tag("p", text, class_="lead")


def _about_loaders(subjects: Sequence[Subject]) -> Iterator[tuple[str, Markup]]:
    known = [(one, one.lead) for one in subjects if one.lead is not None]
    leads = [(_lead_name(one, lead), lead) for one, lead in known]
    timelines = [timeline(loader, ident=f"timeline-{at}", of=_of(name)) for at, (name, loader) in enumerate(leads)]
    yield "batches", section("batches", "Batches", *timelines, durations(leads))
    times = [(_lead_name(one, lead), lead.stats, one.run if one.is_watched else None) for one, lead in known]
    yield "time", section("time", "Time", occupancy(times))
    found: list[Child] = []
    for name, loader in leads:
        of = _of(name)
        found += [processes(loader.stats, of=of), places(loader.stats, of=of)]
        found += [copies(loader.stats, of=of), decisions(loader.stats, of=of)]
    yield "workers", section("workers", "Workers", *found)


def _machine(subjects: Sequence[Subject]) -> Iterator[Child]:
    """Yield memory and cores, separately for each file of a run: each may come from another machine."""
    runs = [
        (f"{one.name} {f'part {at + 1}' if len(one.parts) > 1 else ''}".strip(), part)
        for one in subjects
        for at, part in enumerate(one.parts or [one.run])
    ]
    yield memory(runs)
    yield cores_time(runs)
    yield each_core(runs)


def _others(subjects: Sequence[Subject]) -> Iterator[Markup]:
    number = len(subjects)
    for one in subjects:
        for loader in one.others[:MOST_OTHERS]:
            yield tag(
                "details",
                tag("summary", f"{one.name} {loader.name}".strip(), tag("span", _line(loader), class_="tail")),
                timeline(loader, ident=f"timeline-{number}"),
                durations([("", loader)]),
                occupancy([("", loader.stats, None)]),
                processes(loader.stats),
                places(loader.stats),
                copies(loader.stats),
                decisions(loader.stats),
                class_="loader",
            )
            number += 1
        if len(one.others) > MOST_OTHERS:
            yield missing(f"{len(one.others) - MOST_OTHERS:,} more appear only in the tables of ranks.")


def _line(loader: Loader) -> str:
    stats = loader.stats
    return (
        f"{format_count(stats.num_batches, 'batch', 'batches')}, {format_number(stats.samples_per_second)} samples/s, "
        f"waiting {format_percent(stats.wait_share)}"
    )


def _lead_name(subject: Subject, lead: Loader) -> str:
    """Return the display name of the main loader: its run and its rank, if there are several."""
    has_ranks = len(subject.groups[0].loaders) > 1
    return ", ".join(filter(None, (subject.name, lead.rank_name if has_ranks else "")))


def _of(name: str) -> str:
    return f", {name}" if name else ""
