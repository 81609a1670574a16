"""duplicated-data: workers of an iterable dataset read the same samples."""

from __future__ import annotations

from stoker.engine.stats import Stats
from stoker.foundation.text import format_percent
from stoker.lab.diagnose.advice import IMPORT, loader_call
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.loader_profile import setting

VERDICT = VerdictKind(
    name="duplicated-data",
    meaning="workers read the same data",
    sign="the same samples of a stream come from several workers",
    remedy='`shard="auto"`, or a dataset that looks at `get_worker_info()`',
)

MIN_SHARE = 0.2
"""Share of repeated samples from which it is not a coincidence."""


def diagnose(loaders: list[Stats]) -> Diagnosis | None:
    """Return the diagnosis if the workers of a loader read the same data; None if they do not."""
    worst = max(loaders, key=lambda stats: stats.duplicate_share or 0.0)
    share = worst.duplicate_share or 0.0
    if share < MIN_SHARE:
        return None
    evidence = [
        f"{format_percent(share)} of the samples compared had come from another of the {setting(worst, 'num_workers')} "
        "workers before"
    ]
    if worst.facts.get("looked_at_worker") is False:
        evidence.append("the dataset never calls torch.utils.data.get_worker_info(): each worker reads all of it")
    own = "or let the dataset read its share: every `num_workers`-th sample, starting at `get_worker_info().id`"
    once = f"{loader_call(shard='auto')}: every sample comes once, whatever the number of workers and ranks"
    return Diagnosis(
        verdict=VERDICT.name,
        says=f"every sample comes about {1 / max(1e-9, 1 - share):.1f} times per epoch: {VERDICT.meaning}",
        evidence=evidence,
        gain=f"{format_percent(share)} of each epoch is repetition; without it, an epoch is that much shorter",
        gain_share=share,
        advice=[once, own]
        if worst.kind == "stoker"
        else [f"{IMPORT}, {once}", own, "or `num_workers=1`, if one is enough"],
    )
