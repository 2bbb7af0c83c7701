"""CONNECT and CONNACK: what is let in, what is refused by a return code, what by silence."""
from __future__ import annotations

import string
from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
    Will,
    binary,
    text,
)

ClientFactory = Callable[..., Client]
Name = Callable[[str], str]

ACCEPTED, BAD_LEVEL, BAD_IDENTIFIER, BAD_LOGIN, NOT_AUTHORIZED = 0, 1, 2, 4, 5


@pytest.mark.normative("MQTT311-3.1.0-1")
@pytest.mark.parametrize("packet", [
    Publish(topic="a"), Publish(topic="a", qos=1, packet_id=1), Puback(packet_id=1), Pubrel(packet_id=1),
    Subscribe(packet_id=1, filters=[("a", 0)]), Unsubscribe(packet_id=1, filters=["a"]), Pingreq(), Disconnect(),
    Connack(), b"\0\0", b"GET / HTTP/1.1\r\nHost: " + b"x" * 100 + b"\r\n\r\n",
], ids=["publish0", "publish1", "puback", "pubrel", "subscribe", "unsubscribe", "pingreq", "disconnect", "connack",
        "type-0", "http"])
def test_the_first_packet_is_connect(open_client: ClientFactory, packet: Packet | bytes) -> None:
    c = open_client()
    c.send(packet)
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.0-2")
def test_a_second_connect_closes(client: ClientFactory, name: Name) -> None:
    c = client()
    c.send(Connect(client_id=name("c")))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.0-2")
def test_a_second_connect_takes_no_other_session(client: ClientFactory, name: Name) -> None:
    victim, c = client("victim"), client("c")
    c.send(Connect(client_id=name("victim")))
    c.expect_closed()
    victim.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-1")
@pytest.mark.parametrize("protocol", ["mqtt", "MQTX", "", "MQTTT", "MQIsdq", "AMQP"])
def test_another_protocol_name_is_not_served(open_client: ClientFactory, protocol: str) -> None:
    c = open_client()
    c.send(Connect(client_id="a", protocol_name=protocol))
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.2-2", "MQTT311-3.2.2-5")
@pytest.mark.parametrize("level", [0, 1, 2, 6, 7, 127])
def test_an_unsupported_level_gets_return_code_1(open_client: ClientFactory, level: int) -> None:
    c = open_client()
    c.send(Connect(client_id="a", protocol_level=level))
    c.expect(Connack, reason=BAD_LEVEL, session_present=False)
    assert c.expect_closed() is None


def test_level_3_with_its_own_name_is_served(open_client: ClientFactory, name: Name, topic: str) -> None:
    """MQTT 3.1, the version before the standard: name MQIsdp, level 3, otherwise the same packets."""
    c = open_client()
    c.send(Connect(client_id=name("c")[:23], protocol_name="MQIsdp", protocol_level=3))
    c.expect(Connack, reason=ACCEPTED, session_present=False)
    c.subscribe(topic, qos=2)
    for qos in (0, 1, 2):
        p = open_client()
        p.connect()
        p.publish(topic, b"%d" % qos, qos)
        c.receive(topic, b"%d" % qos, qos=qos)
    c.disconnect()


def test_mqtt_31_repeats_pubrel_with_dup(client: ClientFactory, open_client: Callable[[], Client], name: Name,
                                         topic: str) -> None:
    """MQTT 3.1 section 3.6: PUBREL has a DUP flag, and is sent again with it; later versions reserve the bit."""
    c = open_client()
    c.send(Connect(client_id=name("c")[:23], protocol_name="MQIsdp", protocol_level=3))
    c.expect(Connack, reason=0)
    c.send(Publish(topic=topic, payload=b"x", qos=2, packet_id=7))
    c.expect(Pubrec, packet_id=7)
    for first in (b"\x62", b"\x6a"):
        c.send(first + b"\x02\x00\x07")
        c.expect(Pubcomp, packet_id=7)
    later = client()
    later.send(b"\x6a\x02\x00\x07")
    later.expect_closed()


# What breaks the format of CONNECT. The fields of a well-formed one: name, level, flags, keep alive, then the payload
def _raw(flags: int, payload: bytes) -> bytes:
    body = text("MQTT") + b"\x04" + bytes([flags]) + b"\0\x3c" + payload
    return bytes([0x10, len(body)]) + body


ID, TOPIC, MESSAGE, USER, PASSWORD = text("a"), text("w"), binary(b"m"), text("u"), binary(b"p")
MALFORMED = {
    "reserved-flag": _raw(0x03, ID),
    "no-client-id": _raw(0x02, b""),
    "will-qos-without-will": _raw(0x02 | 0x08, ID),
    "will-qos-2-without-will": _raw(0x02 | 0x10, ID),
    "will-retain-without-will": _raw(0x02 | 0x20, ID),
    "will-fields-without-flag": _raw(0x02, ID + TOPIC + MESSAGE),
    "will-flag-without-fields": _raw(0x02 | 0x04, ID),
    "will-flag-without-message": _raw(0x02 | 0x04, ID + TOPIC),
    "will-qos-3": _raw(0x02 | 0x04 | 0x18, ID + TOPIC + MESSAGE),
    "user-without-flag": _raw(0x02, ID + USER),
    "user-flag-without-user": _raw(0x02 | 0x80, ID),
    "password-without-flag": _raw(0x02 | 0x80, ID + USER + PASSWORD),
    "password-flag-without-password": _raw(0x02 | 0xC0, ID + USER),
    "password-without-user": _raw(0x02 | 0x40, ID + PASSWORD),
    "bytes-left-over": _raw(0x02, ID + b"\0"),
    "cut-in-the-header": bytes([0x10, 8]) + text("MQTT") + b"\x04\x02",
    "cut-in-the-name": b"\x10\x04\x00\x04MQ",
    "empty": b"\x10\x00",
}


@pytest.mark.normative(
    "MQTT311-3.1.2-3", "MQTT311-3.1.2-9", "MQTT311-3.1.2-11", "MQTT311-3.1.2-13", "MQTT311-3.1.2-14",
    "MQTT311-3.1.2-15", "MQTT311-3.1.2-18", "MQTT311-3.1.2-19", "MQTT311-3.1.2-20", "MQTT311-3.1.2-21",
    "MQTT311-3.1.2-22", "MQTT311-3.1.3-3", "MQTT311-3.1.4-1", "MQTT311-3.2.2-6")
@pytest.mark.parametrize("packet", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_connect_is_closed_without_connack(open_client: ClientFactory, packet: bytes) -> None:
    c = open_client()
    c.send(packet)
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.2-18", "MQTT311-3.1.2-19", "MQTT311-3.1.2-20", "MQTT311-3.1.2-21",
                       "MQTT311-3.1.3-1", "MQTT311-3.1.4-4")
@pytest.mark.parametrize("options", [
    {}, {"username": "u"}, {"username": "u", "password": b"p"}, {"username": "", "password": b""},
    {"username": "u", "password": b"\0\xff" * 300}, {"will": Will(topic="w", payload=b"m")},
    {"will": Will(topic="w", payload=b"m", qos=2), "username": "u", "password": b"p"}, {"keep_alive": 0},
    {"keep_alive": 65535},
], ids=["bare", "user", "user-password", "empty-both", "binary-password", "will", "all", "keep-alive-0",
        "keep-alive-max"])
def test_a_valid_connect_is_accepted(client: ClientFactory, options: dict[str, object]) -> None:
    c = client(**options)
    c.expect_quiet()
    c.disconnect()


@pytest.mark.normative("MQTT311-3.1.3-1")
def test_fields_are_read_in_their_order(client: ClientFactory, topic: str) -> None:
    """Every field present and none like another: the will shows which of them the broker took for topic and message."""
    watcher = client("watcher")
    watcher.subscribe(f"{topic}/#")
    c = client(will=Will(topic=f"{topic}/will", payload=b"message"), username=f"{topic}/user",
               password=f"{topic}/password".encode())
    c.close()
    watcher.expect(Publish, topic=f"{topic}/will", payload=b"message")
    watcher.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.3-5")
@pytest.mark.parametrize("client_id", [
    "0", "z", string.digits, string.ascii_lowercase[:23], string.ascii_lowercase[3:], string.ascii_uppercase[:23],
    string.ascii_uppercase[3:], "9aZ" * 7 + "xY",
])
def test_plain_client_ids_are_accepted(client: ClientFactory, client_id: str) -> None:
    client(client_id=client_id).disconnect()


@pytest.mark.normative("MQTT311-3.1.3-6")
def test_an_empty_client_id_gets_a_session_of_its_own(client: ClientFactory, topic: str) -> None:
    first, second = client(client_id=""), client(client_id="")
    for c in (first, second):
        assert c.connack is not None and not c.connack.session_present
        c.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    first.receive(topic, b"x")
    second.receive(topic, b"x")
    second.close()
    first.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.3-7", "MQTT311-3.1.3-8", "MQTT311-3.1.3-9", "MQTT311-3.2.2-4", "MQTT311-3.2.2-5")
def test_an_empty_client_id_needs_clean_session(open_client: ClientFactory) -> None:
    c = open_client()
    c.connect("", clean_start=False, expect=BAD_IDENTIFIER)
    assert c.connack is not None and not c.connack.session_present
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.3-9")
@pytest.mark.parametrize("length", [24, 255, 1024, 1025, 65535])
def test_a_long_client_id_is_served_or_refused_in_words(open_client: ClientFactory, name: Name, length: int) -> None:
    c = open_client()
    c.send(Connect(client_id=name("c").ljust(length, "x")))
    answer = c.expect(Connack, session_present=False)
    if answer.reason == ACCEPTED:
        c.disconnect()
    else:
        assert answer.reason == BAD_IDENTIFIER
        assert c.expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.4-5")
def test_what_follows_a_refused_connect_is_not_processed(open_client: ClientFactory, client: ClientFactory,
                                                         topic: str) -> None:
    witness = client("witness")
    witness.subscribe(topic)
    c = open_client()
    c.send(Connect(client_id="", clean_start=False), Publish(topic=topic, payload=b"x", retain=True), Pingreq())
    c.expect(Connack, reason=BAD_IDENTIFIER)
    assert c.expect_closed() is None
    malformed = open_client()
    malformed.send(_raw(0x03, ID), Publish(topic=topic, payload=b"x", retain=True))
    assert malformed.expect_closed() is None
    witness.expect_quiet()
    client("late").subscribe(topic)
    witness.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.4-4", "MQTT311-3.2.0-1")
def test_packets_may_follow_connect_at_once(open_client: ClientFactory, name: Name, topic: str) -> None:
    """And the CONNACK is the first answer all the same."""
    c = open_client()
    c.send(Connect(client_id=name("c")), Pingreq(), Publish(topic=topic, qos=1, packet_id=9))
    c.expect(Connack, reason=ACCEPTED, session_present=False)
    assert {type(c.recv()).__name__ for _ in range(2)} == {"Pingresp", "Puback"}


@pytest.mark.normative("MQTT311-3.2.0-1")
def test_connack_comes_before_what_waits(client: ClientFactory, offline: Callable[..., None], topic: str) -> None:
    offline("sub", topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    s = client("sub", clean_start=False)
    s.receive(topic, b"x")


@pytest.mark.normative("MQTT311-3.2.2-4", "MQTT311-3.2.2-5", "MQTT311-3.1.3-1", "MQTT311-3.1.4-5")
def test_a_wrong_login_is_refused(guarded_broker: Broker, client: ClientFactory, open_client: ClientFactory,
                                  name: Name) -> None:
    client("c", where=guarded_broker, username="anna", password=b"anna's secret", clean_start=False).disconnect()
    for username, password in (("anna", b"bert's secret"), ("anna", None), ("nobody", b"x"), (None, None)):
        c = open_client(guarded_broker)
        c.send(Connect(client_id=name("c"), clean_start=False, username=username, password=password))
        assert c.expect(Connack, session_present=False).reason in (BAD_LOGIN, NOT_AUTHORIZED)
        assert c.expect_closed() is None
    again = client("c", where=guarded_broker, username="anna", password=b"anna's secret", clean_start=False)
    assert again.connack is not None and again.connack.session_present
