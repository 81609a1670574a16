"""Table of ranks, with the slowest one marked."""

from __future__ import annotations

from stoker.foundation.text import UNKNOWN, format_count, format_duration, format_number, format_percent
from stoker.lab.page.frame import figure, legend, table
from stoker.lab.page.markup import Child, Markup, join, short, tag
from stoker.lab.page.subject import Group, Loader

CLEAR = 1.1
"""Minimum ratio of the slowest rank's wait to the median, to call it slow."""


def ranks(group: Group, *, of: str = "") -> Markup | None:
    """Return a table of the ranks of a loader: step, wait and other differences; None if there is only one rank."""
    if len(group.loaders) < 2:
        return None
    slowest = group.slowest
    most = max(_period(one) for one in group.loaders) or 1.0
    rows = [_row(one, most, is_slowest=one is slowest and _is_clear(group)) for one in group.loaders]
    head = (
        "rank",
        "step + wait",
        "samples/s",
        "step p50",
        "step p99",
        "wait p99",
        "waiting",
        "stalls",
        "loading p50",
    )
    return figure(
        f"Ranks of {group.name}{of}",
        legend(("step", "step"), ("wait", "wait")),
        table(head, rows, caption=f"Ranks of {group.name}", class_="bars ranks folds", num_words=2),
        lead=_lead(group),
    )


def _lead(group: Group) -> Child:
    slowest = group.slowest
    if not _is_clear(group):
        return f"All {len(group.loaders)} ranks wait about equally long for data."
    wait = slowest.stats.wait_seconds.mean
    return join(
        tag("strong", f"Rank {slowest.stats.rank} is the slowest"),
        f": it waits {format_duration(wait)} per batch for data, the others {format_duration(_others(group))}. In "
        "synchronous training all others wait for it.",
    )


def _others(group: Group) -> float:
    waits = sorted(one.stats.wait_seconds.mean for one in group.loaders if one is not group.slowest)
    return waits[len(waits) // 2]


def _is_clear(group: Group) -> bool:
    """Return whether the slowest rank is clearly slower: by 10%, and by 1% of the time per batch."""
    slowest = group.slowest
    wait = slowest.stats.wait_seconds.mean
    return wait > CLEAR * _others(group) and wait - _others(group) > 0.01 * _period(slowest)


def _period(loader: Loader) -> float:
    return loader.stats.step_seconds.mean + loader.stats.wait_seconds.mean


def _row(loader: Loader, most: float, *, is_slowest: bool) -> tuple[Child, ...]:
    stats = loader.stats
    step, wait = stats.step_seconds.mean, stats.wait_seconds.mean
    label = f"rank {stats.rank}: step {format_duration(step)}, wait {format_duration(wait)}"
    drawn = tag(
        "svg",
        tag("title", label),
        tag("rect", width=f"{short(100 * step / most)}%", height="100%", class_="step"),
        tag(
            "rect", x=f"{short(100 * step / most)}%", width=f"{short(100 * wait / most)}%", height="100%", class_="wait"
        ),
        class_="bar wide",
        role="img",
    )
    return (
        join(f"rank {stats.rank}", tag("strong", "slowest", class_="badge") if is_slowest else None),
        tag("span", drawn, tag("span", f"{format_duration(step)} + {format_duration(wait)}"), class_="barred long"),
        format_number(stats.samples_per_second),
        format_duration(stats.step_seconds.p50),
        format_duration(stats.step_seconds.p99),
        format_duration(stats.wait_seconds.p99),
        format_percent(stats.wait_share),
        format_count(stats.num_stalls),
        format_duration(stats.making_seconds.p50) if stats.making_seconds.num else UNKNOWN,
    )
