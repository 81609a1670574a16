"""One trial: a loader with certain arguments, made and iterated in a fresh process, which may crash without harm."""

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
"""How long before the time limit the child prints the stacks of its threads."""

WATCHED_SECONDS = 1.0
"""Minimum length of a recorded run: memory and cores are sampled now and then."""

PHASE_NAMES = {
    "imports": "while importing modules",
    "make": "while making the loader",
    "first": "while waiting for the first batch",
    "count": "while measuring batches",
    "end": "while closing the loader",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What a trial does."""

    target: str
    """The function that makes the loader."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of that function."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader to change: see `stoker.lab.trial.override`."""
    imports: tuple[str, ...] = ()
    """Modules, and `module:function`, to import beforehand."""
    step: str | None = None
    """The function that makes the step."""
    pace: Pace = field(default_factory=Pace)
    limit_seconds: float = 300.0
    """Time limit of the whole trial."""
    is_watched: bool = False
    """Whether the trial makes a record of a run. Recording costs a little, so nothing is measured then."""
    wants_digest: bool = False
    """Whether to compute a digest of the first batch, to compare it with that of other loaders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup(Plain):
    """What a user waits for before the first batch, in seconds."""

    interpreter: float = 0.0
    imports: float = 0.0
    """Of the user's module, with everything that it imports."""
    construction: float = 0.0
    """Of the dataset and the loader."""
    first_batch: float = 0.0
    """From `iter` to the first batch, with the start of workers."""

    @property
    def total(self) -> float:
        """The sum."""
        return self.interpreter + self.imports + self.construction + self.first_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Plain):
    """The result of a trial. Times are in seconds; None where a value is unknown."""

    config: dict[str, Any]
    """The options that are varied."""
    number: int = 0
    """Of its round."""
    outcome: str = OK
    """"ok", "failed", "hung", "killed", or "unsuited" for a loader that cannot do what was asked."""
    error: str | None = None
    """The reason, in a line or two."""
    trace: str | None = None
    """The traceback, or other output of the process."""
    kind: str = "iterable"
    """Kind of loader: "stoker", "torch", or "iterable" for anything else."""
    found: dict[str, Any] = field(default_factory=dict)
    """The arguments that the loader had in the end."""
    startup: Startup = field(default_factory=Startup)
    seconds: float = 0.0
    """Length of the measurement; all that follows was measured in it."""
    num_batches: int = 0
    num_samples: int = 0
    num_bytes: int = 0
    """Extrapolated from some batches."""
    batch_seconds: Quantiles = field(default_factory=Quantiles)
    """From batch to batch, including the step if there is one."""
    wait_seconds: Quantiles = field(default_factory=Quantiles)
    step_seconds: Quantiles = field(default_factory=Quantiles)
    epoch_start_seconds: list[float] = field(default_factory=list)
    """How long the first batches of later epochs took."""
    counts_epoch_starts: bool = False
    """Whether starts of epochs are included above, because epochs are too short to exclude them."""
    cpu_seconds_per_sample: float | None = None
    """Of the whole process tree."""
    trainer_bytes: int | None = None
    """Memory (PSS) of the training process, when all processes together used most."""
    workers_bytes: int | None = None
    """Memory of all processes that it has started, at the same time."""
    private_bytes: int | None = None
    """Memory of all of them, without file-backed pages."""
    processes: list[ProcessMemory] = field(default_factory=list)
    """Each process, the training process first."""
    num_processes: int = 0
    """Processes that existed when all together used most."""
    digest: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether there are numbers."""
        return self.outcome == OK

    def _per_second(self, number: int) -> float:
        return number / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Throughput in samples."""
        return self._per_second(self.num_samples)

    @property
    def batches_per_second(self) -> float:
        """Throughput in batches."""
        return self._per_second(self.num_batches)

    @property
    def bytes_per_second(self) -> float:
        """Throughput in bytes."""
        return self._per_second(self.num_bytes)

    @property
    def seconds_per_batch(self) -> float:
        """Mean time from batch to batch, including the step if there is one."""
        return self.seconds / self.num_batches if self.num_batches else 0.0

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory (PSS) of all processes together."""
        return None if self.trainer_bytes is None else self.trainer_bytes + (self.workers_bytes or 0)

    @property
    def worker_bytes(self) -> float | None:
        """Mean memory of a worker; None if there were none."""
        each = self._each_worker_bytes()
        return fmean(each) if each else None

    @property
    def largest_worker_bytes(self) -> int | None:
        """Memory of the largest worker."""
        return max(self._each_worker_bytes(), default=None)

    def _each_worker_bytes(self) -> list[int]:
        return [one.held_bytes for one in self.processes if one.is_worker and one.held_bytes is not None]


def run_trial(request: TrialRequest, config: Mapping[str, Any], *, number: int = 0) -> Trial:
    """Run a trial in a fresh process and return its result, which says so if it failed, hung or was killed.

    Raise `ArgumentError` if the user's modules cannot be imported: no other trial would do better.
    """
    fields: dict[str, Any] = {"config": dict(config), "number": number}
    failure: dict[str, Any] = {}
    began = time.perf_counter()
    with _start_child(request) as child:
        phase = PHASES[0]
        try:
            with ProcessMemoryWatch(child.pid) as memory:
                for phase in PHASES:
                    answer = _ask(child, phase, request, began)
                    if "failed" in answer:
                        failure = _failure_fields(phase, answer["failed"])
                        break
                    if phase in ("first", "count"):
                        memory.measure()
                    _add_answer(fields, phase, answer, began)
        except ChildSlow:
            error = f"hung {PHASE_NAMES[phase]}: aborted after {request.limit_seconds:g} s"
            failure = {"outcome": HUNG, "error": error, "trace": _stacks(child.said())}
        except ChildEnded as end:
            error = f"ended by {end.end} {PHASE_NAMES[phase]}"
            if end.end == "SIGKILL":
                error += ", which the system sends when memory runs out"
            failure = {"outcome": KILLED, "error": error, "trace": end.said or None}
        if not failure:
            return Trial.from_dict(fields | _memory_fields(memory))
    known = {name: fields[name] for name in ("config", "number", "kind", "found") if name in fields}
    return Trial(**known, **failure)


def record_run_of_trial(request: TrialRequest, config: Mapping[str, Any]) -> Run | None:
    """Run a trial that is recorded for `stoker report`, not measured; return None if it fails."""
    began = time.perf_counter()
    answers: dict[str, dict[str, Any]] = {}
    pace = replace(request.pace, seconds=max(WATCHED_SECONDS, request.pace.seconds))
    with (
        _start_child(replace(request, is_watched=True, pace=pace)) as child,
        suppress(ChildSlow, ChildEnded),
    ):
        for phase in ("imports", "make", "first", "record", "end"):
            answers[phase] = _ask(child, phase, request, began)
            if "failed" in answers[phase]:
                return None
    if "record" not in answers:
        return None
    run = Run.from_dict(answers["record"]["run"])
    startup = {"import_seconds": answers["imports"]["seconds"], "construction_seconds": answers["make"]["seconds"]}
    title = ", ".join([request.target, *(f"{name}={value}" for name, value in config.items())])
    return replace(run, title=title, loaders=[replace(stats, **startup) for stats in run.loaders])


@contextmanager
def _start_child(request: TrialRequest) -> Iterator[Child]:
    """Start the child of a trial, which prints its stacks shortly before the time limit."""
    if IN_TRIAL in os.environ:
        raise ArgumentError(
            "a measurement was started by a module that is itself being measured",
            hint='put the measurement under `if __name__ == "__main__":`',
        )

    def ask_for_stacks() -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGUSR2)

    with Child(begin, asdict(request)) as child:
        timer = threading.Timer(max(0.0, request.limit_seconds - STACKS_SECONDS), ask_for_stacks)
        timer.start()
        try:
            yield child
        finally:
            timer.cancel()
            timer.join()


def _ask(child: Child, phase: str, request: TrialRequest, began: float) -> dict[str, Any]:
    left = began + request.limit_seconds - time.perf_counter()
    answer: dict[str, Any] = child.ask(phase, limit_seconds=max(0.01, left))
    return answer


def _add_answer(fields: dict[str, Any], phase: str, answer: dict[str, Any], began: float) -> None:
    """Add what a phase found to the fields of the trial."""
    startup = fields.setdefault("startup", {})
    if phase == "imports":
        startup |= {"interpreter": answer["began"] - began, "imports": answer["seconds"]}
    elif phase == "make":
        startup["construction"] = answer["seconds"]
        fields |= {"kind": answer["kind"], "found": answer["found"]}
    elif phase == "first":
        startup["first_batch"] = answer["seconds"]
        startup["imports"] += answer["import_seconds"]
        fields |= {"kind": answer["kind"], "found": answer["found"], "digest": answer["digest"]}
    elif phase == "count":
        num_samples = answer.pop("num_cpu_samples")
        cpu_seconds = answer.pop("cpu_seconds")
        fields |= answer | {"cpu_seconds_per_sample": cpu_seconds / num_samples if num_samples else None}


def _failure_fields(phase: str, failure: dict[str, Any]) -> dict[str, Any]:
    message, is_argument = failure["message"], failure["is_argument"]
    if phase == "imports" and is_argument:
        what, _, hint = message.partition("\nhint: ")
        raise ArgumentError(what, hint=hint or "check that it can be imported")
    if failure["type"] == "Unsuited":
        return {"outcome": UNSUITED, "error": message}
    return {
        "outcome": FAILED,
        "error": message if is_argument else f"{failure['type']}: {message}".rstrip(": "),
        "trace": None if is_argument else failure["trace"],
    }


def _memory_fields(memory: ProcessMemoryWatch) -> dict[str, Any]:
    processes = memory.processes
    held = {one.name: one.held_bytes for one in processes if one.held_bytes is not None}
    return {
        "trainer_bytes": held.get(TRAINER),
        "workers_bytes": sum(held.values()) - held[TRAINER] if held else None,
        "private_bytes": memory.private_bytes,
        "processes": [one.as_dict() for one in processes],
        "num_processes": len(held),
    }


def _stacks(said: str) -> str | None:
    """Return the stacks that a child has printed, or else all of its output."""
    begin = min((at for mark in ("Current thread", "Thread 0x") if (at := said.find(mark)) >= 0), default=0)
    return said[begin:] or None
