"""Plot the demo: where the time of each step went, the loss, a batch, and how fast tokens load."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from examples.demo.machine import MAX_OTHERS
from examples.demo.tokens import BATCH_SIZE as ROWS
from examples.demo.tokens import LENGTH, STOKER, Pace
from examples.demo.training import BATCH_SIZE, Run

COMPUTE, WAIT, INK, FAINT = "#3b6fa0", "#e8833a", "#22262b", "#6b737c"
INLINE, OVERLAPPED = "#9a6fb0", "#2a9d6f"
TOKEN_COLORS = ("#e4eef7", "#fbe9dc")
WORDS_WIDE, WORDS_HIGH = 78, 9
"""Characters per line, and lines, of the document shown."""
NUM_SHOWN = 12
"""Images of the batch shown."""


def draw(
    path: Path,
    *,
    inline: Run,
    overlapped: Run,
    images: NDArray[np.float32],
    labels: list[str],
    paces: list[Pace],
    words: list[str],
) -> None:
    """Save the plot.

    `images` is a batch as the model sees it: (image, channel, row, column), from 0 to 1; `words` is the beginning of
    the store, token by token.
    """
    figure = Figure(figsize=(12, 11.6), dpi=130, facecolor="white")
    rows = figure.add_gridspec(
        4, 1, height_ratios=(1.0, 0.95, 0.42, 0.72), left=0.07, right=0.97, top=0.87, bottom=0.03, hspace=0.45
    )
    _head(figure, inline, overlapped)

    top = rows[0].subgridspec(1, 2, wspace=0.08)
    left = figure.add_subplot(top[0])
    right = figure.add_subplot(top[1], sharey=left)
    highest = 1000 * max(np.quantile(run.step_seconds, 0.99) for run in (inline, overlapped))
    left.set_ylim(0, 1.3 * float(highest))
    for axes, run in ((left, inline), (right, overlapped)):
        _draw_steps(axes, run)
    left.set_ylabel("time per step (ms)", color=INK)
    right.tick_params(labelleft=False)

    middle = rows[1].subgridspec(1, 2, wspace=0.22)
    _draw_progress(figure.add_subplot(middle[0]), inline, overlapped)
    _draw_losses(figure.add_subplot(middle[1]), inline, overlapped)

    strip = rows[2].subgridspec(1, NUM_SHOWN, wspace=0.08)
    for number, (image, label) in enumerate(zip(images[:NUM_SHOWN], labels)):
        axes = figure.add_subplot(strip[number])
        axes.imshow(image.transpose(1, 2, 0))
        axes.set_xlabel(label, fontsize=9, color=INK, labelpad=3)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if not number:
            axes.set_title(
                f"{NUM_SHOWN} images of a batch, cropped and flipped with stoker.rng()", loc="left", fontsize=11
            )

    last = rows[3].subgridspec(1, 2, wspace=0.08, width_ratios=(1.0, 1.0))
    _draw_paces(figure.add_subplot(last[0]), paces)
    _draw_words(figure.add_subplot(last[1]), words)
    figure.savefig(path)


def _head(figure: Figure, inline: Run, overlapped: Run) -> None:
    ratio = overlapped.images_per_second / inline.images_per_second
    figure.text(0.07, 0.965, "Loading overlapped with computing", fontsize=19, fontweight="bold", color=INK)
    subtitle = (
        f"{len(inline.losses)} steps of {BATCH_SIZE} images, the same batches in both runs, computing on one core: "
        f"{inline.images_per_second:,.0f} images/s inline, "
        f"{overlapped.images_per_second:,.0f} overlapped ({ratio:.2f}x)"
    )
    others = max(run.others_cores or 0.0 for run in (inline, overlapped))
    if others > MAX_OTHERS:
        note = f"other programs used {others:.1f} cores during the runs"
        figure.text(0.95, 0.915, note, fontsize=11.5, color=FAINT, ha="right")
    figure.text(0.07, 0.941, subtitle, fontsize=11.5, color=FAINT)
    for x, color, word in ((0.07, COMPUTE, "computing"), (0.185, WAIT, "waiting for data")):
        figure.text(x, 0.915, f"\N{BLACK SQUARE} {word}", fontsize=11.5, fontweight="bold", color=color)


def _draw_steps(axes: Axes, run: Run) -> None:
    """Draw each step as a stacked bar: computing below, waiting on top."""
    steps = np.arange(len(run.losses))
    compute, wait = 1000 * run.compute_seconds, 1000 * run.wait_seconds
    axes.bar(steps, compute, width=1.0, color=COMPUTE)
    axes.bar(steps, wait, width=1.0, bottom=compute, color=WAIT)
    median = 1000 * float(np.median(run.step_seconds))
    axes.set_title(
        f"{run.name}: {median:.0f} ms per step, waiting {run.wait_share:.0%} of the time", loc="left", fontsize=11
    )
    axes.set_xlabel("step", color=INK)
    axes.set_xlim(-0.5, len(steps) - 0.5)
    _plain(axes)


def _draw_progress(axes: Axes, inline: Run, overlapped: Run) -> None:
    axes.set_title("images seen", loc="left", fontsize=11)
    for run, color in ((inline, INLINE), (overlapped, OVERLAPPED)):
        seconds = run.step_seconds.cumsum()
        seen = BATCH_SIZE * np.arange(1, len(seconds) + 1)
        axes.plot(seconds, seen, color=color, linewidth=2.4)
        axes.plot(seconds[-1], seen[-1], "o", color=color, markersize=6)
    _name_lines(axes, inline, overlapped, x=0.03, align="left", has_seconds=True)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds of training", color=INK)
    axes.set_ylabel("images", color=INK)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _plain(axes)


def _draw_losses(axes: Axes, inline: Run, overlapped: Run) -> None:
    axes.set_title("training loss (mean of 8 steps)", loc="left", fontsize=11)
    for run, color in ((inline, INLINE), (overlapped, OVERLAPPED)):
        seconds, losses = run.step_seconds.cumsum(), _smooth(run.losses)
        axes.plot(seconds[-len(losses) :], losses, color=color, linewidth=2.4)
    _name_lines(axes, inline, overlapped, x=0.97, align="right", has_seconds=False)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds of training", color=INK)
    axes.set_ylabel("cross entropy", color=INK)
    _plain(axes)


def _draw_paces(axes: Axes, paces: list[Pace]) -> None:
    axes.set_title(f"batches/s of {ROWS} x {LENGTH:,} tokens with labels, shuffled", loc="left", fontsize=11)
    highest = max(pace.batches_per_second for pace in paces)
    for at, pace in enumerate(paces):
        color = OVERLAPPED if pace.name == STOKER else "#b9c0c7"
        axes.barh(at + pace.num_workers / 4, pace.batches_per_second, height=0.78, color=color)
        how = f"{pace.num_workers} workers" if pace.num_workers else "inline"
        axes.text(
            pace.batches_per_second + 0.015 * highest,
            at + pace.num_workers / 4,
            f"{pace.batches_per_second:,.0f}  {pace.name}, {how}",
            va="center",
            fontsize=9.5,
            color=INK,
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * highest)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_words(axes: Axes, words: list[str]) -> None:
    """Draw the text of the store, token by token."""
    axes.set_title("the first documents in the store, token by token", loc="left", fontsize=11)
    axes.set(xlim=(0, WORDS_WIDE), ylim=(WORDS_HIGH, 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    x, y = 0.0, 0
    for number, word in enumerate(words):
        if x + len(word) > WORDS_WIDE:
            x, y = 0.0, y + 1
        if y == WORDS_HIGH:
            break
        axes.add_patch(Rectangle((x, y + 0.08), len(word), 0.84, color=TOKEN_COLORS[number % 2], linewidth=0))
        axes.text(x, y + 0.52, word, va="center", fontsize=8.3, family="monospace", color=INK, parse_math=False)
        x += len(word)


def _name_lines(
    axes: Axes, inline: Run, overlapped: Run, *, x: float, align: Literal["left", "right"], has_seconds: bool
) -> None:
    """Label the two lines in the free corner, as they may be too close to label directly."""
    for y, run, color in ((0.92, overlapped, OVERLAPPED), (0.81, inline, INLINE)):
        word = f"{run.name}: {run.step_seconds.sum():.1f} s" if has_seconds else run.name
        axes.text(
            x, y, word, ha=align, va="center", color=color, fontweight="bold", fontsize=11, transform=axes.transAxes
        )


def _smooth(values: NDArray[np.float64], width: int = 8) -> NDArray[np.float64]:
    width = min(width, len(values))
    return np.convolve(values, np.ones(width) / width, mode="valid")


def _plain(axes: Axes) -> None:
    """Remove unneeded spines and ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c4c9ce")
    axes.tick_params(colors=FAINT, length=3)
    axes.grid(axis="y", color="#e6e8ea", linewidth=0.8)
    axes.set_axisbelow(True)
