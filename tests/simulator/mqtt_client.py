"""An MQTT client of the simulator: bytes in the oracle's codec, and books of what it sent, was told and got.

It does nothing by itself but what the protocol demands of it (PUBREC, PUBREL, PUBCOMP, publishing again what was not
answered after a reconnect). What it does with a message of a queue the history decides, by `held`.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.mqtt import (
    NEVER,
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    parse,
)
from simulator.judge import Books, Group, Message, QueueBook, SessionBook, Wrong
from simulator.node import Node, Pipe

__all__ = ["LEASE_MS", "Held", "MqttClient"]

PREFIX = "$queue/"
LEASE_MS = 2000     # visibility timeout of a queue that has one


@dataclass(eq=False)
class Held:
    """A message of a queue in this client's hands. packet_id 0: it was acknowledged, and is settled by hand."""

    queue: str
    group: str
    message: Message
    packet_id: int
    qos: int
    name: str
    came_ms: int
    serial: int         # which delivery of it in its group this was


class MqttClient:
    """client_id: its client identifier, which another namespace may have as well. name: by which books know it, and
    the order of its publishes. now_ms: the world's monotonic milliseconds."""

    def __init__(self, client_id: str, version: int, books: Books, chance: random.Random, now_ms: Callable[[], int],
                 namespace: str = "/") -> None:
        self.client_id, self.namespace, self.version = client_id, namespace, version
        self.books, self.chance, self.now_ms = books, chance, now_ms
        self.name = client_id if namespace == "/" else f"{namespace}|{client_id}"
        self.session = SessionBook(self.name, namespace)
        books.sessions[self.name] = self.session
        self.user_name = None if namespace == "/" else f"{namespace}:guest"
        self.pipe: Pipe | None = None
        self.open = False
        self.kept = False
        self.slow = False
        self.asked_clean = False
        self.unanswered: dict[int, tuple[Message | None, Publish, str]] = {}    # our publishes, and "rel" behind PUBREC
        self.orders: dict[int, tuple[str, Held]] = {}               # $ack and its kin, by packet
        self.asking: dict[int, tuple[str, str, int, str]] = {}      # SUBSCRIBE: filter, kind, qos, group
        self.leaving: dict[int, str] = {}
        self.inbound: dict[int, bytes] = {}         # payloads of QoS 2 packets that came, until PUBREL
        self.groups: dict[str, str] = {}            # queue → group, of subscriptions that were asked for
        self.began: dict[str, int] = {}             # queue → when that was: a stream is read anew
        self.manual: set[str] = set()
        self.held: list[Held] = []
        self.settled: list[tuple[Group, Message]] = []      # in this connection
        self.retained: dict[str, bytes] = {}
        self.sequence = 0           # of what it publishes as a producer
        self._packet_id = 0
        self._read = b""

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────

    def connect(self, node: Node, *, clean: bool, kept: bool) -> None:
        """kept: the session outlives the connection. A former connection of this client goes on until it ends."""
        self.lose()
        self.pipe = node.accept_mqtt()
        self.kept = kept
        self.session.kept = self.session.kept or kept
        clean = clean if self.version == V5 else not kept
        self.asked_clean = clean
        if clean:
            self._doubt()       # the broker may do it, and the client never hear of it
            self.kept = kept
        if self.version == V5:
            packet = Connect(client_id=self.client_id, clean_start=clean, keep_alive=0, username=self.user_name,
                             properties={"session_expiry_interval": NEVER} if kept else {})
        else:
            packet = Connect(client_id=self.client_id, clean_start=not kept, keep_alive=0, username=self.user_name)
        self.send(packet)

    def lose(self) -> None:
        """The connection is gone, as far as this client is concerned."""
        if self.pipe is not None:
            self.pipe.client_closed = True
        self.pipe, self.open, self._read = None, False, b""
        self.held.clear()
        self.orders.clear()
        self.books.unsure(self.settled)
        for kind, pattern in [(entry[1], entry[0]) for entry in self.asking.values()]:
            if kind == "topic":     # whether it was made, this client will never know
                self.session.asked.setdefault(pattern, self.books.now)
        self.asking.clear()
        self.leaving.clear()
        if not self.kept:
            self._doubt()

    def _doubt(self) -> None:
        """The session ends with its connection, when the broker finds out, or there is none; if it is still there when
        the client comes back it is gone on with. Nothing of it is owed to the client."""
        session = self.session
        session.known = session.kept = False
        for pattern, (_, since) in session.subscriptions.items():
            session.asked.setdefault(pattern, since)
        session.subscriptions.clear()
        session.required.clear()
        self.unanswered.clear()

    def _forget(self) -> None:
        """There is a new session; what was not answered in the one before is not sent again."""
        self.session.forget()
        self.session.kept = False
        self.unanswered.clear()
        self.inbound.clear()
        self.groups.clear()
        self.manual.clear()

    def disconnect(self) -> None:
        self.send(Disconnect())
        self.lose()

    def send(self, packet: Packet) -> None:
        self.books.tell(f"{self.name} sends {packet!r}")
        if self.pipe is not None:
            self.pipe.to_broker += packet.encode(self.version)

    # ── what it asks for ─────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueBook:
        """The queue that this client calls so."""
        return self.books.queues[f"{self.namespace}|{name}"]

    def packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65535 + 1
            if self._packet_id not in self.unanswered and self._packet_id not in self.asking:
                return self._packet_id

    def subscribe(self, pattern: str, qos: int) -> None:
        number = self.packet_id()
        self.asking[number] = pattern, "topic", qos, ""
        self.session.asked[pattern] = self.books.tick()
        self.send(Subscribe(packet_id=number, filters=[(pattern, qos)]))

    def consume(self, queue: str, group: str, qos: int, *, manual: bool, offset: str = "") -> None:
        number = self.packet_id()
        self.asking[number] = queue, "queue", qos, group
        self.groups[queue] = group
        self.began[queue] = self.books.tick()
        self.queue(queue).groups[group].asked = True
        asked: list[tuple[str, str]] = [("consumer-group", group)] if group else []
        if manual:
            self.manual.add(queue)
            asked.append(("ack", "manual"))
        else:
            self.manual.discard(queue)
        if offset:
            asked.append(("offset", offset))
        self.send(Subscribe(packet_id=number, filters=[(PREFIX + queue, qos)],
                            properties={"user_property": asked} if self.version == V5 else {}))

    def unsubscribe(self, pattern: str) -> None:
        number = self.packet_id()
        self.leaving[number] = pattern
        self.session.subscriptions.pop(pattern, None)
        self.session.asked.setdefault(pattern, self.books.now)      # what is under way may still come
        self.session.required = {one for one in self.session.required if self.session.received[one]}
        self.send(Unsubscribe(packet_id=number, filters=[pattern]))

    def publish(self, message: Message, topic: str, *, user: list[tuple[str, str]] | None = None) -> None:
        message.sends += 1
        properties = {"user_property": user} if user and self.version == V5 else {}
        packet = Publish(topic=topic, payload=message.payload, qos=message.qos, retain=message.retain,
                         properties=properties)
        if message.qos:
            packet.packet_id = self.packet_id()
            self.unanswered[packet.packet_id] = message, packet, ""
        self.send(packet)

    def order(self, verb: str, held: Held, **extra: str) -> None:
        """$ack, $nack or $reject of what was acknowledged before."""
        number = self.packet_id()
        packet = Publish(topic=f"{PREFIX}{held.queue}/{verb}", qos=1, packet_id=number, properties={
            "user_property": [("message-id", held.name), *extra.items()]})
        group = self.queue(held.queue).groups[held.group]
        if verb != "$nack":
            self._settles(group, held)
        if verb == "$reject":
            group.rejecting.add(held.message)
        self.orders[number] = verb, held
        self.unanswered[number] = None, packet, "order"
        self.send(packet)

    def answer(self, held: Held, *, reason: int = 0) -> None:
        """The acknowledgement of a delivery. reason: not 0 gives it back."""
        self.held.remove(held)
        manual = held.queue in self.manual
        if not reason and not manual and self.queue(held.queue).kind != "stream":
            self._settles(self.queue(held.queue).groups[held.group], held)
        kind = Puback if held.qos == 1 else Pubrec
        self.send(kind(packet_id=held.packet_id, reason=reason if self.version == V5 else 0))
        if manual:
            held.packet_id = 0
            self.held.append(held)

    def _settles(self, group: Group, held: Held) -> None:
        """It has said so, and it counts if the message is still its own by then."""
        message = held.message
        if group.seen[message] != held.serial or self.now_ms() - held.came_ms > LEASE_MS // 2:
            group.maybe.add(message)
        elif message not in group.firm:
            group.settling.add(message)
            self.settled.append((group, message))

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """Everything that has come, unless it is slow."""
        pipe = self.pipe
        if pipe is None or self.slow:
            return
        if pipe.to_client:
            self._read += bytes(pipe.to_client)
            pipe.to_client.clear()
            while self.pipe is pipe and (found := parse(self._read, self.version)) is not None:
                packet, self._read = found
                self.handle(packet)
        if pipe.broker_closed and self.pipe is pipe:
            self.lose()

    def handle(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._connected(packet)
        elif isinstance(packet, Suback):
            self._subscribed(packet)
        elif isinstance(packet, Unsuback):
            pattern = self.leaving.pop(packet.packet_id, "")
            if pattern not in self.session.subscriptions and not self.kept:
                self.session.asked.pop(pattern, None)     # else what was sent before may come again
        elif isinstance(packet, Publish):
            self._came(packet)
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self._answered(packet)
        elif isinstance(packet, Pubrel):
            self.inbound.pop(packet.packet_id, None)
            self.send(Pubcomp(packet_id=packet.packet_id))
        elif isinstance(packet, Disconnect):
            self.lose()

    def _connected(self, packet: Connack) -> None:
        self.books.tell(f"{self.name} connected {packet.session_present} {packet.reason}")
        if packet.reason:
            self.lose()
            return
        if packet.session_present and self.asked_clean:
            raise Wrong("session", f"{self.name} asked for a clean session and has an old one")
        if not packet.session_present:
            if self.session.known and not self.asked_clean and not self.books.losses_allowed:
                raise Wrong("session", f"{self.name} was told that it has a session, and it is gone")
            kept = self.kept
            self._forget()
            self.session.kept = self.kept = kept
        self.open = True
        self.began = {queue: self.books.tick() for queue in self.groups}
        self.session.known = self.kept
        for number, (message, publish, state) in list(self.unanswered.items()):
            if state == "order":        # of a delivery that is somebody else's now
                del self.unanswered[number]
            elif state == "rel":
                self.send(Pubrel(packet_id=number))
            else:
                assert message is not None
                message.sends += message.qos == 1
                publish.dup = True
                self.send(publish)

    def _subscribed(self, packet: Suback) -> None:
        pattern, kind, qos, group = self.asking.pop(packet.packet_id)
        self.books.tell(f"{self.name} subscribed {pattern} {group} {packet.reasons}")
        if packet.reasons[0] >= 0x80:
            self.session.asked.pop(pattern, None)
            return
        if kind == "topic":
            now = self.books.tick()
            self.session.subscriptions.setdefault(pattern, (qos, now))
            self.session.asked.pop(pattern, None)
        else:
            made = self.queue(pattern).groups[group]
            made.made_at = made.made_at or self.books.tick()

    def _came(self, packet: Publish) -> None:
        topic = str(packet.topic)
        if topic.startswith(PREFIX):
            self._from_queue(packet, topic[len(PREFIX):].partition("/")[0])
            return
        number = packet.packet_id or 0
        if packet.qos == 2 and number in self.inbound:
            self._repeated(packet)
            return
        if packet.retain and not packet.payload:
            raise Wrong("retained", f"an empty retained message on {topic}")
        if packet.retain:
            self.books.find(packet.payload, topic, self.namespace)
            self.retained[topic] = packet.payload
        if packet.payload:
            self.books.came(self.session, packet.payload, topic, packet.qos, packet.retain)
        if packet.qos == 2:
            self.inbound[number] = packet.payload
            self.send(Pubrec(packet_id=number))
        elif packet.qos:
            self.send(Puback(packet_id=number))

    def _repeated(self, packet: Publish) -> None:
        """A QoS 2 packet that came before, and is answered once more [MQTT-4.3.3]. What it carries is not looked at by
        a client, so it must be the same."""
        number = packet.packet_id or 0
        if self.inbound[number] != packet.payload:
            raise Wrong("packet id", f"{self.name} has not released packet {number}, which was "
                                     f"{self.inbound[number]!r}, and gets {packet.payload!r} as this")
        self.held = [one for one in self.held if one.packet_id != number]
        self.send(Pubrec(packet_id=number))

    def _from_queue(self, packet: Publish, queue: str) -> None:
        told = dict(packet.props("user_property"))
        number = packet.packet_id or 0
        group = told.get("group-id", self.groups.get(queue, ""))
        if packet.qos == 2 and number in self.inbound:
            self.queue(queue).groups[group].maybe.add(self.books.find(packet.payload, queue, self.namespace))
            self._repeated(packet)
            return
        v5 = self.version == V5
        if not packet.dup:
            message = self.books.delivered(
                self.queue(queue).key, group, packet.payload,
                count=int(told["delivery-count"]) if "delivery-count" in told else None,
                again=not v5 or told.get("redelivered") == "true" or self.queue(queue).kind == "stream",
                name=told.get("message-id", ""), now_ms=self.now_ms(),
                where=f"{self.name}.{self.began.get(queue, 0)}")
        else:
            message = self.books.find(packet.payload, queue, self.namespace)
            self.held = [one for one in self.held if one.packet_id != number]
        if packet.qos == 2:
            self.inbound[number] = packet.payload
        self.held.append(Held(queue, group, message, number, packet.qos, told.get("message-id", ""), self.now_ms(),
                              self.queue(queue).groups[group].seen[message]))

    def _answered(self, packet: Any) -> None:
        number = packet.packet_id
        message, publish, state = self.unanswered.get(number, (None, None, ""))
        if publish is None:
            if isinstance(packet, Pubrec):
                self.send(Pubrel(packet_id=number))
            return
        if state == "order":
            del self.unanswered[number]
            verb, held = self.orders.pop(number, ("", None))
            if held is not None:
                self._ordered(verb, held, packet.reason)
            return
        if isinstance(packet, Pubrec) and packet.reason < 0x80:
            assert message is not None
            self.books.acked(message)
            self.unanswered[number] = message, publish, "rel"
            self.send(Pubrel(packet_id=number))
            return
        del self.unanswered[number]
        if isinstance(packet, Puback) and packet.reason < 0x80:
            assert message is not None
            self.books.acked(message)

    def _ordered(self, verb: str, held: Held, reason: int) -> None:
        group = self.queue(held.queue).groups[held.group]
        if reason >= 0x80:      # somebody else has it by now
            group.settling.discard(held.message)
            return
        if verb != "$nack":
            group.settling.discard(held.message)
            group.firm.add(held.message)
        if verb == "$reject":
            group.dead.add(held.message)
