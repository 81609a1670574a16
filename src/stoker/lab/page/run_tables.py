"""Tables of a run: ranks, processes, code locations, copies to the device, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stoker.foundation.text import (
    UNKNOWN,
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from stoker.lab.key_figures import SETTINGS, Measured, figures_for, find_slow_rank
from stoker.lab.page.reported_run import RankGroup, ReportedRun
from stoker.lab.page.templating import Bar, missing_figure, render
from stoker.lab.watch.run import ProcessStats, Stats

MAX_WORKERS = 256

NOT_SETTINGS = (
    "watched_share",
    "looked_at_worker",
    "threads_cpu_seconds",
    "threads_delay_seconds",
    "workers_before",
    "error",
)
"""Recorded facts that are not settings: how well the dataset could be watched, and measurements."""


def ranks_table(group: RankGroup, *, of: str = "") -> Markup | None:
    """Return the ranks of a loader side by side, the slowest marked; None if there is only one rank."""
    if len(group.loaders) < 2:
        return None
    ranks = [one.stats for one in group.loaders]
    slowest, usual_wait = find_slow_rank(ranks)
    most = max(one.step_seconds.mean + one.wait_seconds.mean for one in ranks) or 1.0
    return render(
        "ranks.html",
        title=f"Ranks of {group.name}{of}",
        caption=f"Ranks of {group.name}",
        num_ranks=len(ranks),
        slowest=slowest.rank if slowest is not None else None,
        wait=format_duration(slowest.wait_seconds.mean) if slowest is not None else "",
        others=format_duration(usual_wait),
        rows=[_rank_row(one, most) for one in ranks],
    )


def _rank_row(stats: Stats, most: float) -> dict[str, Any]:
    step, wait = stats.step_seconds, stats.wait_seconds
    return {
        "rank": stats.rank,
        "step_share": step.mean / most,
        "wait_share": wait.mean / most,
        "step": format_duration(step.mean),
        "wait": format_duration(wait.mean),
        "cells": [
            format_number(stats.samples_per_second),
            format_duration(step.p50),
            format_duration(step.p99),
            format_duration(wait.p99),
            format_percent(stats.wait_share),
            format_count(stats.num_stalls),
            format_duration(stats.making_seconds.p50) if stats.making_seconds.num else UNKNOWN,
        ],
    }


def processes_table(stats: Stats, *, of: str = "") -> Markup:
    """Return a table of trainer and workers: batches, time, memory."""
    title = f"Processes{of}"
    if stats.trainer is None and not stats.workers:
        return missing_figure(title, "No process was sampled, so their use is unknown.")
    shown = [*([stats.trainer] if stats.trainer is not None else []), *stats.workers[:MAX_WORKERS]]
    most_bytes = max(one.pss_bytes or 0 for one in shown)
    # a full bar is one core, or more if a process with threads uses more
    most_cores = max([1.0, *(one.cpu_seconds / stats.seconds for one in shown if stats.seconds)])
    note = "Memory is per process, at its last sample" if most_bytes else ""
    if note and stats.workers:
        note += (
            ". Pages shared by several processes are divided among them (PSS), so the trainer's memory grows when its "
            "workers exit; the memory chart shows both"
        )
    num_hidden = len(stats.workers[MAX_WORKERS:])
    return render(
        "table.html",
        title=title,
        lead=_describe_workers(stats),
        head=["process", "batches", "busy", "CPU", "waiting for a CPU", "disk reads", "memory at the end"],
        rows=[_process_row(one, stats.seconds, most_cores, most_bytes) for one in shown],
        caption="Processes, during the time in the loop",
        kind="bars folds",
        hidden=f"{format_count(num_hidden, 'more worker')} not listed." if num_hidden else "",
        note=f"{note}." if note else "",
    )


def _process_row(process: ProcessStats, seconds: float, most_cores: float, most_bytes: int) -> tuple[str | Bar, ...]:
    busy = process.busy_seconds / seconds if process.busy_seconds is not None and seconds else None
    cores = process.cpu_seconds / seconds if seconds else None
    delay = process.delay_seconds / seconds if process.delay_seconds is not None and seconds else None
    size = process.pss_bytes
    return (
        process.role,
        format_count(process.num_batches),
        UNKNOWN if busy is None else Bar(busy, "load", format_percent(busy)),
        format_duration(process.cpu_seconds) if cores is None else Bar(cores / most_cores, "step", format_cores(cores)),
        format_percent(delay),
        format_bytes(process.read_bytes),
        Bar(size / most_bytes, "send", format_bytes(size)) if size and most_bytes > 0 else UNKNOWN,
    )


def _describe_workers(stats: Stats) -> str | None:
    loaded = [one.num_batches for one in stats.workers if one.num_batches is not None]
    busy = [one.busy_seconds / stats.seconds for one in stats.workers if one.busy_seconds is not None and stats.seconds]
    if not loaded or not busy:
        return None
    each = " to ".join(f"{num:,}" for num in sorted({min(loaded), max(loaded)}))
    text = f"{format_count(len(loaded), 'worker')} loaded {each} batches each, and were"
    if len(loaded) == 1:
        text = f"One worker loaded {format_count(loaded[0], 'batch', 'batches')}, and was"
    return f"{text} busy {format_percent(sum(busy) / len(busy))} of the time in the loop, including first batches."


def places_table(stats: Stats, *, of: str = "") -> Markup | None:
    """Return the sampled code locations of workers; None if there are no samples."""
    sampled = stats.sampled
    if sampled is None or not sampled.places:
        return None
    lead = f"From {format_count(sampled.num, 'stack sample')}."
    if sampled.gil_share is not None:
        lead += (
            f" The GIL was held in {format_percent(sampled.gil_share)} of them, which means Python "
            "rather than native code."
        )
    return render(
        "table.html",
        title=f"Where workers spend their time{of}",
        lead=lead,
        head=["location", "share of samples"],
        rows=[
            (place, Bar(share, "load", format_percent(share)))
            for place, share in sorted(sampled.places.items(), key=lambda one: -one[1])[:20]
        ],
        caption="Code locations",
        kind="bars places",
    )


def copies_table(stats: Stats, *, of: str = "") -> Markup | None:
    """Return statistics of copies to the device; None if there are none."""
    copies = stats.copies
    if copies is None or not copies.num:
        return None

    def part(num: int) -> str:
        return f"{num:,} ({format_percent(num / copies.num)})"

    return render(
        "table.html",
        title=f"Copies to the device{of}",
        head=["", ""],
        rows=[
            ("copies to the device", format_count(copies.num)),
            ("from pageable memory, not pinned", part(copies.num_pageable)),
            ("that blocked the training loop", part(copies.num_blocking)),
            ("time in the training loop", format_duration(copies.seconds)),
            ("time per copy, on the device", format_duration(copies.device_seconds)),
        ],
        caption="Copies",
    )


def decisions_list(stats: Stats, *, of: str = "") -> Markup | None:
    """Return the decisions of "auto", in order; None if there are none."""
    if not stats.decisions:
        return None
    return render("decisions.html", title=f'Decisions of "auto"{of}', decisions=stats.decisions)


def settings_tables(run: ReportedRun) -> Markup:
    """Return all settings and facts of a run, collapsed."""
    tables: list[tuple[str, Mapping[str, Any]]] = [("Machine", run.run.machine)] if run.run.machine else []
    for group in run.groups:
        stats = group.slowest.stats
        about = {"kind": stats.kind, "engine": stats.engine, **stats.config, **dataset_facts(stats)}
        measured = Measured(stats=stats, ranks=[stats], parts=[run.run])
        for figure in figures_for(SETTINGS):
            if figure.value(measured) is not None:
                about[figure.label] = figure.describe(measured)
        tables.append((group.slowest.name, {name: value for name, value in about.items() if value is not None}))
    return render(
        "settings.html",
        name=run.name,
        tables=[
            (name, [(key, format_setting(key, value)) for key, value in values.items()]) for name, values in tables
        ],
    )


def dataset_facts(stats: Stats) -> dict[str, Any]:
    """Return what was recorded about the dataset, without measurements."""
    return {f"dataset: {name}": value for name, value in stats.facts.items() if name not in NOT_SETTINGS}


def format_setting(name: str, value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {format_setting(str(key), one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(name, one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return format_bytes(value)
    if name.endswith("_seconds") and isinstance(value, int | float):
        return format_duration(value)
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
