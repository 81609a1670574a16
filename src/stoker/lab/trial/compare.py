"""Loaders side by side, on the user's own dataset: `stoker bench compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.contenders import CONTENDERS, GRAIN, OURS, SPDL_THREADS, TORCH
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.loader_bench import check_pace, swept
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Config, Rounds, Sweep, Watch
from stoker.lab.trial.target import named
from stoker.lab.trial.trial import UNSUITED, Order, Trial


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
    """Return what was measured of each loader that is installed, over the dataset that a function makes.

    All load the same samples in the same order. What is not installed, or cannot do this dataset, is told in `notes`.
    With `threads`, our loader takes part once more, with as many threads in each worker. `only` names those that are
    to take part; torch's always does, since ratios are to it.
    """
    spec = named(dataset, what="a function that makes a dataset")
    function = None if collate is None else named(collate, what="a function that puts samples together")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    if batch_size < 1 or prefetch < 1 or threads < 0 or not workers or min(workers) < 0:
        raise ArgumentError("a loader cannot have these arguments", hint="give numbers that are not negative")
    configs, notes = _line_up(workers, threads, only)

    def order_of(config: Config) -> Order:
        name = config["contender"].removesuffix(f", {threads} threads") if threads else config["contender"]
        contender = CONTENDERS[name]
        arguments = {
            "contender": name,
            "dataset": spec,
            "collate": function,
            "batch_size": batch_size,
            "num_workers": config["num_workers"],
            "num_threads": threads if name != config["contender"] else 0,
            "prefetch_factor": prefetch,
        }
        return Order(
            target="stoker.lab.trial.contenders:make",
            arguments=arguments,
            imports=(spec, *([function] if function else []), contender.module),
            pace=Pace(seconds=seconds, num_batches=num_batches),
            limit_seconds=limit_seconds,
            wants_digest=True,
        )

    sweep = Sweep(
        verb="compare",
        target=spec,
        settings={
            "seconds": seconds,
            "num_batches": num_batches,
            "num_rounds": num_rounds,
            "batch_size": batch_size,
            "prefetch_factor": prefetch,
            "collate": function,
        },
        configs=configs,
        notes=notes,
    )
    done = swept(sweep, Rounds(order_of, watch=watch), num_rounds=num_rounds)
    done = _without_unsuited(done)
    return replace(done, notes=[*done.notes, *_explanations(done), *_differences(done)])


def ratio(sweep: Sweep, config: Config) -> Spread | None:
    """Return how many times as many samples a second this one gave as torch's loader, taken round by round."""
    reference = {**config, "contender": TORCH}
    by_round: dict[int, Trial] = {
        trial.number: trial for trial in sweep.trials if trial.is_ok and trial.config == reference
    }
    return Spread.of(
        trial.samples_per_second / by_round[trial.number].samples_per_second
        for trial in sweep.trials
        if trial.is_ok and trial.config == config and trial.number in by_round
    )


def _line_up(workers: Sequence[int], threads: int, only: Sequence[str] | None) -> tuple[list[Config], list[str]]:
    """Return who takes part, and sentences on who does not."""
    if only is not None and (unknown := [name for name in only if name not in CONTENDERS]):
        raise ArgumentError(
            f"{', '.join(map(repr, unknown))} is not known", hint=f"choose among {', '.join(map(repr, CONTENDERS))}"
        )
    names, notes = [], []
    for contender in CONTENDERS.values():
        if only is not None and contender.name not in (*only, TORCH):
            continue
        if not contender.is_installed:
            notes.append(f"{contender.name} is not installed: `pip install {contender.package}` lets it take part")
            continue
        names.append(contender.name)
        if contender.name == OURS and threads:
            names.append(f"{OURS}, {threads} threads")
    return [{"contender": name, "num_workers": number} for number in dict.fromkeys(workers) for name in names], notes


def _without_unsuited(sweep: Sweep) -> Sweep:
    """Return the sweep without those who cannot take part, and with a sentence on each."""
    sentences = dict.fromkeys(trial.error for trial in sweep.trials if trial.outcome == UNSUITED and trial.error)
    out = [trial.config for trial in sweep.trials if trial.outcome == UNSUITED]
    return replace(
        sweep,
        configs=[config for config in sweep.configs if config not in out],
        trials=[trial for trial in sweep.trials if trial.config not in out],
        notes=[*sweep.notes, *(f"{sentence}: left out" for sentence in sentences)],
    )


def _explanations(sweep: Sweep) -> list[str]:
    """Return a sentence on each loader that was not made quite as the others."""
    there = {config["contender"] for config in sweep.configs}
    told = {
        SPDL_THREADS: "one process, with as many threads as others have workers",
        GRAIN: "reads without threads, of which it would have 16 in each worker by itself"
        + ("; gives arrays, not tensors" if sweep.settings["collate"] is None else ""),
    }
    return [f"{name}: {sentence}" for name, sentence in told.items() if name in there]


def _differences(sweep: Sweep) -> list[str]:
    """Return a sentence on each loader whose first batch is not what torch's is."""
    expected = {trial.digest for trial in sweep.trials if trial.is_ok and trial.config["contender"] == TORCH}
    if not expected:
        return []
    if len(expected) > 1:
        return ["the dataset is random: whether all get the same samples could not be checked"]
    others = dict.fromkeys(
        trial.config["contender"] for trial in sweep.trials if trial.is_ok and trial.digest not in expected
    )
    return [
        f"{name}: its first batch is not that of torch's loader"
        + (" (each of its workers makes batches of a share of its own)" if name == GRAIN else ", in content or in form")
        for name in others
    ]
