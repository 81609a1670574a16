"""Tuning: the right answer where it is known, the cheapest of equals, no more than is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.errors import ArgumentError
from stoker.lab.trial import tuning
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.sweep import Config, Result
from stoker.lab.trial.trial import FAILED, Trial, TrialRequest
from stoker.lab.trial.tuning import (
    Tuning,
    cheapest_of_best,
    coarse_settings,
    cost_of,
    format_code,
    is_within_noise,
    tune,
    without_run,
)
from tests.lab import plain_loaders, torch_loaders

pytestmark = pytest.mark.timed


def result(seconds: float, deviation: float = 0.0, num: int = 3, memory: float = 1e8, **config: int) -> Result:
    return Result(
        config=config,
        label="",
        num_ok=num,
        spreads={
            "seconds_per_batch": Spread(mean=seconds, deviation=deviation if num > 1 else None, num=num),
            "memory_bytes": Spread(mean=memory),
        },
    )


def test_no_setting_needs_more_cores_than_there_are() -> None:
    for limit in (1, 2, 3, 6, 16, 96):
        for has_threads in (False, True):
            found = coarse_settings(limit, has_threads=has_threads)
            assert len(set(found)) == len(found) or limit <= 4
            assert (0, 0) in found and (1, 0) in found and (limit, 0) in found
            assert all(max(1, workers) * max(1, threads) <= limit for workers, threads in found)
            assert has_threads or not any(threads for _, threads in found)
    assert (1, 16) in coarse_settings(16, has_threads=True)
    assert len(coarse_settings(96, has_threads=True)) < 30


def test_what_differs_by_less_than_its_noise_is_equal() -> None:
    best = result(1.0, 0.01)
    assert is_within_noise(result(1.02, 0.01), best), "less than three percent does not matter"
    assert not is_within_noise(result(1.05, 0.01), best)
    assert is_within_noise(result(1.05, 0.05), best), "it may as well be chance"
    assert not is_within_noise(result(1.2, 0.5), best), "a fifth matters, however noisy it was"


def test_of_equals_the_cheapest_is_taken() -> None:
    many, few = result(1.0, num_workers=4), result(1.01, num_workers=2)
    assert cheapest_of_best([many, few], has_step=True) is few
    assert cheapest_of_best([many, result(1.5, num_workers=2)], has_step=True) is many
    threads = result(1.0, num_workers=2, num_threads=4)
    assert cheapest_of_best([threads, result(1.01, num_workers=2, num_threads=0)], has_step=True) is not threads
    heavy, light = result(1.0, memory=2e8, num_workers=1), result(1.0, memory=1e8, num_workers=1)
    assert cheapest_of_best([heavy, light], has_step=True) is light


def test_threads_beside_a_step_that_was_not_measured_are_not_taken_for_cheap() -> None:
    inside, beside = result(1.0, num_workers=0, num_threads=2), result(1.0, num_workers=1, num_threads=2)
    assert cheapest_of_best([inside, beside], has_step=True) is inside
    assert cheapest_of_best([inside, beside], has_step=False) is beside
    assert cost_of(result(1.0, num_workers=0, num_threads=0), has_step=False)[0] == 0


def test_the_code_is_what_a_loader_is_given() -> None:
    assert format_code(result(1.0, num_workers=0)) == "DataLoader(..., num_workers=0)"
    assert format_code(result(1.0, num_workers=2, num_threads=0, prefetch_factor=4)) == (
        "DataLoader(..., num_workers=2, num_threads=0, prefetch_factor=4)"
    )


# ---------------------------------------------------------------- with costs that are known


class Simulated:
    """Trials whose times follow from a formula."""

    def __init__(self, seconds: Any, *, kind: str = "stoker", own: Config | None = None) -> None:
        self.seconds, self.kind, self.own = seconds, kind, own or {"num_workers": 0}
        self.tried: list[Config] = []

    def __call__(self, order: TrialRequest, config: Config, *, number: int = 0) -> Trial:
        self.tried.append(config)
        found = {**self.own, **config}
        if found.get("num_workers") or found.get("num_threads"):
            found.setdefault("prefetch_factor", 2)
        workers, threads = found.get("num_workers", 0), found.get("num_threads", 0)
        assert max(1, workers) * max(1, threads) <= 16
        seconds = self.seconds(workers, threads, found.get("prefetch_factor", 0))
        if seconds is None:
            return Trial(config=config, number=number, outcome=FAILED, error="no memory")
        noise = 1 + 0.004 * (len(self.tried) % 3 - 1)
        return Trial(
            config=config, number=number, kind=self.kind, found=found, seconds=noise * seconds, num_batches=1
        )  # fmt: skip


def tuned(monkeypatch: pytest.MonkeyPatch, simulated: Simulated, *, step: bool = True, **options: Any) -> Tuning:
    monkeypatch.setattr("stoker.lab.trial.sweep.run_trial", simulated)
    monkeypatch.setattr(tuning, "num_cores", lambda: 16)
    return tune("train:make_loader", step="train:make_step" if step else None, **options)


def test_python_work_gets_as_many_processes_as_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch takes a process 50 ms, a step 15 ms: four keep up. Threads are of no use."""
    simulated = Simulated(lambda workers, threads, _: max(15.0, 50 / workers) if workers else 65.0)
    found = tuned(monkeypatch, simulated)
    assert found.best == {"num_workers": 4, "num_threads": 0}
    assert found.seconds.mean == pytest.approx(15, rel=0.01)
    assert found.seconds.num == 3
    assert len(simulated.tried) < 60
    assert any("times as long" in sentence for sentence in found.says)


def test_work_that_scales_on_threads_gets_one_process_full_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes cost the trainer a little; threads beside the step cost it more."""

    def seconds(workers: int, threads: int, prefetch: int) -> float:
        if not workers and not threads:
            return 65.0
        hands = max(1, workers) * max(1, threads)
        return max(15.0, 50 / hands) + 1.5 * workers + (6.0 if not workers else 0.0)

    found = tuned(monkeypatch, Simulated(seconds))
    assert found.best["num_workers"] == 1
    assert found.best["num_threads"] in (3, 4)


def test_cheap_samples_stay_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch, Simulated(lambda workers, threads, _: 15.0 + (0.6 if workers or threads else 0.1)))
    assert found.best == {"num_workers": 0, "num_threads": 0}
    assert found.code == "DataLoader(..., num_workers=0, num_threads=0)"
    assert found.is_as_good
    assert any("nothing to change" in sentence for sentence in found.says)


def test_more_batches_ahead_are_taken_only_if_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    helps = tuned(
        monkeypatch, Simulated(lambda workers, _, prefetch: (30 if prefetch < 8 else 20) if workers else 65.0)
    )
    assert helps.best == {"num_workers": 1, "num_threads": 0, "prefetch_factor": 8}
    assert "prefetch_factor=8" in helps.code
    helps_not = tuned(monkeypatch, Simulated(lambda workers, _, prefetch: 30 if workers else 65.0))
    assert "prefetch_factor" not in helps_not.best


def test_torchs_loader_is_varied_in_workers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(lambda workers, *_: 60 / max(1, workers), kind="torch")
    found = tuned(monkeypatch, simulated, step=False)
    assert found.best == {"num_workers": 16}
    assert found.code == "DataLoader(..., num_workers=16, prefetch_factor=2)"
    assert not any("num_threads" in config for config in simulated.tried)
    assert (
        "more than 16 were not tried, as there are no more cores; max_workers (--max-workers) allows it" in found.says
    )


def test_settings_that_do_not_work_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(
        monkeypatch, Simulated(lambda workers, *_: None if workers > 4 else 60 / max(1, workers), kind="torch")
    )
    assert found.best == {"num_workers": 4}
    assert any(one.outcome == FAILED for one in found.sweep.results())


def test_a_loader_that_does_not_work_as_it_is_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="train:make_loader does not work as it is: no memory"):
        tuned(monkeypatch, Simulated(lambda *_: None))


def test_only_those_that_may_be_the_best_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(lambda workers, *_: max(15.0, 50 / workers) if workers else 65.0, kind="torch")
    found = tuned(monkeypatch, simulated, num_rounds=4)
    times = {str(one.config): one.num_ok for one in found.sweep.results()}
    assert times["{}"] == 4
    assert times["{'num_workers': 0}"] == times["{'num_workers': 1}"] == 1
    assert times["{'num_workers': 4}"] == 4


# ---------------------------------------------------------------- with real trials


@pytest.mark.slow
def test_a_worker_is_found_for_what_takes_almost_as_long_as_the_step() -> None:
    """A batch sleeps 20 ms, a step 25: with a worker, all loading hides behind the step; a second one is of no use."""

    def tuned() -> Tuning:
        return tune(
            torch_loaders.unmodified,
            step=torch_loaders.make_step,
            max_workers=2,
            prefetches=(),
            seconds=0.3,
            num_rounds=1,
        )

    # where other programs have the cores, a second one may bring more than the noise, and rightly so: then once more
    found = next((found for found in (tuned() for _ in range(4)) if found.best == {"num_workers": 1}), None)
    assert found is not None
    assert found.code == "DataLoader(..., num_workers=1, prefetch_factor=4)"
    results = {str(one.config): one.mean("seconds_per_batch") or 0.0 for one in found.sweep.results()}
    assert results["{'num_workers': 0}"] > 0.043
    assert 0.025 <= found.seconds.mean < 0.038
    assert found.step_seconds is not None and found.step_seconds >= 0.025
    assert Tuning.from_dict(json.loads(without_run(found).as_json())) == without_run(found)


def test_any_loader_whose_function_takes_workers_is_tuned() -> None:
    found = tune(plain_loaders.long, max_workers=4, seconds=0.1, num_rounds=1, prefetches=(), records_run=True)
    assert found.best == {"num_workers": 4}
    assert found.sweep.run is not None
    assert found.sweep.run.loaders[0].num_batches


def test_what_cannot_be_varied_is_told() -> None:
    with pytest.raises(ArgumentError, match="num_workers=1 could not be set: the function makes no DataLoader"):
        tune(plain_loaders.once, max_workers=2, seconds=0.05, num_rounds=1)


def test_ctrl_c_leaves_a_choice_among_what_was_tried() -> None:
    found = tune(plain_loaders.interrupting, max_workers=3, seconds=0.1, num_rounds=3, prefetches=())
    assert found.sweep.is_interrupted
    assert found.best["num_workers"] in (1, 2)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="max_workers and prefetches must be at least 1"):
        tune(plain_loaders.long, max_workers=0)
    with pytest.raises(ArgumentError, match="does not name a function that makes a step"):
        tune(plain_loaders.long, step="step")
