"""decode-bound: workers are busy in native code, such as decoding. Also the verdict where Python was not ruled out."""

from __future__ import annotations

import re

from stoker.foundation.text import format_duration
from stoker.lab.diagnose.advice import (
    IMPORT,
    fewer_workers_than_cores,
    less_work,
    loader_call,
    most_sampled_place,
    read_stream_with,
)
from stoker.lab.diagnose.evidence import describe_work
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause
from stoker.lab.diagnose.worker_counts import next_concurrency

COPYING = re.compile(r"\.copy\(|\bnp\.array\(|\.astype\(|\.clone\(|\bbytes\(|\btorch\.tensor\(")
"""A line of source code that copies an array."""


def _says(loader: LoaderProfile) -> str:
    native = ", mostly in native code" if loader.gil_share is not None else ""
    return f"loading a batch takes {format_duration(loader.making)} on a core{native}"


def _evidence(loader: LoaderProfile) -> list[str]:
    unknown = "not profiled: `stoker doctor -- python ...` distinguishes Python from native code"
    return [*describe_work(loader), *([unknown] if loader.gil_share is None else [])]


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:
    cores = max(1, machine.cores)
    workers = next_concurrency(loader, cores)
    place = most_sampled_place(loader)
    copies = place is not None and COPYING.search(place) is not None
    advice = []
    if copies:
        advice.append(
            f"{place} copies: a view or `torch.from_numpy` shares the memory instead, and so does "
            "`astype(..., copy=False)`"
        )
    if workers <= loader.concurrency:
        advice += [*fewer_workers_than_cores(loader, cores), less_work(cores)]
    elif (readers := read_stream_with(loader, workers)) is not None:
        advice += readers
    else:
        threads = loader_call(num_workers=1, num_threads=workers)
        if loader.is_ours:
            advice.append(f"{threads}: native code runs on several cores of one process")
        else:
            advice.append(f"{loader_call(num_workers=workers)}: {loader.concurrency} of {cores} cores load batches now")
            advice.append(f"{IMPORT}, {threads}: the same with the memory of one process")
    advice.append(
        "preprocess once instead of in every epoch: decode, resize or tokenize ahead of time "
        "(`stoker prepare images`, `stoker prepare tokens`)"
        + (f"; most time is spent at {place}" if place and not copies else "")
    )
    advice.append("images: `stoker.images` decodes no more pixels than it needs, on the GPU with decode='auto'")
    return advice


VERDICT = LateBatchCause(
    name="decode-bound",
    meaning="workers are busy decoding, in native code",
    sign="workers are on a core, in native code that releases the GIL",
    remedy="more workers or threads, as far as there are cores; preprocess once, ahead of time: "
    "[`stoker prepare`](preparing.md), [images](images.md)",
    holds=lambda loader, machine: True,  # noqa: ARG005
    says=_says,
    evidence=_evidence,
    advice=_advice,
)
