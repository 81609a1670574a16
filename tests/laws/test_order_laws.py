"""Laws of the plan, on all inputs: order, shares, finding, skipping, elastic change."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan import Order, Origin, Permutation, Plan, Sequential, Shuffle, Window, added, permutation
from stoker.plan.permutation import SORTED_BELOW

windows = st.builds(
    lambda block, num_blocks: Window(size=block * num_blocks, block=block), st.integers(1, 64), st.integers(1, 32)
)
orders: st.SearchStrategy[Order] = st.one_of(st.just(Sequential()), st.just(Shuffle()), windows)
tails = st.sampled_from(["drop", "keep", "pad"])
seeds = st.integers(0, 2**64 - 1)
sizes = st.one_of(st.integers(1, 300), st.integers(SORTED_BELOW - 3, 5000))
plans = st.builds(Plan, num_samples=sizes, batch_size=st.integers(1, 97), order=orders, seed=seeds, tail=tails)
huge_sizes = st.one_of(st.integers(1, 10**12), st.sampled_from([10**12, 2**40, 2**40 + 1, 2**62, 31623**2 + 1]))


@given(size=huge_sizes, key=seeds, data=st.data())
def test_a_permutation_is_a_bijection_at_every_size(size: int, key: int, data: st.DataObject) -> None:
    indices = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=200))), dtype=np.int64)
    shuffled = permutation(size, key).forward(indices)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert len(set(shuffled.tolist())) == len(indices)
    assert (permutation(size, key).inverse(shuffled) == indices).all()
    assert (permutation(size, key).forward(permutation(size, key).inverse(indices)) == indices).all()


@given(size=st.integers(1, 5000), key=seeds)
def test_a_permutation_reaches_every_index(size: int, key: int) -> None:
    assert (np.sort(Permutation(size, key).forward(np.arange(size))) == np.arange(size)).all()


@given(order=orders, size=huge_sizes, seed=seeds, epoch=st.integers(0, 10**6), data=st.data())
def test_every_order_is_a_bijection_that_can_be_asked_anywhere(
    order: Order, size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    ordinals = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=50))), dtype=np.int64)
    positions = order.positions(ordinals, epoch=epoch, num_samples=size, seed=seed)
    assert ((positions >= 0) & (positions < size)).all()
    assert (order.ordinals(positions, epoch=epoch, num_samples=size, seed=seed) == ordinals).all()


@given(plan=plans, epoch=st.integers(0, 3))
def test_an_epoch_serves_every_sample_once(plan: Plan, epoch: int) -> None:
    recipes = list(plan.recipes(plan.first_step(epoch))) if plan.steps_in(epoch) else []
    served = [
        position
        for recipe in recipes
        for position, is_padding in zip(
            recipe.positions.tolist(),
            np.zeros(len(recipe.positions), bool) if recipe.padding is None else recipe.padding,
        )
        if not is_padding
    ]
    assert len(set(served)) == len(served)
    expected = plan.num_samples - (plan.num_samples % plan.batch_size if plan.tail == "drop" else 0)
    assert len(served) == expected
    assert len(recipes) == plan.steps_in(epoch)


@given(plan=plans, step=st.integers(0, 500), data=st.data())
def test_shares_partition_every_global_batch(plan: Plan, step: int, data: st.DataObject) -> None:
    if not plan.steps_in(0):
        return
    num_ranks = data.draw(st.integers(1, plan.batch_size))
    whole = plan.recipe(step)
    shares = [plan.recipe(step, rank, num_ranks) for rank in range(num_ranks)]
    assert all(len(share.positions) >= 1 for share in shares)
    if plan.tail != "keep":
        assert max(len(share.positions) for share in shares) - min(len(share.positions) for share in shares) <= 1
    ordinals = [_real(share) for share in shares]
    assert sorted(ordinal for part in ordinals for ordinal in part) == sorted(_real(whole))
    total = 0
    for share in shares:
        total = added(total, share.digest)
    assert total == whole.digest


def _real(recipe: object) -> list[tuple[int, int]]:
    pairs = zip(recipe.ordinals.tolist(), recipe.positions.tolist())  # type: ignore[attr-defined]
    padding = recipe.padding  # type: ignore[attr-defined]
    return [pair for index, pair in enumerate(pairs) if padding is None or not padding[index]]


@given(plan=plans, step=st.integers(0, 300), data=st.data())
def test_steps_in_a_row_are_the_steps_one_by_one(plan: Plan, step: int, data: st.DataObject) -> None:
    if not plan.steps_in(0):
        return
    num_ranks = data.draw(st.integers(1, plan.batch_size))
    rank = data.draw(st.integers(0, num_ranks - 1))
    epoch = plan.epoch_of(step)
    for number, recipe in enumerate(plan.recipes(step, rank, num_ranks), step):
        single = plan.recipe(number, rank, num_ranks)
        assert recipe.positions.tolist() == single.positions.tolist()
        assert recipe.ordinals.tolist() == single.ordinals.tolist()
        assert (recipe.step, recipe.epoch, recipe.digest) == (number, epoch, single.digest)
        assert (recipe.padding is None) == (single.padding is None)


@given(plan=plans, epoch=st.integers(0, 5), data=st.data())
def test_find_inverts_recipe(plan: Plan, epoch: int, data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(1, plan.batch_size))
    position = data.draw(st.integers(0, plan.num_samples - 1))
    place = plan.find(position, epoch, num_ranks)
    if place is None:
        assert plan.tail == "drop"
        return
    recipe = plan.recipe(place.step, place.rank, num_ranks)
    assert recipe.epoch == epoch
    assert recipe.positions[place.row] == position


@given(plan=plans, step=st.integers(0, 300), data=st.data())
def test_recipe_inverts_find(plan: Plan, step: int, data: st.DataObject) -> None:
    if not plan.steps_in(0):
        return
    num_ranks = data.draw(st.integers(1, plan.batch_size))
    rank = data.draw(st.integers(0, num_ranks - 1))
    recipe = plan.recipe(step, rank, num_ranks)
    for row, position in enumerate(recipe.positions.tolist()):
        if recipe.padding is None or not recipe.padding[row]:
            assert plan.find(position, recipe.epoch, num_ranks) == (step, rank, row, False)


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=4)


@given(plan=plans, skip=ranges, data=st.data())
def test_skipping_keeps_ranks_in_step(plan: Plan, skip: list[tuple[int, int]], data: st.DataObject) -> None:
    if not plan.steps_in(0):
        return
    num_ranks = data.draw(st.integers(1, plan.batch_size))
    for first, stop in skip:
        plan = plan.skipping(first, stop)
    skipped = {step for first, stop in skip for step in range(first, stop)}
    for epoch in range(2):
        first = plan.first_step(epoch)
        wanted = [step for step in range(first, first + plan.steps_in(epoch)) if step not in skipped]
        for rank in {0, num_ranks - 1}:
            assert [recipe.step for recipe in plan.recipes(first, rank, num_ranks)] == wanted
        assert plan.num_steps(epoch) == len(wanted)
        assert all(plan.is_skipped(step) == (step in skipped) for step in range(first, first + plan.steps_in(epoch)))


@given(plan=plans, batch_size=st.integers(1, 97), data=st.data())
def test_another_batch_size_cuts_the_same_stream(plan: Plan, batch_size: int, data: st.DataObject) -> None:
    if not plan.steps_in(0):
        return
    steps = data.draw(st.integers(0, plan.steps_in(0)))
    ordinal = min(steps * plan.batch_size, plan.num_samples)
    new = plan.rebatched(batch_size, Origin(0, ordinal, steps))
    before = [ordinal for step in range(steps) for ordinal in _real(plan.recipe(step))]
    after = [ordinal for recipe in new.recipes(steps) for ordinal in _real(recipe)] if new.steps_in(0) else []
    whole = plan.order.positions(np.arange(plan.num_samples), epoch=0, num_samples=plan.num_samples, seed=plan.seed)
    together = [position for _, position in before + after]
    assert together == whole.tolist()[: len(together)]
    assert len(together) > plan.num_samples - max(batch_size, plan.batch_size) or plan.tail != "drop"
    assert new.first_step(1) == steps + new.steps_in(0)


@given(plan=plans, skip=ranges, batch_size=st.integers(1, 97), data=st.data())
def test_a_skipped_sample_stays_skipped_when_the_batch_size_changes(
    plan: Plan, skip: list[tuple[int, int]], batch_size: int, data: st.DataObject
) -> None:
    if not plan.steps_in(0):
        return
    for first, stop in skip:
        plan = plan.skipping(first, stop)
    steps = data.draw(st.integers(0, plan.steps_in(0)))
    new = plan.rebatched(batch_size, Origin(0, min(steps * plan.batch_size, plan.num_samples), steps))
    bad = {
        ordinal
        for step in range(steps, plan.steps_in(0))
        if plan.is_skipped(step)
        for ordinal, _ in _real(plan.recipe(step))
    }
    served = {ordinal for recipe in new.recipes(steps) for ordinal, _ in _real(recipe)} if new.steps_in(0) else set()
    assert not bad & served
