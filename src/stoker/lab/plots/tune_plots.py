"""Plot the trials of `stoker tune`. Error bars are standard deviations over rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.foundation.text import time_unit
from stoker.lab.plots.bench_axes import BAD, SERIES, add_legend, draw_against, empty_figure, finish
from stoker.lab.plots.plotting import FAINT, INK
from stoker.lab.trial.tuning import Tuning

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tune_figures(tuning: Tuning) -> dict[str, Figure]:
    """Plot step time against num_workers, with the best setting circled. Return the figure by file name."""
    sweep = tuning.sweep
    results = [result for result in sweep.results() if result.config]
    unit, size = time_unit(tuning.seconds.mean)
    figure = empty_figure(8.6, 5.2)
    axes = figure.subplots()
    plain = [result for result in results if "prefetch_factor" not in result.config]
    spots = draw_against(axes, plain, "seconds_per_batch", scale=size, over="num_workers")
    places = sorted({result.config["num_workers"] for result in plain})
    for number, result in enumerate(one for one in results if "prefetch_factor" in one.config and one.num_ok):
        at = places.index(result.config["num_workers"]) + 0.09 * (number + 1)
        spots[result.label] = at
        height = (result.mean("seconds_per_batch") or 0.0) / size
        axes.errorbar(
            [at],
            [height],
            yerr=[result.deviation("seconds_per_batch") / size],
            fmt="D",
            ms=5,
            color=FAINT,
            capsize=3,
            label="with this prefetch factor" if not number else None,
        )
        axes.annotate(
            str(result.config["prefetch_factor"]),
            (at, height + result.deviation("seconds_per_batch") / size),
            xytext=(0, 10),  # above the ring
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=FAINT,
        )
    best = next(result for result in results if result.config == tuning.best)
    axes.plot(
        [spots[best.label]], [tuning.seconds.mean / size], "o", ms=17, mfc="none", mec=BAD, mew=1.8, label=tuning.code
    )
    if tuning.before is not None:
        axes.axhline(tuning.before.mean / size, color=FAINT, lw=1.2, ls="--", label="current settings")
    if tuning.step_seconds is not None:
        axes.axhline(tuning.step_seconds / size, color=SERIES[2], lw=1.2, ls=":", label="step without loading")
    what = "step, including the wait for its batch" if sweep.step is not None else "batch"
    axes.set_ylabel(f"time per {what} ({unit})", color=INK)
    axes.set_ylim(0, 1.32 * axes.get_ylim()[1])
    add_legend(axes, columns=2)
    finish(figure, f"{sweep.target.rpartition('/')[2]}: time against workers")
    return {"tune": figure}
