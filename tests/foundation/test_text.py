"""Numbers and lists as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.foundation.text import (
    TIMES,
    UNKNOWN,
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_moment,
    format_number,
    format_percent,
    format_ratio,
    format_spread,
    join_words,
    time_unit,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_duration(0), "0 s"),
        (format_duration(3.2e-9), "3.2 ns"),
        (format_duration(31.4e-6), "31.4 µs"),
        (format_duration(0.0412), "41.2 ms"),
        (format_duration(0.09997), "100 ms"),
        (format_duration(0.99999), "1 s"),
        (format_duration(2.1), "2.1 s"),
        (format_duration(-2.1), "-2.1 s"),
        (format_duration(200), "3 min 20 s"),
        (format_duration(7500), "2 h 5 min"),
        (format_duration(0.0412, digits=2), "41 ms"),
        (format_duration(591, digits=2), "10 min"),
        (format_bytes(0), "0 bytes"),
        (format_bytes(1), "1 byte"),
        (format_bytes(999), "999 bytes"),
        (format_bytes(3_250_000), "3.25 MB"),
        (format_bytes(182e6), "182 MB"),
        (format_bytes(999_999), "1 MB"),
        (format_bytes(-3.2e9), "-3.2 GB"),
        (format_bytes(5e18), "5,000 PB"),
        (format_percent(0.0042), "0.4%"),
        (format_percent(0.41), "41%"),
        (format_percent(1e-5), "under 0.1%"),
        (format_percent(0.0), "0%"),
        (format_percent(1.0), "100%"),
        (format_ratio(1.789), f"1.79{TIMES}"),
        (format_ratio(0.02), f"1/50{TIMES}"),
        (format_ratio(0.841), f"0.84{TIMES}"),
        (format_cores(2.0), "2 cores"),
        (format_number(0), "0"),
        (format_number(99.97), "100"),
        (format_number(41.23), "41.2"),
        (format_number(0.01234), "0.0123"),
        (format_number(1234.5), "1,234"),
        (format_number(123456), "123,456"),
        (format_number(0.0000123), "1.2e-05"),
        (format_count(1, "batch", "batches"), "1 batch"),
        (format_count(2000, "batch", "batches"), "2,000 batches"),
        (format_count(2.5, "worker"), "2.50 workers"),
        (format_count(12345), "12,345"),
        (format_spread(41.23, 0.312), "41.2 ± 0.3"),
        (format_spread(41234.0, 312.0), "41,234 ± 312"),
        (format_spread(0.02, 0.0, scale=0.001), "20.0"),
        (format_spread(None, 1.0), UNKNOWN),
        (format_moment(301.25, step=0.05, high=302), "301.25 s"),
        (format_moment(0.0125, step=0.0005, high=0.1), "12.5 ms"),
        (format_moment(3660, step=60, high=4000), "1 h 1 min"),
        (format_moment(0, step=60, high=4000), "0 s"),
        (join_words(["a", "b", "c"]), "a, b and c"),
        (join_words(["a"]), "a"),
        (join_words([]), ""),
    ],
)  # fmt: skip
def test_numbers_have_a_unit_that_suits_them_and_three_digits(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(
    "write", [format_bytes, format_cores, format_count, format_duration, format_number, format_percent, format_ratio]
)
def test_what_is_not_known_is_a_dash(write: object) -> None:
    assert callable(write)
    assert [write(value) for value in (None, math.nan, math.inf)] == [UNKNOWN] * 3


@given(st.floats(1e-9, 1e7))
def test_a_time_reads_as_what_it_is(seconds: float) -> None:
    sizes = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    words = format_duration(seconds).replace(",", "").split()
    total = sum(float(number) * sizes[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert total == pytest.approx(seconds, rel=0.05)


@given(st.floats(1e-9, 1e4))
def test_the_unit_of_a_time_leaves_one_to_three_digits_before_the_point(seconds: float) -> None:
    unit, size = time_unit(seconds)
    assert seconds / size >= 0.9
    assert unit == "s" or seconds / size < 1000


@given(st.integers(0, 10**17))
def test_a_size_reads_as_what_it_is(num_bytes: int) -> None:
    number, unit = format_bytes(num_bytes).replace(",", "").split()
    power = ("byte", "kB", "MB", "GB", "TB", "PB").index(unit.removesuffix("s"))
    assert float(number) * 1000**power == pytest.approx(num_bytes, rel=0.01)
