"""start-up-bound: epochs are mostly their first batch."""

from __future__ import annotations

from statistics import fmean

from stoker.foundation.text import format_count, format_duration, format_percent
from stoker.lab.diagnose.advice import loader_call
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.loader_profile import LoaderProfile, batches_per_epoch, recurring_first_batches

VERDICT = VerdictKind(
    name="start-up-bound",
    meaning="most of the time is spent on first batches",
    sign="most of an epoch is its first batch",
    remedy="`persistent_workers=True`, fork, longer epochs",
)

MIN_SECONDS = 5e-3
"""First batches that come sooner are not slow."""


def loss(loader: LoaderProfile) -> float:
    """Return the share of the time lost to first batches."""
    firsts = recurring_first_batches(loader.stats)
    return loader.start_up_share if firsts and fmean(firsts) > MIN_SECONDS else 0.0


def diagnose(loader: LoaderProfile) -> Diagnosis:
    """Return the diagnosis of a loader whose first batches take most of the time."""
    stats = loader.stats
    first, num_batches = fmean(recurring_first_batches(stats)), batches_per_epoch(stats)
    epoch = format_duration(first + max(0.0, num_batches - 1) * loader.period)
    evidence = [
        f"the first batch of an epoch took {format_duration(first)}, others {format_duration(loader.wait)}",
        f"an epoch has {format_count(round(num_batches), 'batch', 'batches')} and takes {epoch}; observed: "
        f"{format_count(stats.num_iterations, 'epoch')}",
    ]
    if num_workers := stats.config.get("num_workers"):
        kept = "stay alive between epochs" if stats.config.get("persistent_workers") else "are restarted every epoch"
        method = stats.config.get("start_method")
        evidence.append(f"{num_workers} workers {kept}" + (f", by {method}" if method not in (None, "fork") else ""))
    share = format_percent(loader.start_up_share)
    return Diagnosis(
        verdict=VERDICT.name,
        says=f"{share} of an epoch is spent waiting for its first batch, {format_duration(first)}",
        evidence=evidence,
        gain=f"up to {format_duration(first)} of {epoch} per epoch, {share} of the time",
        gain_share=loader.start_up_share,
        advice=_advice(loader),
    )


def _advice(loader: LoaderProfile) -> list[str]:
    config = loader.stats.config
    advice = []
    if config.get("num_workers") and not config.get("persistent_workers"):
        advice.append(f"{loader_call(persistent_workers=True)}: workers stay alive from epoch to epoch")
    if config.get("start_method") in ("spawn", "forkserver"):
        advice.append(
            f"{loader_call(multiprocessing_context='fork')} starts workers without importing everything again; "
            "or import less at the top of the script"
        )
    if not config.get("num_workers"):
        advice.append("check what the dataset does at the start of each iteration, or when it reads its first sample")
    elif config.get("persistent_workers"):
        advice.append("check what `worker_init_fn` and the first sample do: opening files, loading models")
    else:
        advice.append("make `worker_init_fn` and unpickling the dataset faster: they run in every worker")
    return [*advice, "make epochs longer: several passes over the data in one epoch, or fewer and larger ones"]
