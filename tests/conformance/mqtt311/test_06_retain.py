"""Retained messages: kept, replaced, cleared, sent to new subscriptions and only to them as retained."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Connack, Connect, Publish, Will

ClientFactory = Callable[..., Client]
Retained = Callable[..., None]


@pytest.fixture
def retained(client: ClientFactory, take: Callable[[Client, int], list[Publish]]) -> Callable[..., None]:
    """retained("a/#", ("a/b", b"x", 1), …): a new subscriber gets exactly these at once: topic, payload, QoS."""
    def check(wanted: str, *expected: tuple[str, bytes, int]) -> None:
        s = client("new")
        s.subscribe(wanted, qos=2)
        got = take(s, len(expected))
        assert sorted((packet.topic, packet.payload, packet.qos) for packet in got) == sorted(expected)
        assert all(packet.retain and not packet.dup for packet in got)
        s.expect_quiet()
        s.disconnect()

    return check


@pytest.mark.normative("MQTT311-3.3.1-5", "MQTT311-3.3.1-6", "MQTT311-3.3.1-8", "MQTT311-3.8.4-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_new_subscription_gets_what_is_retained(client: ClientFactory, topic: str, qos: int, granted: int) -> None:
    client("pub").publish(topic, b"kept", qos, retain=True)
    s = client("sub")
    s.subscribe(topic, qos=granted)
    s.receive(topic, b"kept", qos=min(qos, granted), retain=True, dup=False)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.1-6")
def test_wildcards_get_the_last_of_each_topic(client: ClientFactory, retained: Retained, topic: str) -> None:
    p = client("pub")
    for level in ("a", "b", "b/c", "d/e/f"):
        p.publish(f"{topic}/{level}", b"old", 1, retain=True)
        p.publish(f"{topic}/{level}", level.encode(), 1, retain=True)
    p.publish(topic, b"root", 1, retain=True)
    every = {level: (f"{topic}/{level}", level.encode(), 1) for level in ("a", "b", "b/c", "d/e/f")}
    root = (topic, b"root", 1)
    retained(f"{topic}/#", root, *every.values())
    retained(f"{topic}/+", every["a"], every["b"])
    retained(f"{topic}/+/c", every["b/c"])
    retained(f"{topic}/d/#", every["d/e/f"])
    retained(f"{topic}/b/#", every["b"], every["b/c"])
    retained(f"{topic}/none")


@pytest.mark.normative("MQTT311-3.3.1-5", "MQTT311-3.3.1-7")
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_the_last_one_is_kept_with_its_qos(client: ClientFactory, retained: Retained, topic: str, first: int,
                                           second: int) -> None:
    p = client("pub")
    p.publish(topic, b"first", first, retain=True)
    p.publish(topic, b"second", second, retain=True)
    p.expect_quiet()
    retained(topic, (topic, b"second", second))


@pytest.mark.normative("MQTT311-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_delivery_is_not_marked(client: ClientFactory, topic: str, qos: int) -> None:
    s = client("sub")
    s.subscribe(topic, qos=qos)
    client("pub").publish(topic, b"live", qos, retain=True)
    s.receive(topic, b"live", retain=False)


@pytest.mark.normative("MQTT311-3.3.1-9")
def test_delivery_to_an_established_offline_session_is_not_marked(client: ClientFactory, topic: str,
                                                                  offline: Callable[..., None]) -> None:
    offline("sub", topic, qos=1)
    client("pub").publish(topic, b"while away", 1, retain=True)
    s = client("sub", clean_start=False)
    s.receive(topic, b"while away", retain=False)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.1-10", "MQTT311-3.3.1-11")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_clears(client: ClientFactory, retained: Retained, topic: str, qos: int) -> None:
    s, p = client("sub"), client("pub")
    p.publish(topic, b"kept", 1, retain=True)
    s.subscribe(topic, qos=2)
    s.receive(topic, b"kept", retain=True)
    p.publish(topic, b"", qos, retain=True)
    s.receive(topic, b"", qos=qos, retain=False)
    retained(topic)


@pytest.mark.normative("MQTT311-3.3.1-11")
def test_clearing_what_is_not_there_keeps_nothing(client: ClientFactory, retained: Retained, topic: str) -> None:
    client("pub").publish(topic, b"", 1, retain=True)
    retained(topic)


@pytest.mark.normative("MQTT311-3.3.1-10")
def test_clearing_one_topic_leaves_the_others(client: ClientFactory, retained: Retained, topic: str) -> None:
    p = client("pub")
    for level in ("a", "a/b", "ab"):
        p.publish(f"{topic}/{level}", b"x", 1, retain=True)
    p.publish(f"{topic}/a", b"", 1, retain=True)
    retained(f"{topic}/#", (f"{topic}/a/b", b"x", 1), (f"{topic}/ab", b"x", 1))


@pytest.mark.normative("MQTT311-3.3.1-12")
@pytest.mark.parametrize("payload", [b"live", b""])
def test_retain_0_changes_nothing(client: ClientFactory, retained: Retained, topic: str, payload: bytes) -> None:
    p = client("pub")
    p.publish(f"{topic}/kept", b"kept", 1, retain=True)
    p.publish(f"{topic}/kept", payload, 1)
    p.publish(f"{topic}/none", payload, 1)
    retained(f"{topic}/#", (f"{topic}/kept", b"kept", 1))


@pytest.mark.normative("MQTT311-3.3.1-8", "MQTT311-3.3.1-9", "MQTT311-3.8.4-3")
def test_subscribing_again_sends_again(client: ClientFactory, topic: str) -> None:
    p, s = client("pub"), client("sub")
    p.publish(topic, b"kept", 1, retain=True)
    for granted in (1, 1, 0, 2):
        s.subscribe(topic, qos=granted)
        s.receive(topic, b"kept", retain=True, qos=min(1, granted))
        p.publish(topic, b"live", 1)
        s.receive(topic, b"live", retain=False)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.1-6")
def test_resuming_a_session_is_no_new_subscription(client: ClientFactory, offline: Callable[..., None], topic: str
                                                   ) -> None:
    client("pub").publish(topic, b"kept", 1, retain=True)
    c = client("sub", clean_start=False)
    c.subscribe(topic, qos=1)
    c.receive(topic, b"kept", retain=True)
    c.disconnect()
    client("sub", clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-3.3.1-1", "MQTT311-4.4.0-1")
def test_a_retained_message_is_repeated_as_such(client: ClientFactory, topic: str) -> None:
    client("pub").publish(topic, b"kept", 1, retain=True)
    c = client("sub", clean_start=False)
    c.subscribe(topic, qos=1)
    packet_id = c.expect(Publish, payload=b"kept", retain=True, dup=False).packet_id
    c.close()
    client("sub", clean_start=False).receive(topic, b"kept", retain=True, dup=True, packet_id=packet_id)


def test_a_server_without_retained_messages(client: ClientFactory, open_client: Callable[..., Client],
                                            start_broker: Callable[..., Broker], topic: str) -> None:
    """It says so where 3.1.1 has a word for it, "not authorized" (section 3.2.2.3), and ends where there is none."""
    without = start_broker({"broker.max_retained_messages": 0})
    refused = open_client(without)
    refused.send(Connect(client_id="will", will=Will(topic=topic, payload=b"kept", retain=True)))
    refused.expect(Connack, reason=5)
    refused.expect_closed()
    assert "broker.max_retained_messages" in without.stderr()
    for qos in (0, 1, 2):
        publisher = client(f"c{qos}", where=without)
        publisher.send(Publish(topic=topic, payload=b"kept", qos=qos, packet_id=qos, retain=True))
        publisher.expect_closed()
