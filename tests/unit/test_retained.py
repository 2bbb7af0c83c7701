"""Edges of the tree of retained values."""
import gc
import weakref

import pytest

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.retained import RetainedTree
from fluxmq._core.testing.probes import retained_nodes

TOPICS = [b"a", b"a/", b"a/b", b"a/b/c", b"/", b"/a", b"//", b"$SYS", b"$SYS/a", b"$SYS/a/b", b"a/$b", b"b"]
CASES = [
    (b"#", [b"a", b"a/", b"a/b", b"a/b/c", b"/", b"/a", b"//", b"a/$b", b"b"]),
    (b"+", [b"a", b"b"]),
    (b"+/#", [b"a", b"a/", b"a/b", b"a/b/c", b"/", b"/a", b"//", b"a/$b", b"b"]),
    (b"+/+", [b"a/", b"a/b", b"/", b"/a", b"a/$b"]),
    (b"a/#", [b"a", b"a/", b"a/b", b"a/b/c", b"a/$b"]),
    (b"a/+", [b"a/", b"a/b", b"a/$b"]),
    (b"a/b/c/#", [b"a/b/c"]),
    (b"/#", [b"/", b"/a", b"//"]),
    (b"/+", [b"/", b"/a"]),
    (b"$SYS/#", [b"$SYS", b"$SYS/a", b"$SYS/a/b"]),
    (b"$SYS/+", [b"$SYS/a"]),
    (b"$SYS/+/b", [b"$SYS/a/b"]),
    (b"+/a/b", []),
    (b"a/b", [b"a/b"]),
    (b"a/c", []),
    (b"a/c/#", []),
    (b"a/b/c/d/+", []),
]


@pytest.mark.parametrize(("topic_filter", "expected"), CASES)
def test_examples(topic_filter: bytes, expected: list[bytes]) -> None:
    tree = RetainedTree()
    for topic in TOPICS:
        assert tree.set(topic, topic) is None
    assert sorted(tree.match(topic_filter)) == sorted(expected)


def test_an_empty_tree_matches_nothing() -> None:
    tree = RetainedTree()
    for topic_filter in (b"#", b"+", b"+/#", b"a", b"a/#"):
        assert tree.match(topic_filter) == []
    assert (len(tree), list(tree), tree.get(b"a"), tree.pop(b"a")) == (0, [], None, None)


def test_set_get_pop() -> None:
    tree = RetainedTree()
    first, second = object(), object()
    assert tree.set(b"a/b", first) is None
    assert tree.set(b"a/b", second) is first
    assert tree.get(b"a/b") is second
    assert tree.get(b"a") is None
    assert b"a/b" in tree and b"a" not in tree
    assert tree.pop(b"a") is None, "a level on the way is no topic"
    assert tree.pop(b"a/b") is second
    assert (len(tree), tree.match(b"#")) == (0, [])


def test_false_values_are_values() -> None:
    tree = RetainedTree()
    for value in (0, b"", ""):
        tree.set(b"a", value)
        assert tree.match(b"#") == [value]
        assert tree.match(b"a") == [value]


def test_none_is_refused() -> None:
    tree = RetainedTree()
    with pytest.raises(UsageError, match=r"pop\(\)"):
        tree.set(b"a", None)
    assert len(tree) == 0


def test_pruning_leaves_the_rest_and_frees_what_goes() -> None:
    class Value:
        pass

    tree = RetainedTree()
    tree.set(b"a", 1)
    tree.set(b"a/b/c", 2)
    value = Value()
    gone = weakref.ref(value)
    tree.set(b"a/b/c/d/e", value)
    del value
    tree.pop(b"a/b/c/d/e")
    gc.collect()
    assert gone() is None
    assert retained_nodes(tree) == 3
    assert sorted(tree.match(b"#")) == [1, 2]
    tree.pop(b"a")
    assert tree.match(b"a/#") == [2], "a node with children stays when its value goes"
    tree.pop(b"a/b/c")
    assert (tree.match(b"#"), retained_nodes(tree)) == ([], 0)


def test_a_topic_of_as_many_levels_as_fit() -> None:
    tree = RetainedTree()
    deep = b"/" * 65535
    tree.set(deep, "deep")
    tree.set(b"/", "flat")
    assert sorted(tree.match(b"#")) == ["deep", "flat"]
    assert tree.match(deep) == ["deep"]
    assert tree.match(deep[:-1] + b"/+") == ["deep"]
    assert tree.pop(deep) == "deep"
    assert tree.match(b"#") == ["flat"]
    tree.set(deep, "deep")
    del tree        # freeing it must not exhaust the stack


def test_iteration_notices_changes() -> None:
    tree = RetainedTree()
    tree.set(b"a", 1)
    tree.set(b"b", 2)
    assert list(tree) == [(b"a", 1), (b"b", 2)]
    with pytest.raises(RuntimeError):
        for _ in tree:
            tree.set(b"c", 3)


def test_only_bytes_are_topics() -> None:
    tree = RetainedTree()
    with pytest.raises(TypeError):
        tree.set("a", 1)        # type: ignore[arg-type]


def test_what_the_broker_says_of_itself_is_neither_retained_nor_unrouted_in_its_counts() -> None:
    hub = Hub(None)
    hub.publish_message(b"$SYS/broker/uptime", b"1", 0, True)
    assert (hub.counters()["unrouted"], hub.counters()["retained"], hub.counters()["retained_bytes"]) == (0, 0, 0)
    hub.publish_message(b"a", b"1", 0, True)
    assert (hub.counters()["unrouted"], hub.counters()["retained"]) == (1, 1)
