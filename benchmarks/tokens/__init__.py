"""Rows of tokens and labels from a corpus of 720 million tokens, beside other loaders and the physical limit.

    make peers                                 # once: an environment with the peers
    .venv/bin/python -m benchmarks tokens      # runs there, if it is there; --quick to see that all works
    .venv/bin/python -m benchmarks tokens --save

The corpus is made at the first run, 1.4 GB in each format (about 9 GB in `out/corpora`, which `make clean` removes).
Compared are batches of 32 rows of 2,048 tokens with labels, both as int64: shuffled and in order, inline and with two
worker processes; the time until the first batch; the memory of the workers; and resuming at step 10,000. Each
contender runs in a process of its own (see `benchmarks.turns`), and torch has one thread in all of them.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.peers import is_installed
from benchmarks.report import Report, Setting
from benchmarks.tokens.corpus import LENGTH, NUM_TOKENS, NUM_TOKENS_QUICK, Corpus, made
from benchmarks.tokens.findings import COLUMNS, draw, limits, shows
from benchmarks.tokens.limit import has_compiler
from benchmarks.tokens.loaders import BATCH_SIZE, CONTENDERS, IN_C, IN_NUMPY, PREFETCH_FACTOR, Order
from benchmarks.tokens.measuring import Pace, failures_of_peers, starts, turns, uses
from benchmarks.tokens.trials import Start, Use
from benchmarks.turns import Turn, series_of
from stoker.lab.trial.rounds import Measurement, Series, measurement_of

PACKAGES = (
    "torch",
    "torchdata",
    "litdata",
    "datasets",
    "grain",
    "mosaicml-streaming",
    "megatron-core",
    "pyarrow",
    "numpy",
    "stoker",
)
ORDERS = (Order(True, 0), Order(True, 2), Order(False, 0), Order(False, 2))
QUICK = Pace(num_rounds=1, seconds=0.1, warm_up_seconds=0.2, num_starts=1, resume_step=200, num_batches=100)
FULL = Pace(num_rounds=5, seconds=1.0, warm_up_seconds=3.0, num_starts=5, resume_step=10_000, num_batches=2_000)


def run(setting: Setting) -> Report:
    pace = QUICK if setting.is_quick else FULL
    corpus = Corpus(NUM_TOKENS_QUICK if setting.is_quick else NUM_TOKENS)
    console = Console()
    missing = [name for name, contender in CONTENDERS.items() if not is_installed(*contender.modules)]
    if not has_compiler():
        missing.append(IN_C)
    names = [name for name in CONTENDERS if name not in missing]
    made(corpus, sorted({CONTENDERS[name].format_name for name in names}), notify=console.print)

    failures, records = failures_of_peers(), []
    limit = IN_C if IN_C in names else IN_NUMPY
    for order in ORDERS[: 2 if setting.is_quick else None]:
        console.print(f"[dim]{order}[/dim]")
        those = [name for name in names if _takes_part(name, order)]
        taken, wrong = turns(those, corpus, order, pace, failures)
        assert not wrong, f"tokens that are not in the corpus come from {', '.join(wrong)}"
        case = {
            "what": "batches",
            "order": "shuffled" if order.is_shuffled else "sequential",
            "workers": order.num_workers,
        }
        records += _turned(taken, case, limit)
    loaders = [name for name in names if not CONTENDERS[name].is_limit]
    console.print("[dim]starting and resuming[/dim]")
    for (kind, workers), begun in starts(loaders, corpus, pace, failures).items():
        records += _begun(begun, {"what": kind, "order": "shuffled", "workers": int(workers)})
    console.print("[dim]memory[/dim]")
    records += _used(uses(loaders, corpus, pace, failures))
    return Report(
        name="tokens",
        title=f"Batches of {BATCH_SIZE} rows of {LENGTH} tokens with labels, of {corpus.num_tokens // 10**6} million",
        records=records,
        shows=shows(records, pace.resume_step, missing, failures.reasons, failures.num_hung),
        limits=limits(),
        draw=draw,
        columns=COLUMNS,
        extra={
            "num_tokens": corpus.num_tokens,
            "batch_size": BATCH_SIZE,
            "length": LENGTH,
            "prefetch_factor": PREFETCH_FACTOR,
            "resume_step": pace.resume_step,
            "left_out": missing,
            "failed": failures.reasons,
            "hung": failures.num_hung,
        },
        packages=PACKAGES,
    )


def _takes_part(name: str, order: Order) -> bool:
    contender = CONTENDERS[name]
    if not order.is_shuffled and not contender.has_sequence:
        return False
    return contender.is_limit or contender.has_workers or not order.num_workers


def _turned(taken: dict[str, list[Turn]], case: dict[str, Any], limit: str) -> list[Measurement]:
    series = {name: series_of(found) for name, found in taken.items()}
    return [
        measurement_of(
            name,
            series[name],
            series[limit].wall,
            case,
            "batch",
            {
                "batches_per_second": 1e6 / median(series[name].wall),
                "rounds": series[name].wall,
                "num_batches": sum(turn.num_batches for turn in taken[name]),
            },
        )
        for name in taken
    ]


def _begun(begun: dict[str, list[Start]], case: dict[str, Any]) -> list[Measurement]:
    return [
        measurement_of(
            name,
            Series([one.seconds * 1e6 for one in found], [one.cpu_seconds * 1e6 for one in found]),
            None,
            case,
            "start",
            {
                "milliseconds": median(one.seconds for one in found) * 1e3,
                "rounds": [one.seconds * 1e6 for one in found],
            },
        )
        for name, found in begun.items()
    ]


def _used(used: dict[str, Use]) -> list[Measurement]:
    case = {"what": "memory", "order": "shuffled", "workers": 2}
    return [
        measurement_of(
            name,
            Series([found.seconds * 1e6], [found.cpu_seconds * 1e6]),
            None,
            case,
            "run",
            {
                "private_bytes": found.private_bytes,
                "pss_bytes": found.pss_bytes,
                "trainer_bytes": found.trainer_bytes,
                "num_processes": found.num_processes,
            },
        )
        for name, found in used.items()
    ]
