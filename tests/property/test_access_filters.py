"""Topic filters as sets: matches, covers and overlaps against enumeration of a small universe of topics."""
import itertools
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxmq.access.filters import covers, filter_problem, matches, overlaps, shared_filter

LITERALS = ["", "a", "b", "$x"]
# Among them the empty one, as in the module's docstring. Deeper than any filter below by a level.
TOPICS = ["/".join(levels) for size in range(1, 6) for levels in itertools.product([*LITERALS, "other"], repeat=size)]

levels_strategy = st.lists(st.sampled_from([*LITERALS, "+", "+"]), min_size=0, max_size=3)
filters = st.builds(lambda levels, tail: "/".join([*levels, *tail]), levels_strategy, st.sampled_from([[], ["#"]])
                    ).filter(bool)


def naive_matches(filter_: str, topic: str) -> bool:
    """By regular expression, after the wording of section 4.7."""
    if topic.startswith("$") and filter_[0] in "+#":
        return False
    if filter_ == "#":
        return True
    tail = ""
    if filter_.endswith("/#"):
        filter_, tail = filter_[:-2], "(/.*)?"
    body = "/".join("[^/]*" if level == "+" else re.escape(level) for level in filter_.split("/"))
    return re.fullmatch(body + tail, topic) is not None


ENUMERATED: dict[str, frozenset[str]] = {}


def topics_of(filter_: str) -> frozenset[str]:
    if filter_ not in ENUMERATED:
        ENUMERATED[filter_] = frozenset(topic for topic in TOPICS if naive_matches(filter_, topic))
    return ENUMERATED[filter_]


@given(filters, st.sampled_from(TOPICS))
def test_matches_is_the_wording_of_the_specification(filter_: str, topic: str) -> None:
    assert matches(filter_, topic) == naive_matches(filter_, topic)


@settings(max_examples=600, deadline=None)
@given(filters, filters)
@example("+/#", "#")
@example("#", "+/#")
@example("a/#", "a")
@example("a/+/#", "a/#")
@example("#", "$x/a")
@example("+", "$x")
def test_covers_is_inclusion(rule: str, asked: str) -> None:
    assert covers(rule, asked) == (topics_of(asked) <= topics_of(rule))


@settings(max_examples=600, deadline=None)
@given(filters, filters)
@example("#", "$x/#")
@example("a/#", "+")
@example("a/b/#", "+/b")
def test_overlaps_is_intersection(a: str, b: str) -> None:
    assert overlaps(a, b) == bool(topics_of(a) & topics_of(b))


@given(filters, filters, filters)
def test_order_of_filters(a: str, b: str, c: str) -> None:
    assert covers(a, a)
    assert overlaps(a, b) == overlaps(b, a)
    if covers(a, b):
        assert overlaps(a, b)
        if covers(b, c):
            assert covers(a, c)
        if overlaps(b, c):
            assert overlaps(a, c)


@given(filters)
def test_filters_of_the_strategy_are_valid(filter_: str) -> None:
    assert filter_problem(filter_) == ""


def test_invalid_filters_are_told() -> None:
    for filter_ in ("", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+/c", "a\0b", "a" * 65_536):
        assert filter_problem(filter_), filter_


def test_shared_filter() -> None:
    assert shared_filter("a/b") == "a/b"
    assert shared_filter("$share/g/a/#") == "a/#"
    assert shared_filter("$share/g//") == "/"
    assert shared_filter("$shared/g/a") == "$shared/g/a"
    for filter_ in ("$share", "$share/", "$share/g", "$share/g/", "$share//a"):
        assert shared_filter(filter_) is None
