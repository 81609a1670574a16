"""Shares, means and sizes of the report: each says of which whole it is, or of whom, and two of one name agree."""

from __future__ import annotations

import re
from dataclasses import replace

import stoker
from stoker.foundation.text import format_duration, format_number, format_percent
from stoker.lab.diagnose.loader_profile import profile_loader
from stoker.lab.page.durations import durations
from stoker.lab.page.recorded_batches import batches_of
from stoker.lab.page.reported_run import ReportedLoader, ReportedRun
from stoker.lab.watch.run import Moment, ProcessStats, Quantiles, Run, Stats
from tests.lab import runs
from tests.lab.test_report import Parsed, text_of


def test_durations_lead_with_the_mean_which_fits_the_throughput() -> None:
    run = runs.starved()
    [stats] = run.loaders
    text = text_of(run)
    period, step = stats.batch_seconds, stats.step_seconds
    assert period.mean > 1.2 * period.p50, "some batches take far longer than most"
    assert f"from batch to batch, mean {format_duration(period.mean)} p50 {format_duration(period.p50)}, " in text
    assert f"step, mean {format_duration(step.mean)} p50 {format_duration(step.p50)}, " in text
    speed = f"{format_number(stats.samples_per_second)} samples/s {format_number(stats.num_batches / stats.seconds)}"
    assert f"throughput {speed} batches/s, including first batches" in text


def test_shares_of_waiting_say_of_which_whole_they_are() -> None:
    run = runs.starved()
    [stats] = run.loaders
    text = text_of(run)
    wait, period = stats.wait_seconds.mean, stats.batch_seconds.mean
    share = format_percent(stats.wait_share)
    tile = f"{share} {format_duration(wait)} of {format_duration(period)} from batch to batch"
    assert f"waiting for data, without first batches {tile}" in text
    assert "of the time (in the loop, including first batches)" in text.partition("Suggested changes")[0], (
        "what is to win"
    )
    assert "of waiting and busy time refer to the time from batch to batch, without first batches" in text
    assert f"trainer: {format_duration(stats.seconds)} in the loop" in text
    assert f"Without first batches, {share} of the time from batch to batch is waiting" in text
    fills = format_percent(profile_loader(stats).occupancy)
    assert f"Without first batches, they are busy {fills} of the time from batch to batch" in text
    late = text_of(runs.ranks()).partition("Suggested changes")[0]
    assert "of the time (from batch to batch)" in late, "a rank is late by a part of each batch"


def test_time_outside_of_the_loop_is_a_part_of_the_whole_run() -> None:
    run = runs.starved()
    [stats] = run.loaders
    valid = replace(runs.one_batch().loaders[0], name="valid", seconds=3.0)
    watched = replace(run, loaders=[stats, valid], seconds=stats.seconds + 12.0)
    text = text_of(watched)
    whole = watched.seconds
    parts = (("in this loop", stats.seconds), ("in other loops", 3.0), ("outside loops", 9.0))
    assert f"the whole run: {format_duration(whole)}" in text
    assert " ".join(f"{name} {format_percent(part / whole)}" for name, part in parts) in text
    alone = text_of(Run(loaders=[stats], seconds=stats.seconds))
    assert "the whole run" not in alone
    assert "Time outside the loop (before it, after it, between iterations) is not shown here" in alone
    twice = text_of(replace(run, loaders=[stats, replace(valid, seconds=whole)], seconds=stats.seconds + 1))
    assert "outside loops" not in twice, "loops within loops leave nothing, and not less"


def process(pid: int, role: str, mebibytes: int) -> ProcessStats:
    return ProcessStats(pid=pid, role=role, pss_bytes=mebibytes << 20)


def with_memory(loaders: list[Stats]) -> Run:
    mebibytes = ((100, 50), (175, 179), (312, 0))
    moments = [
        Moment(at=at, trainer_pss_bytes=own << 20, workers_pss_bytes=workers << 20)
        for at, (own, workers) in enumerate(mebibytes, 1)
    ]
    return Run(loaders=loaders, seconds=10.0, moments=moments)


def test_memory_says_whose_and_when() -> None:
    stats = replace(
        runs.starved().loaders[0], trainer=process(1, "trainer", 312), workers=[process(2, "worker 0", 93)], laps=None
    )
    text = text_of(with_memory([stats]))
    assert "peak memory 371 MB trainer 184 MB, workers 188 MB" in text
    assert "peak 371 MB, of which the trainer has 184 MB" in text
    assert "memory at the end" in text
    assert "the trainer's memory grows when its workers exit" in text
    ranks = text_of(with_memory([replace(stats, rank=rank, num_ranks=2) for rank in range(2)]))
    assert "trainers of all 2 ranks 184 MB, workers 188 MB" in ranks
    assert "of which the trainers of all 2 ranks have 184 MB" in ranks
    assert "Processes, rank 0" in ranks, "and here it is one rank"


def test_memory_of_ranks_that_nobody_looked_at_over_time_is_that_of_one() -> None:
    loaders = [replace(one, trainer=process(1, "trainer", 10 + one.rank), workers=[]) for one in runs.ranks().loaders]
    text = text_of(Run(loaders=loaders, seconds=1.0))
    assert "peak memory 13.6 MB of the rank with the most, at the last sample" in text


def test_first_batches_are_not_among_the_waits_that_are_drawn() -> None:
    laps = {"asked": [0.0, 1.5, 2.5, 9.0, 10.5], "handed": [1.0, 2.0, 2.6, 9.9, 10.6]}  # two iterations
    stats = replace(runs.one_batch().loaders[0], laps=laps, num_batches=5)
    stats = replace(stats, step_seconds=replace(stats.step_seconds, num=3, most=0.6))
    batches = batches_of(stats)
    assert batches is not None
    assert batches.later_waits.round(6).tolist() == [0.5, 0.1, 0.1]
    drawn = durations(
        [("", ReportedLoader(replace(stats, wait_seconds=Quantiles(num=3, most=0.5)), "loader", None, 4096))]
    )
    assert sum(int(count) for count in re.findall(r'"wait: [^"]*?: (\d+) \(', drawn)) == 3


def test_the_rank_that_is_led_with_is_named_where_its_figures_stand() -> None:
    text = text_of(runs.ranks(slow=2))
    for title in ("Timeline of batches", "Processes"):
        assert f"{title}, rank 2" in text
    assert "trainer, rank 2: " in text
    assert "Figures of rank 2, which waits longest for data, unless noted otherwise. throughput" in text
    assert "rank" not in Parsed(str(stoker.report(runs.starved()))).text.partition("Timeline")[2]


def test_a_run_that_somebody_looked_at_is_distinguished_from_counters_alone() -> None:
    run = runs.starved()
    diagnosis = stoker.report(run).diagnoses[0]
    assert ReportedRun(run, diagnosis, "").is_watched
    assert ReportedRun(replace(run, moments=[], began=1.0), diagnosis, "").is_watched
    assert not ReportedRun(replace(run, moments=[]), diagnosis, "").is_watched
    assert "in the loop for" in text_of(replace(run, moments=[]))
