"""transport-bound: batches are ready in time, and take too long from worker to trainer."""

from __future__ import annotations

from stoker.foundation.text import format_bytes, format_duration, format_percent
from stoker.lab.diagnose.advice import IMPORT, loader_call
from stoker.lab.diagnose.loader_profile import SMALL_BYTES, LoaderProfile, MachineLoad
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause

IDLE = 0.25
"""Workers that are busy for less than this share of the time are not what is waited for."""


def is_late_in_transit(loader: LoaderProfile) -> bool:
    """Whether the training loop waits for batches that are loaded already.

    Workers that are always busy are what is waited for, however long their batches take on the way.
    """
    is_on_its_way = (loader.hand_over_share or 0.0) > 0.5 and loader.occupancy < 0.7
    is_idle = loader.stats.engine == "processes" and loader.was_observed and loader.occupancy < IDLE
    return is_on_its_way or is_idle


def _says(loader: LoaderProfile) -> str:
    return (
        f"batches of {format_bytes(loader.batch_bytes)} are ready in time but take "
        f"{format_duration(loader.hand_over_seconds)} to reach the trainer"
    )


def _evidence(loader: LoaderProfile) -> list[str]:
    return [
        f"{format_percent(loader.hand_over_share or 0.0)} of the waiting was for batches that were already loaded",
        f"a batch is {format_bytes(loader.batch_bytes)}; it takes {format_duration(loader.making)} to load and "
        f"{format_duration(loader.hand_over_seconds)} from worker to trainer",
    ]


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:
    ours = f"{IMPORT}: workers collate straight into memory shared with the trainer"
    if loader.batch_bytes < SMALL_BYTES:  # the cost is per batch, however small it is
        advice = ["`batch_size`: larger batches, which take as long to hand over"]
        if loader.making < max(loader.hand_over_seconds, loader.wait):
            advice.insert(0, f"{loader_call(num_workers=0)}: a batch is loaded sooner than it is handed over")
        return advice if loader.is_ours else [*advice, f"{ours}, and send little more than its address"]
    small = "send small types and widen them afterwards: images as uint8, tokens as uint16"
    if not loader.is_ours:
        return [f"{ours}, and nothing is copied on the way", small]
    threads = max(2, min(4, max(1, machine.cores)))
    return [
        f"{small}: `DataLoader(..., device='cuda', to=torch.float32)` widens on the device",
        "objects other than tensors and arrays are pickled one by one: put lists of them into arrays",
        f"{loader_call(num_workers=0, num_threads=threads)}: threads share the trainer's memory",
    ]


VERDICT = LateBatchCause(
    name="transport-bound",
    meaning="batches are ready in time, but take too long to reach the trainer",
    sign="workers are idle; finished batches take long to reach the trainer",
    remedy="smaller types (uint8, uint16, widened with `to=`); Stoker's loader, whose batches are "
    "[written where they are needed](../concepts/slots.md); for batches of a few bytes, `num_workers=0` or larger ones",
    holds=lambda loader, machine: is_late_in_transit(loader),  # noqa: ARG005
    says=_says,
    evidence=_evidence,
    advice=_advice,
    is_parallel=False,
)
