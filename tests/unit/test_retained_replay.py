"""What is retained comes to a new subscription in slices, as fast as its client takes it: nothing is dropped, nothing
is piled up. MQTT 5.0 section 3.3.1.3."""
from __future__ import annotations

import pytest
from oracle.mqtt import Publish, parse

from fluxmq._core.testing.hub_probe import HubProbe

LINK_BYTES = 65536 + 8192  # what may wait in a link, and a message more
SLICE = 512  # nodes looked at in one slice


def retained(probe: HubProbe, count: int, qos: int = 0, size: int = 20) -> dict[str, bytes]:
    held = {}
    for number in range(count):
        topic, payload = f"r/{number % 10}/{number}", b"%0*d" % (size, number)
        probe.hub.publish_message(topic.encode(), payload, qos, True)
        held[topic] = payload
    return held


def packets(data: bytes, version: int = 4) -> list[Publish]:
    found = []
    while data:
        parsed = parse(data, version)
        assert parsed is not None
        packet, data = parsed
        assert isinstance(packet, Publish)
        found.append(packet)
    return found


def read_all(probe: HubProbe, session: int = 0, *, acknowledge: bool = True, version: int = 4) -> list[Publish]:
    """A healthy reader: takes what there is, acknowledges it, again."""
    found: list[Publish] = []
    while True:
        probe.replay()
        assert probe.pending(session) <= LINK_BYTES
        got = packets(probe.take(session), version)
        if not got and not probe.replay() and not probe.pending(session):
            return found
        found += got
        for packet in got:
            if packet.qos and acknowledge:
                probe.puback(session, packet.packet_id)


@pytest.mark.parametrize(("qos", "window"), [(0, 10), (1, 1), (1, 10), (1, 256)])
def test_a_healthy_reader_gets_all_of_them(qos: int, window: int) -> None:
    probe = HubProbe(1)
    probe.attach(0, window=window)
    held = retained(probe, 5000, qos)
    probe.subscribe(0, b"#", qos)
    probe.hub.deliver_retained(probe.sessions[0], b"#", qos, 0)
    assert probe.pending(0) == 0, "nothing leaves before its turn"
    got = read_all(probe)
    assert {packet.topic: packet.payload for packet in got} == held
    assert len(got) == 5000 and all(packet.retain and packet.qos == qos for packet in got)
    counters = probe.hub.counters()
    assert counters["dropped_buffer_full"] == counters["dropped_queue_full"] == counters["queued"] == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_who_does_not_read_costs_nothing(qos: int) -> None:
    probe = HubProbe(50)
    retained(probe, 20_000, qos)
    for at in range(50):
        probe.attach(at, window=20)
        for filter_ in (b"#", b"r/#", b"+/+/#"):
            probe.subscribe(at, filter_, qos)
            probe.hub.deliver_retained(probe.sessions[at], filter_, qos, 0)
    while probe.replay():
        pass
    for at in range(50):
        assert probe.pending(at) <= (LINK_BYTES if qos == 0 else 20 * 100)
        assert probe.sessions[at].queued == 0
    work = probe.hub.work
    assert probe.replay() == 0 and probe.hub.work == work, "it is not looked at again until there is room"


def test_all_who_wait_have_slices_in_turn() -> None:
    probe = HubProbe(20)
    retained(probe, 2000)
    for at in range(20):
        probe.subscribe(at, b"#")
        probe.hub.deliver_retained(probe.sessions[at], b"#", 0, 0)
    got = [0] * 20
    rounds = 0
    while min(got) < 2000:
        work = probe.hub.work
        probe.replay()
        assert probe.hub.work - work <= 65536 + 5 * SLICE, "a round has an end"
        for at in range(20):
            got[at] += len(packets(probe.take(at)))
        assert max(got) - min(got) <= SLICE
        rounds += 1
    assert got == [2000] * 20 and rounds >= 4


def test_live_messages_go_on_and_neither_keeps_the_other_from_the_window() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=1)
    held = retained(probe, 200, 1)
    session = probe.sessions[0]
    session.queue_max = 1000
    probe.subscribe(0, b"#", 1)
    probe.hub.deliver_retained(session, b"#", 1, 0)
    for number in range(200):
        probe.hub.publish_message(b"live", b"%d" % number, 1)
    got: list[Publish] = []
    for _ in range(2000):
        probe.replay()
        for packet in packets(probe.take(0)):
            got.append(packet)
            probe.puback(0, packet.packet_id)
    assert [packet.payload for packet in got if not packet.retain] == [b"%d" % number for number in range(200)]
    assert {packet.topic: packet.payload for packet in got if packet.retain} == held and len(got) == 400
    half = [packet.retain for packet in got[:200]]
    assert 80 <= sum(half) <= 120, "place by place in turn"


def test_a_newer_value_is_not_followed_by_an_older_one_nor_sent_twice() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=5)
    retained(probe, 100, 1)
    probe.subscribe(0, b"#", 1)
    probe.hub.deliver_retained(probe.sessions[0], b"#", 1, 0)
    probe.replay()
    first = packets(probe.take(0))
    assert len(first) == 5
    for number in range(100):
        probe.hub.publish_message(f"r/{number % 10}/{number}".encode(), b"new", 1, True)
    for packet in first:
        probe.puback(0, packet.packet_id)
    rest = read_all(probe)
    assert all(packet.payload == b"new" and not packet.retain for packet in rest) and len(rest) == 100


def test_what_is_cleared_or_expired_meanwhile_is_not_sent() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=1)
    probe.hub.set_clock(1_000_000, 0)
    for number in range(100):
        probe.hub.publish_message(b"r/%d" % number, b"x", 1, True, expires_at=1_005_000 if number % 2 else 0)
    probe.subscribe(0, b"r/+", 1)
    probe.hub.deliver_retained(probe.sessions[0], b"r/+", 1, 0)
    probe.replay()
    [first] = packets(probe.take(0))
    probe.hub.set_clock(1_005_000, 5000)
    cleared = [number for number in range(10, 30)]
    for number in cleared:
        probe.hub.publish_message(b"r/%d" % number, b"", 0, True)
    probe.puback(0, first.packet_id)
    got = {packet.topic for packet in read_all(probe)} - {f"r/{number}" for number in cleared}
    assert got | {first.topic} >= {f"r/{number}" for number in range(0, 100, 2) if number not in cleared}
    assert not any(int(topic[2:]) % 2 for topic in got - {first.topic})


def test_the_end_of_the_subscription_is_the_end_of_its_replay() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=3)
    retained(probe, 50, 1)
    session = probe.sessions[0]
    probe.subscribe(0, b"#", 1)
    probe.hub.deliver_retained(session, b"#", 1, 0)
    probe.replay()
    first = packets(probe.take(0))
    probe.hub.unsubscribe(session, b"#")
    for packet in first:
        probe.puback(0, packet.packet_id)
    assert read_all(probe) == []
    # The same filter again, of which nothing retained is wanted.
    probe.subscribe(0, b"#", 1)
    assert read_all(probe) == []


def test_options_that_change_meanwhile_hold_for_what_is_still_to_come() -> None:
    probe = HubProbe(1, level=5)
    probe.attach(0, level=5, window=3)
    retained(probe, 50, 1)
    session = probe.sessions[0]
    probe.subscribe(0, b"#", 1, 7)
    probe.hub.deliver_retained(session, b"#", 1, 7)
    probe.replay()
    first = packets(probe.take(0), 5)
    probe.subscribe(0, b"#", 0, 9)
    for packet in first:
        probe.puback(0, packet.packet_id)
    rest = read_all(probe, version=5)
    assert len(first) + len(rest) == 50
    assert {packet.qos for packet in first} == {1} and {packet.qos for packet in rest} == {0}


def test_a_session_that_returns_gets_what_was_left() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=4)
    held = retained(probe, 100, 1)
    session = probe.sessions[0]
    probe.subscribe(0, b"#", 1)
    probe.hub.deliver_retained(session, b"#", 1, 0)
    got: list[Publish] = []
    for _ in range(40):
        probe.replay()
        part = packets(probe.take(0))
        for packet in part[:2]:
            probe.puback(0, packet.packet_id)
        got += part
        probe.detach(0)
        probe.replay()
        assert probe.replay() == 0 == probe.pending(0)
        probe.attach(0, window=4)
    got += read_all(probe)
    assert {packet.topic: packet.payload for packet in got} == held
    fresh = [packet for packet in got if not packet.dup]
    assert len(fresh) == 100, "the others are repetitions of what was not acknowledged"


def test_qos_0_that_came_while_the_client_was_away_is_sent_when_it_returns() -> None:
    probe = HubProbe(1)
    probe.attach(0, window=1)
    retained(probe, 2000)
    session = probe.sessions[0]
    probe.subscribe(0, b"#", 0)
    probe.hub.deliver_retained(session, b"#", 0, 0)
    probe.detach(0)
    probe.hub.publish_message(b"r/9/1999", b"new", 0, True)
    probe.attach(0, window=1)
    got = {packet.topic: packet.payload for packet in read_all(probe)}
    assert len(got) == 2000 and got["r/9/1999"] == b"new"


def test_a_session_that_ends_ends_its_replay() -> None:
    probe = HubProbe(2)
    retained(probe, 2000)
    for at in range(2):
        probe.subscribe(at, b"#")
        probe.hub.deliver_retained(probe.sessions[at], b"#", 0, 0)
    probe.replay()
    probe.hub.unsubscribe(probe.sessions[0], b"#")
    probe.sessions[0].clear()
    assert len(read_all(probe, 1)) == 2000
