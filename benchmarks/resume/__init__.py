"""Kill and resume training runs with many loaders, and count the samples that are lost or repeated.

    make peers                                 # once: an environment with the peers
    .venv/bin/python -m benchmarks resume      # uses that environment if it exists; --quick for a smoke test
    .venv/bin/python -m benchmarks resume --save

A *run* is three epochs of 1,000 samples, with a checkpoint every five steps. Its processes are killed (SIGKILL) at
steps drawn from a fixed seed, at most four steps after a checkpoint. New processes resume from that checkpoint, with
the same number of workers and ranks or another one. Each step's samples are compared with those of an uninterrupted
run, which is done twice to make sure that it is reproducible. Each contender is used as its documentation says
(`loaders`, `trainers`; `contenders` cites it).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.peers import is_installed
from benchmarks.report import Report, Setting
from benchmarks.resume.contenders import CONTENDERS, LIMIT_SECONDS, Ending, serving
from benchmarks.resume.jobs import NUM_EPOCHS, NUM_SAMPLES, SAVE_EVERY, SEED, Job, Shape
from benchmarks.resume.judging import FAILED, HANGS, Step, Verdict, judge, read_firsts, read_lines, read_run
from benchmarks.resume.scenarios import Part, Run, Scenario, scenarios
from benchmarks.resume.summary import COLUMNS, draw, format_contender, limits, shows
from benchmarks.turns import open_child
from stoker.lab.trial.child import Child
from stoker.lab.trial.rounds import Measurement, Series, measurement_of

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
RUN_SECONDS = 3 * LIMIT_SECONDS
"""Time limit for one part of a run, with processes that hang and their cleanup."""


def run(setting: Setting) -> Report:
    console = Console()
    missing = [name for name, contender in CONTENDERS.items() if not is_installed(*contender.modules)]
    chosen = scenarios(is_quick=setting.is_quick)
    records = []
    for name in CONTENDERS:
        if name not in missing:
            found = run_contender(name, chosen)
            console.print(f"[dim]{format_contender(found)}[/dim]", soft_wrap=True)
            records += found
    return make_report(records, missing, chosen)


def make_report(records: list[Measurement], missing: Sequence[str], chosen: Sequence[Scenario]) -> Report:
    """Return the report of these records."""
    order = [scenario.name for scenario in chosen]
    records = sorted(records, key=lambda record: order.index(record.case["scenario"]))
    return Report(
        name="resume",
        title="Samples lost and repeated when training is killed and resumed",
        records=records,
        shows=shows(records, missing),
        limits=limits(),
        draw=draw,
        columns=COLUMNS,
        extra={
            "num_samples": NUM_SAMPLES,
            "num_epochs": NUM_EPOCHS,
            "save_every": SAVE_EVERY,
            "seed": SEED,
            "documented": {name: contender.documented for name, contender in CONTENDERS.items()},
            "left_out": list(missing),
        },
        packages=PACKAGES,
    )


def run_contender(name: str, chosen: Sequence[Scenario]) -> list[Measurement]:
    """Run a contender through each scenario and return the records."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_child(serving, name, folder, limit_seconds=RUN_SECONDS) as child,
    ):
        trials = _Trials(name, child, Path(folder))
        return [_record(name, scenario, trials) for scenario in chosen]


def _record(name: str, scenario: Scenario, trials: _Trials) -> Measurement:
    verdicts = [trials.verdict(run, is_distributed=scenario.is_distributed) for run in scenario.runs]
    kinds = Counter(verdict.kind for verdict in verdicts)
    more: dict[str, Any] = {
        "lost": sum(verdict.lost for verdict in verdicts),
        "repeated": sum(verdict.repeated for verdict in verdicts),
        "kinds": dict(kinds),
        **_reads(verdicts),
        "runs": [
            {"parts": [asdict(part) for part in run], **_to_dict(verdict)}
            for run, verdict in zip(scenario.runs, verdicts)
        ],
    }
    untimed = [0.0] * len(verdicts)  # nothing is timed: a run may share the machine with other work
    return measurement_of(name, Series(untimed, untimed), None, {"scenario": scenario.name}, "run", more)


def _to_dict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as it is saved: with the reads before each first batch, and without the times."""
    found = asdict(verdict)
    found["first_reads"] = [first["reads"] for first in found.pop("firsts")]
    return found


def _reads(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return the median number of samples read before the first batch, at the start of a run and after a resume."""
    found: dict[str, Any] = {}
    for name, firsts in (
        ("start", [verdict.firsts[0] for verdict in verdicts if verdict.firsts]),
        ("resume", [first for verdict in verdicts for first in verdict.firsts[1:]]),
    ):
        reads = [first.reads for first in firsts if first.reads is not None]
        if reads:
            found[f"{name}_reads"] = median(reads)
    return found


class _Trials:
    """The runs of one contender."""

    def __init__(self, name: str, child: Child, folder: Path) -> None:
        self._child, self._folder = child, folder
        self._is_one_stream = CONTENDERS[name].is_one_stream
        self._expected: dict[tuple[Shape, bool], list[Step] | Ending] = {}
        self._num_runs = 0

    def verdict(self, run: Run, *, is_distributed: bool) -> Verdict:
        """Return how a run differs from an uninterrupted one of the shape that it starts with."""
        expected = self._uninterrupted(run[0].shape, is_distributed)
        if isinstance(expected, Ending):
            return Verdict(HANGS if expected.kind == "hang" else FAILED, text=f"uninterrupted: {expected.text}")
        if self._is_one_stream:
            run = tuple(part.as_one_stream() for part in run)
        jobs, ending = self._run(run, is_distributed)
        if ending.kind != "finished":  # one that ends early counts as finished: the rest of its samples is lost
            num_steps = sum("ids" in line for line in read_lines(jobs[-1][0]))
            return Verdict(HANGS if ending.kind == "hang" else FAILED, text=ending.text, steps_before=num_steps)
        verdict = judge(read_run(jobs), expected, by_epoch=not self._is_one_stream)
        return replace(verdict, firsts=read_firsts(jobs))

    def _uninterrupted(self, shape: Shape, is_distributed: bool) -> list[Step] | Ending:
        """Return the steps of an uninterrupted run, the same in two runs, or how it ended instead."""
        key = (shape, is_distributed)
        if key not in self._expected:
            found: list[list[Step]] = []
            for _ in range(2):
                jobs, ending = self._run((Part(shape),), is_distributed)
                if ending.kind != "finished":
                    self._expected[key] = ending
                    return ending
                found.append(read_run(jobs))
            first, second = found
            self._expected[key] = first if first == second else Ending("error", "two runs with the same seed differ")
        return self._expected[key]

    def _run(self, run: Run, is_distributed: bool) -> tuple[list[list[Job]], Ending]:
        """Return the jobs of the parts of a run, up to the first with an unexpected ending, and the last ending."""
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
            ending = self._child.ask(jobs)
            if ending.kind != ("finished" if number == len(run) - 1 else "stopped"):
                break
        return done, ending
