"""Text to tokens on two cores: `stoker.prepare.tokens` beside the bare tokenizer and other tools.

    make peers                                  # once: an environment with the peers
    .venv/bin/python -m benchmarks prepare      # runs there, if it is there; --quick to see that all works
    .venv/bin/python -m benchmarks prepare --text book.txt --text code.txt    # this text instead of made-up text

Text is made at the first run and kept in `out/corpora`, with a tokenizer trained on it. Every contender gets the same
files of JSON lines, the same tokenizer and two processes, and is timed from the call to the return, its imports done
before; what it wrote is counted and then removed. The bare tokenizer has the text in memory and writes nothing.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.peers import is_installed
from benchmarks.prepare.text import Size, Text, made, measured
from benchmarks.prepare.tools import (
    BARE,
    BARE_GIGATOKEN,
    BARE_IDS,
    DATATROVE,
    LITDATA,
    MAP,
    NUM_WORKERS,
    OURS,
    OURS_GIGATOKEN,
    TOOLS,
    WITH_GIGATOKEN,
    Done,
    Job,
    timed,
)
from benchmarks.report import INK, OUT, Column, Report, Saved, Setting, only
from benchmarks.turns import Failures, run_alone
from stoker.lab.trial.rounds import Measurement, Series, in_turn, measurement_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES = ("tokenizers", "gigatoken", "datasets", "datatrove", "litdata", "pyarrow", "numpy", "stoker")
GOAL = 0.9
"""Of the bare tokenizer's speed."""
NUM_FILES, NUM_FILES_GIGATOKEN, NUM_ROUNDS, VOCAB_SIZE = 12, 120, 3, 32_000
NUM_FILES_QUICK, VOCAB_SIZE_QUICK = 2, 4_000
LIMIT_SECONDS = 600


def run(setting: Setting) -> Report:
    # One thread for each tokenizer, as there is a process for each core.
    os.environ.update({"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    console = Console()
    if setting.is_quick:
        text, num_files, num_many, num_rounds = Text(NUM_FILES_QUICK, VOCAB_SIZE_QUICK, setting.texts), 2, 2, 1
    else:
        text = Text(NUM_FILES_GIGATOKEN, VOCAB_SIZE, setting.texts)
        num_files, num_many, num_rounds = NUM_FILES, NUM_FILES_GIGATOKEN, NUM_ROUNDS
    made(text, notify=console.print)
    missing = [name for name, tool in TOOLS.items() if not is_installed(*tool.modules)]
    names = [name for name in TOOLS if name not in missing]
    failures = Failures(ours=(OURS, OURS_GIGATOKEN, BARE, BARE_GIGATOKEN))
    records = _compared(
        [name for name in names if name not in WITH_GIGATOKEN], text, num_files, num_rounds, BARE, failures
    )
    if all(name in names for name in WITH_GIGATOKEN):
        records += _compared(list(WITH_GIGATOKEN), text, num_many, num_rounds, BARE_GIGATOKEN, failures)
    return Report(
        name="prepare",
        title=f"Text to tokens with {NUM_WORKERS} processes",
        records=records,
        shows=_shows(records, missing, failures.reasons),
        limits=_limits(setting),
        draw=draw,
        columns=(
            Column("MB/s", lambda record: f"{record.more['megabytes_per_second']:.2f}"),
            Column("documents/s", lambda record: f"{record.more['documents_per_second']:,.0f}"),
            Column("tokens/s", lambda record: f"{record.more['tokens_per_second']:,.0f}"),
            Column("of the bare tokenizer", lambda record: f"{1 / (record.median_ratio or 1):.2f}"),
            Column("seconds", lambda record: f"{record.median / 1e6:.2f}"),
        ),
        extra={"vocab_size": text.vocab_size, "left_out": missing, "failed": failures.reasons},
        packages=PACKAGES,
    )


def _compared(
    names: list[str], text: Text, num_files: int, num_rounds: int, reference: str, failures: Failures
) -> list[Measurement]:
    size: Size = run_alone(measured, text, num_files)
    found: dict[str, list[Done]] = {name: [] for name in names}
    for number in range(num_rounds):
        for name in in_turn(names, number):
            done = failures.try_(name, "run", partial(_run, name, text, num_files))
            if done is not None:
                found[name].append(done)
    names = [name for name in names if len(found[name]) == num_rounds]
    counts = {name: {done.num_tokens for done in found[name]} for name in names}
    assert len(set().union(*counts.values())) == 1, f"contenders made different numbers of tokens: {counts}"
    base = [done.seconds * 1e6 for done in found[reference]]
    case = {"text": f"{size.num_bytes / 1e6:.0f} MB, {size.num_documents:,} documents"}
    return [
        measurement_of(
            name,
            Series([done.seconds * 1e6 for done in found[name]], [0.0] * num_rounds),
            base,
            case,
            "run",
            _more(found[name], size),
        )
        for name in names
    ]


def _run(name: str, text: Text, num_files: int) -> Done:
    """Return how a contender did. What it wrote is removed."""
    out = OUT.parent / "prepared"
    shutil.rmtree(out, ignore_errors=True)
    try:
        return run_alone(partial(timed, name, Job(text, num_files, out)), limit_seconds=LIMIT_SECONDS)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _more(dones: list[Done], size: Size) -> dict[str, Any]:
    seconds = median(done.seconds for done in dones)
    return {
        "megabytes_per_second": size.num_bytes / 1e6 / seconds,
        "documents_per_second": size.num_documents / seconds,
        "tokens_per_second": dones[0].num_tokens / seconds,
        "num_bytes": size.num_bytes,
        "num_documents": size.num_documents,
        "num_tokens": dones[0].num_tokens,
        "rounds": [done.seconds for done in dones],
    }


def _shows(records: list[Measurement], missing: list[str], failed: dict[str, str]) -> list[str]:
    sentences = []
    ours, bare = only(records, OURS)[0], only(records, BARE)[0]
    share = _share(ours)
    sentences.append(
        f"Hugging Face tokenizers: stoker {ours.more['megabytes_per_second']:.2f} MB/s and "
        f"{ours.more['documents_per_second']:,.0f} documents/s, {share:.2f} of the bare tokenizer "
        f"({bare.more['megabytes_per_second']:.2f} MB/s) on the same text and cores. "
        f"The goal of {GOAL} is {'reached' if share >= GOAL else 'not reached'}."
    )
    for name in (BARE_IDS, MAP, DATATROVE, LITDATA):
        for record in only(records, name):
            times = median(
                theirs / mine for mine, theirs in zip(ours.more["rounds"], record.more["rounds"], strict=True)
            )
            sentences.append(
                f"{name}: {record.more['megabytes_per_second']:.2f} MB/s, {_share(record):.2f} of the bare tokenizer; "
                f"stoker is {times:.2f} times as fast."
            )
    for record in only(records, OURS_GIGATOKEN):
        bare = only(records, BARE_GIGATOKEN)[0]
        sentences.append(
            f"gigatoken: stoker {record.more['megabytes_per_second']:.1f} MB/s and "
            f"{record.more['documents_per_second']:,.0f} documents/s, {_share(record):.2f} of bare gigatoken "
            f"({bare.more['megabytes_per_second']:.1f} MB/s)."
        )
    sentences.append("All made the same number of tokens.")
    if missing:
        sentences.append(f"Left out, because not installed: {', '.join(missing)}.")
    sentences += [f"Failed: {what}: {reason}." for what, reason in failed.items()]
    return sentences


def _share(record: Measurement) -> float:
    return 1 / record.median_ratio if record.median_ratio else 0.0


def _limits(setting: Setting) -> list[str]:
    return [
        "the speed on your text."
        if setting.texts
        else "the speed on your text: this one is made up, of 60,000 words, and tokenizers that remember words are "
        "flattered by it. `--text FILE` takes another.",
        "a disk: the text is in the page cache, and what is written goes there first.",
        "equal work. All read JSON lines and write tokens with one that ends each document, as two bytes each. stoker "
        "also hashes its inputs, writes checksums and borders of documents, and can be stopped; datasets.map first "
        "makes an Arrow file of the text; datatrove calls the tokenizer as its version does, with offsets. The bare "
        "tokenizer has the text in memory, cut to the size that suits it, and throws away what it finds; with "
        "`ids as arrays` it at least looks at it.",
        "more cores than two, or several threads in a process.",
    ]


_INKS = {
    OURS: INK["stoker"],
    OURS_GIGATOKEN: INK["stoker"],
    BARE: "black",
    BARE_IDS: "#555555",
    BARE_GIGATOKEN: "black",
    MAP: "#d8a800",
    DATATROVE: "#2b6ca3",
    LITDATA: "#792ee5",
}


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    parts = [
        [record for record in records if (record.contender in WITH_GIGATOKEN) == is_fast] for is_fast in (False, True)
    ]
    parts = [part for part in parts if part]
    figure, (axes,) = plt.subplots(
        1, len(parts), figsize=(2 + 5.4 * len(parts), 3.6), squeeze=False, layout="constrained"
    )
    for axis, part in zip(axes, parts):
        for place, record in enumerate(part):
            rate = record.more["megabytes_per_second"]
            axis.barh(place, rate, 0.7, color=_INKS[record.contender])
            axis.annotate(
                f"{rate:.1f}  ({_share(record):.2f})",
                (rate, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axis.set_yticks(range(len(part)), [record.contender for record in part], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.25)
        axis.set_title(part[0].case["text"], fontsize=10)
        axis.set_xlabel("MB/s of text (in brackets: of the tokenizer alone)")
        axis.grid(alpha=0.3, axis="x")
        axis.set_axisbelow(True)
    return figure
