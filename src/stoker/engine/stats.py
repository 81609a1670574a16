"""What a loader has counted, as a plain record: for people, for files, for whoever draws conclusions.

The same record tells of loaders that are not ours, as far as they could be watched; what is not known is None.
"""

from __future__ import annotations

import json
import reprlib
from dataclasses import asdict, dataclass, field, fields
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from stoker.engine.timing import Histogram

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
        """Return what `as_dict` told; fields that a newer version has added are passed over.

        A value of another type than its field's is a `TypeError` that names the field.
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
    """Return a number of NumPy's, which somebody gave as an argument, as Python has it; anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


_HINTS: dict[type, dict[str, Any]] = {}
"""The types of records' fields, once they were found: that takes a hundred times as long as to fill a record."""


def _rebuilt(hint: Any, value: Any) -> Any:
    """Return a value as a field of this type has it; raise `TypeError` for what does not belong there."""
    if hint is Any:
        return value
    if get_origin(hint) in (Union, UnionType):
        kinds = get_args(hint)
        if value is None and type(None) in kinds:
            return None
        return _rebuilt(next(kind for kind in kinds if kind is not type(None)), value)
    if get_origin(hint) is list and isinstance(value, list):
        (kind,) = get_args(hint)
        if kind is float and all(type(one) is float for one in value):  # laps: many, and mostly right
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
    """Whether a plain value is of a type. JSON does not tell whole numbers from others, and has ones of any size."""
    if hint in (int, float):
        return isinstance(value, int | float | np.integer | np.floating) and bool(-MOST <= value <= MOST)
    return isinstance(value, hint) if hint in (str, bool) else not isinstance(hint, type) and not get_origin(hint)


MOST = 1e100
"""No number in a record is larger: what is reckoned with it stays a number."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Plain):
    """One stage: how long it was at work, and how long somebody waited there. Of all threads and workers together."""

    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    cpu_seconds: float | None = None
    """How much of the busy time was spent on a core, where that was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats(Plain):
    """A process, from when it was first looked at to when it was last."""

    pid: int
    role: str
    """"trainer", "worker 3", or what else is known of it."""
    cpu_seconds: float = 0.0
    delay_seconds: float | None = None
    """How long it was ready to run and had no core."""
    read_bytes: int | None = None
    """Read from disks, not from memory."""
    pss_bytes: int | None = None
    """Its memory, pages that it shares with others counted by its share; once it has ended, what was seen last."""
    num_batches: int | None = None
    busy_seconds: float | None = None
    """How long it was making batches, its threads added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies(Plain):
    """How batches came to the device, as far as that was seen."""

    num: int = 0
    num_pageable: int = 0
    """From ordinary memory, which goes through a buffer of the driver's."""
    num_blocking: int = 0
    """For which the trainer had to wait."""
    seconds: float = 0.0
    """Of the trainer's time."""
    device_seconds: float | None = None
    """Of one copy, on the device, as measured on some of them; None where there is no device, or it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Plain):
    """Where workers were, when they were looked at now and then."""

    num: int = 0
    places: dict[str, float] = field(default_factory=dict)
    """The share of samples in which a thread was there: ``file.py:12 function `source line` ``."""
    gil_share: float | None = None
    """The share of looks at which the interpreter's lock was held by whoever worked: pure Python, not native code."""


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
    """The loader's arguments, as far as they matter: num_workers, num_threads, prefetch_factor, batch_size, ..."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found out about the dataset and where it lies."""
    rank: int = 0
    num_ranks: int = 1
    seconds: float = 0.0
    """From asking for the first batch to having the last one, iterations added up, with the trainer's own time."""
    num_iterations: int = 0
    num_batches: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    """Of all batches, judged from some of them."""
    first_batch_seconds: list[float] = field(default_factory=list)
    """How long the first batch of each iteration was waited for."""
    construction_seconds: float | None = None
    import_seconds: float | None = None
    batch_seconds: Quantiles = field(default_factory=Quantiles)
    """From batch to batch, waiting and the trainer's own time together; first batches not counted."""
    wait_seconds: Quantiles = field(default_factory=Quantiles)
    """How long the trainer waited for a batch; first batches not counted."""
    step_seconds: Quantiles = field(default_factory=Quantiles)
    """The trainer's own time from having a batch to asking for the next."""
    making_seconds: Quantiles = field(default_factory=Quantiles)
    """From the beginning of a batch in its worker to its end."""
    stages: dict[str, Stage] = field(default_factory=dict)
    """By the names in `STAGES`."""
    wait_cpu_seconds: float | None = None
    """How long the trainer's own thread was on a core while it waited for batches: it makes them itself, then."""
    wait_delay_seconds: float | None = None
    """How long that thread, ready to run, had no core while it waited for batches."""
    num_stalls: int = 0
    """Waits of more than a millisecond and a twentieth of the batch's time."""
    stall_seconds: float = 0.0
    queue_depth: float | None = None
    """Batches that were ready when one was asked for, on average."""
    queue_empty_share: float | None = None
    """The share of asks at which none was ready."""
    trainer: ProcessStats | None = None
    workers: list[ProcessStats] = field(default_factory=list)
    copies: Copies | None = None
    sampled: Sampled | None = None
    steps_sampled: Sampled | None = None
    """Where the training loop was between batches."""
    duplicate_share: float | None = None
    """The share of batches of a stream that had come before, as far as that was looked at."""
    decisions: list[str] = field(default_factory=list)
    """What "auto" has decided, in order."""
    laps: dict[str, list[float]] | None = None
    """The latest batches one by one, column by column: see `stoker.engine.timing.Lap`."""

    @property
    def samples_per_second(self) -> float:
        """Throughput over the whole time."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The part of the time, first batches not counted, for which the trainer waited for data."""
        whole = self.batch_seconds.mean * self.batch_seconds.num
        return self.wait_seconds.mean * self.wait_seconds.num / whole if whole else 0.0
