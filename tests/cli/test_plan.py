from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner, Result

from stoker import Plan, Shuffle, Window
from stoker.cli.app import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "120"})


def test_show_lists_the_positions_of_the_step() -> None:
    result = run("show", "--samples", "1000", "--batch-size", "8", "--seed", "3", "--step", "7")
    expected = Plan(num_samples=1000, batch_size=8, order=Shuffle(), seed=3).recipe(7).positions.tolist()
    assert result.exit_code == 0, result.output
    assert " ".join(map(str, expected)) in result.output
    assert re.search(r"steps per epoch +125", result.output)
    assert "8 (global: over all ranks)" in result.output


def test_show_has_a_line_for_each_rank_and_brackets_around_padding() -> None:
    result = run(
        *("show", "--samples", "10", "--batch-size", "8", "--order", "sequential"),
        *("--tail", "pad", "--step", "1", "--num-ranks", "2"),
    )
    assert re.search(r"0 +1 +3 +8 \(0\) \(2\) \(4\)", result.output), result.output
    assert re.search(r"1 +1 +3 +9 \(1\) \(3\) \(5\)", result.output), result.output
    assert "in parentheses: samples" in result.output


def test_show_of_one_rank_leaves_the_others_out() -> None:
    result = run(
        "show", "--samples", "16", "--batch-size", "8", "--order", "sequential", "--num-ranks", "2", "--rank", "1"
    )
    assert "1 3 5 7" in result.output
    assert "0 2 4 6" not in result.output


def test_show_cuts_long_shares_short_unless_all_are_asked_for() -> None:
    arguments = ("show", "--samples", "100", "--batch-size", "50", "--order", "sequential")
    assert "15 ... 34 more (--all)" in run(*arguments).output
    assert "49" in run(*arguments, "--all").output


@pytest.mark.parametrize("order", ["sequential", "shuffle", "window"])
def test_find_tells_the_step_in_which_show_has_the_sample(order: str) -> None:
    arguments = ("--samples", "100000", "--batch-size", "32", "--order", order, "--seed", "5", "--num-ranks", "4")
    found = run("find", "1234", *arguments, "--epoch", "2").output
    step, rank = re.search(r"step (\d+)\n", found), re.search(r"rank +(\d) of 4", found)
    assert step is not None
    assert rank is not None
    shown = run("show", *arguments, "--step", step[1], "--rank", rank[1]).output
    assert re.search(r"\b1234\b", shown)


def test_find_says_when_the_tail_drops_the_sample() -> None:
    result = run("find", "9", "--samples", "10", "--batch-size", "4", "--order", "sequential", "--tail", "drop")
    assert result.exit_code == 0
    assert "does not occur in epoch 0" in result.output


def test_window_options_set_the_window() -> None:
    arguments = ("show", "--samples", "100", "--batch-size", "4", "--order", "window")
    result = run(*arguments, "--window-size", "20", "--block", "5")
    plan = Plan(num_samples=100, batch_size=4, order=Window(size=20, block=5))
    assert " ".join(map(str, plan.recipe(0).positions.tolist())) in result.output
    assert "window (size 20, block 5)" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "0", "--batch-size", "4"], "num_samples=0 is not a positive integer"),
        (["--samples", "9", "--batch-size", "4", "--block", "3"], "--window-size and --block require --order window"),
        (
            ["--samples", "9", "--batch-size", "4", "--order", "window", "--block", "7"],
            "cannot be cut into blocks of 7",
        ),
        (["--samples", "9", "--batch-size", "4", "--num-ranks", "5"], "5 ranks cannot share a batch of 4"),
        (["--samples", "9", "--batch-size", "4", "--rank", "3"], "there is no rank 3 of 1"),
        (["--samples", "3", "--batch-size", "4", "--tail", "drop"], "the plan has no steps"),
        (["--samples", "3", "--batch-size", "4", "--step", "-1"], "step -1 lies before this plan"),
    ],
)
def test_what_cannot_be_is_shown_with_a_hint(arguments: list[str], message: str) -> None:
    result = run("show", *arguments)
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert "hint: " in result.stderr


def test_no_ranks_at_all_is_an_error_and_not_an_empty_table() -> None:
    result = run("show", "--samples", "9", "--batch-size", "4", "--num-ranks", "0")
    assert result.exit_code == 2
    assert "--num-ranks" in result.stderr
