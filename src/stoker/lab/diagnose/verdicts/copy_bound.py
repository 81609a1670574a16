"""copy-bound: copies to the device take the trainer's time."""

from __future__ import annotations

from stoker.engine.stats import Copies
from stoker.foundation.text import format_bytes, format_duration, format_percent
from stoker.lab.diagnose.advice import IMPORT, loader_call
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.evidence import describe_gain
from stoker.lab.diagnose.loader_profile import LoaderProfile

VERDICT = VerdictKind(
    name="copy-bound",
    meaning="batches take too long to reach the device",
    sign="the trainer's time is spent on copies to the device",
    remedy='[`device="cuda"`](device.md), or `pin_memory=True` and `non_blocking=True` together',
)


def diagnose(loader: LoaderProfile) -> Diagnosis:
    """Return the diagnosis of a loader whose copies to the device are waited for."""
    copies = loader.stats.copies
    assert copies is not None
    per_step = loader.copy_share * loader.period
    evidence = [
        f"{format_percent(loader.copy_share)} of the trainer's time was spent on {copies.num:,} copies to the device",
        f"{format_percent(copies.num_pageable / copies.num)} of them were from pageable memory, "
        f"{format_percent(copies.num_blocking / copies.num)} were blocking",
        f"a batch is {format_bytes(loader.batch_bytes)}",
    ]
    if copies.device_seconds is not None:
        evidence.append(f"a copy takes {format_duration(copies.device_seconds)} on the device")
    gain, gain_share = describe_gain(loader, per_step, loader.copy_share)
    return Diagnosis(
        verdict=VERDICT.name,
        says=f"copying batches to the device takes {format_duration(per_step)} of each step",
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=_advice(loader, copies),
    )


def _advice(loader: LoaderProfile, copies: Copies) -> list[str]:
    ours = "" if loader.is_ours else f"{IMPORT}, "
    advice = [f"{ours}{loader_call(device='cuda')}: copies ahead, from pinned memory, on a stream of its own"]
    if not loader.is_ours and copies.num_pageable:
        advice.append(
            f"or {loader_call(pin_memory=True)} and `batch.to(device, non_blocking=True)`: neither helps without the "
            "other"
        )
    elif not loader.is_ours and copies.num_blocking:
        advice.append("or `batch.to(device, non_blocking=True)`: memory is pinned, but copies are waited for")
    advice.append(
        "send small types and widen them on the device: `to=torch.float32`, `normalize=...` of stoker.DataLoader"
    )
    return advice
