"""Faults built on purpose, and whether the doctor names each: on a quiet machine, and on a busy one.

    .venv/bin/python -m benchmarks doctor --save      # half an hour; leave the machine alone meanwhile

Every trial is a fresh process that watches a loader for a few seconds, alone or beside programs that take all cores.
The doctor *names* a fault if its verdict is the fault's, or, where other programs take the cores, if the verdict says
so and the loader's own cause is the fault's. It is *wrong* if its verdict is another one.

What is done is written to `out/benchmarks/doctor.trials.json` after every trial. A run that was interrupted goes on
from there, unless the doctor has changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from torch.utils.data import DataLoader as TorchDataLoader

import stoker
from benchmarks.report import OUT, Column, Report, Saved, Setting
from benchmarks.turns import run_alone
from stoker.foundation.machine import num_cores
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.trial.child import describe_failure
from stoker.lab.trial.rounds import Measurement, Series, measurement_of
from tests.lab.pathologies import (
    Copying,
    Counting,
    Hashing,
    Huge,
    Leaking,
    Listing,
    Pooled,
    Quick,
    Sleeping,
    Stream,
    computing_step,
    item_by_item,
    slow_collate,
    slow_start,
)
from tests.lab.watching import watched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, Any] = {"torch": TorchDataLoader, "stoker": stoker.DataLoader}
NUM_ROUNDS = 3
QUIET, BUSY = "quiet", "busy"
NAMED, CROWDED, UNJUDGED, WRONG, FAILED = "named", "only the neighbors", "too little seen", "wrong", "failed"

FEWEST_BATCHES, MOST_TIMES = 16, 4
"""A loader is watched for longer until so many batches came, but for so many times as long at the most."""

DISTURBED_CORES, MOST_TRIES = 0.4, 3
"""What other programs may use of a machine that is to be quiet; and how often a trial is done if they use more."""


def _any(_: Diagnosis) -> bool:
    return True


def _says(*words: str) -> Callable[[Diagnosis], bool]:
    """Return whether a diagnosis has each of these words anywhere."""
    return lambda diagnosis: all(word in str(diagnosis) for word in words)


@dataclass(frozen=True, slots=True)
class Fault:
    """A loader, or a training loop, that is slow or wrong in one way."""

    verdict: str
    make: Callable[[Any], Any]
    """Return the loader, of torch's class or ours."""
    step: Any = 0.002
    """What the training does with a batch, or the seconds that it waits."""
    seconds: float = 2.0
    num_epochs: int = 1000
    is_named: Callable[[Diagnosis], bool] = _any
    """What has to be said besides the verdict, such as the line."""


FAULTS: dict[str, Fault] = {
    "keeps up": Fault("compute-bound", lambda kind: kind(Quick(), 16, num_workers=1), partial(computing_step, 0.02)),
    "disk": Fault(
        "storage-bound", lambda kind: kind(Sleeping(0.004), 8), is_named=_says("__getitem__", "num_workers=")
    ),
    "disk, 2 workers": Fault(
        "storage-bound", lambda kind: kind(Sleeping(0.008), 8, num_workers=2), is_named=_says("__getitem__")
    ),
    "native code": Fault("decode-bound", lambda kind: kind(Hashing(), 8), is_named=_says("sha256")),
    "native code, 1 worker": Fault(
        "decode-bound", lambda kind: kind(Hashing(), 8, num_workers=1), is_named=_says("sha256")
    ),
    "three copies of 12 MB": Fault(
        "decode-bound",
        lambda kind: kind(Copying(), 8, num_workers=1),
        is_named=_says("content.copy()", "shares the memory"),
    ),
    "Python": Fault("python-bound", lambda kind: kind(Counting(), 8), is_named=_says("total += number * number")),
    "Python, 1 worker": Fault(
        "python-bound", lambda kind: kind(Counting(), 8, num_workers=1), is_named=_says("pathologies.py")
    ),
    "a pool of Python threads": Fault("python-bound", lambda kind: kind(Pooled(), 8), is_named=_says("pool.map")),
    "slow collate": Fault(
        "collate-bound",
        lambda kind: kind(Quick(), 8, num_workers=1, collate_fn=slow_collate),
        is_named=_says("slow_collate"),
    ),
    "batches of 32 MB": Fault("transport-bound", lambda kind: kind(Huge(), None, num_workers=1), 0.0005),
    "slow start": Fault(
        "start-up-bound",
        lambda kind: kind(Quick(64), 16, num_workers=1, worker_init_fn=slow_start),
        0.005,
        is_named=_says("persistent_workers"),
    ),
    "a leak": Fault("memory-growth", lambda kind: kind(Leaking(), 8, num_workers=1), 0.04, 4.0),
    "a stream read twice": Fault(
        "duplicated-data", lambda kind: kind(Stream(), 16, num_workers=2), 0.001, num_epochs=1, is_named=_says("shard=")
    ),
    "a million Python objects": Fault(
        "compute-bound", lambda kind: kind(Listing(), 16, num_workers=1), 0.02, is_named=_says("copy-on-read")
    ),
    "6 workers for each core": Fault(
        "noisy-neighbour",
        lambda kind: kind(Counting(num_rounds=200_000), 8, num_workers=6 * num_cores()),
        partial(computing_step, 0.02),
        3.0,
        is_named=_says(f"num_workers={num_cores()}"),
    ),
    ".item() in a loop": Fault(
        "compute-bound", lambda kind: kind(Quick(), 64), item_by_item, is_named=_says("total += value.item()")
    ),
}


def trial(name: str, kind: str) -> dict[str, Any]:
    """Watch a faulty loader for some seconds; return the diagnosis, and whether it names the fault."""
    warnings.simplefilter("ignore")
    fault = FAULTS[name]
    loader = fault.make(KINDS[kind])
    run = watched(
        loader,
        step=fault.step,
        seconds=fault.seconds,
        num_epochs=fault.num_epochs,
        fewest_batches=FEWEST_BATCHES,
        most_seconds=MOST_TIMES * fault.seconds,
    )
    diagnosis = diagnose(run)
    return {
        "verdict": diagnosis.verdict,
        "own_cause": diagnosis.own_cause,
        "outcome": outcome(fault, diagnosis),
        "others_cores": fmean([moment.others_cores for moment in run.moments] or [0.0]),
        "text": str(diagnosis),
    }


def outcome(fault: Fault, diagnosis: Diagnosis) -> str:
    """Return whether a diagnosis names the fault, only the other programs, or something else."""
    found = (diagnosis.verdict, diagnosis.own_cause)
    if diagnosis.verdict == "nothing-seen":
        return UNJUDGED
    if fault.verdict in found or (fault.verdict == "compute-bound" and found == ("noisy-neighbour", None)):
        return NAMED if fault.is_named(diagnosis) else CROWDED if diagnosis.verdict == "noisy-neighbour" else WRONG
    return CROWDED if diagnosis.verdict == "noisy-neighbour" else WRONG


@contextmanager
def neighbors() -> Iterator[None]:
    """Let other programs take every core, as many times over as there are cores."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # they do not outlive the benchmark
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num_cores())]
    try:
        time.sleep(0.5)
        yield
    finally:
        for burner in burners:
            os.kill(burner.pid, signal.SIGKILL)
            burner.wait()


def run(setting: Setting) -> Report:
    console = Console()
    names = list(FAULTS)[:3] if setting.is_quick else list(FAULTS)
    cases = [
        Case(name, kind, load, number)
        for number in range(1 if setting.is_quick else NUM_ROUNDS)
        for name in names
        for kind in KINDS
        for load in (QUIET, BUSY)
    ]
    trials = Trials(OUT / "doctor.trials.json", is_kept=not setting.is_quick)
    began, num_done = time.perf_counter(), 0
    for at, case in enumerate(cases):
        if trials.get(case) is not None:
            continue
        one = tried(case)
        trials.add(case, one)
        num_done += 1
        left = (time.perf_counter() - began) / num_done * (len(cases) - at - 1) / 60
        summary = f"{one['verdict']}{': ' + one['own_cause'] if one.get('own_cause') else ''}"
        console.print(
            f"[dim]{at + 1} of {len(cases)}, {left:.0f} min left: {case.fault}, {case.kind}, {case.load}: {summary}, "
            f"{one['outcome']}[/]"
        )
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for case in cases:
        found.setdefault(case[:3], []).append(trials.get(case) or {})
    trials.end()
    records = [_record(name, kind, found) for name in names for kind in KINDS]
    return Report(
        name="doctor",
        title="Faults built on purpose, and whether the doctor names them",
        records=records,
        shows=shows(records),
        limits=limits(),
        draw=draw,
        columns=COLUMNS,
    )


class Case(NamedTuple):
    """One trial of many."""

    fault: str
    kind: str
    load: str
    number: int


def tried(case: Case) -> dict[str, Any]:
    """Return what comes of a trial. On a machine that is to be quiet and is not, it is done again.

    A trial that fails is a result, too: an hour of others is not lost with it.
    """
    found: dict[str, Any] = {}
    for _ in range(MOST_TRIES):
        try:
            if case.load == BUSY:
                with neighbors():
                    return dict(run_alone(trial, case.fault, case.kind))
            found = dict(run_alone(trial, case.fault, case.kind))
        except Exception as error:
            found = {"verdict": "none", "outcome": FAILED, "others_cores": 0.0, "text": describe_failure(error)}
        if found["others_cores"] <= DISTURBED_CORES and found["outcome"] != FAILED:
            return found
    return found


class Trials:
    """The trials that are done, in a file; those of another version of the doctor do not count."""

    def __init__(self, path: Path, *, is_kept: bool) -> None:
        self._path, self._is_kept, self._version = path, is_kept, _version()
        self._done: dict[str, dict[str, Any]] = {}
        if is_kept and path.exists():
            kept = json.loads(path.read_text())
            if kept["version"] == self._version:
                self._done = kept["trials"]

    def get(self, case: Case) -> dict[str, Any] | None:
        """Return what came of a trial; None if it is still to be done."""
        return self._done.get("/".join(map(str, case)))

    def add(self, case: Case, one: dict[str, Any]) -> None:
        """Keep what came of a trial."""
        self._done["/".join(map(str, case))] = one
        if self._is_kept:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".part")
            beside.write_text(json.dumps({"version": self._version, "trials": self._done}))
            beside.replace(self._path)

    def end(self) -> None:
        """Let the next run begin anew."""
        if self._is_kept:
            self._path.unlink(missing_ok=True)


def _version() -> str:
    """Return what tells versions of the doctor, its faults and the loaders apart: a digest of their source code."""
    digest = hashlib.sha256()
    for module in (stoker, sys.modules[Sleeping.__module__], sys.modules[__name__]):
        path = Path(module.__file__ or "")
        files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _record(name: str, kind: str, found: dict[tuple[str, str, str], list[dict[str, Any]]]) -> Measurement:
    # what was said is worth its place where it was not the fault
    more = {
        load: [
            {part: value for part, value in one.items() if part != "text" or one["outcome"] != NAMED}
            for one in found[name, kind, load]
        ]
        for load in (QUIET, BUSY)
    }
    return measurement_of(
        kind, Series([0.0], [0.0]), None, {"fault": name, "verdict": FAULTS[name].verdict}, "trial", more
    )


def _count(record: Measurement, load: str, outcome: str) -> int:
    return sum(one["outcome"] == outcome for one in record.more[load])


def _num_always(records: list[Measurement], kind: str, load: str) -> tuple[int, int]:
    """Return how many faults are named in most trials, and how many there are."""
    own = [record for record in records if record.contender == kind]
    return sum(2 * _count(record, load, NAMED) > len(record.more[load]) for record in own), len(own)


def shows(records: list[Measurement]) -> list[str]:
    """Return the findings."""
    sentences = []
    for load in (QUIET, BUSY):
        named = {kind: _num_always(records, kind, load) for kind in KINDS}
        counts = [f"{kind}: {num} of {num_faults}" for kind, (num, num_faults) in named.items()]
        trials = [one["outcome"] for record in records for one in record.more[load]]
        wrong = f"{trials.count(WRONG)} of {len(trials)} trials gave a wrong verdict"
        wrong += "".join(f", {trials.count(one)}: {one}" for one in (UNJUDGED, FAILED) if one in trials)
        machine = "On a quiet machine" if load == QUIET else "Beside programs that take all cores"
        sentences.append(f"{machine}, faults named in most trials: {'; '.join(counts)}. {wrong}.")
    return sentences


def limits() -> list[str]:
    """Return what must not be read from them."""
    return [
        "faults that come together, or that are milder than these: each takes most of the time.",
        "GPUs: copies to a device, and steps that wait for one, are not among them.",
        "machines with many cores; with two, workers and the trainer always compete.",
    ]


def _cell(load: str) -> Callable[[Measurement], str]:
    def format_cell(record: Measurement) -> str:
        counts = Counter(one["outcome"] for one in record.more[load])
        verdicts = sorted({one["verdict"] for one in record.more[load]})
        return ", ".join(f"{counts[name]} {name}" for name in _INKS if counts[name]) + (f" ({', '.join(verdicts)})")

    return format_cell


COLUMNS = (Column(QUIET, _cell(QUIET)), Column(BUSY, _cell(BUSY)))

_INKS = {NAMED: "#d3e6f5", CROWDED: "#fdf1c4", UNJUDGED: "#eeeeee", WRONG: "#f3a66e", FAILED: "#999999"}
_LEGEND = {
    NAMED: "named: the fault's verdict, with its line or its remedy",
    CROWDED: "only that other programs take the cores",
    UNJUDGED: "too little was seen to judge by",
    WRONG: "another verdict",
    FAILED: "the trial failed",
}


def draw(records: list[Measurement], _: Saved) -> Figure:
    """Draw faults by loader and by how busy the machine is, in the color of the most frequent outcome."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    names = list(dict.fromkeys(record.case["fault"] for record in records))
    columns = [(kind, load) for load in (QUIET, BUSY) for kind in KINDS]
    drawn, axis = plt.subplots(figsize=(9, 1.2 + 0.38 * len(names)), layout="constrained")
    for record in records:
        for load in (QUIET, BUSY):
            counts = Counter(one["outcome"] for one in record.more[load])
            verdicts = Counter(one["verdict"] for one in record.more[load])
            row, column = names.index(record.case["fault"]), columns.index((record.contender, load))
            ink = _INKS[counts.most_common(1)[0][0]]
            axis.add_patch(Rectangle((column - 0.48, row - 0.45), 0.96, 0.9, facecolor=ink, edgecolor="#bbbbbb"))
            text = f"{counts[NAMED]} of {len(record.more[load])}\n{verdicts.most_common(1)[0][0]}"
            axis.text(column, row, text, ha="center", va="center", fontsize=8, linespacing=1.0)
    titles = [f"{kind}\n{'quiet machine' if load == QUIET else 'all cores taken'}" for kind, load in columns]
    axis.set_xticks(range(len(columns)), titles)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.spines[:].set_visible(False)
    patches = [Patch(facecolor=ink, edgecolor="#bbbbbb") for ink in _INKS.values()]
    drawn.legend(patches, list(_LEGEND.values()), loc="outside lower center", ncols=1, fontsize=9)
    return drawn
