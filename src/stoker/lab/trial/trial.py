"""One trial: a loader with certain arguments, made and driven once, in a fresh process. Its end harms nobody else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from stoker.engine.stats import Plain, Quantiles
from stoker.errors import ArgumentError
from stoker.lab.trial.child import Child, ChildEnded, ChildSlow
from stoker.lab.trial.drive import Pace
from stoker.lab.trial.process_memory import TRAINER, ProcessMemory, ProcessMemoryWatch
from stoker.lab.trial.trial_child import IN_TRIAL, PHASES, begin
from stoker.lab.watch.run import Run

OK, FAILED, HUNG, KILLED, UNSUITED = "ok", "failed", "hung", "killed", "unsuited"

STACKS_SECONDS = 1.0
"""So long before a trial is given up it is asked where it is."""

WATCHED_SECONDS = 1.0
"""So long a run is watched at least: memory and cores are looked at now and then."""

DOING = {
    "imports": "while its modules were imported",
    "make": "while the loader was made",
    "first": "while the first batch was waited for",
    "count": "while batches were counted",
    "end": "at its end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What a trial is to do."""

    target: str
    """The function that makes the loader."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """What it is given in any case."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader that are changed: see `stoker.lab.trial.override`."""
    imports: tuple[str, ...] = ()
    """Modules, and functions by their names, that are imported beforehand."""
    step: str | None = None
    """The function that makes the step."""
    pace: Pace = field(default_factory=Pace)
    limit_seconds: float = 300.0
    """When a trial is given up, from its beginning to its end."""
    is_watched: bool = False
    """Whether it is done for the record of a run. Watching costs a little, so that nothing is counted then."""
    wants_digest: bool = False
    """Whether the first batch is to be told by a digest, to be compared with that of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup(Plain):
    """What a user waits for before the first batch is there, in seconds."""

    interpreter: float = 0.0
    imports: float = 0.0
    """Of the module that was named, and all that it imports."""
    construction: float = 0.0
    """Of the loader, with its dataset."""
    first_batch: float = 0.0
    """From asking for it, with workers that are started for it."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.interpreter + self.imports + self.construction + self.first_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Plain):
    """What came of one trial. Times are in seconds; what is not known is None."""

    config: dict[str, Any]
    """What was varied."""
    number: int = 0
    """Of the round that it belongs to."""
    outcome: str = OK
    """"ok", "failed", "hung", "killed", or "unsuited" of what cannot do what was asked."""
    error: str | None = None
    """Why, in a line or two."""
    trace: str | None = None
    """The traceback, or what else the process has told."""
    kind: str = "iterable"
    """Whose loader it is: "stoker", "torch", or "iterable" for anything else."""
    found: dict[str, Any] = field(default_factory=dict)
    """The arguments that the loader had in the end."""
    startup: Startup = field(default_factory=Startup)
    seconds: float = 0.0
    """In which all that follows was counted."""
    num_batches: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    """Judged from some batches."""
    batch_seconds: Quantiles = field(default_factory=Quantiles)
    """From batch to batch, with the step if there is one."""
    wait_seconds: Quantiles = field(default_factory=Quantiles)
    step_seconds: Quantiles = field(default_factory=Quantiles)
    epoch_start_seconds: list[float] = field(default_factory=list)
    """How long the first batches of later epochs were waited for."""
    counts_epoch_starts: bool = False
    """Whether the starts of epochs are in the numbers above, because epochs are too short to leave them out."""
    cpu_seconds_per_sample: float | None = None
    """Of the whole process tree."""
    trainer_bytes: int | None = None
    """Memory (PSS) of the process that iterates, when all of them together had most."""
    workers_bytes: int | None = None
    """Of all processes that it has started."""
    private_bytes: int | None = None
    """Of all of them together, without pages of files."""
    processes: list[ProcessMemory] = field(default_factory=list)
    """One by one, the trainer first."""
    num_processes: int = 0
    """There when all of them together had most."""
    digest: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether there are numbers."""
        return self.outcome == OK

    @property
    def samples_per_second(self) -> float:
        """Throughput."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """The same in batches."""
        return self.num_batches / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The same in bytes."""
        return self.num_bytes / self.seconds if self.seconds else 0.0

    @property
    def seconds_per_batch(self) -> float:
        """From batch to batch on average, with the step if there is one."""
        return self.seconds / self.num_batches if self.num_batches else 0.0

    @property
    def memory_bytes(self) -> int | None:
        """Memory (PSS) of all processes together, at its highest."""
        return None if self.trainer_bytes is None else self.trainer_bytes + (self.workers_bytes or 0)

    @property
    def worker_bytes(self) -> float | None:
        """What one worker had of it on average; None if there were none."""
        each = self._each_worker_bytes()
        return fmean(each) if each else None

    @property
    def largest_worker_bytes(self) -> int | None:
        """What the worker had that had most."""
        return max(self._each_worker_bytes(), default=None)

    def _each_worker_bytes(self) -> list[int]:
        return [one.held_bytes for one in self.processes if one.is_worker and one.held_bytes is not None]


def run_trial(order: TrialRequest, config: Mapping[str, Any], *, number: int = 0) -> Trial:
    """Return what came of a trial.

    It never raises what happens in the child: that is a `Trial` that says so. But if the user's modules cannot be
    imported, no other trial will do better, and an `ArgumentError` says why.
    """
    base: dict[str, Any] = {"config": dict(config), "number": number}
    before = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    with _child(order) as child:
        phase = PHASES[0]
        try:
            with ProcessMemoryWatch(child.pid) as memory:
                for phase in PHASES:
                    found[phase] = _asked(child, phase, order, before)
                    if failure := found[phase].get("failed"):
                        return _failed(base, phase, failure, found)
                    if phase in ("first", "count"):
                        memory.measure()
        except ChildSlow:
            error = f"hung {DOING[phase]}: given up after {order.limit_seconds:g} s"
            return Trial(**base, **_seen(found), outcome=HUNG, error=error, trace=_stacks(child.said()))
        except ChildEnded as end:
            error = f"ended by {end.end} {DOING[phase]}"
            if end.end == "SIGKILL":
                error += ", as the system does when memory runs out"
            return Trial(**base, **_seen(found), outcome=KILLED, error=error, trace=end.said or None)
    return _ok(base, found, memory, before)


def record_run_of_trial(order: TrialRequest, config: Mapping[str, Any]) -> Run | None:
    """Return the record of a run of a loader, for `stoker report`; None if it does not go well."""
    before = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    pace = replace(order.pace, seconds=max(WATCHED_SECONDS, order.pace.seconds))
    with _child(replace(order, is_watched=True, pace=pace)) as child, suppress(ChildSlow, ChildEnded):
        for phase in ("imports", "make", "first", "record", "end"):
            found[phase] = _asked(child, phase, order, before)
            if "failed" in found[phase]:
                return None
    if "record" not in found:
        return None
    run = Run.from_dict(found["record"]["run"])
    startup = {"import_seconds": found["imports"]["seconds"], "construction_seconds": found["make"]["seconds"]}
    title = ", ".join([order.target, *(f"{name}={value}" for name, value in config.items())])
    return replace(run, title=title, loaders=[replace(stats, **startup) for stats in run.loaders])


@contextmanager
def _child(order: TrialRequest) -> Iterator[Child]:
    if IN_TRIAL in os.environ:
        raise ArgumentError(
            "a measurement was started by a module that is itself being measured",
            hint='put what measures under `if __name__ == "__main__":`',
        )
    with Child(begin, _plain(order)) as child, _asked_where(child, order.limit_seconds):
        yield child


def _asked(child: Child, phase: str, order: TrialRequest, before: float) -> dict[str, Any]:
    left = before + order.limit_seconds - time.perf_counter()
    found: dict[str, Any] = child.ask(phase, limit_seconds=max(0.01, left))
    return found


def _plain(order: TrialRequest) -> dict[str, Any]:
    return {**asdict(order), "pace": asdict(order.pace)}


@contextmanager
def _asked_where(child: Child, limit_seconds: float) -> Iterator[None]:
    """Let a child that is about to be given up print where its threads are."""

    def ask() -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGUSR2)

    timer = threading.Timer(max(0.0, limit_seconds - STACKS_SECONDS), ask)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _stacks(said: str) -> str | None:
    """Return the stacks that a child has printed, or else what it has said."""
    begin = min((at for mark in ("Current thread", "Thread 0x") if (at := said.find(mark)) >= 0), default=0)
    return said[begin:] or None


def _failed(base: dict[str, Any], phase: str, failure: dict[str, Any], found: dict[str, dict[str, Any]]) -> Trial:
    message = failure["message"]
    if phase == "imports" and failure["is_argument"]:
        what, _, hint = message.partition("\nhint: ")
        raise ArgumentError(what, hint=hint or "see that it can be imported")
    if failure["type"] == "Unsuited":
        return Trial(**base, outcome=UNSUITED, error=message)
    error = message if failure["is_argument"] else f"{failure['type']}: {message}".rstrip(": ")
    trace = None if failure["is_argument"] else failure["trace"]
    return Trial(**base, **_seen(found), outcome=FAILED, error=error, trace=trace)


def _seen(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what was found before something went wrong."""
    made = {**found.get("make", {}), **found.get("first", {})}
    return {"kind": made["kind"], "found": made["found"]} if "kind" in made else {}


def _ok(base: dict[str, Any], found: dict[str, dict[str, Any]], memory: ProcessMemoryWatch, before: float) -> Trial:
    imports, made, first, count = found["imports"], found["make"], found["first"], found["count"]
    num_samples = count["num_cpu_samples"]
    processes = memory.processes
    held = {one.name: one.held_bytes for one in processes if one.held_bytes is not None}
    return Trial(
        **base,
        kind=first["kind"],
        found=first["found"],
        startup=Startup(
            interpreter=imports["began"] - before,
            imports=imports["seconds"] + first["import_seconds"],
            construction=made["seconds"],
            first_batch=first["seconds"],
        ),
        **{name: count[name] for name in ("seconds", "num_batches", "num_samples", "num_bytes")},
        **{name: count[name] for name in ("epoch_start_seconds", "counts_epoch_starts")},
        batch_seconds=Quantiles(**count["batch_seconds"]),
        wait_seconds=Quantiles(**count["wait_seconds"]),
        step_seconds=Quantiles(**count["step_seconds"]),
        cpu_seconds_per_sample=count["cpu_seconds"] / num_samples if num_samples else None,
        trainer_bytes=held.get(TRAINER),
        workers_bytes=sum(held.values()) - held[TRAINER] if held else None,
        private_bytes=memory.private_bytes,
        processes=processes,
        num_processes=len(held),
        digest=first["digest"],
    )
