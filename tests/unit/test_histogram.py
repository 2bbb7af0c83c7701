"""The latency histogram against the sorted list of its values."""
from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fluxmq.bench.load.histogram import Histogram

LAST_EXACT = (1 << 44) - 1  # larger values share a bucket
nanoseconds = st.one_of(st.integers(0, 300), st.integers(0, 10**7), st.integers(0, LAST_EXACT))


def filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(st.lists(nanoseconds, min_size=1, max_size=300), st.floats(0, 100))
@example([255], 50.0)
@example([256], 50.0)
@example([511, 512, 513], 100.0)
@example([LAST_EXACT], 99.9)
def test_percentile_errs_upwards_and_by_a_128th(values: list[int], percent: float) -> None:
    rank = max(1, math.ceil(percent / 100.0 * len(values)))
    exact = sorted(values)[rank - 1]
    found = filled(values).percentile(percent)
    assert exact <= found <= exact + exact // 128
    assert found <= max(values)


@given(st.lists(st.integers(0, 255), min_size=1))
def test_small_values_are_exact(values: list[int]) -> None:
    histogram = filled(values)
    ordered = sorted(values)
    for rank, value in enumerate(ordered, start=1):
        # Half a rank below the next: no rounding of the division can reach another one.
        assert histogram.percentile(100.0 * (rank - 0.5) / len(ordered)) == value


@given(st.lists(nanoseconds), st.lists(nanoseconds))
def test_merging_is_recording_both(first: list[int], second: list[int]) -> None:
    merged = filled(first)
    merged.merge(filled(second))
    assert merged.to_bytes() == filled(first + second).to_bytes()


@given(st.lists(nanoseconds))
def test_bytes_round_trip_and_exact_totals(values: list[int]) -> None:
    histogram = Histogram.from_bytes(filled(values).to_bytes())
    assert histogram.count == len(values)
    assert histogram.max == max(values, default=0)
    assert histogram.mean == pytest.approx(sum(values) / len(values) if values else 0.0)


def test_values_beyond_the_last_bucket_keep_their_maximum() -> None:
    histogram = filled([5, 1 << 50])
    assert histogram.percentile(50) == 5
    assert histogram.percentile(100) == histogram.max == 1 << 50


def test_an_empty_histogram_is_all_zero() -> None:
    assert Histogram().summary() == {"count": 0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "p99.9": 0.0,
                                     "max": 0.0}


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Histogram().percentile(100.1)
    with pytest.raises(ValueError, match="a histogram is"):
        Histogram.from_bytes(b"short")
    with pytest.raises(OverflowError):
        Histogram().record(-1)
