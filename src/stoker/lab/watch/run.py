"""The record of a training run: its loaders' counters, its processes and cores over time. One JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.engine.stats import STAGES, Copies, Plain, ProcessStats, Quantiles, Sampled, Stage, Stats
from stoker.errors import ArgumentError
from stoker.lab.watch.record_file import write_atomically

__all__ = [
    "FORMAT",
    "STAGES",
    "Copies",
    "Moment",
    "Plain",
    "ProcessStats",
    "Quantiles",
    "Run",
    "Sampled",
    "Stage",
    "Stats",
]

FORMAT = "stoker-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment(Plain):
    """What was in use at one time, or since the moment before."""

    at: float
    """Seconds since the run began."""
    trainer_pss_bytes: int | None = None
    """Of all trainer processes, one for each rank."""
    workers_pss_bytes: int | None = None
    """Of all their descendants."""
    private_bytes: int | None = None
    """Of all of them together, without pages of files, which the system can drop. This grows when something leaks."""
    trainer_cores: float = 0.0
    """CPU seconds per second since the moment before."""
    workers_cores: float = 0.0
    others_cores: float = 0.0
    """By all other programs."""
    trainer_delay_share: float | None = None
    """The share of the time in which the training thread was ready to run but had no core."""
    cores: list[float] = field(default_factory=list)
    """How busy each core of the machine was, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Plain):
    """A watched run."""

    format: str = FORMAT
    version: int = 1
    title: str = ""
    """What was run, in a few words."""
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    began: float | None = None
    """When it began, by the clock of batch times. The times of moments count from there."""
    loaders: list[Stats] = field(default_factory=list)
    """One for each loader and rank."""
    moments: list[Moment] = field(default_factory=list)
    """Some hundreds at most, evenly spaced."""

    def save(self, path: str | Path) -> None:
        """Write it to a file, atomically."""
        write_atomically(path, json.dumps(self.as_dict(), allow_nan=False))

    @staticmethod
    def load(path: str | Path) -> Run:
        """Return the run saved in a file; refuse other files."""
        hint = "`stoker doctor --save run.json -- python train.py` writes one, and so do `stoker bench` and `Run.save`"
        try:
            values = json.loads(Path(path).read_text(), parse_constant=_refused)
        except FileNotFoundError:
            raise ArgumentError(f"there is no file {path}", hint=hint) from None
        except (ValueError, UnicodeDecodeError) as error:
            raise ArgumentError(f"{path} is not a record of a run: {error}", hint=hint) from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ArgumentError(f"{path} is not a record of a run", hint=hint)
        version = values.get("version", 0)
        if isinstance(version, int) and version > 1:
            raise ArgumentError(
                f"{path} was written by a newer version of stoker (format {version})",
                hint="update stoker to read it",
            )
        try:
            return Run.from_dict(values)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise ArgumentError(f"{path} is damaged: its fields do not fit together ({error})", hint=hint) from None


def _refused(constant: str) -> None:
    raise ValueError(f"it holds {constant}, which is not a number")


def join_runs(runs: Sequence[Run], *, names: Sequence[str] | None = None) -> Run:
    """Return the run that several records are parts of, each with other ranks.

    Its moments are those of the part that was watched longest: parts may be from different machines, whose cores and
    memory do not add up. Errors call the parts by `names`.
    """
    if not runs:
        raise ArgumentError("there are no runs to join", hint="pass at least one")
    called = list(names) if names is not None else [f"run {number}" for number in range(len(runs))]
    seen: dict[int, str] = {}
    for run, name in zip(runs, called):
        for rank in sorted({stats.rank for stats in run.loaders}):
            if rank in seen:
                raise ArgumentError(
                    f"{seen[rank]} and {name} both contain rank {rank}, so they are two runs, not parts of one",
                    hint=f"`stoker report {seen[rank]} --against {name}` compares two runs",
                )
            seen[rank] = name
    if len(runs) == 1:
        return runs[0]
    longest = max(runs, key=lambda run: (bool(run.moments), run.seconds))
    loaders = sorted((stats for run in runs for stats in run.loaders), key=lambda stats: stats.rank)
    return replace(longest, title=runs[0].title, loaders=loaders)
