"""UNSUBSCRIBE and UNSUBACK."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.client import Client
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel, Unsuback, Unsubscribe

ClientFactory = Callable[..., Client]


@pytest.mark.normative("MQTT311-3.10.4-2", "MQTT311-3.10.4-4")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_after_unsuback_nothing_comes(client: ClientFactory, topic: str, qos: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=qos)
    p.publish(topic, b"before", qos)
    s.receive(topic, b"before")
    s.unsubscribe(topic)
    p.publish(topic, b"after", qos)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-5", "MQTT311-3.10.4-4")
def test_unsuback_comes_for_what_was_never_subscribed(client: ClientFactory, topic: str) -> None:
    c = client()
    for packet_id, filters in ((7, [topic]), (65535, [topic, f"{topic}/#"]), (1, ["+", "#"])):
        c.send(Unsubscribe(packet_id=packet_id, filters=list(filters)))
        c.expect(Unsuback, packet_id=packet_id)


@pytest.mark.normative("MQTT311-3.10.3-2", "MQTT311-4.8.0-1")
def test_no_filter_closes(client: ClientFactory) -> None:
    c = client()
    c.send(Unsubscribe(packet_id=1, filters=[]))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.7.3-1", "MQTT311-4.8.0-1")
def test_an_empty_filter_closes(client: ClientFactory) -> None:
    c = client()
    c.send(Unsubscribe(packet_id=1, filters=[""]))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.10.4-1")
def test_only_an_equal_filter_is_removed(client: ClientFactory, topic: str) -> None:
    """Not one that matches it, is matched by it, or looks like it."""
    s, p = client("sub"), client("pub")
    kept = [f"{topic}/a", f"{topic}/+/b", f"{topic}/c/#", f"{topic}/D", f"{topic}/e/"]
    s.subscribe(*kept, qos=1)
    for other in (f"{topic}/+", f"{topic}/#", f"{topic}/x/b", f"{topic}/c", f"{topic}/c/+", f"{topic}/d", f"{topic}/e",
                  f"{topic}/A", f"{topic}/a ", "#"):
        s.unsubscribe(other)
    for level in ("a", "x/b", "c/d", "c", "D", "e/"):
        p.publish(f"{topic}/{level}", level.encode(), 1)
        s.receive(f"{topic}/{level}", level.encode())
    for wanted in kept:
        s.unsubscribe(wanted)
    for level in ("a", "x/b", "c/d", "c", "D", "e/"):
        p.publish(f"{topic}/{level}", b"x", 1)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-1")
def test_another_clients_subscription_stays(client: ClientFactory, topic: str) -> None:
    one, two = client("one"), client("two")
    for c in (one, two):
        c.subscribe(topic)
    one.unsubscribe(topic)
    client("pub").publish(topic, b"x")
    two.receive(topic, b"x")
    one.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-6", "MQTT311-3.10.3-1")
def test_many_filters_get_one_unsuback(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    filters = [f"{topic}/{number}" for number in range(50)]
    s.subscribe(*filters)
    s.unsubscribe(*filters[:25], f"{topic}/none", filters[0])
    for number in (0, 24, 25, 49):
        p.publish(f"{topic}/{number}", b"x")
    p.expect_quiet()
    s.receive(f"{topic}/25")
    s.receive(f"{topic}/49")
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-3")
def test_deliveries_that_have_begun_are_completed(client: ClientFactory, topic: str) -> None:
    s, p = client("sub", clean_start=False), client("pub")
    s.subscribe(topic, qos=2)
    p.publish(topic, b"1", 1)
    p.publish(topic, b"2", 2)
    one = s.expect(Publish, qos=1).packet_id
    two = s.expect(Publish, qos=2).packet_id
    assert one is not None and two is not None
    s.unsubscribe(topic)
    s.send(Pubrec(packet_id=two))
    s.expect(Pubrel, packet_id=two)
    s.close()
    s = client("sub", clean_start=False)                    # they also survive a reconnect
    repeated = {packet.kind: packet for packet in (s.recv(), s.recv())}
    assert repeated[Publish.kind] == Publish(topic=topic, payload=b"1", qos=1, packet_id=one, dup=True, properties=[])
    assert repeated[Pubrel.kind] == Pubrel(packet_id=two)
    s.send(Puback(packet_id=one), Pubcomp(packet_id=two))
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-2")
def test_the_other_subscriptions_of_the_session_stay(client: ClientFactory, topic: str) -> None:
    s = client("sub")
    s.subscribe((topic, 1), (f"{topic}/#", 1))
    s.unsubscribe(f"{topic}/#")
    client("pub").publish(topic, b"x", 1)
    s.receive(topic, b"x")
    s.expect_quiet()
