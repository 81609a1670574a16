"""The table, the findings and the plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.report import Column, Saved, only
from benchmarks.resume.contenders import CONTENDERS
from benchmarks.resume.jobs import NUM_EPOCHS, NUM_SAMPLES, SAVE_EVERY
from benchmarks.resume.judging import EXACT, FAILED, HANGS, REORDERED, WRONG
from benchmarks.resume.scenarios import BETWEEN, LAST, RANDOM
from stoker.lab.trial.rounds import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEVERITY = (WRONG, HANGS, FAILED, REORDERED, EXACT)
"""Of a scenario whose runs differ, the worst is shown first. Wrong samples without an error are worse than an error."""


# ---------------------------------------------------------------- one contender in one scenario


def num_runs(record: Measurement, *kinds: str) -> int:
    """Return how many runs of a scenario ended in one of these ways; all, if none is given."""
    counts: dict[str, int] = record.more["kinds"]
    return sum(counts.values()) if not kinds else sum(counts.get(kind, 0) for kind in kinds)


def worst(record: Measurement) -> str:
    """Return the worst way in which a run of the scenario ended."""
    return next(kind for kind in SEVERITY if num_runs(record, kind))


def verdict_lines(record: Measurement) -> list[str]:
    """Return what happened in a scenario, in a few short lines."""
    kind = worst(record)
    if kind == EXACT:
        return ["exact"]
    plain = {REORDERED: "other order", FAILED: "error", HANGS: "hangs"}
    lines = _wrong_lines(record) if kind == WRONG else [plain[kind]]
    total = num_runs(record)
    for other in SEVERITY[SEVERITY.index(kind) + 1 :]:
        if number := num_runs(record, other):
            lines.append(f"{number} of {total} {plain.get(other, other)}")
    return lines


def _wrong_lines(record: Measurement) -> list[str]:
    counts = {"lost": record.more["lost"], "repeated": record.more["repeated"]}
    return [f"{word} {number:,}" for word, number in counts.items() if number]


def is_outside(record: Measurement) -> bool:
    """Whether the contender's documentation excludes this scenario."""
    return record.case["scenario"] in CONTENDERS[record.contender].outside


# ---------------------------------------------------------------- sentences


def shows(records: Sequence[Measurement], missing: Sequence[str]) -> list[str]:
    """Return the findings."""
    names = list(dict.fromkeys(record.contender for record in records))
    exact = [name for name in names if is_exact(records, name)]
    runs = sum(num_runs(record) for record in only(records, names[0]))
    sentences = [f"Exact in each of {runs} runs: {'; '.join(exact) or 'none'}."]
    sentences += [format_contender(only(records, name)) for name in names if name not in exact]
    sentences.append(_format_reads(records))
    if missing:
        sentences.append(f"Left out, because not installed: {'; '.join(missing)}.")
    return [sentence for sentence in sentences if sentence]


def is_exact(records: Sequence[Measurement], name: str) -> bool:
    """Whether a contender is exact in every run."""
    return all(worst(record) == EXACT for record in only(records, name))


def format_contender(records: Sequence[Measurement]) -> str:
    """Return a sentence on the scenarios in which a contender is exact, and what happens in the others."""
    found: dict[str, list[str]] = {}
    for record in records:
        text = ", ".join(verdict_lines(record))
        if messages := sorted({run["text"] for run in record.more["runs"] if run["text"]}):
            text += f" ({'; '.join(_shortened(message) for message in messages)})"
        scenario = record.case["scenario"] + (" †" if is_outside(record) else "")
        found.setdefault(text, []).append(scenario)
    parts = [f"{text}: {', '.join(scenarios)}" for text, scenarios in found.items()]
    return f"{records[0].contender}. {'; '.join(parts)}."


def _shortened(text: str) -> str:
    """Return a message as it can stand in a Markdown table."""
    text = text.replace("|", "/").replace("`", "'")
    return f"`{text}`" if len(text) <= 120 else f"`{text[:119]}…`"


def _format_reads(records: Sequence[Measurement]) -> str:
    """Compare the samples that a resume reads before its first batch with those of a start."""
    found = [record for record in only(records, scenario=RANDOM) if "resume_reads" in record.more]
    if not found:
        return ""
    steps = [run["parts"][0]["saved_at"] for run in found[0].more["runs"]]
    place = median(step * 10 % NUM_SAMPLES for step in steps)
    parts = [
        f"{record.contender} {record.more['resume_reads']:,.0f} ({record.more['start_reads']:,.0f})"
        for record in sorted(found, key=lambda record: record.more["resume_reads"])
    ]
    return (
        f"Samples read before the first batch after a resume at a random step, {place:,.0f} samples into the epoch in "
        f"the median (in parentheses: at the start of a run; both include prefetching): {'; '.join(parts)}."
    )


def limits() -> list[str]:
    """Return what must not be read from the numbers."""
    return [
        "anything finer than a step: a run is exact if every step has the same samples as in an uninterrupted run. "
        "Which rank or worker had which sample does not count, nor do random numbers of transforms, the model or the "
        "optimizer.",
        f"other data: there are {NUM_SAMPLES:,} map-style samples and {NUM_EPOCHS} epochs, and batches, ranks and "
        "workers divide them evenly. Streams, packed rows, mixtures, short last batches and several nodes are not "
        "included.",
        "other scripts: each contender is used as its documentation says (`documented` in the JSON cites it), with a "
        f"checkpoint every {SAVE_EVERY} steps. Loaders differ in the epoch to which a checkpoint after the last batch "
        "belongs, and each script here follows its loader; one that does not is off by a whole epoch at the boundary. "
        "After such a checkpoint litdata, the Accelerate scripts and a stoker.DataLoader prepared by Accelerate go on "
        "with the next epoch, while StatefulDataLoader, Mosaic and stoker alone give an empty loop first. Mosaic "
        "gives one too if its state was saved after the loop.",
        "broken promises, where there is a †: the documentation asks for the same number of workers or ranks, or says "
        "that states do not cover others. The best answer is then an error.",
        "other versions. The documentation of Accelerate's development version describes a `save_state` that also "
        "saves the order of the sampler; version 1.15 does not have it "
        "([#4195](https://github.com/huggingface/accelerate/issues/4195), "
        "[#3996](https://github.com/huggingface/accelerate/issues/3996)).",
        "the time of a resume, which was not measured. The cost of skipping shows in the samples read, which include "
        "what workers prefetch, and vary with it by a few batches. litdata and Mosaic read files of their own, whose "
        "reads were not counted.",
        "that a lost sample costs accuracy. What is lost is the knowledge of what the model was trained on, and the "
        "comparison with other runs.",
        "Lightning and Fabric, which are covered by tests only.",
    ]


# ---------------------------------------------------------------- table


def _count(*kinds: str) -> Callable[[Measurement], str]:
    return lambda record: f"{number} of {num_runs(record)}" if (number := num_runs(record, *kinds)) else ""


def _of(key: str, format_value: Callable[[Any], str]) -> Callable[[Measurement], str]:
    return lambda record: "" if record.more.get(key) is None else format_value(record.more[key])


def _message(record: Measurement) -> str:
    return "; ".join(sorted({_shortened(run["text"]) for run in record.more["runs"] if run["text"]}))


COLUMNS = (
    Column("exact", _count(EXACT)),
    Column("other order", _count(REORDERED)),
    Column("wrong", _count(WRONG)),
    Column("lost", _of("lost", lambda number: f"{number:,}" if number else "")),
    Column("repeated", _of("repeated", lambda number: f"{number:,}" if number else "")),
    Column("error", _count(FAILED)),
    Column("hangs", _count(HANGS)),
    Column("samples read before the first batch, start", _of("start_reads", lambda number: f"{number:,.0f}")),
    Column("after a resume", _of("resume_reads", lambda number: f"{number:,.0f}")),
    Column("outside its documentation", lambda record: "†" if is_outside(record) else ""),
    Column("message", _message),
)


def compact_table(records: Sequence[Measurement]) -> str:
    """Return a Markdown table of contenders by scenarios, with samples lost / repeated in all runs of each."""
    names = list(dict.fromkeys(record.contender for record in records))
    scenarios = list(dict.fromkeys(record.case["scenario"] for record in records))
    lines = [f"| lost / repeated | {' | '.join(scenarios)} |", f"|{' --- |' * (len(scenarios) + 1)}"]
    for name in names:
        cells = [_compact(record) for scenario in scenarios for record in only(records, name, scenario=scenario)]
        title = f"**{name}**" if name.startswith("stoker") else name
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _compact(record: Measurement) -> str:
    kind = worst(record)
    plain = {EXACT: "exact", REORDERED: "other order", FAILED: "error", HANGS: "hangs"}
    text = plain.get(kind) or f"{record.more['lost']:,} / {record.more['repeated']:,}"
    return text + (" †" if is_outside(record) and kind != EXACT else "")


# ---------------------------------------------------------------- drawing

_INKS = {EXACT: "#d3e6f5", REORDERED: "#fdf1c4", WRONG: "#f3a66e", FAILED: "#e3e3e3", HANGS: "#b9b9b9"}
_READS_SHIFT = 0.2
"""Space between the cells and the column of reads, in cells."""
_LEGEND = {
    EXACT: "exact: every step as in an uninterrupted run",
    REORDERED: "other order: every sample once an epoch, in other steps",
    WRONG: "wrong, without an error: samples lost or repeated (all runs together)",
    FAILED: "error",
    HANGS: "hangs",
}


def draw(records: Sequence[Measurement], _: Saved) -> Figure:
    """Draw contenders by scenarios, and the samples read before the first batch."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(record.contender for record in records))
    scenarios = list(dict.fromkeys(record.case["scenario"] for record in records))
    drawn, axis = plt.subplots(figsize=(4.6 + 1.18 * len(scenarios), 1.9 + 0.56 * len(names)), layout="constrained")
    for row, name in enumerate(names):
        for place, scenario in enumerate(scenarios):
            for record in only(records, name, scenario=scenario):
                _draw_cell(axis, record, row, place)
        _draw_reads(axis, only(records, name, scenario=RANDOM), row, len(scenarios))
    runs = {record.case["scenario"]: num_runs(record) for record in records}
    titles = [f"{_broken(scenario)}\n{runs[scenario]} run{'s' * (runs[scenario] > 1)}" for scenario in scenarios]
    places = [*range(len(scenarios)), len(scenarios) + _READS_SHIFT]
    axis.set_xticks(places, [*titles, "samples read before\nthe first batch:\nstart → resume"])
    axis.set_yticks(range(len(names)), names)
    for label, name in zip(axis.get_yticklabels(), names):
        label.set_fontweight("bold" if name.startswith("stoker") else "normal")
    axis.tick_params(length=0, labelsize=11, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.set_xlim(-0.5, len(scenarios) + 0.9)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.spines[:].set_visible(False)
    shown = [kind for kind in _LEGEND if any(num_runs(record, kind) for record in records)]
    patches = [Patch(facecolor=_INKS[kind], hatch=_hatch(kind), edgecolor="#999999") for kind in shown]
    texts = [_LEGEND[kind] for kind in shown]
    if any(is_outside(record) for record in records):
        patches.append(Patch(facecolor="none", edgecolor="none"))
        texts.append("† excluded by its documentation")
    drawn.legend(patches, texts, loc="outside lower center", ncols=2, fontsize=11)
    return drawn


def _draw_cell(axis: Axes, record: Measurement, row: int, place: int) -> None:
    from matplotlib.patches import Rectangle

    kind = worst(record)
    axis.add_patch(
        Rectangle(
            (place - 0.48, row - 0.47), 0.96, 0.94, facecolor=_INKS[kind], hatch=_hatch(kind), edgecolor="#bbbbbb"
        )
    )
    lines = verdict_lines(record)
    mark = " †" if is_outside(record) and kind != EXACT else ""
    text = "\n".join([lines[0] + mark, *lines[1:]])
    longest = max(map(len, lines))
    back = {"facecolor": _INKS[kind], "edgecolor": "none", "pad": 1.2}
    axis.text(
        place,
        row,
        text,
        ha="center",
        va="center",
        fontsize=8 if len(lines) > 3 or longest > 17 else 9 if longest > 15 else 10,
        linespacing=1.05,
        bbox=back if _hatch(kind) else None,
    )


def _draw_reads(axis: Axes, records: Sequence[Measurement], row: int, place: int) -> None:
    """Write the reads at random steps beside the cells."""
    for record in records:
        text = "not counted"
        if "resume_reads" in record.more:
            text = f"{record.more['start_reads']:,.0f} → {record.more['resume_reads']:,.0f}"
        axis.text(place + _READS_SHIFT, row, text, ha="center", va="center", fontsize=10.5)


def _broken(scenario: str) -> str:
    """Return the name of a scenario in two lines."""
    breaks = {LAST: "epoch's\nlast step", BETWEEN: "between\nepochs", RANDOM: "random\nstep"}
    if scenario in breaks:
        return breaks[scenario]
    head, found, tail = scenario.partition(" to ")
    if not found:
        return f"\n{scenario}"
    return f"{head}\nto {tail}" if " " in head else "{} to {}\n{}".format(head, *tail.split())


def _hatch(kind: str) -> str | None:
    """Return a pattern for errors and hangs, so that they do not rest on color alone."""
    return {FAILED: "//", HANGS: "xx"}.get(kind)
