"""Names of a directory that a loss of power may leave: what kit/powercut.py simulates."""
from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from kit.powercut import mixed_names

names = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 6))
SEEDS = 60


def possible(old: dict[str, int], new: dict[str, int]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(mixed_names(old, new, random.Random(seed)).items())) for seed in range(SEEDS)}


def kept(old: dict[str, int], new: dict[str, int]) -> list[dict[str, int]]:
    return sorted(map(dict, possible(old, new)), key=sorted)


@given(names, names, st.integers(0, 1000))
def test_each_name_is_as_it_was_or_as_it_is(old: dict[str, int], new: dict[str, int], seed: int) -> None:
    found = mixed_names(old, new, random.Random(seed))
    for name in old.keys() | new.keys() | found.keys():
        assert found.get(name) in (old.get(name), new.get(name))
    # What has a name before and after has one, and what stays as it is stays.
    assert set(old.values()) & set(new.values()) <= set(found.values())
    assert {name for name in old if new.get(name) == old[name]} <= found.keys()


def test_of_two_new_files_one_may_be_there() -> None:
    assert kept({}, {"a": 1, "b": 2}) == [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2}]


def test_of_two_that_went_one_may_be_left() -> None:
    assert kept({"a": 1, "b": 2}, {}) == [{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2}]


def test_a_rename_happened_or_not() -> None:
    assert kept({"a": 1, "b": 2}, {"b": 1}) == [{"a": 1, "b": 2}, {"b": 1}]
    assert kept({"a": 1}, {"b": 1}) == [{"a": 1}, {"b": 1}]
