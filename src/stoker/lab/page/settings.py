"""Tables of loader settings, decisions of "auto", copies to the device, and machine facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.foundation.text import format_bytes, format_count, format_duration, format_number, format_percent
from stoker.lab.page.comparison import OF_WATCHING, format_setting
from stoker.lab.page.frame import figure, table
from stoker.lab.page.markup import Child, Markup, tag
from stoker.lab.page.subject import Subject
from stoker.lab.watch.run import Stats


def decisions(stats: Stats, *, of: str = "") -> Markup | None:
    """Return the decisions of "auto", in order; None if there are none."""
    if not stats.decisions:
        return None
    return figure(
        f'Decisions of "auto"{of}',
        tag("ol", [tag("li", one) for one in stats.decisions], class_="decisions"),
    )


def copies(stats: Stats, *, of: str = "") -> Markup | None:
    """Return statistics of copies to the device; None if there are none."""
    seen = stats.copies
    if seen is None or not seen.num:
        return None
    rows = [
        ("copies to the device", format_count(seen.num)),
        ("from pageable memory, not pinned", _of_all(seen.num_pageable, seen.num)),
        ("that blocked the training loop", _of_all(seen.num_blocking, seen.num)),
        ("time in the training loop", format_duration(seen.seconds)),
        ("time per copy, on the device", format_duration(seen.device_seconds)),
    ]
    return figure(f"Copies to the device{of}", table(("", ""), rows, caption="Copies"))


def settings_tables(subject: Subject) -> Markup:
    """Return all settings and facts of a run, collapsed."""
    tables: list[Child] = []
    if subject.run.machine:
        tables.append(_table("Machine", subject.run.machine))
    for group in subject.groups:
        stats = group.slowest.stats
        about: dict[str, Any] = {"kind": stats.kind, "engine": stats.engine, **stats.config}
        about |= {f"dataset: {name}": value for name, value in stats.facts.items() if name not in OF_WATCHING}
        about |= {
            "batches": stats.num_batches,
            "samples": stats.num_samples,
            "iterations": stats.num_iterations,
            "total bytes": format_bytes(stats.num_bytes) if stats.num_bytes else None,
            "queue depth, mean": None if stats.queue_depth is None else format_number(stats.queue_depth),
            "requests with an empty queue": None
            if stats.queue_empty_share is None
            else format_percent(stats.queue_empty_share),
            "batches before this iteration": None
            if stats.duplicate_share is None
            else format_percent(stats.duplicate_share),
            "imports": None if stats.import_seconds is None else format_duration(stats.import_seconds),
            "construction": None if stats.construction_seconds is None else format_duration(stats.construction_seconds),
        }
        tables.append(_table(group.slowest.name, {name: value for name, value in about.items() if value is not None}))
    return tag(
        "details",
        tag("summary", f"Settings and facts{f' of {subject.name}' if subject.name else ''}"),
        *tables,
        class_="settings",
    )


def _table(name: str, values: Mapping[str, Any]) -> Markup:
    rows = [(key, format_setting(key, value)) for key, value in values.items()]
    return table(("", ""), rows, caption=name, class_="words", num_words=2)


def _of_all(part: int, whole: int) -> str:
    return f"{part:,} ({format_percent(part / whole)})"
