"""What the numbers say: the goals and whether they are reached, a table and a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.report import INK, Column, Saved, only
from benchmarks.tokens.loaders import (
    CONTENDERS,
    GRAIN,
    HUGGING_FACE,
    IN_C,
    IN_NUMPY,
    LITDATA,
    MEGATRON,
    MOSAIC,
    NANO,
    NODES,
    NODES_BATCHES,
    OURS,
    OURS_SHARED,
    STATEFUL,
    TORCH,
    TORCH_BATCHES,
    TORCH_MANY,
)
from benchmarks.turns import speedup
from stoker.lab.trial.rounds import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOAL_OF_LIMIT = 0.6
GOAL_INLINE = 1.7
GOAL_WORKERS = 5.0
"""How many times as fast as the best peer."""
GOAL_PRIVATE_BYTES = 25_000_000
GOAL_START = {0: 30.0, 2: 100.0}
"""Milliseconds until the first batch, by the number of workers."""
GOAL_RESUME = 1.1
"""How many times as long as a fresh start resuming may take: what is more than noise."""

_INKS = {
    OURS: INK["stoker"],
    OURS_SHARED: "#e59a86",
    TORCH: INK["torch"],
    TORCH_MANY: "#9a9a9a",
    TORCH_BATCHES: "#c4c4c4",
    STATEFUL: INK["StatefulDataLoader"],
    NODES: "#2e7d4f",
    NODES_BATCHES: "#8fbf7f",
    GRAIN: INK["Grain"],
    NANO: "#2b6ca3",
    LITDATA: "#792ee5",
    HUGGING_FACE: "#d8a800",
    MOSAIC: "#123c69",
    MEGATRON: "#5d8a00",
    IN_C: "black",
    IN_NUMPY: "#444444",
}


def _is_peer(name: str) -> bool:
    return name not in (OURS, OURS_SHARED) and not CONTENDERS[name].is_limit


def _best(records: list[Measurement], *, by_hand: bool) -> Measurement | None:
    """Return the fastest peer: that collates rows itself, or that calls a gather of users' own."""
    peers = [
        record
        for record in records
        if _is_peer(record.contender) and CONTENDERS[record.contender].is_by_hand == by_hand
    ]
    return min(peers, key=lambda record: record.median, default=None)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "not reached"


def shows(
    records: list[Measurement], resume_step: int, missing: list[str], failed: dict[str, str], num_hung: dict[str, int]
) -> list[str]:
    """Return the findings."""
    sentences = [_describe_speed(records, order, workers) for order in ("shuffled", "sequential") for workers in (0, 2)]
    sentences += [_describe_start(records, workers) for workers in GOAL_START]
    sentences += [_describe_memory(records), _describe_resume(records, resume_step)]
    if missing:
        sentences.append(f"Left out, because not installed: {', '.join(missing)}.")
    sentences += [f"{name} hung {number} times, and was started again." for name, number in num_hung.items()]
    sentences += [f"Failed: {what}: {reason}." for what, reason in failed.items()]
    return [sentence for sentence in sentences if sentence]


def _describe_speed(records: list[Measurement], order: str, workers: int) -> str:
    found = only(records, what="batches", order=order, workers=workers)
    if not found:
        return ""
    ours, shared = only(found, OURS)[0], only(found, OURS_SHARED)[0]
    limit = (only(found, IN_C) or only(found, IN_NUMPY))[0]
    where = f"{order}, {'2 workers' if workers else 'inline'}"
    share = speedup(ours, limit)
    summary = (
        f"{where}: stoker {_number(ours.more['batches_per_second'])} batches/s, "
        f"{share:.2f} of the {limit.contender} on one thread ({_number(limit.more['batches_per_second'])}); "
        f"x and y shared {_number(shared.more['batches_per_second'])}."
    )
    is_judged = order == "shuffled"
    if is_judged and not workers:
        summary += f" The goal of {GOAL_OF_LIMIT} is {_verdict(share >= GOAL_OF_LIMIT)}."
    goal = GOAL_WORKERS if workers else GOAL_INLINE
    for by_hand in (False, True):
        best = _best(found, by_hand=by_hand)
        if best is None:
            continue
        what = "peer whose users write the gather of whole batches" if by_hand else "peer that collates rows"
        times = speedup(ours, best)
        summary += (
            f" {times:.1f}x the best {what}, {best.contender} ({_number(best.more['batches_per_second'])})"
            f"{f': the goal of {goal:g}x is {_verdict(times >= goal)}' if is_judged else ''}."
        )
    return summary


def _describe_start(records: list[Measurement], workers: int) -> str:
    found = only(records, what="start", workers=workers)
    ours = only(found, OURS)[0].more["milliseconds"]
    others = ", ".join(
        f"{record.contender} {_number(record.more['milliseconds'])}" for record in found if _is_peer(record.contender)
    )
    goal = GOAL_START[workers]
    return (
        f"first batch, {'2 workers' if workers else 'inline'}: stoker {_number(ours)} ms from construction; "
        f"the goal of {goal:g} ms is {_verdict(ours <= goal)}. Others: {others}."
    )


def _describe_memory(records: list[Measurement]) -> str:
    found = only(records, what="memory")
    ours = only(found, OURS)[0].more["private_bytes"]
    others = ", ".join(
        f"{record.contender} {record.more['private_bytes'] / 1e6:.0f}" for record in found if _is_peer(record.contender)
    )
    return (
        f"private memory of a worker: stoker {ours / 1e6:.1f} MB; the goal of {GOAL_PRIVATE_BYTES / 1e6:g} MB is "
        f"{_verdict(ours < GOAL_PRIVATE_BYTES)}. Others: {others}."
    )


def _describe_resume(records: list[Measurement], step: int) -> str:
    summary = []
    goal = ""
    for record in only(records, what="resume"):
        fresh = only(records, record.contender, what="start", workers=0)
        if not fresh:
            continue
        times = 1 / speedup(record, fresh[0])
        summary.append(
            f"{record.contender} {_number(record.more['milliseconds'])} ms against "
            f"{_number(fresh[0].more['milliseconds'])} ms afresh ({times:.2f})"
        )
        if record.contender == OURS:
            goal = f" The goal, as fast as a fresh start, is {_verdict(times <= GOAL_RESUME)}."
    return f"resume at step {step:,}, inline: {'; '.join(summary)}. Each went on with the batch it should.{goal}"


def limits() -> list[str]:
    """Return what must not be read from the numbers."""
    return [
        "a disk: the corpus is in the page cache, and all its pages were read before.",
        "a training step: the trainer reads one number each of tokens and labels, and asks for the next batch. With "
        "two workers and two cores, trainer and workers share these.",
        "more than one thread: torch has one in all trainers and workers. The gather in C has one, and with workers "
        "too is the one without.",
        "imports: all modules were imported before the clock ran, also those that stoker imports when a store is first "
        "opened.",
        "the beginning of epochs, except as the first batch: the clock stands still. Workers persist.",
        "equal work. nanoGPT maps the file anew for each batch and draws rows with replacement. torch, "
        "StatefulDataLoader, torchdata and Grain read a plain memory map; with `__getitems__` the rows of a batch are "
        "read in one call and then collated. `gather by hand` is the loader with a batch that its users gather "
        "themselves, with no collation, no checks and no labels to be had from it but those written there. litdata, "
        "Hugging Face datasets and MosaicML Streaming have rows of 2,049 tokens, send them as they are stored, and "
        "are widened in the trainer. Megatron puts rows together from documents, shuffles always, and gives masks and "
        "positions too. Grain starts its workers with spawn, all others with fork. stoker checks the checksum of each "
        "block when it is first read.",
        "MosaicML Streaming with what it declares: it runs here with a newer NumPy, and without torchvision and "
        "transformers, of which it only wants names.",
        "private memory as what a process would take alone: what forked workers share with their trainer is not in "
        "it, nor are pages of the corpus.",
    ]


COLUMNS = (
    Column("batches/s", lambda record: _from(record, "batches_per_second", _number)),
    Column("of the C gather", lambda record: "" if not record.median_ratio else f"{1 / record.median_ratio:.2f}"),
    Column("CPU µs per batch", lambda record: _number(record.median_cpu) if record.unit == "batch" else ""),
    Column("first batch, ms", lambda record: _from(record, "milliseconds", _number)),
    Column("private MB per worker", lambda record: _from(record, "private_bytes", lambda size: f"{size / 1e6:.1f}")),
    Column("PSS MB per worker", lambda record: _from(record, "pss_bytes", lambda size: f"{size / 1e6:.1f}")),
    Column("processes", lambda record: _from(record, "num_processes", str)),
)


def _from(record: Measurement, key: str, format_value: Any) -> str:
    return str(format_value(record.more[key])) if key in record.more else ""


# ---------------------------------------------------------------- drawing


def draw(records: list[Measurement], _: Saved) -> Figure:
    """Draw speed, first batch and memory."""
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(2, 2, figsize=(14, 11), layout="constrained")
    for axis, order in zip(axes[0], ("shuffled", "sequential")):
        _draw_speed(axis, only(records, what="batches", order=order), order)
    parts = [(only(records, what="start", workers=0), "inline", 1.0)]
    parts += [(only(records, what="start", workers=2), "2 workers", 0.55)]
    parts += [(only(records, what="resume"), "resumed, inline", 0.3)]
    _draw_bars(axes[1][0], parts, "milliseconds", 1.0, "ms from construction to the first batch (log)")
    for workers, goal in GOAL_START.items():
        axes[1][0].axvline(goal, color="black", linestyle=":", linewidth=1)
        axes[1][0].annotate(
            f"goal, {'2 workers' if workers else 'inline'}", (goal, -0.7), fontsize=7, annotation_clip=False
        )
    memory = [(only(records, what="memory"), "2 workers", 1.0)]
    _draw_bars(axes[1][1], memory, "private_bytes", 1e-6, "private MB of a worker, without the corpus (log)")
    axes[1][1].axvline(GOAL_PRIVATE_BYTES / 1e6, color="black", linestyle=":", linewidth=1)
    return drawn


def _draw_speed(axis: Axes, records: list[Measurement], order: str) -> None:
    if not records:
        axis.set_axis_off()
        return
    parts = [
        (only(records, workers=0), "inline", 1.0),
        ([record for record in only(records, workers=2) if record.contender not in (IN_C, IN_NUMPY)], "2 workers", 0.5),
    ]
    _draw_bars(axis, parts, "batches_per_second", 1.0, "batches/s of 32 rows (log, median of rounds)")
    for record in only(records, IN_C, workers=0):
        axis.axvline(record.more["batches_per_second"], color="black", linestyle=":", linewidth=1)
    axis.set_title(order, fontsize=10)


def _draw_bars(
    axis: Axes, parts: list[tuple[list[Measurement], str, float]], key: str, scale: float, label: str
) -> None:
    """Draw a group of bars for each contender, one for each part."""
    present = {record.contender for records, _, _ in parts for record in records}
    names = [name for name in CONTENDERS if name in present]
    height = 0.84 / len(parts)
    for number, (records, title, alpha) in enumerate(parts):
        for record in records:
            place = names.index(record.contender) + (number - (len(parts) - 1) / 2) * height
            value = record.more[key] * scale
            axis.barh(place, value, height * 0.94, color=_INKS[record.contender], alpha=alpha)
            axis.annotate(
                f"{_number(value)}{'' if len(parts) == 1 else f'  {title}'}",
                (value, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.22)
    axis.grid(alpha=0.3, axis="x")
    axis.set_axisbelow(True)
    axis.set_xlabel(label)
