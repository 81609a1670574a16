"""The figures of a run: the one list that the report's tiles and comparison, its settings and `stoker top` show.

To add a figure, add a `KeyFigure` to `KEY_FIGURES` and choose in `shown` where it appears.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from stoker.foundation.text import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from stoker.lab.watch.run import ProcessStats, Quantiles, Run, Stats

TILE, COMPARISON, SETTINGS, TERMINAL = "tile", "comparison", "settings", "terminal"
"""Places of a figure: the report's tiles, its table of two runs and of settings, and the panel of `stoker top`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What figures are computed from: a loader, in its slowest rank if there are several."""

    stats: Stats
    ranks: list[Stats]
    """The same loader in all ranks."""
    parts: list[Run]
    """The whole run, in as many parts as it was recorded in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """A figure: what it is called, how it is computed, and how it is written."""

    label: str
    meaning: str = ""
    """One sentence, shown when pointing at the tile."""
    value: Callable[[Measured], float | None]
    """Return the figure, or None if it was not recorded."""
    format: Callable[[float | None], str]
    detail: Callable[[Measured], str] = lambda _: ""
    """Return more to say about it."""
    is_more_better: bool = False
    is_share: bool = False
    """Whether it is a part of 1, to be drawn as a bar."""
    shown: Collection[str] = (TILE, COMPARISON)

    def describe(self, measured: Measured) -> str:
        """Return the figure with its detail on one line."""
        return ", ".join(filter(None, (self.format(self.value(measured)), self.detail(measured))))


THROUGHPUT = "throughput"
WAITING = "waiting for data, without first batches"
PEAK = "peak memory"


def figures_for(place: str) -> list[KeyFigure]:
    """Return the figures that a place shows, the most important first."""
    return [figure for figure in KEY_FIGURES if place in figure.shown]


def name_trainers(run: Run) -> str:
    """Return the name of the trainer process in a run's moments: there is one process per recorded rank."""
    num_ranks = len({stats.rank for stats in run.loaders})
    return f"trainers of all {num_ranks:,} ranks" if num_ranks > 1 else "trainer"


def name_loader(stats: Stats) -> str:
    """Return the display name of a loader."""
    return stats.name or {"stoker": "loader", "torch": "torch DataLoader"}.get(stats.kind, stats.kind or "loader")


def find_slow_rank(ranks: Sequence[Stats]) -> tuple[Stats | None, float]:
    """Return the rank that waits clearly longer for data than the others, or None; and the median wait of the others.

    Clearly means by 10%, and by 1% of its time per batch.
    """
    *others, slowest = sorted(ranks, key=lambda stats: stats.wait_seconds.mean)
    wait, usual = slowest.wait_seconds.mean, others[len(others) // 2].wait_seconds.mean if others else 0.0
    is_clear = wait > 1.1 * usual and wait - usual > 0.01 * (wait + slowest.step_seconds.mean)
    return slowest if others and is_clear else None, usual


def process_memory(stats: Stats) -> tuple[int | None, int | None]:
    """Return the memory of a loader's trainer and of its workers at their last sample; None if not sampled."""
    own = stats.trainer.pss_bytes if stats.trainer is not None else None
    workers = [worker.pss_bytes for worker in stats.workers if worker.pss_bytes]
    return own, sum(workers) if workers else None


def _throughput_detail(measured: Measured) -> str:
    stats = measured.stats
    if len(measured.ranks) > 1:
        return f"{len(measured.ranks)} ranks together"
    if not stats.seconds or not stats.num_batches:
        return ""
    return f"{format_number(stats.num_batches / stats.seconds)} batches/s, including first batches"


def _quantiles_detail(quantiles: Quantiles) -> str:
    if not quantiles.num:
        return ""
    return ", ".join(f"{name} {format_duration(getattr(quantiles, name))}" for name in ("p50", "p90", "p99"))


def _wait_detail(measured: Measured) -> str:
    wait, batch = measured.stats.wait_seconds, measured.stats.batch_seconds
    return f"{format_duration(wait.mean)} of {format_duration(batch.mean)} from batch to batch" if wait.num else ""


def _stalled_share(stats: Stats) -> float | None:
    return stats.num_stalls / stats.batch_seconds.num if stats.batch_seconds.num else None


def _stalls_detail(measured: Measured) -> str:
    stats = measured.stats
    return f"{stats.num_stalls:,}, {format_duration(stats.stall_seconds)} in total" if stats.num_stalls else ""


def _first_batch_detail(measured: Measured) -> str:
    firsts = measured.stats.first_batch_seconds
    if len(firsts) < 2:
        return ""
    return f"{len(firsts):,} iterations: {format_duration(min(firsts))} to {format_duration(max(firsts))}"


def _peaks(measured: Measured) -> list[tuple[float, float, Run]]:
    """Return the highest memory of trainers and workers together in each part that was sampled over time."""
    peaks = []
    for run in measured.parts:
        sizes = [
            (float(one.trainer_pss_bytes or 0), float(one.workers_pss_bytes or 0))
            for one in run.moments
            if one.trainer_pss_bytes is not None or one.workers_pss_bytes is not None
        ]
        if sizes:
            peaks.append((*max(sizes, key=sum), run))
    return peaks


def _last_memory(measured: Measured) -> float | None:
    sizes = [sum(size or 0 for size in process_memory(stats)) for run in measured.parts for stats in run.loaders]
    return float(max(sizes)) if any(sizes) else None


def _peak_memory(measured: Measured) -> float | None:
    sums = [own + workers for own, workers, _ in _peaks(measured)]
    return max(sums) if sums else _last_memory(measured)


def _peak_detail(measured: Measured) -> str:
    peaks = _peaks(measured)
    if peaks:
        own, workers, run = max(peaks, key=lambda peak: peak[0] + peak[1])
        where = ", in the part with the highest peak" if len(measured.parts) > 1 else ""
        return f"{name_trainers(run)} {format_bytes(own)}, workers {format_bytes(workers)}{where}"
    if _last_memory(measured) is None:
        return ""
    ranks = {stats.rank for run in measured.parts for stats in run.loaders}
    return "of the rank with the most, at the last sample" if len(ranks) > 1 else "at the last sample"


def _cpu_per_sample(processes: Collection[ProcessStats], stats: Stats) -> float | None:
    if not processes or not stats.num_samples:
        return None
    return sum(one.cpu_seconds for one in processes) / stats.num_samples


def _trainer_cpu(measured: Measured) -> float | None:
    stats = measured.stats
    return _cpu_per_sample([stats.trainer] if stats.trainer is not None else [], stats)


def _loading_cpu(measured: Measured) -> float | None:
    of_workers = _cpu_per_sample(measured.stats.workers, measured.stats)
    return _trainer_cpu(measured) if of_workers is None else of_workers


def _cpu_detail(measured: Measured) -> str:
    if _cpu_per_sample(measured.stats.workers, measured.stats) is None:
        return "of the training process, which also loads batches"
    return f"of workers; and {format_duration(_trainer_cpu(measured))} of the trainer"


def _queue_detail(measured: Measured) -> str:
    share = measured.stats.queue_empty_share
    return "" if share is None else f"empty at {format_percent(share)} of requests"


def _duration(label: str, meaning: str, durations: str, name: str) -> KeyFigure:
    """Return the figure of the mean (with p50, p90 and p99 as its detail) or of a quantile of some durations."""
    is_mean = name == "mean"

    def value(measured: Measured) -> float | None:
        quantiles = getattr(measured.stats, durations)
        return getattr(quantiles, name) if quantiles.num else None

    return KeyFigure(
        label=f"{label}, {name}",
        meaning=meaning,
        value=value,
        format=format_duration,
        detail=lambda measured: _quantiles_detail(getattr(measured.stats, durations)) if is_mean else "",
        shown=(TILE, COMPARISON) if is_mean else (COMPARISON,),
    )


def _setting(
    label: str, value: Callable[[Stats], float | None], format_value: Callable[[float | None], str]
) -> KeyFigure:
    """Return a figure for the table of settings only."""
    return KeyFigure(label=label, value=lambda measured: value(measured.stats), format=format_value, shown=(SETTINGS,))


_BATCH = "Time from receiving a batch to receiving the next one."
_STEP = "Time from receiving a batch to requesting the next one: your training code."

KEY_FIGURES = (
    KeyFigure(
        label=THROUGHPUT,
        meaning="Samples per second in the loop, including first batches.",
        value=lambda measured: sum(stats.samples_per_second for stats in measured.ranks) or None,
        format=lambda value: f"{format_number(value)} samples/s" if value else UNKNOWN,
        detail=_throughput_detail,
        is_more_better=True,
    ),
    # the mean matches the throughput; p50 does not if some batches take far longer than most
    _duration("from batch to batch", _BATCH, "batch_seconds", "mean"),
    _duration("from batch to batch", _BATCH, "batch_seconds", "p50"),
    _duration("from batch to batch", _BATCH, "batch_seconds", "p99"),
    _duration("step", _STEP, "step_seconds", "mean"),
    _duration("step", _STEP, "step_seconds", "p50"),
    _duration("step", _STEP, "step_seconds", "p99"),
    KeyFigure(
        label=WAITING,
        meaning="Part of the time from batch to batch that the training loop waits for the loader.",
        value=lambda measured: measured.stats.wait_share if measured.stats.batch_seconds.num else None,
        format=format_percent,
        detail=_wait_detail,
        is_share=True,
    ),
    KeyFigure(
        label="stalled batches",
        meaning="Batches that took more than 1 ms, and more than 5% of the time per batch, to arrive.",
        value=lambda measured: _stalled_share(measured.stats),
        format=format_percent,
        detail=_stalls_detail,
    ),
    KeyFigure(
        label="first batch",
        meaning="Time from the start of an iteration to its first batch.",
        value=lambda measured: next(iter(measured.stats.first_batch_seconds), None),
        format=format_duration,
        detail=_first_batch_detail,
    ),
    KeyFigure(
        label=PEAK,
        meaning="Highest memory of the training process and its workers; shared pages are counted once (PSS).",
        value=_peak_memory,
        format=format_bytes,
        detail=_peak_detail,
    ),
    KeyFigure(
        label="CPU time per sample",
        meaning="CPU time that loading takes, over all workers.",
        value=_loading_cpu,
        format=format_duration,
        detail=_cpu_detail,
    ),
    _duration("wait", "Time that the training loop waits for a batch.", "wait_seconds", "p99"),
    _duration("loading a batch", "Time that a worker takes.", "making_seconds", "p50"),
    KeyFigure(
        label="queue",
        meaning="Batches that are ready when the training loop requests one.",
        value=lambda measured: measured.stats.queue_depth,
        format=lambda value: f"{format_number(value, 2)} batches ready on average",
        detail=_queue_detail,
        shown=(SETTINGS, TERMINAL),
    ),
    _setting("batches", lambda stats: stats.num_batches, format_count),
    _setting("samples", lambda stats: stats.num_samples, format_count),
    _setting("iterations", lambda stats: stats.num_iterations, format_count),
    _setting("total bytes", lambda stats: stats.num_bytes or None, format_bytes),
    _setting("repeated batches", lambda stats: stats.duplicate_share, format_percent),
    _setting("imports", lambda stats: stats.import_seconds, format_duration),
    _setting("construction", lambda stats: stats.construction_seconds, format_duration),
)
