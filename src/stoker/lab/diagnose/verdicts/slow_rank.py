"""slow-rank: one rank is late, and all others wait for it."""

from __future__ import annotations

from statistics import median

from stoker.foundation.text import format_duration
from stoker.lab.diagnose.diagnosis import Diagnosis, VerdictKind
from stoker.lab.diagnose.evidence import describe_gain, describe_work
from stoker.lab.diagnose.loader_profile import LoaderProfile, MachineLoad
from stoker.lab.diagnose.verdicts.late_batches import LateBatchCause

VERDICT = VerdictKind(
    name="slow-rank",
    meaning="one rank is late, and all others wait for it",
    sign="one rank waits for its data, and the others for that rank",
    remedy="find out what is different on that rank; the evidence has the verdict on it alone",
)

MAX_LISTED = 8


def find_slowest(ranks: dict[int, LoaderProfile]) -> tuple[LoaderProfile, float]:
    """Return the rank that the others wait for, and the share of the time lost by that.

    Where ranks synchronize in every step, all take the same time from batch to batch, and the slow one is the rank that
    waits for data. Where they do not, the slow one takes longer.
    """

    def excess(rank: int) -> float:
        loader = ranks[rank]
        others = [other for number, other in ranks.items() if number != rank]
        if loader.period <= 0:
            return 0.0
        usual_wait, usual_period = median(other.wait for other in others), median(other.period for other in others)
        by_wait = loader.wait - usual_wait if loader.wait >= 2 * usual_wait else 0.0
        by_period = loader.period - usual_period if loader.period >= 1.2 * usual_period else 0.0
        return max(by_wait, by_period) / loader.period

    slow = max(ranks, key=excess)
    return ranks[slow], max(0.0, min(1.0, excess(slow)))


def waits_for_data(slow: LoaderProfile, ranks: dict[int, LoaderProfile], loss: float) -> bool:
    """Whether the slow rank loses its time waiting for data, rather than in its training step."""
    others = [loader for loader in ranks.values() if loader is not slow]
    return slow.wait - median(loader.wait for loader in others) >= 0.5 * loss * slow.period


def diagnose(
    slow: LoaderProfile,
    ranks: dict[int, LoaderProfile],
    machine: MachineLoad,
    loss: float,
    *,
    cause: LateBatchCause | None,
) -> Diagnosis:
    """Return the diagnosis of a run in which a rank is late. `cause` is why it waits; None if its step is slow."""
    rank = slow.stats.rank
    evidence = [
        f"rank {loader.stats.rank}: waits {format_duration(loader.wait)} of {format_duration(loader.period)} from "
        f"batch to batch; its training step takes {format_duration(loader.step)}"
        for _, loader in sorted(ranks.items())[:MAX_LISTED]
    ]
    advice = [f"check what is different for rank {rank}: its disk, its share of the data, its neighbors"]
    if cause is not None:
        evidence += [f"rank {rank} alone is {cause.name}: {cause.meaning}", *describe_work(slow)[1:]]
        says = (
            f"rank {rank} waits {format_duration(slow.wait)} for each batch, and all others wait for it in their steps"
        )
        advice += cause.advice(slow, machine)
    else:
        other = next(loader for loader in ranks.values() if loader is not slow)
        evidence.append(f"it is not its data: rank {rank} gets batches in time, but its training step takes longer")
        says = (
            f"rank {rank} takes {format_duration(slow.period)} for a step, the others {format_duration(other.period)}"
        )
        advice.append("its device may be slower, hotter or shared: compare `nvidia-smi` on it with the others")
    gain, gain_share = describe_gain(slow, loss * slow.period, loss)
    return Diagnosis(
        verdict=VERDICT.name, says=says, evidence=evidence, gain=gain, gain_share=gain_share, advice=advice
    )
