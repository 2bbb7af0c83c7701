"""A tenant: clients of both protocols that live in one namespace, under names that every other tenant has too.

    tenant = Tenant("a", mqtt, amqp)
    tenant.play(("publish", "t/1", 1, False, 7))
    tenant.seen["c0"]       what came to this client, or to all of a share group or queue group together
    tenant.said             what was answered to each operation

Each payload begins with the tenant's name; what comes with another name fails at once. What is left of it is the same
for every tenant, so that the books of several tenants that played one plan are equal.
"""
from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from oracle.amqp091 import Content
from oracle.mqtt import (
    Disconnect,
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

from kit.amqp_wire import Refused, Wire
from kit.client import Client, Closed
from kit.watch import wait_until

__all__ = ["AMQP_QUEUES", "CLIENTS", "EXCHANGES", "MQTT_QUEUES", "Tenant", "specs_of"]

CLIENTS = ("c0", "c1", "s0", "s1", "w0", "w1", "r0")        # plain, of share groups, of queue groups, of streams
AMQP_QUEUES = ("q0", "q1")
MQTT_QUEUES = ("j0", "j1", "late", "st")
DEAD_QUEUES = ("j0.dlq", "graves", "late.dlq")
EXCHANGES = ("x0", "x1")
PREDECLARED = ("amq.topic", "amq.fanout", "amq.direct", "amq.headers")
LASTING = {"session_expiry_interval": 3600}
PERSISTENT = {"delivery_mode": 2}
CHANNEL, RPC = 1, 2
HOUR_MS = "3600000"


def specs_of(namespace: str) -> list[dict[str, Any]]:
    """The queues that each tenant has from the beginning; a consumer may give a message back at once."""
    retry = {"initial_backoff": "0s", "visibility_timeout": "0s"}
    return [{"name": "j0", "retry": retry, "namespace": namespace},
            {"name": "j1", "retry": retry, "dlq": {"topic": "graves"}, "topics": ["t/+", "cap/#"],
             "namespace": namespace},
            {"name": "late", "retry": retry, "namespace": namespace},
            {"name": "st", "type": "stream", "topics": ["t/1"], "namespace": namespace}]


class Tenant:
    """name: of its namespace. mqtt, amqp: where the broker listens. admin: runs a verb of QueueAdmin, (verb, shown name
    of the queue, …), kicks a client or looks at the operator's lists; None: the plan's are left out."""

    def __init__(self, name: str, mqtt: tuple[str, int], amqp: tuple[str, int],
                 admin: Callable[..., object] | None = None) -> None:
        self.name, self.mqtt, self.amqp, self.admin = name, mqtt, amqp, admin
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.said: list[Any] = []
        self.clients: dict[str, Client] = {}
        self.published = 0                      # confirms of the channel so far
        self.given_back: set[tuple[str, int]] = set()
        self.open()

    def open(self) -> None:
        """Its publishers of both protocols; the others connect when the plan says so."""
        self.publisher = self._client("p")
        self.wire = Wire(self.amqp).login(vhost=self.name)
        self._open_channel()

    def _client(self, who: str, **options: Any) -> Client:
        client = Client(self.mqtt)
        client.connect(who, username=f"{self.name}:user", **options)
        return client

    def _open_channel(self) -> None:
        self.wire._waiting.clear()
        self.wire.open_channel(CHANNEL)
        self.wire.call(CHANNEL, "confirm.select")
        self.wire.call(CHANNEL, "basic.qos", prefetch_count=50)
        self.published = 0

    def abandon(self) -> None:
        """The broker is gone, or will be: nothing is said to it."""
        for client in (*self.clients.values(), self.publisher):
            client.close()
        self.clients.clear()
        self.wire.drop()

    # ── payloads ─────────────────────────────────────────────────────────────────────────────────────────

    def body(self, number: int) -> bytes:
        return f"{self.name}|{number}".encode()

    def number(self, payload: bytes) -> int:
        """Of a payload that came; it is this tenant's. 0: what clears a retained message says nothing."""
        if not payload:
            return 0
        whose, _, number = payload.decode().partition("|")
        assert whose == self.name, f"what {whose} has published came to {self.name}: {payload!r}"
        return int(number)

    # ── the plan ─────────────────────────────────────────────────────────────────────────────────────────

    def play(self, operation: tuple[Any, ...]) -> None:
        verb, *arguments = operation
        try:
            answer = getattr(self, f"do_{verb}")(*arguments)
        except Refused as refused:
            answer = refused.scope, refused.code
            if refused.scope == "connection":
                self.wire.expect_end()
                self.wire = Wire(self.amqp).login(vhost=self.name)
            self._open_channel()
        self.said.append((verb, answer))
        self.drain()

    def drain(self) -> None:
        """Everything that is under way arrives, and is settled as its number says."""
        while True:     # deliveries wait for the disk: so do these answers, behind what was recorded before them
            self.do_exchange("flush", "fanout", True)
            self.do_exchange_delete("flush", False)
            if not any([*(self._drain_client(who) for who in list(self.clients)), self._drain_wire()]):
                return

    def do_drain(self) -> object:
        """Nothing more than what follows every operation."""

    # MQTT: sessions

    def do_connect(self, who: str, clean: bool, will: int | None) -> object:
        former = self.clients.pop(who, None)
        last = Will(topic="t/will", payload=self.body(will), qos=1, retain=bool(will & 1)) if will is not None else None
        client = self._client(who, clean_start=clean, will=last, properties=LASTING)
        self.clients[who] = client
        if former is not None:
            with contextlib.suppress(Exception):
                former.expect_closed()
            former.close()
        assert client.connack is not None
        return client.connack.session_present

    def do_leave(self, who: str, how: str) -> object:
        """how: a DISCONNECT, or the connection is lost and the will comes."""
        client = self.clients.pop(who, None)
        if client is None:
            return None
        if how == "drop":
            client.drop()
        else:
            client.disconnect()
        return how

    def do_subscribe(self, who: str, filter_: str, qos: int, users: tuple[tuple[str, str], ...] = ()) -> object:
        client = self.clients.get(who)
        if client is None:
            return None
        packet_id = client.next_packet_id()
        client.send(Subscribe(packet_id=packet_id, filters=[(filter_, qos)],
                              properties=[("user_property", pair) for pair in users]))
        return client.answer(Suback, packet_id=packet_id).reasons

    def do_unsubscribe(self, who: str, filter_: str) -> object:
        client = self.clients.get(who)
        if client is None:
            return None
        packet_id = client.next_packet_id()
        client.send(Unsubscribe(packet_id=packet_id, filters=[filter_]))
        return client.answer(Unsuback, packet_id=packet_id).reasons

    # MQTT: messages

    def do_publish(self, topic: str, qos: int, retain: bool, number: int,
                   users: tuple[tuple[str, str], ...] = ()) -> object:
        """number 0: the retained message is cleared."""
        return self._publish(topic, self.body(number) if number else b"", qos, retain, users)

    def _publish(self, topic: str, payload: bytes, qos: int, retain: bool = False,
                 users: tuple[tuple[str, str], ...] = (), client: Client | None = None) -> object:
        client = client or self.publisher
        packet_id = client.next_packet_id() if qos else None
        client.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, retain=retain,
                            properties=[("user_property", pair) for pair in (*users, ("tenant", self.name))]))
        if not qos:
            client.expect_quiet()
            return None
        answer = client.answer(Puback if qos == 1 else Pubrec, packet_id=packet_id)
        if qos == 2 and answer.reason < 0x80:
            assert packet_id is not None
            client.send(Pubrel(packet_id=packet_id))
            client.answer(Pubcomp, packet_id=packet_id)
        return answer.reason

    def do_put(self, queue: str, number: int, producer: int, delayed: bool) -> object:
        """To a queue's own address. producer: its sequence, 0: it says none."""
        users = [("producer-id", "one"), ("producer-sequence", str(producer))] if producer else []
        users += [("x-delay", HOUR_MS)] if delayed else []
        return self._publish(f"$queue/{queue}", self.body(number), 1, users=tuple(users))

    def do_delay(self, number: int) -> object:
        """A delayed message that is waited for."""
        self._publish("$queue/late", self.body(number), 1, users=(("x-delay", "1"),))
        found: list[int] = []

        def came() -> bool:
            content = self.wire.get(CHANNEL, "late")
            if content is not None:
                found.append(self.number(content.body))
            return number in found
        wait_until(came)
        return sorted(found)

    def _drain_client(self, who: str) -> bool:
        client = self.clients[who]
        came: list[Publish] = []
        client.send(Pingreq())
        while not isinstance(packet := client.recv(), Pingresp):
            assert isinstance(packet, Publish), packet
            came.append(packet)
        for packet in came:
            if packet.qos == 1:
                client.send(Puback(packet_id=packet.packet_id))
            elif packet.qos == 2:
                client.send(Pubrec(packet_id=packet.packet_id))
                client.answer(Pubrel, packet_id=packet.packet_id)
                client.send(Pubcomp(packet_id=packet.packet_id))
        for packet in came:
            self._take(who, client, packet)
        return bool(came)

    def _take(self, who: str, client: Client, packet: Publish) -> None:
        number = self.number(packet.payload)
        told = dict(value for name, value in packet.properties if name == "user_property")
        assert told.get("tenant", self.name) == self.name, packet
        said = f"{packet.topic} {number} qos {packet.qos}{' retained' if packet.retain else ''}"
        if who[0] not in "sw":
            self.seen[who].append(said)
            return
        self.seen["shared" if who[0] == "s" else "workers"].append(said)
        if who[0] == "w" and "offset" in told:
            queue = told.get("queue") or str(packet.topic).split("/")[1]
            verb = self._verdict(f"{queue} {told.get('group-id', '')}", number)
            order = {"ack": "$ack", "back": "$nack", "reject": "$reject"}[verb]
            users = tuple((key, told[key]) for key in ("partition", "offset") if key in told)
            reason = self._publish(f"$queue/{queue}/{order}", b"", 1, client=client,
                                   users=(*users, *((("delay", "0"),) if verb == "back" else ())))
            self.seen["orders"].append(f"{number} {order} {reason}")

    def _verdict(self, where: str, number: int) -> str:
        """What becomes of a message, whoever gets it: the same in every run of the plan. Once in each place it is given
        back or rejected, so that dead letters that go round come to an end."""
        if number % 4 < 2 and (where, number) not in self.given_back:
            self.given_back.add((where, number))
            return "back" if number % 4 else "reject"
        return "ack"

    # AMQP

    def do_exchange(self, name: str, kind: str, durable: bool) -> object:
        self.wire.call(CHANNEL, "exchange.declare", exchange=name, type=kind, durable=durable)

    def do_exchange_delete(self, name: str, if_unused: bool) -> object:
        self.wire.call(CHANNEL, "exchange.delete", exchange=name, if_unused=if_unused)

    def do_queue(self, name: str, durable: bool, arguments: dict[str, Any]) -> object:
        return self.wire.call(CHANNEL, "queue.declare", queue=name, durable=durable,
                              arguments=arguments)["message_count"]

    def do_queue_delete(self, name: str) -> object:
        return self.wire.call(CHANNEL, "queue.delete", queue=name)["message_count"]

    def do_purge(self, name: str) -> object:
        return self.wire.call(CHANNEL, "queue.purge", queue=name)["message_count"]

    def do_bind(self, queue: str, exchange: str, key: str, arguments: dict[str, Any], there: bool) -> object:
        self.wire.call(CHANNEL, "queue.bind" if there else "queue.unbind", queue=queue, exchange=exchange,
                       routing_key=key, arguments=arguments)

    def do_bind_exchange(self, destination: str, source: str, key: str, there: bool) -> object:
        self.wire.call(CHANNEL, "exchange.bind" if there else "exchange.unbind", destination=destination,
                       source=source, routing_key=key)

    def do_send(self, exchange: str, key: str, headers: dict[str, Any], mandatory: bool, number: int) -> object:
        properties = PERSISTENT | ({"headers": headers} if headers else {})
        self.wire.publish(CHANNEL, exchange, key, self.body(number), properties, mandatory=mandatory)
        self.published += 1
        kept, told = [], []
        while True:
            name, arguments = self.wire.next(CHANNEL)
            if name in ("channel.close", "connection.close"):
                self.wire._refuse(CHANNEL, name, arguments)      # type: ignore[arg-type]
            if name in ("basic.ack", "basic.nack"):
                self.wire._waiting[:0] = kept
                return [*told, name]
            if name == "basic.return":
                assert isinstance(arguments, Content)
                told.append(f"returned {self.number(arguments.body)}")
            else:
                kept.append((CHANNEL, name, arguments))

    def do_get(self, queue: str, verdict: str) -> object:
        content = self.wire.get(CHANNEL, queue, no_ack=verdict == "no_ack")
        if content is None:
            return None
        self._settle(content, verdict)
        return self.number(content.body)

    def do_consume(self, queue: str) -> object:
        self.wire.call(CHANNEL, "basic.consume", queue=queue, consumer_tag=queue)

    def do_cancel(self, queue: str) -> object:
        self.wire.call(CHANNEL, "basic.cancel", consumer_tag=queue)

    def do_rpc(self, number: int) -> object:
        """A question and its answer by direct reply-to."""
        wire = self.wire
        wire.open_channel(RPC)
        wire.call(RPC, "queue.declare", queue="rpc", auto_delete=False)
        wire.call(RPC, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
        wire.publish(RPC, "", "rpc", self.body(number), {"reply_to": "amq.rabbitmq.reply-to"})
        content = wire.get(RPC, "rpc")
        assert content is not None
        wire.publish(RPC, "", content.properties["reply_to"], content.body)
        answer = self.number(wire.expect_content(RPC).body)
        wire.call(RPC, "queue.delete", queue="rpc")
        wire.call(RPC, "channel.close", reply_code=200, reply_text="")
        return answer

    def _settle(self, content: Content, verdict: str) -> None:
        tag = content.arguments["delivery_tag"]
        if verdict == "ack":
            self.wire.send(CHANNEL, "basic.ack", delivery_tag=tag)
        elif verdict == "back":
            self.wire.send(CHANNEL, "basic.nack", delivery_tag=tag, requeue=True)
        elif verdict == "reject":
            self.wire.send(CHANNEL, "basic.reject", delivery_tag=tag, requeue=False)

    def _drain_wire(self) -> bool:
        came = False
        while not self.wire.nothing_waits(CHANNEL):
            waiting, self.wire._waiting = self.wire._waiting, []
            for _, name, content in waiting:
                came = True
                if name == "basic.cancel":
                    assert isinstance(content, dict)
                    self.seen["cancelled"].append(content["consumer_tag"])
                    continue
                assert name == "basic.deliver" and isinstance(content, Content), (name, content)
                number, where = self.number(content.body), content.arguments["consumer_tag"]
                self.seen[f"consumer {where}"].append(f"{content.arguments['routing_key']} {number}")
                self._settle(content, self._verdict(where, number))
        return came

    # Administration

    def do_admin(self, verb: str, queue: str) -> object:
        """A verb of QueueAdmin about the tenant's queue."""
        if self.admin is None:
            return None
        return self.admin(verb, queue if self.name == "/" else f"{self.name}/{queue}")

    def do_kick(self, who: str) -> object:
        found = self.admin("kick", (self.name, who)) if self.admin is not None else None
        if found == "kicked":
            client, reason = self.clients.pop(who), 0
            with contextlib.suppress(Closed):
                while True:
                    packet = client.recv()
                    if isinstance(packet, Publish):     # its own will, perhaps
                        self.number(packet.payload)
                    else:
                        assert isinstance(packet, Disconnect) and not reason, packet
                        reason = packet.reason
            assert reason == 0x98
            client.close()
        return found

    def do_look(self) -> object:
        return self.admin("look", self.name) if self.admin is not None else None
