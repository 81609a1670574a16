"""Measurements as plots and tables: everything that was measured is there, and what went wrong, too."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import BytesIO, StringIO
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from stoker.engine.stats import Quantiles
from stoker.errors import MissingExtra
from stoker.lab.plots import plotting, sweep_plots
from stoker.lab.plots.sweep_plots import compare_figures, loader_figures, tune_figures
from stoker.lab.plots.sweep_tables import compare_table, failures, format_title, loader_table, remarks, tune_table
from stoker.lab.trial.process_memory import ProcessMemory
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Config, Sweep
from stoker.lab.trial.trial import HUNG, Startup, Trial
from stoker.lab.trial.tuning import Tuning

SIZES = (60_000_000, 60_000_000, 50_000_000, 70_000_000)
"""What workers have."""


def trial(config: Config, number: int, seconds: float, **more: Any) -> Trial:
    found = {"num_workers": 0, "prefetch_factor": 2, **config}
    workers = config.get("num_workers", 0)
    return Trial(
        config=config,
        number=number,
        kind="stoker",
        found=found,
        startup=Startup(interpreter=0.05, imports=1.2, construction=0.1, first_batch=0.2 + 0.01 * number),
        seconds=10 * seconds,
        num_batches=10,
        num_samples=320,
        num_bytes=320_000,
        batch_seconds=Quantiles(num=10, mean=seconds, p50=seconds, p90=1.3 * seconds, p99=2 * seconds),
        cpu_seconds_per_sample=30e-6,
        trainer_bytes=200_000_000,
        workers_bytes=60_000_000 * workers,
        private_bytes=120_000_000 + 50_000_000 * workers,
        processes=[
            ProcessMemory(name="trainer", peak_bytes=230_000_000, held_bytes=200_000_000),
            *(
                ProcessMemory(name=f"worker {one}", peak_bytes=SIZES[one], held_bytes=SIZES[one])
                for one in range(workers)
            ),
        ],
        num_processes=1 + workers,
        **more,
    )


def sweep_of(configs: list[Config], verb: str = "loader") -> Sweep:
    trials = [
        trial(config, number, 0.02 / max(1, config.get("num_workers", 0)) * (1 + 0.05 * number))
        for number in range(2)
        for config in configs
    ]
    settings = {"seconds": 3.0, "num_batches": None, "num_rounds": 2, "batch_size": 32}
    return Sweep(verb=verb, target="data/train.py:make_loader", settings=settings, configs=configs, trials=trials)


WORKERS: list[Config] = [{"num_workers": number} for number in (0, 1, 2, 4)]
GRID: list[Config] = [
    {"num_workers": 0, "num_threads": 0},
    *({"num_workers": n, "num_threads": t, "prefetch_factor": p} for n in (1, 2) for t in (0, 2) for p in (2, 4)),
]
BATCHES: list[Config] = [{"batch_size": size} for size in (8, 16, 32)]


def drawn(figure: Figure) -> np.ndarray[Any, Any]:
    """Return the pixels of a figure that was really drawn."""
    file = BytesIO()
    figure.savefig(file)
    return np.asarray(Image.open(file).convert("RGB"))


def has_color(pixels: np.ndarray[Any, Any], color: str) -> bool:
    wanted = np.array([round(255 * part) for part in to_rgba(color)[:3]])
    return bool((np.abs(pixels.astype(int) - wanted).max(axis=-1) <= 3).any())


@pytest.mark.parametrize("configs", [WORKERS, GRID, BATCHES, [{}]], ids=["workers", "grid", "batch sizes", "one"])
def test_every_plot_of_a_sweep_is_drawn(configs: list[Config]) -> None:
    figures = loader_figures(sweep_of(configs))
    assert list(figures) == ["throughput", "memory", "startup", "quantiles"]
    for figure in figures.values():
        pixels = drawn(figure)
        assert min(pixels.shape[:2]) > 150
        assert has_color(pixels, plotting.INK)
    for _, color in sweep_plots.PARTS.values():
        assert has_color(drawn(figures["startup"]), color)


@pytest.mark.parametrize("configs", [WORKERS, GRID, BATCHES], ids=["workers", "grid", "batch sizes"])
def test_memory_is_drawn_process_upon_process(configs: list[Config]) -> None:
    axes = loader_figures(sweep_of(configs))["memory"].axes[0]
    num_workers = [config.get("num_workers", 0) for config in configs]
    bars: list[Any] = list(axes.patches)
    rows = [bars[at : at + len(configs)] for at in range(0, len(bars), len(configs))]
    heights = [[bar.get_height() for bar in row] for row in rows]
    assert heights == [[200.0] * len(configs)] + [
        [size / 1e6 if worker < num else 0.0 for num in num_workers]
        for worker, size in enumerate(SIZES[: max(num_workers)])
    ]
    tops = [bar.get_y() + bar.get_height() for bar in rows[-1]]
    assert tops == pytest.approx([200.0 + sum(SIZES[:num]) / 1e6 for num in num_workers])
    assert axes.get_legend_handles_labels()[1] == ["trainer", "workers, one by one"][: len(rows)]


def test_memory_of_a_worker_is_drawn_against_workers_where_they_vary() -> None:
    left, right = loader_figures(sweep_of(WORKERS))["memory"].axes
    assert left.get_title(loc="left") == "grows by 50 MB per worker, not counting file pages"
    mean, largest = (container[0] for container in right.containers)
    assert list(mean.get_ydata()) == [60.0, 60.0, 60.0]
    assert list(largest.get_ydata()) == [60.0, 60.0, 70.0]
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["1", "2", "4"]
    assert len(loader_figures(sweep_of(WORKERS[:2]))["memory"].axes) == 1, "one number of workers is no line"
    assert len(loader_figures(sweep_of(BATCHES))["memory"].axes) == 1


def test_lines_go_through_what_was_measured_with_whiskers_as_long_as_the_deviation() -> None:
    sweep = sweep_of(WORKERS)
    left, right = loader_figures(sweep)["throughput"].axes
    (container,) = right.containers
    line, _, (bars,) = container
    results = sweep.results()
    assert list(line.get_ydata()) == pytest.approx([1000 * (one.mean("seconds_per_batch") or 0) for one in results])
    for (low, high), result in zip(bars.get_segments(), results):
        assert high[1] - low[1] == pytest.approx(2000 * result.deviation("seconds_per_batch"))
    assert [label.get_text() for label in left.get_xticklabels()] == ["0", "1", "2", "4"]
    assert left.get_xlabel() == "workers"
    assert right.get_ylabel() == "time per batch (ms)"


def test_quantiles_far_apart_have_plain_numbers_and_whole_whiskers() -> None:
    sweep = sweep_of(WORKERS[:2])
    quantiles = [(0.0004, 0.04), (0.0024, 0.06)]  # 1.4 ± 1.4 ms
    trials = [
        replace(
            one,
            batch_seconds=replace(
                one.batch_seconds, p50=quantiles[one.number][0], p90=0.03, p99=quantiles[one.number][1]
            ),
        )
        for one in sweep.trials
    ]
    figure = loader_figures(replace(sweep, trials=trials))["quantiles"]
    drawn(figure)
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    labels = [tick.get_text() for tick, at in zip(axes.get_xticklabels(), axes.get_xticks()) if left <= at <= right]
    assert labels == ["0.5", "1", "2", "5", "10", "20", "50"]
    assert not [tick for tick in axes.get_xticklabels(minor=True) if tick.get_text()]
    ends = [end for container in axes.containers for bars in container[2] for end in np.ravel(bars.get_segments())[::2]]
    assert left < min(ends) and max(ends) < right


def test_a_whisker_of_times_ends_at_zero() -> None:
    sweep = sweep_of(WORKERS[:2])
    trials = [
        replace(one, batch_seconds=replace(one.batch_seconds, p90=0.001 + 0.02 * one.number)) for one in sweep.trials
    ]
    (axes,) = loader_figures(replace(sweep, trials=trials))["quantiles"].axes
    ends = [end for container in axes.containers for bars in container[2] for end in np.ravel(bars.get_segments())[::2]]
    assert axes.get_xscale() == "linear" and axes.get_xlim()[0] == min(ends) == 0


def test_what_was_not_varied_for_lack_of_workers_is_part_of_every_line() -> None:
    axes = loader_figures(sweep_of(GRID))["throughput"].axes[0]
    assert sorted(str(container.get_label()) for container in axes.containers) == [
        "0 threads, prefetch 2", "0 threads, prefetch 4", "2 threads, prefetch 2", "2 threads, prefetch 4"
    ]  # fmt: skip
    lengths = {container.get_label(): len(container[0].get_xdata()) for container in axes.containers}
    assert lengths["0 threads, prefetch 2"] == 3
    assert lengths["2 threads, prefetch 2"] == 2


def test_what_went_wrong_is_a_red_cross() -> None:
    sweep = sweep_of(WORKERS[:3])
    well = drawn(loader_figures(sweep)["throughput"])
    hung = Trial(config={"num_workers": 4}, outcome=HUNG, error="hung", trace="Thread\n  File x, line 3 in wait")
    sweep = replace(sweep, configs=WORKERS, trials=[*sweep.trials, hung])
    assert not has_color(well, plotting.BAD)
    assert has_color(drawn(loader_figures(sweep)["throughput"]), plotting.BAD)
    shown = printed(loader_table(sweep))
    assert "hung" in shown
    assert "File x, line 3 in wait" in printed(*failures(sweep))


def test_what_went_wrong_alike_is_shown_once_with_the_names_of_all() -> None:
    sweep = sweep_of(WORKERS)
    ill = [
        Trial(
            config=config, outcome="failed", error="ValueError: no\nmore", trace="line 1\n  ^^^\nValueError: no\nmore"
        )
        for config in WORKERS[:2]
    ]
    shown = printed(*failures(replace(sweep, trials=[*ill, *sweep.trials])))
    labels = [result.label for result in sweep.results()]
    assert shown.split("\n")[0].strip() == f"{labels[0]}; {labels[1]}: failed: ValueError: no"
    assert shown.count("ValueError") == 2
    assert "^" not in shown


def test_where_all_went_wrong_nothing_is_drawn() -> None:
    bad = Sweep(configs=[{}], trials=[Trial(config={}, outcome="failed", error="no")], settings={"batch_size": 3})
    assert loader_figures(bad) == compare_figures(bad) == {}


CONTENDERS: list[Config] = [
    {"contender": name, "num_workers": number} for number in (1, 2) for name in ("torch", "stoker", "stoker, 2 threads")
]


def test_loaders_stand_side_by_side() -> None:
    figure = compare_figures(sweep_of(CONTENDERS, "compare"))["compare"]
    assert len(figure.axes) == 4
    pixels = drawn(figure)
    for name in ("torch", "stoker"):
        assert has_color(pixels, plotting.LOADERS[name])
    assert has_color(pixels, plotting.STOKER_WITH_THREADS)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["1\N{MULTIPLICATION SIGN}"] * 6, "the ratio stands above each bar"


@pytest.fixture
def tuning() -> Tuning:
    configs: list[Config] = [{}, *WORKERS, {"num_workers": 2, "prefetch_factor": 4}]
    sweep = replace(sweep_of(configs, "tune"), step="train:make_step")
    return Tuning(
        sweep=sweep,
        best={"num_workers": 2},
        quickest={"num_workers": 4},
        code="DataLoader(..., num_workers=2, prefetch_factor=2)",
        seconds=Spread(mean=0.01, deviation=0.001, num=2),
        wait_seconds=0.002,
        step_seconds=0.008,
        before=Spread(mean=0.02, deviation=0.001, num=2),
        says=["a reason"],
    )


def test_the_setting_to_take_is_ringed(tuning: Tuning) -> None:
    figure = tune_figures(tuning)["tune"]
    (axes,) = figure.axes
    assert has_color(drawn(figure), plotting.BAD)
    legend = axes.get_legend()
    assert legend is not None
    labels = {text.get_text() for text in legend.get_texts()}
    assert labels == {
        "DataLoader(..., num_workers=2, prefetch_factor=2)",
        "current settings",
        "step without loading",
        "with this prefetch factor",
    }
    assert [text.get_text() for text in axes.texts] == ["4"], "a point says which prefetch factor it is of"


@pytest.mark.parametrize("best", [{"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 4}])
def test_the_ring_is_around_the_point_of_the_setting(tuning: Tuning, best: Config) -> None:
    [mean] = [result.mean("seconds_per_batch") for result in tuning.sweep.results() if result.config == best]
    assert mean is not None
    (axes,) = tune_figures(replace(tuning, best=best, seconds=Spread(mean=mean)))["tune"].axes
    lines = [line for line in axes.lines if line.get_linestyle() not in ("--", ":")]
    [ring] = [line.get_xydata() for line in lines if line.get_fillstyle() == "full" and line.get_markersize() > 15]
    points = [tuple(point) for line in lines if line.get_markersize() < 10 for point in np.asarray(line.get_xydata())]
    assert tuple(np.asarray(ring)[0]) in [pytest.approx(point) for point in points]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"a plot needs matplotlib.*\nhint: pip install 'stoker\[plot\]'"):
        plotting.require_matplotlib()


# ---------------------------------------------------------------- tables


def printed(*things: Any, width: int = 200) -> str:
    text = StringIO()
    console = Console(width=width, file=text)
    for thing in things:
        console.print(thing)
    return text.getvalue()


def test_a_table_fits_the_terminal_and_shows_more_where_there_is_room() -> None:
    one: list[Config] = [{}]
    four: list[Config] = [{**config, "batch_size": size} for config in GRID for size in (8, 1024)]
    for configs in (WORKERS, GRID, BATCHES, one, four):
        sweep = sweep_of(configs)
        for width in (80, 100, 150):
            shown = printed(loader_table(sweep, width=width), width=width)
            assert "…" not in shown, shown
            assert "samples/s" in shown and "memory" in shown and "start-" in shown
            if width >= 100:
                has_workers = "num_workers" in configs[0]
                assert "CPU" in shown and "p99" in shown
                assert ("per worker" in shown) is has_workers
                assert ("trainer" in shown) is (has_workers and (width > 100 or configs is not four))
    wide, narrow = (printed(loader_table(sweep_of(WORKERS), width=width), width=width) for width in (150, 100))
    assert "MB/s" in wide and "p50" in wide
    assert "MB/s" not in narrow


def test_numbers_are_shown_with_their_deviation() -> None:
    shown = printed(loader_table(sweep_of(WORKERS)))
    assert "1,562 ± 54" in shown, shown  # 32 samples in 20 or 21 ms
    ends = [line.rstrip().partition("30.0  ")[2].split("  ") for line in shown.splitlines() if "30.0" in line]
    assert [[cell.strip() for cell in end if cell.strip()] for end in ends] == [
        ["200 MB", "200 MB", "-", "1.56 s"],
        ["260 MB", "200 MB", "60 MB", "1.56 s"],
        ["320 MB", "200 MB", "60 MB", "1.56 s"],
        ["440 MB", "200 MB", "60 MB / 70 MB", "1.56 s"],
    ]
    compared = printed(compare_table(sweep_of(CONTENDERS, "compare")))
    assert "stoker, 2 threads" in compared
    assert "x torch" in compared
    assert "batches of 32" in format_title(sweep_of(CONTENDERS, "compare"))


def test_the_best_setting_and_the_present_one_are_marked(tuning: Tuning) -> None:
    for width in (80, 120):
        lines = printed(tune_table(tuning, width=width), width=width).splitlines()
        (best,) = [line for line in lines if line.rstrip().endswith("best")]
        (now,) = [line for line in lines if line.rstrip().endswith("current")]
        assert best.split()[:2] == ["2", "2"]
        assert now.split()[0] == "0"


def test_memory_grows_by_what_is_no_files() -> None:
    """The rest is a share of libraries, which depends on who else uses them."""
    assert "memory grows by 50 MB per worker" in remarks(sweep_of(WORKERS))


def test_remarks_say_what_the_table_does_not() -> None:
    sweep = sweep_of(WORKERS)
    assert remarks(sweep) == ["memory grows by 50 MB per worker"]
    starts = replace(sweep, trials=[replace(one, epoch_start_seconds=[0.25]) for one in sweep.trials], notes=["a note"])
    assert remarks(starts) == [
        "a note",
        "memory grows by 50 MB per worker",
        "starting an epoch takes up to 250 ms, which these numbers do not include",
    ]
    whole = replace(sweep, trials=[replace(one, counts_epoch_starts=True) for one in sweep.trials])
    assert remarks(whole)[1:] == ["epochs are short: what is counted of all are whole epochs, with their starts"]
