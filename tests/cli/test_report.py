"""`stoker report`: records become a page, and other files are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stoker
from stoker.cli.app import app
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.watch.run import Run
from tests.docs.samples import assert_sample
from tests.lab import runs


def run(*arguments: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def record(tmp_path: Path) -> Path:
    runs.healthy().save(tmp_path / "run.json")
    return tmp_path / "run.json"


def test_a_record_becomes_a_page(record: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    shown = run(record, "-o", out)
    said = diagnose(Run.load(record))
    assert shown.startswith(f"{said.verdict}: {said.says}")
    assert f"{out}: " in shown
    assert out.read_text() == str(stoker.report(Run.load(record)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.json"]


def test_the_page_has_a_name_by_default_and_a_title_if_one_is_given(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(record, "--title", "Before & after")
    assert "<h1>Before &amp; after</h1>" in (tmp_path / "report.html").read_text()


def test_the_guide_shows_what_the_command_prints(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_sample("docs/guides/report.md", "report.html: ", run(Path(record.name), "-o", "report.html"))


def test_two_runs_are_compared(record: Path, tmp_path: Path) -> None:
    runs.starved().save(tmp_path / "before.json")
    out = tmp_path / "report.html"
    shown = run(record, "--against", tmp_path / "before.json", "-o", out).splitlines()
    assert shown[0].startswith("compute-bound: ")
    assert shown[1].startswith("baseline: ")
    assert "this run vs. baseline" in out.read_text()


def test_records_of_ranks_are_parts_of_one_run(tmp_path: Path) -> None:
    whole = runs.ranks()
    for rank in range(4):
        part = replace(whole, loaders=[one for one in whole.loaders if one.rank == rank])
        part.save(tmp_path / f"rank{rank}.json")
    out = tmp_path / "report.html"
    shown = run(*(tmp_path / f"rank{rank}.json" for rank in range(4)), "-o", out)
    assert shown.startswith("slow-rank: rank 2")
    assert "Rank 2 is the slowest" in out.read_text()


def test_two_runs_without_a_word_are_not_guessed_about(record: Path, tmp_path: Path) -> None:
    runs.starved().save(tmp_path / "other.json")
    shown = run(record, tmp_path / "other.json", "-o", tmp_path / "report.html", code=1)
    assert f"{record} and {tmp_path / 'other.json'} both contain rank 0" in shown
    assert f"hint: `stoker report {record} --against {tmp_path / 'other.json'}`" in shown
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not json", "is not a record of a run"),
        ("[1, 2]", "is not a record of a run"),
        ('{"format": "stoker-run", "version": 99}', "was written by a newer version"),
        ('{"format": "stoker-run", "seconds": NaN}', "it holds NaN"),
        ('{"format": "stoker-run", "loaders": 3}', "is damaged"),
    ],
    ids=["text", "list", "newer", "nan", "damaged"],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "run.json").write_text(text)
    output = run(tmp_path / "run.json", "-o", tmp_path / "report.html", code=1)
    assert expected in output
    assert "hint: " in output
    if "newer" not in expected:
        assert "`stoker doctor --save run.json -- python train.py` writes one" in output, "options before the command"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_log_of_counters_is_drawn_as_it_last_was(tmp_path: Path) -> None:
    slow, valid = (replace(run.loaders[0], laps=None) for run in (runs.starved(), runs.one_batch()))
    early = replace(slow, num_batches=10, seconds=1.0)
    log = tmp_path / "live.jsonl"
    log.write_text("".join(f"{one.as_json()}\n" for one in (early, valid, slow)) + early.as_json()[:99])
    out = tmp_path / "report.html"
    shown = run(log, "-o", out)
    assert shown.startswith(diagnose(Run(loaders=[slow, valid])).verdict)
    page = out.read_text()
    assert "<h1>live.jsonl</h1>" in page
    assert "6,000 batches of train" in page
    assert "watched for" not in page, "nobody has looked at the run from outside"
    run(log, "--against", log, "-o", out)
    ranks = [replace(one, laps=None) for one in runs.ranks().loaders]
    log.write_text("".join(f"{one.as_json()}\n" for one in ranks))
    assert run(log, "-o", out).startswith("slow-rank: rank 2")


def test_a_log_of_one_record_is_one_too_and_a_file_of_other_lines_is_none(tmp_path: Path) -> None:
    [stats] = runs.one_batch().loaders
    (tmp_path / "live.jsonl").write_text(f"{stats.as_json()}\n")
    run(tmp_path / "live.jsonl", "-o", tmp_path / "report.html")
    (tmp_path / "live.jsonl").write_text('{"loss": 1.0}\n{"loss": 0.9}\n')
    shown = run(tmp_path / "live.jsonl", "-o", tmp_path / "report.html", code=1)
    assert "live.jsonl is not a record of a run" in shown


def test_a_record_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "there is no file" in run(tmp_path / "none.json", "-o", tmp_path / "report.html", code=1)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(record: Path, tmp_path: Path) -> None:
    assert "does not exist" in run("none.json", "-o", tmp_path / "nowhere" / "report.html", code=1)
    assert "is a folder" in run("none.json", "-o", tmp_path, code=1)
    before = record.read_text()
    assert "is one of the input records" in run(record, "-o", record, code=1)
    assert record.read_text() == before
