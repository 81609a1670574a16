"""What the counters cost that are always on: epochs with them, and with them taken out.

Taken out means: nothing is noted, and each clock that is read on the way is replaced by a function that does nothing.
What is left of them then is calls of that function; they are counted and timed too, and added. What counting costs by
itself, on batches that nobody makes, is measured too: beside batches that take long, it is lost in the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

import stoker
from benchmarks.datasets import Same
from benchmarks.report import INK, Column, Report, Saved, Setting, only
from stoker.batch import builder
from stoker.batch.result import BatchResult
from stoker.engine.processes import messages
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved
from stoker.loader import iterator, stream
from stoker.loader.metrics.counters import Counters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ON, OFF, AGAIN = "counting", "not counting", "counting, again"
"""The last is the same as the first: what they differ by is noise."""
BATCH_SIZE = 32
NUM_CALLS = 5
"""Calls that are left when the clocks are taken out: of clocks, and of what notes a batch."""

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "1 thread": {"num_threads": 1},
    "2 workers": {"num_workers": 2},
}
SAMPLES: dict[str, Callable[[], Any]] = {
    "number": lambda: 7,
    "32 x 32 image": lambda: np.zeros((3, 32, 32), dtype=np.float32),
    "224 x 224 image": lambda: np.zeros((3, 224, 224), dtype=np.uint8),
}


def run(setting: Setting) -> Report:
    records: list[Measurement] = []
    alone = _alone_microseconds(2000, 2) if setting.is_quick else _alone_microseconds()
    for engine, options in ENGINES.items():
        for kind, sample in SAMPLES.items():
            records += _epochs(engine, options, kind, sample(), alone, setting)
    return Report(
        name="counters",
        title=f"Cost of the counters that are always on, batches of {BATCH_SIZE}",
        records=records,
        shows=_shows(records),
        limits=[
            "loaders whose samples take time: these cost nothing, so that the share of the counters is the largest it "
            "can be. A batch of photographs takes some 20 ms of decoding.",
            "`loader.stats()` itself, which takes milliseconds, when somebody asks.",
            "differences smaller than the noise: those of workers, which share two cores with the trainer, vary by "
            "more than what is looked for.",
            "the two clocks around unpacking a batch of a worker, which were not taken out.",
        ],
        draw=draw,
        columns=(
            Column("µs a batch, best", lambda record: f"{record.best:,.2f}"),
            Column("median", lambda record: f"{record.median:,.2f}"),
            Column("more, µs", lambda record: _format_value(record, "more_us")),
            Column("share", lambda record: _format_value(record, "share", percent=True)),
            Column("noise", lambda record: _format_value(record, "noise", percent=True)),
            Column("trainer's CPU, µs", lambda record: f"{record.median_cpu:,.2f}"),
            Column("more of it, µs", lambda record: _format_value(record, "more_cpu_us")),
        ),
    )


def _format_value(record: Measurement, name: str, *, percent: bool = False) -> str:
    value = record.more.get(name)
    return "" if value is None else f"{value:.2%}" if percent else f"{value:.2f}"


@contextmanager
def without_counting() -> Iterator[None]:
    """Take the counters out, in this process and those that are forked from it meanwhile."""
    clocks = SimpleNamespace(perf_counter=_still, process_time=_still)
    with ExitStack() as stack:
        for module in (iterator, stream, builder):
            stack.enter_context(patch.object(module, "perf_counter", _still))
        stack.enter_context(patch.object(messages, "time", clocks))
        stack.enter_context(patch.object(Counters, "note", _nothing))
        yield


def _still() -> float:
    return 0.0


def _nothing(*_: Any) -> None:
    return None


def _epochs(
    engine: str, options: dict[str, Any], kind: str, sample: Any, alone: float, setting: Setting
) -> list[Measurement]:
    num_batches = 16 if setting.is_quick else 400 if kind == "number" else 100
    dataset = Same(BATCH_SIZE * num_batches, sample)

    def epoch(is_on: bool) -> TimedFunction:
        loader: Any = stoker.DataLoader(dataset, BATCH_SIZE, **options)

        def timed(clock: BlockTimer) -> None:
            with ExitStack() as stack:
                if not is_on:
                    stack.enter_context(without_counting())
                batches = iter(loader)
                next(batches)  # workers are there by then
                with clock.timing(num_batches - 1):
                    for _ in batches:
                        pass

        return timed

    records = interleaved(
        {OFF: epoch(False), ON: epoch(True), AGAIN: epoch(True)},
        case={"engine": engine, "samples": kind},
        unit="batch",
        rounds=RoundLimits(0.01, min_rounds=2)
        if setting.is_quick
        else RoundLimits(40.0, max_rounds=400, min_rounds=30),
        reference=OFF,
    )
    off, on, again = (only(records, name)[0] for name in (OFF, ON, AGAIN))
    # ratios inside a round, whose median is taken: two cores drift, and the best of many is often chance
    ratios = [record.median_ratio - 1 for record in (on, again) if record.median_ratio is not None]
    share = fmean(ratios) + NUM_CALLS * _call_microseconds() / off.median
    noise = abs(ratios[0] - ratios[1])
    # of workers, the clock shows how they and the trainer happen to fall into step; what is computed, it hardly does
    more_cpu = fmean([on.median_cpu, again.median_cpu]) - off.median_cpu + NUM_CALLS * _call_microseconds()
    on.more.update(more_us=share * off.median, share=share, alone_us=alone, noise_us=noise * off.median, noise=noise)
    on.more.update(more_cpu_us=more_cpu)
    return records


def _alone_microseconds(num_batches: int = 20_000, num_rounds: int = 9) -> float:
    """Return what counting a batch takes in the trainer, with its share of the summing up: the best of some rounds."""
    made = BatchResult(None, 7, (), None, (1.0, 2.0, 0.1, 0.0, 0.1))  # type: ignore[arg-type]
    clock = time.perf_counter
    rounds = []
    for _ in range(num_rounds):
        counters = Counters(dict, rank=0, num_ranks=1)
        note = counters.note
        began = clock()
        for _ in range(num_batches):
            asked = clock()
            clock()
            clock()
            clock()
            note(made, BATCH_SIZE, asked, clock())
        rounds.append((clock() - began) / num_batches * 1e6)
    return min(rounds)


def _call_microseconds(num_calls: int = 200_000) -> float:
    began = time.perf_counter()
    for _ in range(num_calls):
        _still()
    return (time.perf_counter() - began) / num_calls * 1e6


def _shows(records: list[Measurement]) -> list[str]:
    alone = only(records, ON)[0].more["alone_us"]
    sentences = [
        f"By itself, counting a batch takes {alone:.2f} µs of the trainer's time: under 1 % of every batch that takes "
        f"longer than {100 * alone:.0f} µs."
    ]
    for engine in ENGINES:
        summary = [
            f"{record.more['more_us']:.1f} µs of {record.median:,.0f} (noise {record.more['noise_us']:.1f}; "
            f"{record.more['more_cpu_us']:.1f} µs of the trainer's CPU time) for "
            f"samples of {'one number' if record.case['samples'] == 'number' else record.case['samples']}"
            for record in only(records, ON, engine=engine)
        ]
        sentences.append(f"{engine}, by rounds: with counters a batch costs {', '.join(summary)} more.")
    return sentences


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    found = only(records, ON)
    labels = [f"{record.case['engine']}, {record.case['samples']}\n({record.median:,.0f} µs)" for record in found]
    shares = [100 * record.more["share"] for record in found]
    axis.barh(range(len(found)), shares, color=INK["stoker"])
    for place, (share, record) in enumerate(zip(shares, found)):
        axis.annotate(
            f"{share:.2f} %, {record.more['more_us']:.2f} µs, noise {record.more['noise_us']:.2f} µs",
            (max(share, 0.0), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.axvline(1.0, color="black", linestyle=":", linewidth=1.2, label="1 %")
    axis.set_yticks(range(len(found)), labels, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.45)
    axis.set_xlabel("what the counters add to a batch, in % of it (samples that cost nothing)")
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3, axis="x")
    axis.set_axisbelow(True)
    return figure
