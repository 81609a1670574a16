"""What the tests of several ranks stand on."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed

from tests.integrations.launch import kill_this_process, launch


def total_of_ranks(start: int) -> list[int]:
    torch.distributed.init_process_group("gloo")
    rank = torch.tensor([start + torch.distributed.get_rank()])
    torch.distributed.all_reduce(rank)
    torch.distributed.destroy_process_group()
    return [int(rank), int(os.environ["LOCAL_RANK"])]


def fail() -> None:
    raise ValueError("these ranks fail")


def wait_for_ever() -> None:
    if os.environ["RANK"] == "0":
        raise ValueError("the first rank fails")
    while True:
        os.read(os.pipe()[0], 1)


def test_ranks_find_each_other_and_return_what_they_have() -> None:
    assert launch(total_of_ranks, 10, num_ranks=2) == [[21, 0], [21, 1]]
    assert launch(total_of_ranks, 1, num_ranks=3) == [[6, 0], [6, 1], [6, 2]]


def test_ranks_that_are_to_be_killed_are() -> None:
    assert launch(kill_in_rank, killed=True) == []
    with pytest.raises(AssertionError, match="rank 0 ended with 0"):
        launch(total_of_ranks, 1, killed=True)


def kill_in_rank() -> Any:
    return kill_this_process()


def test_the_error_of_a_rank_is_shown() -> None:
    with pytest.raises(AssertionError, match="ValueError: these ranks fail"):
        launch(fail, num_ranks=1)


def test_a_rank_that_waits_for_a_failed_one_is_ended() -> None:
    with pytest.raises(AssertionError, match="ValueError: the first rank fails"):
        launch(wait_for_ever, timeout=3)
