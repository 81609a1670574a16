"""Format sweeps over a loader's arguments, comparisons of loaders and tuning as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from stoker.foundation.text import UNKNOWN, format_bytes, format_duration, format_spread, time_unit
from stoker.lab.plots.tables import shorten_target, table_of_rows
from stoker.lab.trial.compare import ratio
from stoker.lab.trial.sweep import Result, Sweep, bytes_per_worker, varied_names
from stoker.lab.trial.trial import Trial
from stoker.lab.trial.tuning import Tuning

MAX_TRACE_LINES = 14
"""Lines shown of the output of a failed trial."""

WIDE = 128
"""Terminal width from which derived columns show their deviations too."""

HEADS = {
    "num_workers": "workers",
    "num_threads": "threads",
    "batch_size": "batch\nsize",
    "prefetch_factor": "pre-\nfetch",
    "contender": "",
}
UNVARIED = " "
"""Head of the column of labels where no argument was varied."""


def loader_table(sweep: Sweep, *, width: int = 200) -> Table:
    """Return a table with a row per configuration: speed, spread and cost. Drops columns to fit `width`."""
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")
    time = f"{unit}/{'step' if sweep.step is not None else 'batch'}"
    has_workers = any(result.mean("worker_bytes") is not None for result in results)

    def cells(result: Result) -> dict[str, str]:
        row = {
            "samples/s": _spread(result, "samples_per_second"),
            "batches/s": _spread(result, "batches_per_second"),
            "MB/s": _spread(result, "bytes_per_second", 1e6),
            time: (_spread if width >= WIDE else _mean)(result, "seconds_per_batch", size),
            f"p50\n{unit}": _mean(result, "p50_seconds", size),
            f"p90\n{unit}": _mean(result, "p90_seconds", size),
            f"p99\n{unit}": _mean(result, "p99_seconds", size),
            f"CPU {cpu}\n/sample": _mean(result, "cpu_seconds_per_sample", cpu_size),
            "memory": _size(result, "memory_bytes"),
            "of it\ntrainer": _size(result, "trainer_bytes"),
            "per worker\n/ largest": _size(result, "worker_bytes", "largest_worker_bytes"),
            "start-\nup": format_duration(result.mean("startup_seconds")),
        }
        if not has_workers:  # then all memory belongs to the trainer
            del row["of it\ntrainer"], row["per worker\n/ largest"]
        return row

    spare = ("batches/s", "MB/s", "p50", "p90", "of it", "CPU", "per worker", "p99", "start-", "memory", time)
    return _results_table(results, [cells(result) for result in results], width=width, spare=spare)


def compare_table(sweep: Sweep, *, width: int = 200) -> Table:
    """Return a table with a row per loader, and its speed relative to torch's in the same rounds."""
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")

    def cells(result: Result) -> dict[str, str]:
        times = ratio(sweep, result.config)
        return {
            "samples/s": _spread(result, "samples_per_second"),
            "x torch": UNKNOWN if times is None else format_spread(times.mean, times.deviation),
            f"p50\n{unit}": _mean(result, "p50_seconds", size),
            f"p99\n{unit}": _mean(result, "p99_seconds", size),
            f"CPU {cpu}\n/sample": _mean(result, "cpu_seconds_per_sample", cpu_size),
            "memory": _size(result, "memory_bytes"),
            "start-\nup": format_duration(result.mean("startup_seconds")),
            "first\nbatch": format_duration(result.mean("first_batch_seconds")),
        }

    spare = ("p50", "first", "p99", "start-", "CPU", "memory")
    return _results_table(results, [cells(result) for result in results], width=width, spare=spare)


def tune_table(tuning: Tuning, *, width: int = 200) -> Table:
    """Return a table with a row per setting tried; the recommended one is marked."""
    sweep = tuning.sweep
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")
    configs = [result.config for result in results]
    best = configs.index(tuning.best)

    def cells(result: Result) -> dict[str, str]:
        mark = "best" if result.config == tuning.best else "" if result.config else "current"
        return {
            f"{unit}/{'batch' if sweep.step is None else 'step'}": _spread(result, "seconds_per_batch", size),
            **({} if sweep.step is None else {f"waiting\n{unit}": _mean(result, "wait_seconds", size)}),
            f"p99\n{unit}": _mean(result, "p99_seconds", size),
            "samples/s": _mean(result, "samples_per_second"),
            f"CPU {cpu}\n/sample": _mean(result, "cpu_seconds_per_sample", cpu_size),
            "memory": _size(result, "memory_bytes"),
            "": mark,
        }

    shown = [replace(result, config={**_own_config(result), **result.config}) for result in results]
    spare = ("CPU", "p99", "samples/s", "memory", "waiting")
    return _results_table(shown, [cells(result) for result in results], best=best, width=width, spare=spare)


def _own_config(result: Result) -> dict[str, Any]:
    """Return the loader's own values of the arguments that are varied."""
    names = ("num_workers", "num_threads", "prefetch_factor")
    found = {name: result.found[name] for name in names if result.found.get(name) is not None}
    return found if found.get("num_workers") or found.get("num_threads") else {**found, "prefetch_factor": UNKNOWN}


def remarks(sweep: Sweep) -> list[str]:
    """Return the notes on the table, one sentence each."""
    results = sweep.results()
    found = list(sweep.notes)
    growth = bytes_per_worker(results) if sweep.verb == "loader" else None
    if growth is not None:
        found.append(f"memory grows by {format_bytes(max(0.0, growth))} per worker")
    starts = [result for result in results if result.mean("epoch_start_seconds") is not None]
    if any(result.counts_epoch_starts for result in results):
        some = "; ".join(result.label for result in results if result.counts_epoch_starts)
        found.append(
            "epochs are short: what is counted of "
            + ("all" if all(result.counts_epoch_starts for result in results if result.num_ok) else some)
            + " are whole epochs, with their starts"
        )
    elif starts:
        longest = max(result.mean("epoch_start_seconds") or 0.0 for result in starts)
        found.append(f"starting an epoch takes up to {format_duration(longest)}, which these numbers do not include")
    return found


def failures(sweep: Sweep) -> list[Text]:
    """Return the error of each failed configuration, with the end of its traceback."""
    alike: dict[tuple[str | None, str], list[Trial]] = {}
    for trial in sweep.trials:
        if not trial.is_ok:
            alike.setdefault((trial.error, trial.outcome), []).append(trial)
    found = []
    for trial, *others in alike.values():
        ill = [one.config for one in (trial, *others)]
        label = "; ".join(one.label for one in sweep.results() if one.config in ill)
        lines = [line for line in (trial.trace or "").rstrip().splitlines() if line.strip(" ^~")]
        error = trial.error or ""  # its first line, where the traceback ends with all of it
        error = error.partition("\n")[0] if lines and trial.outcome == "failed" else error
        hung = f"{trial.outcome}: " if not error.startswith(trial.outcome) else ""
        text = Text.assemble((f"{label}: ", "bold"), (f"{hung}{error}", "red"))
        for line in lines[:MAX_TRACE_LINES] if trial.outcome == "hung" else lines[-MAX_TRACE_LINES:]:
            text.append(f"\n  {line}", style="dim")
        found.append(text)
    return found


def format_title(sweep: Sweep) -> str:
    """Return the title of the table: what was measured, and how."""
    batches = f", batches of {sweep.settings['batch_size']}" if sweep.verb == "compare" else ""
    return f"{shorten_target(sweep.target)}{batches}: {describe_method(sweep)}"


def describe_method(sweep: Sweep) -> str:
    """Return a short description of how it was measured."""
    settings = sweep.settings
    length = f"{settings['num_batches']} batches" if settings.get("num_batches") else f"{settings['seconds']:g} s"
    num = settings["num_rounds"]
    return f"{num} x {length} each, interleaved (mean ± deviation)" if num > 1 else f"{length} each"


def _results_table(
    results: Sequence[Result],
    rows: Sequence[Mapping[str, str]],
    *,
    best: int | None = None,
    width: int,
    spare: Sequence[str],
) -> Table:
    """Return a table of results, with a column per varied argument; the best result is bold.

    Of a configuration that failed, the first cell says how.
    """
    names = varied_names([result.config for result in results])
    if results and "contender" in results[0].config and "contender" not in names:
        names = ["contender", *names]
    if best is None and len(results) > 1:
        best = max(range(len(results)), key=lambda at: results[at].mean("samples_per_second") or 0.0)
    whole: list[Mapping[str, str | Text]] = []
    for result, row in zip(results, rows):
        setting = {HEADS.get(name, name): str(result.config.get(name, UNKNOWN)) for name in names}
        cells = row if result.num_ok else {next(iter(row)): Text(result.outcome, style="red")}
        whole.append({**(setting or {UNVARIED: result.label}), **cells})
    texts = ("",) if "contender" in names else (UNVARIED,)
    return table_of_rows(whole, texts=texts, spare=spare, width=width, bold=best)


def _time_unit(results: Sequence[Result], name: str) -> tuple[str, float]:
    known = [mean for result in results if (mean := result.mean(name))]
    return time_unit(min(known, default=1.0))


def _spread(result: Result, name: str, scale: float = 1.0) -> str:
    return format_spread(result.mean(name), result.deviation(name), scale=scale)


def _mean(result: Result, name: str, scale: float = 1.0) -> str:
    return format_spread(result.mean(name), None, scale=scale)


def _size(result: Result, *names: str) -> str:
    return " / ".join(dict.fromkeys(format_bytes(result.mean(name)) for name in names))
