"""noisy-neighbour: the trainer or its workers are ready to run, and others have the cores."""

from __future__ import annotations

from stoker.foundation.text import format_cores, format_duration, format_percent
from stoker.lab.diagnose.advice import OWN_THREADS, fewer_workers_than_cores, loader_call
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.evidence import describe_gain, describe_step, workers_were
from stoker.lab.diagnose.loader_profile import SMALL_BYTES, LoaderProfile, MachineLoad, setting
from stoker.lab.diagnose.verdicts.collate_bound import is_mostly_collating
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause, cpu_and_delay_shares
from stoker.lab.diagnose.verdicts.transport_bound import is_late_in_transit
from stoker.lab.diagnose.worker_counts import enough_workers, own_workers_take_cores


def _holds(loader: LoaderProfile, machine: MachineLoad) -> bool:
    if is_late_in_transit(loader):
        # small batches are handed over at once, unless a process that hands them over waits for a core
        is_small = loader.batch_bytes < SMALL_BYTES
        return loader.wait_delay_share > 0.5 or (is_small and machine.is_crowded)
    cpu, delay = cpu_and_delay_shares(loader, machine)
    return not is_mostly_collating(loader) and delay > max(cpu, loader.blocked_share)


def diagnose(
    loader: LoaderProfile,
    machine: MachineLoad,
    loss: float,
    *,
    alone: LoaderProfile,
    own_cause: LateBatchCause | None,
) -> Diagnosis:
    """Return the diagnosis of a loader that loses a share of the time to waiting for a core.

    `alone` is the estimated profile without other programs, `own_cause` the verdict on that, if it would not keep up.
    """
    are_ours = own_workers_take_cores(loader, machine)
    evidence = [
        f"the training thread was ready to run but had no core for {format_percent(loader.delay_share)} of the time"
    ]
    if machine.is_measured:
        trainer, workers, others = (
            f"{cores:.1f}" for cores in (machine.trainer_cores, machine.workers_cores, machine.others_cores)
        )
        of = f", of {machine.cores}" if machine.cores else ""
        evidence.append(
            f"cores in use on average: {trainer} by the trainer, {workers} by its workers, {others} by other "
            f"programs{of}"
        )
    if loader.delay_in_work_share > 0:
        share = format_percent(loader.delay_in_work_share)
        evidence.append(f"{workers_were(loader)} ready but without a core for {share} of the loading time")
    lost = format_percent(loss)
    says = f"waiting for a core takes {lost} of the time; it was not measured which programs had the cores"
    if machine.is_measured or are_ours:
        who = "the loader's own workers" if are_ours else "other programs"
        says = f"{who} take the cores: {lost} of the time is lost waiting for one"
    gain, gain_share = describe_gain(loader, loss * loader.period, loss)
    if are_ours:
        saved = max(0.0, loader.period - enough_workers(loader, machine).period)
        if saved < loss * loader.period:  # the work that took the core has to be done all the same
            gain, gain_share = describe_gain(loader, saved, saved / loader.period)
            if gain_share < 0.03:
                gain = "about none from other arguments: the training itself needs all cores"
    advice = _advice(loader, machine)
    if own_cause is not None:
        evidence += [
            f"without other programs the loader would be {own_cause.name}: about {format_duration(alone.wait)} of "
            f"{format_duration(alone.period)} per step would still be waiting",
            *own_cause.evidence(alone),
        ]
        advice += [f"for the loader itself: {line}" for line in own_cause.advice(alone, machine)[:2]]
    elif not are_ours:
        evidence += describe_step(loader)
    return Diagnosis(
        verdict=VERDICT.name,
        says=says + (f"; the loader itself is {own_cause.name}" if own_cause else ""),
        own_cause=own_cause.name if own_cause else None,
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=advice,
    )


def _advice(loader: LoaderProfile, machine: MachineLoad) -> list[str]:
    cores, num_workers = machine.cores, setting(loader.stats, "num_workers")
    if not own_workers_take_cores(loader, machine) or not num_workers:
        others = f"use {format_cores(machine.others_cores)}" if machine.is_measured else "may use the cores"
        return [
            *fewer_workers_than_cores(loader, cores),
            f"other programs {others} on this machine: stop them, move them, or `nice` them",
            "in a container or on a cluster, request more cores, and exclusive ones",
            OWN_THREADS,
        ]
    few, period = enough_workers(loader, machine)
    fewer = loader_call(num_workers=few)
    if few < num_workers and period <= 0.97 * loader.period:
        return [
            f"{fewer}: as many as the work needs; more take cores from the trainer",
            f"{loader_call(num_workers='auto')} of stoker.DataLoader finds the number, and watches the trainer's delay",
            OWN_THREADS,
        ]
    return [
        *([f"{fewer}: as fast as {num_workers} on {cores} cores, with less memory"] if few < num_workers else []),
        "less work per sample, or more cores: loading and training use all there are; preprocess ahead of time what is "
        "done in every epoch (`stoker prepare`)",
        OWN_THREADS,
    ]


VERDICT = LateBatchCause(
    name="noisy-neighbour",
    meaning="the trainer or its workers wait for a core",
    sign="the trainer, or a worker, is ready to run but has no core",
    remedy="fewer workers, if the work does not need them, or fewer other programs: the evidence says who uses the "
    "cores, and which verdict the loader would get without them",
    holds=_holds,
    says=lambda loader: f"{workers_were(loader)} waiting for a core",
    advice=_advice,
)
