"""How fast a loader is, what it costs, and how that depends on its arguments: `stoker bench loader`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from stoker.errors import ArgumentError
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.override import SWEPT
from stoker.lab.trial.sweep import Config, Result, Rounds, Sweep, Watch
from stoker.lab.trial.target import named
from stoker.lab.trial.trial import Order, Trial


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
    """Return what was measured of the loader that `target` makes, with each combination of the arguments given.

    `target` is a function, or its name as `module:function` or `path/to/file.py:function`. It need not take any of the
    arguments: they are set on the `DataLoader` that it builds. Arguments that are not given are left as they are.
    `step` names a function that returns what is done with each batch; without, batches are only taken. Each trial runs
    in a fresh process. Ctrl-C ends it and returns what there is by then, if there is anything. With `records_run` the
    quickest configuration runs once more, watched, and `run` of the result is its record.
    """
    spec = named(target, what="a function that makes a loader")
    make_step = None if step is None else named(step, what="a function that makes a step")
    check_pace(seconds=seconds, num_batches=num_batches, num_rounds=num_rounds, limit_seconds=limit_seconds)
    configs = configurations(workers=workers, threads=threads, batch_sizes=batch_sizes, prefetches=prefetches)
    pace = Pace(seconds=seconds, num_batches=num_batches)

    def order_of(config: Config) -> Order:
        return Order(target=spec, options=config, step=make_step, pace=pace, limit_seconds=limit_seconds)

    sweep = Sweep(
        verb="loader",
        target=spec,
        step=make_step,
        settings={"seconds": seconds, "num_batches": num_batches, "num_rounds": num_rounds},
        configs=configs,
    )
    return swept(sweep, Rounds(order_of, watch=watch), num_rounds=num_rounds, records_run=records_run)


def swept(sweep: Sweep, rounds: Rounds, *, num_rounds: int, records_run: bool = False) -> Sweep:
    """Return `sweep` with so many rounds of trials; with fewer if Ctrl-C came after the first trial."""
    is_interrupted = False
    run = None
    rounds.plan(num_rounds * len(sweep.configs))
    try:
        for number in range(num_rounds):
            rounds.go(sweep.configs, number)
        if records_run and (quickest := max(filter(_is_ok, rounds.trials), key=_speed, default=None)) is not None:
            run = rounds.record(quickest.config)
    except KeyboardInterrupt:
        if not rounds.trials:
            raise
        is_interrupted = True
    return replace(sweep, trials=rounds.trials, is_interrupted=is_interrupted, run=run)


def _is_ok(trial: Trial) -> bool:
    return trial.is_ok


def _speed(trial: Trial) -> float:
    return trial.samples_per_second


def configurations(
    *,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    prefetches: Sequence[int] | None = None,
) -> list[Config]:
    """Return all combinations of the arguments, workers changing slowest. Where nothing is fetched ahead, for there
    are neither workers nor threads, `prefetch_factor` makes no difference and is left out.
    """
    swept = {"batch_size": batch_sizes, "num_threads": threads, "num_workers": workers, "prefetch_factor": prefetches}
    for name, values in swept.items():
        least = 0 if name in ("num_workers", "num_threads") else 1
        if values is not None and any(value < least for value in values):
            raise ArgumentError(
                f"{name}={min(values)} is less than {least}", hint="give numbers, such as 0,1,2,4 for workers"
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
    """Raise `ArgumentError` for what cannot be measured."""
    if num_rounds < 1:
        raise ArgumentError(f"{num_rounds} rounds measure nothing", hint="repeat once, or better three times")
    if seconds <= 0 or (num_batches is not None and num_batches < 2):
        raise ArgumentError("there is nothing to count", hint="give some seconds, or two batches at least")
    if limit_seconds <= seconds:
        raise ArgumentError(
            f"a trial that counts for {seconds:g} s cannot be over within {limit_seconds:g} s",
            hint="give a longer timeout, with time for imports and workers to start",
        )


def bytes_per_worker(results: Sequence[Result]) -> float | None:
    """Return by how much memory grows with each worker: the slope of a straight line through the measurements.

    Pages of files are not counted: a worker adds none of them, and our share of a library changes by tens of megabytes
    when other programs that use it come and go. None if there are no two numbers of workers, or memory is not known.
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
