"""python-bound: workers are busy in Python code and hold the GIL."""

from __future__ import annotations

from math import ceil

from stoker.foundation.text import format_duration
from stoker.lab.diagnose.advice import (
    fewer_workers_than_cores,
    less_work,
    loader_call,
    most_sampled_place,
    read_stream_with,
)
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause
from stoker.lab.diagnose.worker_counts import next_concurrency


def _says(loader: LoaderProfile) -> str:
    return (
        f"loading a batch takes {format_duration(loader.making)}, mostly in Python code, of which each process runs "
        "one thread at a time (GIL)"
    )


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:
    cores = max(1, machine.cores)
    workers, now = next_concurrency(loader, cores), loader.concurrency
    readers = read_stream_with(loader, workers) if workers > now else None
    if readers is not None:
        advice = readers
    elif loader.has_threads and now > cores > 1:
        # more threads than cores are there to wait, too, so their number is kept
        several = loader_call(num_workers=cores, num_threads=ceil(now / cores))
        advice = [f"{several}: the same parallelism, but one GIL per process instead of one for all threads"]
    elif loader.has_threads:
        processes = loader_call(num_workers=min(cores, max(2, now)), num_threads=0)
        advice = [f"{processes}: processes instead of threads, which take turns with the GIL"]
    elif workers > now:
        advice = [f"{loader_call(num_workers=workers)}: each process has a GIL of its own; there are {cores} cores"]
    else:
        advice = [*fewer_workers_than_cores(loader, cores), less_work(cores)]
    place = most_sampled_place(loader)
    is_work = place is not None and ("collate" not in place or loader.collate_share >= 0.3)
    return [
        *advice,
        (f"most time is spent at {place}: " if is_work else "")
        + "use NumPy or torch on many values at a time, or preprocess ahead of time (`stoker prepare`)",
    ]


VERDICT = LateBatchCause(
    name="python-bound",
    meaning="workers are busy in Python code, one thread at a time per process (GIL)",
    sign="workers are on a core and hold the GIL; threads take turns",
    remedy="processes, not threads: `num_workers=`; NumPy instead of loops, at the line that is named",
    holds=lambda loader, machine: bool(loader.is_python),  # noqa: ARG005
    says=_says,
    advice=_advice,
)
