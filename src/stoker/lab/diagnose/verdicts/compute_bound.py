"""compute-bound: the loader keeps up."""

from __future__ import annotations

from stoker.foundation.text import format_duration
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.evidence import describe_step, describe_waiting
from stoker.lab.diagnose.loader_profile import LoaderProfile

VERDICT = VerdictKind(
    name="compute-bound",
    meaning="the loader keeps up",
    sign="the training loop hardly waits",
    remedy="nothing: the loader keeps up",
)


def diagnose(loader: LoaderProfile) -> Diagnosis:
    """Return the diagnosis of a loader that keeps up."""
    if not loader.period:
        why = f"first batches arrive within {format_duration(max(loader.stats.first_batch_seconds, default=0.0))}"
    elif loader.wait_share >= 0.1:  # of almost nothing
        why = f"a batch arrives within {format_duration(loader.wait)}"
    else:
        why = f"{format_duration(loader.step)} of each {format_duration(loader.period)} step is your training code"
    evidence = [*describe_waiting(loader), *describe_step(loader)]
    return Diagnosis(verdict=VERDICT.name, says=f"{VERDICT.meaning}: {why}", evidence=evidence)
