"""Batches come late: find the cause, and describe it with what all causes have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.foundation.text import format_duration
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.evidence import describe_gain, describe_waiting, describe_work
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad
from stoker.lab.diagnose.worker_counts import MAX_BLOCKED, next_concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBatchCause(VerdictKind):
    """A verdict that explains why batches come late."""

    holds: Callable[[LoaderProfile, MachineLoad], bool]
    """Whether this is the cause, given that the causes before it in `verdict.LATE_BATCH_CAUSES` are not."""
    says: Callable[[LoaderProfile], str]
    advice: Callable[[LoaderProfile, MachineLoad], list[str]]
    evidence: Callable[[LoaderProfile], list[str]] = describe_work
    is_parallel: bool = True
    """Whether more workers or threads help."""
    needs_cores: bool = True
    """Whether more workers or threads than cores are of no use."""

    def diagnose(self, loader: LoaderProfile, machine: MachineLoad) -> Diagnosis:
        """Return the diagnosis of a loader whose batches come late because of this."""
        gain, gain_share = self._gain(loader, machine)
        return Diagnosis(
            verdict=self.name,
            says=self.says(loader),
            evidence=[*describe_waiting(loader), *self.evidence(loader)],
            gain=gain,
            gain_share=gain_share,
            advice=self.advice(loader, machine),
        )

    def _gain(self, loader: LoaderProfile, machine: MachineLoad) -> tuple[str, float]:
        """Return what more workers or threads would gain, as far as there are cores."""
        gain, share = describe_gain(loader, loader.wait, loader.wait_share)
        if not self.is_parallel or loader.step <= 0:
            return gain, share
        concurrency = next_concurrency(loader, max(1, machine.cores) if self.needs_cores else MAX_BLOCKED)
        # work that is blocked can be done by any number at once; work that computes needs a core each
        computing = loader.work_per_batch / concurrency if self.needs_cores else 0.0
        saved = loader.period - max(loader.step, loader.least_period, computing)
        if concurrency <= loader.concurrency or not 0.05 * loader.period < saved < 0.8 * loader.wait:
            return gain, share
        workers = "threads" if loader.has_threads else "workers"
        return (
            f"about {format_duration(saved)} of {format_duration(loader.period)} per step with {concurrency} "
            f"{workers}; {gain}, if no batch were late",
            share * saved / loader.wait,
        )


def cpu_and_delay_shares(loader: LoaderProfile, machine: MachineLoad) -> tuple[float, float]:
    """Return the shares of the work on a core, and delayed by other programs.

    Workers that find no core because they take all of them themselves are not delayed by others.
    """
    cpu, delay = loader.cpu_share, loader.delay_in_work_share
    if machine.others_cores < 0.2 * max(1, machine.cores) and machine.others_cores < machine.workers_cores:
        return cpu + delay, 0.0
    return cpu, delay
