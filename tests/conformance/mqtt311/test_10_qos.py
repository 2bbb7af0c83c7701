"""QoS 1 and 2, step by step, in both directions, with the connection or the broker breaking in between."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.client import Client
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel

ClientFactory = Callable[..., Client]
Take = Callable[[Client, int], list[Publish]]


# ── the broker receives ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.normative("MQTT311-4.3.2-2")
def test_after_puback_the_identifier_is_new(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=1)
    for number, dup in enumerate((False, True, False)):
        p.send(Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=7, dup=dup))
        p.expect(Puback, packet_id=7)
        s.receive(topic, b"%d" % number, dup=False)


@pytest.mark.normative("MQTT311-4.3.3-2", "MQTT311-2.3.1-6")
def test_a_qos2_message_is_delivered_once_until_pubrel(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=2)
    for dup in (False, True, True, False):
        p.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=dup))
        p.expect(Pubrec, packet_id=7)
    p.send(Pubrel(packet_id=7))
    p.expect(Pubcomp, packet_id=7)
    s.receive(topic, b"once", qos=2, dup=False)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.3.3-2")
def test_after_pubcomp_the_identifier_is_new(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=2)
    for number in range(3):
        p.send(Publish(topic=topic, payload=b"%d" % number, qos=2, packet_id=7, dup=number == 1))
        p.expect(Pubrec, packet_id=7)
        p.send(Pubrel(packet_id=7))
        p.expect(Pubcomp, packet_id=7)
        s.receive(topic, b"%d" % number, qos=2)


@pytest.mark.normative("MQTT311-4.3.3-2")
def test_every_pubrel_gets_pubcomp(client: ClientFactory) -> None:
    """Also one whose message the broker does not know (any more)."""
    c = client()
    for packet_id in (1, 1, 65535):
        c.send(Pubrel(packet_id=packet_id))
        c.expect(Pubcomp, packet_id=packet_id)


@pytest.mark.normative("MQTT311-4.3.3-2", "MQTT311-4.6.0-4")
def test_qos2_exchanges_may_be_interleaved(client: ClientFactory, take: Take, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=2)
    ids = [11, 3, 7, 65535, 1]
    for packet_id in ids:
        p.send(Publish(topic=topic, payload=b"%d" % packet_id, qos=2, packet_id=packet_id))
    for packet_id in ids:
        p.expect(Pubrec, packet_id=packet_id)
    p.send(*(Pubrel(packet_id=packet_id) for packet_id in ids))
    for packet_id in ids:
        p.expect(Pubcomp, packet_id=packet_id)
    assert [packet.payload for packet in take(s, 5)] == [b"%d" % packet_id for packet_id in ids]
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.3.3-2", "MQTT311-3.1.2-4", "MQTT311-4.1.0-1", "MQTT311-4.4.0-1")
@pytest.mark.parametrize("lost", ["pubrec", "pubcomp"])
def test_exactly_once_in_over_an_interruption(client: ClientFactory, offline: Callable[..., None], interruption: Any,
                                              topic: str, lost: str) -> None:
    """The publisher has not seen the answer to its PUBLISH, or to its PUBREL, and repeats it."""
    where = interruption.where
    offline("sub", topic, qos=2, where=where)
    p = client("pub", where=where, clean_start=False)
    p.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7))
    p.expect(Pubrec, packet_id=7)
    if lost == "pubcomp":
        p.send(Pubrel(packet_id=7))
        p.expect(Pubcomp, packet_id=7)
    interruption(p)
    p = client("pub", where=where, clean_start=False)
    assert p.connack is not None and p.connack.session_present
    if lost == "pubrec":
        p.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=True))
        p.expect(Pubrec, packet_id=7)
    p.send(Pubrel(packet_id=7))
    p.expect(Pubcomp, packet_id=7)
    p.publish(topic, b"last", 2)
    s = client("sub", where=where, clean_start=False)
    s.receive(topic, b"once", qos=2, dup=False)
    s.receive(topic, b"last", qos=2, dup=False)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-6", "MQTT311-4.3.3-2")
def test_a_clean_session_forgets_what_was_received(client: ClientFactory, topic: str) -> None:
    """The identifier of a QoS 2 message that was never released means a new message in the new session."""
    s = client("sub")
    s.subscribe(topic, qos=0)
    p = client("pub")
    p.send(Publish(topic=topic, payload=b"old", qos=2, packet_id=7))
    p.expect(Pubrec, packet_id=7)
    p.close()
    p = client("pub")
    p.send(Publish(topic=topic, payload=b"new", qos=2, packet_id=7))
    p.expect(Pubrec, packet_id=7)
    p.send(Pubrel(packet_id=7))
    p.expect(Pubcomp, packet_id=7)
    payloads = {s.expect(Publish).payload}
    if payloads == {b"old"}:                                # delivered at PUBLISH, which is allowed
        payloads = {s.expect(Publish).payload}
    assert payloads == {b"new"}
    s.expect_quiet()


# ── the broker sends ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.normative("MQTT311-4.3.3-1", "MQTT311-2.3.1-6", "MQTT311-4.6.0-4")
def test_pubrel_answers_each_pubrec_in_order(client: ClientFactory, topic: str) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=2)
    for number in range(3):
        p.publish(topic, b"%d" % number, 2)
    ids = [s.expect(Publish, qos=2, dup=False).packet_id or 0 for _ in range(3)]
    order = [ids[2], ids[0], ids[1]]
    s.send(*(Pubrec(packet_id=packet_id) for packet_id in order))
    for packet_id in order:
        s.expect(Pubrel, packet_id=packet_id)
    s.send(*(Pubcomp(packet_id=packet_id) for packet_id in ids))
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.3.2-1", "MQTT311-4.4.0-1", "MQTT311-3.3.1-1", "MQTT311-2.3.1-3", "MQTT311-4.6.0-1",
                       "MQTT311-4.1.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_messages_come_again_in_order(client: ClientFactory, interruption: Any, topic: str, qos: int
                                                     ) -> None:
    where = interruption.where
    s, p = client("sub", where=where, clean_start=False), client("pub", where=where)
    s.subscribe(topic, qos=qos)
    for number in range(12):
        p.publish(topic, b"%d" % number, qos)
    sent = [s.expect(Publish, payload=b"%d" % number, dup=False, qos=qos).packet_id for number in range(12)]
    if qos == 1:                                            # two of them are acknowledged, not the first
        s.send(Puback(packet_id=sent[3] or 0), Puback(packet_id=sent[7] or 0))
    else:
        for index in (3, 7):
            s.send(Pubrec(packet_id=sent[index] or 0))
            s.expect(Pubrel, packet_id=sent[index])
            s.send(Pubcomp(packet_id=sent[index] or 0))
    s.publish(f"{topic}/x", b"x", 1, retain=True)           # its answer says that the others are read and stored
    interruption(s, p)
    s = client("sub", where=where, clean_start=False)
    rest = [index for index in range(12) if index not in (3, 7)]
    for index in rest:
        s.expect(Publish, payload=b"%d" % index, dup=True, qos=qos, packet_id=sent[index], retain=False)
    for index in rest:
        if qos == 1:
            s.send(Puback(packet_id=sent[index] or 0))
        else:
            s.send(Pubrec(packet_id=sent[index] or 0))
            s.expect(Pubrel, packet_id=sent[index])
            s.send(Pubcomp(packet_id=sent[index] or 0))
    s.expect_quiet()
    s.disconnect()
    client("sub", where=where, clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-4.3.3-1", "MQTT311-4.4.0-1", "MQTT311-4.1.0-1")
def test_after_pubrec_only_pubrel_comes_again(client: ClientFactory, interruption: Any, topic: str) -> None:
    where = interruption.where
    s = client("sub", where=where, clean_start=False)
    s.subscribe(topic, qos=2)
    client("pub", where=where).publish(topic, b"once", 2)
    packet_id = s.expect(Publish, payload=b"once").packet_id
    assert packet_id is not None
    s.send(Pubrec(packet_id=packet_id))
    s.expect(Pubrel, packet_id=packet_id)
    interruption(s)
    s = client("sub", where=where, clean_start=False)
    s.expect(Pubrel, packet_id=packet_id)
    s.send(Pubcomp(packet_id=packet_id))
    s.expect_quiet()
    s.disconnect()
    client("sub", where=where, clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-4.3.3-1", "MQTT311-4.4.0-1")
def test_a_message_is_repeated_as_often_as_needed(client: ClientFactory, topic: str) -> None:
    s = client("sub", clean_start=False)
    s.subscribe(topic, qos=2)
    client("pub").publish(topic, b"x", 2)
    packet_id = s.expect(Publish, payload=b"x", dup=False).packet_id
    for _ in range(3):
        s.close()
        s = client("sub", clean_start=False)
        s.expect(Publish, payload=b"x", dup=True, packet_id=packet_id)
    for _ in range(3):
        s.send(Pubrec(packet_id=packet_id or 0))
        s.expect(Pubrel, packet_id=packet_id)
        s.close()
        s = client("sub", clean_start=False)
        s.expect(Pubrel, packet_id=packet_id)
    s.send(Pubcomp(packet_id=packet_id or 0))
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.4.0-1", "MQTT311-4.6.0-6")
def test_repeated_messages_come_before_new_ones(client: ClientFactory, take: Take, topic: str) -> None:
    s, p = client("sub", clean_start=False), client("pub")
    s.subscribe(topic, qos=1)
    for number in range(3):
        p.publish(topic, b"%d" % number, 1)
        s.expect(Publish, payload=b"%d" % number)
    s.close()
    for number in range(3, 20):
        p.publish(topic, b"%d" % number, 1)
    s = client("sub", clean_start=False)
    got = take(s, 20)
    assert [packet.payload for packet in got] == [b"%d" % number for number in range(20)]
    assert [packet.dup for packet in got] == [True] * 3 + [False] * 17


@pytest.mark.normative("MQTT311-3.3.1-2", "MQTT311-4.3.1-1")
def test_qos0_is_sent_once(client: ClientFactory, topic: str) -> None:
    s = client("sub", clean_start=False)
    s.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", 0)
    s.expect(Publish, payload=b"x", qos=0, dup=False)
    s.close()
    client("sub", clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-4.3.2-1", "MQTT311-4.3.3-1")
@pytest.mark.parametrize("packet", [Puback(packet_id=999), Pubrec(packet_id=999), Pubcomp(packet_id=999)],
                         ids=["puback", "pubrec", "pubcomp"])
def test_an_acknowledgement_of_nothing_disturbs_nothing(client: ClientFactory, topic: str, packet: Puback) -> None:
    """Such a packet is normal after a reconnect: the connection lives, and what is under way stays so."""
    s = client("sub", clean_start=False)
    s.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    packet_id = s.expect(Publish, payload=b"x").packet_id
    s.send(packet)
    if isinstance(packet, Pubrec):
        s.expect(Pubrel, packet_id=999)
        s.send(Pubcomp(packet_id=999))
    s.expect_quiet()
    s.close()
    client("sub", clean_start=False).receive(topic, b"x", packet_id=packet_id, dup=True)
