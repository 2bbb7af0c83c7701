"""Real clients against the broker: one body of checks for every library, version and transport."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from interop.conftest import Peer, each, peers
from interop.peers.base import PAYLOAD_BYTES_LARGE, TIMEOUT, Message, Properties, Session
from interop.peers.mosquitto import Mosquitto
from interop.peers.mqttjs import MqttJs

MESSAGES = 2000
KEPT_S = 300

Open = Callable[..., Session]


@each(peers())
def test_publish_and_subscribe(peer: Peer, open_session: Open, topic: str) -> None:
    """Each QoS arrives with the lower one of publisher and subscriber."""
    subscribers = [open_session(peer, f"sub{qos}", filters=[(f"{topic}/+", qos)]) for qos in range(3)]
    publisher = open_session(peer, "pub")
    for qos in range(3):
        publisher.publish(Message(f"{topic}/{qos}", b"\x00\xff payload %d" % qos, qos))
    for granted, subscriber in enumerate(subscribers):
        for qos in range(3):
            assert subscriber.receive() == Message(f"{topic}/{qos}", b"\x00\xff payload %d" % qos, min(qos, granted))
    publisher.publish(Message(f"{topic}/0", b"fence", 0))
    for subscriber in subscribers:
        assert subscriber.receive().payload == b"fence"                     # nothing came twice


@each(peers())
def test_retained(peer: Peer, open_session: Open, topic: str) -> None:
    publisher = open_session(peer, "pub")
    publisher.publish(Message(f"{topic}/a", b"old", 1, True))
    publisher.publish(Message(f"{topic}/a", b"new", 1, True))
    publisher.publish(Message(f"{topic}/b", b"gone", 1, True))
    publisher.publish(Message(f"{topic}/b", b"", 1, True))
    subscriber = open_session(peer, "sub", filters=[(f"{topic}/#", 1)])
    assert subscriber.receive() == Message(f"{topic}/a", b"new", 1, True)
    publisher.publish(Message(f"{topic}/a", b"live", 1, True))
    assert subscriber.receive() == Message(f"{topic}/a", b"live", 1, False)
    subscriber.receive_nothing(publisher, f"{topic}/a")


@each(peers())
def test_will(peer: Peer, open_session: Open, topic: str) -> None:
    """A lost connection publishes the will; a DISCONNECT does not, unless its reason asks for it: 0x04, which is what
    mosquitto_sub says in 5.0."""
    watcher = open_session(peer, "watch", filters=[(f"{topic}/will/#", 1)])
    for role in ("polite", "lost"):
        mortal = open_session(peer, role, filters=[(f"{topic}/none", 0)],
                              will=Message(f"{topic}/will/{role}", b"dead", 1, False))
        mortal.close() if role == "polite" else mortal.drop()
    if peer.library is Mosquitto and peer.version == 5:
        assert watcher.receive() == Message(f"{topic}/will/polite", b"dead", 1)
    assert watcher.receive() == Message(f"{topic}/will/lost", b"dead", 1)
    watcher.receive_nothing(watcher, f"{topic}/will/fence")


@each(peers())
def test_persistent_session(peer: Peer, open_session: Open, name: Callable[[str], str], topic: str) -> None:
    """What was published meanwhile comes in order after the return, and a clean start forgets it all."""
    filters = [(f"{topic}/#", 2)]
    subscriber = open_session(peer, "sub", clean=False, expiry_s=KEPT_S, filters=filters)
    subscriber.close()
    publisher = open_session(peer, "pub")
    sent = [Message(f"{topic}/{number}", b"message %d" % number, number % 2 + 1) for number in range(20)]
    for message in sent:
        publisher.publish(message)
    publisher.publish(Message(f"{topic}/0", b"dropped with no connection", 0))
    # mosquitto_sub cannot connect without subscribing, which changes nothing here
    again = filters if peer.library is Mosquitto else ()
    subscriber = open_session(peer, "sub", clean=False, expiry_s=KEPT_S, filters=again)
    received = [subscriber.receive() for _ in sent]
    for qos in (1, 2):                                          # a library may hold a QoS 2 message until PUBREL
        assert [message for message in received if message.qos == qos] == [m for m in sent if m.qos == qos]
    subscriber.receive_nothing(publisher, f"{topic}/0")
    publisher.publish(Message(f"{topic}/live", b"live", 2))
    assert subscriber.receive() == Message(f"{topic}/live", b"live", 2)
    subscriber.close()
    publisher.publish(Message(f"{topic}/late", b"late", 1))
    fresh = open_session(peer, "sub", filters=[(f"{topic}-other", 0)])
    publisher.publish(Message(f"{topic}/late", b"later", 1))
    fresh.receive_nothing(publisher, f"{topic}-other")


@each(peers(versions=(5,)))
def test_properties(peer: Peer, open_session: Open, topic: str) -> None:
    """User properties keep their order and their repetitions, as far as the library can tell."""
    user = (("b", "1"), ("a", "2"), ("b", "3"), ("a", "2"), ("z", "ö"))
    if peer.library is MqttJs:
        user = (("b", "1"), ("b", "3"), ("a", "2"), ("a", "2"), ("z", "ö"))     # it sends one name's values together
    properties = Properties(user, "reply/here", b"correlation", "text/plain")
    subscriber = open_session(peer, "sub", filters=[(topic, 1)])
    open_session(peer, "pub").publish(Message(topic, b"request", 1, False, properties))
    assert subscriber.receive() == Message(topic, b"request", 1, False, properties)


@each(peers(versions=(5,), transports=("tcp",)))
def test_request_and_response(peer: Peer, open_session: Open, topic: str) -> None:
    server = open_session(peer, "server", filters=[(f"{topic}/request", 1)])
    client = open_session(peer, "client", filters=[(f"{topic}/response", 1)])
    client.publish(Message(f"{topic}/request", b"2+2", 1, False, Properties((), f"{topic}/response", b"42", None)))
    request = server.receive()
    assert request.properties.response_topic is not None
    server.publish(Message(request.properties.response_topic, b"4", 1, False,
                           Properties((), None, request.properties.correlation_data, None)))
    assert client.receive() == Message(f"{topic}/response", b"4", 1, False, Properties((), None, b"42", None))


@each(peers())
def test_shared_subscription(peer: Peer, open_session: Open, topic: str) -> None:
    """Every message once, and each member has its part, larger for who is quicker; on 3.1.1 too."""
    members = [open_session(peer, f"member{number}", filters=[(f"$share/group/{topic}", 1)]) for number in range(2)]
    payloads = [b"%d" % number for number in range(100)]
    publisher = open_session(peer, "pub")
    publisher.publish_all(topic, payloads, 1)
    parts: list[list[bytes]] = [[], []]
    deadline = time.monotonic() + TIMEOUT
    while len(parts[0]) + len(parts[1]) < len(payloads) and time.monotonic() < deadline:
        for member, part in zip(members, parts, strict=True):
            with contextlib.suppress(TimeoutError):
                while True:
                    part.append(member.receive(0.1).payload)
    assert sorted(parts[0] + parts[1]) == sorted(payloads)
    for part in parts:
        assert part == sorted(part, key=int)
        assert len(part) >= 20


@each(peers())
def test_large_payload(peer: Peer, open_session: Open, topic: str) -> None:
    payload = bytes(range(256)) * (PAYLOAD_BYTES_LARGE // 256)
    subscriber = open_session(peer, "sub", filters=[(topic, 2)])
    publisher = open_session(peer, "pub")
    for qos in range(3):
        publisher.publish(Message(topic, payload, qos))
        assert subscriber.receive() == Message(topic, payload, qos)


@pytest.mark.parametrize(("peer", "qos"), [
    *((peer, qos) for peer in peers(transports=("tcp",)) for qos in range(3)),
    *((peer, 1) for peer in peers(transports=("ws", "tls", "wss")))], ids=str)
def test_order(peer: Peer, open_session: Open, topic: str, qos: int) -> None:
    """Thousands of messages, none lost, none twice, none before its turn."""
    subscriber = open_session(peer, "sub", filters=[(topic, qos)])
    payloads = [b"number %d" % number for number in range(MESSAGES)]
    publisher = open_session(peer, "pub")
    publisher.publish_all(topic, payloads, qos)
    assert [subscriber.receive().payload for _ in payloads] == payloads
    subscriber.receive_nothing(publisher, topic, qos)
