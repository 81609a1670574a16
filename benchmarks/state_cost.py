"""What it costs to save the state at every step, and to go on from it."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import stoker
from benchmarks.report import Report, Saved, Setting, only, power
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT = 50.0
"""Microseconds that `state_dict` may take at each step."""
NUM_STEPS = 100
BATCH_SIZE = 8
STEPS = (10, 10**4, 10**6)
NUM_SAMPLES = BATCH_SIZE * (STEPS[-1] + 10)
PLANNED, SAMPLER, STATEFUL = "stoker, plan", "stoker, user's sampler", "StatefulDataLoader"


class Numbers(Dataset[int]):
    """As many samples as wanted, each its own position."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> int:
        return position


class Counting(IterableDataset[int]):
    """The same as a stream that cannot tell where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10**6))


def run(setting: Setting) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        path.write_text("".join(f"line {number}\n" for number in range(20_000)))
        records = _saving(path, setting)
    steps = STEPS[:2] if setting.is_quick else STEPS
    for step in steps:
        records += _resuming(step, setting)
    return Report(
        name="state_cost",
        title="Cost of the state: saved at every step, and resumed from",
        records=records,
        shows=_shows(records),
        limits=[
            "worker processes, whose states StatefulDataLoader has to collect and Stoker's plan has not.",
            "resuming with a small dataset: of these 8 million samples, samplers permute all first.",
            "the writing of the state to a disk.",
            "datasets with a costly state of their own: it is asked for at each batch.",
            "resuming of streams that cannot tell where they are: they are read again up to there.",
        ],
        draw=draw,
    )


# ---------------------------------------------------------------- saving


def _saving(path: Path, setting: Setting) -> list[Measurement]:
    numbers = Numbers(100_000)
    stream = stoker.Lines(path).stream()
    loaders: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        PLANNED: (stoker.DataLoader(numbers, 32, shuffle=True), json.dumps),
        "stoker, plan, 2 threads": (stoker.DataLoader(numbers, 32, shuffle=True, num_threads=2), json.dumps),
        SAMPLER: (stoker.DataLoader(numbers, 32, sampler=RandomSampler(numbers)), json.dumps),
        "stoker, stream that counts": (stoker.DataLoader(Counting(), 32), json.dumps),
        "stoker, stream of lines": (stoker.DataLoader(stream, 32), json.dumps),
        f"{STATEFUL}, shuffle": (StatefulDataLoader(numbers, 32, shuffle=True), pickle.dumps),  # holds a tensor
        f"{STATEFUL}, stream": (StatefulDataLoader(Counting(), 32), pickle.dumps),
    }
    pace = RoundLimits(0.01, min_rounds=2) if setting.is_quick else RoundLimits(10.0, max_rounds=100, min_rounds=20)
    records = []
    for is_dumped in (False, True):
        contenders = {name: _saved(loader, dump if is_dumped else None) for name, (loader, dump) in loaders.items()}
        what = "state_dict + dumps" if is_dumped else "state_dict"
        records += interleaved(contenders, case={"what": what}, unit="state", rounds=pace, reference=PLANNED)
    return records


def _saved(loader: Any, dump: Callable[[Any], Any] | None) -> TimedFunction:
    def timed(clock: BlockTimer) -> None:
        iterator = iter(loader)
        for _ in range(NUM_STEPS):
            next(iterator)
            with clock.timing():
                state = loader.state_dict()
                if dump is not None:
                    dump(state)
        if hasattr(iterator, "close"):
            iterator.close()

    return timed


# ---------------------------------------------------------------- resuming


def _resuming(step: int, setting: Setting) -> list[Measurement]:
    """From a saved state to the first batch, in a new loader. An epoch has a few more than 10^6 steps of 8 samples."""
    numbers = Numbers(NUM_SAMPLES)
    makers: dict[str, Callable[[], Any]] = {
        PLANNED: lambda: stoker.DataLoader(numbers, BATCH_SIZE, shuffle=True),
        SAMPLER: lambda: stoker.DataLoader(numbers, BATCH_SIZE, sampler=RandomSampler(numbers)),
        STATEFUL: lambda: StatefulDataLoader(numbers, BATCH_SIZE, shuffle=True),
    }
    contenders: dict[str, TimedFunction] = {}
    for name, make in makers.items():
        if setting.is_quick and name != PLANNED:
            continue
        state, following = _state_at(step, make)
        contenders[name] = _resumed(make, state, following)
    pace = RoundLimits(0.01, min_rounds=2) if setting.is_quick else RoundLimits(1.0, max_rounds=50, min_rounds=5)
    return interleaved(contenders, case={"what": "resume", "step": step}, unit="resume", rounds=pace, reference=PLANNED)


def _state_at(step: int, make: Callable[[], Any]) -> tuple[Any, list[int]]:
    """Go there for real, and return the state and the batch after it."""
    loader = make()
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    state = loader.state_dict()
    return state, next(iterator).tolist()


def _resumed(make: Callable[[], Any], state: Any, following: list[int]) -> TimedFunction:
    def timed(clock: BlockTimer) -> None:
        loader = make()
        with clock.timing():
            loader.load_state_dict(state)
            batch = next(iter(loader))
        assert batch.tolist() == following, "the resumed run goes on with another batch"

    return timed


# ---------------------------------------------------------------- telling


def _shows(records: list[Measurement]) -> list[str]:
    sentences = []
    for what in ("state_dict", "state_dict + dumps"):
        ours = [record for record in only(records, what=what) if record.contender.startswith("stoker")]
        dearest = max(ours, key=lambda record: record.median)
        plan = only(records, PLANNED, what=what)[0]
        peer = only(records, f"{STATEFUL}, shuffle", what=what)[0]
        # the limit is for state_dict; turning it into text is the trainer's business
        sides = {
            name: "under" if time < LIMIT else "over"
            for name, time in (("median", dearest.median), ("p90", dearest.p90))
        }
        summary = " and ".join(f"the {name} {side}" for name, side in sides.items())
        verdict = f": {summary} the limit of {LIMIT:.0f} µs" if what == "state_dict" else ""
        sentences.append(
            f"{what}: {plan.median:.1f} µs for a plan (p90 {plan.p90:.1f}); the dearest is {dearest.median:.1f} µs "
            f"(p90 {dearest.p90:.1f}, {dearest.contender}){verdict}; "
            f"StatefulDataLoader with a shuffle {peer.median:.1f} µs."
        )
    for step in sorted({record.case["step"] for record in only(records, what="resume")}):
        summary = ", ".join(
            f"{record.contender} {record.median / 1000:,.1f} ms" for record in only(records, what="resume", step=step)
        )
        sentences.append(f"resume at step {power(step)}, shuffled: {summary}. Each went on with the batch it should.")
    return sentences


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.6), layout="constrained", width_ratios=(1.5, 1))
    plain, dumped = only(records, what="state_dict"), only(records, what="state_dict + dumps")
    for place, (one, both) in enumerate(zip(plain, dumped)):
        ink = "#c8391b" if one.contender.startswith("stoker") else "#b8860b"
        left.barh(place - 0.19, one.median, 0.36, color=ink, label="state_dict" if not place else None)
        left.barh(
            place + 0.19,
            both.median,
            0.36,
            color=ink,
            alpha=0.5,
            label="and JSON (StatefulDataLoader: pickle)" if not place else None,
        )
        for shift, record in ((-0.19, one), (0.19, both)):
            left.plot([record.best, record.p90], [place + shift] * 2, color="black", linewidth=1)
            left.annotate(
                f"{record.median:.1f}",
                (record.p90, place + shift),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    left.axvline(LIMIT, color="black", linestyle=":", linewidth=1)
    left.annotate("limit for state_dict", (LIMIT, -0.55), xytext=(3, 0), textcoords="offset points", fontsize=8)
    left.set_yticks(range(len(plain)), [record.contender for record in plain], fontsize=8)
    left.invert_yaxis()
    left.margins(x=0.09)
    left.set_xlabel("µs per step (bar: median; line: best to p90 of rounds)")
    left.set_title("Saving the state at every step", fontsize=10)
    left.legend(fontsize=8, loc="lower right")
    for name, ink in ((PLANNED, "#c8391b"), (SAMPLER, "#d98c7a"), (STATEFUL, "#b8860b")):
        found = only(records, name, what="resume")
        right.plot(
            [record.case["step"] for record in found],
            [record.median / 1000 for record in found],
            "o-",
            color=ink,
            label=name,
        )
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("step in an epoch of 10^6 shuffled batches of 8")
    right.set_ylabel("ms from state to first batch (median)")
    right.set_title("Resuming", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    return figure
