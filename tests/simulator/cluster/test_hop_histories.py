"""Clients of both sides that hop between nodes while links stand still: the subscriber's session is taken over, and
so is the publisher's, which sends again with DUP what was not answered (MQTT 5.0 section 4.4).

Nodes keep their leases, and answer late or for a time not at all. What is checked: what was acknowledged comes, and
what has QoS 2 comes once. Two cases are excused (Limits, docs/internals/cluster.md): a refusal that its client does not
hear, and a repetition while the subscriber's session has gone on without the rest of it, which is given back.
"""
from __future__ import annotations

import random
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import V5, Puback, Pubcomp, Publish, Pubrec, Pubrel, parse
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_takeover import NAMES, connected, nothing_is_left, serving
from simulator.node import Pipe

KEPT: dict[str, Any] = {"clean_start": False, "expiry_s": 1000, "keep_alive": 0}


class Publisher(Client):
    """Sends again on its next connection what was not answered."""

    def __init__(self, brokers: Brokers, at: str, name: str) -> None:
        super().__init__(brokers, at, name)
        brokers.clients.append(self)
        self.unanswered: dict[int, Publish] = {}
        self.received: set[int] = set()             # PUBREC has come
        self.accepted: list[bytes] = []
        self.unknown: set[bytes] = set()            # refused, or its session was gone: it may have been accepted
        self.repeated_late: set[bytes] = set()      # while a session was somewhere without its rest
        # Connections that it has left without a word, and what was open on them: packet identifier -> payload.
        self.former: list[tuple[Pipe, dict[int, bytes]]] = []

    def go(self, at: str) -> None:
        if self.pipe is not None:
            self.former.append((self.pipe, {number: packet.payload for number, packet in self.unanswered.items()}))
        self.connect(at=at, **KEPT)

    def unheard(self) -> set[bytes]:
        """What was refused on a connection that it does not read any more."""
        found = set()
        for pipe, waiting in self.former:
            rest = bytes(pipe.to_client)
            while (parsed := parse(rest, V5)) is not None:
                packet, rest = parsed
                if isinstance(packet, Pubrec) and packet.reason >= 0x80 and packet.packet_id in waiting:
                    found.add(waiting[packet.packet_id])
        return found

    def offer(self, topic: str, payload: bytes, qos: int) -> None:
        packet_id = self.publish(topic, payload, qos)
        self.unanswered[packet_id] = Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, dup=True)

    def read(self) -> None:
        before, connacks = len(self.got), len(self.connacks)
        super().read()
        for packet in self.got[before:]:
            if isinstance(packet, Pubrec) and packet.packet_id in self.unanswered and packet.reason < 0x80:
                self.received.add(packet.packet_id)
            elif isinstance(packet, Puback | Pubcomp | Pubrec) and packet.packet_id in self.unanswered:
                payload = self.unanswered.pop(packet.packet_id).payload
                if packet.reason < 0x80 or packet.packet_id in self.received:
                    self.accepted.append(payload)
                else:
                    self.unknown.add(payload)
                self.received.discard(packet.packet_id)
        if len(self.connacks) > connacks and self.connected:
            if not self.connacks[-1].session_present:
                self.unknown.update(packet.payload for packet in self.unanswered.values())
                self.unanswered.clear()
                self.received.clear()
            if any(each.cluster.holdings.takeovers._late or each.node.broker.stored
                   for each in self.brokers.processes.values()):
                self.repeated_late.update(packet.payload for packet in self.unanswered.values())
            for packet_id, publish in self.unanswered.items():
                self.send(Pubrel(packet_id=packet_id) if packet_id in self.received else publish)


@pytest.mark.parametrize("seed", some(4, range(400)))
def test_a_subscriber_and_publishers_that_hop_while_links_stand_still(seed: int) -> None:
    brokers = serving(seed)
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", **KEPT)
    for qos in (1, 2):
        packet_id = client.subscribe(f"t/{qos}", qos)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    publishers = [Publisher(brokers, at, f"p-{at}") for at in NAMES[:2]]
    for publisher in publishers:
        publisher.connect(**KEPT)
        brokers.run_until(lambda publisher=publisher: publisher.connected)  # type: ignore[misc]
    sent: dict[bytes, int] = {}

    def publish() -> None:
        publisher, qos = chance.choice(publishers), chance.choice((1, 2, 2))
        if publisher.connected:
            payload = b"%s %d" % (publisher.name.encode(), len(sent))
            sent[payload] = qos
            publisher.offer(f"t/{qos}", payload, qos)

    for _ in range(30):
        for _ in range(chance.randrange(4)):
            publish()
        what = chance.random()
        if what < 0.2:
            client.connect(at=chance.choice([name for name in NAMES if name != client.at]), **KEPT)
        elif what < 0.4:
            publisher = chance.choice(publishers)
            publisher.go(chance.choice([name for name in NAMES if name != publisher.at]))
        elif what < 0.45:
            brokers.network.isolate(chance.choice(NAMES))
        elif what < 0.55:
            brokers.network.stall(*chance.sample(NAMES, 2), back=chance.random() < 0.5)
        elif what < 0.65:
            brokers.network.heal()
        for publisher in publishers:
            if not publisher.open and chance.random() < 0.5:
                publisher.go(chance.choice(NAMES))
        for _ in range(chance.randrange(10)):
            publish()
            brokers.run_for(chance.choice((0, 0.001, 0.003)))
        brokers.run_for(chance.choice((0, 0, 0.01, 0.1, 1, 6)))
    brokers.network.heal()
    for _ in range(5):
        for one in (client, *publishers):
            if not one.open:        # it was refused, or it has waited for too long
                one.connect(**KEPT)
        brokers.run_for(20.0)
    assert client.connected
    nothing_is_left(brokers)
    got = [payload for _, payload in client.messages]
    for publisher in publishers:
        assert publisher.connected and not publisher.unanswered
        for payload in publisher.accepted:
            assert payload in got, f"{payload!r} was lost"
    excused = {payload for publisher in publishers
               for payload in publisher.unknown | publisher.unheard() | publisher.repeated_late}
    for payload, qos in sent.items():
        if payload in excused:
            continue
        assert got.count(payload) <= 1 or qos == 1, f"{payload!r} came {got.count(payload)} times"
