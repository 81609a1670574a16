"""`diagnose` on records: exactly one verdict for any of them, and the right one where a record speaks for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.diagnose.loader_profile import MachineLoad
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.diagnose.verdicts import VERDICTS
from stoker.lab.watch.run import Copies, Moment, ProcessStats, Quantiles, Run, Sampled, Stage, Stats

MACHINE = {"cores": 8, "memory_bytes": 64 << 30, "shared_memory_bytes": 32 << 30}


def times(seconds: float, num: int = 100) -> Quantiles:
    return Quantiles(num=num, mean=seconds, p50=seconds, p90=seconds, p99=seconds, most=seconds)


def laps(num: int, *, wait: float, step: float, made_before_asking: float = 0.0) -> dict[str, list[float]]:
    asked = np.arange(num) * (wait + step)
    handed = asked + wait
    made = asked - made_before_asking if made_before_asking else handed
    zeros = np.zeros(num)
    columns = {"asked": asked, "handed": handed, "began": made - 0.01, "made": made, "sent": made, "worker": zeros}
    return {name: column.tolist() for name, column in columns.items()}


def stats(
    *,
    wait: float = 0.0,
    step: float = 0.02,
    num_workers: int = 2,
    read: float | None = None,
    collate: float = 0.0,
    cpu: float = 0.0,
    delay: float = 0.0,
    **more: Any,
) -> Stats:
    """Return the counters of a loader that gave 100 batches; times are per batch."""
    num, period = 100, wait + step
    read = num_workers * period * 0.98 - collate if read is None else read
    shown: dict[str, Any] = {
        "kind": "torch",
        "engine": "processes",
        "config": {"num_workers": num_workers, "batch_size": 32, "prefetch_factor": 2, "start_method": "fork"},
        "seconds": num * period,
        "num_iterations": 1,
        "num_batches": num,
        "num_samples": 32 * num,
        "num_bytes": num << 16,
        "first_batch_seconds": [wait],
        "batch_seconds": times(period),
        "wait_seconds": times(wait),
        "step_seconds": times(step),
        "making_seconds": times(read + collate),
        "stages": {
            "read": Stage(busy_seconds=num * read, cpu_seconds=num * cpu),
            "transform": Stage(),
            "collate": Stage(busy_seconds=num * collate, cpu_seconds=0.0),
            "hand-over": Stage(busy_seconds=num * 0.0005),
        },
        "trainer": ProcessStats(pid=1, role="trainer", cpu_seconds=1.0, delay_seconds=0.0),
        "workers": [
            ProcessStats(pid=2 + worker, role=f"worker {worker}", delay_seconds=num * delay / num_workers)
            for worker in range(num_workers)
        ],
        "laps": laps(num, wait=wait, step=step),
    }
    return Stats(**(shown | more))


def run(*loaders: Stats, moments: list[Moment] | None = None, **machine: Any) -> Run:
    return Run(machine=MACHINE | machine, seconds=10.0, loaders=list(loaders), moments=moments or [])


def test_a_trainer_that_hardly_waits_is_compute_bound() -> None:
    diagnosis = diagnose(run(stats(wait=0.0005)))
    assert diagnosis.verdict == "compute-bound"
    assert diagnosis.is_healthy
    assert diagnosis.findings == []


def test_what_is_set_already_is_not_advised_and_a_first_step_is_called_one() -> None:
    far = diagnose(run(stats(wait=0.9, cpu=0.0)))
    assert "num_workers=16" in far.advice[0]
    assert "a first step, as keeping up would take 109" in far.advice[0]
    most = diagnose(run(stats(wait=0.9, cpu=0.0, num_workers=64)))
    assert most.verdict == "storage-bound"
    assert "64 reads run in parallel already" in most.advice[0]


def test_threads_beyond_the_cores_keep_their_number_and_get_locks_of_their_own() -> None:
    config = {"num_workers": 1, "num_threads": 43, "batch_size": 32, "prefetch_factor": 2}
    sampled = Sampled(num=100, places={"train.py:16 __getitem__": 0.7}, gil_share=0.72)
    many = stats(wait=0.017, step=0.008, num_workers=1, read=0.83, cpu=0.029, config=config, sampled=sampled)
    diagnosis = diagnose(run(replace(many, kind="stoker"), cores=2))
    assert diagnosis.verdict == "python-bound"
    assert "num_workers=2, num_threads=22" in diagnosis.advice[0]
    assert "1 worker of 43 threads" in diagnosis.evidence[0]
    assert any("on a core or waiting for the GIL" in line for line in diagnosis.evidence)


def test_what_nobody_looked_at_is_not_called_native_code() -> None:
    diagnosis = diagnose(run(stats(wait=0.03, cpu=0.09)))
    assert diagnosis.verdict == "decode-bound"
    assert "native" not in diagnosis.says


def test_a_leak_where_the_trainer_reads_may_be_the_datasets() -> None:
    here = stats(wait=0.03, num_workers=0, read=0.03, engine="inline")
    diagnosis = diagnose(run(here, moments=memory(*(1 + at / 10 for at in range(40)))))
    assert diagnosis.verdict == "memory-growth"
    assert "look in the dataset" in diagnosis.advice[0]
    assert "look in the training loop" in diagnosis.advice[1]


def test_workers_that_are_blocked_are_storage_bound() -> None:
    diagnosis = diagnose(run(stats(wait=0.03, cpu=0.01)))
    assert diagnosis.verdict == "storage-bound"
    # a batch takes 98 ms of work, a step 20: five hands and a little more
    assert "num_workers=6" in diagnosis.advice[0]
    assert diagnosis.gain_share == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(("gil", "verdict"), [(0.1, "decode-bound"), (0.9, "python-bound"), (None, "decode-bound")])
def test_workers_on_their_cores_are_bound_by_what_they_run(gil: float | None, verdict: str) -> None:
    looked = None if gil is None else Sampled(num=50, places={"data.py:12 __getitem__": 1.0}, gil_share=gil)
    diagnosis = diagnose(run(stats(wait=0.03, cpu=0.09, sampled=looked)))
    assert diagnosis.verdict == verdict
    assert "num_workers=6" in str(diagnosis.advice)
    assert ("data.py:12" in str(diagnosis)) == (gil is not None)
    if gil is None:
        assert "not profiled" in str(diagnosis.evidence)


@pytest.mark.parametrize(("cores", "verdict"), [(0.1, "storage-bound"), (1.9, "decode-bound")])
@pytest.mark.parametrize("kind", ["torch", "iterable"])
def test_workers_that_nobody_saw_at_work_are_judged_by_the_cores_that_they_use(
    kind: str, cores: float, verdict: str
) -> None:
    """Those of torch's that were there before anybody watched, and those of loaders that are not known."""
    unseen = stats(wait=0.03, read=0.0 if kind == "torch" else 0.03, kind=kind, workers=[], sampled=None)
    diagnosis = diagnose(run(unseen, moments=crowd(workers=cores, others=0.0)))
    assert diagnosis.verdict == verdict
    assert "were not observed: they were started before watching began" in str(diagnosis.evidence)
    assert f"2 of them used {cores} cores" in str(diagnosis.evidence)
    assert "num_workers=6" in diagnosis.advice[0] or kind == "iterable"


def test_more_hands_than_cores_are_not_promised() -> None:
    diagnosis = diagnose(run(stats(wait=0.38, step=0.02, cpu=0.75), cores=4))
    assert "num_workers=4" in str(diagnosis.advice)
    # with twice the hands a batch comes after half the time, and not at once
    assert diagnosis.gain_share == pytest.approx(0.51, abs=0.02)
    assert diagnosis.gain is not None
    assert diagnosis.gain.startswith("about 204 ms of 400 ms per step with 4 workers")


def test_collating_that_takes_longest_is_collate_bound() -> None:
    assert diagnose(run(stats(wait=0.03, read=0.02, collate=0.07, cpu=0.01))).verdict == "collate-bound"


def test_batches_that_were_made_long_ago_are_transport_bound() -> None:
    late = laps(100, wait=0.03, step=0.02, made_before_asking=0.05)
    hand_over = {"hand-over": Stage(busy_seconds=100 * 0.04)}
    seen = stats(wait=0.03, read=0.001, cpu=0.001, laps=late, num_bytes=100 << 27)
    diagnosis = diagnose(run(replace(seen, stages=seen.stages | hand_over)))
    assert diagnosis.verdict == "transport-bound"
    assert "134 MB" in diagnosis.says


def test_workers_that_never_rest_are_what_is_waited_for_however_late_their_batches_come() -> None:
    late = laps(100, wait=0.03, step=0.02, made_before_asking=0.05)
    assert diagnose(run(stats(wait=0.03, cpu=0.09, laps=late))).verdict == "decode-bound"


@pytest.mark.parametrize(("pageable", "blocking"), [(100, 100), (0, 100)])
def test_copies_that_are_waited_for_are_copy_bound(pageable: int, blocking: int) -> None:
    copies = Copies(num=100, num_pageable=pageable, num_blocking=blocking, seconds=0.8)
    diagnosis = diagnose(run(stats(wait=0.0005, copies=copies)))
    assert diagnosis.verdict == "copy-bound"
    assert "non_blocking=True" in str(diagnosis.advice)
    assert ("pin_memory=True" in str(diagnosis.advice)) == bool(pageable)


def test_a_copy_that_waits_for_the_device_to_compute_is_no_copy_bound() -> None:
    copies = Copies(num=100, num_pageable=100, num_blocking=100, seconds=1.5, device_seconds=0.0002)
    diagnosis = diagnose(run(stats(wait=0.0005, copies=copies)))
    assert diagnosis.verdict == "compute-bound"
    assert [finding.about for finding in diagnosis.findings] == ["pin_memory"]


def test_copies_made_ahead_cost_nothing_until_the_bus_is_full() -> None:
    ahead = Copies(num=100, seconds=0.01, device_seconds=0.005)
    assert diagnose(run(stats(wait=0.0005, copies=ahead))).verdict == "compute-bound"
    full = Copies(num=100, seconds=0.01, device_seconds=0.019)
    assert diagnose(run(stats(wait=0.0005, copies=full))).verdict == "copy-bound"


def crowd(*, workers: float, others: float, num: int = 10) -> list[Moment]:
    return [
        Moment(at=float(at), workers_cores=workers, others_cores=others, trainer_cores=1.0, cores=[1.0] * 8)
        for at in range(num)
    ]


def test_a_trainer_without_a_core_has_noisy_neighbors() -> None:
    delayed = ProcessStats(pid=1, role="trainer", delay_seconds=0.6)
    diagnosis = diagnose(run(stats(wait=0.0005, trainer=delayed), moments=crowd(workers=0.1, others=6.0)))
    assert diagnosis.verdict == "noisy-neighbour"
    assert "other programs" in diagnosis.says
    light = stats(wait=0.0005, num_workers=8, read=0.05, trainer=delayed)
    diagnosis = diagnose(run(light, moments=crowd(workers=7.0, others=0.1)))
    assert diagnosis.verdict == "noisy-neighbour"
    assert "own workers" in diagnosis.says
    assert "num_workers=4" in diagnosis.advice[0]  # 50 ms of work, and a step of 14 ms without the delay
    assert diagnosis.gain_share == pytest.approx(1 - 14 / 20.5, abs=0.03)


def test_workers_that_the_work_needs_are_not_advised_against_though_cores_are_few() -> None:
    """Or the next advice would be to have them back."""
    delayed = ProcessStats(pid=1, role="trainer", delay_seconds=0.6)
    heavy = stats(wait=0.0005, num_workers=8, trainer=delayed)  # all of them are at work all the time
    diagnosis = diagnose(run(heavy, moments=crowd(workers=7.0, others=0.1)))
    assert diagnosis.verdict == "noisy-neighbour"
    assert not any("num_workers=" in line for line in diagnosis.advice)
    assert diagnosis.gain_share == pytest.approx(0.02, abs=0.02)
    assert "about none from other arguments" in str(diagnosis.gain)
    assert not [finding for finding in diagnosis.findings if finding.about == "num_workers"]


def test_of_waiting_only_that_for_a_core_is_lost_to_others() -> None:
    crowded = stats(wait=0.03, cpu=0.03, delay=0.06)
    diagnosis = diagnose(run(crowded, moments=crowd(workers=2.0, others=6.0)))
    assert diagnosis.gain_share == pytest.approx(0.6 * 0.6, abs=0.05)


def test_workers_without_cores_have_noisy_neighbors_unless_they_are_their_own() -> None:
    crowded = stats(wait=0.03, cpu=0.03, delay=0.06)
    assert diagnose(run(crowded, moments=crowd(workers=2.0, others=6.0))).verdict == "noisy-neighbour"
    assert diagnose(run(crowded, moments=crowd(workers=7.0, others=0.1))).verdict == "decode-bound"


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_that_are_mostly_their_first_batch_are_start_up_bound(persistent: bool) -> None:
    seen = stats(num_iterations=20, first_batch_seconds=[0.5] * 20, batch_seconds=times(0.02, 80))
    config = seen.config | {"persistent_workers": persistent}
    diagnosis = diagnose(run(replace(seen, config=config, seconds=11.6)))
    assert diagnosis.verdict == "start-up-bound"
    assert ("persistent_workers=True" in diagnosis.advice[0]) != persistent


def test_one_long_epoch_is_not_judged_by_its_beginning() -> None:
    facts = {"num_batches": 100_000}
    seen = stats(first_batch_seconds=[5.0], facts=facts, seconds=7.0)
    assert diagnose(run(seen)).verdict == "compute-bound"
    assert diagnose(run(replace(seen, facts={}))).verdict == "compute-bound"
    assert diagnose(run(replace(seen, facts={"num_batches": 100}))).verdict == "start-up-bound"


def memory(*levels: float) -> list[Moment]:
    noise = np.random.default_rng(0).normal(0, 1 << 20, len(levels))
    return [
        Moment(at=float(at), private_bytes=int(level * (1 << 30) + wobble), workers_pss_bytes=1 << 20)
        for at, (level, wobble) in enumerate(zip(levels, noise))
    ]


def test_memory_that_grows_steadily_is_shown_before_anything_else() -> None:
    growing = memory(*(1 + at / 10 for at in range(40)))
    diagnosis = diagnose(run(stats(wait=0.03), moments=growing))
    assert diagnosis.verdict == "memory-growth"
    assert "trainer" in diagnosis.says
    assert "10 min" in str(diagnosis.evidence)  # 59 GiB at 0.1 GiB a second


@pytest.mark.parametrize(
    "levels",
    [
        [4.0] * 40,
        [min(4.0, 1 + at / 5) for at in range(40)],
        [1 + 0.5 * (at % 2) for at in range(40)],
        [1.0] * 20 + [3.0] * 20,
        [4 - at / 20 for at in range(40)],
        [1 + at / 10 for at in range(6)],
    ],
    ids=["flat", "levels off", "up and down", "one step", "falls", "too few"],
)
def test_memory_that_does_not_grow_on_is_no_leak(levels: list[float]) -> None:
    assert diagnose(run(stats(wait=0.0005), moments=memory(*levels))).verdict == "compute-bound"


def test_memory_that_stays_the_same_to_the_byte_has_come_to_its_end() -> None:
    levels = [min(4 << 30, (1 << 30) + at * (200 << 20)) for at in range(60)]
    moments = [Moment(at=float(at), private_bytes=level) for at, level in enumerate(levels)]
    assert diagnose(run(stats(wait=0.0005), moments=moments)).verdict == "compute-bound"


def test_memory_that_grows_before_the_first_batch_is_the_models() -> None:
    growing = memory(*(1 + at / 10 for at in range(40)))
    began = replace(run(stats(wait=0.0005), moments=growing), began=1000.0)

    def asked_at(first: float) -> Run:
        laps = {"asked": [first, first + 1], "handed": [first, first + 100]}
        return replace(began, loaders=[stats(wait=0.0005, laps=laps)])

    assert diagnose(asked_at(1000.0)).verdict == "memory-growth"
    assert diagnose(asked_at(1035.0)).verdict == "compute-bound"


def test_memory_that_grows_until_the_first_batch_is_there_is_that_of_workers_that_import() -> None:
    growing = memory(*(1 + min(at, 35) / 10 for at in range(40)))
    seen = stats(wait=0.0005, laps={"asked": [1000.0, 1036.0], "handed": [1035.0, 1100.0]})
    assert diagnose(replace(run(seen, moments=growing), began=1000.0)).verdict == "compute-bound"


def test_a_leak_that_would_take_a_week_is_none() -> None:
    slow = memory(*(1 + at * 0.001 for at in range(400)))
    slow = [replace(moment, at=moment.at * 10) for moment in slow]
    assert diagnose(run(stats(wait=0.0005), moments=slow)).verdict == "compute-bound"


def test_samples_that_come_from_several_workers_are_duplicated() -> None:
    seen = stats(wait=0.03, num_workers=4, duplicate_share=0.75, facts={"looked_at_worker": False})
    diagnosis = diagnose(run(seen))
    assert diagnosis.verdict == "duplicated-data"
    assert "4.0 times" in diagnosis.says
    assert "get_worker_info" in str(diagnosis.evidence)


def ranked(rank: int, **shown: Any) -> Stats:
    return replace(stats(**shown), rank=rank, num_ranks=4)


def test_the_rank_that_waits_while_others_do_not_is_the_slow_one() -> None:
    ranks = [ranked(rank, wait=0.0005, step=0.0495) for rank in (0, 1, 3)]
    diagnosis = diagnose(run(*ranks, ranked(2, wait=0.03, step=0.02, cpu=0.001)))
    assert diagnosis.verdict == "slow-rank"
    assert diagnosis.says.startswith("rank 2 waits 30 ms")
    assert "storage-bound" in str(diagnosis.evidence)


def test_a_rank_that_computes_longer_is_slow_and_not_for_its_data() -> None:
    ranks = [ranked(rank, wait=0.0005, step=0.02) for rank in (0, 1, 3)]
    diagnosis = diagnose(run(*ranks, ranked(2, wait=0.0005, step=0.04)))
    assert diagnosis.verdict == "slow-rank"
    assert "not its data" in str(diagnosis.evidence)


def test_ranks_that_all_wait_have_that_in_common() -> None:
    ranks = [ranked(rank, wait=0.03 + rank / 1000, cpu=0.001) for rank in range(4)]
    assert diagnose(run(*ranks)).verdict == "storage-bound"


def test_the_loader_that_costs_most_is_judged() -> None:
    training = replace(stats(wait=0.0005), name="train.py:10")
    checking = replace(stats(wait=0.03, cpu=0.001), name="train.py:20")
    diagnosis = diagnose(run(training, checking))
    assert diagnosis.verdict == "storage-bound"
    assert "train.py:20" in str(diagnosis.evidence)


@pytest.mark.parametrize("num_batches", [0, 1, 2])
def test_too_little_is_not_judged(num_batches: int) -> None:
    few = stats(num_batches=num_batches, batch_seconds=times(0.02, num_batches), num_iterations=1)
    diagnosis = diagnose(run(few))
    assert diagnosis.verdict == "nothing-seen"
    assert diagnosis.advice
    assert diagnose(Run()).verdict == "nothing-seen"


# -------------------------------------------------------------------- any record

seconds = st.floats(0, 1e4, allow_subnormal=False) | st.just(0.0)
counts = st.integers(0, 10_000)
shares = st.floats(0, 1)
quantiles = st.builds(Quantiles, num=counts, mean=seconds, p50=seconds, p90=seconds, p99=seconds, most=seconds)
stages = st.dictionaries(
    st.sampled_from(["read", "transform", "collate", "hand-over", "copy", "wait"]),
    st.builds(Stage, busy_seconds=seconds, waiting_seconds=seconds, cpu_seconds=st.none() | seconds),
)
processes = st.builds(
    ProcessStats,
    pid=st.integers(0, 9),
    role=st.just("worker 0"),
    cpu_seconds=seconds,
    delay_seconds=st.none() | seconds,
    read_bytes=st.none() | counts,
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "num_workers": st.none() | st.integers(0, 40) | st.just("auto"),
        "num_threads": st.integers(0, 8) | st.just("auto"),
        "batch_size": st.none() | st.integers(1, 100),
        "prefetch_factor": st.none() | st.integers(1, 4) | st.just("auto"),
        "persistent_workers": st.booleans(),
        "start_method": st.sampled_from([None, "fork", "spawn"]),
        "order": st.sampled_from(["shuffle", "stream", "sequential", "own"]),
        "is_iterable": st.booleans(),
        "pin_memory": st.booleans(),
        "device": st.sampled_from([None, "cuda"]),
    },
)
facts = st.fixed_dictionaries(
    {},
    optional={
        "num_batches": counts,
        "num_objects": st.integers(0, 10**7),
        "object_bytes": st.integers(0, 10**12),
        "array_bytes": st.integers(0, 10**12),
        "files_bytes": st.integers(0, 10**13),
        "looked_at_worker": st.booleans(),
        "watched_share": shares,
        "threads_cpu_seconds": seconds,
        "mount": st.just({"point": "/data", "kind": "nfs4", "is_remote": True, "is_rotational": None}),
    },
)
columns = st.integers(0, 5).flatmap(
    lambda num: st.fixed_dictionaries(
        {name: st.lists(seconds, min_size=num, max_size=num) for name in ("asked", "handed", "made")}
    )
)
any_stats = st.builds(
    Stats,
    kind=st.sampled_from(["torch", "stoker", "iterable"]),
    engine=st.sampled_from(["inline", "threads", "processes"]),
    config=configs,
    facts=facts,
    rank=st.integers(0, 3),
    seconds=seconds,
    num_iterations=st.integers(0, 20),
    num_batches=counts,
    num_samples=counts,
    num_bytes=counts,
    first_batch_seconds=st.lists(seconds, max_size=4),
    batch_seconds=quantiles,
    wait_seconds=quantiles,
    step_seconds=quantiles,
    making_seconds=quantiles,
    stages=stages,
    wait_cpu_seconds=st.none() | seconds,
    wait_delay_seconds=st.none() | seconds,
    num_stalls=counts,
    queue_depth=st.none() | seconds,
    queue_empty_share=st.none() | shares,
    trainer=st.none() | processes,
    workers=st.lists(processes, max_size=3),
    copies=st.none()
    | st.builds(
        Copies,
        num=counts,
        num_pageable=counts,
        num_blocking=counts,
        seconds=seconds,
        device_seconds=st.none() | seconds,
    ),
    sampled=st.none() | st.builds(Sampled, num=counts, gil_share=st.none() | shares),
    duplicate_share=st.none() | shares,
    laps=st.none() | columns,
)
any_moment = st.builds(
    Moment,
    at=seconds,
    private_bytes=st.none() | st.integers(0, 1 << 36),
    workers_pss_bytes=st.none() | counts,
    trainer_cores=seconds,
    workers_cores=seconds,
    others_cores=seconds,
    trainer_delay_share=st.none() | shares,
    cores=st.lists(shares, max_size=3),
)
machines = st.fixed_dictionaries(
    {}, optional={"cores": st.integers(1, 128), "memory_bytes": st.none() | st.integers(1, 1 << 40)}
)
any_run = st.builds(
    Run, machine=machines, loaders=st.lists(any_stats, max_size=4), moments=st.lists(any_moment, max_size=12)
)


@given(any_run)
def test_any_record_gets_exactly_one_verdict(run: Run) -> None:
    diagnosis = diagnose(run)
    assert diagnosis.verdict in VERDICTS
    assert diagnosis.says
    assert diagnosis.gain_share is None or 0 <= diagnosis.gain_share <= 1
    assert diagnosis.is_healthy or diagnosis.advice
    assert diagnosis.is_healthy == (diagnosis.gain is None and not diagnosis.advice)
    assert str(diagnosis).startswith(diagnosis.verdict)
    assert Diagnosis.from_dict(diagnosis.as_dict()) == diagnosis
    assert diagnose(run) == diagnosis


def test_steps_too_short_to_divide_by_get_a_verdict() -> None:
    assert diagnose(run(stats(wait=2.0, step=5e-324, read=0.0))).verdict in VERDICTS


@given(any_run)
def test_a_saved_record_gets_the_same_verdict(run: Run) -> None:
    assert diagnose(Run.from_dict(run.as_dict())) == diagnose(run)


# ---------------------------------------------------------------- advice that would do harm


def streamed(kind: str, num_workers: int = 0, **more: Any) -> Diagnosis:
    shown = stats(wait=0.03, step=0.01, num_workers=max(1, num_workers), kind=kind, **more)
    engine = "processes" if num_workers else "inline"
    config = shown.config | {"is_iterable": True, "num_workers": num_workers}
    return diagnose(run(replace(shown, engine=engine, config=config)))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["torch", "stoker"])
def test_readers_of_a_stream_are_never_more_without_a_word_on_sharing_it_out(kind: str, num_workers: int) -> None:
    """Or every sample would come several times: what the doctor itself calls duplicated data."""
    diagnosis = streamed(kind, num_workers)
    assert diagnosis.verdict == "storage-bound"
    for line in diagnosis.advice:
        assert "num_threads" not in line  # one reads it
        if "num_workers=" in line and "num_workers=1)" not in line:
            assert "shard='auto'" in line or "get_worker_info" in line
    assert any("every sample comes" in line for line in diagnosis.advice)
    assert any("num_workers=1)" in line for line in diagnosis.advice) == (num_workers == 0)
    assert not any("prefetch_factor" in line for line in diagnosis.advice if not num_workers)


def test_a_stream_that_looks_at_its_worker_may_have_more_of_them() -> None:
    diagnosis = streamed("torch", 2, facts={"looked_at_worker": True})
    assert "the dataset asks which worker it is in" in diagnosis.advice[0]


@pytest.mark.parametrize(("wait", "is_healthy"), [(2e-5, True), (2e-3, False)])
def test_what_is_as_quick_as_looking_at_it_is_nobodys_fault(wait: float, is_healthy: bool) -> None:
    diagnosis = diagnose(run(stats(wait=wait, step=1e-5)))
    assert diagnosis.is_healthy == is_healthy
    assert ("a batch arrives within 20 µs" in diagnosis.says) == is_healthy


@pytest.mark.parametrize(("seconds", "is_told"), [(10.0, True), (4.5, False)])
def test_time_outside_of_loops_is_told_if_it_is_much(seconds: float, is_told: bool) -> None:
    shown = replace(run(stats(wait=0.03, step=0.01), moments=[Moment(at=1.0)]), seconds=seconds)  # 4 s in the loop
    evidence = str(diagnose(shown).evidence)
    assert ("6 s of 10 s were spent outside of the loop over this loader" in evidence) == is_told
    assert ("outside of" in evidence) == is_told


@pytest.mark.parametrize(("first", "is_healthy"), [(0.002, True), (0.5, False)])
def test_first_batches_that_are_there_at_once_are_no_slow_start(first: float, is_healthy: bool) -> None:
    shown = stats(wait=0.0, step=1e-4, first_batch_seconds=[first] * 100, num_iterations=100)
    assert diagnose(run(shown)).is_healthy == is_healthy


@pytest.mark.parametrize("kind", ["torch", "stoker"])
def test_small_batches_that_are_long_on_their_way_are_not_to_be_smaller(kind: str) -> None:
    shown = stats(wait=0.0006, step=0.0001, num_workers=4, read=0.0001, kind=kind, num_bytes=400)
    diagnosis = diagnose(run(shown))
    assert diagnosis.verdict == "transport-bound"
    assert "num_workers=0" in diagnosis.advice[0]
    assert "larger batches" in diagnosis.advice[1]
    assert "half as large" not in str(diagnosis.advice)
    assert diagnose(run(replace(shown, stages={}))).advice  # of records that tell less
    large = diagnose(run(replace(shown, num_bytes=100 << 25)))
    assert "uint8" in str(large.advice)
    assert "larger batches" not in str(large.advice)


def test_collating_in_the_trainer_is_for_workers_to_do_and_what_is_torchs_is_nobodys_fault() -> None:
    shown = stats(wait=0.03, step=0.01, num_workers=1, read=0.001, collate=0.029)
    inline = replace(shown, engine="inline", workers=[], config=shown.config | {"num_workers": 0})
    diagnosis = diagnose(run(replace(inline, config=inline.config | {"collate_fn": "mine"})))
    assert diagnosis.verdict == "collate-bound"
    assert "`mine` is yours" in diagnosis.advice[0]
    assert "num_workers=" in diagnosis.advice[-1]
    usual = diagnose(run(replace(inline, config=inline.config | {"collate_fn": "default_collate"})))
    assert "is yours" not in str(usual.advice)
    assert "one by one" not in str(usual.advice)


def test_workers_that_stay_start_once_and_that_is_no_part_of_an_epoch() -> None:
    shown = stats(wait=0.0, step=0.001, first_batch_seconds=[0.9, *[0.002] * 11], num_iterations=12, num_batches=240)
    config = shown.config | {"persistent_workers": True}
    assert diagnose(run(replace(shown, config=config))).is_healthy
    each = replace(shown, first_batch_seconds=[0.9] * 12)
    assert diagnose(run(each)).verdict == "start-up-bound"


# -------------------------------------------------------------------- what hides behind something else


def test_a_dataset_that_waits_for_a_pool_of_python_threads_is_python_bound() -> None:
    """Its own thread is blocked nearly all the time, and the GIL is held by the pool."""
    sampled = Sampled(num=100, places={"data.py:9 __getitem__ `list(pool.map(f, parts))`": 0.9}, gil_share=0.99)
    trainer = ProcessStats(pid=1, role="trainer", cpu_seconds=2.9, delay_seconds=0.1)
    pooled = stats(wait=0.03, step=0.002, num_workers=0, read=0.03, sampled=sampled, trainer=trainer)
    pooled = replace(pooled, engine="inline", wait_cpu_seconds=0.05, wait_delay_seconds=0.0, workers=[])
    assert diagnose(run(pooled)).verdict == "python-bound"
    idle = replace(pooled, trainer=replace(trainer, cpu_seconds=0.2))  # nobody computes: a disk, after all
    assert diagnose(run(idle)).verdict == "storage-bound"


def crowded_out(**more: Any) -> Stats:
    """Two workers that compute for 40 ms of a batch, and wait for a core for 120 ms."""
    delayed = ProcessStats(pid=1, role="trainer", delay_seconds=1.0)
    return stats(wait=0.07, step=0.01, read=0.16, cpu=0.04, delay=0.12, trainer=delayed, **more)


def test_behind_noisy_neighbors_is_the_loaders_own_cause_with_its_line() -> None:
    sampled = Sampled(num=100, places={"data.py:9 __getitem__ `total += x * x`": 0.9}, gil_share=0.95)
    diagnosis = diagnose(run(crowded_out(sampled=sampled), moments=crowd(workers=1.0, others=6.0)))
    assert (diagnosis.verdict, diagnosis.own_cause) == ("noisy-neighbour", "python-bound")
    assert "without other programs the loader would be python-bound" in str(diagnosis)
    assert "data.py:9 __getitem__ `total += x * x`" in str(diagnosis)
    assert "for the loader itself: `DataLoader(..., num_workers=" in str(diagnosis)
    quick = stats(wait=0.07, step=0.06, read=0.16, cpu=0.01, delay=0.15, sampled=sampled)
    assert diagnose(run(quick, moments=crowd(workers=1.0, others=6.0))).own_cause is None


def test_behind_noisy_neighbors_large_batches_that_are_slow_on_their_way_are_named() -> None:
    delayed = ProcessStats(pid=1, role="trainer", cpu_seconds=0.3, delay_seconds=4.0)
    late = laps(100, wait=0.03, step=0.05, made_before_asking=0.05)
    slow = stats(wait=0.03, step=0.05, num_workers=1, read=0.001, cpu=0.001, laps=late, trainer=delayed)
    slow = replace(slow, num_bytes=100 << 25, wait_cpu_seconds=0.1, wait_delay_seconds=0.2)
    moments = crowd(workers=0.1, others=7.0)
    diagnosis = diagnose(run(slow, moments=moments))
    assert (diagnosis.verdict, diagnosis.own_cause) == ("noisy-neighbour", "transport-bound")
    assert "% of the waiting was for batches that were already loaded" in str(diagnosis.evidence)
    assert "uint8" in str(diagnosis.advice)
    small = replace(slow, num_bytes=100 << 10)  # handed over at once, by those who have a core
    assert diagnose(run(small, moments=moments)).own_cause is None
    delayed_waits = replace(slow, wait_delay_seconds=2.9)  # it was there, and the trainer had no core to take it
    assert diagnose(run(delayed_waits, moments=moments)).own_cause is None


def test_cores_that_were_not_measured_are_not_said_to_be_unused() -> None:
    diagnosis = diagnose(run(crowded_out()))
    assert diagnosis.verdict == "noisy-neighbour"
    assert "it was not measured which programs had the cores" in diagnosis.says
    assert "0.0 cores" not in str(diagnosis)


def test_many_more_workers_than_cores_are_too_many_even_where_fewer_are_no_faster() -> None:
    delayed = ProcessStats(pid=1, role="trainer", delay_seconds=0.4)
    used = Moment(at=0.0, workers_cores=1.8, others_cores=0.0, trainer_cores=0.2, cores=[1.0, 1.0])
    moments = [replace(used, at=float(at)) for at in range(10)]
    many = stats(wait=0.07, step=0.01, num_workers=12, cpu=0.15, delay=0.7, trainer=delayed)
    diagnosis = diagnose(run(many, moments=moments, cores=2))
    assert "`DataLoader(..., num_workers=2)`" in diagnosis.advice[0]


def test_a_training_loop_that_reads_values_one_by_one_is_named() -> None:
    steps = Sampled(num=50, places={"train.py:41 train `total += loss.item()`": 0.8, "train.py:30 train": 0.2})
    diagnosis = diagnose(run(stats(wait=0.0005, steps_sampled=steps)))
    assert diagnosis.verdict == "compute-bound"
    assert "train.py:41 train `total += loss.item()` 80%" in "\n".join(diagnosis.evidence)
    (finding,) = diagnosis.findings
    assert (finding.about, "train.py:41" in finding.what) == ("item", True)
    trainer = ProcessStats(pid=1, role="trainer", delay_seconds=1.0)
    delayed = stats(wait=0.0005, read=0.001, steps_sampled=steps, trainer=trainer)
    behind = diagnose(run(delayed, moments=crowd(workers=0.1, others=6.0)))
    assert behind.verdict == "noisy-neighbour"
    assert "the training step: train.py:41 train `total += loss.item()` 80%" in "\n".join(behind.evidence)
    assert behind.findings == [finding]
    once = replace(steps, places={"train.py:41 train `total += loss.item()`": 0.05, "train.py:30 train": 0.95})
    assert diagnose(run(stats(wait=0.0005, steps_sampled=once))).findings == []


def test_a_line_that_copies_is_named_as_one() -> None:
    sampled = Sampled(num=100, places={"data.py:9 __getitem__ `x = self.x.copy()`": 0.9}, gil_share=0.3)
    diagnosis = diagnose(run(stats(wait=0.03, step=0.001, cpu=0.055, sampled=sampled)))
    assert diagnosis.verdict == "decode-bound"
    assert diagnosis.advice[0].startswith("data.py:9 __getitem__ `x = self.x.copy()` copies: a view")
    crowded = diagnose(run(crowded_out(sampled=sampled), moments=crowd(workers=1.0, others=6.0)))
    assert crowded.own_cause == "decode-bound"
    assert any("`x = self.x.copy()` copies: a view" in line for line in crowded.advice)


def test_memory_that_grows_over_the_first_few_batches_is_no_alarm() -> None:
    growing = memory(*(1 + at / 10 for at in range(40)))
    few = replace(stats(wait=0.03), num_batches=12, batch_seconds=times(0.05, 12))
    diagnosis = diagnose(run(few, moments=growing))
    assert diagnosis.verdict != "memory-growth"
    assert "grow" not in str(diagnosis)
    assert diagnose(run(stats(wait=0.03), moments=growing)).verdict == "memory-growth"


def test_memory_that_grows_while_many_workers_fill_their_queues_is_no_alarm() -> None:
    growing = memory(*(1 + at / 10 for at in range(40)))
    many = stats(wait=0.03, num_workers=16)  # 32 batches in flight, and 100 came
    assert diagnose(run(many, moments=growing)).verdict != "memory-growth"
    assert diagnose(run(replace(many, num_batches=200), moments=growing)).verdict == "memory-growth"


def test_what_a_step_computes_is_not_taken_for_delay() -> None:
    """A trainer that is delayed nearly all the time: its step takes as long as its CPU time, and not nothing."""
    trainer = ProcessStats(pid=1, role="trainer", cpu_seconds=2.1, delay_seconds=10.0)  # 100 steps of 21 ms
    late = stats(wait=0.002, step=0.12, num_workers=1, read=0.0003, cpu=0.0002, delay=0.0001, trainer=trainer)
    late = replace(late, wait_cpu_seconds=0.1, wait_delay_seconds=0.0)
    diagnosis = diagnose(run(late, moments=crowd(workers=0.0, others=7.0)))
    assert (diagnosis.verdict, diagnosis.own_cause) == ("noisy-neighbour", None)
    assert diagnosis.gain_share == pytest.approx(1 - 20 / 122, abs=0.02)


def test_the_delay_of_the_trainer_is_that_of_its_time_and_no_more() -> None:
    """Loaders count it from their making on, and moments from the start."""
    delayed = ProcessStats(pid=1, role="trainer", cpu_seconds=0.4, delay_seconds=9.0)
    moments = [replace(moment, trainer_delay_share=0.3) for moment in crowd(workers=0.1, others=6.0)]
    diagnosis = diagnose(run(stats(wait=0.0005, trainer=delayed), moments=moments))
    assert diagnosis.verdict == "noisy-neighbour"
    assert "had no core for 30% of the time" in diagnosis.evidence[0]


@pytest.mark.parametrize("cores", [[], [0.5, 0.5]])
def test_workers_are_not_judged_by_cores_that_were_not_measured(cores: list[float]) -> None:
    unseen = stats(wait=0.03, read=0.0, workers=[], sampled=None)
    moments = [Moment(at=float(at), trainer_delay_share=0.0, cores=cores) for at in range(10)]
    evidence = str(diagnose(run(unseen, moments=moments)).evidence)
    assert ("of them used 0 cores" in evidence) == bool(cores)


def test_workers_that_end_between_two_looks_are_not_taken_for_other_programs() -> None:
    """They were counted by their batches, and their cores are none of others'."""
    moments = crowd(workers=0.0, others=6.0)
    seen = MachineLoad.of(moments).with_workers(50.0, 10.0)
    assert (seen.workers_cores, seen.others_cores) == pytest.approx((5.0, 1.0))
    assert MachineLoad.of(crowd(workers=6.0, others=0.0)).with_workers(50.0, 10.0).workers_cores == 6.0
    assert diagnose(run(crowded_out(), moments=moments)).verdict == "noisy-neighbour"
    worker = ProcessStats(pid=2, role="worker 0", cpu_seconds=50.0, delay_seconds=12.0)
    assert diagnose(run(crowded_out(workers=[worker]), moments=moments)).verdict == "decode-bound"


def test_twelve_workers_on_two_cores_that_were_not_measured_are_too_many_too() -> None:
    many = stats(wait=0.07, step=0.01, num_workers=12, cpu=0.15, delay=0.7)
    assert "`DataLoader(..., num_workers=2)`" in diagnose(run(many, cores=2)).advice[0]
