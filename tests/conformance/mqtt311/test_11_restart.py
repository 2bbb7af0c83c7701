"""What a restart, or the sudden death, of the broker must not cost."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.client import Client
from oracle.mqtt import Puback, Publish

ClientFactory = Callable[..., Client]
Offline = Callable[..., None]
Take = Callable[[Client, int], list[Publish]]


@pytest.mark.normative("MQTT311-3.1.2-4", "MQTT311-3.1.2-5", "MQTT311-4.1.0-1", "MQTT311-4.6.0-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_waiting_messages(client: ClientFactory, offline: Offline, take: Take, interruption: Any, topic: str, qos: int
                          ) -> None:
    """More than ten, so that an order of numbers as text would show, and some from after the interruption."""
    where = interruption.where
    offline("sub", f"{topic}/#", qos=qos, where=where)
    p = client("pub", where=where)
    for number in range(15):
        p.publish(f"{topic}/a", b"%d" % number, qos)
    interruption(p)
    p = client("pub", where=where)
    for number in range(15, 30):
        p.publish(f"{topic}/a", b"%d" % number, qos)
    s = client("sub", where=where, clean_start=False)
    assert s.connack is not None and s.connack.session_present
    got = take(s, 30)
    assert [(packet.payload, packet.qos) for packet in got] == [(b"%d" % number, qos) for number in range(30)]
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-5", "MQTT311-4.5.0-1")
def test_subscriptions_work_before_their_client_returns(client: ClientFactory, offline: Offline, interruption: Any,
                                                        topic: str) -> None:
    where = interruption.where
    offline("one", f"{topic}/+", qos=1, where=where)
    offline("two", f"{topic}/a", f"{topic}/b", qos=2, where=where)
    interruption()
    p = client("pub", where=where)
    p.publish(f"{topic}/b", b"after", 2)
    client("one", where=where, clean_start=False).receive(f"{topic}/b", b"after", qos=1)
    client("two", where=where, clean_start=False).receive(f"{topic}/b", b"after", qos=2)


@pytest.mark.normative("MQTT311-3.3.1-5", "MQTT311-3.3.1-7", "MQTT311-3.3.1-10", "MQTT311-3.1.2-7")
def test_retained_messages(client: ClientFactory, take: Take, interruption: Any, topic: str) -> None:
    where = interruption.where
    p = client("pub", where=where)
    for level, payload in (("a", b"old"), ("a", b"kept"), ("b", b"cleared"), ("b", b""), ("c", b"\0\xff")):
        p.publish(f"{topic}/{level}", payload, 1, retain=True)
    interruption(p)
    s = client("sub", where=where)
    s.subscribe(f"{topic}/#", qos=1)
    got = sorted((packet.topic, packet.payload, packet.qos, packet.retain) for packet in take(s, 2))
    assert got == [(f"{topic}/a", b"kept", 1, True), (f"{topic}/c", b"\0\xff", 1, True)]
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-6", "MQTT311-3.2.2-3")
def test_clean_sessions_are_gone(client: ClientFactory, offline: Offline, interruption: Any, topic: str) -> None:
    where = interruption.where
    offline("cleaned", topic, qos=1, where=where)
    client("cleaned", where=where).disconnect()
    clean = client("clean", where=where)
    clean.subscribe(topic, qos=1)
    interruption(clean)
    client("pub", where=where).publish(topic, b"x", 1)
    for role in ("cleaned", "clean"):
        c = client(role, where=where, clean_start=False)
        assert c.connack is not None and not c.connack.session_present
        c.expect_quiet()


@pytest.mark.normative("MQTT311-3.10.4-1", "MQTT311-4.1.0-1")
def test_unsubscribing_lasts(client: ClientFactory, interruption: Any, topic: str) -> None:
    where = interruption.where
    s = client("sub", where=where, clean_start=False)
    s.subscribe((f"{topic}/a", 1), (f"{topic}/b", 1))
    s.subscribe((f"{topic}/b", 2))
    s.unsubscribe(f"{topic}/a")
    interruption(s)
    p = client("pub", where=where)
    p.publish(f"{topic}/a", b"x", 2)
    p.publish(f"{topic}/b", b"x", 2)
    s = client("sub", where=where, clean_start=False)
    s.receive(f"{topic}/b", b"x", qos=2)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.3.2-1", "MQTT311-4.4.0-1")
def test_acknowledged_messages_do_not_come_back(client: ClientFactory, offline: Offline, take: Take, interruption: Any,
                                                topic: str) -> None:
    where = interruption.where
    offline("sub", topic, qos=2, where=where)
    p = client("pub", where=where)
    for number in range(20):
        p.publish(topic, b"%d" % number, 1 + number % 2)
    s = client("sub", where=where, clean_start=False)
    take(s, 20)
    s.publish(f"{topic}/x", b"x", 1, retain=True)           # its answer says that the rest is read and stored
    interruption(s, p)
    client("sub", where=where, clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-4.5.0-1", "MQTT311-4.3.2-2")
def test_what_was_acknowledged_is_there(client: ClientFactory, offline: Offline, take: Take, interruption: Any,
                                        topic: str) -> None:
    """The interruption comes between two PUBACKs of a stream; whatever had its PUBACK is delivered, in order."""
    where = interruption.where
    offline("sub", topic, qos=1, where=where)
    p = client("pub", where=where, clean_start=False)
    p.send(*(Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=number + 1) for number in range(200)))
    for number in range(60):
        p.expect(Puback, packet_id=number + 1)
    interruption(p)
    client("pub", where=where).publish(topic, b"end", 1)
    s = client("sub", where=where, clean_start=False)
    got: list[bytes] = []
    while not got or got[-1] != b"end":
        got += [packet.payload for packet in take(s, 1)]
    numbers = [int(payload) for payload in got[:-1]]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 60
