"""A loader's counters as a plain record, of Stoker's loaders and of others that are watched. What is unknown is None.

To add a counter, add a field to `Stats` and fill it: `counter` declares next to it how it is added up over loaders, its
row in `loader.report()` and its Prometheus metric.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from math import sqrt
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from stoker.engine.timing import BatchTimeline, Histogram

VERSION = 1


class Plain:
    """A record that becomes a dictionary of plain values, and comes back from it."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dictionary, fit for JSON."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def as_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.as_dict(), allow_nan=False, default=_plain)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the record of an `as_dict`, skipping fields added by a newer version.

        Raise a `TypeError` that names the field if a value has the wrong type.
        """
        hints = _HINTS.get(cls) or _HINTS.setdefault(cls, get_type_hints(cls))
        known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
        found = {}
        for name, value in values.items():
            if name not in known:
                continue
            try:
                found[name] = _rebuilt(hints[name], value)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
        return cls(**found)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar, such as a loader's argument, as a Python number; anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


_HINTS: dict[type, dict[str, Any]] = {}
"""Cached types of records' fields: finding them takes a hundred times as long as filling a record."""


def _rebuilt(hint: Any, value: Any) -> Any:
    """Return a value as a field of this type has it; raise `TypeError` if the type is wrong."""
    if hint is Any:
        return value
    if get_origin(hint) in (Union, UnionType):
        kinds = get_args(hint)
        if value is None and type(None) in kinds:
            return None
        return _rebuilt(next(kind for kind in kinds if kind is not type(None)), value)
    if get_origin(hint) is list and isinstance(value, list):
        (kind,) = get_args(hint)
        if kind is float and all(type(one) is float for one in value):  # batch times: many, and mostly right
            return list(value)
        return [_rebuilt(kind, one) for one in value]
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _rebuilt(get_args(hint)[1], one) for key, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, Plain) and isinstance(value, dict):
        return hint.from_dict(value)
    if not _belongs(value, hint):
        raise TypeError(f"{reprlib.repr(value)} is no {getattr(hint, '__name__', hint)}")
    return value


def _belongs(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a type. JSON has one kind of number, of any size."""
    if hint in (int, float):
        return isinstance(value, int | float | np.integer | np.floating) and bool(-MOST <= value <= MOST)
    return isinstance(value, hint) if hint in (str, bool) else not isinstance(hint, type) and not get_origin(hint)


MOST = 1e100
"""No number in a record is larger, so that results computed from it are numbers."""


MAX_MERGED = 1024
"""Batches, and first batches, kept one by one when counters are added up."""

Merge = Callable[[Any, Any, int, int], Any]
"""Add up a counter of two loaders: both values, and how many batches each loader delivered."""


def counter(default: Any, merge: Merge | None = None, *, label: str = "", metric: str = "") -> Any:
    """Declare a counter of `Stats`.

    Args:
        default: its value, or a function that returns it.
        merge: how to add it up over loaders of the same kind; the later loader's value without it.
        label: its row in the table of `loader.report()`, for durations (`Quantiles`).
        metric: its description in Prometheus, where it is called `stoker_` and its name.
    """
    assert not label or default is Quantiles, "only durations have a row in the table of loader.report()"
    metadata = {"merge": merge, "label": label, "metric": metric}
    return field(default_factory=default if callable(default) else lambda: default, metadata=metadata)


def _add(before: Any, after: Any, *_: int) -> Any:
    return after if before is None else before if after is None else before + after


def _mean(before: float | None, after: float | None, num_before: int, num_after: int) -> float | None:
    if before is None or after is None:
        return after if before is None else before
    return (before * num_before + after * num_after) / max(1, num_before + num_after)


def _extend(before: list[Any], after: list[Any], *_: int) -> list[Any]:
    return [*before, *after][-MAX_MERGED:]


def _by_key(merge: Merge) -> Merge:
    """Return how to add up dictionaries whose values are added up by `merge`."""

    def merge_values(before: Any, after: Any, *nums: int) -> Any:
        if not before or not after:
            return after or before
        return before | {key: merge(before[key], one, *nums) if key in before else one for key, one in after.items()}

    return merge_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles(Plain):
    """Durations, in seconds."""

    num: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @staticmethod
    def of(histogram: Histogram) -> Quantiles:
        """Return those of a histogram."""
        return Quantiles(
            num=histogram.num,
            mean=histogram.mean,
            deviation=histogram.deviation,
            p50=histogram.quantile(0.5),
            p90=histogram.quantile(0.9),
            p99=histogram.quantile(0.99),
            most=histogram.most,
        )

    def __add__(self, other: Quantiles) -> Quantiles:
        """Return those of both sets of durations together. The quantiles are means, so both should be alike."""
        if not self.num or not other.num:
            return self if self.num else other
        num = self.num + other.num

        def mean(first: float, second: float) -> float:
            return (first * self.num + second * other.num) / num

        middle = mean(self.mean, other.mean)
        squares = mean(self.deviation**2 + self.mean**2, other.deviation**2 + other.mean**2)
        return Quantiles(
            num=num,
            mean=middle,
            deviation=sqrt(max(0.0, squares - middle**2)),
            p50=mean(self.p50, other.p50),
            p90=mean(self.p90, other.p90),
            p99=mean(self.p99, other.p99),
            most=max(self.most, other.most),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Plain):
    """How long a stage was busy, and how long a thread waited there, in all threads and workers together."""

    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    cpu_seconds: float | None = None
    """The part of the busy time spent on a core, if measured."""

    def __add__(self, other: Stage) -> Stage:
        return Stage(**{one.name: _add(getattr(self, one.name), getattr(other, one.name)) for one in fields(Stage)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats(Plain):
    """What a process used, from the first measurement to the last."""

    pid: int
    role: str
    """"trainer", "worker 3", or another description."""
    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    """How long it was ready to run without a core."""
    read_bytes: int | None = None
    """Read from disk, not from memory."""
    pss_bytes: int | None = None
    """Its memory, shared pages counted proportionally; the last value seen if it has exited."""
    num_batches: int | None = None
    busy_seconds: float | None = None
    """How long it loaded batches, its threads added up."""

    def __add__(self, other: ProcessStats) -> ProcessStats:
        """Return what two processes in the same role used; the id and the memory are the second one's."""
        names = ("cpu_seconds", "delay_seconds", "read_bytes", "num_batches", "busy_seconds")
        return replace(other, **{name: _add(getattr(self, name), getattr(other, name)) for name in names})


def _merge_workers(before: list[ProcessStats], after: list[ProcessStats], *_: int) -> list[ProcessStats]:
    roles = {worker.role: worker for worker in before}
    for worker in after:
        roles[worker.role] = _add(roles.get(worker.role), worker)
    return list(roles.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies(Plain):
    """Copies of batches to the device, as far as they were seen."""

    num: int = 0
    num_pageable: int = 0
    """From ordinary memory, which goes through a buffer of the driver's."""
    num_blocking: int = 0
    """For which the training loop had to wait."""
    seconds: float = 0.0
    """Of the training loop's time."""
    device_seconds: float | None = None
    """Of one copy, measured on the device for some of them; None where it cannot be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Plain):
    """Where threads were when they were sampled."""

    num: int = 0
    places: dict[str, float] = field(default_factory=dict)
    """The share of samples in which a thread was there: ``file.py:12 function `source line` ``."""
    gil_share: float | None = None
    """The share of samples in which the worker held the GIL: pure Python, not native code."""


STAGES = ("read", "transform", "collate", "hand-over", "copy", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Plain):
    """One loader's counters, since it was made or since they were reset."""

    version: int = VERSION
    kind: str = "stoker"
    """"stoker", "torch", or "iterable" for anything else."""
    name: str = ""
    engine: str = "inline"
    """"inline", "threads" or "processes"."""
    config: dict[str, Any] = field(default_factory=dict)
    """The loader's arguments that matter: num_workers, num_threads, prefetch_factor, batch_size, ..."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What is known of the dataset and its files."""
    rank: int = 0
    num_ranks: int = 1
    seconds: float = counter(0.0, _add, metric="Time in iterations, training steps included.")
    """From requesting the first batch to receiving the last one, iterations added up, training steps included."""
    num_iterations: int = counter(0, _add)
    num_batches: int = counter(0, _add, metric="Batches delivered to the training loop.")
    num_samples: int = counter(0, _add, metric="Samples delivered to the training loop.")
    num_bytes: int = counter(0, _add, metric="Bytes delivered to the training loop, estimated from some batches.")
    """Of all batches, estimated from some of them."""
    first_batch_seconds: list[float] = counter(list, _extend)
    """How long the first batch of each iteration was waited for."""
    construction_seconds: float | None = None
    import_seconds: float | None = None
    batch_seconds: Quantiles = counter(Quantiles, _add, label="batch", metric="Time from batch to batch.")
    """From batch to batch, waiting and training step together; without first batches."""
    wait_seconds: Quantiles = counter(Quantiles, _add, label="wait", metric="Time spent waiting for a batch.")
    """How long the training loop waited for a batch; without first batches."""
    step_seconds: Quantiles = counter(Quantiles, _add, label="step", metric="Time of a training step.")
    """The training loop's own time, from receiving a batch to requesting the next."""
    making_seconds: Quantiles = counter(Quantiles, _add, label="loading", metric="Time to load a batch.")
    """How long a worker took for a batch."""
    stages: dict[str, Stage] = counter(dict, _by_key(_add))
    """By the names in `STAGES`."""
    wait_cpu_seconds: float | None = counter(None, _add)
    """How long the training thread was on a core while it waited for batches: it loads them itself, then."""
    wait_delay_seconds: float | None = counter(None, _add)
    """How long that thread was ready to run without a core while it waited for batches."""
    num_stalls: int = counter(0, _add, metric="Long waits for a batch.")
    """Waits longer than a millisecond and than a twentieth of the time from batch to batch."""
    stall_seconds: float = counter(0.0, _add, metric="Time of the long waits.")
    queue_depth: float | None = counter(None, _mean)
    """Batches that were ready when one was requested, on average."""
    queue_empty_share: float | None = counter(None, _mean)
    """The share of requests that found the queue empty."""
    trainer: ProcessStats | None = counter(None, _add)
    workers: list[ProcessStats] = counter(list, _merge_workers)
    copies: Copies | None = None
    sampled: Sampled | None = None
    steps_sampled: Sampled | None = None
    """Where the training loop was between batches."""
    duplicate_share: float | None = None
    """The share of samples of a stream that had come from another worker before, as far as they were compared."""
    decisions: list[str] = counter(list, _add)
    """What "auto" has decided, in order."""
    laps: dict[str, list[float]] | None = counter(None, _by_key(_extend))
    """The latest batches one by one, column by column: see `stoker.engine.timing.BatchTimes`."""

    @property
    def samples_per_second(self) -> float:
        """Throughput over the whole time."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time, first batches not counted, in which the training loop waited for data."""
        whole = self.batch_seconds.mean * self.batch_seconds.num
        return self.wait_seconds.mean * self.wait_seconds.num / whole if whole else 0.0

    def __add__(self, other: Stats) -> Stats:
        """Return the counters of two loaders made in the same way, one after the other, as those of one."""
        nums = self.num_batches, other.num_batches
        merged = {
            one.name: merge(getattr(self, one.name), getattr(other, one.name), *nums)
            for one in fields(Stats)
            if (merge := one.metadata.get("merge")) is not None
        }
        return replace(other, **merged)

    @staticmethod
    def of_timeline(timeline: BatchTimeline, *, config: dict[str, Any], **more: Any) -> Stats:
        """Return the counters that follow from a loader's batches one by one; `more` has the others."""
        timeline.fold()
        seconds = timeline.periods.total + sum(timeline.first_seconds) + timeline.forgotten_seconds
        num_workers, num_threads = (config.get(name) or 0 for name in ("num_workers", "num_threads"))
        counters: dict[str, Any] = {
            "engine": "processes" if num_workers else "threads" if num_threads else "inline",
            "config": config,
            "seconds": seconds,
            "num_batches": len(timeline),
            "first_batch_seconds": list(timeline.first_seconds),
            "batch_seconds": Quantiles.of(timeline.periods),
            "wait_seconds": Quantiles.of(timeline.waits),
            "step_seconds": Quantiles.of(timeline.steps),
            "making_seconds": Quantiles.of(timeline.makings),
            "stages": _stages(timeline, num_workers, num_threads, seconds),
            "num_stalls": timeline.num_stalls,
            "stall_seconds": timeline.stall_seconds,
            "queue_depth": timeline.mean_depth,
            "queue_empty_share": timeline.num_empty / timeline.num_asked if timeline.num_asked else None,
        }
        return Stats(**(counters | more))


def _stages(timeline: BatchTimeline, num_workers: int, num_threads: int, seconds: float) -> dict[str, Stage]:
    sums = timeline.sums
    busy = sum(sums[name] for name in ("read", "transform", "collate", "pack"))
    concurrency = max(1, num_workers) * max(1, num_threads) if num_workers or num_threads else 0
    waited = timeline.waits.total + sum(timeline.first_seconds) + timeline.forgotten_seconds
    return {
        # workers wait for the next request there, and nowhere else
        "read": Stage(busy_seconds=sums["read"], waiting_seconds=max(0.0, concurrency * seconds - busy)),
        "transform": Stage(busy_seconds=sums["transform"]),
        "collate": Stage(busy_seconds=sums["collate"]),
        "hand-over": Stage(busy_seconds=sums["pack"] + sums["unpack"], waiting_seconds=sums["ready"]),
        "copy": Stage(busy_seconds=sums["copy"]),
        "wait": Stage(waiting_seconds=waited),
    }


def labeled_counters() -> list[tuple[str, str]]:
    """Return name and label of the counters that `loader.report()` shows as rows of its table."""
    return [(one.name, one.metadata["label"]) for one in fields(Stats) if one.metadata.get("label")]


def metric_counters() -> list[tuple[str, str, str]]:
    """Return name, metric name and description of the counters that Prometheus shows."""
    shown = [(one.name, one.metadata["metric"]) for one in fields(Stats) if one.metadata.get("metric")]
    return [(name, f"stoker_{name.removeprefix('num_')}", description) for name, description in shown]
