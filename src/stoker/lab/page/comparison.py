"""Compare two runs: figures of both, their ratios, and the settings that differ."""

from __future__ import annotations

from math import isfinite, log2
from typing import Any

from stoker.foundation.text import format_bytes, format_duration, format_number, format_percent, format_ratio
from stoker.lab.page.figures import PEAK, WAITING, Measure, measures, more_measures
from stoker.lab.page.frame import figure, missing, table
from stoker.lab.page.markup import Child, Markup, short, tag
from stoker.lab.page.subject import Subject
from stoker.lab.watch.run import Stats

ALIKE = 0.03
"""Differences below this fraction count as none: repeated runs differ as much."""


def summarize(run: Subject, against: Subject) -> Markup | None:
    """Return the result of the comparison in one line; None if there is nothing to compare."""
    ours, theirs = ({one.name: one for one in measures(each)} for each in (run, against))
    if "throughput" not in ours or "throughput" not in theirs:
        return None
    other_work = work_differences(run, against)
    ratio, word = judge(ours["throughput"], theirs["throughput"], is_same_work=not other_work)
    if ratio is None:
        return None
    text = f"{run.name.capitalize()} has {format_ratio(ratio)} the throughput of the {against.name}: {word}."
    if word == "same":
        text = "The throughput is about the same."
    if other_work:
        text = (
            f"The runs {other_work}, so neither is better: {run.name} has {format_ratio(ratio)} the throughput of the "
            f"{against.name}."
        )
    beside = [
        f"{name}: {ours[name].text} ({against.name}: {theirs[name].text})"
        for name in ("throughput", WAITING, PEAK)
        if ours[name].value is not None and theirs[name].value is not None
    ]
    return tag("p", tag("strong", text), f" {_capital('; '.join(beside))}.", class_=f"answer {word}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def differences(run: Subject, against: Subject) -> Markup:
    """Return every figure of both runs, with the ratio and whether it is better."""
    ours, theirs = ({one.name: one for one in (*measures(each), *more_measures(each))} for each in (run, against))
    pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
    if not pairs:
        return figure("Differences", missing("One of the runs has no loader, so there is nothing to compare."))
    kinds = [mine.name.partition(",")[0] for mine, _ in pairs]
    pairs.sort(
        key=lambda pair: kinds.index(pair[0].name.partition(",")[0])
    )  # mean, p50 and p99 of a quantity next to each other
    is_same_work = not work_differences(run, against)
    rows = [_row(mine, other, is_same_work=is_same_work) for mine, other in pairs]
    head = ("figure", run.name, against.name, "ratio", "difference", "")
    return figure(
        "Differences",
        table(head, rows, caption=f"{run.name} vs. {against.name}", class_="differences folds"),
        lead=("Bars to the right are better" if is_same_work else "The work may differ, so no figure is judged")
        + f"; differences under {format_percent(ALIKE)} count as none.",
    )


def settings(run: Subject, against: Subject) -> Markup:
    """Return the differences in settings of the two runs' main loaders, and in their machines."""
    rows = _find_differences(run, against)
    title = "Different settings"
    if not rows:
        return figure(title, missing("The recorded settings are the same in both runs."))
    head = ("setting", run.name, against.name)
    return figure(title, table(head, rows, caption="Settings that differ", class_="folds", num_words=3))


SAME_BYTES, SAME_STEP = 1.25, 1.5
"""Up to these factors, sample sizes and step times per sample count as equal."""


def work_differences(run: Subject, against: Subject) -> str:
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
        told = f"{format_duration(steps[0])} and {format_duration(steps[1])}"
        return f"may do different work (training step per sample: {told})"
    return ""


def _differ(values: list[float], limit: float) -> bool:
    first, second = values
    return first > 0 and second > 0 and max(first / second, second / first) > limit


def _per_sample(stats: Stats, total: float) -> float:
    return total / stats.num_samples if stats.num_samples else 0.0


def _step_seconds(stats: Stats) -> float:
    return stats.step_seconds.mean * stats.num_batches


def judge(mine: Measure, other: Measure, *, is_same_work: bool = True) -> tuple[float | None, str]:
    """Return the ratio of a figure to the other, and a verdict: better, worse, same, more or less."""
    if mine.value is None or other.value is None:
        return None, "unknown"
    if mine.value == other.value:
        return 1.0, "same"
    if not other.value or not mine.value:
        return None, _word(mine.value > other.value, mine, is_same_work)
    ratio = mine.value / other.value
    if not isfinite(ratio) or ratio <= 0:
        return None, "unknown"
    if abs(log2(ratio)) < log2(1 + ALIKE):
        return ratio, "same"
    return ratio, _word(ratio > 1, mine, is_same_work)


def _word(is_more: bool, measure: Measure, is_same_work: bool) -> str:
    if not is_same_work:
        return "more" if is_more else "less"
    return "better" if is_more == measure.is_more_better else "worse"


_SIGNS = {"better": "\N{BLACK UP-POINTING TRIANGLE}", "worse": "\N{BLACK DOWN-POINTING TRIANGLE}", "same": "="}


def _row(mine: Measure, other: Measure, *, is_same_work: bool) -> tuple[Child, ...]:
    ratio, word = judge(mine, other, is_same_work=is_same_work)
    sign = _SIGNS.get(word)
    return (
        mine.name,
        mine.text,
        other.text,
        format_ratio(ratio),
        _diverging(ratio, word, mine),
        tag("span", tag("span", sign, aria_hidden="true") if sign else None, f" {word}", class_=f"judged {word}"),
    )


def _diverging(ratio: float | None, word: str, mine: Measure) -> Child:
    """Return a bar from the middle: to the right if better, to the left if worse; a full half is a factor of 8."""
    if ratio is None or word == "unknown":
        return None
    length = min(1.0, abs(log2(ratio)) / 3)
    kind = {"better": "load", "worse": "wait"}.get(word, "other")
    is_right = (ratio > 1) == mine.is_more_better
    left = 50.0 if is_right else 50.0 * (1 - length)
    return tag(
        "svg",
        tag("rect", width="100%", height="100%", class_="rail"),
        tag("rect", x=f"{short(left)}%", width=f"{short(50 * length)}%", height="100%", class_=kind),
        tag("line", x1="50%", x2="50%", y1=0, y2="100%", class_="middle"),
        class_="bar wide",
        aria_hidden="true",
    )


OF_WATCHING = (
    "watched_share",
    "looked_at_worker",
    "threads_cpu_seconds",
    "threads_delay_seconds",
    "workers_before",
    "error",
)
"""Recorded facts that are not settings: how well the dataset could be watched, and measurements."""


def _settings(subject: Subject) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if subject.lead is not None:
        stats = subject.lead.stats
        found |= {"loader": stats.kind, "engine": stats.engine, "ranks": stats.num_ranks}
        found |= stats.config
        found |= {f"dataset: {name}": value for name, value in stats.facts.items() if name not in OF_WATCHING}
    return found | {f"machine: {name}": value for name, value in subject.run.machine.items()}


def _find_differences(run: Subject, against: Subject) -> list[tuple[str, str, str]]:
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
