"""The command itself: quick to answer, clear about errors, quiet when interrupted."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import stoker
from stoker.cli.app import BROKEN_PIPE, INTERRUPTED, PANELS, app
from stoker.errors import ArgumentError

WATCHED = ("torch", "numpy", "matplotlib", "PIL")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a separate process, which prints on its last line what of `WATCHED` it imported."""
    code = (
        "import sys\nfrom stoker.cli import main\n"
        "try:\n    main()\nfinally:\n"
        f"    print('\\nimported:', [name for name in {WATCHED!r} if name in sys.modules])"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)


def find_verbs(command: Any, *names: str) -> Iterator[list[str]]:
    """Yield the names of every command and group of commands."""
    if names:
        yield list(names)
    for name, one in getattr(command, "commands", {}).items():
        yield from find_verbs(one, *names, name)


VERBS = list(find_verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([*verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_the_version_is_printed_in_well_under_a_second() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        assert f"stoker {stoker.__version__}" in run("--version").stdout
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(3)) < 1.0


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_help_of_every_verb_has_an_example(verb: list[str]) -> None:
    result = CliRunner().invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    if "COMMAND [ARGS]..." in text:  # a group that needs a command, whose help has the example
        return
    words = verb[:-1] if f"The word `{verb[-1]}` may be omitted" in text else verb
    assert f"Example: stoker {' '.join(words)}" in text


@pytest.mark.parametrize("width", [60, 80, 110, 160])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_help_of_every_verb_flows_whatever_the_width(verb: list[str], width: int) -> None:
    shown = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": str(width)}).output
    lines = [line.strip() for line in shown.partition("╭")[0].splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following:  # of one paragraph: the next word had no room
            assert len(line) + 1 + len(following.split()[0]) > width - 2, line
    assert "<bool>" not in shown


def test_a_closed_pipe_is_not_an_error() -> None:
    command = [sys.executable, "-m", "stoker", "plan", "show", "--samples", "100", "--batch-size", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written: an interpreter does not start that soon
        assert process.stderr.read() == ""
    assert process.returncode in (1, BROKEN_PIPE)  # rich, where it notices first, says 1


def test_no_verb_shows_the_verbs() -> None:
    result = CliRunner().invoke(app, [])
    for verb in ("plan", "lines", "about", "doctor"):
        assert verb in result.output


def test_the_panels_of_the_help_are_in_the_order_of_their_list() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(panel) for panel in PANELS]
    assert places == sorted(places)


def test_a_stoker_error_is_a_message_with_a_hint_and_no_traceback() -> None:
    done = run("plan", "find", "100", "--samples", "100", "--batch-size", "8")
    assert done.returncode == 1
    assert done.stderr == (
        "error: position 100 is outside the plan, which has 100 samples\nhint: positions run from 0 to 99\n"
    )


def test_debug_shows_the_traceback() -> None:
    done = run("--debug", "plan", "find", "100", "--samples", "100", "--batch-size", "8")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "stoker.errors.PositionError: position 100 is outside the plan" in done.stderr


def test_a_missing_option_is_named() -> None:
    result = CliRunner().invoke(app, ["plan", "show", "--samples", "100"])
    assert result.exit_code == 2
    assert "--batch-size" in result.output


def test_notes_are_printed_and_markup_in_a_message_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        error = ArgumentError("parse=[bold] is odd", hint="use [json]")
        error.add_note("while reading shard 3")
        raise error

    monkeypatch.setattr("stoker.cli.about.facts", fail)
    result = CliRunner().invoke(app, ["about"])
    assert result.exit_code == 1
    assert result.stderr == "error: parse=[bold] is odd\nhint: use [json]\nwhile reading shard 3\n"


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.cli.about.facts", interrupt)
    result = CliRunner().invoke(app, ["about"])
    assert result.exit_code == INTERRUPTED == 130
    assert result.output == ""
