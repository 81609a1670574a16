"""Files of results: written whole, and in the place of nothing but files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker.lab.page import RunReport
from stoker.lab.trial.sweep import Sweep
from stoker.lab.watch.record_file import write_atomically
from stoker.lab.watch.run import Run


def test_a_file_is_replaced_and_nothing_lies_next_to_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "one")
    write_atomically(tmp_path / "a.json", "twö")
    assert (tmp_path / "a.json").read_text("utf-8") == "twö"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_goes_on_pointing_where_it_did(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to(tmp_path / "there" / "a.json")
    write_atomically(link, "one")
    assert link.is_symlink()
    assert (tmp_path / "there" / "a.json").read_text() == "one"


@pytest.mark.parametrize(
    "save", [Run().save, Sweep().save, RunReport("<html>", []).save], ids=["record", "measurements", "page"]
)
def test_what_is_no_file_is_written_to_and_not_replaced(save: object, tmp_path: Path) -> None:
    assert callable(save)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    save(pipe)
    reader.join()
    assert len(read[0]) > 5
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "nowhere" / "a.json", "one")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a.json")
