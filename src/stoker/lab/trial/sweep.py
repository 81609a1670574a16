"""Many trials side by side: several configurations, each several times, in interleaved rounds.

`bench_loader` measures one loader with each combination of some arguments: `stoker bench loader`. Results are means and
standard deviations over rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from stoker.engine.stats import Plain
from stoker.errors import ArgumentError
from stoker.foundation.machine import described
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.rounds import Spread, in_turn
from stoker.lab.trial.target import name_of_function
from stoker.lab.trial.trial import OK, Trial, TrialRequest, record_run_of_trial, run_trial
from stoker.lab.watch.record_file import csv_of, load_record, save_record
from stoker.lab.watch.run import Run

FORMAT = "stoker-sweep"

Config = dict[str, Any]
Watch = Callable[[int, int, str], None]
"""Called before each trial with the number done, the expected total, and a description."""

QUANTITIES: dict[str, Callable[[Trial], float | None]] = {
    "samples_per_second": lambda trial: trial.samples_per_second,
    "batches_per_second": lambda trial: trial.batches_per_second,
    "bytes_per_second": lambda trial: trial.bytes_per_second,
    "seconds_per_batch": lambda trial: trial.seconds_per_batch,
    "p50_seconds": lambda trial: trial.batch_seconds.p50,
    "p90_seconds": lambda trial: trial.batch_seconds.p90,
    "p99_seconds": lambda trial: trial.batch_seconds.p99,
    "wait_seconds": lambda trial: trial.wait_seconds.mean,
    "step_seconds": lambda trial: trial.step_seconds.mean,
    "cpu_seconds_per_sample": lambda trial: trial.cpu_seconds_per_sample,
    "startup_seconds": lambda trial: trial.startup.total,
    "interpreter_seconds": lambda trial: trial.startup.interpreter,
    "import_seconds": lambda trial: trial.startup.imports,
    "construction_seconds": lambda trial: trial.startup.construction,
    "first_batch_seconds": lambda trial: trial.startup.first_batch,
    "epoch_start_seconds": lambda trial: fmean(trial.epoch_start_seconds) if trial.epoch_start_seconds else None,
    "trainer_bytes": lambda trial: trial.trainer_bytes,
    "workers_bytes": lambda trial: trial.workers_bytes,
    "worker_bytes": lambda trial: trial.worker_bytes,
    "largest_worker_bytes": lambda trial: trial.largest_worker_bytes,
    "memory_bytes": lambda trial: trial.memory_bytes,
    "private_bytes": lambda trial: trial.private_bytes,
}
"""The quantities that are reported, each computed from one trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Plain):
    """Summary of all trials of one configuration."""

    config: Config
    label: str
    """Description of the options in which it differs from the others."""
    outcome: str = OK
    """"ok" if any trial succeeded; otherwise the outcome of the last."""
    error: str | None = None
    """The error of the first trial that failed."""
    num_ok: int = 0
    num_not: int = 0
    kind: str = "iterable"
    found: Config = field(default_factory=dict)
    """The arguments that the loader had."""
    counts_epoch_starts: bool = False
    spreads: dict[str, Spread] = field(default_factory=dict)
    """By the names in `QUANTITIES`; unknown ones are missing."""
    processes: dict[str, Spread] = field(default_factory=dict)
    """Memory of each process when all together used most, by name; the means add up to the total."""

    def mean(self, name: str) -> float | None:
        """Return the mean of a quantity; None if it is not known."""
        spread = self.spreads.get(name)
        return None if spread is None else spread.mean

    def deviation(self, name: str) -> float:
        """Return the standard deviation of a quantity; 0 if it is not known."""
        spread = self.spreads.get(name)
        return 0.0 if spread is None else spread.deviation or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Plain):
    """All trials of several configurations, and their settings."""

    format: str = FORMAT
    version: int = 1
    verb: str = "loader"
    """"loader", "compare" or "tune"."""
    target: str = ""
    step: str | None = None
    machine: dict[str, Any] = field(default_factory=described)
    settings: dict[str, Any] = field(default_factory=dict)
    """Seconds of each trial, number of rounds, and so on."""
    configs: list[Config] = field(default_factory=list)
    """In the order of display."""
    trials: list[Trial] = field(default_factory=list)
    """In the order of execution."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader, such as what was left out and why."""
    is_interrupted: bool = False
    run: Run | None = None
    """Record of a run of the fastest configuration, for `stoker report`, if requested. It is saved separately."""

    def results(self) -> list[Result]:
        """Return a summary of each configuration."""
        names = varied_names(self.configs)
        return [
            summarize_trials(config, [trial for trial in self.trials if trial.config == config], names=names)
            for config in self.configs
        ]

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, whole or not at all."""
        save_record(replace(self, run=None), path)

    @staticmethod
    def load(path: str | Path) -> Sweep:
        """Return what `save` wrote; refuse other files."""
        hint = "`stoker bench loader --out folder` writes one, and so do `stoker bench compare` and `stoker tune`"
        return load_record(Sweep, path, format_name=FORMAT, what="a record of measurements", hint=hint)

    def results_csv(self) -> str:
        """Return a table with one line for each configuration: means, and standard deviations (`_std`)."""
        names = option_names(self.configs)
        rows = []
        for result in self.results():
            row: dict[str, Any] = {name: result.config.get(name) for name in names}
            row |= {"outcome": result.outcome, "num_ok": result.num_ok, "num_not": result.num_not}
            for name in QUANTITIES:
                spread = result.spreads.get(name)
                row |= {name: spread and spread.mean, f"{name}_std": spread and spread.deviation}
            rows.append({**row, "kind": result.kind, "error": result.error})
        return csv_of(rows)

    def trials_csv(self) -> str:
        """Return a table with one line for each trial."""
        return csv_of(
            {
                **self._place(trial),
                "outcome": trial.outcome,
                "seconds": trial.seconds,
                "num_batches": trial.num_batches,
                "num_samples": trial.num_samples,
                **{name: compute(trial) if trial.is_ok else None for name, compute in QUANTITIES.items()},
                "error": trial.error,
            }
            for trial in self.trials
        )

    def processes_csv(self) -> str:
        """Return a table with one line for each process of each trial: its memory."""
        return csv_of(
            {
                **self._place(trial),
                "process": process.name,
                "peak_bytes": process.peak_bytes,
                "held_bytes": process.held_bytes,
            }
            for trial in self.trials
            for process in trial.processes
        )

    def _place(self, trial: Trial) -> dict[str, Any]:
        """Return which trial it is, as the first columns of a table."""
        return {"round": trial.number, **{name: trial.config.get(name) for name in option_names(self.configs)}}


class Rounds:
    """Runs trials in interleaved rounds and keeps the results."""

    def __init__(self, request_of: Callable[[Config], TrialRequest], *, watch: Watch | None = None) -> None:
        self._order_of, self._watch = request_of, watch
        self.trials: list[Trial] = []
        self.num_planned = 0
        """Expected total number of trials."""

    def plan(self, num_trials: int) -> None:
        """Announce more trials."""
        self.num_planned += num_trials

    def go(self, configs: Sequence[Config], number: int) -> list[Trial]:
        """Run a trial of each configuration, in the order of this round.

        Skip configurations that failed in an earlier round: they would fail again, and a hung one takes longest.
        """
        done = []
        for config in in_turn(configs, number):
            if any(trial.config == config and not trial.is_ok for trial in self.trials):
                self.num_planned -= 1
                continue
            if self._watch is not None:
                self._watch(len(self.trials), max(self.num_planned, len(self.trials) + 1), label_of(config))
            trial = run_trial(self._order_of(config), config, number=number)
            self.trials.append(trial)
            done.append(trial)
        return done

    def record(self, config: Config) -> Run | None:
        """Run one more trial, which is recorded and not counted; return its record."""
        if self._watch is not None:
            self._watch(len(self.trials), len(self.trials) + 1, f"{label_of(config)}, watched")
        return record_run_of_trial(self._order_of(config), config)

    def of(self, config: Config) -> list[Trial]:
        """Return the trials of a configuration."""
        return [trial for trial in self.trials if trial.config == config]


def summarize_trials(config: Config, trials: Sequence[Trial], *, names: Sequence[str] | None = None) -> Result:
    """Return a summary of the trials of one configuration."""
    ok = [trial for trial in trials if trial.is_ok]
    failed = [trial for trial in trials if not trial.is_ok]
    latest = (ok or failed or [Trial(config=config, outcome="not run")])[-1]
    spreads = {name: Spread.of(compute(trial) for trial in ok) for name, compute in QUANTITIES.items()}
    return Result(
        config=config,
        label=label_of(config, names),
        outcome=latest.outcome,
        error=failed[0].error if failed else None,
        num_ok=len(ok),
        num_not=len(failed),
        kind=latest.kind,
        found=latest.found,
        counts_epoch_starts=any(trial.counts_epoch_starts for trial in ok),
        spreads={name: spread for name, spread in spreads.items() if spread is not None},
        processes=_each_process(ok),
    )


def _each_process(trials: Sequence[Trial]) -> dict[str, Spread]:
    """Return the memory of each process when all together used most; 0 in trials in which it did not exist."""
    held = [{one.name: one.held_bytes or 0 for one in trial.processes} for trial in trials if trial.processes]
    names = dict.fromkeys(name for each in held for name in each)
    spreads = {name: Spread.of(each.get(name, 0) for each in held) for name in names}
    return {name: spread for name, spread in spreads.items() if spread is not None}


_WORDS = {"num_workers": "worker", "num_threads": "thread"}


def label_of(config: Config, names: Sequence[str] | None = None) -> str:
    """Describe a configuration: `2 workers, 4 threads, batch 64`; only the options in `names`, if given."""
    words = []
    for name, value in config.items():
        if names is not None and name not in names:
            continue
        if name in _WORDS:
            words.append(f"{value} {_WORDS[name]}{'' if value == 1 else 's'}")
        elif name in ("batch_size", "prefetch_factor"):
            words.append(f"{name.partition('_')[0]} {value}")
        else:
            words.append(str(value))
    return ", ".join(words) or "current settings"


def varied_names(configs: Sequence[Config]) -> list[str]:
    """Return the options that differ between configurations, or all if there is only one."""
    names = option_names(configs)
    if len(configs) < 2:
        return names
    return [name for name in names if len({str(config.get(name, "")) for config in configs}) > 1]


def option_names(configs: Sequence[Config]) -> list[str]:
    """Return the options that any configuration has."""
    return list(dict.fromkeys(name for config in configs for name in config))


def bench_loader(
    target: str | Callable[..., Any],
    *,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    prefetches: Sequence[int] | None = None,
    step: str | Callable[..., Any] | None = None,
    seconds: float = 3.0,
    num_batches: int | None = None,
    num_rounds: int = 3,
    limit_seconds: float = 300.0,
    records_run: bool = False,
    watch: Watch | None = None,
) -> Sweep:
    """Measure the loader that `target` makes, with each combination of the arguments given.

    `target` is a function, or its name as `module:function` or `path/to/file.py:function`. It need not take the
    arguments: they are set on the `DataLoader` that it builds. Arguments that are not given stay unchanged. `step` is a
    function that returns the training step to run on each batch. Each trial runs in a fresh process. Ctrl-C returns the
    results so far, if any. With `records_run` the fastest configuration runs once more, and `run` of the result is its
    record.
    """
    spec = name_of_function(target, what="a function that makes a loader")
    make_step = None if step is None else name_of_function(step, what="a function that makes a step")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    configs = configurations(workers=workers, threads=threads, batch_sizes=batch_sizes, prefetches=prefetches)
    pace = Pace(seconds=seconds, num_batches=num_batches)

    def request_of(config: Config) -> TrialRequest:
        return TrialRequest(target=spec, options=config, step=make_step, pace=pace, limit_seconds=limit_seconds)

    sweep = Sweep(
        verb="loader",
        target=spec,
        step=make_step,
        settings={"seconds": seconds, "num_batches": num_batches, "num_rounds": num_rounds},
        configs=configs,
    )
    return run_sweep(sweep, Rounds(request_of, watch=watch), num_rounds=num_rounds, records_run=records_run)


def run_sweep(sweep: Sweep, rounds: Rounds, *, num_rounds: int, records_run: bool = False) -> Sweep:
    """Return `sweep` with that many rounds of trials; with fewer if Ctrl-C came after the first trial."""
    is_interrupted = False
    run = None
    rounds.plan(num_rounds * len(sweep.configs))
    try:
        for number in range(num_rounds):
            rounds.go(sweep.configs, number)
        ok = [trial for trial in rounds.trials if trial.is_ok]
        if records_run and ok:
            run = rounds.record(max(ok, key=lambda trial: trial.samples_per_second).config)
    except KeyboardInterrupt:
        if not rounds.trials:
            raise
        is_interrupted = True
    return replace(sweep, trials=rounds.trials, is_interrupted=is_interrupted, run=run)


def configurations(
    *,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    prefetches: Sequence[int] | None = None,
) -> list[Config]:
    """Return all combinations of the arguments. Without workers and threads, `prefetch_factor` has no effect and is
    left out.
    """
    swept = {"batch_size": batch_sizes, "num_threads": threads, "num_workers": workers, "prefetch_factor": prefetches}
    for name, values in swept.items():
        least = 0 if name in ("num_workers", "num_threads") else 1
        if values is not None and any(value < least for value in values):
            raise ArgumentError(
                f"{name} must be at least {least}, got {min(values)}", hint="use a list such as 0,1,2,4 for workers"
            )
    lists = [[(name, value) for value in dict.fromkeys(values)] for name, values in swept.items() if values]
    found: list[Config] = []
    for one in product(*lists):
        given = dict(one)
        config = {name: given[name] for name in SWEPT if name in given}
        if config.get("num_workers") == 0 and not config.get("num_threads"):
            config.pop("prefetch_factor", None)
        if config not in found:
            found.append(config)
    return found


def check_pace(*, seconds: float, num_batches: int | None, num_rounds: int, limit_seconds: float) -> None:
    """Raise `ArgumentError` for settings with which nothing can be measured."""
    if num_rounds < 1:
        raise ArgumentError(f"num_rounds must be at least 1, got {num_rounds}", hint="3 rounds show how results vary")
    if seconds <= 0 or (num_batches is not None and num_batches < 2):
        raise ArgumentError(
            "seconds must be positive, and num_batches at least 2", hint="leave them out to use the defaults"
        )
    if limit_seconds <= seconds:
        raise ArgumentError(
            f"the timeout must be longer than the measurement of {seconds:g} s, got {limit_seconds:g} s",
            hint="allow time for imports and for workers to start",
        )


def bytes_per_worker(results: Sequence[Result]) -> float | None:
    """Return the memory per worker: the slope of a line fitted to the results; None if it cannot be fitted.

    File-backed pages are excluded: a worker adds none of them, and our share of a library changes by tens of megabytes
    when other programs that use it come and go.
    """
    points = [
        (float(num_workers), memory)
        for result in results
        if (memory := result.mean("private_bytes")) is not None
        and (num_workers := result.config.get("num_workers")) is not None
    ]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return above / sum((x - mean_x) ** 2 for x, _ in points)
