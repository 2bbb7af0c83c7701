"""Clients of a running broker whose publishes another node wants too: what the peer is given, and when they are
answered. The peer's line is driven by hand here, as a transport between nodes would drive it."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.watch import wait_until
from kit.world import World
from oracle.mqtt import Puback, Pubcomp, Publish, Pubrec, Pubrel

from fluxmq._core.memory.commits import Line
from fluxmq._core.testing.peer_probe import PeerProbe
from fluxmq._core.testing.probes import live_objects

PERSISTENT = {"delivery_mode": 2}


class PeerWorld(World):
    """A broker with two peers: `far` wants `far/#` and `both`, `other` wants `other/#` and `both`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.far, self.other = self.node.call(lambda server: [self._peer(server, name) for name in ("far", "other")])

    @staticmethod
    def _peer(server: Any, name: str) -> PeerProbe:
        peer = PeerProbe(server.hub, server.hub.commits.open_line(f"peer {name}"))
        for filter_ in (f"{name}/#", f"{name}/+", "both"):
            server.hub.targets.add_peer(peer, filter_.encode())
        return peer

    def commit(self, peer: PeerProbe) -> None:
        """All that it was given so far."""
        def commit(_: Any) -> None:
            position = line_of(peer).submit()[0]
            if position:
                line_of(peer).commit(position)

        self.node.call(commit)

    def give_up(self, peer: PeerProbe) -> None:
        self.node.call(lambda _: line_of(peer).give_up("node b has gone"))


def line_of(peer: PeerProbe) -> Line:
    assert peer.line is not None
    return peer.line


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PeerWorld]:
    one = PeerWorld(tmp_path)
    yield one
    one.stop()


def send(client: Client, topic: str, qos: int, payload: bytes = b"x", **more: Any) -> int:
    packet_id = client.next_packet_id() if qos else 0
    client.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id or None, **more))
    return packet_id


@pytest.mark.parametrize("version", [4, 5])
def test_an_acknowledgement_waits_for_the_peer(world: PeerWorld, version: int) -> None:
    client, bystander = world.mqtt(version=version), world.mqtt(version=version)
    sent = [send(client, "far/a", 1), send(client, "nobody", 1), send(client, "far/a", 1)]
    bystander.publish("nobody", b"", 1)
    client.expect_quiet()                   # [MQTT-4.6.0-2]: also what needs no peer is behind what does
    world.commit(world.other)
    client.expect_quiet()
    world.commit(world.far)
    assert [client.expect(Puback).packet_id for _ in sent] == sent


def test_qos_2_waits_in_its_first_half(world: PeerWorld) -> None:
    client = world.mqtt()
    packet_id = send(client, "far/a", 2)
    client.expect_quiet()
    world.commit(world.far)
    client.expect(Pubrec, packet_id=packet_id, reason=0)
    client.send(Pubrel(packet_id=packet_id))
    client.expect(Pubcomp, packet_id=packet_id, reason=0)
    assert len(world.far.forwarded) == 1


def test_both_peers_must_have_it(world: PeerWorld) -> None:
    client = world.mqtt()
    packet_id = send(client, "both", 1)
    client.expect_quiet()
    world.commit(world.far)
    client.expect_quiet()
    world.commit(world.other)
    client.expect(Puback, packet_id=packet_id, reason=0)


def test_a_stuck_peer_stops_nobody_else(world: PeerWorld) -> None:
    stuck, client = world.mqtt(), world.mqtt()
    send(stuck, "far/a", 1)
    for _ in range(3):
        packet_id = send(client, "other/a", 1)
        client.expect_quiet()
        world.commit(world.other)
        client.expect(Puback, packet_id=packet_id, reason=0)
    stuck.expect_quiet()                    # it is read as before
    send(stuck, "other/a", 0)
    wait_until(lambda: len(world.other.forwarded) == 4)


def test_qos_0_has_no_ticket(world: PeerWorld) -> None:
    client = world.mqtt()
    send(client, "far/a", 0)
    client.publish("nobody", b"", 1)
    assert [message[:3] for message in world.far.forwarded] == [(b"far/a", b"x", 0)]
    assert world.node.call(lambda server: server.hub.commits.tickets) == 0


def test_what_is_refused_is_answered_with_0x80(world: PeerWorld) -> None:
    client = world.mqtt()
    first, second = send(client, "far/a", 1), send(client, "both", 2)
    client.expect_quiet()
    world.commit(world.other)
    client.expect_quiet()
    world.give_up(world.far)
    assert client.expect(Puback, packet_id=first).reason == 0x80
    assert client.expect(Pubrec, packet_id=second).reason == 0x80


def test_a_refusal_is_not_behind_what_is_younger(world: PeerWorld) -> None:
    """[MQTT-4.6.0-2]: the younger one waits for a peer that stands still."""
    client = world.mqtt()
    first, second = send(client, "far/a", 1), send(client, "both", 1)
    client.expect_quiet()
    world.give_up(world.far)
    assert client.expect(Puback, packet_id=first).reason == 0x80
    client.expect_quiet()
    world.commit(world.other)
    assert client.expect(Puback, packet_id=second).reason == 0x80


def test_mqtt_3_1_1_which_has_no_word_for_it_is_closed(world: PeerWorld) -> None:
    client = world.mqtt(version=4)
    send(client, "far/a", 1)
    client.expect_quiet()
    world.give_up(world.far)
    client.expect_closed()


def test_the_peer_sees_what_was_published(world: PeerWorld) -> None:
    client = world.mqtt("publisher")
    send(client, "far/a", 0, b"body", retain=True, properties={
        "content_type": "text/plain", "message_expiry_interval": 100, "user_property": [("k", "v")]})
    client.publish("nobody", b"", 1)
    [(topic, payload, qos, retain, properties, expires_at, publisher, by_amqp)] = world.far.forwarded
    assert (topic, payload, qos, retain, publisher, by_amqp) == (b"far/a", b"body", 0, True, b"publisher", False)
    assert properties == b"\x03\x00\x0atext/plain\x26\x00\x01k\x00\x01v"
    now = world.node.call(lambda server: server.hub.steady_ms)
    assert now < expires_at <= now + 100_000


def test_a_confirm_waits_for_the_peer_where_somebody_wants_the_topic(world: PeerWorld) -> None:
    wire = world.amqp(confirms=True)
    wire.publish(1, "amq.topic", "far.a", b"1", PERSISTENT)
    wire.publish(1, "amq.topic", "nobody", b"2", PERSISTENT)
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 2
    assert wire.nothing_waits()
    world.commit(world.far)
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1
    [(topic, payload, qos, retain, _, _, publisher, by_amqp)] = world.far.forwarded
    assert (topic, payload, qos, retain, publisher, by_amqp) == (b"far/a", b"1", 1, False, None, True)


def test_a_confirm_that_the_peer_refused_is_a_nack(world: PeerWorld) -> None:
    wire = world.amqp(confirms=True)
    wire.publish(1, "amq.topic", "far.a", b"1", PERSISTENT)
    assert wire.nothing_waits()
    world.give_up(world.far)
    assert wire.expect(1, "basic.nack")["delivery_tag"] == 1


def test_who_has_gone_meanwhile_leaves_nothing(world: PeerWorld) -> None:
    gc.collect()
    before = {name: count for name, count in live_objects().items() if name in ("links", "waits")}
    for version in (4, 5):
        client = world.mqtt(version=version)
        for topic, qos in (("far/a", 1), ("both", 2), ("nobody", 1)):
            send(client, topic, qos)
        client.expect_quiet()
        client.drop()
    world.commit(world.other)
    world.give_up(world.far)
    wait_until(lambda: {name: count for name, count in live_objects().items() if name in before} == before)
    assert world.node.call(lambda server: server.hub.commits.waiting) == 0
