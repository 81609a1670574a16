from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stoker.cli.app import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["lines", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": 1}\n{"id": 2}\n')
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"first\nsecond\n"))
    (tmp_path / "bad.jsonl").write_text('{"id": 0}\n{"id":\n')
    return tmp_path


def test_files_are_counted_and_samples_shown(folder: Path) -> None:
    result = run(folder / "a.jsonl", folder / "b.txt.gz", "--samples", "2", "--index-dir", folder / "index")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"a\.jsonl +json +30 bytes +3 ", result.output)
    assert re.search(r"b\.txt\.gz +text \(gzip\) +\d+ bytes +2 ", result.output)
    assert re.search(r"2 files +\d+ bytes +5 ", result.output)
    assert "{'id': 0}" in result.output
    assert f"{folder / 'b.txt.gz'}, line 2" in result.output


def test_an_index_that_is_there_is_said_to_be_kept(folder: Path) -> None:
    arguments = (folder / "a.jsonl", "--index-dir", folder / "index")
    assert " kept" not in run(*arguments).output
    assert " kept" in run(*arguments).output


def test_the_format_can_be_shown(folder: Path) -> None:
    result = run(folder / "a.jsonl", "--parse", "text", "--index-dir", folder / "index")
    assert re.search(r"a\.jsonl +text", result.output)


def test_a_line_that_cannot_be_parsed_is_named(folder: Path) -> None:
    result = run(folder / "bad.jsonl", "--index-dir", folder / "index")
    assert result.exit_code == 1
    assert "error: line 2 (byte 10)" in result.stderr
    assert "hint: " in result.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run(tmp_path / "none.txt")
    assert result.exit_code == 1
    assert result.stderr == f"error: no such file: {tmp_path / 'none.txt'}\n"


def test_a_folder_without_such_files_is_an_error_with_a_hint(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 1
    assert f"folder {tmp_path} contains no files named .jsonl" in result.stderr
    assert "hint: pass the files themselves" in result.stderr


def test_an_empty_file_has_no_samples_to_show(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    result = run(tmp_path / "empty.txt", "--index-dir", tmp_path / "index")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"empty\.txt +text +0 bytes +0 ", result.output)
