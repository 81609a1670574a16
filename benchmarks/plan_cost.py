"""What it costs to know the order, per batch: from a thousand samples to a million million.

torch's samplers are asked for the same, a whole epoch: they make a list of all positions first. They cannot be asked
for one step at random.
"""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, RandomSampler

from benchmarks.report import Report, Saved, Setting, only, power, span
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved
from stoker.plan import Plan, order_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = tuple(10**exponent for exponent in range(3, 13))
LARGEST_STORED = 10**7
"""Samples up to which torch's sampler is measured: there, it takes half a second and half a gigabyte."""
BATCH_SIZES = (32, 256)
ORDERS = {"sequential": 10**3, "shuffle": 10**4, "window": 10**7}
"""Orders, and the size from which they should be flat. Of under 1024 samples, or blocks of 1024 samples, the whole
permutation is kept and looked up, which is quicker."""
NUM_STEPS = 200
TORCH = "torch's samplers"


def run(setting: Setting) -> Report:
    sizes = SIZES[::3] if setting.is_quick else SIZES
    records: list[Measurement] = []
    for batch_size in BATCH_SIZES:
        records += _measured(sizes, batch_size, "in a row", setting)
        records += _measured(sizes, batch_size, "at random", setting)
        for size in sizes:
            if size <= LARGEST_STORED:
                records += _begun(size, batch_size, setting)
    memory = {
        power(size): {
            "plan": _memory_of("plan", size),
            "torch": _memory_of("torch", size) if size <= LARGEST_STORED else None,
        }
        for size in ((10**3, 10**6) if setting.is_quick else (10**3, 10**5, 10**6, 10**7, 10**9, 10**12))
    }
    return Report(
        name="plan_cost",
        title="Cost of knowing the order, per batch",
        records=records,
        shows=_shows(records, memory),
        limits=[
            "the reading of samples: only positions are made here, and the digest of what is served.",
            "torch's samplers beyond 10^7 samples. They go on in proportion: a list of all positions is made first.",
            "small sizes in a row as part of the flat curve: there, epochs end and begin within the timed steps.",
            "sizes at their worst: even powers of ten are squares, where no index goes through the network twice. "
            "Others see that once in the square root of their size, which at 10^5 still shows.",
            "a sampler written to be small, such as one that yields positions without a list.",
        ],
        draw=draw,
        extra={"memory_mib": memory},
    )


def _measured(sizes: tuple[int, ...], batch_size: int, how: str, setting: Setting) -> list[Measurement]:
    """All sizes of an order take turns in the same rounds, so that a flat curve is not just a quiet minute."""
    pace = RoundLimits(0.05, min_rounds=2) if setting.is_quick else RoundLimits(6.0, max_rounds=60, min_rounds=20)
    records = []
    for order in ORDERS:
        reference = next(size for size in sizes if size >= _flat_from(order, how))
        plans = {
            size: Plan(num_samples=size, batch_size=batch_size, order=order_named(order), seed=1) for size in sizes
        }
        contenders = {
            str(size): _in_a_row(plan) if how == "in a row" else _at_random(plan) for size, plan in plans.items()
        }
        for record in interleaved(contenders, case={}, unit="batch", rounds=pace, reference=str(reference)):
            case = {"what": how, "batch": batch_size, "size": int(record.contender)}
            records.append(replace(record, contender=f"plan, {order}", case=case))
    return records


def _flat_from(order: str, how: str) -> int:
    """In a row, small sizes begin a new epoch within the steps that are timed, so they do something else."""
    return max(ORDERS[order], 10**6) if how == "in a row" else ORDERS[order]


def _in_a_row(plan: Plan) -> TimedFunction:
    """Go through an epoch from a step in its midst, or as often as needed through a short one."""
    steps = plan.steps_in(0)
    first = 0 if steps <= 2 * NUM_STEPS else steps // 2

    def timed(clock: BlockTimer) -> None:
        num_left = NUM_STEPS
        with clock.timing(NUM_STEPS):
            while num_left:
                num_left -= sum(1 for _ in islice(plan.recipes(first), num_left))

    return timed


def _at_random(plan: Plan) -> TimedFunction:
    chance = random.Random(0)
    steps = [chance.randrange(plan.steps_in(0)) for _ in range(NUM_STEPS)]

    def timed(clock: BlockTimer) -> None:
        with clock.timing(NUM_STEPS):
            for step in steps:
                plan.recipe(step)

    return timed


def _begun(size: int, batch_size: int, setting: Setting) -> list[Measurement]:
    """Up to the end of the first batch, and per batch of a whole epoch: what torch's samplers can do."""
    plan = Plan(num_samples=size, batch_size=batch_size, order=order_named("shuffle"), seed=1)
    sampler = BatchSampler(RandomSampler(range(size)), batch_size, drop_last=False)

    def first(clock: BlockTimer, batches: Any) -> None:
        with clock.timing():
            next(iter(batches()))

    def epoch(clock: BlockTimer, batches: Any) -> None:
        with clock.timing(plan.steps_in(0)):
            for _ in batches():
                pass

    records = []
    for what, timed in (("first batch", first), ("whole epoch", epoch)):
        if setting.is_quick and size > 10**5:
            continue
        slow = size > 10**5
        pace = (
            RoundLimits(0.01, min_rounds=2)
            if setting.is_quick
            else RoundLimits(1.0, max_rounds=50, min_rounds=3 if slow else 20)
        )
        contenders: dict[str, TimedFunction] = {
            TORCH: lambda clock, timed=timed: timed(clock, lambda: iter(sampler)),  # type: ignore[misc]
            "plan, shuffle": lambda clock, timed=timed: timed(clock, lambda: plan.recipes(0)),  # type: ignore[misc]
        }
        case = {"what": what, "batch": batch_size, "size": size}
        records += interleaved(contenders, case=case, unit="batch", rounds=pace, reference=TORCH)
    return records


_PROBE = """
import sys
from itertools import islice
who, size = sys.argv[1], int(sys.argv[2])
if who == "plan":
    from stoker.plan import Plan, Shuffle
    batches = lambda size: Plan(num_samples=size, batch_size=256, order=Shuffle()).recipes(0)
else:
    from torch.utils.data import BatchSampler, RandomSampler
    batches = lambda size: iter(BatchSampler(RandomSampler(range(size)), 256, drop_last=False))
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
kept = [list(islice(batches(1000), 100))]
before = peak()
iterator = batches(size)
kept = sum(1 for _ in islice(iterator, 100))
print((peak() - before) / 1024)
"""


def _memory_of(who: str, size: int) -> float | None:
    """Return the MiB a fresh process grows by in a hundred batches, beyond what a small order has already taken."""
    if not Path("/proc/self/status").exists():
        return None
    summary = subprocess.run([sys.executable, "-c", _PROBE, who, str(size)], capture_output=True, text=True, check=True)
    return round(float(summary.stdout), 1)


def _shows(records: list[Measurement], memory: dict[str, dict[str, float | None]]) -> list[str]:
    sentences = []
    for order in ORDERS:
        for how in ("in a row", "at random"):
            found = only(records, f"plan, {order}", what=how)
            found = [record for record in found if record.case["size"] >= _flat_from(order, how)]
            ratios = [record.median_ratio for record in found if record.median_ratio is not None]
            times = {size: [record.median for record in found if record.case["batch"] == size] for size in BATCH_SIZES}
            sizes = [record.case["size"] for record in found]
            sentences.append(
                f"{order}, {how}: {span(times[32], 1)} µs a batch of 32 and {span(times[256], 1)} µs a batch of 256, "
                f"from {power(min(sizes))} to {power(max(sizes))} samples; "
                f"{span(ratios)} of the time at {power(min(sizes))}."
            )
    for what in ("whole epoch", "first batch"):
        found = only(records, "plan, shuffle", what=what)
        for size in sorted({record.case["size"] for record in found if record.case["size"] in (10**3, 10**6, 10**7)}):
            ratios = [record.median_ratio or 0.0 for record in found if record.case["size"] == size]
            sentences.append(
                f"{what} of {power(size)} shuffled samples: {span(ratios, 4)} of the time of torch's samplers."
            )
    for size, taken in memory.items():
        if taken["torch"] and taken["torch"] > 1:
            sentences.append(
                f"memory at {size} samples: torch's sampler {taken['torch']:.0f} MiB, the plan {taken['plan']:.1f} MiB."
            )
    largest = list(memory)[-1]
    sentences.append(f"memory of the plan at {largest} samples: {memory[largest]['plan']} MiB.")
    return sentences


def draw(records: list[Measurement], saved: Saved) -> Figure:
    memory: dict[str, dict[str, float | None]] = saved["memory_mib"]
    from matplotlib import pyplot as plt

    inks = {"sequential": "#2b6ca3", "shuffle": "#c8391b", "window": "#4d7c2a"}
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained", width_ratios=(1, 1, 0.9))
    for axis, batch_size in zip(axes, BATCH_SIZES):
        for order in ORDERS:
            for how, line in (("in a row", "-"), ("at random", "--")):
                found = only(records, f"plan, {order}", what=how, batch=batch_size)
                sizes = [record.case["size"] for record in found]
                axis.plot(
                    sizes,
                    [record.median for record in found],
                    line,
                    marker="o",
                    markersize=3,
                    color=inks[order],
                    label=f"plan, {order}, {how}",
                )
        found = only(records, TORCH, what="whole epoch", batch=batch_size)
        sizes = [record.case["size"] for record in found]
        axis.plot(
            sizes,
            [record.median for record in found],
            "s-",
            markersize=3,
            color="#767676",
            label="torch's RandomSampler, whole epoch",
        )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(0.3, 1000)
        axis.set_title(f"Positions of a batch of {batch_size}", fontsize=10)
        axis.set_xlabel("samples in the dataset")
        axis.set_ylabel("µs per batch (median)")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside upper left")
    axis = axes[2]
    sizes = [int(name.removeprefix("10^")) for name in memory]
    axis.plot(
        [10.0**size for size in sizes],
        [taken["plan"] if taken["plan"] is not None else float("nan") for taken in memory.values()],
        "o-",
        color=inks["shuffle"],
        label="plan, shuffle",
    )
    stored = [(10.0**size, taken["torch"]) for size, taken in zip(sizes, memory.values()) if taken["torch"] is not None]
    axis.plot(
        [size for size, _ in stored], [mib for _, mib in stored], "s-", color="#767676", label="torch's RandomSampler"
    )
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=1)
    axis.set_ylim(-0.2, 2000)
    axis.set_title("Memory for the order", fontsize=10)
    axis.set_xlabel("samples in the dataset")
    axis.set_ylabel("MiB more after 100 batches (linear below 1)")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return figure
