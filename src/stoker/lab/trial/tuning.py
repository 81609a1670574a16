"""The best arguments of a loader, found by measuring: `stoker tune`.

How it is searched for is in `stoker.lab.trial.search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.engine.stats import Plain
from stoker.errors import ArgumentError
from stoker.foundation.machine import num_cores
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.loader_bench import check_pace
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.search import AS_IT_IS, LEAST_NOISE, Search, chosen, is_within_noise, seconds_of
from stoker.lab.trial.sweep import Config, Result, Rounds, Sweep, Watch, label_of
from stoker.lab.trial.target import named
from stoker.lab.trial.trial import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Plain):
    """What was found. Times are seconds from batch to batch, with the step if there is one."""

    sweep: Sweep
    """All that was measured; the configuration without arguments is the loader as it is."""
    best: Config
    quickest: Config
    """What was a little quicker, perhaps, and costs more."""
    code: str
    """The arguments to write."""
    seconds: Spread
    """What a step is to take with them."""
    wait_seconds: float = 0.0
    """Of which it waits for the batch."""
    step_seconds: float | None = None
    """What the step takes by itself; None if it was not measured."""
    before: Spread | None = None
    """What a step takes as it is; None if it was not measured."""
    is_as_good: bool = False
    """Whether the loader as it is takes no longer than that, but for noise."""
    says: list[str] = field(default_factory=list)
    """Why, a sentence each."""


def tune(
    target: str | Callable[..., Any],
    *,
    step: str | Callable[..., Any] | None = None,
    max_workers: int | None = None,
    prefetches: Sequence[int] = (2, 4, 8),
    seconds: float = 2.0,
    num_batches: int | None = None,
    num_rounds: int = 3,
    limit_seconds: float = 300.0,
    records_run: bool = False,
    watch: Watch | None = None,
) -> Tuning:
    """Return the best `num_workers`, `num_threads` and `prefetch_factor` of the loader that `target` makes.

    With `step`, a function that returns the training step (called with each batch), the time of a step with its wait
    for the batch is made as short as it gets; without, the time of a batch. Of torch's loader, which has no threads,
    workers alone are varied. No more workers and threads are tried than there are cores, or `max_workers`. With
    `records_run` the best runs once more, watched, and `sweep.run` of the result is its record.
    """
    spec = named(target, what="a function that makes a loader")
    make_step = None if step is None else named(step, what="a function that makes a step")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    limit = num_cores() if max_workers is None else max_workers
    if limit < 1 or any(prefetch < 1 for prefetch in prefetches):
        raise ArgumentError(
            "there is nothing to choose from", hint="allow a worker at least, and prefetch factors of 1"
        )
    pace = Pace(seconds=seconds, num_batches=num_batches)

    def order_of(config: Config) -> Order:
        return Order(target=spec, options=config, step=make_step, pace=pace, limit_seconds=limit_seconds)

    search = Search(
        Rounds(order_of, watch=watch),
        limit=limit,
        prefetches=prefetches,
        num_rounds=num_rounds,
        has_step=make_step is not None,
    )
    is_interrupted = False
    try:
        search.run(spec)
    except KeyboardInterrupt:
        if not search.tried():
            raise
        is_interrupted = True
    sweep = Sweep(
        verb="tune",
        target=spec,
        step=make_step,
        settings={"seconds": seconds, "num_batches": num_batches, "num_rounds": num_rounds, "max_workers": limit},
        configs=[AS_IT_IS, *sorted(search.configs, key=lambda config: [config.get(name, 0) for name in SWEPT])],
        trials=search.rounds.trials,
        is_interrupted=is_interrupted,
    )
    tuning = _decided(sweep, limit=limit, is_asked=max_workers is not None)
    if records_run and not is_interrupted:
        with suppress(KeyboardInterrupt):  # all that matters is known
            return replace(tuning, sweep=replace(sweep, run=search.rounds.record(tuning.best)))
    return tuning


def code_of(result: Result) -> str:
    """Return the arguments of a loader, to be pasted."""
    config = dict(result.config)
    if config.get("num_workers") or config.get("num_threads"):
        ahead = config.get("prefetch_factor") or result.found.get("prefetch_factor")
        if isinstance(ahead, int):
            config["prefetch_factor"] = ahead
    return f"DataLoader({', '.join(['...', *(f'{name}={value}' for name, value in config.items())])})"


def _decided(sweep: Sweep, *, limit: int, is_asked: bool) -> Tuning:
    results = {str(one.config): one for one in sweep.results() if one.num_ok}
    now = results.pop(str(AS_IT_IS), None)
    if not results:
        failed = next(trial.error for trial in sweep.trials if not trial.is_ok)
        raise ArgumentError(f"no setting works: {failed}", hint="`stoker bench loader` shows the traceback of each")
    most = max(one.num_ok for one in results.values())
    finalists = [one for one in results.values() if one.num_ok == most]
    quickest = min(finalists, key=seconds_of)
    best = chosen(finalists, has_step=sweep.step is not None)
    is_as_good = now is not None and is_within_noise(now, best)
    return Tuning(
        sweep=sweep,
        best=best.config,
        quickest=quickest.config,
        code=code_of(best),
        seconds=best.spreads["seconds_per_batch"],
        wait_seconds=best.mean("wait_seconds") or 0.0,
        step_seconds=best.mean("step_seconds") if sweep.step is not None else None,
        before=None if now is None else now.spreads["seconds_per_batch"],
        is_as_good=is_as_good,
        says=_sentences(
            best,
            quickest,
            finalists,
            now,
            limit=limit,
            is_asked=is_asked,
            has_step=sweep.step is not None,
        ),
    )


def _sentences(
    best: Result,
    quickest: Result,
    results: Sequence[Result],
    now: Result | None,
    *,
    limit: int,
    is_asked: bool,
    has_step: bool,
) -> list[str]:
    says = []
    equal = [one for one in results if one is not best and is_within_noise(one, quickest)]
    if equal:
        labels = "; ".join(label_of(one.config) for one in sorted(equal, key=seconds_of)[:3])
        verb = "takes" if len(equal) == 1 else "take"
        says.append(f"{labels} {verb} as long, but for noise; {label_of(best.config)} is the cheapest of them")
    if now is not None:
        has = {
            name: now.found[name] for name in ("num_workers", "num_threads", "prefetch_factor") if now.found.get(name)
        }
        what = f"as it is ({label_of(has) if has else 'no workers'})"
        times = seconds_of(now) / seconds_of(best)
        if is_within_noise(now, best) and times <= 1 + LEAST_NOISE:
            says.append(f"{what} it takes as long: for speed, nothing needs to be changed")
        else:
            says.append(f"{what} it takes {times:.2f} times as long")
    if best.config.get("num_workers", 0) * max(1, best.config.get("num_threads", 0)) >= limit and not is_asked:
        says.append(f"more than {limit} were not tried: there are no more cores; max_workers (--max-workers) allows it")
    threads = [one for one in equal if not one.config["num_workers"] and one.config.get("num_threads")]
    if threads and best.config["num_workers"] and not has_step:
        says.append("threads in the trainer's own process may hold up its step, which was not measured: see --step")
    return says


def without_run(tuning: Tuning) -> Tuning:
    """Return the tuning as it is saved: the record of a run has a file of its own."""
    return replace(tuning, sweep=replace(tuning.sweep, run=None))
