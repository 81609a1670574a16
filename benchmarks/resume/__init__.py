"""The resume torture: trainings that are killed and resumed, by many loaders, and which samples that loses or repeats.

    make peers                                 # once: an environment with the peers
    .venv/bin/python -m benchmarks resume      # runs there, if it is there; --quick to see that all works
    .venv/bin/python -m benchmarks resume --save

A *run* is three epochs of 1,000 samples, the checkpoints every five steps. Its processes are killed (SIGKILL) at steps
drawn from a fixed seed, at most four steps behind a checkpoint, and new ones resume from that: with as many workers and
ranks as before, or others. What every step was trained on is compared with a run that nobody stopped. Each contender
is used as its documentation says (`loaders`, `trainers`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console

from benchmarks.measure import Record, Series, record_of
from benchmarks.peers import is_installed
from benchmarks.report import Report, Setting
from benchmarks.resume.contenders import CONTENDERS, Ending, serving
from benchmarks.resume.jobs import NUM_EPOCHS, NUM_SAMPLES, SAVE_EVERY, SEED, Job, Shape
from benchmarks.resume.judging import FAILED, HANGS, Step, Verdict, judge, read_firsts, read_lines, read_run
from benchmarks.resume.scenarios import Part, Run, Scenario, scenarios
from benchmarks.resume.summary import COLUMNS, figure, limits, shows
from benchmarks.stand import Stand

PACKAGES = (
    "torch",
    "torchdata",
    "litdata",
    "mosaicml-streaming",
    "grain",
    "accelerate",
    "transformers",
    "stoker",
)
RUN_SECONDS = 600
"""So long the processes of one part of a run may take, with those that hang."""


def run(setting: Setting) -> Report:
    console = Console()
    missing = [name for name, contender in CONTENDERS.items() if not is_installed(*contender.modules)]
    chosen = scenarios(is_quick=setting.is_quick)
    records = []
    for name in CONTENDERS:
        if name not in missing:
            console.print(f"[dim]{name}[/dim]")
            records += _tortured(name, chosen)
    order = [scenario.name for scenario in chosen]
    records.sort(key=lambda record: order.index(record.case["scenario"]))
    return Report(
        name="resume",
        title="Samples lost and repeated when a training is killed and resumed",
        records=records,
        shows=shows(records, missing),
        limits=limits(),
        draw=lambda: figure(records),
        columns=COLUMNS,
        extra={
            "num_samples": NUM_SAMPLES,
            "num_epochs": NUM_EPOCHS,
            "save_every": SAVE_EVERY,
            "seed": SEED,
            "documented": {name: contender.documented for name, contender in CONTENDERS.items()},
            "left_out": missing,
        },
        packages=PACKAGES,
    )


def _tortured(name: str, chosen: tuple[Scenario, ...]) -> list[Record]:
    """Return a record of a contender for each scenario."""
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(serving, name, folder, limit_seconds=RUN_SECONDS)
        try:
            trials = _Trials(name, stand, Path(folder))
            return [_record(name, scenario, trials) for scenario in chosen]
        finally:
            stand.close()


def _record(name: str, scenario: Scenario, trials: _Trials) -> Record:
    seconds, verdicts = [], []
    for run in scenario.runs:
        begin = perf_counter()
        verdicts.append(trials.verdict(run, is_distributed=scenario.is_distributed))
        seconds.append((perf_counter() - begin) * 1e6)
    kinds = Counter(verdict.kind for verdict in verdicts)
    more: dict[str, Any] = {
        "lost": sum(verdict.lost for verdict in verdicts),
        "repeated": sum(verdict.repeated for verdict in verdicts),
        "kinds": dict(kinds),
        **_first_batches(verdicts),
        "runs": [
            {"parts": [asdict(part) for part in run], **asdict(verdict)}
            for run, verdict in zip(scenario.runs, verdicts)
        ],
    }
    return record_of(name, Series(seconds, [0.0] * len(seconds)), None, {"scenario": scenario.name}, "run", more)


def _first_batches(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return what the first batch took, in the median, at the start of a run and after a resume."""
    found: dict[str, Any] = {}
    for name, firsts in (
        ("start", [verdict.firsts[0] for verdict in verdicts if verdict.firsts]),
        ("resume", [first for verdict in verdicts for first in verdict.firsts[1:]]),
    ):
        if firsts:
            found[f"{name}_seconds"] = median(first.seconds for first in firsts)
        reads = [first.reads for first in firsts if first.reads is not None]
        if reads:
            found[f"{name}_reads"] = median(reads)
    return found


class _Trials:
    """The runs of one contender."""

    def __init__(self, name: str, stand: Stand, folder: Path) -> None:
        self._stand, self._folder = stand, folder
        self._is_one_stream = CONTENDERS[name].is_one_stream
        self._expected: dict[tuple[Shape, bool], list[Step] | Ending] = {}
        self._num_runs = 0

    def verdict(self, run: Run, *, is_distributed: bool) -> Verdict:
        """Return how a run differs from one of the shape it begins with that nobody stops."""
        expected = self._uninterrupted(run[0].shape, is_distributed)
        if isinstance(expected, Ending):
            return Verdict(HANGS if expected.kind == "hang" else FAILED, text=f"without a stop: {expected.text}")
        if self._is_one_stream:
            run = tuple(part.as_one_stream() for part in run)
        jobs, ending = self._run(run, is_distributed)
        if ending.kind != "finished":  # before its time is finished too: the rest of the samples is lost
            num_steps = sum("ids" in line for line in read_lines(jobs[-1][0]))
            return Verdict(HANGS if ending.kind == "hang" else FAILED, text=ending.text, steps_before=num_steps)
        verdict = judge(read_run(jobs), expected, by_epoch=not self._is_one_stream)
        return replace(verdict, firsts=read_firsts(jobs))

    def _uninterrupted(self, shape: Shape, is_distributed: bool) -> list[Step] | Ending:
        key = (shape, is_distributed)
        if key not in self._expected:
            jobs, ending = self._run((Part(shape),), is_distributed)
            self._expected[key] = read_run(jobs) if ending.kind == "finished" else ending
        return self._expected[key]

    def _run(self, run: Run, is_distributed: bool) -> tuple[list[list[Job]], Ending]:
        """Return the jobs of the parts of a run, up to the first that ended otherwise than it was to."""
        self._num_runs += 1
        folder = self._folder / f"run-{self._num_runs}"
        folder.mkdir()
        done: list[list[Job]] = []
        ending = Ending("finished")
        for number, part in enumerate(run):
            jobs = [
                Job(
                    data=str(self._folder),
                    folder=str(folder),
                    part=number,
                    shape=part.shape,
                    rank=rank,
                    is_distributed=is_distributed,
                    saved_at=part.saved_at,
                    stopped_at=part.stopped_at,
                    saved_after=part.saved_after,
                )
                for rank in range(part.shape.num_ranks)
            ]
            done.append(jobs)
            ending = self._stand.ask(jobs)
            if ending.kind != ("finished" if number == len(run) - 1 else "stopped"):
                break
        return done, ending
