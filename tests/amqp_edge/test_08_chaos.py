"""Methods in any order, most of them sensible, over several connections that come and go: the broker has no accident,
and when they are gone nobody consumes, nothing is in anybody's hands, and counts are what is there.
"""
from __future__ import annotations

import contextlib
import itertools
import random
import struct
from typing import Any

import pytest
from amqp_edge.conftest import PLAIN, Start
from kit.amqp_wire import Closed, Refused, Wire
from kit.broker import Broker
from kit.watch import wait_until
from oracle.amqp091 import METHOD, encode_frame, encode_method

from fluxmq.app.admin_client import AdminClient

QUEUES = ("a", "b", "c", "s", "")
EXCHANGES = ("", "x", "y", "amq.topic", "amq.headers", "nope")
KINDS = {"x": "topic", "y": "fanout"}
KEYS = ("a", "b", "", "a.b", "a.*", "#", "c")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-max-length": (0, 1, 5), "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-dead-letter-exchange": ("", "x", "amq.topic"), "x-max-priority": (3,), "x-single-active-consumer": (True,),
    "x-queue-type": ("classic", "quorum", "stream"), "x-delivery-limit": (0, 2)}
HEADERS: tuple[dict[str, Any], ...] = (
    {}, {"a": 1}, {"CC": ["b", "c"]}, {"BCC": ["a"]}, {"CC": 1},
    {"x-death": [{"queue": "a", "reason": "rejected", "count": (1 << 63) - 1}]})


class Chaos:
    """One connection; what it sends is chosen by `chance`, what it gets it reads only for the tags."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self.chance = chance
        self.wire = Wire(broker.addresses[PLAIN]).login(vhost=chance.choice(("/", "shop")))
        self.tags = {1: 0, 2: 0}
        self.got = self.number = 0
        for channel in self.tags:
            self.wire.open_channel(channel)

    def step(self) -> None:
        """One method; then whatever has come. Raises Closed and Refused as Wire does."""
        channel = self.chance.choice(list(self.tags))
        self.wire.send_raw(self.method(channel))
        while self.wire.ready(0.0005):
            channel, name, content = self.wire.read_method()
            if name in ("basic.deliver", "basic.get-ok"):
                self.got += 1
                self.tags[channel] = content.arguments["delivery_tag"]      # type: ignore[union-attr]
            elif name == "channel.close":
                self.wire.send(channel, "channel.close-ok")
                self.wire.send(channel, "channel.open")
                self.tags[channel] = 0
            elif name == "connection.close":
                raise Closed(str(content))

    def method(self, channel: int) -> bytes:
        one, chance = self.chance.choice, self.chance
        self.number += 1
        queue, exchange, key = one(QUEUES), one(EXCHANGES), one(KEYS)
        arguments = {name: one(ARGUMENTS[name]) for name in chance.sample(sorted(ARGUMENTS), one((0, 0, 0, 1, 2)))}
        name, given = one([
            ("queue.declare", {"queue": queue, "durable": one((True, False)), "exclusive": chance.random() < 0.1,
                               "auto_delete": chance.random() < 0.2, "arguments": arguments}),
            ("exchange.declare", {"exchange": exchange, "type": KINDS.get(exchange, "direct"),
                                  "auto_delete": chance.random() < 0.3}),
            ("queue.bind", {"queue": queue, "exchange": exchange, "routing_key": key}),
            ("queue.unbind", {"queue": queue, "exchange": exchange, "routing_key": key}),
            ("exchange.bind", {"source": exchange, "destination": one(EXCHANGES), "routing_key": key}),
            ("queue.purge", {"queue": queue}), ("basic.recover", {"requeue": True}),
            ("basic.qos", {"prefetch_count": one((0, 1, 10)), "global": one((True, False))}),
            ("basic.get", {"queue": queue, "no_ack": one((True, False))}),
            *2 * [("basic.consume", {"queue": queue, "consumer_tag": f"t{self.number}",
                                     "no_ack": one((True, False))})],
            ("basic.cancel", {"consumer_tag": f"t{self.number - chance.randrange(20)}"}),
            (one(("tx.commit", "tx.rollback", "tx.select")), {}),
            (one(("queue.delete", "exchange.delete", "confirm.select")), {}),
            *3 * [("basic.ack", {"delivery_tag": self.tags[channel], "multiple": one((True, False))})],
            *2 * [("basic.nack", {"delivery_tag": self.tags[channel], "requeue": one((True, False))})],
            *8 * [("", {})]])
        if name.endswith(".delete"):
            given = {name.split(".")[0]: queue if name.startswith("q") else exchange}
        if name and chance.random() > 0.002:
            return encode_frame(METHOD, channel, encode_method(name, **given))
        if name:
            return one((encode_frame(METHOD, channel, encode_method("channel.close-ok")), struct.pack(">BHI", 3, 1, 9)))
        return self.wire.encode_publish(channel, exchange, key, bytes(one((0, 10, 9000))),
                                        {"headers": one(HEADERS), "priority": one((0, 9))},
                                        mandatory=one((True, False)))


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_left_of_a_riot(start_broker: Start, seed: int) -> None:
    broker = start_broker({"amqp091.virtual_hosts": ["/", "shop"], "log.level": "info", "storage.type": "rocksdb"})
    chance = random.Random(seed)
    clients = [Chaos(broker, chance) for _ in range(4)]
    got = 0
    for _ in range(2000):
        at = chance.randrange(len(clients))
        try:
            clients[at].step()
            if chance.random() < 0.003:
                raise Closed("it has had enough")
        except (Closed, Refused, ConnectionError):
            clients[at].wire.drop()
            got += clients[at].got
            clients[at] = Chaos(broker, chance)
    assert got + sum(client.got for client in clients) > 50, "a riot without messages"
    for client in clients:
        client.wire.drop()
    admin = AdminClient(broker.directory / "data" / "admin.sock")
    wait_until(lambda: not any(queue["consumers"] or queue["unsettled"]
                               for queue in admin.ask("GET", "queues")["queues"]))
    wait_until(lambda: admin.ask("GET", "clients")["clients"] == [])
    for vhost, queue in itertools.product(("/", "shop"), QUEUES[:-1]):
        wire = Wire(broker.addresses[PLAIN]).login(vhost=vhost)
        wire.open_channel(1)
        with contextlib.suppress(Refused):      # there is none; it is a stream
            counted = wire.call(1, "queue.declare", queue=queue, passive=True)["message_count"]
            got = 0
            while wire.get(1, queue) is not None:
                got += 1
            assert got == counted, queue
        wire.drop()
    admin.close()
