"""storage-bound: workers are blocked on reading."""

from __future__ import annotations

from stoker.foundation.text import format_percent
from stoker.lab.diagnose.advice import IMPORT, loader_call, read_stream_with
from stoker.lab.diagnose.evidence import workers_were
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad, setting
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause, cpu_and_delay_shares
from stoker.lab.diagnose.worker_counts import MAX_BLOCKED, next_concurrency, wanted_concurrency


def _holds(loader: LoaderProfile, machine: MachineLoad) -> bool:
    return loader.blocked_share > cpu_and_delay_shares(loader, machine)[0]


def _says(loader: LoaderProfile) -> str:
    blocked = format_percent(loader.blocked_share)
    return f"{workers_were(loader)} blocked {blocked} of the time on disk, network or other I/O"


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:  # noqa: ARG001
    stats = loader.stats
    advice = _more_reads(loader)
    if stats.engine != "inline" and stats.making_seconds.p99 > 4 * stats.making_seconds.p50 > 0:
        prefetch = 2 * setting(stats, "prefetch_factor", 2)
        advice.append(f"{loader_call(prefetch_factor=prefetch)}: batch times vary; prefetching more smooths them out")
    mount = stats.facts.get("mount") or {}
    if stats.config.get("order") == "shuffle" and (mount.get("is_remote") or mount.get("is_rotational")):
        advice.append(f"{loader_call(order='window')} of stoker.DataLoader: shuffled, but near-sequential on disk")
    return [
        *advice,
        "if the data is many small files, put it into a store (`stoker prepare`), which is read in large pieces",
    ]


def _more_reads(loader: LoaderProfile) -> list[str]:
    reads, wanted = next_concurrency(loader, MAX_BLOCKED), wanted_concurrency(loader)
    if reads <= loader.concurrency:
        return [f"{loader.concurrency} reads run in parallel already: use faster storage, or read less"]
    readers = read_stream_with(loader, reads)
    if readers is not None:
        return readers
    threads = loader_call(num_workers=1, num_threads=reads)
    more = f"; a first step, as keeping up would take {wanted}" if wanted > reads else ""
    if loader.is_ours:
        return [f"{threads}: {reads} reads in parallel, in threads of one worker process{more}"]
    if loader.stats.kind == "torch":
        return [
            f"{loader_call(num_workers=reads)}: {reads} reads in parallel; blocked workers need memory, but no core"
            + more,
            f"{IMPORT}, {threads}: as many reads, in threads of one worker process",
        ]
    return [f"run {reads} reads in parallel, in threads or processes{more}"]


VERDICT = LateBatchCause(
    name="storage-bound",
    meaning="batches wait for the disk or the network",
    sign="workers are blocked: neither on a core nor ready for one",
    remedy='more reads in parallel: `num_threads=`, `num_workers=`; `order="window"` on spinning disks and network '
    "storage; a [store](stores.md) instead of many files",
    holds=_holds,
    says=_says,
    advice=_advice,
    needs_cores=False,
)
