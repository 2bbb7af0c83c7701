"""SUBSCRIBE and SUBACK."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Puback, Publish, Suback, Subscribe, Unsubscribe

ClientFactory = Callable[..., Client]

INVALID_FILTERS = ["a/#/b", "#/a", "a#", "a/b#", "a/#b", "a+", "+a", "a/b+/c", "a/+b", "##", "++", "a/++", ""]


@pytest.mark.normative("MQTT311-3.8.4-1", "MQTT311-3.8.4-2", "MQTT311-2.3.1-7")
def test_every_subscribe_is_answered(client: ClientFactory, topic: str) -> None:
    c = client()
    c.send(*(Subscribe(packet_id=packet_id, filters=[(f"{topic}/{packet_id}", 1)]) for packet_id in (5, 1, 9)))
    for packet_id in (5, 1, 9):
        c.expect(Suback, packet_id=packet_id, reasons=[1])


@pytest.mark.normative("MQTT311-3.8.3-3", "MQTT311-4.8.0-1")
def test_no_filter_closes(client: ClientFactory) -> None:
    c = client()
    c.send(Subscribe(packet_id=1, filters=[]))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.8.3-4", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("bits", [3, 4, 8, 16, 32, 64, 128, 0x81, 0xFF])
@pytest.mark.parametrize("position", [0, 1])
def test_reserved_bits_and_qos_3_close(client: ClientFactory, topic: str, bits: int, position: int) -> None:
    c = client()
    filters: list[tuple[str | bytes, int]] = [(f"{topic}/a", 1), (f"{topic}/b", 1)]
    filters[position] = (filters[position][0], bits)
    c.send(Subscribe(packet_id=1, filters=filters))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.8.4-4", "MQTT311-3.8.4-5", "MQTT311-3.9.3-1", "MQTT311-3.9.3-2")
def test_each_filter_has_its_code_in_order(client: ClientFactory, topic: str) -> None:
    c = client()
    c.subscribe((f"{topic}/a", 2), (f"{topic}/b", 0), (f"{topic}/c", 1), (f"{topic}/d/#", 2), (f"{topic}/+/e", 0))
    p = client("pub")
    for level, qos in (("a", 2), ("b", 0), ("c", 1), ("d/x", 2), ("x/e", 0)):
        p.publish(f"{topic}/{level}", b"x", 2)
        c.receive(f"{topic}/{level}", qos=qos)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-4.7.3-1")
@pytest.mark.parametrize("wrong", INVALID_FILTERS)
def test_an_invalid_filter_closes(client: ClientFactory, topic: str, wrong: str) -> None:
    for packet in (Subscribe(packet_id=1, filters=[(topic, 1), (wrong, 1)]),
                   Unsubscribe(packet_id=1, filters=[topic, wrong])):
        c = client()
        c.send(packet)
        c.expect_closed()


@pytest.mark.normative("MQTT311-3.8.4-5", "MQTT311-3.9.3-1", "MQTT311-3.9.3-2")
def test_a_filter_that_is_not_taken_gets_0x80(client: ClientFactory, topic: str) -> None:
    """It has more levels than this broker takes. It alone: its neighbours are granted, the connection lives."""
    c = client()
    c.subscribe((f"{topic}/a", 1), ("a/" * 40 + "a", 1), (f"{topic}/b", 2), expect=[1, 0x80, 2])
    c.publish(f"{topic}/b", b"x")
    c.receive(f"{topic}/b", b"x")
    c.expect_quiet()


@pytest.mark.normative("MQTT311-3.8.4-4")
def test_many_filters_act_as_many_subscribes(client: ClientFactory, topic: str) -> None:
    """Also where one filter stands twice: the later replaces the earlier."""
    c = client()
    c.subscribe(*((f"{topic}/{number}", number % 3) for number in range(300)), (f"{topic}/0", 2))
    p = client("pub")
    for number in (0, 1, 2, 150, 299):
        p.publish(f"{topic}/{number}", b"x", 2)
        c.receive(f"{topic}/{number}", qos=number % 3 if number else 2)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-3.8.4-3", "MQTT311-3.8.4-6")
def test_the_same_filter_replaces(client: ClientFactory, topic: str) -> None:
    c, p = client(), client("pub")
    for qos in (2, 0, 1, 1, 2):
        c.subscribe((f"{topic}/+", qos))
        p.publish(f"{topic}/a", b"x", 2)
        c.receive(f"{topic}/a", b"x", qos=qos)
        c.expect_quiet()
    c.unsubscribe(f"{topic}/+")
    p.publish(f"{topic}/a", b"x", 2)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-3.8.4-3")
def test_replacing_loses_nothing(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=1)
    for number in range(200):
        p.send(Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=number + 1))
        if number % 20 == 0:
            s.send(Subscribe(packet_id=number + 1, filters=[(topic, 1)]))
    got: list[bytes] = []
    acknowledged = 0
    while len(got) < 200 or acknowledged < 10:
        packet = s.recv()
        if isinstance(packet, Suback):
            acknowledged += 1
        else:
            assert isinstance(packet, Publish) and packet.packet_id is not None
            got.append(packet.payload)
            s.send(Puback(packet_id=packet.packet_id))
    assert got == [b"%d" % number for number in range(200)]


@pytest.mark.normative("MQTT311-3.8.3-2")
@pytest.mark.parametrize("wanted", ["#", "+", "+/+", "/+", "/#", "a/#", "+/a/#", "a/+/+/b"])
def test_wildcards_are_supported(client: ClientFactory, wanted: str) -> None:
    """So none of them may be refused."""
    client().subscribe((wanted, 1))


@pytest.mark.normative("MQTT311-4.7.3-1", "MQTT311-4.8.0-1")
def test_an_empty_filter_closes(client: ClientFactory) -> None:
    c = client()
    c.send(Subscribe(packet_id=1, filters=[("", 0)]))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.7.3-3")
def test_a_filter_may_have_65535_bytes(client: ClientFactory) -> None:
    c, long = client(), "f" * 65535
    c.subscribe(long)
    c.publish(long, b"x")
    c.expect(Publish, topic=long)


@pytest.mark.normative("MQTT311-3.8.4-5", "MQTT311-3.9.3-2")
def test_a_forbidden_subscription_gets_0x80(guarded_broker: Broker, client: ClientFactory) -> None:
    bert = client("bert", where=guarded_broker, username="bert", password=b"bert's secret")
    bert.subscribe(("open", 1), ("closed/x", 1), ("open/#", 2), expect=[1, 0x80, 2])
    client("anna", where=guarded_broker, username="anna", password=b"anna's secret").publish("closed/x", b"x", 1)
    bert.expect_quiet()


@pytest.mark.normative("MQTT311-3.8.4-5", "MQTT311-3.8.4-6")
@pytest.mark.parametrize("highest", [0, 1])
def test_a_lower_qos_may_be_granted(start_broker: Callable[..., Broker], client: ClientFactory, topic: str,
                                    highest: int) -> None:
    own = start_broker({"broker.max_qos": highest})
    c = client(where=own)
    c.subscribe((f"{topic}/0", 0), (f"{topic}/1", 1), (f"{topic}/2", 2), expect=[0, min(1, highest), highest])
    c.publish(f"{topic}/2", b"x", highest)
    assert c.expect(Publish, payload=b"x").qos == highest
