"""The format of packets: text, flags, packet identifiers, lengths, and what happens to those that break it."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.client import Client
from oracle.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)

ClientFactory = Callable[..., Client]

# Places where a client writes text: a packet with the text in it, and whether it needs a connection first
PLACES: dict[str, tuple[bool, Callable[[bytes], Packet]]] = {
    "client-id": (False, lambda raw: Connect(client_id=raw)),
    "will-topic": (False, lambda raw: Connect(client_id="a", will=Will(topic=raw))),
    "user-name": (False, lambda raw: Connect(client_id="a", username=raw)),
    "topic-name": (True, lambda raw: Publish(topic=raw)),
    "subscribe": (True, lambda raw: Subscribe(packet_id=1, filters=[(raw, 0)])),
    "unsubscribe": (True, lambda raw: Unsubscribe(packet_id=1, filters=[raw])),
}
ILL_FORMED = {
    "lone-continuation": b"a\x80",
    "never-used-byte": b"a\xff",
    "cut-short": b"a\xe2\x82",
    "overlong": b"a\xc0\xaf",
    "overlong-null": b"a\xc0\x80",
    "surrogate": b"a\xed\xa0\x80",
    "surrogate-pair": b"a\xed\xa0\xb4\xed\xb4\x9e",
    "above-10ffff": b"a\xf4\x90\x80\x80",
}


def _refuses(open_client: ClientFactory, place: str, raw: bytes) -> None:
    connected, packet = PLACES[place]
    c = open_client()
    if connected:
        c.connect()
    c.send(packet(raw))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-1.5.3-1", "MQTT311-3.1.3-4", "MQTT311-3.1.3-10", "MQTT311-3.1.3-11", "MQTT311-3.3.2-1",
                       "MQTT311-3.8.3-1", "MQTT311-3.10.3-1")
@pytest.mark.parametrize("raw", ILL_FORMED.values(), ids=ILL_FORMED)
@pytest.mark.parametrize("place", PLACES)
def test_ill_formed_utf8_closes(open_client: ClientFactory, place: str, raw: bytes) -> None:
    _refuses(open_client, place, raw)


@pytest.mark.normative("MQTT311-1.5.3-2", "MQTT311-4.7.3-2")
@pytest.mark.parametrize("place", PLACES)
def test_null_character_closes(open_client: ClientFactory, place: str) -> None:
    _refuses(open_client, place, b"a\0b")


@pytest.mark.normative("MQTT311-1.5.3-3", "MQTT311-4.7.3-4")
def test_byte_order_mark_is_a_character(client: ClientFactory, topic: str) -> None:
    marked = client("marked")
    marked.subscribe(f"\ufeff{topic}", f"{topic}\ufeff/x")
    plain = client("plain")
    plain.subscribe(topic, f"{topic}/x")
    p = client("pub")
    p.publish(f"\ufeff{topic}", b"leading")
    p.publish(f"{topic}\ufeff/x", b"inside")
    p.expect_quiet()
    marked.expect(Publish, topic=f"\ufeff{topic}", payload=b"leading")
    marked.expect(Publish, topic=f"{topic}\ufeff/x", payload=b"inside")
    plain.expect_quiet()


@pytest.mark.parametrize("text", ["ä", "€", "𝄞", "\U0010fffd", "\ud7ff\ue000", "a b", "日本/語"])
def test_well_formed_utf8_is_carried(client: ClientFactory, topic: str, text: str) -> None:
    c = client()
    c.subscribe(f"{topic}/{text}")
    c.publish(f"{topic}/{text}", b"x")
    c.expect(Publish, topic=f"{topic}/{text}", payload=b"x")


WRONG_FLAGS: dict[str, tuple[Packet, tuple[int, ...]]] = {
    "puback": (Puback(packet_id=1), (1, 2, 8)),
    "pubrec": (Pubrec(packet_id=1), (1, 2, 8)),
    "pubrel": (Pubrel(packet_id=1), (0, 1, 3, 6, 10)),
    "pubcomp": (Pubcomp(packet_id=1), (1, 2, 8)),
    "subscribe": (Subscribe(packet_id=1, filters=[("a", 0)]), (0, 1, 3, 6, 10)),
    "unsubscribe": (Unsubscribe(packet_id=1, filters=["a"]), (0, 1, 3, 6, 10)),
    "pingreq": (Pingreq(), (1, 2, 8)),
    "disconnect": (Disconnect(), (1, 2, 8)),
}


@pytest.mark.normative("MQTT311-2.2.2-1", "MQTT311-2.2.2-2", "MQTT311-3.6.1-1", "MQTT311-3.8.1-1", "MQTT311-3.10.1-1",
                       "MQTT311-3.14.1-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize(("packet", "flags"), [
    pytest.param(packet, flags, id=f"{name}-{flags:04b}")
    for name, (packet, wrong) in WRONG_FLAGS.items() for flags in wrong
])
def test_wrong_flags_close(client: ClientFactory, packet: Packet, flags: int) -> None:
    c = client()
    c.send(bytes([packet.kind << 4 | flags]) + packet.encode(4)[1:])
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-2.2.2-2", "MQTT311-3.1.4-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_wrong_flags_in_connect_close(open_client: ClientFactory, flags: int) -> None:
    c = open_client()
    c.send(Connect(client_id="a", flags=flags))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-2.2.2-1")
def test_the_servers_flags_are_right(client: ClientFactory, topic: str) -> None:
    """The client of these tests refuses every packet with wrong flags; each kind that a server sends comes once."""
    c = client(will=Will(topic=topic))
    c.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        c.publish(topic, b"x", 0)
        c.receive(topic, qos=0, dup=False, retain=False)
        p = client(f"pub{qos}")
        p.publish(topic, b"x", qos)
        c.receive(topic, qos=qos, dup=False, retain=False)
    c.unsubscribe(topic)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-2.3.1-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("packet", [
    Subscribe(packet_id=0, filters=[("a", 0)]),
    Unsubscribe(packet_id=0, filters=["a"]),
    Publish(topic="a", qos=1, packet_id=0),
    Publish(topic="a", qos=2, packet_id=0),
    Publish(topic="a", qos=1, packet_id=None),
], ids=["subscribe", "unsubscribe", "qos1", "qos2", "qos1-none-at-all"])
def test_packet_identifier_zero_closes(client: ClientFactory, packet: Packet) -> None:
    c = client()
    c.send(packet)
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.8.0-1")
@pytest.mark.parametrize("packet", [
    Connack(), Suback(packet_id=1, reasons=[0]), Unsuback(packet_id=1), Pingresp(), b"\0\0", Auth(),
], ids=["connack", "suback", "unsuback", "pingresp", "type-0", "type-15"])
def test_packets_that_clients_do_not_send_close(client: ClientFactory, packet: Packet | bytes) -> None:
    c = client()
    c.send(packet)
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.8.0-1")
@pytest.mark.parametrize("packet", [
    b"\xc0\xff\xff\xff\xff\x01",                        # PINGREQ with a Remaining Length of five bytes
    b"\xc0\x01\x00",                                    # PINGREQ with a payload
    b"\xe0\x01\x00",                                    # DISCONNECT with a payload
    b"\x40\x01\x00",                                    # PUBACK, half an identifier
    b"\x40\x03\x00\x01\x00",                            # PUBACK, a byte too many
    b"\x62\x00",                                        # PUBREL, nothing in it
    b"\x30\x00",                                        # PUBLISH, nothing in it
    b"\x30\x03\x00\x05a",                               # PUBLISH, the topic runs out of the packet
    b"\x32\x04\x00\x01a\x00",                           # PUBLISH, half an identifier
    b"\x82\x05\x00\x01\x00\x05a",                       # SUBSCRIBE, the filter runs out of the packet
    b"\x82\x05\x00\x01\x00\x01a",                       # SUBSCRIBE, no QoS after the filter
    b"\xa2\x04\x00\x01\x00\x05",                        # UNSUBSCRIBE, the filter runs out of the packet
], ids=["length-of-five-bytes", "pingreq-with-payload", "disconnect-with-payload", "puback-short", "puback-long",
        "pubrel-empty", "publish-empty", "publish-topic-cut", "publish-id-cut", "subscribe-filter-cut",
        "subscribe-no-qos", "unsubscribe-filter-cut"])
def test_packets_of_the_wrong_length_close(client: ClientFactory, packet: bytes) -> None:
    c = client()
    c.send(packet)
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-4.8.0-1")
def test_a_violation_closes_no_other_connection(client: ClientFactory, topic: str) -> None:
    witness = client("witness")
    witness.subscribe(topic)
    bad = client("bad")
    bad.send(Publish(topic=topic, payload=b"before"), b"\0\0", Publish(topic=topic, payload=b"after"))
    bad.expect_closed()
    witness.expect(Publish, payload=b"before")
    witness.expect_quiet()


@pytest.mark.normative("MQTT311-2.3.1-5")
@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1", b"\0\1x", b"x" * 127, b"y" * 128, b"z" * 20000])
def test_qos0_has_no_packet_identifier(client: ClientFactory, topic: str, payload: bytes) -> None:
    """With one, the subscriber would see it as the payload's first two bytes; so would the broker."""
    c = client()
    c.subscribe(topic, qos=2)
    c.publish(topic, payload)
    c.expect(Publish, topic=topic, payload=payload, qos=0)


@pytest.mark.normative("MQTT311-2.3.1-6", "MQTT311-2.3.1-7")
@pytest.mark.parametrize("packet_id", [1, 2, 255, 256, 32768, 65535])
def test_answers_repeat_the_packet_identifier(client: ClientFactory, topic: str, packet_id: int) -> None:
    c = client()
    c.send(Subscribe(packet_id=packet_id, filters=[(topic, 0)]))
    c.expect(Suback, packet_id=packet_id)
    c.send(Unsubscribe(packet_id=packet_id, filters=[topic]))
    c.expect(Unsuback, packet_id=packet_id)
    c.send(Publish(topic=topic, qos=1, packet_id=packet_id))
    c.expect(Puback, packet_id=packet_id)
    c.send(Publish(topic=topic, qos=2, packet_id=packet_id))
    c.expect(Pubrec, packet_id=packet_id)
    c.send(Pubrel(packet_id=packet_id))
    c.expect(Pubcomp, packet_id=packet_id)


@pytest.mark.normative("MQTT311-2.3.1-4", "MQTT311-4.3.2-1", "MQTT311-4.3.3-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_the_server_uses_no_identifier_twice_at_a_time(client: ClientFactory, topic: str, qos: int) -> None:
    s, p = client("sub"), client("pub")
    s.subscribe(topic, qos=qos)
    for number in range(10):
        p.publish(topic, b"%d" % number, qos)
    under_way = [s.expect(Publish, qos=qos, payload=b"%d" % number, dup=False).packet_id for number in range(10)]
    assert len(set(under_way)) == 10
    for freed in (3, 7):
        assert under_way[freed] is not None
        _settle(s, qos, under_way[freed] or 0)
        under_way[freed] = None
        p.publish(topic, b"more", qos)
        new = s.expect(Publish, qos=qos, payload=b"more").packet_id
        assert new not in under_way
        under_way[freed] = new


def _settle(c: Client, qos: int, packet_id: int) -> None:
    if qos == 1:
        c.send(Puback(packet_id=packet_id))
        return
    c.send(Pubrec(packet_id=packet_id))
    c.expect(Pubrel, packet_id=packet_id)
    c.send(Pubcomp(packet_id=packet_id))


@pytest.mark.normative("MQTT311-2.3.1-4")
def test_identifiers_of_the_two_directions_do_not_meet(client: ClientFactory, topic: str) -> None:
    """The server's PUBLISH and the client's with the same number are two exchanges at once."""
    c = client()
    c.subscribe(topic, qos=2)
    client("pub").publish(topic, b"from the server", 2)
    packet_id = c.expect(Publish, payload=b"from the server").packet_id
    assert packet_id is not None
    c.send(Publish(topic=f"{topic}/other", payload=b"x", qos=2, packet_id=packet_id))
    c.expect(Pubrec, packet_id=packet_id)
    c.send(Pubrec(packet_id=packet_id), Pubrel(packet_id=packet_id))
    answers = {type(c.recv()) for _ in range(2)}
    assert answers == {Pubrel, Pubcomp}
    c.send(Pubcomp(packet_id=packet_id))
    c.expect_quiet()


@pytest.mark.normative("MQTT311-7.1.1-1")
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_packets_may_arrive_in_pieces(open_client: ClientFactory, name: Callable[[str], str], topic: str,
                                      step: int) -> None:
    c = open_client()
    script = b"".join(packet.encode(4) for packet in (
        Connect(client_id=name("c")), Subscribe(packet_id=1, filters=[(topic, 1)]),
        Publish(topic=topic, payload=b"x" * 200, qos=1, packet_id=2), Pingreq()))
    for start in range(0, len(script), step):
        c.transport.sendall(script[start:start + step])
    c.expect(Connack, reason=0)
    c.expect(Suback, packet_id=1, reasons=[1])
    kinds = [c.recv() for _ in range(3)]
    assert {type(packet) for packet in kinds} == {Publish, Puback, Pingresp}


@pytest.mark.normative("MQTT311-7.1.1-1")
def test_many_packets_may_arrive_at_once(open_client: ClientFactory, name: Callable[[str], str], topic: str) -> None:
    c = open_client()
    c.send(Connect(client_id=name("c")), Subscribe(packet_id=1, filters=[(topic, 0)]),
           *(Publish(topic=topic, payload=b"%d" % number) for number in range(500)), Pingreq())
    c.expect(Connack, reason=0)
    c.expect(Suback, packet_id=1, reasons=[0])
    for number in range(500):
        c.expect(Publish, topic=topic, payload=b"%d" % number)
    c.expect(Pingresp)


@pytest.mark.normative("MQTT311-4.8.0-2")
def test_a_packet_beyond_the_brokers_limit_closes(start_broker: Callable[..., object], client: ClientFactory,
                                                  topic: str) -> None:
    """3.1.1 has no word for "too large": the connection that asked for too much is closed, and only that."""
    own = start_broker({"broker.max_message_size": 1024})
    witness, c = client("witness", where=own), client("c", where=own)
    witness.subscribe(topic)
    c.publish(topic, b"x" * 1024)
    witness.expect(Publish, payload=b"x" * 1024)
    c.send_to_the_end(Publish(topic=topic, payload=b"x" * (1024 + 128 * 1024)))
    assert c.expect_closed() is None
    witness.expect_quiet()
