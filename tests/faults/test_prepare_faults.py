"""Preparations that lose workers, disk space, their user's patience or their life: what is finished is kept."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import prepare
from stoker.errors import ArgumentError, DataError, WorkerDied
from stoker.prepare.documents import read_documents
from tests.prepare.corpora import contents, decoded, write_jsonl, write_parquet
from tests.prepare.stopped import StoppedCommand, check_full_disk

TEXTS = [f"document {number} " + "na ja, " * (number * 37 % 11) for number in range(200)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", TEXTS[:100])
    write_jsonl(folder / "b.jsonl", TEXTS[100:])
    return folder


def made(inputs: Path, out: Path, **options: Any) -> prepare.Report:
    return prepare.tokens(inputs, out=out, **{"tokenizer": "bytes", "workers": 2, "piece_bytes": 2000, **options})


# ---------------------------------------------------------------- workers


def test_killed_workers_leave_no_trace_in_the_store(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(corpus, tmp_path / "whole")

    def deadly(piece: Any, *arguments: Any) -> Iterator[Any]:
        for batch in read_documents(piece, *arguments):
            yield batch
            mark = tmp_path / f"{piece.key}.mark"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("stoker.prepare.token_work.read_documents", deadly)
    with caplog.at_level(logging.WARNING, "stoker"):
        made(corpus, tmp_path / "out")
    assert "died (SIGKILL) and is replaced" in caplog.text
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_piece_that_kills_every_worker_is_named_and_the_others_are_kept(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(piece: Any, *arguments: Any) -> Iterator[Any]:
        if piece.start == 0 and piece.inputs[0].path.endswith("b.jsonl"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read_documents(piece, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("stoker.prepare.token_work.read_documents", deadly)
        with pytest.raises(WorkerDied, match=r"3 worker .* died in a row at the piece .*b\.jsonl, bytes 0 to \d+"):
            made(corpus, tmp_path / "out", workers=1)
    report = made(corpus, tmp_path / "out")
    assert report.num_reused > 0
    assert decoded(tmp_path / "out") == TEXTS


# ---------------------------------------------------------------- input


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_input_stops_with_its_name_and_leaves_no_half_store(tmp_path: Path, workers: int) -> None:
    (tmp_path / "corpus").mkdir()
    path = write_parquet(tmp_path / "corpus" / "a.parquet", TEXTS, row_group_size=20)
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / "corpus" / "b.txt").write_bytes(b"not \xff text")
    with pytest.raises(DataError, match=r"(a\.parquet|b\.txt) cannot be used"):
        made(tmp_path / "corpus", tmp_path / "out", workers=workers)
    assert not (tmp_path / "out" / "manifest.json").exists()
    write_jsonl(tmp_path / "corpus" / "c.jsonl", ["fine"])
    report = made(tmp_path / "corpus", tmp_path / "out", workers=workers, on_error="skip")
    assert decoded(tmp_path / "out") == ["fine"]
    assert report.reasons == {"not UTF-8": 1, "unreadable": 1}


# ---------------------------------------------------------------- space


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a file system")
def test_a_full_disk_stops_cleanly_and_more_space_lets_it_go_on(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "whole")
    check_full_disk(lambda out: made(corpus, out), tmp_path / "disk", "700k", whole=tmp_path / "whole")


# ---------------------------------------------------------------- the end

WAITING = """
import os, sys
from stoker.prepare import token_work
from stoker.prepare.documents import read_documents

def waiting(piece, *arguments):
    for batch in read_documents(piece, *arguments):
        yield batch
        os.write(1, b"working\\n")  # both workers write to one pipe: whole lines, at once
        open(os.environ["GATE"]).read()  # nobody ever opens the other end

token_work.read_documents = waiting
from stoker.cli import main
main()
"""


def running(corpus: Path, out: Path, gate: Path) -> StoppedCommand:
    """Return the command, stopped in the middle of its first pieces."""
    return StoppedCommand(WAITING, ["tokens", corpus, "--tokenizer", "bytes"], out=out, gate=gate, num_workers=2)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Two pieces, without a word about their size: folders of files give no less."""
    folder = tmp_path / "big"
    folder.mkdir()
    for name in "ab":
        write_jsonl(folder / f"{name}.jsonl", TEXTS)
    return folder


def test_ctrl_c_ends_everything_at_once_and_says_how_to_go_on(big: Path, tmp_path: Path) -> None:
    with running(big, tmp_path / "out", tmp_path / "gate") as command:
        assert len(command.family()) == 3
        command.interrupt()
    assert not list((tmp_path / "out").rglob("*.safetensors*"))
    made(big, tmp_path / "out")
    assert decoded(tmp_path / "out") == TEXTS * 2


def test_workers_do_not_outlive_a_killed_command(big: Path, tmp_path: Path) -> None:
    with running(big, tmp_path / "out", tmp_path / "gate") as command:
        command.kill()
    made(big, tmp_path / "out")


def test_a_folder_in_which_another_command_is_at_work_is_refused(big: Path, tmp_path: Path) -> None:
    command = running(big, tmp_path / "out", tmp_path / "gate")
    with command, pytest.raises(ArgumentError, match="another process is writing"):
        made(big, tmp_path / "out")
    made(big, tmp_path / "out")
