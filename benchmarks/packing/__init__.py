"""Documents into rows: planning and mapping beside peers, up to 10^8 documents, and batches of packed rows.

    make peers                                 # once: an environment with the peers
    .venv/bin/python -m benchmarks packing     # runs there, if it is there; --quick to see that all works
    .venv/bin/python -m benchmarks packing --save

*Planning* is from the lengths of documents to which documents are in which row, and back: seconds, and the share of
rows that is padding. All get the same lengths, log-normal; slow ones get fewer of them. *Scale* is the same from 10^4
to 10^8 documents, each in a process of its own. *Batches* are rows with all fields, from a store of 240 million tokens
(made at the first run, 1 GB in `out/corpora`), each contender in a process of its own (see `benchmarks.turns`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.packing import batches, planners, scale
from benchmarks.packing.batches import Form
from benchmarks.packing.findings import COLUMNS, GOAL_OF_CROPS, GOAL_OF_LIMIT, draw, limits, shows
from benchmarks.packing.limit import has_compiler
from benchmarks.packing.planners import PLANNERS, Planner
from benchmarks.peers import is_installed
from benchmarks.report import Report, Setting, power
from benchmarks.turns import run_alone, series_of, take_turns
from stoker.lab.trial.rounds import (
    BlockTimer,
    Measurement,
    RoundLimits,
    Series,
    TimedFunction,
    interleaved,
    measurement_of,
)

if TYPE_CHECKING:
    from benchmarks.tokens.corpus import Corpus

PACKAGES = ("torch", "trl", "llamafactory", "grain", "datasets", "pyarrow", "numpy", "stoker")
LENGTHS = (2048, 4096, 8192)
SCALE_LENGTH = 4096
FORMS = (Form(32, 2048, 0), Form(8, 4096, 0), Form(32, 2048, 2))
NUM_TOKENS = 240_000_000
"""More than caches hold, and few enough that every block is read, and checked, before the clock runs."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much to measure."""

    num_documents: int
    num_rounds: int
    sizes: tuple[int, ...]
    num_tokens: int
    turn_seconds: float
    num_turns: int


QUICK = Pace(20_000, 1, (10**4, 10**5), 20_000_000, 0.1, 1)
FULL = Pace(2_000_000, 4, tuple(10**digits for digits in range(4, 9)), NUM_TOKENS, 0.8, 5)


def run(setting: Setting) -> Report:
    from benchmarks.tokens import corpus as corpora

    pace = QUICK if setting.is_quick else FULL
    console = Console()
    missing = [name for name, planner in PLANNERS.items() if not is_installed(*planner.modules)]
    if not has_compiler():
        missing += [planners.IN_C, batches.IN_C]
    records = []
    for length in LENGTHS[: 1 if setting.is_quick else None]:
        console.print(f"[dim]planning rows of {length}[/dim]")
        records += _planned(length, pace, missing)
    console.print("[dim]many documents[/dim]")
    records += _scaled(pace, missing)
    corpus = corpora.Corpus(pace.num_tokens)
    corpora.made(corpus, ["store"], notify=console.print)
    opening = run_alone(batches.opened, corpus, FORMS[0].length)
    for form in FORMS[: 1 if setting.is_quick else None]:
        console.print(f"[dim]batches of {form}[/dim]")
        records += _batched(form, corpus, pace, missing)
    return Report(
        name="packing",
        title="Documents of log-normal lengths, packed into rows",
        records=records,
        shows=shows(records, opening, pace.num_tokens, missing),
        limits=limits(),
        draw=draw,
        columns=COLUMNS,
        extra={
            "num_documents": pace.num_documents,
            "lengths": {"log_normal_mean": planners.MEDIAN_LOG, "log_normal_sigma": planners.SPREAD},
            "num_tokens": pace.num_tokens,
            "opening": asdict(opening),
            "left_out": missing,
        },
        packages=PACKAGES,
    )


# ---------------------------------------------------------------- planning


def _planned(length: int, pace: Pace, missing: list[str]) -> list[Measurement]:
    lengths = planners.drawn(pace.num_documents)
    planners.check(lengths[: pace.num_documents // 10], length)
    wastes: dict[str, dict[str, Any]] = {}
    contenders = {
        name: _timed(name, planner, lengths, length, wastes)
        for name, planner in PLANNERS.items()
        if name not in missing
    }
    records = interleaved(
        contenders,
        case={"what": "planning", "case": f"rows of {length:,}"},
        unit="document",
        rounds=RoundLimits(seconds=0, max_rounds=pace.num_rounds, min_rounds=pace.num_rounds),
        reference=planners.IN_C if planners.IN_C in contenders else None,
    )
    for record in records:
        record.more.update(length=length, seconds_per_two_million=record.median * 2, **wastes[record.contender])
    return records


def _timed(
    name: str, planner: Planner, lengths: planners.Lengths, length: int, wastes: dict[str, dict[str, Any]]
) -> TimedFunction:
    some = lengths[: max(1000, int(len(lengths) * planner.share))]
    plan = planner.make(some, length)
    num_tokens = int(some.sum())
    ours = PLANNERS[planners.OURS].make(some, length)()

    def contender(clock: BlockTimer) -> None:
        with clock.timing(len(some)):
            num_rows = plan()
        wastes[name] = {
            "num_documents": len(some),
            "waste": 1 - num_tokens / (num_rows * length),
            "waste_of_ours": 1 - num_tokens / (ours * length),
        }

    return contender


# ---------------------------------------------------------------- scale


def _scaled(pace: Pace, missing: list[str]) -> list[Measurement]:
    records = []
    for num_documents in pace.sizes:
        tried = {planners.OURS: scale.planned_alone, planners.IN_C: scale.in_c_alone}
        for name, ask in tried.items():
            if name in missing:
                continue
            size = run_alone(ask, num_documents, SCALE_LENGTH)
            series = Series([size.seconds / num_documents * 1e6], [size.cpu_seconds / num_documents * 1e6])
            case = {"what": "scale", "case": f"{power(num_documents)} documents"}
            records.append(measurement_of(name, series, None, case, "document", asdict(size)))
    return records


# ---------------------------------------------------------------- batches


def _batched(form: Form, corpus: Corpus, pace: Pace, missing: list[str]) -> list[Measurement]:
    names = [name for name in batches.CONTENDERS if name not in missing]
    same = [name for name in (batches.IN_C, batches.OURS, batches.OURS_NUMPY) if name in names]
    if not form.num_workers:
        found = {name: run_alone(batches.digests, name, corpus, form, 20) for name in same}
        assert all(digests == found[batches.OURS] for digests in found.values()), "batches differ"
    turns = take_turns(
        {name: (batches.serving, name, corpus, form) for name in names},
        num_rounds=pace.num_turns,
        seconds=pace.turn_seconds,
        warm_up_seconds=0.0,
    )
    series = {name: series_of(taken) for name, taken in turns.items()}
    crops = series[batches.CROPS].wall
    limit = series[batches.IN_C].wall if batches.IN_C in names else None
    case = {"what": "batches", "case": str(form)}
    return [
        measurement_of(
            name,
            series[name],
            limit,
            case,
            "batch",
            {
                "batches_per_second": 1e6 / median(series[name].wall),
                "of_crops": median(theirs / ours for ours, theirs in zip(series[name].wall, crops)),
                "goal_of_limit": GOAL_OF_LIMIT * 1e6 / median(limit) if limit else None,
                "goal_of_crops": GOAL_OF_CROPS * 1e6 / median(crops),
                "rounds": series[name].wall,
            },
        )
        for name in names
    ]
