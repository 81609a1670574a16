"""Loaders side by side, on the user's own dataset: `stoker bench compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.contenders import CONTENDERS, GRAIN, OURS, SPDL_THREADS, TORCH
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Config, Rounds, Sweep, Watch, check_pace, run_sweep
from stoker.lab.trial.target import name_of_function
from stoker.lab.trial.trial import UNSUITED, Trial, TrialRequest


def compare(
    dataset: str | Callable[..., Any],
    *,
    batch_size: int = 32,
    workers: Sequence[int] = (2,),
    threads: int = 0,
    prefetch: int = 2,
    collate: str | Callable[..., Any] | None = None,
    only: Sequence[str] | None = None,
    seconds: float = 3.0,
    num_batches: int | None = None,
    num_rounds: int = 3,
    limit_seconds: float = 300.0,
    watch: Watch | None = None,
) -> Sweep:
    """Measure each installed loader over the dataset that a function returns.

    All load the same samples in the same order. `notes` of the result name the loaders that are not installed or cannot
    read this dataset. With `threads`, Stoker's loader takes part once more, with that many threads in each worker.
    `only` names the loaders that take part; torch's always does, because ratios are to it.
    """
    spec = name_of_function(dataset, what="a function that makes a dataset")
    function = None if collate is None else name_of_function(collate, what="a function that collates samples")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    if batch_size < 1 or prefetch < 1 or threads < 0 or not workers or min(workers) < 0:
        raise ArgumentError(
            f"batch_size and prefetch must be positive, and workers must not be empty; got batch_size={batch_size}, "
            f"prefetch={prefetch}, threads={threads}, workers={list(workers)}",
            hint="leave them out to use the defaults",
        )
    configs, notes = _configs(workers, threads, only)
    with_threads = f"{OURS}, {threads} threads"

    def request_of(config: Config) -> TrialRequest:
        has_threads = config["contender"] == with_threads
        name = OURS if has_threads else config["contender"]
        return TrialRequest(
            target="stoker.lab.trial.contenders:make",
            arguments={
                "contender": name,
                "dataset": spec,
                "collate": function,
                "batch_size": batch_size,
                "num_workers": config["num_workers"],
                "num_threads": threads if has_threads else 0,
                "prefetch_factor": prefetch,
            },
            imports=(spec, *([function] if function else []), CONTENDERS[name].module),
            pace=Pace(seconds=seconds, num_batches=num_batches),
            limit_seconds=limit_seconds,
            wants_digest=True,
        )

    settings: dict[str, Any] = {"seconds": seconds, "num_batches": num_batches, "num_rounds": num_rounds}
    settings |= {"batch_size": batch_size, "prefetch_factor": prefetch, "collate": function}
    sweep = Sweep(verb="compare", target=spec, settings=settings, configs=configs, notes=notes)
    done = _without_unsuited(run_sweep(sweep, Rounds(request_of, watch=watch), num_rounds=num_rounds))
    return replace(done, notes=[*done.notes, *_explanations(done), *_differences(done)])


def ratio(sweep: Sweep, config: Config) -> Spread | None:
    """Return samples per second divided by those of torch's loader in the same round."""
    reference = {**config, "contender": TORCH}
    by_round: dict[int, Trial] = {
        trial.number: trial for trial in sweep.trials if trial.is_ok and trial.config == reference
    }
    return Spread.of(
        trial.samples_per_second / by_round[trial.number].samples_per_second
        for trial in sweep.trials
        if trial.is_ok and trial.config == config and trial.number in by_round
    )


def _configs(workers: Sequence[int], threads: int, only: Sequence[str] | None) -> tuple[list[Config], list[str]]:
    """Return the configurations to measure, and notes on the loaders that are left out."""
    if only is not None and (unknown := [name for name in only if name not in CONTENDERS]):
        raise ArgumentError(
            f"there is no loader {', '.join(map(repr, unknown))}",
            hint=f"choose among {', '.join(map(repr, CONTENDERS))}",
        )
    names, notes = [], []
    for contender in CONTENDERS.values():
        if only is not None and contender.name not in (*only, TORCH):
            continue
        if not contender.is_installed:
            notes.append(f"{contender.name} is not installed; to include it: pip install {contender.package}")
            continue
        names.append(contender.name)
        if contender.name == OURS and threads:
            names.append(f"{OURS}, {threads} threads")
    return [{"contender": name, "num_workers": number} for number in dict.fromkeys(workers) for name in names], notes


def _without_unsuited(sweep: Sweep) -> Sweep:
    """Return the sweep without loaders that cannot take part, with a note on each."""
    unsuited = [trial for trial in sweep.trials if trial.outcome == UNSUITED]
    out = [trial.config for trial in unsuited]
    return replace(
        sweep,
        configs=[config for config in sweep.configs if config not in out],
        trials=[trial for trial in sweep.trials if trial.config not in out],
        notes=[*sweep.notes, *dict.fromkeys(f"{trial.error}: skipped" for trial in unsuited)],
    )


def _explanations(sweep: Sweep) -> list[str]:
    """Return a note on each loader that is set up differently."""
    arrays = "; gives arrays, not tensors" if sweep.settings["collate"] is None else ""
    explanations = {
        SPDL_THREADS: "one process, with as many threads as others have workers",
        GRAIN: f"reads without threads; its default is 16 in each worker{arrays}",
    }
    there = {config["contender"] for config in sweep.configs}
    return [f"{name}: {sentence}" for name, sentence in explanations.items() if name in there]


def _differences(sweep: Sweep) -> list[str]:
    """Return a note on each loader whose first batch differs from that of torch's."""
    expected = {trial.digest for trial in sweep.trials if trial.is_ok and trial.config["contender"] == TORCH}
    if not expected:
        return []
    if len(expected) > 1:
        return ["the dataset is random, so it was not checked that all loaders load the same samples"]
    others = dict.fromkeys(
        trial.config["contender"] for trial in sweep.trials if trial.is_ok and trial.digest not in expected
    )
    return [
        f"{name}: its first batch differs from that of torch's loader"
        + (" (each of its workers makes batches of its own part of the data)" if name == GRAIN else "")
        for name in others
    ]
