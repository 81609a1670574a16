"""Sweeps: a fair order, means and deviations, and rows that say what went wrong."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.engine.stats import Quantiles
from stoker.errors import ArgumentError
from stoker.lab.trial.process_memory import ProcessMemory
from stoker.lab.trial.rounds import Spread, in_turn
from stoker.lab.trial.sweep import (
    QUANTITIES,
    Result,
    Sweep,
    bench_loader,
    bytes_per_worker,
    configurations,
    label_of,
    summarize_trials,
)
from stoker.lab.trial.trial import FAILED, HUNG, KILLED, OK, Trial
from tests.lab import plain_loaders

pytestmark = pytest.mark.timed


def test_every_round_has_everyone_and_every_other_runs_backwards() -> None:
    names = ["a", "b", "c", "d"]
    rounds = [in_turn(names, number) for number in range(8)]
    assert all(sorted(one) == names for one in rounds)
    assert [one[0] for one in rounds] == ["a", "d", "b", "a", "c", "b", "d", "c"], "everyone comes first, in time"
    for forwards, backwards in zip(rounds[::2], rounds[1::2]):
        assert backwards == forwards[::-1], "whoever came late now comes early"
    assert in_turn([], 3) == []


def test_combinations_leave_out_what_makes_no_difference() -> None:
    assert configurations() == [{}]
    assert configurations(workers=[0, 1, 2], prefetches=[2, 4]) == [
        {"num_workers": 0},
        {"num_workers": 1, "prefetch_factor": 2},
        {"num_workers": 1, "prefetch_factor": 4},
        {"num_workers": 2, "prefetch_factor": 2},
        {"num_workers": 2, "prefetch_factor": 4},
    ]
    both = configurations(workers=[0], threads=[0, 2], prefetches=[2, 4], batch_sizes=[8, 16])
    assert len(both) == 2 * (1 + 2)
    assert {"num_workers": 0, "num_threads": 2, "batch_size": 16, "prefetch_factor": 4} in both
    with pytest.raises(ArgumentError, match="batch_size must be at least 1, got 0"):
        configurations(batch_sizes=[4, 0])


def test_a_spread_is_a_mean_and_a_standard_deviation() -> None:
    assert Spread.of([1.0, None, 2.0, 3.0]) == Spread(mean=2.0, deviation=1.0, num=3)
    assert Spread.of([5.0]) == Spread(mean=5.0, deviation=None, num=1)
    assert Spread.of([None]) is None


def trial(num_workers: int, number: int, seconds: float, **more: object) -> Trial:
    return Trial(
        config={"num_workers": num_workers},
        number=number,
        seconds=seconds,
        num_batches=10,
        num_samples=40,
        num_bytes=4000,
        batch_seconds=Quantiles(num=10, mean=seconds / 10, p50=seconds / 10, p90=seconds / 9, p99=seconds / 8),
        cpu_seconds_per_sample=0.001,
        trainer_bytes=100,
        workers_bytes=70 * num_workers,
        private_bytes=80 + 50 * num_workers,
        processes=[
            ProcessMemory(name="trainer", peak_bytes=150, held_bytes=100),
            *(ProcessMemory(name=f"worker {n}", peak_bytes=90, held_bytes=65 + 10 * n) for n in range(num_workers)),
        ],
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def sweep() -> Sweep:
    return Sweep(
        target="train:make_loader",
        settings={"seconds": 1.0, "num_batches": None, "num_rounds": 2},
        configs=[{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 4}],
        trials=[
            trial(0, 0, 2.0),
            trial(2, 0, 1.0, epoch_start_seconds=[0.5, 1.5]),
            Trial(config={"num_workers": 4}, outcome=KILLED, error="ended by SIGKILL", trace="no more"),
            trial(2, 1, 0.5),
            trial(0, 1, 2.0),
        ],
        notes=["something to know"],
    )


def test_trials_are_summed_up_by_configuration(sweep: Sweep) -> None:
    none, two, four = sweep.results()
    assert (none.label, none.num_ok, none.outcome) == ("0 workers", 2, OK)
    assert none.spreads["samples_per_second"] == Spread(mean=20.0, deviation=0.0, num=2)
    assert two.mean("samples_per_second") == 60.0
    assert two.deviation("samples_per_second") == pytest.approx(800**0.5)
    assert two.mean("seconds_per_batch") == pytest.approx(0.075)
    assert two.mean("bytes_per_second") == 6000.0
    assert two.mean("epoch_start_seconds") == 1.0
    assert none.mean("epoch_start_seconds") is None
    assert (four.num_ok, four.num_not, four.outcome, four.error) == (0, 1, KILLED, "ended by SIGKILL")
    assert four.mean("samples_per_second") is None
    assert bytes_per_worker(sweep.results()) == 50
    assert {name: spread.mean for name, spread in two.processes.items()} == {
        "trainer": 100.0, "worker 0": 65.0, "worker 1": 75.0
    }  # fmt: skip
    assert (two.mean("worker_bytes"), two.mean("largest_worker_bytes")) == (70.0, 75.0)
    assert none.mean("worker_bytes") is None
    assert four.processes == {}


def test_a_process_that_was_not_always_there_had_nothing_then() -> None:
    once = replace(trial(0, 0, 1.0), processes=[ProcessMemory(name="worker 0", peak_bytes=9, held_bytes=8)])
    gone = replace(once, processes=[ProcessMemory(name="worker 0", peak_bytes=9)])
    never = replace(once, processes=[ProcessMemory(name="trainer", peak_bytes=9, held_bytes=8)])
    assert summarize_trials({}, [once, gone]).processes["worker 0"].mean == 4.0
    assert {name: spread.mean for name, spread in summarize_trials({}, [once, never]).processes.items()} == {
        "worker 0": 4.0, "trainer": 4.0
    }  # fmt: skip


def test_a_configuration_that_failed_once_is_shown_with_what_went_well() -> None:
    result = summarize_trials({}, [trial(0, 0, 1.0), Trial(config={}, outcome=FAILED, error="once")])
    assert (result.outcome, result.num_ok, result.num_not, result.error) == (OK, 1, 1, "once")


def test_a_sweep_survives_its_file(sweep: Sweep, tmp_path: Path) -> None:
    sweep.save(tmp_path / "sweep.json")
    assert Sweep.load(tmp_path / "sweep.json") == sweep
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "stoker-run"}', '{"format": "stoker-sweep", "trials": 3}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ArgumentError, match="other.json is not a record of measurements"):
        Sweep.load(tmp_path / "other.json")


def test_tables_have_a_line_for_each_configuration_and_for_each_trial(sweep: Sweep) -> None:
    rows = list(csv.DictReader(io.StringIO(sweep.results_csv())))
    assert [row["num_workers"] for row in rows] == ["0", "2", "4"]
    assert float(rows[1]["samples_per_second"]) == 60.0
    assert float(rows[1]["samples_per_second_std"]) == pytest.approx(800**0.5)
    assert (rows[2]["outcome"], rows[2]["samples_per_second"], rows[2]["error"]) == (KILLED, "", "ended by SIGKILL")
    for name in QUANTITIES:
        assert f"{name}_std" in rows[0]
    each = list(csv.DictReader(io.StringIO(sweep.trials_csv())))
    assert [(row["round"], row["num_workers"], row["outcome"]) for row in each] == [
        ("0", "0", OK), ("0", "2", OK), ("0", "4", KILLED), ("1", "2", OK), ("1", "0", OK)
    ]  # fmt: skip
    assert float(each[3]["samples_per_second"]) == 80.0
    processes = list(csv.DictReader(io.StringIO(sweep.processes_csv())))
    assert [(row["round"], row["num_workers"], row["process"]) for row in processes[:4]] == [
        ("0", "0", "trainer"), ("0", "2", "trainer"), ("0", "2", "worker 0"), ("0", "2", "worker 1")
    ]  # fmt: skip
    assert (processes[3]["peak_bytes"], processes[3]["held_bytes"]) == ("90", "75")
    assert len(processes) == 8


def test_labels_are_words() -> None:
    config = {"num_workers": 1, "num_threads": 2, "batch_size": 64, "prefetch_factor": 4}
    assert label_of(config) == "1 worker, 2 threads, batch 64, prefetch 4"
    assert label_of(config, ["batch_size"]) == "batch 64"
    assert label_of({}) == "current settings"


def test_memory_that_is_not_known_does_not_grow(sweep: Sweep) -> None:
    assert bytes_per_worker([]) is None
    assert bytes_per_worker([Result(config={"num_workers": 1}, label="")]) is None
    assert bytes_per_worker(sweep.results()[:1]) is None


# ---------------------------------------------------------------- with real trials


def swept(function: object, **options: object) -> Sweep:
    return bench_loader(function, seconds=0.08, **options)  # type: ignore[arg-type]


def test_a_sweep_measures_every_combination_in_every_round() -> None:
    seen: list[tuple[int, int, str]] = []
    sweep = swept(
        plain_loaders.long,
        workers=[1, 3],
        batch_sizes=[4, 8],
        num_rounds=2,
        watch=lambda done, total, what: seen.append((done, total, what)),
    )
    order = [(one.number, one.config["num_workers"], one.config["batch_size"]) for one in sweep.trials]
    assert order == [
        (0, 1, 4), (0, 3, 4), (0, 1, 8), (0, 3, 8), (1, 3, 8), (1, 1, 8), (1, 3, 4), (1, 1, 4)
    ]  # fmt: skip
    assert [done for done, _, _ in seen] == list(range(8))
    assert {total for _, total, _ in seen} == {8}
    assert seen[0][2] == "1 worker, batch 4"
    results = {result.label: result for result in sweep.results()}
    slow, quick = (results[f"{name}, batch 8"].mean("seconds_per_batch") for name in ("1 worker", "3 workers"))
    assert slow is not None and quick is not None
    assert quick < slow, "three sleep a third as long"
    assert all(result.num_ok == 2 and result.deviation("samples_per_second") > 0 for result in results.values())
    assert sweep.run is None, "it was not asked for"


def test_what_goes_wrong_is_a_row_and_is_not_tried_again() -> None:
    for function, outcome, bad in (
        (plain_loaders.failing, FAILED, 1),
        (plain_loaders.killed, KILLED, 2),
        (plain_loaders.hanging, HUNG, 2),
    ):
        limit = 2.5 if outcome == HUNG else 60.0
        sweep = swept(function, workers=[0, bad], num_rounds=2, limit_seconds=limit)
        good, ill = sweep.results()
        assert (good.outcome, good.num_ok) == (OK, 2)
        assert (ill.outcome, ill.num_ok, ill.num_not) == (outcome, 0, 1)
        assert ill.error


def test_ctrl_c_ends_all_and_returns_what_there_is() -> None:
    sweep = swept(plain_loaders.interrupting, workers=[1, 2, 3, 4], num_rounds=3)
    assert sweep.is_interrupted
    assert [one.config["num_workers"] for one in sweep.trials] == [1, 2]
    assert [result.num_ok for result in sweep.results()] == [1, 1, 0, 0]
    assert sweep.results()[3].outcome == "not run"


def test_ctrl_c_before_anything_is_known_is_just_that() -> None:
    with pytest.raises(KeyboardInterrupt):
        swept(plain_loaders.interrupting, workers=[3], num_rounds=1)


def test_bad_arguments_are_refused_before_anything_is_started() -> None:
    for options, message in (
        ({"num_rounds": 0}, "num_rounds must be at least 1, got 0"),
        ({"seconds": 0}, "seconds must be positive"),
        ({"num_batches": 1}, "seconds must be positive"),
        ({"seconds": 5, "limit_seconds": 4}, "the timeout must be longer than the measurement of 5 s, got 4 s"),
        ({"workers": [-1]}, "num_workers must be at least 0, got -1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            bench_loader(plain_loaders.long, **options)
    with pytest.raises(ArgumentError, match="does not name a function that makes a loader"):
        bench_loader("train")
    with pytest.raises(ArgumentError, match="has no 'lnog'"):
        bench_loader("tests.lab.plain_loaders:lnog")


def test_the_record_of_the_run_is_not_saved_with_the_rest(sweep: Sweep, tmp_path: Path) -> None:
    real = swept(plain_loaders.long, workers=[1, 3], num_rounds=1, records_run=True)
    assert real.run is not None
    assert real.run.title == "tests.lab.plain_loaders:long, num_workers=3", "the quickest"
    real.save(tmp_path / "sweep.json")
    assert Sweep.load(tmp_path / "sweep.json") == replace(real, run=None)
