from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import ArgumentError
from stoker.native import apportion
from stoker.native.apportionment import LARGEST_PERIOD
from tests.native.reference import apportioned

pytestmark = pytest.mark.usefixtures("native")

one_library = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
weights = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


@one_library
@given(weights)
def test_turns_are_those_of_the_definition(given: list[int]) -> None:
    out = np.empty(sum(given), np.uint16)
    assert apportion(np.array(given), out)
    assert out.tolist() == apportioned(given)


@one_library
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=40))
def test_no_share_is_ever_off_by_more_than_tijdeman_allows(given: list[int]) -> None:
    period, most = sum(given), 1 - Fraction(1, 2 * len(given) - 2)
    out = np.empty(period, np.uint16)
    assert apportion(np.array(given), out)
    slots = np.arange(1, period + 1)
    for who, weight in enumerate(given):
        off = np.abs(np.cumsum(out == who) * period - slots * weight)
        assert int(off.max()) <= most * period


def test_the_largest_period_is_exact() -> None:
    given = np.array([LARGEST_PERIOD - (1 << 16) + 1, *[1] * ((1 << 16) - 1)])
    out = np.empty(LARGEST_PERIOD, np.uint16)
    assert apportion(given, out)
    np.testing.assert_array_equal(np.bincount(out, minlength=1 << 16), given)


@pytest.mark.parametrize("given", [[], [-1, 11], [5, 4], [11], [2**63 - 1, 11], [0, 0]])
def test_weights_that_are_no_period_are_refused(given: list[int]) -> None:
    out = np.full(10, 9, np.uint16)
    with pytest.raises(ArgumentError):
        apportion(np.array(given, np.int64), out)
    assert (out == 9).all()


def test_what_there_is_no_code_for_is_left_to_numpy() -> None:
    assert not apportion(np.array([3]), np.zeros(3, np.int64))
    assert not apportion(np.array([3]), np.zeros(6, np.uint16)[::2])
    assert not apportion(np.array([LARGEST_PERIOD + 1]), np.zeros(LARGEST_PERIOD + 1, np.uint16))
