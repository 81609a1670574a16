"""collate-bound: most of the work is putting samples together."""

from __future__ import annotations

from stoker.foundation.text import format_percent
from stoker.lab.diagnose.advice import IMPORT, loader_call, most_sampled_place, read_stream_with
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause
from stoker.lab.diagnose.worker_counts import next_concurrency


def is_mostly_collating(loader: LoaderProfile) -> bool:
    """Whether half of the work is collating, and not because of waiting for a core."""
    return loader.collate_share >= 0.5 and loader.delay_in_work_share < 0.5


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:
    name = loader.stats.config.get("collate_fn")
    ours = "" if loader.is_ours else f"{IMPORT}: "
    in_place = f"{ours}without collate_fn, samples are written straight into the batch"
    if name in (None, "default_collate"):
        advice = [] if loader.is_ours else [f"{ours}samples are written straight into the batch"]
        advice.append("return few, large arrays per sample: each field of each sample is collated separately")
    else:
        place = most_sampled_place(loader)
        advice = [
            f"`{name}` is yours: combine all samples in one call (`np.stack`, `torch.stack`), not one by one"
            + (f"; most time is spent at {place}" if place else ""),
            in_place,
        ]
    advice.append("a dataset with `__getitems__(positions)` can return whole batches itself")
    cores = max(1, machine.cores)
    workers = next_concurrency(loader, cores)
    if workers > loader.concurrency or loader.stats.engine == "inline":
        more = f"{loader_call(num_workers=workers)}: collates in parallel with the training; there are {cores} cores"
        advice += read_stream_with(loader, workers) or [more]
    return advice


VERDICT = LateBatchCause(
    name="collate-bound",
    meaning="workers are busy putting samples together",
    sign="most of the loading time is collating",
    remedy="leave out your `collate_fn`, or let it handle all samples in one call",
    holds=lambda loader, machine: is_mostly_collating(loader),  # noqa: ARG005
    says=lambda loader: f"{format_percent(loader.collate_share)} of the time to load a batch is spent collating it",
    advice=_advice,
)
