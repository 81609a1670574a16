"""A state that moves on to a corpus that has grown since: at the end of an epoch, and only if asked to."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from stoker.errors import StateError
from stoker.loader.state.plan_progress import PlanProgress
from stoker.loader.state.progress import check_sums

_log = logging.getLogger("stoker")


def next_epoch(state: dict[str, Any], progress: PlanProgress) -> dict[str, Any]:
    """Return the state as of the beginning of the epoch that comes next, for a plan of the samples there are now.

    `progress` is that of the grown corpus. `StateError` in the middle of an epoch.
    """
    before, now = int(state["plan"]["num_samples"]), progress.plan.num_samples
    plan = replace(progress.plan, num_samples=before)
    old = PlanProgress(plan, 0, rank=progress.rank, num_ranks=progress.num_ranks, in_order=progress.in_order)
    old = old.resumed(state)
    check_sums(old, state)
    if not old.is_at_start and not old.is_at_end:
        raise StateError(
            f"the state is in the middle of epoch {old.epoch} ({old.ordinal:,} of {before:,} samples), and a run "
            "can move on to a grown corpus only between two epochs\n"
            "hint: finish the epoch on the corpus as it was (prepare the inputs from then again), and load the "
            "state of its end with grown=True"
        )
    moved = dict(state)
    moved.pop("checksums", None)  # they were compared, and are not those of the epoch that comes next
    if not old.is_at_start:
        old.finish()
        moved |= {"epoch": old.epoch, "step": old.step, "position": 0, "ahead": []}
    _log.warning(
        "the corpus has grown since the state was taken: from %s to %s samples; epoch %d begins with all of them",
        f"{before:,}",
        f"{now:,}",
        old.epoch,
    )
    return moved | {"has_grown": True}
