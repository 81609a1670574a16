"""Output that is read by others than people at a terminal has no spaces at the ends of lines."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stoker.cli.app import app
from stoker.cli.terminal import Trimmed, trim_when_piped

pieces = st.lists(st.text(" \na-", max_size=8))


@given(texts=pieces)
def test_however_it_is_cut_into_pieces_a_text_loses_the_spaces_at_the_ends_of_lines_and_nothing_else(
    texts: list[str],
) -> None:
    written = io.StringIO()
    stream = Trimmed(written)
    for text in texts:
        assert stream.write(text) == len(text)
    stream.flush()
    assert written.getvalue() == re.sub(" +\n", "\n", "".join(texts))


def test_what_is_flushed_is_all_there() -> None:
    written = io.StringIO()
    stream = Trimmed(written)
    stream.writelines(["name: ", ""])
    assert written.getvalue() == "name:"
    stream.flush()
    assert written.getvalue() == "name: "


def test_a_terminal_gets_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", file)
    with trim_when_piped():
        sys.stdout.write("a table  \n")
        sys.stderr.write("an error  \n")
    assert (terminal.getvalue(), file.getvalue()) == ("a table  \n", "an error\n")
    assert (sys.stdout, sys.stderr) == (terminal, file)


@pytest.mark.parametrize(
    "arguments",
    [
        ["about"],
        ["--help"],
        ["bench", "loader", "--help"],
        ["plan", "show", "--samples", "100", "--batch-size", "8"],
        ["lines", __file__, "--samples", "0"],
    ],
    ids=" ".join,
)
def test_no_line_of_what_is_piped_ends_with_a_space(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 3
    assert [line for line in result.output.splitlines() if line.endswith(" ")] == []


def test_nor_does_one_of_a_process_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-m", "stoker", "about"], capture_output=True, text=True, check=True)
    assert "stoker" in done.stdout
    assert " \n" not in done.stdout
