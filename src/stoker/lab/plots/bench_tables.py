"""Format loader benchmarks as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from stoker.foundation.text import format_bytes, format_duration, format_spread, time_unit
from stoker.lab.plots.columns import fit_to_width
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

Cell = Callable[[Result], str]


def loader_table(sweep: Sweep, *, width: int = 200) -> Table:
    """Return a table with a row per configuration: speed, spread and cost. Drops columns to fit `width`."""
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")
    what = "step" if sweep.step is not None else "batch"
    time = _spread("seconds_per_batch", size) if width >= WIDE else _mean("seconds_per_batch", size)
    columns: list[tuple[str, Cell]] = [
        ("samples/s", _spread("samples_per_second")),
        ("batches/s", _spread("batches_per_second")),
        ("MB/s", _spread("bytes_per_second", 1e6)),
        (f"{unit}/{what}", time),
        (f"p50\n{unit}", _mean("p50_seconds", size)),
        (f"p90\n{unit}", _mean("p90_seconds", size)),
        (f"p99\n{unit}", _mean("p99_seconds", size)),
        (f"CPU {cpu}\n/sample", _mean("cpu_seconds_per_sample", cpu_size)),
        ("memory", _size("memory_bytes")),
        ("of it\ntrainer", _size("trainer_bytes")),
        ("per worker\n/ largest", _size("worker_bytes", "largest_worker_bytes")),
        ("start-\nup", lambda result: format_duration(result.mean("startup_seconds"))),
    ]
    if all(result.mean("worker_bytes") is None for result in results):  # then all memory belongs to the trainer
        columns = [column for column in columns if "trainer" not in column[0] and "worker" not in column[0]]
    spare = (
        "batches/s",
        "MB/s",
        "p50",
        "p90",
        "of it",
        "CPU",
        "per worker",
        "p99",
        "start-",
        "memory",
        f"{unit}/{what}",
    )
    return table_of(results, columns, width=width, spare=spare)


def compare_table(sweep: Sweep, *, width: int = 200) -> Table:
    """Return a table with a row per loader, and its speed relative to torch's in the same rounds."""
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")

    def format_speedup(result: Result) -> str:
        found = ratio(sweep, result.config)
        return "-" if found is None else format_spread(found.mean, found.deviation)

    columns: list[tuple[str, Cell]] = [
        ("samples/s", _spread("samples_per_second")),
        ("x torch", format_speedup),
        (f"p50\n{unit}", _mean("p50_seconds", size)),
        (f"p99\n{unit}", _mean("p99_seconds", size)),
        (f"CPU {cpu}\n/sample", _mean("cpu_seconds_per_sample", cpu_size)),
        ("memory", _size("memory_bytes")),
        ("start-\nup", lambda result: format_duration(result.mean("startup_seconds"))),
        ("first\nbatch", lambda result: format_duration(result.mean("first_batch_seconds"))),
    ]
    return table_of(results, columns, width=width, spare=("p50", "first", "p99", "start-", "CPU", "memory"))


def tune_table(tuning: Tuning, *, width: int = 200) -> Table:
    """Return a table with a row per setting tried; the recommended one is marked."""
    sweep = tuning.sweep
    results = sweep.results()
    unit, size = _time_unit(results, "seconds_per_batch")
    cpu, cpu_size = _time_unit(results, "cpu_seconds_per_sample")
    what = "step" if sweep.step is not None else "batch"
    shown = [replace(result, config={**_own_config(result), **result.config}) for result in results]
    best = shown[[result.config for result in results].index(tuning.best)]
    now = next((own for own, result in zip(shown, results) if not result.config), None)

    columns: list[tuple[str, Cell]] = [
        (f"{unit}/{what}", _spread("seconds_per_batch", size)),
        (f"waiting\n{unit}", _mean("wait_seconds", size)),
        (f"p99\n{unit}", _mean("p99_seconds", size)),
        ("samples/s", _mean("samples_per_second", 1.0)),
        (f"CPU {cpu}\n/sample", _mean("cpu_seconds_per_sample", cpu_size)),
        ("memory", _size("memory_bytes")),
        ("", lambda result: "best" if result is best else "current" if result is now else ""),
    ]
    if sweep.step is None:
        del columns[1]
    return table_of(shown, columns, best=best, width=width, spare=("CPU", "p99", "samples/s", "memory", "waiting"))


def _own_config(result: Result) -> dict[str, Any]:
    """Return the loader's own values of the arguments that are varied."""
    names = ("num_workers", "num_threads", "prefetch_factor")
    found = {name: result.found[name] for name in names if result.found.get(name) is not None}
    return found if found.get("num_workers") or found.get("num_threads") else {**found, "prefetch_factor": "-"}


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


def shorten_target(target: str) -> str:
    """Return the name of a function without its folder."""
    return target.rpartition("/")[2]


def table_of(
    results: Sequence[Result],
    columns: Sequence[tuple[str, Cell]],
    *,
    best: Result | None = None,
    width: int,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table of results, with a column per varied argument; the best result is bold.

    If it would be wider than `width`, columns whose heads begin with a text in `spare` are dropped, in that order.
    """
    if best is None and len(results) > 1:
        best = max(results, key=lambda result: result.mean("samples_per_second") or 0.0)

    def build(left_out: Collection[str]) -> Table:
        return _table([column for column in columns if not column[0].startswith(tuple(left_out))], results, best)

    return fit_to_width(build, spare=spare, width=width)


def _table(columns: Sequence[tuple[str, Cell]], results: Sequence[Result], best: Result | None) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    names = varied_names([result.config for result in results])
    if results and "contender" in results[0].config and "contender" not in names:
        names = ["contender", *names]
    for name in names:
        table.add_column(HEADS.get(name, name), justify="left" if name == "contender" else "right", no_wrap=True)
    if not names:
        table.add_column("")
    for head, _ in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for result in results:
        values = [str(result.config.get(name, "-")) for name in names] or [result.label]
        if not result.num_ok:
            table.add_row(*values, Text(result.outcome, style="red"), *[""] * (len(columns) - 1))
            continue
        table.add_row(*values, *(cell(result) for _, cell in columns), style="bold" if result is best else "")
    return table


def _time_unit(results: Sequence[Result], name: str) -> tuple[str, float]:
    known = [mean for result in results if (mean := result.mean(name))]
    return time_unit(min(known, default=1.0))


def _spread(name: str, scale: float = 1.0) -> Cell:
    return lambda result: format_spread(result.mean(name), result.deviation(name), scale=scale)


def _mean(name: str, scale: float) -> Cell:
    return lambda result: format_spread(result.mean(name), None, scale=scale)


def _size(*names: str) -> Cell:
    return lambda result: " / ".join(dict.fromkeys(format_bytes(result.mean(name)) for name in names))
