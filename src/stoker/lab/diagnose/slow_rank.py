"""Which rank the others wait for, and why."""

from __future__ import annotations

from statistics import median

from stoker.foundation.text import format_duration
from stoker.lab.diagnose import remedies
from stoker.lab.diagnose.causes import cause_of_waiting, gain_told, work_evidence
from stoker.lab.diagnose.diagnosis import VERDICTS, Diagnosis
from stoker.lab.diagnose.reckoning import Reckoning, Surroundings


def slowest(reckonings: dict[int, Reckoning]) -> tuple[Reckoning, float]:
    """Return the rank that the others have to wait for, and the part of the time that is lost with that.

    Where ranks wait for each other in every step, all take the same time from batch to batch; the slow one is that
    which waits for data. Where they do not, the slow one takes longer.
    """

    def excess(rank: int) -> float:
        one = reckonings[rank]
        others = [other for number, other in reckonings.items() if number != rank]
        if one.period <= 0:
            return 0.0
        usual_wait, usual_period = median(other.wait for other in others), median(other.period for other in others)
        by_wait = one.wait - usual_wait if one.wait >= 2 * usual_wait else 0.0
        by_period = one.period - usual_period if one.period >= 1.2 * usual_period else 0.0
        return max(by_wait, by_period) / one.period

    slow = max(reckonings, key=excess)
    return reckonings[slow], max(0.0, min(1.0, excess(slow)))


def late(slow: Reckoning, reckonings: dict[int, Reckoning], around: Surroundings, cores: int, loss: float) -> Diagnosis:
    """One rank is late, and the others wait for it."""
    others = [one for one in reckonings.values() if one is not slow]
    rank = slow.stats.rank
    evidence = [
        f"rank {one.stats.rank}: waits {format_duration(one.wait)} of {format_duration(one.period)} from batch to "
        "batch, "
        f"its own step takes {format_duration(one.step)}"
        for _, one in sorted(reckonings.items())[:8]
    ]
    waits = slow.wait - median(one.wait for one in others) >= 0.5 * loss * slow.period
    cause = cause_of_waiting(slow, around, cores) if waits else "compute-bound"
    if waits:
        evidence += [f"rank {rank} by itself is {cause}: {VERDICTS[cause]}", *work_evidence(slow)[1:]]
        says = (
            f"rank {rank} waits {format_duration(slow.wait)} for each batch, and all others wait for it in their steps"
        )
    else:
        evidence.append(f"it is not its data: rank {rank} has batches in time, and takes longer for its own step")
        says = (
            f"rank {rank} takes {format_duration(slow.period)} for a step, the others "
            f"{format_duration(others[0].period)}"
        )
    gain, gain_share = gain_told(slow, loss * slow.period, loss)
    return Diagnosis(
        verdict="slow-rank",
        says=says,
        evidence=evidence,
        gain=gain,
        gain_share=gain_share,
        advice=remedies.slow_rank(slow, cause, around, cores),
    )
