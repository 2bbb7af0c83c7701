"""The subscription index does what the naive one does, whatever is added, removed and asked, in whatever order."""
import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracle.topics import NaiveIndex, matches

from fluxmq._core.testing.trie_probe import TrieProbe, hash_bytes

# Few words, so that filters collide and nest; the empty level and `$` among them, and names longer than one hash word.
WORDS = st.sampled_from([b"", b"a", b"b", b"$", b"$SYS", b"ab", b"a-level-of-22-characters"])
TOPICS = st.lists(WORDS, min_size=1, max_size=5).map(b"/".join).filter(len)
FILTERS = st.tuples(st.lists(st.one_of(WORDS, st.just(b"+")), max_size=5), st.booleans()).map(
    lambda parts: b"/".join(parts[0] + [b"#"] * parts[1])).filter(len)
KEYS = st.integers(0, 5)
SEEDS = st.integers(0, 2**64 - 1)


class TrieAgainstOracle(RuleBasedStateMachine):
    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        self.trie = TrieProbe(seed)
        self.naive = NaiveIndex()

    @rule(topic_filter=st.one_of(FILTERS, TOPICS), key=KEYS, identifier=st.integers(0, 2),
          options=st.sampled_from([0, 1, 2, 0x0D, 0x80]))
    def add(self, topic_filter: bytes, key: int, identifier: int, options: int) -> None:
        before = self.trie.generation
        changed = self.naive.held.get((topic_filter, key)) != (identifier, options)
        assert self.trie.add(topic_filter, key, identifier, options) == self.naive.add(
            topic_filter, key, identifier, options)
        assert (self.trie.generation > before) == changed

    @rule(topic_filter=st.one_of(FILTERS, TOPICS), key=KEYS)
    def remove_any(self, topic_filter: bytes, key: int) -> None:
        self.check_remove(topic_filter, key)

    @rule(data=st.data())
    def remove_held(self, data: st.DataObject) -> None:
        if self.naive.held:
            self.check_remove(*data.draw(st.sampled_from(sorted(self.naive.held))))

    def check_remove(self, topic_filter: bytes, key: int) -> None:
        before = self.trie.generation
        removed = self.naive.remove(topic_filter, key)
        assert self.trie.remove(topic_filter, key) == removed
        assert (self.trie.generation > before) == removed

    @rule(topic=TOPICS)
    def match(self, topic: bytes) -> None:
        assert sorted(self.trie.match(topic)) == sorted(self.naive.match(topic))

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "trie"):
            return
        held = self.naive.held
        filters = {topic_filter for topic_filter, _ in held}
        assert self.trie.subscriptions == len(held)
        assert self.trie.filters == len(filters)
        # A node for each exact filter and for each distinct prefix of the others, and not one more.
        prefixes = set()
        for topic_filter in filters:
            levels = topic_filter.split(b"/")
            if b"+" in levels or b"#" in levels:
                prefixes.update(tuple(levels[:depth]) for depth in range(1, len(levels) + 1))
            else:
                prefixes.add((topic_filter, None))
        assert self.trie.nodes == len(prefixes)

    def teardown(self) -> None:
        for topic_filter, key in sorted(self.naive.held):
            assert self.trie.remove(topic_filter, key)
        assert (self.trie.filters, self.trie.subscriptions, self.trie.nodes) == (0, 0, 0)


TrieAgainstOracle.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTrieAgainstOracle = TrieAgainstOracle.TestCase


@given(FILTERS, TOPICS, SEEDS)
def test_one_filter_one_topic(topic_filter: bytes, topic: bytes, seed: int) -> None:
    trie = TrieProbe(seed)
    trie.add(topic_filter, 7)
    assert bool(trie.match(topic)) == matches(topic_filter, topic)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 120), st.integers(0, 3)), min_size=1, max_size=400),
       st.sampled_from([b"exact", b"w/+"]), st.integers(0, 90))
def test_crowd_of_one_filter(steps: list[tuple[bool, int, int]], topic_filter: bytes, crowd: int) -> None:
    """One filter's subscribers, on both sides of the size where they get an index of their own."""
    trie, held = TrieProbe(3), {}
    for key in range(crowd):
        trie.add(topic_filter, key)
        held[key] = 0
    for adding, key, identifier in steps:
        if adding:
            assert trie.add(topic_filter, key, identifier) == (key not in held)
            held[key] = identifier
        else:
            assert trie.remove(topic_filter, key) == (held.pop(key, None) is not None)
    assert sorted(trie.match(topic_filter.replace(b"+", b"x"))) == sorted(
        (key, identifier, 0) for key, identifier in held.items())
    for key in list(held):
        assert trie.remove(topic_filter, key)
    assert trie.nodes == 0


@given(st.lists(st.tuples(KEYS, st.integers(0, 2**32 - 1), st.integers(0, 255)), max_size=20), TOPICS)
def test_match_appends(before: list[tuple[int, int, int]], topic: bytes) -> None:
    trie = TrieProbe(1)
    trie.add(topic, 40, 2**32 - 1, 255)
    trie.add(b"$SYS/#" if topic.startswith(b"$SYS") else topic + b"/#", 41)
    found = trie.match_after(before, topic)
    assert found[:len(before)] == before
    assert sorted(found[len(before):]) == sorted(trie.match(topic))
    assert len(found) == len(before) + 2


@given(st.binary(max_size=80), st.binary(max_size=80), SEEDS)
def test_hash_tells_apart(one: bytes, other: bytes, seed: int) -> None:
    assert hash_bytes(one, seed) == hash_bytes(bytes(bytearray(one)), seed)
    assert (hash_bytes(one, seed) == hash_bytes(other, seed)) == (one == other)


@given(st.binary(min_size=1, max_size=80), SEEDS, st.data())
def test_hash_reads_every_bit(data: bytes, seed: int, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) * 8 - 1))
    flipped = bytearray(data)
    flipped[at // 8] ^= 1 << at % 8
    assert hash_bytes(data, seed) != hash_bytes(bytes(flipped), seed)
    assert hash_bytes(data, seed) != hash_bytes(data, seed ^ 1)
