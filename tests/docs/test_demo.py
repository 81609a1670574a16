from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.demo.__main__ import app
from examples.demo.checks import Claim, training_claims
from examples.demo.machine import Others
from examples.demo.tokens import STOKER, TORCH, Pace, _speed_claim
from examples.demo.training import Run
from stoker.lab.watch.run import Run as Record


def run_of(name: str, *, wait: float, compute: float, num_steps: int = 60, others_cores: float | None = 0.0) -> Run:
    return Run(
        name=name,
        wait_seconds=np.full(num_steps, wait),
        compute_seconds=np.full(num_steps, compute),
        losses=np.linspace(2, 1, num_steps),
        accuracies=np.linspace(0, 1, num_steps),
        others_cores=others_cores,
        record=Record(),
    )


@pytest.mark.slow
def test_the_quick_demo_keeps_its_claims(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "examples.demo", "--quick"]
    wide = os.environ | {"COLUMNS": "200"}  # no sentence is broken
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=110, env=wide)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "resume in mid-epoch is exact",
        "2 ranks yield the same samples as 1",
        "a stream is sharded across workers",
        "images/s",
    ):
        assert text in done.stdout
    for text in ("workers produce the same crops", "skipped and replaced: broken.jpg"):
        assert text in done.stdout
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    for text in ("prepared tokens decode to the text", "a flipped bit is detected", "Stoker with the store", "decoded"):
        assert text in done.stdout
    assert "✗" not in done.stdout
    assert done.stdout.count("✓") == 16
    assert "verdict of the doctor" in done.stdout
    page = (tmp_path / "report.html").read_text()
    assert "demo, loading overlapped vs. demo, loading inline" in page
    assert page.count("batches 0 to 15.") == 2
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "state.json").read_text())["kind"] == "plan"


@pytest.mark.parametrize("library", ["PIL", "matplotlib", "tokenizers"])
def test_a_missing_library_is_named_with_its_extra(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else object())
    result = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "hint: pip install 'stoker[demo]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("compute", "holds"), [(0.10, True), (0.16, False)])
def test_hiding_the_waiting_is_no_merit_if_the_steps_take_longer(
    compute: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.checks.usable_cores", lambda: {0, 1})
    inline = run_of("inline", wait=0.05, compute=0.1)
    [speed, *_] = training_claims(inline, run_of("overlapped", wait=0.0, compute=compute))
    assert speed.holds is holds


@pytest.mark.parametrize(
    ("others_cores", "num_steps", "cores", "doubt"),
    [(0.9, 60, {0, 1}, "other programs kept 0.9 cores busy"), (0.0, 16, {0, 1}, "too few"), (0.0, 60, {0}, "one core")],
)
def test_speed_is_not_judged_in_doubt_whatever_the_outcome(
    others_cores: float, num_steps: int, cores: set[int], doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.checks.usable_cores", lambda: cores)
    inline = run_of("inline", wait=0.05, compute=0.1, num_steps=num_steps)
    for compute in (0.1, 0.3):
        overlapped = run_of("overlapped", wait=0, compute=compute, num_steps=num_steps, others_cores=others_cores)
        [speed, *_] = training_claims(inline, overlapped)
        assert speed.holds is None
        assert doubt in speed.evidence


def test_a_claim_that_does_not_hold_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_of("inline", wait=0.05, compute=0.1)
    monkeypatch.setattr("examples.demo.__main__._write_data", lambda *_: (None, None))
    monkeypatch.setattr("examples.demo.__main__._train_twice", lambda *_: (run, run))
    monkeypatch.setattr("examples.demo.__main__._tokens", lambda *_: (None, [], []))
    monkeypatch.setattr("examples.demo.__main__._paces_table", lambda *_: "")
    monkeypatch.setattr("examples.demo.__main__._print_sample", lambda *_: None)
    monkeypatch.setattr("examples.demo.__main__._draw_plot", lambda *_: tmp_path / "demo.png")
    for holds, exit_code, mark in ((True, 0, "✓"), (None, 0, "-"), (False, 1, "✗")):
        claim = Claim("it is so", "seen", holds)
        monkeypatch.setattr("examples.demo.__main__._check_claims", lambda *_, claim=claim: [claim])
        result = CliRunner().invoke(app, ["--out", str(tmp_path)])
        assert result.exit_code == exit_code
        assert f"{mark}   it is so" in result.output


@pytest.mark.parametrize(("ours", "others_cores", "holds"), [(900, 0.0, True), (300, 0.0, False), (300, 0.9, None)])
def test_tokens_must_load_faster_with_workers_as_well(
    ours: float, others_cores: float, holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.tokens.usable_cores", lambda: {0, 1})
    speeds = {(TORCH, 0): 1000.0, (STOKER, 0): 5000.0, (TORCH, 2): 400.0, (STOKER, 2): ours}
    paces = [
        Pace(name=name, num_workers=num_workers, rounds=np.array([speed]))
        for (name, num_workers), speed in speeds.items()
    ]
    claim = _speed_claim(paces, others_cores, is_quick=False)
    assert claim.holds is holds
    assert "inline 1,000 to 5,000 batches/s (5.0x)" in claim.evidence
    assert _speed_claim(paces, others_cores, is_quick=True).holds is None


def test_the_use_by_others_is_a_number_of_cores() -> None:
    others = Others()
    sum(range(2_000_000))
    used = others.num_cores()
    assert used is None or used >= 0
