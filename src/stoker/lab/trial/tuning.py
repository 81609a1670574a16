"""The best arguments of a loader, found by measuring: `stoker tune`.

The search first tries a few settings far apart, once each; then settings around the best of them; then other prefetch
factors. Only candidates for the best are measured again, in interleaved rounds. Of settings that differ by no more than
noise, the cheapest wins.
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
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Config, Result, Rounds, Sweep, Watch, check_pace, label_of, summarize_trials
from stoker.lab.trial.target import name_of_function
from stoker.lab.trial.trial import Trial, TrialRequest

AS_IT_IS: Config = {}
"""The loader with the arguments in the user's code."""

NEAR = 1.15
"""Settings measured once that take up to this many times as long as the best may be the best: measure them again."""

MAX_FINALISTS = 6

LEAST_NOISE, MOST_NOISE = 0.03, 0.10
"""Differences below the first never count; differences above the second always do, however noisy."""


class ArgumentSearch:
    """Decides what to measure next."""

    def __init__(
        self, rounds: Rounds, *, limit: int, prefetches: Sequence[int], num_rounds: int, has_step: bool
    ) -> None:
        self.rounds, self._has_step = rounds, has_step
        self._limit, self._prefetches, self._num_rounds = limit, prefetches, num_rounds
        self.configs: list[Config] = []
        """The settings tried, without the current ones."""
        self._has_threads = False

    def run(self, target: str) -> None:
        """Measure until the best setting is known."""
        now = self._once([AS_IT_IS])[0]
        if not now.is_ok:
            what, _, hint = (now.error or "").partition("\nhint: ")
            raise ArgumentError(
                f"{target} does not work as it is: {what}",
                hint=hint or "fix that first; `stoker bench loader` shows the traceback",
            )
        self._has_threads = now.kind == "stoker"
        first = self._once([self._config(1, 0)])[0]
        if not first.is_ok and "could not be set" in (first.error or ""):
            what, _, hint = (first.error or "").partition("\nhint: ")
            raise ArgumentError(what, hint=hint)
        self._once([self._config(*setting) for setting in coarse_settings(self._limit, has_threads=self._has_threads)])
        for _ in range(2):
            best = self._best()
            if best is None or not self._once(self._around(best)):
                break
        if (likely := self._likely()) is not None:
            self._once(self._ahead(likely))
        finalists = [AS_IT_IS, *self._finalists()]
        self.rounds.plan((self._num_rounds - 1) * len(finalists))
        for number in range(1, self._num_rounds):
            self.rounds.go(finalists, number)

    def tried(self) -> list[Result]:
        """Return the results of settings that work, fastest first."""
        found = [summarize_trials(config, self.rounds.of(config)) for config in self.configs]
        return sorted((one for one in found if one.num_ok), key=seconds_of)

    def _once(self, configs: Sequence[Config]) -> list[Trial]:
        """Run a trial of each setting that was not tried yet."""
        new = [config for config in configs if not self.rounds.of(config)]
        self.configs += [config for config in new if config]
        self.rounds.plan(len(new))
        return self.rounds.go(new, 0)

    def _best(self) -> Config | None:
        found = self.tried()
        return found[0].config if found else None

    def _likely(self) -> Config | None:
        """Return what would be chosen now: the cheapest of the best."""
        found = self.tried()
        return cheapest_of_best(found, has_step=self._has_step).config if found else None

    def _finalists(self) -> list[Config]:
        """Return the candidates for the best: the fastest, and the cheapest of those not much slower."""
        found = self.tried()
        if not found:
            return []
        near = [one for one in found if seconds_of(one) <= NEAR * seconds_of(found[0])]
        near.sort(key=lambda result: cost_of(result, has_step=self._has_step))
        first = [found[0].config, cheapest_of_best(found, has_step=self._has_step).config]
        configs = [*first, *(one.config for one in near)]
        return [config for place, config in enumerate(configs) if config not in configs[:place]][:MAX_FINALISTS]

    def _around(self, best: Config) -> list[Config]:
        """Return settings around the best: half-way to its tried neighbors, or one more and one less."""
        workers, threads = best["num_workers"], best.get("num_threads", 0)
        near = [(number, threads) for number in self._between("num_workers", workers, threads)]
        if self._has_threads:
            near += [(workers, number) for number in self._between("num_threads", threads, workers)]
        return [self._config(*setting) for setting in near if self._is_allowed(*setting)]

    def _between(self, name: str, value: int, other: int) -> list[int]:
        rest = "num_threads" if name == "num_workers" else "num_workers"
        tried = sorted({one[name] for one in self.configs if name in one and one.get(rest, 0) == other})
        below = max((one for one in tried if one < value), default=None)
        above = min((one for one in tried if one > value), default=None)
        found = [value - 1 if below is None else (below + value) // 2]
        found.append(value + 1 if above is None else (value + above + 1) // 2)
        return [one for one in found if one >= 0 and one not in tried and not (name == "num_threads" and one == 1)]

    def _ahead(self, best: Config) -> list[Config]:
        """Return the best with other prefetch factors, if it prefetches."""
        if not (best["num_workers"] or best.get("num_threads")):
            return []
        has = self.rounds.of(best)[-1].found.get("prefetch_factor")
        return [{**best, "prefetch_factor": prefetch} for prefetch in self._prefetches if prefetch != has]

    def _config(self, workers: int, threads: int) -> Config:
        return {"num_workers": workers, **({"num_threads": threads} if self._has_threads else {})}

    def _is_allowed(self, workers: int, threads: int) -> bool:
        return workers >= 0 and threads >= 0 and max(1, workers) * max(1, threads) <= self._limit


def coarse_settings(limit: int, *, has_threads: bool) -> list[tuple[int, int]]:
    """Return settings far apart as (workers, threads in each), none with more than `limit` threads in all."""
    powers = [1 << bit for bit in range(limit.bit_length()) if 1 << bit <= limit]
    numbers = sorted({*powers, limit})
    found = [(0, 0), *((workers, 0) for workers in numbers)]
    if has_threads:
        several = [number for number in numbers if number > 1]
        found += [(0, threads) for threads in {*several[:1], *several[-1:]}]
        found += [(1, threads) for threads in several]
        found += [(workers, limit // workers) for workers in several if limit // workers > 1]
    return found


def is_within_noise(result: Result, best: Result) -> bool:
    """Whether a result differs from the best by no more than noise."""
    slow, quick = seconds_of(result), seconds_of(best)
    doubt = 0.0
    for one in (result, best):
        spread = one.spreads["seconds_per_batch"]
        doubt += ((spread.deviation or 0.0) ** 2) / spread.num
    noise = min(MOST_NOISE * quick, max(LEAST_NOISE * quick, 2 * float(doubt**0.5)))
    return slow - quick <= noise


def cheapest_of_best(results: Sequence[Result], *, has_step: bool) -> Result:
    """Return the cheapest of the results that differ from the fastest by no more than noise."""
    fastest = min(results, key=seconds_of)
    equal = [one for one in results if is_within_noise(one, fastest)]
    return min(equal, key=lambda result: cost_of(result, has_step=has_step))


def cost_of(result: Result, *, has_step: bool) -> tuple[float, ...]:
    """Return the cost of a setting, for comparison: workers, then threads, then batches ahead, then memory.

    Threads in the training process may slow down the step. Where that was not measured, a worker is cheaper.
    """
    config = result.config
    workers, threads = config.get("num_workers", 0), config.get("num_threads", 0)
    ahead = config.get("prefetch_factor") or result.found.get("prefetch_factor") or 0
    memory = result.mean("memory_bytes") or 0.0
    return 1.5 if not workers and threads and not has_step else workers, threads, ahead, memory


def seconds_of(result: Result) -> float:
    """Return what is minimized: the time from batch to batch, including the step if there is one."""
    return result.spreads["seconds_per_batch"].mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(Plain):
    """The best arguments. Times are seconds from batch to batch, including the step if there is one."""

    sweep: Sweep
    """All trials; the empty configuration is the loader with its current arguments."""
    best: Config
    quickest: Config
    """The fastest setting, which may cost more."""
    code: str
    """The arguments as code."""
    seconds: Spread
    """Expected time per step."""
    wait_seconds: float = 0.0
    """Part of it spent waiting for the batch."""
    step_seconds: float | None = None
    """Time of the step without waiting; None if it was not measured."""
    before: Spread | None = None
    """Time per step with the current arguments; None if it was not measured."""
    is_as_good: bool = False
    """Whether the current arguments are as fast, within noise."""
    says: list[str] = field(default_factory=list)
    """Reasons, one sentence each."""


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

    With `step`, a function that returns the training step, the time of a step including its wait for the batch is
    minimized; without, the time of a batch. Torch's loader has no threads, so only its workers are varied. No more
    workers and threads are tried than there are cores, or `max_workers`. With `records_run` the best setting runs once
    more, and `sweep.run` of the result is its record.
    """
    spec = name_of_function(target, what="a function that makes a loader")
    make_step = None if step is None else name_of_function(step, what="a function that makes a step")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    limit = num_cores() if max_workers is None else max_workers
    if limit < 1 or any(prefetch < 1 for prefetch in prefetches):
        raise ArgumentError("max_workers and prefetches must be at least 1", hint="leave them out to use the defaults")
    pace = Pace(seconds=seconds, num_batches=num_batches)

    def request_of(config: Config) -> TrialRequest:
        return TrialRequest(target=spec, options=config, step=make_step, pace=pace, limit_seconds=limit_seconds)

    search = ArgumentSearch(
        Rounds(request_of, watch=watch),
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
    tuning = decide(sweep, limit=limit, is_asked=max_workers is not None)
    if records_run and not is_interrupted:
        with suppress(KeyboardInterrupt):  # all that matters is known
            return replace(tuning, sweep=replace(sweep, run=search.rounds.record(tuning.best)))
    return tuning


def format_code(result: Result) -> str:
    """Return the arguments of a loader as code to paste."""
    config = dict(result.config)
    if config.get("num_workers") or config.get("num_threads"):
        ahead = config.get("prefetch_factor") or result.found.get("prefetch_factor")
        if isinstance(ahead, int):
            config["prefetch_factor"] = ahead
    return f"DataLoader({', '.join(['...', *(f'{name}={value}' for name, value in config.items())])})"


def decide(sweep: Sweep, *, limit: int, is_asked: bool) -> Tuning:
    """Choose the best setting of a finished sweep. `is_asked` says that the user has set `limit`."""
    results = {str(one.config): one for one in sweep.results() if one.num_ok}
    now = results.pop(str(AS_IT_IS), None)
    if not results:
        failed = next(trial.error for trial in sweep.trials if not trial.is_ok)
        raise ArgumentError(f"no setting works: {failed}", hint="`stoker bench loader` shows the traceback of each")
    most = max(one.num_ok for one in results.values())
    finalists = [one for one in results.values() if one.num_ok == most]
    fastest = min(finalists, key=seconds_of)
    best = cheapest_of_best(finalists, has_step=sweep.step is not None)
    is_as_good = now is not None and is_within_noise(now, best)
    return Tuning(
        sweep=sweep,
        best=best.config,
        quickest=fastest.config,
        code=format_code(best),
        seconds=best.spreads["seconds_per_batch"],
        wait_seconds=best.mean("wait_seconds") or 0.0,
        step_seconds=best.mean("step_seconds") if sweep.step is not None else None,
        before=None if now is None else now.spreads["seconds_per_batch"],
        is_as_good=is_as_good,
        says=_reasons(
            best,
            fastest,
            finalists,
            now,
            limit=limit,
            is_asked=is_asked,
            has_step=sweep.step is not None,
        ),
    )


def _reasons(
    best: Result,
    fastest: Result,
    results: Sequence[Result],
    now: Result | None,
    *,
    limit: int,
    is_asked: bool,
    has_step: bool,
) -> list[str]:
    says = []
    equal = [one for one in results if one is not best and is_within_noise(one, fastest)]
    if equal:
        labels = "; ".join(label_of(one.config) for one in sorted(equal, key=seconds_of)[:3])
        verb = "takes" if len(equal) == 1 else "take"
        says.append(f"{labels} {verb} as long, within noise; {label_of(best.config)} is the cheapest")
    if now is not None:
        has = {
            name: now.found[name] for name in ("num_workers", "num_threads", "prefetch_factor") if now.found.get(name)
        }
        what = f"currently ({label_of(has) if has else 'no workers'})"
        times = seconds_of(now) / seconds_of(best)
        if is_within_noise(now, best) and times <= 1 + LEAST_NOISE:
            says.append(f"{what} it is as fast: nothing to change")
        else:
            says.append(f"{what} it takes {times:.2f} times as long")
    if best.config.get("num_workers", 0) * max(1, best.config.get("num_threads", 0)) >= limit and not is_asked:
        says.append(
            f"more than {limit} were not tried, as there are no more cores; max_workers (--max-workers) allows it"
        )
    threads = [one for one in equal if not one.config["num_workers"] and one.config.get("num_threads")]
    if threads and best.config["num_workers"] and not has_step:
        says.append("threads in the training process may slow down the step, which was not measured: see --step")
    return says


def without_run(tuning: Tuning) -> Tuning:
    """Return the tuning without the record of a run, which has a file of its own."""
    return replace(tuning, sweep=replace(tuning.sweep, run=None))
