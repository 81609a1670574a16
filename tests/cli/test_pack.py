"""`stoker pack` and `stoker inspect --step`: rows planned ahead, and what is in a step of a packed run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stoker
from stoker.cli.app import app
from stoker.store import Column, Writer

TEXTS = [f"document {n}: " + "coal and steam " * (n % 7 + 1) for n in range(60)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    tokenizer = {"kind": "bytes", "name": "bytes", "digest": _bytes_digest(), "vocab_size": 257}
    with Writer(folder, {"tokens": Column.ragged("uint16")}, meta={"tokenizer": tokenizer}) as writer:
        for text in TEXTS:
            writer.append({"tokens": np.frombuffer(text.encode(), np.uint8).astype(np.uint16)})
    return folder


def _bytes_digest() -> str:
    from stoker.transform.tokenizer import open_tokenizer

    return open_tokenizer("bytes").identity.digest


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140"})
    assert done.exit_code == code, done.output
    return done.output


def test_packing_is_planned_ahead_and_reported(store: Path) -> None:
    out = run("pack", str(store), "--length", "256", "--length", "512")
    assert "256" in out and "512" in out and "fill" in out
    assert any((store / ".packs").iterdir())
    [report] = json.loads(run("pack", str(store), "--length", "256", "--json"))
    assert report["length"] == 256
    assert report["num_rows"] == len(stoker.pack(stoker.open(store), 256))


def test_a_step_is_shown_with_the_documents_and_their_text(store: Path) -> None:
    out = run("inspect", str(store), "--step", "1", "--length", "256", "--batch-size", "4", "--seed", "7", "--all")
    packed = stoker.pack(stoker.open(store), 256)
    loader = stoker.DataLoader(packed, batch_size=4, shuffle=True, seed=7)
    recipe = loader.plan.recipe(1) if loader.plan else None
    assert recipe is not None
    for row in recipe.positions.tolist():
        for span in packed.documents(row):
            assert f"document {span.document} " in out
            assert TEXTS[span.document][:20] in out


def test_the_ranks_of_a_step_share_its_rows(store: Path) -> None:
    common = (
        "inspect",
        str(store),
        "--step",
        "0",
        "--length",
        "256",
        "--batch-size",
        "4",
        "--num-ranks",
        "2",
        "--json",
    )
    both = json.loads(run(*common))
    [second] = json.loads(run(*common, "--rank", "1"))["ranks"]
    assert [share["rank"] for share in both["ranks"]] == [0, 1]
    assert second == both["ranks"][1]
    positions = [row["position"] for share in both["ranks"] for row in share["rows"]]
    assert len(set(positions)) == 4
    span = second["rows"][0]["spans"][0]
    start, stop = span["columns"]
    tokens = stoker.pack(stoker.open(store), 256)[second["rows"][0]["position"]]["tokens"][start:stop]
    assert bytes(tokens.tolist()).decode() == TEXTS[span["document"]][span["offset"] : span["offset"] + stop - start]


def test_what_cannot_be_packed_is_reported(tmp_path: Path, store: Path) -> None:
    assert "error" in run("pack", str(store), "--length", "8", "--long", "error", code=1).lower()
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "raw.bin")
    out = run("inspect", str(tmp_path / "raw.bin"), "--step", "0", code=1)
    assert "begin" in out or "borders" in out


def test_a_saved_state_tells_what_the_run_was(store: Path, tmp_path: Path) -> None:
    packed = stoker.pack(stoker.open(store), 256)
    first = stoker.DataLoader(packed, batch_size=4, order=stoker.Window(size=8, block=2), seed=7, drop_last=True)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    resumed = stoker.DataLoader(
        packed, batch_size=3, order=stoker.Window(size=8, block=2), seed=7, drop_last=True, rank=0, num_ranks=2
    )
    resumed.load_state_dict(first.state_dict())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(resumed.state_dict()))
    step = len(resumed) + 2  # in the next epoch
    shown = json.loads(
        run("inspect", str(store), "--length", "256", "--step", str(step), "--state", str(path), "--json")
    )
    found = [
        (share["rank"], row["row"], span["document"], *span["columns"])
        for share in shown["ranks"]
        for row in share["rows"]
        for span in row["spans"]
    ]
    contents = resumed.contents(step)
    assert shown["epoch"] == 1
    assert found == [
        (content.rank, content.row, content.document, content.columns.start, content.columns.stop)
        for content in contents
        if content.columns is not None
    ]
    assert len(found) == len(contents) > 6
    out = run("inspect", str(store), "--length", "512", "--step", "0", "--state", str(path), code=1)
    assert "packed rows, but these settings give" in out
    (tmp_path / "other.json").write_text("[1]")
    out = run("inspect", str(store), "--length", "256", "--step", "0", "--state", str(tmp_path / "other.json"), code=1)
    assert "not a loader state" in out


def test_ranks_that_cannot_share_a_step_are_told_of(store: Path) -> None:
    out = run("inspect", str(store), "--step", "0", "--length", "256", "--batch-size", "4", "--num-ranks", "3", code=1)
    assert "cannot divide 4 rows evenly over 3 ranks" in out
