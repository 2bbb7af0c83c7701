"""Edges of the subscription index: the specification's own examples, depth, crowds, pruning."""
import random

import pytest
from oracle.topics import matches

from fluxmq._core.errors import UsageError
from fluxmq._core.testing.trie_probe import TrieProbe, hash_bytes

CASES = [
    # MQTT 5.0 sections 4.7.1.2 and 4.7.1.3
    ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking",
                                "sport/tennis/player1/score/wimbledon"], ["sport/tennis", "sport/tennis/player10"]),
    ("sport/#", ["sport", "sport/", "sport/a/b"], ["sports", "spor", "/sport"]),
    ("#", ["a", "/", "a/b", "/a", "a//b"], ["$SYS", "$SYS/a", "$", "$/a"]),
    ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/"], ["sport/tennis/player1/ranking", "sport/tennis"]),
    ("sport/+", ["sport/"], ["sport"]),
    ("+", ["a", "finance"], ["/finance", "a/", "$SYS"]),
    ("+/+", ["/finance", "/", "a/b"], ["finance", "//", "$SYS/a"]),
    ("/+", ["/finance", "/"], ["finance", "//"]),
    ("+/tennis/#", ["x/tennis", "/tennis/a/b"], ["tennis", "$x/tennis", "x/y/tennis"]),
    ("+/a/+/#", ["x/a/y", "/a/", "x/a/y/z"], ["x/a", "$/a/y"]),
    # section 4.7.2
    ("$SYS/#", ["$SYS", "$SYS/a/b"], ["$SYSx", "SYS/a"]),
    ("$SYS/monitor/+", ["$SYS/monitor/Clients"], ["$SYS/monitor", "$SYS/monitor/a/b"]),
    ("a/+", ["a/$b"], ["$a/b"]),
    ("a/#", ["a", "a/$SYS"], ["$a"]),
    # section 4.7.3
    ("ACCOUNTS", ["ACCOUNTS"], ["Accounts", "ACCOUNTS/"]),
    ("/", ["/"], ["", "//", "a"]),
    ("//", ["//"], ["/", "///"]),
    ("//#", ["/", "//", "//a", "///"], ["a//", "/a", ""]),
    ("/#", ["/", "/a", "//"], ["a", "a/"]),
    ("+//+", ["a//b", "//"], ["a/b", "///"]),
]


@pytest.mark.parametrize(("topic_filter", "hits", "misses"), CASES, ids=[case[0] for case in CASES])
def test_examples(topic_filter: str, hits: list[str], misses: list[str]) -> None:
    trie = TrieProbe(11)
    trie.add(topic_filter.encode(), 1, 5, 2)
    for topic in hits:
        assert matches(topic_filter.encode(), topic.encode())
        assert trie.match(topic.encode()) == [(1, 5, 2)], topic
    for topic in misses:
        assert not matches(topic_filter.encode(), topic.encode())
        assert trie.match(topic.encode()) == [], topic


def test_overlapping_filters_of_one_target_all_appear() -> None:
    trie = TrieProbe()
    for identifier, topic_filter in enumerate([b"a/b", b"a/+", b"+/b", b"a/#", b"#", b"+/+"], 1):
        trie.add(topic_filter, 9, identifier)
    assert sorted(trie.match(b"a/b")) == [(9, identifier, 0) for identifier in range(1, 7)]


def test_an_exact_filter_and_a_trie_level_of_the_same_name_are_two_things() -> None:
    trie = TrieProbe()
    trie.add(b"a", 1)
    trie.add(b"a/+", 2)
    assert trie.match(b"a") == [(1, 0, 0)]
    assert trie.remove(b"a", 1)
    assert trie.match(b"a") == []
    assert trie.match(b"a/b") == [(2, 0, 0)]


def test_replacing_changes_identifier_and_options_and_nothing_else() -> None:
    trie = TrieProbe()
    assert trie.add(b"a/+", 1, 7, 1)
    generation = trie.generation
    assert not trie.add(b"a/+", 1, 8, 2)
    assert trie.generation == generation + 1
    assert not trie.add(b"a/+", 1, 8, 2)
    assert trie.generation == generation + 1, "the same again changes no match"
    assert (trie.match(b"a/x"), trie.subscriptions) == ([(1, 8, 2)], 1)


def test_a_level_prefix_is_no_filter() -> None:
    trie = TrieProbe()
    trie.add(b"a/+/c", 1)
    assert not trie.remove(b"a/+", 1)
    assert not trie.remove(b"a/+/c/#", 1)
    assert not trie.remove(b"a/+/c", 2)
    assert (trie.filters, trie.match(b"a/b")) == (1, [])


def test_deep_topics() -> None:
    """More levels than fit on the stack, up to what 65 535 bytes can hold."""
    for levels in (127, 128, 129, 130, 1000, 32768):
        trie = TrieProbe(levels)
        topic = b"/".join([b"a"] * levels)
        plus = b"/".join([b"+"] * levels)
        trie.add(topic, 1)
        trie.add(plus, 2)
        trie.add(topic[:-1] + b"#", 3)
        trie.add(topic[:-1] + b"+", 4)
        assert sorted(trie.match(topic)) == [(key, 0, 0) for key in range(1, 5)]
        assert trie.match(topic + b"/a") == [(3, 0, 0)]
        for key, topic_filter in enumerate([topic, plus, topic[:-1] + b"#", topic[:-1] + b"+"], 1):
            assert trie.remove(topic_filter, key)
        assert trie.nodes == 0


def test_every_mix_of_plus_and_name() -> None:
    """2^10 filters over one path: each matching one is found once."""
    trie = TrieProbe()
    levels = [b"l%d" % at for at in range(10)]
    for mask in range(1 << 10):
        trie.add(b"/".join(b"+" if mask >> at & 1 else level for at, level in enumerate(levels)), mask)
    assert sorted(key for key, _, _ in trie.match(b"/".join(levels))) == list(range(1 << 10))
    levels[4] = b"other"
    assert sorted(key for key, _, _ in trie.match(b"/".join(levels))) == [m for m in range(1 << 10) if m >> 4 & 1]


def test_a_filter_too_long_is_refused_and_leaves_nothing() -> None:
    trie = TrieProbe()
    for topic_filter in (b"x" * 65536, b"a/" * 32768 + b"+"):
        with pytest.raises(UsageError, match="65535"):
            trie.add(topic_filter, 1)
    assert trie.add(b"x" * 65535, 1)
    assert trie.match(b"x" * 65535) == [(1, 0, 0)]
    assert trie.match(b"x" * (65535 + 65536)) == []
    assert trie.nodes == 1


@pytest.mark.parametrize("topic_filter", [b"news", b"news/+"])
def test_a_hundred_thousand_subscribers_of_one_filter(topic_filter: bytes) -> None:
    trie, count = TrieProbe(5), 100_000
    # Multiples of 64, as pointers are.
    for key in range(count):
        assert trie.add(topic_filter, key * 64, key)
    topic = topic_filter.replace(b"+", b"today")
    assert len(trie.match(topic)) == count
    assert not trie.add(topic_filter, 640, 3)
    assert (trie.filters, trie.subscriptions) == (1, count)
    order = list(range(count))
    random.Random(1).shuffle(order)
    for key in order[:-10]:
        assert trie.remove(topic_filter, key * 64)
    assert sorted(key for key, _, _ in trie.match(topic)) == sorted(key * 64 for key in order[-10:])
    for key in order[-10:]:
        assert trie.remove(topic_filter, key * 64)
    assert (trie.filters, trie.subscriptions, trie.nodes, trie.slots) == (0, 0, 0, 0)


def test_removing_all_prunes_all() -> None:
    rng = random.Random(7)
    trie = TrieProbe(rng.getrandbits(64))
    filters = {b"/".join(rng.choice([b"+", b"%d" % rng.randrange(30)]) for _ in range(rng.randrange(1, 6)))
               + rng.choice([b"", b"", b"/#"]) for _ in range(20_000)}
    order = sorted(filters)
    for topic_filter in order:
        trie.add(topic_filter, len(topic_filter))
    assert trie.filters == trie.subscriptions == len(order)
    most = trie.slots
    rng.shuffle(order)
    for topic_filter in order[len(order) // 20:]:
        assert trie.remove(topic_filter, len(topic_filter))
    assert trie.slots < most // 4, "the table shrinks with what it holds"
    for topic_filter in order[:len(order) // 20]:
        assert trie.remove(topic_filter, len(topic_filter))
    assert (trie.filters, trie.subscriptions, trie.nodes, trie.slots) == (0, 0, 0, 0)


def test_a_trie_dies_with_subscriptions_in_it() -> None:
    for _ in range(50):
        trie = TrieProbe()
        for key in range(100):
            trie.add(b"a/+/b", key)
            trie.add(b"x/%d" % key, key)


def test_hash_fills_all_shards_evenly() -> None:
    """Names that differ little spread over the upper bits (shards) and the lower ones (slots) alike."""
    numbers = range(50_000)
    for names in ([b"%d" % n for n in numbers], [b"sensors/building-7/%06d/temperature" % n for n in numbers],
                  [n.to_bytes(8, "little") for n in numbers], [bytes(n) for n in range(4_000)]):
        hashes = [hash_bytes(name, 12345) for name in names]
        for shift in (0, 24, 56):
            loads = [0] * 256
            for value in hashes:
                loads[value >> shift & 255] += 1
            mean = len(hashes) / 256
            assert max(loads) < mean + 7 * mean ** 0.5
            assert min(loads) > mean - 7 * mean ** 0.5
