"""The tree of retained values does what the naive matcher over a dict does."""
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from oracle.topics import matching_topics

from fluxmq._core.pubsub.retained import RetainedTree
from fluxmq._core.testing.probes import retained_nodes

WORDS = st.sampled_from([b"", b"a", b"b", b"$", b"$SYS", b"ab"])
TOPICS = st.lists(WORDS, min_size=1, max_size=5).map(b"/".join).filter(len)
FILTERS = st.tuples(st.lists(st.one_of(WORDS, st.just(b"+")), max_size=5), st.booleans()).map(
    lambda parts: b"/".join(parts[0] + [b"#"] * parts[1])).filter(len)


class RetainedAgainstOracle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RetainedTree()
        self.held: dict[bytes, object] = {}
        self.next_value = 0

    @rule(topic=TOPICS)
    def set(self, topic: bytes) -> None:
        self.next_value += 1        # each value once, so that a stale one shows
        assert self.tree.set(topic, self.next_value) == self.held.get(topic)
        self.held[topic] = self.next_value

    @rule(topic=TOPICS)
    def pop_any(self, topic: bytes) -> None:
        assert self.tree.pop(topic) == self.held.pop(topic, None)

    @rule(data=st.data())
    def pop_held(self, data: st.DataObject) -> None:
        if self.held:
            topic = data.draw(st.sampled_from(sorted(self.held)))
            assert self.tree.pop(topic) == self.held.pop(topic)

    @rule(topic=TOPICS)
    def get(self, topic: bytes) -> None:
        assert self.tree.get(topic) == self.held.get(topic)
        assert (topic in self.tree) == (topic in self.held)

    @rule(topic_filter=st.one_of(FILTERS, TOPICS))
    def match(self, topic_filter: bytes) -> None:
        assert sorted(self.tree.match(topic_filter)) == sorted(matching_topics(topic_filter, self.held))

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.tree) == len(self.held)
        assert dict(self.tree) == self.held
        paths = [topic.split(b"/") for topic in self.held]
        assert retained_nodes(self.tree) == len({tuple(path[:depth]) for path in paths
                                                 for depth in range(1, len(path) + 1)})


RetainedAgainstOracle.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRetainedAgainstOracle = RetainedAgainstOracle.TestCase
