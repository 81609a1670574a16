"""Which arguments of a loader to try, and which to take: the thrift of `stoker tune`.

First a few settings far apart, each once; then what lies around the best of them; then how many batches to fetch ahead;
and only those that may be the best are measured again, in turn, until it can be told whether they differ. Of settings
that do not differ by more than noise the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.errors import ArgumentError
from stoker.lab.trial.sweep import Config, Result, Rounds, summed_up
from stoker.lab.trial.trial import Trial

AS_IT_IS: Config = {}
"""The loader with the arguments that it has in the user's code."""

NEAR = 1.15
"""What takes so many times as long as the best, measured once, may still be the best: it is measured again."""

MAX_FINALISTS = 6

LEAST_NOISE, MOST_NOISE = 0.03, 0.10
"""Settings that differ by less than the one do not matter; by more than the other they do, however noisy it was."""


class Search:
    """Decides what to measure next, from what was measured."""

    def __init__(
        self, rounds: Rounds, *, limit: int, prefetches: Sequence[int], num_rounds: int, has_step: bool
    ) -> None:
        self.rounds, self._has_step = rounds, has_step
        self._limit, self._prefetches, self._num_rounds = limit, prefetches, num_rounds
        self.configs: list[Config] = []
        """What was tried, the loader as it is apart."""
        self._has_threads = False

    def run(self, target: str) -> None:
        """Search."""
        now = self._once([AS_IT_IS])[0]
        if not now.is_ok:
            what, _, hint = (now.error or "").partition("\nhint: ")
            raise ArgumentError(
                f"{target} does not work as it is: {what}",
                hint=hint or "mend that first; `stoker bench loader` shows the traceback",
            )
        self._has_threads = now.kind == "stoker"
        first = self._once([self._config(1, 0)])[0]
        if not first.is_ok and "could not be set" in (first.error or ""):
            what, _, hint = (first.error or "").partition("\nhint: ")
            raise ArgumentError(what, hint=hint)
        self._once([self._config(*hands) for hands in coarse(self._limit, has_threads=self._has_threads)])
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
        """Return what was tried and went well, quickest first."""
        found = [summed_up(config, self.rounds.of(config)) for config in self.configs]
        return sorted((one for one in found if one.num_ok), key=seconds_of)

    def _once(self, configs: Sequence[Config]) -> list[Trial]:
        """Try what was not tried yet."""
        new = [config for config in configs if not self.rounds.of(config)]
        self.configs += [config for config in new if config]
        self.rounds.plan(len(new))
        return self.rounds.go(new, 0)

    def _best(self) -> Config | None:
        found = self.tried()
        return found[0].config if found else None

    def _likely(self) -> Config | None:
        """Return what will be chosen, if nothing changes: the cheapest of the best."""
        found = self.tried()
        return chosen(found, has_step=self._has_step).config if found else None

    def _finalists(self) -> list[Config]:
        """Return what may be the best: the quickest, and of those not much slower the cheapest."""
        found = self.tried()
        if not found:
            return []
        near = [one for one in found if seconds_of(one) <= NEAR * seconds_of(found[0])]
        near.sort(key=lambda result: cost_of(result, has_step=self._has_step))
        first = [found[0].config, chosen(found, has_step=self._has_step).config]
        configs = [*first, *(one.config for one in near)]
        return [config for place, config in enumerate(configs) if config not in configs[:place]][:MAX_FINALISTS]

    def _around(self, best: Config) -> list[Config]:
        """Return what lies around the best: half-way to what was tried next to it, or one more and one less."""
        workers, threads = best["num_workers"], best.get("num_threads", 0)
        near = [(number, threads) for number in self._between("num_workers", workers, threads)]
        if self._has_threads:
            near += [(workers, number) for number in self._between("num_threads", threads, workers)]
        return [self._config(*hands) for hands in near if self._is_allowed(*hands)]

    def _between(self, name: str, value: int, other: int) -> list[int]:
        rest = "num_threads" if name == "num_workers" else "num_workers"
        tried = sorted({one[name] for one in self.configs if name in one and one.get(rest, 0) == other})
        below = max((one for one in tried if one < value), default=None)
        above = min((one for one in tried if one > value), default=None)
        found = [value - 1 if below is None else (below + value) // 2]
        found.append(value + 1 if above is None else (value + above + 1) // 2)
        return [one for one in found if one >= 0 and one not in tried and not (name == "num_threads" and one == 1)]

    def _ahead(self, best: Config) -> list[Config]:
        """Return the best with other numbers of batches fetched ahead, if it fetches any."""
        if not (best["num_workers"] or best.get("num_threads")):
            return []
        has = self.rounds.of(best)[-1].found.get("prefetch_factor")
        return [{**best, "prefetch_factor": prefetch} for prefetch in self._prefetches if prefetch != has]

    def _config(self, workers: int, threads: int) -> Config:
        return {"num_workers": workers, **({"num_threads": threads} if self._has_threads else {})}

    def _is_allowed(self, workers: int, threads: int) -> bool:
        return workers >= 0 and threads >= 0 and max(1, workers) * max(1, threads) <= self._limit


def coarse(limit: int, *, has_threads: bool) -> list[tuple[int, int]]:
    """Return settings far apart, as (workers, threads in each), none of which needs more than `limit` cores."""
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
    """Whether a result differs from the best by no more than what chance does."""
    slow, quick = seconds_of(result), seconds_of(best)
    doubt = 0.0
    for one in (result, best):
        spread = one.spreads["seconds_per_batch"]
        doubt += ((spread.deviation or 0.0) ** 2) / spread.num
    noise = min(MOST_NOISE * quick, max(LEAST_NOISE * quick, 2 * float(doubt**0.5)))
    return slow - quick <= noise


def chosen(results: Sequence[Result], *, has_step: bool) -> Result:
    """Return the cheapest of those that do not differ from the quickest by more than noise."""
    quickest = min(results, key=seconds_of)
    equal = [one for one in results if is_within_noise(one, quickest)]
    return min(equal, key=lambda result: cost_of(result, has_step=has_step))


def cost_of(result: Result, *, has_step: bool) -> tuple[float, ...]:
    """Return what a setting costs, to be compared: workers, then threads, then batches ahead, then memory.

    Threads in the trainer's own process may hold up its step. Where that was not measured, a worker is cheaper.
    """
    config = result.config
    workers, threads = config.get("num_workers", 0), config.get("num_threads", 0)
    ahead = config.get("prefetch_factor") or result.found.get("prefetch_factor") or 0
    memory = result.mean("memory_bytes") or 0.0
    return 1.5 if not workers and threads and not has_step else workers, threads, ahead, memory


def seconds_of(result: Result) -> float:
    """Return what is to be as short as it gets: the time from batch to batch, with the step if there is one."""
    return result.spreads["seconds_per_batch"].mean
