"""Compare two runs: figures of both, their ratios, and the settings that differ."""

from __future__ import annotations

from math import isfinite, log2
from typing import Any

from markupsafe import Markup

from stoker.foundation.text import format_bytes, format_duration, format_percent, format_ratio
from stoker.lab.key_figures import COMPARISON, PEAK, THROUGHPUT, WAITING, KeyFigure, figures_for
from stoker.lab.page.reported_run import ReportedRun
from stoker.lab.page.run_tables import dataset_facts, format_setting
from stoker.lab.page.templating import capitalize, missing_figure, render
from stoker.lab.watch.run import Stats

ALIKE = 0.03
"""Differences below this fraction count as none: repeated runs differ as much."""

Pair = tuple[float | None, float | None]
"""A figure of the run, and of the run that it is compared with."""


def _pairs(run: ReportedRun, against: ReportedRun) -> dict[str, tuple[KeyFigure, Pair]]:
    """Return the figures of both runs by name; none if one of them has no loader."""
    mine, other = run.measured, against.measured
    if mine is None or other is None:
        return {}
    return {figure.label: (figure, (figure.value(mine), figure.value(other))) for figure in figures_for(COMPARISON)}


def summarize(run: ReportedRun, against: ReportedRun) -> Markup | None:
    """Return the result of the comparison in one line; None if there is nothing to compare."""
    pairs = _pairs(run, against)
    if not pairs:
        return None
    other_work = work_differences(run, against)
    ratio, word = judge(*pairs[THROUGHPUT], is_same_work=not other_work)
    if ratio is None:
        return None
    times = f"{format_ratio(ratio)} the throughput of the {against.name}"
    answer = f"{capitalize(run.name)} has {times}: {word}."
    if word == "same":
        answer = "The throughput is about the same."
    if other_work:
        answer = f"The runs {other_work}, so neither is better: {run.name} has {times}."
    details = [
        f"{name}: {figure.format(mine)} ({against.name}: {figure.format(other)})"
        for name in (THROUGHPUT, WAITING, PEAK)
        for figure, (mine, other) in [pairs[name]]
        if mine is not None and other is not None
    ]
    return render("answer.html", answer=answer, details="; ".join(details), word=word)


def differences_figure(run: ReportedRun, against: ReportedRun) -> Markup:
    """Return every figure of both runs, with the ratio and whether it is better."""
    pairs = _pairs(run, against)
    if not pairs:
        return missing_figure("Differences", "One of the runs has no loader, so there is nothing to compare.")
    is_same_work = not work_differences(run, against)
    lead = "Bars to the right are better" if is_same_work else "The work may differ, so no figure is judged"
    return render(
        "differences.html",
        lead=f"{lead}; differences under {format_percent(ALIKE)} count as none.",
        names=(run.name, against.name),
        rows=[_row(figure, pair, is_same_work=is_same_work) for figure, pair in pairs.values()],
    )


def settings_figure(run: ReportedRun, against: ReportedRun) -> Markup:
    """Return the differences in settings of the two runs' main loaders, and in their machines."""
    rows = _find_differences(run, against)
    title = "Different settings"
    if not rows:
        return missing_figure(title, "The recorded settings are the same in both runs.")
    head = ("setting", run.name, against.name)
    return render(
        "table.html", title=title, head=head, rows=rows, caption="Settings that differ", kind="folds", num_words=3
    )


SAME_BYTES, SAME_STEP = 1.25, 1.5
"""Up to these factors, sample sizes and step times per sample count as equal."""


def work_differences(run: ReportedRun, against: ReportedRun) -> str:
    """Return how the work of two runs differs, as the end of a sentence; nothing if it seems to be the same.

    Speeds say nothing about other data or another model. Other data is seen. A training step that takes longer may be
    that of a larger model, or one that the loader holds up.
    """
    if run.lead is None or against.lead is None:
        return ""
    mine, other = run.lead.stats, against.lead.stats
    found = [
        f"{name}: {format_setting(name, mine.facts[fact])} and {format_setting(name, other.facts[fact])}"
        for fact, name in (("dataset", "dataset"), ("num_samples", "samples"))
        if fact in mine.facts and fact in other.facts and mine.facts[fact] != other.facts[fact]
    ]
    sizes = [_per_sample(one, one.num_bytes) for one in (mine, other)]
    if _differ(sizes, SAME_BYTES):
        found.append(f"bytes per sample: {format_bytes(sizes[0])} and {format_bytes(sizes[1])}")
    if found:
        return f"do different work ({'; '.join(found)})"
    steps = [_per_sample(one, _step_seconds(one)) for one in (mine, other)]
    if _differ(steps, SAME_STEP):
        return (
            "may do different work (training step per sample: "
            f"{format_duration(steps[0])} and {format_duration(steps[1])})"
        )
    return ""


def _differ(values: list[float], limit: float) -> bool:
    first, second = values
    return first > 0 and second > 0 and max(first / second, second / first) > limit


def _per_sample(stats: Stats, total: float) -> float:
    return total / stats.num_samples if stats.num_samples else 0.0


def _step_seconds(stats: Stats) -> float:
    return stats.step_seconds.mean * stats.num_batches


def judge(figure: KeyFigure, pair: Pair, *, is_same_work: bool = True) -> tuple[float | None, str]:
    """Return the ratio of a figure to the other, and a verdict: better, worse, same, more or less."""
    mine, other = pair
    if mine is None or other is None:
        return None, "unknown"
    if mine == other:
        return 1.0, "same"
    if not is_same_work:
        word = "more" if mine > other else "less"
    else:
        word = "better" if (mine > other) == figure.is_more_better else "worse"
    if not other or not mine:
        return None, word
    ratio = mine / other
    if not isfinite(ratio) or ratio <= 0:
        return None, "unknown"
    return ratio, "same" if abs(log2(ratio)) < log2(1 + ALIKE) else word


_SIGNS = {"better": "\N{BLACK UP-POINTING TRIANGLE}", "worse": "\N{BLACK DOWN-POINTING TRIANGLE}", "same": "="}


def _row(figure: KeyFigure, pair: Pair, *, is_same_work: bool) -> dict[str, Any]:
    """Return a figure of both runs; its bar goes right from the middle if better, and half of it is a factor of 8."""
    ratio, word = judge(figure, pair, is_same_work=is_same_work)
    bar = None
    if ratio is not None and word != "unknown":
        width = min(1.0, abs(log2(ratio)) / 3) / 2
        is_right = (ratio > 1) == figure.is_more_better
        kind = {"better": "load", "worse": "wait"}.get(word, "other")
        bar = {"x": 0.5 if is_right else 0.5 - width, "width": width, "kind": kind}
    texts = [figure.label, *map(figure.format, pair), format_ratio(ratio)]
    return {"texts": texts, "bar": bar, "word": word, "sign": _SIGNS.get(word)}


def _settings(run: ReportedRun) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if run.lead is not None:
        stats = run.lead.stats
        found |= {"loader": stats.kind, "engine": stats.engine, "ranks": stats.num_ranks}
        found |= stats.config | dataset_facts(stats)
    return found | {f"machine: {name}": value for name, value in run.run.machine.items()}


def _find_differences(run: ReportedRun, against: ReportedRun) -> list[tuple[str, str, str]]:
    """Return the settings that both runs record with different values.

    A setting that only one run records does not count. Between loaders of different kinds, None counts as not recorded:
    torch has a start method where other loaders choose their own. Between loaders of one kind, None is a value.
    """
    ours, theirs = _settings(run), _settings(against)
    are_alike = ours.get("loader") == theirs.get("loader")
    return [
        (name, format_setting(name, ours[name]), format_setting(name, theirs[name]))
        for name in ours
        if name in theirs
        and ours[name] != theirs[name]
        and (are_alike or (ours[name] is not None and theirs[name] is not None))
    ]
