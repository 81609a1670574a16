"""What the numbers say: the goals and whether they are reached, a table and a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.images.contenders import CONTENDERS
from benchmarks.images.jobs import CROPS, FACES
from benchmarks.images.limit import PART, WHOLE
from benchmarks.images.others import DALI, FFCV, FFCV_SMALL, GRAIN, SPDL_FFMPEG, SPDL_QUICK, TF, TF_PLAIN
from benchmarks.images.own import OURS, OURS_EXACT, OURS_SMALL, OURS_THREADS, OURS_WHEELS
from benchmarks.images.torch_loaders import TORCH_PIL, TORCH_QUICK, WEB_PIL, WEB_QUICK
from benchmarks.report import INK, Column, Saved, only
from benchmarks.turns import speedup
from stoker.lab.trial.rounds import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOAL_NATIVE, GOAL_WHEELS = 1.2, 1.0
"""How many times as fast as tf.data crops are to be, with and without our optional library."""
GOAL_FACES = 1.3
"""How many times as fast as the best peer faces are to be."""

_INKS = {
    OURS: INK["stoker"],
    OURS_THREADS: "#dd6a50",
    OURS_WHEELS: "#e59a86",
    OURS_EXACT: "#eec0b4",
    OURS_SMALL: "#8e2712",
    TORCH_PIL: INK["torch"],
    TORCH_QUICK: "#9a9a9a",
    WEB_PIL: "#2b6ca3",
    WEB_QUICK: "#7fa8cc",
    SPDL_FFMPEG: "#8fbf7f",
    SPDL_QUICK: "#2e7d4f",
    GRAIN: INK["Grain"],
    DALI: "#5d8a00",
    TF: "#b8860b",
    TF_PLAIN: "#d8b65c",
    FFCV: "#123c69",
    FFCV_SMALL: "#4c6f94",
    WHOLE: "#444444",
    PART: "black",
}


def _is_peer(name: str) -> bool:
    return name in CONTENDERS and not CONTENDERS[name].is_ours


def _rate(record: Measurement) -> str:
    return f"{record.more['images_per_second']:,.0f}"


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "not reached"


def shows(
    records: list[Measurement],
    sources: dict[str, str],
    likenesses: dict[str, dict[str, Any]],
    outcomes: dict[str, str],
    missing: list[str],
    failed: dict[str, str],
) -> list[str]:
    """Return the findings."""
    sentences = [f"{job} are of {summary}." for job, summary in sources.items()]
    for job in (CROPS, FACES):
        found = only(records, job=job)
        sentences += [*_describe_speed(found, job), _describe_limit(found, job), _describe_cost(found, job)]
    sentences += [_describe_quality(what, of) for what, of in likenesses.items()]
    if outcomes:
        kinds: dict[str, list[str]] = {}
        for name, outcome in outcomes.items():
            kinds.setdefault(outcome, []).append(name)
        summary = "; ".join(f"{', '.join(names)}: {outcome}" for outcome, names in kinds.items())
        sentences.append(f"a file that ends in the middle. {summary}.")
    if missing:
        sentences.append(f"Left out, because not installed or not built: {', '.join(missing)}.")
    sentences += [f"Failed: {what}: {why}." for what, why in failed.items()]
    return [sentence for sentence in sentences if sentence]


def _describe_speed(found: list[Measurement], job: str) -> list[str]:
    ours = only(found, OURS)
    if not ours:
        return []
    peers = [record for record in found if _is_peer(record.contender) and not CONTENDERS[record.contender].is_shrunk]
    summary = [f"{job}: stoker {_rate(ours[0])} images/s"]
    summary += [
        f"{record.contender.removeprefix('stoker, ')} {_rate(record)}"
        for record in found
        if record.contender in CONTENDERS and CONTENDERS[record.contender].is_ours and record is not ours[0]
    ]
    others = sorted(peers, key=lambda record: record.median)
    sentences = [
        f"{', '.join(summary)}; "
        + ", ".join(f"{record.contender} {_rate(record)} ({speedup(ours[0], record):.2f}x)" for record in others)
        + "."
    ]
    if job == CROPS:
        tensorflow = [record for record in others if record.contender in (TF, TF_PLAIN)]
        for name, goal in ((OURS, GOAL_NATIVE), (OURS_WHEELS, GOAL_WHEELS)):
            for record in only(found, name) if tensorflow else []:
                times = speedup(record, tensorflow[0])
                sentences.append(
                    f"{job}: {name} is {times:.2f}x {tensorflow[0].contender}, the faster one; the goal of {goal}x "
                    f"is {_verdict(times >= goal)}."
                )
        small, theirs = only(found, OURS_SMALL), only(found, FFCV_SMALL)
        if small and theirs:
            sentences.append(
                f"{job} of shrunken copies: {OURS_SMALL} {_rate(small[0])} images/s, FFCV {_rate(theirs[0])} "
                f"({speedup(small[0], theirs[0]):.2f}x)."
            )
    elif others:
        for name in (OURS, OURS_WHEELS):
            for record in only(found, name):
                times = speedup(record, others[0])
                sentences.append(
                    f"{job}: {name} is {times:.2f}x the best peer, {others[0].contender}; the goal of {GOAL_FACES}x is "
                    f"{_verdict(times >= GOAL_FACES)}."
                )
    return sentences


def _describe_quality(what: str, of: dict[str, Any]) -> str:
    summary = (
        f"quality of {what}, beside Pillow's full decode and antialiased resize: {of['share_equal']:.1%} of "
        f"{of['num_pictures']:,} pictures are the same bit for bit"
    )
    if "psnr_mean" not in of:
        return f"{summary}."
    return (
        f"{summary}; the others have a PSNR of {of['psnr_mean']:.1f} dB on average ({of['psnr_min']:.1f} at worst) and "
        f"an SSIM of {of['ssim_mean']:.4f} ({of['ssim_min']:.4f})."
    )


def _describe_limit(found: list[Measurement], job: str) -> str:
    ours = only(found, OURS)
    summary = [
        f"{limit} {_rate(record)}{f' (stoker reaches {speedup(ours[0], record):.2f} of it)' if ours else ''}"
        for limit in (WHOLE, PART)
        for record in only(found, limit)
    ]
    return f"{job}, with no loader, on as many cores: {', '.join(summary)}." if summary else ""


def _describe_cost(found: list[Measurement], job: str) -> str:
    loaders = [record for record in found if record.contender in CONTENDERS]
    if not loaders or not only(found, OURS):
        return ""

    def row(key: str, scale: float, unit: str) -> str:
        ours = only(found, OURS)[0].more.get(key)
        peers = [
            (record.more[key], record.contender)
            for record in loaders
            if _is_peer(record.contender) and key in record.more
        ]
        if ours is None or not peers:
            return ""
        (low, least), (high, most) = min(peers), max(peers)
        return f"stoker {ours * scale:.3g} {unit}, others {low * scale:.3g} ({least}) to {high * scale:.3g} ({most})"

    parts = {
        "CPU per 1000 images": row("cpu_per_1000", 1, "s"),
        "batches, p99": row("p99_seconds", 1e3, "ms"),
        "first batch": row("start_seconds", 1e3, "ms"),
        "memory of trainer and workers": row("peak_bytes", 1e-6, "MB"),
    }
    return f"{job}. " + ". ".join(f"{what}: {summary}" for what, summary in parts.items() if summary) + "."


def limits(num_workers: int) -> list[str]:
    """Return what must not be read from the numbers."""
    return [
        "a disk: all bytes are in the page cache. The photographs are few, each under many names.",
        f"a training step: the trainer reads one number of each batch. Trainer and {num_workers} workers share the "
        "cores.",
        "imports: all modules were imported before the clock ran. The first batch comes from a loader that lists its "
        "files itself, with a listing that stoker has kept from before; copies in other formats are there already.",
        "equal work. torch, WebDataset, SPDL with simplejpeg, Grain and FFCV decode whole files, DALI too; tf.data "
        "decodes the crop; stoker the crop, and at a half, a quarter or an eighth of the size where that is enough. "
        "Pillow, torch (`antialias=True`), ffmpeg's scaler, DALI and stoker antialias; tf.data's `antialias=True` "
        "does, and beside it stands tf.data without; FFCV averages areas. tf.data, DALI, SPDL with ffmpeg and FFCV "
        "give [N, H, W, C], others [N, C, H, W].",
        "the same place for the work: SPDL, Grain, DALI, tf.data and FFCV have their threads in the trainer's process, "
        "where they would meet those of a real trainer; torch, WebDataset and stoker have processes.",
        "the same shuffling: WebDataset shuffles in a buffer of 500, all others over everything.",
        "FFCV with the photographs as they are: it encodes them anew (quality 95), and small ones at quality 90.",
        "torchvision: it has no build for machines without a GPU. `torch, PIL` does what its transforms do.",
    ]


def _from(key: str, scale: float = 1.0, form: str = ",.0f") -> Any:
    def cell(record: Measurement) -> str:
        return f"{record.more[key] * scale:{form}}" if key in record.more else ""

    return cell


COLUMNS = (
    Column("images/s", _from("images_per_second")),
    Column("lowest", _from("lowest")),
    Column("highest", _from("highest")),
    Column("times torch, PIL", _from("times_torch", form=".2f")),
    Column("CPU s per 1000", _from("cpu_per_1000", form=".2f")),
    Column("batch p50, ms", _from("p50_seconds", 1e3, ".1f")),
    Column("p99, ms", _from("p99_seconds", 1e3, ".1f")),
    Column("first batch, ms", _from("start_seconds", 1e3)),
    Column("PSS peak, MB", _from("peak_bytes", 1e-6)),
)


# ---------------------------------------------------------------- drawing


def draw(records: list[Measurement], saved: Saved) -> Figure:
    """Draw speed with the spread of rounds and the limit as lines, and below what it costs."""
    num_workers = saved["num_workers"]
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(2, 2, figsize=(14, 12), layout="constrained", height_ratios=(1.15, 1))
    titles = {
        CROPS: f"RandomResizedCrop(224) and flip of photographs, {num_workers} workers",
        FACES: f"faces of 250 x 250 to 224 x 224, {num_workers} workers",
    }
    for column, (job, title) in enumerate(titles.items()):
        found = only(records, job=job)
        _draw(axes[0][column], found, "images_per_second", 1.0, "images/s (median of rounds, and their range)")
        axes[0][column].set_title(title, fontsize=10)
        _draw_limits(axes[0][column], found)
        _draw(axes[1][column], found, "cpu_per_1000", 1.0, "CPU seconds per 1000 images, trainer and workers")
    return drawn


def _draw_limits(axis: Axes, found: list[Measurement]) -> None:
    """Draw a line for each limit, and say what it is in rows of their own below the bars."""
    last = axis.get_ylim()[0]
    places = {WHOLE: ("--", last + 0.3), PART: (":", last + 1.2)}
    highest = axis.get_xlim()[1]
    for limit, (style, place) in places.items():
        for record in only(found, limit):
            rate = record.more["images_per_second"]
            axis.axvline(rate, color=_INKS[limit], linestyle=style, linewidth=1)
            is_right = rate > 0.5 * highest
            axis.annotate(
                f"{limit}, no loader: {rate:,.0f}",
                (rate, place),
                xytext=(-4 if is_right else 4, 0),
                textcoords="offset points",
                fontsize=7.5,
                va="center",
                ha="right" if is_right else "left",
            )
            highest = max(highest, rate * 1.06)
    axis.set_xlim(0, highest)
    axis.set_ylim(last + 1.8, axis.get_ylim()[1])


def _draw(axis: Axes, records: list[Measurement], key: str, scale: float, label: str) -> None:
    shown = [record for record in records if record.contender in CONTENDERS and key in record.more]
    shown.sort(key=lambda record: list(CONTENDERS).index(record.contender))
    for place, record in enumerate(shown):
        value = record.more[key] * scale
        spread = None
        if key == "images_per_second":
            spread = [[max(0.0, value - record.more["lowest"])], [max(0.0, record.more["highest"] - value)]]
        axis.barh(
            place,
            value,
            0.82,
            color=_INKS[record.contender],
            xerr=spread,
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "black"},
        )
        highest = record.more["highest"] if spread else value
        axis.annotate(
            f"{value:,.0f}" if value >= 100 else f"{value:.2f}",
            (max(value, highest), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
        )
    axis.set_yticks(range(len(shown)), [record.contender for record in shown], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3, axis="x")
    axis.set_axisbelow(True)
    axis.set_xlabel(label)
