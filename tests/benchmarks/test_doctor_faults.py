"""The benchmark of the doctor: what counts as named, and that a long run survives what can go wrong in it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks import doctor, report
from benchmarks.doctor import BUSY, CROWDED, FAILED, FAULTS, NAMED, QUIET, UNJUDGED, WRONG, Case, Fault, outcome
from benchmarks.report import Setting
from stoker.lab.diagnose.diagnosis import Diagnosis

SLOW = Fault("python-bound", lambda kind: kind, is_named=lambda diagnosis: "data.py:9" in str(diagnosis))


@pytest.mark.parametrize(
    ("verdict", "own_cause", "says", "expected"),
    [
        ("python-bound", None, "data.py:9", NAMED),
        ("python-bound", None, "somewhere", WRONG),
        ("noisy-neighbour", "python-bound", "data.py:9", NAMED),
        ("noisy-neighbour", "decode-bound", "data.py:9", CROWDED),
        ("noisy-neighbour", None, "", CROWDED),
        ("storage-bound", None, "data.py:9", WRONG),
        ("compute-bound", None, "", WRONG),
        ("nothing-seen", None, "", UNJUDGED),
    ],
)
def test_a_fault_is_named_by_its_verdict_and_its_line(
    verdict: str, own_cause: str | None, says: str, expected: str
) -> None:
    assert outcome(SLOW, Diagnosis(verdict=verdict, own_cause=own_cause, says=says)) == expected


def test_a_loader_that_keeps_up_next_to_other_programs_has_no_cause_of_its_own() -> None:
    fine = Fault("compute-bound", lambda kind: kind)
    assert outcome(fine, Diagnosis(verdict="noisy-neighbour", says="")) == NAMED
    assert outcome(fine, Diagnosis(verdict="noisy-neighbour", own_cause="python-bound", says="")) == CROWDED


def test_there_are_sixteen_faults_and_a_loader_without_one() -> None:
    assert len(FAULTS) >= 17
    assert "keeps up" in FAULTS


def found(others_cores: float = 0.0, result: str = NAMED) -> dict[str, Any]:
    shown = {"verdict": "python-bound", "own_cause": None, "text": "words"}
    return shown | {"outcome": result, "others_cores": others_cores}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Trials that were asked for. They are all named, and nothing is measured."""
    calls: list[tuple[str, str]] = []

    def run_alone(_: Any, fault: str, kind: str) -> dict[str, Any]:
        calls.append((fault, kind))
        return found()

    monkeypatch.setattr(doctor, "run_alone", run_alone)
    monkeypatch.setattr(doctor, "neighbors", nullcontext)
    monkeypatch.setattr(doctor, "OUT", tmp_path)
    return calls


def test_a_trial_that_fails_or_is_disturbed_is_done_again_and_then_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []

    def run_alone(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(doctor, "run_alone", run_alone)
    monkeypatch.setattr(doctor, "neighbors", nullcontext)
    answers[:] = [RuntimeError("hangs"), found(1.5), found(0.1)]
    assert doctor.tried(Case("disk", "torch", QUIET, 0)) == found(0.1)
    answers[:] = [RuntimeError("hangs")] * 3
    assert doctor.tried(Case("disk", "torch", QUIET, 0))["outcome"] == FAILED
    answers[:] = [found(1.9)]  # that is what it is for
    assert doctor.tried(Case("disk", "torch", BUSY, 0)) == found(1.9)


def test_a_run_that_was_interrupted_goes_on_where_it_was(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add = doctor.Trials.add

    def interrupted(self: doctor.Trials, case: Case, one: dict[str, Any]) -> None:
        add(self, case, one)
        if len(asked) == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(doctor.Trials, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            doctor.run(Setting())
    doctor.run(Setting())
    num_trials = len(FAULTS) * 2 * 2 * doctor.NUM_ROUNDS
    assert len(asked) == num_trials
    assert list(tmp_path.iterdir()) == []  # the next one begins again
    doctor.run(Setting())
    assert len(asked) == 2 * num_trials


def test_trials_of_another_version_of_the_doctor_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    case = Case("disk", "torch", QUIET, 0)
    doctor.Trials(path, is_kept=True).add(case, found())
    assert doctor.Trials(path, is_kept=True).get(case) == found()
    monkeypatch.setattr(doctor, "_version", lambda: "another")
    assert doctor.Trials(path, is_kept=True).get(case) is None


def test_what_was_found_is_shown_written_and_saved(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_alone(_: Any, fault: str, kind: str) -> dict[str, Any]:
        if fault == "disk" and kind == "torch":
            raise RuntimeError("it ended without a word")
        return found(result=WRONG if fault == "Python" else NAMED)

    monkeypatch.setattr(doctor, "run_alone", run_alone)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    shown = doctor.run(Setting())
    quiet = shown.shows[0]
    num = len(FAULTS)
    assert f"torch: {num - 2} of {num}; stoker: {num - 1} of {num}" in quiet
    assert f"6 of {6 * num} trials gave a wrong verdict, 3: failed" in quiet
    report.save(shown)
    section = (tmp_path / "README.md").read_text()
    assert "## doctor" in section and "| disk | storage-bound | torch | 3 failed (none) | 3 failed (none) |" in section
    assert (tmp_path / "doctor.png").stat().st_size > 10_000
    record = (tmp_path / "doctor.json").read_text()
    assert "it ended without a word" in record
    assert record.count("words") == 12  # what was said is kept where it was wrong
