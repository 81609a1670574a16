"""The shuffle is not only a permutation, it looks like a random one: positions, neighbours, epochs.

Each test computes a chi-square statistic over fixed seeds, so it is deterministic; the bounds are far out (about one
in a million for a perfect shuffle), and weaker shuffles, of which some are tried below, miss them by orders of
magnitude.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.plan import Permutation, Shuffle, Window, permutation
from stoker.plan.order import Order

SIZES = [2, 3, 5, 16, 100, 1023, 1024, 1025, 4096, 65_537, 1_000_003]


def excess(counts: NDArray[np.int64]) -> float:
    """Return how many standard deviations the counts' chi-square is above that of a uniform distribution."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    return float((chi_square - freedom) / np.sqrt(2 * freedom))


def shuffled(ordinals: NDArray[np.int64], size: int, epoch: int, seed: int = 0) -> NDArray[np.int64]:
    return Shuffle().positions(ordinals, epoch=epoch, num_samples=size, seed=seed)


def binned(values: NDArray[np.int64], size: int, num_bins: int) -> NDArray[np.int64]:
    return values * num_bins // size


@pytest.mark.parametrize("size", SIZES)
def test_every_slot_gets_every_position_equally_often(size: int) -> None:
    num_bins = min(size, 16)
    for ordinal in {0, 1, size // 2, size - 1}:
        values = np.array([int(shuffled(np.array([ordinal]), size, epoch)[0]) for epoch in range(2000)])
        # bins of unequal width when they do not divide the size: give each its due
        counts = np.bincount(binned(values, size, num_bins), minlength=num_bins)
        widths = np.bincount(binned(np.arange(min(size, 10**6)), min(size, 10**6), num_bins), minlength=num_bins)
        expected = widths / widths.sum() * 2000
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert (chi_square - num_bins + 1) / np.sqrt(2 * (num_bins - 1)) < 6


@pytest.mark.parametrize("size", [size for size in SIZES if size >= 1023])
def test_neighbors_in_the_order_are_strangers_in_the_data(size: int) -> None:
    count = min(size, 50_000)
    counts = np.zeros((16, 16), dtype=np.int64)
    for epoch in range(max(1, 50_000 // count)):
        order = binned(shuffled(np.arange(count), size, epoch), size, 16)
        np.add.at(counts, (order[:-1], order[1:]), 1)
    assert excess(counts.reshape(-1)) < 6


@pytest.mark.parametrize("size", [size for size in SIZES if size >= 1023])
def test_neighbors_in_the_data_are_strangers_in_the_order(size: int) -> None:
    count = min(size, 50_000)
    differences = np.zeros(32, dtype=np.int64)
    for epoch in range(max(1, 100_000 // count)):
        ordinals = Shuffle().ordinals(np.arange(count), epoch=epoch, num_samples=size, seed=3)
        gaps = (ordinals[1:] - ordinals[:-1]) % size
        differences += np.bincount(binned(gaps, size, 32), minlength=32)
    assert excess(differences) < 6


@pytest.mark.parametrize("size", [size for size in SIZES if size >= 1023])
@pytest.mark.parametrize("other", ["epoch", "seed"])
def test_epochs_and_seeds_do_not_know_of_each_other(size: int, other: str) -> None:
    count = min(size, 50_000)
    counts = np.zeros((16, 16), dtype=np.int64)
    same = trials = 0
    for epoch in range(max(1, 50_000 // count)):
        first = shuffled(np.arange(count), size, epoch)
        second = (
            shuffled(np.arange(count), size, epoch + 1)
            if other == "epoch"
            else shuffled(np.arange(count), size, epoch, 1)
        )
        np.add.at(counts, (binned(first, size, 16), binned(second, size, 16)), 1)
        same += int((first == second).sum())
        trials += count
    assert excess(counts.reshape(-1)) < 6
    expected = trials / size
    assert abs(same - expected) < 6 * np.sqrt(expected) + 1


def test_all_orders_of_few_samples_are_equally_likely() -> None:
    orders = [tuple(shuffled(np.arange(4), 4, epoch).tolist()) for epoch in range(24 * 400)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert excess(counts) < 6


def test_samples_far_apart_in_a_huge_corpus_mix() -> None:
    size = 10**12
    values = shuffled(np.arange(100_000), size, 0)
    assert excess(np.bincount(binned(values, size, 256), minlength=256)) < 6
    assert excess(np.bincount(values % 256, minlength=256)) < 6


@pytest.mark.parametrize("order", [Window(size=4096, block=64), Window(size=1024, block=16)])
def test_inside_a_window_the_order_is_a_shuffle(order: Order) -> None:
    assert isinstance(order, Window)
    num_samples = order.size * 40
    counts = np.zeros((16, 16), dtype=np.int64)
    for epoch in range(5):
        positions = order.positions(np.arange(num_samples), epoch=epoch, num_samples=num_samples, seed=0)
        inside = positions % order.block * 16 // order.block
        np.add.at(counts, (inside[:-1], inside[1:]), 1)
        starts = positions.reshape(-1, order.size)
        assert len({int(row.min()) // order.block for row in starts}) > 30  # blocks come from everywhere
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True) / counts.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert (chi_square - 225) / np.sqrt(450) < 6


def test_these_tests_tell_a_weak_shuffle_from_a_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds instead of six leave neighbors together, and the statistic shows it."""
    # by its full name: in the package, `permutation` is the function
    monkeypatch.setattr(import_module("stoker.plan.permutation"), "NUM_ROUNDS", 2)
    size = 65_537
    order = Permutation(size, 12345).forward(np.arange(50_000))
    counts = np.zeros((16, 16), dtype=np.int64)
    bins = binned(order, size, 16)
    np.add.at(counts, (bins[:-1], bins[1:]), 1)
    assert excess(counts.reshape(-1)) > 100


def test_recent_permutations_are_kept() -> None:
    assert permutation(100, 1) is permutation(100, 1)
