"""Subscriptions of one session that overlap: what it gets of its own client's messages and of others' is what the naive
broker gives it. MQTT 5.0 sections 3.3.4 and 3.8.3.1."""
from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given
from oracle.delivery import Subscription, merged
from oracle.mqtt import V5, Publish, options, parse
from oracle.topics import matches

from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.testing.hub_probe import HubProbe

TOPICS = st.sampled_from([b"a", b"a/b", b"$own/a"])
FILTERS = st.sampled_from([b"a", b"a/b", b"#", b"+", b"a/#", b"+/b", b"a/+", b"$own/#", b"$own/+"])
SUBSCRIPTIONS = st.builds(Subscription, st.integers(0, 2), st.booleans(), st.just(0), st.just(""), st.booleans(),
                          st.sampled_from([0, 0, 1, 2, 200_000]))
Held = dict[bytes, Subscription]
SESSIONS = st.lists(st.dictionaries(FILTERS, SUBSCRIPTIONS, max_size=5), min_size=1, max_size=3)
# (topic, QoS, RETAIN, number of the publishing client; beyond the sessions: somebody else)
MESSAGES = st.lists(st.tuples(TOPICS, st.integers(0, 2), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6)


def got(probe: HubProbe, number: int) -> list[tuple[int, bool, list[int]]]:
    """What a client is sent: QoS, RETAIN, Subscription Identifiers."""
    data, found = probe.take(number), []
    while data:
        parsed = parse(data, V5)
        assert parsed is not None
        packet, data = parsed
        assert isinstance(packet, Publish)
        found.append((packet.qos, packet.retain, sorted(packet.props("subscription_identifier"))))
    return found


@given(SESSIONS, MESSAGES, st.sets(st.integers(0, 2)))
@example([{b"#": Subscription(1, True, 0, "", True, 7), b"a": Subscription(0, False, 0, "", False, 0)}],
         [(b"a", 1, True, 0), (b"a", 1, True, 3), (b"a", 1, True, 0)], set())
def test_each_session_gets_what_the_naive_broker_gives(sessions: list[Held],
                                                       messages: list[tuple[bytes, int, bool, int]],
                                                       moving: set[int]) -> None:
    """moving: sessions that are between two nodes, and take from all sources."""
    probe = HubProbe(len(sessions), level=5)
    kept = []
    for number, held in enumerate(sessions):
        for topic_filter, one in held.items():
            bits = options(one.qos, no_local=one.no_local, retain_as_published=one.as_published)
            probe.subscribe(number, topic_filter, bits, one.identifier)
            probe.sessions[number].keep_subscription(topic_filter, bits, one.identifier)
        if number in moving:
            kept.append(MovingSession(probe.sessions[number], True))
    for topic, qos, retain, publisher in messages:
        source = probe.sessions[publisher] if publisher < len(sessions) else None
        probe.hub.publish_message(topic, b"x", qos, retain, source=source)
        for number, held in enumerate(sessions):
            wanted = merged((one for topic_filter, one in held.items() if matches(topic_filter, topic)),
                            qos, retain, number == publisher)
            assert got(probe, number) == ([wanted] if wanted else [])
