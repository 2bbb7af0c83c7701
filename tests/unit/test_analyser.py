"""Loss, duplicates and order against sets and lists of Python."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.bench.load.analyser import Analyser

numbers = st.lists(st.integers(0, 60), max_size=120)


@given(numbers)
def test_one_subscriber_against_a_set(arrivals: list[int]) -> None:
    analyser = Analyser(1, 1)
    seen: set[int] = set()
    late = 0
    for number in arrivals:
        assert analyser.take(0, 0, number) == (number not in seen)
        late += number not in seen and number < max(seen, default=-1)
        seen.add(number)
    assert analyser.delivered == len(seen)
    assert analyser.duplicates == len(arrivals) - len(seen)
    assert analyser.reordered == late
    assert analyser.lost([64]) == 64 - len(seen)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 40)), max_size=150))
def test_a_shared_group_is_one_receiver(arrivals: list[tuple[int, int, int]]) -> None:
    analyser = Analyser(2, 3, "shared")
    seen: set[tuple[int, int]] = set()
    newest: dict[tuple[int, int], int] = {}
    late = 0
    for subscriber, publisher, number in arrivals:
        first = (publisher, number) not in seen
        assert analyser.take(subscriber, publisher, number) == first
        late += first and number < newest.get((subscriber, publisher), -1)
        newest[subscriber, publisher] = max(number, newest.get((subscriber, publisher), -1))
        seen.add((publisher, number))
    assert (analyser.delivered, analyser.duplicates) == (len(seen), len(arrivals) - len(seen))
    assert analyser.reordered == late
    assert analyser.lost([41, 41]) == 82 - len(seen)


@given(st.lists(st.integers(0, 400_000), max_size=60))
def test_a_shared_group_beyond_its_ring(jumps: list[int]) -> None:
    """Ascending numbers with gaps of any size are never repetitions, and what was passed over is lost."""
    analyser = Analyser(1, 2, "shared")
    number = 0
    for i, jump in enumerate(jumps):
        number += jump
        assert analyser.take(i % 2, 0, number)
        number += 1
    assert analyser.lost([number + 7]) == number + 7 - len(jumps)


def test_planted_faults_are_told_apart() -> None:
    analyser = Analyser(1, 1)
    for number in (0, 1, 2, 2, 5, 4, 4, 8):
        analyser.take(0, 0, number)
    assert analyser.duplicates == 2
    assert analyser.reordered == 1
    assert analyser.lost([10]) == 4  # 3, 6, 7, 9


def test_every_subscriber_has_its_own_account() -> None:
    analyser = Analyser(2, 2)
    assert analyser.take(0, 0, 0)
    assert analyser.take(1, 0, 0)
    assert analyser.take(1, 1, 0)
    assert analyser.lost([1, 1]) == 1


def test_pairs_do_not_hear_others() -> None:
    analyser = Analyser(2, 2, "pairs")
    assert analyser.take(1, 1, 0)
    assert not analyser.take(1, 0, 0)
    assert (analyser.foreign, analyser.delivered, analyser.lost([0, 1])) == (1, 1, 0)


def test_forgotten_gaps_stay_lost() -> None:
    """More gaps than are remembered: the oldest are written off, so a number from them counts as a repetition."""
    analyser = Analyser(1, 1)
    for number in range(1, 20_001, 2):
        assert analyser.take(0, 0, number)
    assert analyser.lost([20_000]) == 10_000
    assert not analyser.take(0, 0, 0)
    assert analyser.take(0, 0, 19_998)
    assert analyser.lost([20_000]) == 9_999


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="as many publishers"):
        Analyser(1, 2, "pairs")
    with pytest.raises(ValueError, match="layout is one of"):
        Analyser(1, 2, "ring")
    with pytest.raises(IndexError):
        Analyser(1, 1).take(1, 0, 0)
    with pytest.raises(IndexError):
        Analyser(2, 1).lost([1])
