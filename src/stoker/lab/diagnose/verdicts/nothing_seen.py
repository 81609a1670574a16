"""nothing-seen: too few batches came to judge."""

from __future__ import annotations

from stoker.foundation.text import format_count
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind

VERDICT = VerdictKind(
    name="nothing-seen",
    meaning="there is too little to judge by",
    sign="no loader delivered more than a batch or two",
    remedy="watch for longer, or watch the process that trains",
)


def diagnose(num_batches: int) -> Diagnosis:
    """Return the diagnosis of a run that delivered too few batches."""
    if num_batches:
        says = f"{format_count(num_batches, 'batch', 'batches')} came: too few to judge by"
        advice = ["let it run a few seconds longer: it takes some batches after the first one"]
    else:
        says = "no loader delivered a batch while being watched"
        advice = [
            "watch the process that trains: `stoker doctor -- python train.py`, or `stoker.watch(loader)` in its code",
            "loaders other than torch's, torchdata's and Stoker's can be watched only by `stoker.watch(loader)`",
        ]
    return Diagnosis(verdict=VERDICT.name, says=says, advice=advice)
