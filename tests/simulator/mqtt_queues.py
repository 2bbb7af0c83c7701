"""What an MQTT client of the simulator does with queues: consumes, settles by acknowledgements or orders."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oracle.mqtt import V5, Puback, Publish, Pubrec, Subscribe
from simulator.judge import Group, Message

if TYPE_CHECKING:
    from simulator.mqtt_client import MqttClient

__all__ = ["LEASE_MS", "PREFIX", "Held", "QueueSide"]

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


class QueueSide:
    """Half of MqttClient: all of its state is there."""

    def consume(self: MqttClient, queue: str, group: str, qos: int, *, manual: bool, offset: str = "") -> None:
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

    def order(self: MqttClient, verb: str, held: Held, **extra: str) -> None:
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

    def answer(self: MqttClient, held: Held, *, reason: int = 0) -> None:
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

    def _settles(self: MqttClient, group: Group, held: Held) -> None:
        """It has said so, and it counts if the message is still its own by then."""
        message = held.message
        if group.seen[message] != held.serial or self.now_ms() - held.came_ms > LEASE_MS // 2:
            group.maybe.add(message)
        elif message not in group.firm:
            group.settling.add(message)
            self.settled.append((group, message))

    def _from_queue(self: MqttClient, packet: Publish, queue: str) -> None:
        told = dict(packet.props("user_property"))
        number = packet.packet_id or 0
        group = told.get("group-id", self.groups.get(queue, ""))
        if self._is_repeated(packet):
            self.queue(queue).groups[group].maybe.add(self.books.find(packet.payload, queue, self.namespace))
            self._repeated(packet)
            return
        v5 = self.version == V5
        told_count = int(told["delivery-count"]) if "delivery-count" in told else None
        if self.queue(queue).key in self.books.find(packet.payload, queue, self.namespace).places:
            self.look_at_expiry(packet, self.books.find(packet.payload, queue, self.namespace), first=told_count == 1)
        if not packet.dup:
            message = self.books.delivered(
                self.queue(queue).key, group, packet.payload,
                count=told_count,
                again=not v5 or told.get("redelivered") == "true" or self.queue(queue).kind == "stream",
                name=told.get("message-id", ""), now_ms=self.now_ms(),
                where=f"{self.name}.{self.began.get(queue, 0)}", connected=self.connected)
        else:
            message = self.books.find(packet.payload, queue, self.namespace)
            self.held = [one for one in self.held if one.packet_id != number]
        if packet.qos == 2:
            self.inbound[number] = packet.payload
        self.held.append(Held(queue, group, message, number, packet.qos, told.get("message-id", ""), self.now_ms(),
                              self.queue(queue).groups[group].seen[message]))

    def _ordered(self: MqttClient, verb: str, held: Held, reason: int) -> None:
        group = self.queue(held.queue).groups[held.group]
        if reason >= 0x80:      # somebody else has it by now
            group.settling.discard(held.message)
            return
        if verb != "$nack":
            group.settling.discard(held.message)
            group.firm.add(held.message)
        if verb == "$reject":
            group.dead.add(held.message)
