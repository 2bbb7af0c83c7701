"""An MQTT client of the simulator: bytes in the oracle's codec, and books of what it sent, was told and got.

It does nothing by itself but what the protocol demands of it (PUBREC, PUBREL, PUBCOMP, publishing again what was not
answered after a reconnect). What it does with a message of a queue the history decides, by `held`.
"""
from __future__ import annotations

import random
from collections.abc import Callable
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
from simulator.mqtt_queues import LEASE_MS, PREFIX, Held, QueueSide
from simulator.node import Node, Pipe
from simulator.wills import WillBook

__all__ = ["LEASE_MS", "Held", "MqttClient"]



class MqttClient(QueueSide):
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
        self.slow = self.was_slow = False       # was: in this connection
        self.will: WillBook | None = None
        self.asked_clean = False
        self.unanswered: dict[int, tuple[Message | None, Publish, str]] = {}    # our publishes, and "rel" behind PUBREC
        self.orders: dict[int, tuple[str, Held]] = {}               # $ack and its kin, by packet
        self.asking: dict[int, tuple[str, str, int, str]] = {}      # SUBSCRIBE: filter, kind, qos, group
        self.leaving: dict[int, str] = {}
        self.inbound: dict[int, bytes] = {}         # payloads of QoS 2 packets that came, until PUBREL
        self.doubtful: set[int] = set()             # of these: their session has perhaps ended
        self.ended = False          # the session did, with a connection of which the client had CONNACK
        # What came of a CONNECT that was not answered: the session has ended, and there is another one.
        self.perhaps_ended = self.perhaps_new = False
        self.groups: dict[str, str] = {}            # queue → group, of subscriptions that were asked for
        self.connected = 0                          # when its connection began
        self.began: dict[str, int] = {}             # queue → when that was: a stream is read anew
        self.manual: set[str] = set()
        self.held: list[Held] = []
        self.settled: list[tuple[Group, Message]] = []      # in this connection
        self.retained: dict[str, bytes] = {}
        self.sequence = 0           # of what it publishes as a producer
        self._packet_id = 0
        self._read = b""

    # ── connection ───────────────────────────────────────────────────────────────────────────────────────

    def connect(self, node: Node, *, clean: bool, kept: bool, will: WillBook | None = None) -> None:
        """kept: the session outlives the connection. A former connection of this client goes on until it ends."""
        self.lose()
        self.was_slow = False
        if self.will is not None:
            self.will.void()        # it may come, or is not needed any more
        self.pipe = node.accept_mqtt()
        self.will = will
        if will is not None:
            will.begin(self.pipe)
        self.kept = kept
        self.session.kept = self.session.kept or kept
        clean = clean if self.version == V5 else not kept
        self.asked_clean = clean
        if clean:
            self._doubt()       # the broker may do it, and the client never hear of it
            self.kept = kept
        if self.version == V5:
            packet = Connect(client_id=self.client_id, clean_start=clean, keep_alive=0, username=self.user_name,
                             will=will and will.packet(self.version),
                             properties={"session_expiry_interval": NEVER} if kept else {})
        else:
            packet = Connect(client_id=self.client_id, clean_start=not kept, keep_alive=0, username=self.user_name,
                             will=will and will.packet(self.version))
        self.connected = self.books.tick()
        self.send(packet)

    def lose(self, *, close: bool = True) -> None:
        """The connection is gone, as far as this client is concerned. close: for the broker, too."""
        if self.pipe is not None and close:
            self.pipe.client_closed = True
            if self.will is not None:
                self.will.lost(self.now_ms(), told=self.open)
        if self.open and not self.kept:     # a Session Expiry Interval of 0: the session ends for both sides
            self.ended = True
            self.inbound.clear()
            self.doubtful.clear()
        elif self.pipe is not None and not self.open:
            self.perhaps_new |= self.kept and (self.asked_clean or self.ended or self.perhaps_ended)
            self.perhaps_ended |= self.asked_clean or not self.kept
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
        self.books.disturb(session)
        for pattern, (_, since) in session.subscriptions.items():
            session.asked.setdefault(pattern, since)
        session.subscriptions.clear()
        session.required.clear()
        self.unanswered.clear()

    def _forget(self) -> None:
        """There is a new session; what was not answered in the one before is not sent again."""
        self.books.disturb(self.session)
        self.session.forget()
        self.session.kept = False
        self.unanswered.clear()
        self.inbound.clear()
        self.doubtful.clear()
        self.groups.clear()
        self.manual.clear()

    def disconnect(self) -> None:
        self.send(Disconnect())
        if self.will is None or self.pipe is None:
            self.lose()
            return
        # An end that comes before what was sent has left would be taken for a loss.
        self.will.withdraw()
        self.pipe.room = None
        self.lose(close=False)

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

    def unsubscribe(self, pattern: str) -> None:
        number = self.packet_id()
        self.leaving[number] = pattern
        self.books.disturb(self.session)
        self.session.subscriptions.pop(pattern, None)
        self.session.asked.setdefault(pattern, self.books.now)      # what is under way may still come
        self.session.required = {one for one in self.session.required if self.session.received[one]}
        self.send(Unsubscribe(packet_id=number, filters=[pattern]))

    def publish(self, message: Message, topic: str, *, user: list[tuple[str, str]] | None = None) -> None:
        properties: dict[str, Any] = {"user_property": user} if user and self.version == V5 else {}
        if message.lifetime_s:
            properties["message_expiry_interval"] = message.lifetime_s
        message.sent(self.now_ms(), self.books.starts)
        packet = Publish(topic=topic, payload=message.payload, qos=message.qos, retain=message.retain,
                         properties=properties)
        if message.qos:
            packet.packet_id = self.packet_id()
            self.unanswered[packet.packet_id] = message, packet, ""
        self.send(packet)

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
            self.doubtful.discard(packet.packet_id)
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
        if packet.session_present and self.ended and not self.perhaps_new and not self.books.losses_allowed:
            raise Wrong("session", f"{self.name} has a session that ended with its connection")
        if self.perhaps_new:
            self.doubtful.update(self.inbound)
        self.ended = self.perhaps_ended = self.perhaps_new = False
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
                message.sent(self.now_ms(), self.books.starts, message.qos == 1)
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
        if self._is_repeated(packet):
            self._repeated(packet)
            return
        if packet.retain and not packet.payload:
            raise Wrong("retained", f"an empty retained message on {topic}")
        if packet.retain:
            self.books.find(packet.payload, topic, self.namespace)
            self.retained[topic] = packet.payload
        if packet.payload:
            self.look_at_expiry(packet, self.books.find(packet.payload, topic, self.namespace), first=True)
            self.books.came(self.session, packet.payload, topic, packet.qos, packet.retain)
        if packet.qos == 2:
            self.inbound[number] = packet.payload
            self.send(Pubrec(packet_id=number))
        elif packet.qos:
            self.send(Puback(packet_id=number))

    def look_at_expiry(self, packet: Publish, message: Message, *, first: bool) -> None:
        """first: it cannot have been on its way to this client for long."""
        left = dict(packet.properties).get("message_expiry_interval")
        if self.version == V5 and message.lifetime_s and (left is None or not 0 <= left <= message.lifetime_s):
            raise Wrong("expiry", f"{message} of {message.lifetime_s} s came to {self.name} with {left}")
        if message.lifetime_s and first and not packet.dup and not self.was_slow and self.books.too_late(message):
            raise Wrong("expired", f"{message} came to {self.name} {self.now_ms() - message.expires_ms} ms too late")

    def _is_repeated(self, packet: Publish) -> bool:
        """Whether a QoS 2 packet has the identifier of one that was not released."""
        number = packet.packet_id or 0
        if packet.qos == 2 and number in self.doubtful and self.inbound[number] != packet.payload:
            for each in self.doubtful:      # so there is another session
                del self.inbound[each]
            self.doubtful.clear()
        return packet.qos == 2 and number in self.inbound

    def _repeated(self, packet: Publish) -> None:
        """A QoS 2 packet that came before, and is answered once more [MQTT-4.3.3]. What it carries is not looked at by
        a client, so it must be the same."""
        number = packet.packet_id or 0
        if self.inbound[number] != packet.payload:
            raise Wrong("packet id", f"{self.name} has not released packet {number}, which was "
                                     f"{self.inbound[number]!r}, and gets {packet.payload!r} as this")
        self.held = [one for one in self.held if one.packet_id != number]
        self.send(Pubrec(packet_id=number))

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
