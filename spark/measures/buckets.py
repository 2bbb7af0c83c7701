"""Buckets of a distribution, of equal width on a logarithmic axis: ten for each power of ten.

Whole numbers fall into the same bucket here and in Spark's SQL: of the edges only powers of ten are whole, and both
know the logarithms of those exactly.
"""
from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["bucket_edge", "bucket_of", "bucket_sql", "bucketed"]

PER_DECADE = 10
ZERO = -1


def bucket_of(value: float) -> int:
    """The number of a value's bucket. Values below 1 are in bucket 0. Exact for whole values up to 10 ** 13."""
    return math.floor(math.log10(value) * PER_DECADE) if value >= 1 else ZERO


def bucket_edge(number: int) -> float:
    """The lower edge of a bucket."""
    return 0.0 if number <= ZERO else float(10 ** (number / PER_DECADE))


def bucket_sql(column: str) -> str:
    """bucket_of as SQL of Spark."""
    return f"CASE WHEN {column} < 1 THEN {ZERO} ELSE CAST(floor(log10({column}) * {PER_DECADE}) AS INT) END"


def bucketed(ordered: Sequence[int]) -> dict[int, int]:
    """Bucket → number of values in it. ordered: in ascending order."""
    found, at = {}, 0
    while at < len(ordered):
        number = bucket_of(ordered[at])
        end = bisect_left(ordered, bucket_edge(number + 1), at + 1)
        found[number], at = end - at, end
    return found
