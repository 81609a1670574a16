"""Two runs side by side: each figure of both, how they differ, and which settings do."""

from __future__ import annotations

from math import isfinite, log2
from typing import Any

from stoker.bench.run import Stats
from stoker.foundation.text import format_bytes, format_duration, format_number, format_percent, format_ratio
from stoker.view.page.figures import PEAK, WAITING, Measure, measures, more_measures
from stoker.view.page.frame import figure, missing, table
from stoker.view.page.markup import Child, Markup, short, tag
from stoker.view.page.subject import Subject

ALIKE = 0.03
"""Differences of less than this part are called none: they come from one run to the next, too."""


def answer(run: Subject, against: Subject) -> Markup | None:
    """Return what the comparison comes to, in a line; None if there is nothing to compare."""
    ours, theirs = ({one.name: one for one in measures(each)} for each in (run, against))
    if "throughput" not in ours or "throughput" not in theirs:
        return None
    other_work = work_differences(run, against)
    ratio, word = judged(ours["throughput"], theirs["throughput"], is_same_work=not other_work)
    if ratio is None:
        return None
    told = f"{run.name.capitalize()} has {format_ratio(ratio)} the throughput of the {against.name}: {word}."
    if word == "same":
        told = "The throughput is about the same."
    if other_work:
        told = (
            f"The runs {other_work}, so neither is better: {run.name} has {format_ratio(ratio)} the throughput of the "
            f"{against.name}."
        )
    beside = [
        f"{name}: {ours[name].told} ({against.name}: {theirs[name].told})"
        for name in ("throughput", WAITING, PEAK)
        if ours[name].value is not None and theirs[name].value is not None
    ]
    return tag("p", tag("strong", told), f" {_capital('; '.join(beside))}.", class_=f"answer {word}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def differences(run: Subject, against: Subject) -> Markup:
    """Return every figure of both runs, with how many times as much it is and whether that is better."""
    ours, theirs = ({one.name: one for one in (*measures(each), *more_measures(each))} for each in (run, against))
    pairs = [(ours[name], theirs[name]) for name in ours if name in theirs]
    if not pairs:
        return figure("Differences", missing("One of the two runs has no loader, so there is nothing to compare."))
    kinds = [mine.name.partition(",")[0] for mine, _ in pairs]
    pairs.sort(
        key=lambda pair: kinds.index(pair[0].name.partition(",")[0])
    )  # mean, p50 and p99 of one beside each other
    is_same_work = not work_differences(run, against)
    rows = [_row(mine, other, is_same_work=is_same_work) for mine, other in pairs]
    head = ("figure", run.name, against.name, "ratio", "difference", "")
    return figure(
        "Differences",
        table(head, rows, caption=f"{run.name} beside {against.name}", class_="differences folds"),
        lead=("Bars to the right are better" if is_same_work else "The work may differ, so no figure is judged")
        + f"; differences under {format_percent(ALIKE)} count as none.",
    )


def settings(run: Subject, against: Subject) -> Markup:
    """Return what differs in the settings of the two runs' leading loaders, and in their machines."""
    rows = _differing(run, against)
    title = "What was set differently"
    if not rows:
        return figure(title, missing("The settings that were recorded are the same in both runs."))
    head = ("setting", run.name, against.name)
    return figure(title, table(head, rows, caption="Settings that differ", class_="folds", num_words=3))


SAME_BYTES, SAME_STEP = 1.25, 1.5
"""Up to these factors, samples are of the same size, and training steps take equally long for each."""


def work_differences(run: Subject, against: Subject) -> str:
    """Return how the work of two runs differs, as the end of a sentence; nothing if it seems to be the same.

    Speeds say nothing about other data or another model. Other data is seen. A training step that takes longer may be
    that of a larger model, or one that the loader holds up.
    """
    if run.lead is None or against.lead is None:
        return ""
    mine, other = run.lead.stats, against.lead.stats
    found = [
        f"{name}: {setting_told(name, mine.facts[fact])} and {setting_told(name, other.facts[fact])}"
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


def judged(mine: Measure, other: Measure, *, is_same_work: bool = True) -> tuple[float | None, str]:
    """Return how many times as much a figure is as the other, and a word for it."""
    if mine.value is None or other.value is None:
        return None, "not known"
    if mine.value == other.value:
        return 1.0, "same"
    if not other.value or not mine.value:
        return None, _word(mine.value > other.value, mine, is_same_work)
    ratio = mine.value / other.value
    if not isfinite(ratio) or ratio <= 0:
        return None, "not known"
    if abs(log2(ratio)) < log2(1 + ALIKE):
        return ratio, "same"
    return ratio, _word(ratio > 1, mine, is_same_work)


def _word(is_more: bool, measure: Measure, is_same_work: bool) -> str:
    if not is_same_work:
        return "more" if is_more else "less"
    return "better" if is_more == measure.is_more_better else "worse"


_SIGNS = {"better": "\N{BLACK UP-POINTING TRIANGLE}", "worse": "\N{BLACK DOWN-POINTING TRIANGLE}", "same": "="}


def _row(mine: Measure, other: Measure, *, is_same_work: bool) -> tuple[Child, ...]:
    ratio, word = judged(mine, other, is_same_work=is_same_work)
    sign = _SIGNS.get(word)
    return (
        mine.name,
        mine.told,
        other.told,
        format_ratio(ratio),
        _diverging(ratio, word, mine),
        tag("span", tag("span", sign, aria_hidden="true") if sign else None, f" {word}", class_=f"judged {word}"),
    )


def _diverging(ratio: float | None, word: str, mine: Measure) -> Child:
    """Return a bar from the middle: to the right if better, to the left if worse; its whole half is eight times."""
    if ratio is None or word == "not known":
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
"""What is noted beside facts about the dataset: how well it could be watched, and measurements. Nobody has set it."""


def _settings(subject: Subject) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if subject.lead is not None:
        stats = subject.lead.stats
        found |= {"loader": stats.kind, "engine": stats.engine, "ranks": stats.num_ranks}
        found |= stats.config
        found |= {f"dataset: {name}": value for name, value in stats.facts.items() if name not in OF_WATCHING}
    return found | {f"machine: {name}": value for name, value in subject.run.machine.items()}


def _differing(run: Subject, against: Subject) -> list[tuple[str, str, str]]:
    """Return the settings that both runs tell of, and differently.

    What one of them does not tell is no difference, and of a loader of another kind None is not told: torch has a
    start method where others leave it to their own choice. Two loaders of one kind mean the same by it.
    """
    ours, theirs = _settings(run), _settings(against)
    are_alike = ours.get("loader") == theirs.get("loader")
    return [
        (name, setting_told(name, ours[name]), setting_told(name, theirs[name]))
        for name in ours
        if name in theirs
        and ours[name] != theirs[name]
        and (are_alike or (ours[name] is not None and theirs[name] is not None))
    ]


def setting_told(name: str, value: Any) -> str:
    """Return a setting's value in words."""
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {setting_told(str(key), one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return ", ".join(setting_told(name, one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return format_bytes(value)
    if name.endswith("_seconds") and isinstance(value, int | float):
        return format_duration(value)
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
