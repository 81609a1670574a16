"""What the numbers say: the goals and whether they are reached, a table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.packing import batches, planners
from benchmarks.packing.batches import Opening
from benchmarks.packing.planners import IN_C, OURS, OURS_LISTED, PLANNERS
from benchmarks.report import INK, Column, Saved, only
from stoker.lab.trial.rounds import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOAL_SECONDS = 0.6
"""For two million documents, planned and mapped."""
GOAL_WASTE = 0.0002
GOAL_MANY, GOAL_MANY_SECONDS, GOAL_MANY_BYTES = 10**8, 60.0, 4e9
GOAL_OF_LIMIT, GOAL_OF_CROPS = 0.5, 0.7

_INKS = {
    IN_C: "black",
    OURS: INK["stoker"],
    OURS_LISTED: "#e59a86",
    planners.LLAMA: "#2e7d4f",
    planners.LLAMA_SMALL: "#8fbf7f",
    planners.TRL: "#b8860b",
    planners.TRL_SMALL: "#e0c070",
    planners.GRAIN_FIRST: INK["Grain"],
    planners.GRAIN_BEST: "#b59acb",
    batches.IN_C: "black",
    batches.OURS_NUMPY: "#e59a86",
    batches.OURS_BLOCKS: "#8a2410",
    batches.CROPS: "#2b6ca3",
}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.001 else f"{share * 100:.2f} %"


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "not reached"


# ---------------------------------------------------------------- sentences


def shows(records: list[Measurement], opening: Opening, num_tokens: int, missing: list[str]) -> list[str]:
    """Return the findings."""
    cases = list(dict.fromkeys(record.case["case"] for record in only(records, what="planning")))
    sentences = [_describe_planning(only(records, what="planning", case=case), case) for case in cases]
    sentences += [_describe_waste(only(records, what="planning")), _describe_scale(only(records, what="scale"))]
    forms = list(dict.fromkeys(record.case["case"] for record in only(records, what="batches")))
    sentences += [_describe_batches(only(records, what="batches", case=case), case) for case in forms]
    sentences.append(
        f"`stoker.pack` of the store of {num_tokens / 1e6:.0f} million tokens, rows of 2,048: "
        f"{opening.first_seconds * 1e3:.0f} ms planned and written beside it ({opening.plan_bytes / 1e6:.1f} MB), "
        f"{opening.again_seconds * 1e3:.1f} ms found again; {opening.documents_per_row:.1f} documents in a row, "
        f"{_percent(1 - opening.fill)} padding."
    )
    if missing:
        sentences.append(f"Left out, because not installed: {', '.join(missing)}.")
    return [sentence for sentence in sentences if sentence]


def _describe_planning(records: list[Measurement], case: str) -> str:
    ours, listed = only(records, OURS)[0], only(records, OURS_LISTED)[0]
    seconds, waste = ours.more["seconds_per_two_million"], ours.more["waste"]
    limit = only(records, IN_C)
    beside = (
        f" (best fit in C, document by document: {_number(limit[0].more['seconds_per_two_million'])} s, so "
        f"{ours.median_ratio:.2f} of its time; {listed.median_ratio:.2f} with every row listed, as it lists them)"
        if limit
        else ""
    )
    peers = "; ".join(
        f"{record.contender} {_number(record.more['seconds_per_two_million'])} s "
        f"({_number(record.median / ours.median)}x)"
        for record in records
        if record.contender not in (IN_C, OURS, OURS_LISTED)
    )
    is_reached = seconds <= GOAL_SECONDS and waste <= GOAL_WASTE
    return (
        f"{case}, 2 million documents: stoker plans and maps them in {_number(seconds)} s with {_percent(waste)} "
        f"padding{beside}. The goal of {GOAL_SECONDS} s and {_percent(GOAL_WASTE)} is {_verdict(is_reached)}."
        + (f" Others, scaled up to as many: {peers}." if peers else "")
    )


def _describe_waste(records: list[Measurement]) -> str:
    summary = []
    for name in PLANNERS:
        found = only(records, name)
        if found and name not in (IN_C, OURS, OURS_LISTED):
            parts = [_percent(record.more["waste"]) for record in found]
            ours = [_percent(record.more["waste_of_ours"]) for record in found]
            summary.append(
                f"{name} {' / '.join(parts)} of its {found[0].more['num_documents']:,} documents "
                f"(stoker, of the same: {' / '.join(ours)})"
            )
    lengths = " / ".join(dict.fromkeys(f"{record.more['length']:,}" for record in records))
    return f"padding in rows of {lengths}: {'; '.join(summary)}." if summary else ""


def _describe_scale(records: list[Measurement]) -> str:
    ours = only(records, OURS)
    first, last = ours[0].more, ours[-1].more
    peak = last["peak_bytes"]
    rest = (last["seconds"] - last["plan_seconds"]) / last["num_documents"]
    summary = (
        f"{ours[-1].case['case']}, rows of {last['length']:,}: planned and mapped in {last['seconds']:.3g} s, with "
        f"{peak / 1e9:.2f} GB at the most ({last['before_bytes'] / 1e9:.2f} GB before)"
    )
    if last["num_documents"] == GOAL_MANY:
        is_reached = last["seconds"] <= GOAL_MANY_SECONDS and peak <= GOAL_MANY_BYTES
        summary += f"; the goal of {GOAL_MANY_SECONDS:g} s and {GOAL_MANY_BYTES / 1e9:g} GB is {_verdict(is_reached)}"
    limit = only(records, IN_C)
    if limit:
        summary += (
            f". In C, document by document: {limit[-1].more['seconds']:.3g} s and "
            f"{limit[-1].more['peak_bytes'] / 1e9:.2f} GB, its lengths among them"
        )
    return (
        f"{summary}. Planning alone, from counts, takes {first['plan_seconds'] * 1e3:.1f} ms for "
        f"{ours[0].case['case']} and {last['plan_seconds'] * 1e3:.1f} ms for {ours[-1].case['case']}; "
        f"the rest, which grows with them, is {rest * 1e9:.0f} ns for each."
    )


def _describe_batches(records: list[Measurement], case: str) -> str:
    ours = only(records, OURS)[0]
    limit = only(records, batches.IN_C)
    summary = f"{case}, shuffled: stoker {_rate(ours)} batches/s of packed rows"
    goals = []
    if limit and ours.median_ratio:
        share = 1 / ours.median_ratio
        summary += f", {share:.2f} of filling them in C on one thread ({_rate(limit[0])})"
        goals.append(f"{GOAL_OF_LIMIT} of the limit is {_verdict(share >= GOAL_OF_LIMIT)}")
    crops = only(records, batches.CROPS)[0]
    of_crops = ours.more["of_crops"]
    summary += f", and {of_crops:.2f} of plain crops ({_rate(crops)})"
    goals.append(f"{GOAL_OF_CROPS} of crops is {_verdict(of_crops >= GOAL_OF_CROPS)}")
    goal = "" if "workers" in case else f" The goal of {', that of '.join(goals)}."
    others = ", ".join(
        f"{what} {_rate(only(records, name)[0])}"
        for name, what in ((batches.OURS_NUMPY, "with NumPy alone"), (batches.OURS_BLOCKS, "with block tables"))
        if only(records, name)
    )
    return f"{summary}.{goal} {others[:1].upper()}{others[1:]}."


def _rate(record: Measurement) -> str:
    return _number(record.more["batches_per_second"])


def limits() -> list[str]:
    """Return what must not be read from the numbers."""
    return [
        "your corpus: lengths are log-normal (the logarithm has mean 6 and deviation 1.2: a median of 403 tokens, a "
        "mean of 829), and so many short documents fill up almost any row. Waste is larger where most documents are "
        "longer than half a row.",
        "peers at full size: of slow ones 20,000 to 400,000 documents were asked, the first of the same two million, "
        "and their times are scaled up. Best fit wastes less the more documents there are: compare waste with ours of "
        "the same documents. Peers that take no long documents got them cut.",
        "equal work. Best fit in C is item by item, and no limit for planning by counts; it writes down every row, "
        "while stoker keeps tables from which rows and places of documents are computed when asked for; `every row "
        "listed` does that for all rows. TRL's function moves the tokens too (here of one byte), and runs on all "
        "documents at once or on 1,000, as `pack_dataset` maps it by default. LLaMA-Factory's is called "
        "with 1,000 documents by default. Grain packs as a stream, copies the tokens, and needs no lengths "
        "beforehand; with more bins it wastes less and holds more.",
        "reading lengths: planning begins with an array of them in memory, and scale with some that are drawn a "
        "million at a time, while the clock stands still.",
        "a disk or a training step: the store is in the page cache and its blocks were checked in the epoch before. "
        "The trainer reads one number each of tokens and labels.",
        "equal memory: `filled in C` always writes into the same arrays, which stay in the cache, from spans that were "
        "known beforehand; loaders find out which rows come and hand out memory that the trainer may keep. With "
        "workers it is the one without. Crops have tokens and labels alone, 16 bytes for each token; packed rows have "
        "24.",
    ]


# ---------------------------------------------------------------- table


def _of(key: str, format_value: Callable[[Any], str]) -> Callable[[Measurement], str]:
    def cell(record: Measurement) -> str:
        value = record.more.get(key)
        return "" if value is None else format_value(value)

    return cell


def _seconds(record: Measurement) -> str:
    key = "seconds_per_two_million" if record.case["what"] == "planning" else "seconds"
    return _number(record.more[key]) if key in record.more else ""


COLUMNS = (
    Column("documents", _of("num_documents", lambda number: f"{number:,}")),
    Column("s (planning: for 2 M)", _seconds),
    Column("padding", _of("waste", _percent)),
    Column("planning, ms", _of("plan_seconds", lambda value: f"{value * 1e3:.1f}")),
    Column("peak MB", _of("peak_bytes", lambda value: f"{value / 1e6:,.0f}")),
    Column("batches/s", _of("batches_per_second", _number)),
    Column("speed, of C", lambda record: f"{1 / record.median_ratio:.2g}" if record.median_ratio else ""),
    Column("of crops", _of("of_crops", lambda value: f"{value:.2f}")),
)


# ---------------------------------------------------------------- drawing

_ALPHAS = (1.0, 0.66, 0.38)


def draw(records: list[Measurement], _: Saved) -> Figure:
    """Draw planning, waste, scale and batches."""
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(2, 2, figsize=(15, 11), layout="constrained")
    planning = only(records, what="planning")
    _draw_bars(axes[0][0], planning, "seconds_per_two_million", 1.0, _number, legend="upper right")
    _goal(axes[0][0], GOAL_SECONDS, "goal: 0.6 s")
    axes[0][0].set_xlabel("s for 2 million documents, planned and mapped (log); less is better")
    axes[0][0].set_title("planning", fontsize=11)
    _draw_bars(axes[0][1], planning, "waste", 100.0, lambda value: f"{value:.2g}", legend="upper right")
    _goal(axes[0][1], GOAL_WASTE * 100, "goal: 0.02 %")
    axes[0][1].set_xlabel("padding in %, of as many documents as each got (log); less is better")
    axes[0][1].set_title("waste", fontsize=11)
    _draw_scale(axes[1][0], only(records, what="scale"))
    _draw_batches(axes[1][1], only(records, what="batches"))
    return drawn


def _draw_bars(
    axis: Axes,
    records: list[Measurement],
    key: str,
    factor: float,
    format_value: Callable[[float], str],
    *,
    legend: Literal["center right", "upper right"],
    is_log: bool = True,
) -> None:
    """Draw a group of bars for each contender, one for each case."""
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(record.contender for record in records))
    cases = list(dict.fromkeys(record.case["case"] for record in records))
    for record in records:
        place, height = _place(record, names, cases)
        value = record.more[key] * factor
        alpha = _ALPHAS[cases.index(record.case["case"])]
        axis.barh(place, value, height * 0.92, color=_INKS[record.contender], alpha=alpha)
        axis.annotate(
            format_value(value), (value, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    values = [record.more[key] * factor for record in records]
    if is_log:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 3, max(values) * 4)
    else:
        axis.set_xlim(0, max(values) * 1.12)
    patches = [Patch(color="#555555", alpha=alpha, label=case) for alpha, case in zip(_ALPHAS, cases)]
    axis.legend(handles=patches, fontsize=8, loc=legend)
    axis.set_yticks(range(len(names)), names, fontsize=8.5)
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    axis.set_axisbelow(True)


def _place(record: Measurement, names: list[str], cases: list[str]) -> tuple[float, float]:
    """Return where the bar of a record is, and how high."""
    height = 0.84 / len(cases)
    number = cases.index(record.case["case"])
    return names.index(record.contender) + (number - (len(cases) - 1) / 2) * height, height


def _goal(axis: Axes, value: float, text: str) -> None:
    axis.axvline(value, color="black", linestyle=":", linewidth=1)
    axis.annotate(
        text, (value, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -10), textcoords="offset points", fontsize=8
    )


def _draw_batches(axis: Axes, records: list[Measurement]) -> None:
    """Draw speeds, and beside our bars what the goals ask for."""
    drawn = [record for record in records if record.contender != batches.IN_C or "workers" not in record.case["case"]]
    _draw_bars(axis, drawn, "batches_per_second", 1.0, _number, legend="center right", is_log=False)
    names = list(dict.fromkeys(record.contender for record in drawn))
    cases = list(dict.fromkeys(record.case["case"] for record in drawn))
    for record in only(drawn, OURS):
        place, height = _place(record, names, cases)
        if "workers" in record.case["case"]:
            continue
        of_limit, of_crops = record.more["goal_of_limit"], record.more["goal_of_crops"]
        for value, marker in ((of_limit, "|"), (of_crops, "d")):
            if value:
                axis.plot([value], [place], marker, color="black", markersize=height * 45 if marker == "|" else 5)
    axis.set_xlabel(
        f"batches/s, shuffled, all fields (crops: tokens and labels); more is better\n"
        f"goals for stoker, inline: line {GOAL_OF_LIMIT} of C, diamond {GOAL_OF_CROPS} of crops"
    )
    axis.set_title("batches of packed rows", fontsize=11)


def _draw_scale(axis: Axes, records: list[Measurement]) -> None:
    ours, limit = only(records, OURS), only(records, IN_C)
    lines = [
        (ours, "seconds", "-o", _INKS[OURS], "stoker, planned and mapped; with the most memory the process had"),
        (ours, "plan_seconds", "--o", _INKS[OURS], "of that, planning from counts"),
        (limit, "seconds", "-s", _INKS[IN_C], "best fit in C, document by document"),
    ]
    for some, key, style, ink, label in lines:
        if some:
            sizes = [record.more["num_documents"] for record in some]
            axis.plot(sizes, [record.more[key] for record in some], style, color=ink, label=label, markersize=5)
    for record in ours:
        is_small = record.more["num_documents"] <= 10**5  # where the other line is just below
        axis.annotate(
            f"{record.more['seconds']:.2g} s\n{record.more['peak_bytes'] / 1e6:,.0f} MB",
            (record.more["num_documents"], record.more["seconds"]),
            xytext=(-14, 7) if is_small else (7, -22),
            textcoords="offset points",
            fontsize=8,
            color=_INKS[OURS],
        )
    if ours[-1].more["num_documents"] >= GOAL_MANY:
        axis.plot([GOAL_MANY], [GOAL_MANY_SECONDS], "v", color="black", markersize=8)
        axis.annotate(
            "goal: 60 s, 4 GB",
            (GOAL_MANY, GOAL_MANY_SECONDS),
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(ours[0].more["num_documents"] / 2.5, ours[-1].more["num_documents"] * 6)
    axis.set_ylim(top=2000)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left")
    axis.set_xlabel("documents (log)")
    axis.set_ylabel("s (log)")
    axis.set_title("many documents, rows of 4,096", fontsize=11)
