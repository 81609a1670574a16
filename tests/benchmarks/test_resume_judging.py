"""What the benchmark of resuming counts as exact, lost and repeated."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.resume.jobs import NUM_EPOCHS, Job, Shape
from benchmarks.resume.judging import EXACT, REORDERED, WRONG, Step, judge, read_firsts, read_run
from benchmarks.resume.scenarios import STEPS, scenarios

ids = st.lists(st.integers(0, 30), min_size=1, max_size=5)
runs = st.lists(st.builds(lambda epoch, ids: Step(epoch, tuple(sorted(ids))), st.integers(0, 2), ids), max_size=12)
flags = st.booleans()


def counted(run: list[Step], *, by_epoch: bool) -> Counter[tuple[int, int]]:
    return Counter((step.epoch * by_epoch, number) for step in run for number in step.ids)


@given(run=runs, by_epoch=flags)
def test_a_run_that_nobody_disturbed_is_exact(run: list[Step], by_epoch: bool) -> None:
    verdict = judge(run, list(run), by_epoch=by_epoch)
    assert (verdict.kind, verdict.lost, verdict.repeated) == (EXACT, 0, 0)


@given(trained=runs, expected=runs, by_epoch=flags)
def test_lost_and_repeated_samples_account_for_the_difference(
    trained: list[Step], expected: list[Step], by_epoch: bool
) -> None:
    verdict = judge(trained, expected, by_epoch=by_epoch)
    found, due = counted(trained, by_epoch=by_epoch), counted(expected, by_epoch=by_epoch)
    assert due.total() - verdict.lost + verdict.repeated == found.total()
    assert (verdict.kind == EXACT) == (trained == expected)
    assert (verdict.kind == WRONG) == (found != due) == bool(verdict.lost or verdict.repeated)
    mirrored = judge(expected, trained, by_epoch=by_epoch)
    assert (mirrored.lost, mirrored.repeated) == (verdict.repeated, verdict.lost)


@given(run=runs, step=st.integers(0, 11), extra=ids)
def test_a_step_that_is_left_out_is_lost_and_one_that_comes_again_is_repeated(
    run: list[Step], step: int, extra: list[int]
) -> None:
    run.insert(min(step, len(run)), left_out := Step(1, tuple(sorted(extra))))
    shorter = list(run)
    shorter.remove(left_out)
    lost = judge(shorter, run, by_epoch=True)
    assert (lost.kind, lost.lost, lost.repeated) == (WRONG, len(extra), 0)
    repeated = judge([*run, left_out], run, by_epoch=True)
    assert (repeated.kind, repeated.lost, repeated.repeated) == (WRONG, 0, len(extra))


def test_samples_of_another_step_are_another_order_and_those_of_another_epoch_are_wrong() -> None:
    run = [Step(0, (1, 2)), Step(0, (3, 4)), Step(1, (1, 3)), Step(1, (2, 4))]
    assert judge([run[1], run[0], *run[2:]], run, by_epoch=True).kind == REORDERED
    swapped = [Step(0, (1, 3)), *run[1:2], Step(1, (1, 2)), *run[3:]]
    verdict = judge(swapped, run, by_epoch=True)
    assert (verdict.kind, verdict.lost, verdict.repeated) == (WRONG, 2, 2)
    assert judge(swapped, run, by_epoch=False).kind == REORDERED


def write(job: Job, *lines: dict[str, object]) -> Job:
    job.record(job.part, job.rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return job


def test_a_killed_part_counts_up_to_its_last_checkpoint_and_ranks_make_a_step_together(tmp_path: Path) -> None:
    job = Job(data="", folder=str(tmp_path), part=0, shape=Shape(2, num_ranks=2, batch_size=4))
    killed = [
        write(
            replace(job, rank=rank),
            {"epoch": 0, "ids": [7 + rank, 1 + rank], "seconds": 0.5 + rank, "reads": 20 + rank},
            {"saved": 1},
            {"epoch": 0, "ids": [3 + rank]},
            {"saved": 2},
            {"epoch": 0, "ids": [99]},
            {"stopped": 3},
        )
        for rank in (0, 1)
    ]
    last = [write(replace(job, part=1), {"epoch": 0, "ids": [5, 6], "seconds": 2.0, "reads": None}, {"finished": 3})]
    assert read_run([killed, last]) == [Step(0, (1, 2, 7, 8)), Step(0, (3, 4)), Step(0, (5, 6))]
    firsts = read_firsts([killed, last])
    assert [(first.seconds, first.reads) for first in firsts] == [(1.5, 41), (2.0, None)]


def test_runs_are_killed_in_mid_epoch_up_to_four_steps_behind_a_checkpoint() -> None:
    stopped = [part for scenario in scenarios(is_quick=False) for run in scenario.runs for part in run[:-1]]
    at_random = [part for part in stopped if part.saved_at is not None and part.saved_at % STEPS]
    assert len(at_random) > 15
    for part in at_random:
        assert part.saved_at is not None
        assert part.stopped_at is not None
        assert 0 <= part.stopped_at - part.saved_at < 5
        assert part.saved_at // STEPS == part.stopped_at // STEPS < NUM_EPOCHS
    assert all(
        scenario.runs[0][0].shape == run[0].shape for scenario in scenarios(is_quick=False) for run in scenario.runs
    )
