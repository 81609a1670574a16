"""The plan by example: counting, tails, finding, skipping, and what it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stoker.errors import ArgumentError, PositionError
from stoker.plan import Origin, Plan, Sequential, Shuffle, Window


def positions(plan: Plan, epoch: int = 0, rank: int = 0, num_ranks: int = 1) -> list[list[int]]:
    return [recipe.positions.tolist() for recipe in plan.recipes(plan.first_step(epoch), rank, num_ranks)]


def test_sequential_batches_are_as_the_samples_lie() -> None:
    assert positions(Plan(num_samples=7, batch_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_drop_leaves_the_incomplete_batch_out() -> None:
    plan = Plan(num_samples=7, batch_size=3, tail="drop")
    assert positions(plan) == [[0, 1, 2], [3, 4, 5]]
    assert plan.steps_in(0) == 2


def test_pad_fills_up_from_the_beginning_and_marks_it() -> None:
    plan = Plan(num_samples=7, batch_size=3, tail="pad")
    recipe = plan.recipe(2)
    assert recipe.positions.tolist() == [6, 0, 1]
    assert recipe.padding is not None
    assert recipe.padding.tolist() == [False, True, True]


def test_pad_of_a_batch_larger_than_the_data_goes_round() -> None:
    assert Plan(num_samples=2, batch_size=5, tail="pad").recipe(0).positions.tolist() == [0, 1, 0, 1, 0]


def test_keep_gives_each_rank_one_sample_at_least_and_marks_it() -> None:
    plan = Plan(num_samples=9, batch_size=8, tail="keep")
    shares = [plan.recipe(1, rank, 4) for rank in range(4)]
    assert [share.positions.tolist() for share in shares] == [[8], [8], [8], [8]]
    assert shares[0].padding is None
    assert [share.padding.tolist() for share in shares[1:] if share.padding is not None] == [[True]] * 3


def test_a_recipe_says_where_it_stands() -> None:
    recipe = Plan(num_samples=10, batch_size=4).recipe(4, 1, 2)
    assert (recipe.step, recipe.epoch, recipe.rank) == (4, 1, 1)
    assert recipe.ordinals.tolist() == [5, 7]


def test_steps_count_on_from_epoch_to_epoch() -> None:
    plan = Plan(num_samples=10, batch_size=4)
    assert [plan.first_step(epoch) for epoch in range(4)] == [0, 3, 6, 9]
    assert [plan.epoch_of(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_epochs_differ_and_seeds_differ() -> None:
    plan = Plan(num_samples=100, batch_size=100, order=Shuffle())
    orders = [plan.recipe(epoch).positions.tolist() for epoch in range(3)]
    orders.append(dataclasses.replace(plan, seed=1).recipe(0).positions.tolist())
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_never_changes_between_versions() -> None:
    """These numbers are forever: a state saved today must mean the same tomorrow."""
    small = Plan(num_samples=10, batch_size=10, order=Shuffle(), seed=7)
    large = Plan(num_samples=10**12, batch_size=4, order=Shuffle(), seed=7)
    window = Plan(num_samples=100_000, batch_size=4, order=Window(size=1024, block=64), seed=7)
    assert small.recipe(3).positions.tolist() == FOREVER["small"]
    assert large.recipe(123_456_789).positions.tolist() == FOREVER["large"]
    assert window.recipe(12_345).positions.tolist() == FOREVER["window"]
    assert [f"{plan.recipe(5).digest:016x}" for plan in (small, large, window)] == FOREVER["digests"]
    assert [plan.fingerprint for plan in (small, large, window)] == FOREVER["fingerprints"]


FOREVER: dict[str, list[object]] = {
    "small": [9, 5, 0, 4, 1, 6, 3, 8, 7, 2],
    "large": [737010360892, 707760228210, 614736139221, 979119848758],
    "window": [98998, 98967, 98997, 9910],
    "digests": ["656d344a5b8ff7ab", "4179a74295552c5f", "3bddb00a94271538"],
    "fingerprints": ["f6256bca2b28d344", "81c4481a5cf570bb", "951f4306ff295023"],
}


def test_a_plan_is_a_value() -> None:
    plan = Plan(num_samples=10, batch_size=2, order=Window(size=4, block=2), skip=((3, 5),))
    again = Plan(num_samples=10, batch_size=2, order=Window(size=4, block=2), skip=((4, 5), (3, 4)))
    assert plan == again
    assert hash(plan) == hash(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.seed = 3  # type: ignore[misc]


def test_an_order_can_be_given_as_a_word() -> None:
    assert Plan(num_samples=3, batch_size=1, order="shuffle").order == Shuffle()  # type: ignore[arg-type]
    assert Plan(num_samples=3, batch_size=1, order="sequential").order == Sequential()  # type: ignore[arg-type]


def test_window_reads_each_block_within_one_window() -> None:
    plan = Plan(num_samples=10_000, batch_size=10_000, order=Window(size=400, block=50))
    order = plan.recipe(0).positions
    for window in order.reshape(-1, 400):
        blocks, counts = np.unique(window // 50, return_counts=True)
        assert len(blocks) == 8
        assert set(counts) == {50}


def test_skipped_steps_are_passed_over_and_the_others_keep_their_numbers() -> None:
    plan = Plan(num_samples=20, batch_size=2, skip=((2, 4), (8, 12)))
    assert [recipe.step for recipe in plan.recipes(0)] == [0, 1, 4, 5, 6, 7]
    assert [recipe.step for recipe in plan.recipes(10)] == [12, 13, 14, 15, 16, 17, 18, 19]
    assert (plan.num_steps(0), plan.num_steps(1), plan.steps_in(0)) == (6, 8, 10)
    assert plan.recipe(3).positions.tolist() == [6, 7]  # still there to be looked at
    place = plan.find(6)
    assert place is not None
    assert place.is_skipped


def test_skipping_adds_to_what_is_skipped() -> None:
    plan = Plan(num_samples=20, batch_size=2, skip=((2, 4),)).skipping(4, 6).skipping(9, 9)
    assert plan.skip == ((2, 6),)


def test_a_dropped_sample_is_not_found() -> None:
    assert Plan(num_samples=7, batch_size=3, tail="drop").find(6) is None


def test_find_tells_step_rank_and_row() -> None:
    assert Plan(num_samples=20, batch_size=6).find(10, epoch=2, num_ranks=2) == (9, 0, 2, False)


def test_after_a_change_of_batch_size_the_count_goes_on() -> None:
    plan = Plan(num_samples=20, batch_size=4).rebatched(3, Origin(epoch=0, ordinal=8, step=2))
    assert positions(plan) == [[8, 9, 10], [11, 12, 13], [14, 15, 16], [17, 18, 19]]
    assert plan.first_step(1) == 6
    assert plan.recipe(6).positions.tolist() == [0, 1, 2]
    assert plan.find(3) is None  # it came before
    with pytest.raises(ArgumentError, match="step 1 lies before this plan"):
        plan.recipe(1)


def test_a_skipped_range_keeps_its_samples_when_the_batch_size_changes() -> None:
    old = Plan(num_samples=100, batch_size=10, skip=((4, 6),))
    new = old.rebatched(5, Origin(epoch=0, ordinal=20, step=2))
    assert new.skip == ((6, 10),)
    uneven = old.rebatched(7, Origin(epoch=0, ordinal=20, step=2))
    served = [p for recipe in uneven.recipes(2) for p in recipe.positions.tolist()]
    assert not set(served) & set(range(40, 60))


def test_a_skipped_range_that_falls_into_a_dropped_tail_skips_nothing_else() -> None:
    plan = Plan(num_samples=100, batch_size=30, tail="drop", skip=((2, 3),)).rebatched(40, Origin())
    assert plan.skip == ((1, 2),)
    assert plan.num_steps(1) == 2
    gone = Plan(num_samples=100, batch_size=10, tail="drop", skip=((9, 10),)).rebatched(40, Origin())
    assert gone.skip == ()


def test_a_plan_of_no_steps_says_so() -> None:
    plan = Plan(num_samples=3, batch_size=4, tail="drop")
    assert plan.steps_in(0) == 0
    assert plan.num_steps(0) == 0
    with pytest.raises(ArgumentError, match="the plan has no steps"):
        plan.recipe(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples=0 is not a positive integer"),
        ({"num_samples": -3}, "num_samples=-3"),
        ({"num_samples": 2**63}, "is too many"),
        ({"batch_size": 0}, "batch_size=0 is not a positive integer"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": True}, "batch_size=True"),
        ({"seed": 1.5}, "seed=1.5 is not an integer"),
        ({"skip": (3,)}, "skip=3 is not a range of steps"),
        ({"tail": "cut"}, "tail='cut' is not known"),
        ({"order": "random"}, "order='random' is not known"),
        ({"order": 3}, "order=3 is not an order"),
        ({"skip": ((5, 3),)}, r"skip=\(5, 3\) is not a range of steps"),
        ({"skip": ((-1, 3),)}, r"skip=\(-1, 3\) is not a range of steps"),
    ],
)
def test_what_cannot_be_a_plan_is_refused_with_a_hint(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        Plan(**{"num_samples": 10, "batch_size": 2, **arguments})  # type: ignore[arg-type]
    assert "hint: " in str(caught.value)


def test_bad_windows_are_refused() -> None:
    for size, block in ((0, 1), (10, 3), (4, 8), (4, 0)):
        with pytest.raises(ArgumentError, match="cannot be cut into blocks"):
            Window(size=size, block=block)


def test_bad_questions_are_refused() -> None:
    plan = Plan(num_samples=10, batch_size=2)
    with pytest.raises(PositionError, match="position 10 is outside the plan, which has 10 samples"):
        plan.find(10)
    with pytest.raises(PositionError, match="position -1"):
        plan.find(-1)
    with pytest.raises(ArgumentError, match="step -1 lies before"):
        plan.recipe(-1)
    with pytest.raises(ArgumentError, match="no rank 2 of 2"):
        plan.recipe(0, 2, 2)
    with pytest.raises(ArgumentError, match="3 ranks cannot share a batch of 2"):
        plan.recipe(0, 0, 3)
