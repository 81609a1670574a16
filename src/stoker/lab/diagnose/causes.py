"""What costs a run its time: each cause with its evidence, the possible gain, and what to change."""

from __future__ import annotations

from statistics import fmean

from stoker.engine.stats import Sampled
from stoker.foundation.text import format_bytes, format_count, format_duration, format_percent
from stoker.lab.diagnose import remedies
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.reckoning import SMALL_BYTES, Reckoning, Surroundings, recurring_firsts, setting, undisturbed
from stoker.lab.watch.run import Stage

FEWEST_SAMPLES = 10
"""Of a training loop, without which it is not said where it was."""

AT_LEISURE = 0.25
"""Workers that are at work for less than this part of the time are not what is waited for."""

KEEPS_UP = 0.1
"""What costs less than this part of the time is not what holds a training back."""

LEAST_WAIT_SECONDS = 5e-5
"""Waits for batches that are shorter are as long as looking at them takes."""

NO_STEP = 0.02
"""A step that is no more than this of the making of a batch is none: the loader was run by itself."""


def _named(one: Reckoning) -> str:
    stats = one.stats
    num_threads = setting(stats, "num_threads")
    hands = {
        "inline": "no workers",
        "threads": format_count(one.num_lanes, "thread"),
        "processes": format_count(setting(stats, "num_workers"), "worker")
        + (f" of {num_threads} threads" if num_threads > 1 else ""),
    }[stats.engine]
    name = f"the loader of {stats.name}" if stats.name else "the loader"
    return f"{name} ({hands})"


def _usual_evidence(one: Reckoning) -> list[str]:
    stats = one.stats
    evidence = [
        f"the trainer waits {format_duration(one.wait)} of {format_duration(one.period)} from batch to batch: "
        f"{format_percent(one.wait / one.period if one.period else 0.0)} of the time; {_named(one)}, "
        f"{stats.samples_per_second:,.0f} samples/s"
    ]
    if stats.queue_depth is not None and stats.engine != "inline":
        evidence.append(
            f"{stats.queue_depth:.1f} batches were ready when one was asked for"
            + (f", none at {stats.queue_empty_share:.0%} of the asks" if stats.queue_empty_share is not None else "")
        )
    return evidence


def healthy(one: Reckoning) -> Diagnosis:
    """The loader keeps up."""
    own = f"{format_duration(one.step)} of {format_duration(one.period)} per step are the training's own"
    if not one.period:
        own = f"first batches are there within {format_duration(max(one.stats.first_batch_seconds, default=0.0))}"
    elif one.wait_share >= 0.1:  # of next to nothing
        own = f"a batch is there within {format_duration(one.wait)}, which is next to nothing"
    evidence = [*_usual_evidence(one), *_step_evidence(one)]
    return Diagnosis(verdict="compute-bound", says=f"the loader keeps up: {own}", evidence=evidence)


def _step_evidence(one: Reckoning) -> list[str]:
    steps = one.stats.steps_sampled
    known = steps is not None and steps.num >= FEWEST_SAMPLES
    return ["the training step: " + _format_places(steps)] if steps is not None and known else []


def _format_places(sampled: Sampled) -> str:
    places = sorted(sampled.places.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{place} {format_percent(share)}" for place, share in places)


def gain_told(one: Reckoning, seconds: float, share: float) -> tuple[str, float]:
    """Return the possible gain, in words and as a share."""
    told = f"up to {format_duration(seconds)} of {format_duration(one.period)} per step"
    if one.period and abs(share - seconds / one.period) > 0.02:  # first batches are no steps
        return f"{told}; with what epochs begin with, {format_percent(share)} of all their time", share
    return f"{told}, {format_percent(share)} of the time", share


def _gain_of_lanes(verdict: str, one: Reckoning, cores: int) -> tuple[str, float]:
    """Return the possible gain from more workers or threads, as far as there are cores."""
    gain, share = gain_told(one, one.wait, one.wait_share)
    if verdict == "transport-bound" or one.step <= 0:
        return gain, share
    blocks = verdict == "storage-bound"
    lanes = remedies.needed_lanes(one, remedies.MOST_LANES if blocks else cores)
    work = one.work_seconds / max(1, one.stats.num_batches)
    # for those who are blocked there are hands enough; for what is computed, there are the cores
    saved = one.period - max(one.step, one.least_period, 0.0 if blocks else work / lanes)
    if lanes <= one.num_lanes or not 0.05 * one.period < saved < 0.8 * one.wait:
        return gain, share
    part = share * saved / one.wait
    return (
        f"about {format_duration(saved)} of {format_duration(one.period)} per step with {lanes} at work; {gain} in all",
        part,
    )


def waiting(one: Reckoning, around: Surroundings, cores: int) -> Diagnosis:
    """Batches come late: say why."""
    verdict = cause_of_waiting(one, around, cores)
    if verdict == "noisy-neighbour":
        delayed = max(one.delay_in_work_share, one.wait_delay_share)
        return crowded(one, around, cores, one.wait_share * delayed)
    gain, gain_share = _gain_of_lanes(verdict, one, max(1, cores))
    evidence, stats = _usual_evidence(one), one.stats
    if verdict == "transport-bound":
        size = stats.num_bytes / max(1, stats.num_batches)
        hand_over = _hand_over_seconds(one)
        evidence += _transport_evidence(one)
        says = (
            f"batches of {format_bytes(size)} are made in time and take {format_duration(hand_over)} to reach the "
            "trainer"
        )
    else:
        evidence += work_evidence(one)
        if verdict == "decode-bound" and one.gil_share is None:
            evidence.append("nobody looked whether that is Python or native code: `stoker doctor -- python ...` does")
        says = {
            "storage-bound": f"{_makers(one)} blocked {format_percent(one.blocked_share)} of the time, on the disk, "
            "the "
            "network or other I/O",
            "decode-bound": f"making a batch takes {format_duration(one.making)}, on a core"
            + (", mostly in native code" if one.gil_share is not None else ""),
            "python-bound": f"making a batch takes {format_duration(one.making)}, mostly in Python, "
            "which runs in one thread of a process at a time",
            "collate-bound": f"{format_percent(one.collate_share)} of making a batch is putting its samples together",
        }[verdict]
    return Diagnosis(
        verdict=verdict,
        says=says,
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=remedies.waiting(verdict, one, cores),
    )


def _makers(one: Reckoning) -> str:
    """Return who makes the batches, with a verb."""
    if one.stats.engine == "inline":
        return "the trainer, which makes batches itself, was"
    kind = "thread" if one.stats.engine == "threads" or setting(one.stats, "num_threads") > 1 else "worker"
    return f"the {kind} was" if one.num_lanes == 1 else f"the {one.num_lanes} {kind}s were"


def _hand_over_seconds(one: Reckoning) -> float:
    return one.stats.stages.get("hand-over", Stage()).busy_seconds / max(1, one.stats.num_batches)


def _transport_evidence(one: Reckoning) -> list[str]:
    return [
        f"{format_percent(one.hand_over_share or 0.0)} of the waiting was for batches that had been made already",
        f"a batch is {format_bytes(one.stats.num_bytes / max(1, one.stats.num_batches))}, and takes "
        f"{format_duration(_hand_over_seconds(one))} from worker to trainer beside {format_duration(one.making)} to "
        "be made",
    ]


def cause_of_waiting(one: Reckoning, around: Surroundings, cores: int) -> str:
    """Return the verdict on a loader whose batches come late."""
    stats = one.stats
    # workers that never rest are what is waited for, however long their batches take on the way: that shifts them alone
    is_on_its_way = (one.hand_over_share or 0.0) > 0.5 and one.occupancy < 0.7
    if is_on_its_way or (stats.engine == "processes" and one.is_seen and one.occupancy < AT_LEISURE):
        # what is small is handed over at once, unless those who do it have to wait for a core
        is_small = stats.num_bytes / max(1, stats.num_batches) < SMALL_BYTES
        is_crowded = one.wait_delay_share > 0.5 or (is_small and around.is_crowded(cores))
        return "noisy-neighbour" if is_crowded else "transport-bound"
    if one.collate_share >= 0.5 and one.delay_in_work_share < 0.5:
        return "collate-bound"
    cpu, crowd = one.cpu_share, one.delay_in_work_share
    # cores that are all taken by those who make batches are no neighbour's fault
    if around.others_cores < 0.2 * max(1, cores) and around.others_cores < around.workers_cores:
        cpu, crowd = cpu + crowd, 0.0
    if crowd > max(cpu, one.blocked_share):
        return "noisy-neighbour"
    if one.blocked_share > cpu:
        return "storage-bound"
    return "python-bound" if one.is_python else "decode-bound"


def work_evidence(one: Reckoning) -> list[str]:
    """Return what those who make batches were doing."""
    stats = one.stats
    if not one.is_seen:
        used = f"; {one.num_lanes} of them used {one.cpu_share * one.num_lanes:.1f} cores" if one.work_seconds else ""
        return [
            "what workers did was not seen: they were there before anybody watched, or belong to a loader that is "
            f"neither torch's nor ours{used}"
        ]
    or_waiting = " or waiting for the GIL" if one.is_python and setting(stats, "num_threads") > 1 else ""
    evidence = [
        f"making a batch takes {format_duration(one.making)}, the training's own step {format_duration(one.step)}: "
        f"{one.making / one.step:.1f} batches have to be in the making at a time"
        if one.step > NO_STEP * one.making
        else f"making a batch takes {format_duration(one.making)}, the training's own step next to nothing",
        f"{_makers(one)} busy {format_percent(one.occupancy)} of the time",
        f"of the making, {format_percent(one.cpu_share)} on a core{or_waiting}, {format_percent(one.blocked_share)} "
        "blocked, "
        f"{format_percent(one.delay_in_work_share)} ready and without a core",
    ]
    stages = {
        name: stats.stages[name].busy_seconds for name in ("read", "transform", "collate") if name in stats.stages
    }
    if (whole := sum(stages.values())) > 0:
        parts = [f"{name} {format_percent(seconds / whole)}" for name, seconds in stages.items() if seconds]
        evidence.append("stages: " + ", ".join(parts))
    if one.gil_share is not None:
        evidence.append(f"the GIL was held in {format_percent(one.gil_share)} of samples")
    if stats.sampled is not None and stats.sampled.places:
        # a thread that wants the GIL gets it, and sees, where it is released
        where = "where the GIL was released" if one.is_python else "where"
        evidence.append(f"{where}: {_format_places(stats.sampled)}")
    read_bytes = sum(worker.read_bytes or 0 for worker in (*stats.workers, *([stats.trainer] if stats.trainer else [])))
    if stats.seconds > 0 and read_bytes / stats.seconds > 1e6:
        evidence.append(f"{format_bytes(read_bytes / stats.seconds)}/s came from disks, and not from memory")
    return evidence


def starting(one: Reckoning) -> Diagnosis:
    """First batches take most of the time."""
    stats = one.stats
    first = fmean(recurring_firsts(stats))
    num_batches = stats.num_batches / max(1, stats.num_iterations)
    if stats.facts.get("num_batches"):
        num_batches = max(num_batches, stats.facts["num_batches"])
    epoch = first + max(0.0, num_batches - 1) * one.period
    evidence = [
        f"the first batch of an epoch came after {format_duration(first)}, others after {format_duration(one.wait)}",
        f"an epoch has {num_batches:.0f} batch{'es' * (num_batches >= 1.5)} and takes {format_duration(epoch)}; "
        f"seen: {format_count(stats.num_iterations, 'epoch')}",
    ]
    if stats.config.get("num_workers"):
        kept = "stay" if stats.config.get("persistent_workers") else "are started anew for each epoch"
        method = stats.config.get("start_method")
        evidence.append(
            f"{stats.config['num_workers']} workers {kept}" + (f", by {method}" if method not in (None, "fork") else "")
        )
    return Diagnosis(
        verdict="start-up-bound",
        says=f"{format_percent(one.start_up_share)} of an epoch goes into its first batch, {format_duration(first)}",
        evidence=evidence,
        gain=f"up to {format_duration(first)} of {format_duration(epoch)} per epoch, "
        f"{format_percent(one.start_up_share)} of the time",
        gain_share=one.start_up_share,
        advice=remedies.starting(one),
    )


def copying(one: Reckoning) -> Diagnosis:
    """Copies to the device are waited for."""
    copies = one.stats.copies
    assert copies is not None
    per_step = one.copy_share * one.period
    evidence = [
        f"{format_percent(one.copy_share)} of the trainer's time went into {copies.num:,} copies to the device",
        f"{format_percent(copies.num_pageable / copies.num)} of them from pageable memory, "
        f"{format_percent(copies.num_blocking / copies.num)} blocking",
        f"a batch is {format_bytes(one.stats.num_bytes / max(1, one.stats.num_batches))}",
    ]
    if copies.device_seconds is not None:
        evidence.append(f"one takes {format_duration(copies.device_seconds)} on the device")
    gain, gain_share = gain_told(one, per_step, one.copy_share)
    return Diagnosis(
        verdict="copy-bound",
        says=f"batches take {format_duration(per_step)} of each step to be copied to the device",
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=remedies.copying(one),
    )


def crowded(one: Reckoning, around: Surroundings, cores: int, loss: float) -> Diagnosis:
    """Others have the cores. What the loader would be like without them is said too."""
    are_ours = remedies.are_our_workers(one, around, cores)
    own = undisturbed(one, cores)
    if not are_ours and one.is_seen and one.period > 0:  # no more is lost to others than would be saved without them
        saved = 1 - own.period / one.period
        loss = min(loss, saved) if saved >= KEEPS_UP else loss
    evidence = [f"the trainer's thread was ready and had no core for {format_percent(one.delay_share)} of the time"]
    if around.is_measured:
        evidence.append(
            f"in use on average: {around.trainer_cores:.1f} cores by the trainer, {around.workers_cores:.1f} by its "
            f"workers, {around.others_cores:.1f} by other programs" + (f", of {cores}" if cores else "")
        )
    if one.delay_in_work_share > 0:
        evidence.append(
            f"{_makers(one)} ready and without a core for {format_percent(one.delay_in_work_share)} of making a batch"
        )
    says = (
        f"waiting for a core takes {format_percent(loss)} of the time; it was not measured which programs had the cores"
    )
    if around.is_measured or are_ours:
        who = "the loader's own workers take" if are_ours else "other programs take"
        says = f"{who} the cores: {format_percent(loss)} of the time is lost to waiting for one"
    gain, gain_share = gain_told(one, loss * one.period, loss)
    if are_ours:
        saved = max(0.0, one.period - remedies.enough_workers(one, around, cores).period)
        if saved < loss * one.period:  # the work that took the core away has to be done all the same
            gain, gain_share = gain_told(one, saved, saved / one.period)
            if gain_share < 0.03:
                gain = "about none from other arguments: the cores have enough to do with this training itself"
    advice = remedies.crowded(one, around, cores, are_ours=are_ours)
    own_cause = None
    if not are_ours and one.is_seen and own.wait_share >= KEEPS_UP and own.wait > LEAST_WAIT_SECONDS:
        own_cause = cause_of_waiting(own, Surroundings(), cores)
        evidence += [
            f"without other programs the loader would be {own_cause}: about {format_duration(own.wait)} of "
            f"{format_duration(own.period)} per step would still be waiting",
            *(_transport_evidence(own) if own_cause == "transport-bound" else work_evidence(own)),
        ]
        advice += [f"for the loader itself: {line}" for line in remedies.waiting(own_cause, own, cores)[:2]]
    elif not are_ours:
        evidence += _step_evidence(one)
    return Diagnosis(
        verdict="noisy-neighbour",
        says=says + (f"; the loader itself is {own_cause}" if own_cause else ""),
        own_cause=own_cause,
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=advice,
    )
