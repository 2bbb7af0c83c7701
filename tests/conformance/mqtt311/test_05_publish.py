"""PUBLISH: topics, QoS, DUP, and who may."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client, Closed
from oracle.mqtt import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel

ClientFactory = Callable[..., Client]
Take = Callable[[Client, int], list[Publish]]


@pytest.mark.normative("MQTT311-3.3.1-4", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("dup", [False, True])
def test_qos_3_closes(client: ClientFactory, topic: str, dup: bool) -> None:
    c = client()
    c.send(Publish(topic=topic, qos=3, packet_id=1, dup=dup))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.3.1-2", "MQTT311-4.3.1-1", "MQTT311-4.8.0-1")
def test_dup_at_qos_0_closes(client: ClientFactory, topic: str) -> None:
    witness = client("witness")
    witness.subscribe(topic)
    c = client()
    c.send(Publish(topic=topic, dup=True))
    assert c.expect_closed() is None
    witness.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.4-1", "MQTT311-4.3.2-2", "MQTT311-4.3.3-2")
@pytest.mark.parametrize(("qos", "answer"), [(0, None), (1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("subscribed", [False, True])
def test_the_answer_follows_the_qos(client: ClientFactory, topic: str, qos: int, answer: type[Packet] | None,
                                    subscribed: bool) -> None:
    if subscribed:
        client("sub").subscribe(topic, qos=2)
    p = client("pub")
    p.send(Publish(topic=topic, payload=b"x", qos=qos, packet_id=7 if qos else None))
    if answer is not None:
        p.expect(answer, packet_id=7)
    p.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.1-3", "MQTT311-3.3.1-2", "MQTT311-4.3.1-1", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_dup_is_not_passed_on(client: ClientFactory, topic: str, qos: int, granted: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=granted)
    p.publish(topic, b"x", qos, dup=True)
    s.receive(topic, b"x", dup=False, qos=min(qos, granted))


@pytest.mark.normative("MQTT311-3.8.4-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_delivery_has_the_lower_qos(client: ClientFactory, topic: str, qos: int, granted: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=granted)
    p.publish(topic, b"x", qos)
    s.receive(topic, b"x", qos=min(qos, granted))
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.3.2-2", "MQTT311-4.7.1-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("wrong", ["#", "+", "a/#", "a/+/b", "+/a", "a#", "a+b", "/#/"])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_wildcard_in_a_topic_name_closes(client: ClientFactory, wrong: str, qos: int) -> None:
    witness = client("witness")
    witness.subscribe("#")
    c = client()
    c.send(Publish(topic=wrong, qos=qos, packet_id=1 if qos else None))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.7.3-1", "MQTT311-4.8.0-1")
def test_an_empty_topic_name_closes(client: ClientFactory) -> None:
    c = client()
    c.send(Publish(topic=""))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.3.2-1", "MQTT311-3.3.2-3", "MQTT311-4.7.3-3")
@pytest.mark.parametrize("length", [1, 127, 128, 1000, 16384, 65535])
def test_topic_names_of_every_length(client: ClientFactory, length: int) -> None:
    long = "t" * length
    c = client()
    c.subscribe(long)
    c.publish(long, b"x")
    c.expect(Publish, topic=long, payload=b"x")


@pytest.mark.normative("MQTT311-3.3.2-3")
def test_the_topic_name_is_the_one_published(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(f"{topic}/+/c", f"{topic}/x/#")
    for level in ("a/b/c", "x", "x/y", "q/c", "q/d", "y/x"):
        p.publish(f"{topic}/{level}", level.encode())
    for level in ("x", "x/y", "q/c"):
        s.expect(Publish, topic=f"{topic}/{level}", payload=level.encode())
    s.expect_quiet()


@pytest.mark.parametrize("size", [0, 1, 120, 127, 128, 16_383, 16_384, 100_000, 1 << 20])
def test_payloads_of_every_size(client: ClientFactory, topic: str, size: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=1)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    p.publish(topic, payload, 1)
    s.receive(topic, payload)


@pytest.mark.normative("MQTT311-3.3.5-1")
@pytest.mark.parametrize("published", [0, 1, 2])
def test_overlapping_subscriptions_have_the_highest_qos(client: ClientFactory, topic: str, published: int) -> None:
    """One copy or one for each subscription: the specification allows both, but the highest QoS must be among them."""
    s, p = client("sub"), client("pub")
    s.subscribe((f"{topic}/#", 0), (f"{topic}/a", 2), (f"{topic}/+", 1))
    p.publish(f"{topic}/a", b"x", published)
    p.publish(f"{topic}/end/end", b"end")
    got: list[int] = []
    while True:
        packet = s.recv()
        if isinstance(packet, Pubrel):
            s.send(Pubcomp(packet_id=packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        if packet.payload == b"end":
            break
        got.append(packet.qos)
        if packet.qos:
            assert packet.packet_id is not None
            s.send(Puback(packet_id=packet.packet_id) if packet.qos == 1 else Pubrec(packet_id=packet.packet_id))
    assert max(got) == published
    assert 1 <= len(got) <= 3


@pytest.mark.normative("MQTT311-4.6.0-5", "MQTT311-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept(client: ClientFactory, take: Take, topic: str, qos: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=qos)
    for number in range(50):
        p.send(Publish(topic=topic, payload=b"%d" % number, qos=qos, packet_id=number + 1 if qos else None))
        if qos == 2:
            p.expect(Pubrec, packet_id=number + 1)
            p.send(Pubrel(packet_id=number + 1))
        if qos:
            p.expect(Puback if qos == 1 else Pubcomp, packet_id=number + 1)
    assert [(packet.qos, packet.payload) for packet in take(s, 50)] == [(qos, b"%d" % number) for number in range(50)]


@pytest.mark.normative("MQTT311-4.6.0-5", "MQTT311-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1])
def test_order_is_kept_for_each_of_many(client: ClientFactory, topic: str, qos: int) -> None:
    """Two publishers at once, three subscribers with different filters: each publisher's messages stay in order."""
    filters = (topic, f"{topic}/#", "+/" + topic.split("/", 1)[1])
    subscribers = [client(f"sub{number}") for number in range(3)]
    for s, wanted in zip(subscribers, filters, strict=True):
        s.subscribe(wanted, qos=qos)
    publishers = [client(f"pub{number}") for number in range(2)]
    for number in range(40):
        for who, p in enumerate(publishers):
            packet_id = number + 1 if qos else None
            p.send(Publish(topic=topic, payload=b"%d %d" % (who, number), qos=qos, packet_id=packet_id))
    for s in subscribers:
        got: dict[bytes, list[int]] = {b"0": [], b"1": []}
        for _ in range(80):
            publisher, count = s.receive(topic).payload.split()
            got[publisher].append(int(count))
        assert got[b"0"] == got[b"1"] == list(range(40))


@pytest.mark.normative("MQTT311-4.6.0-2", "MQTT311-4.6.0-3")
def test_acknowledgements_are_in_order(client: ClientFactory, topic: str) -> None:
    p = client("pub")
    p.send(*(Publish(topic=topic, qos=1, packet_id=packet_id) for packet_id in (9, 3, 5)))
    for packet_id in (9, 3, 5):
        p.expect(Puback, packet_id=packet_id)
    p.send(*(Publish(topic=topic, qos=2, packet_id=packet_id) for packet_id in (9, 3, 5)))
    for packet_id in (9, 3, 5):
        p.expect(Pubrec, packet_id=packet_id)


@pytest.mark.normative("MQTT311-3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_publish_is_acknowledged_or_closes(guarded_broker: Broker, client: ClientFactory, topic: str,
                                                       qos: int) -> None:
    anna = client("anna", where=guarded_broker, username="anna", password=b"anna's secret")
    anna.subscribe(f"closed/{topic}", qos=2)
    anna.publish(f"closed/{topic}", b"allowed", 1)
    anna.receive(f"closed/{topic}", b"allowed")
    bert = client("bert", where=guarded_broker, username="bert", password=b"bert's secret")
    try:
        bert.publish(f"closed/{topic}", b"forbidden", qos)
        bert.expect_quiet()
    except (Closed, ConnectionError):
        pass
    anna.expect_quiet()
