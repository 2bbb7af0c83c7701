"""Permissions of AMQP clients: exchanges and queues are checked as topics, by the same Authority as for MQTT.

    Basic.Publish to the default exchange       publish to `$queue/<routing key>`
    Basic.Publish to amq.topic                  publish to the topic that the routing key is
    Basic.Publish to any other exchange         publish to `$exchange/<exchange>/<routing key as topic>`
    Basic.Consume, Basic.Get, purge             subscribe to `$queue/<queue>`
    bind, unbind                                subscribe to what is bound: the filter that the key is (amq.topic), or
                                                `$exchange/<source>/<key as filter>`
    declare, delete of a queue                  subscribe to `$queue/<queue>`
    declare, delete of an exchange; messages    publish to `$exchange/<exchange>`
    are forwarded to it (alternate exchange,
    dead letters, exchange binding)

All of these are checked in the virtual host's namespace, like the operations of MQTT clients there; access/acl.py
explains how rules name a namespace. To open a virtual host is to enter its namespace (Asking.may_enter). A user that
the users file binds to a namespace can open no other one.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq._core.wire.queue_address import queue_topic
from fluxmq.edge.asking import PUBLISH, SUBSCRIBE, Asking, Undecided

if TYPE_CHECKING:
    from fluxmq.edge.amqp091.client import Client

__all__ = ["Permissions", "unbroken"]

MQTT_EXCHANGE = "amq.topic"
AS_TOPIC = str.maketrans("./", "/.")
LINE_ENDS = str.maketrans("", "", "\r\n")
AS_FILTER = str.maketrans("./*", "/.+")


def unbroken(name: str) -> str:
    """The name without line ends, which RabbitMQ and the engine remove from names of exchanges and queues: the access
    list is checked for the name that is used."""
    return name.translate(LINE_ENDS)


class Permissions:
    """asking: the node's. Raises Undecided, before anything is done, while a question is under way."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.authority = asking.authority

    @staticmethod
    def _key(key: str, *, pattern: bool) -> str:
        return key.translate(AS_FILTER if pattern else AS_TOPIC)

    def _may(self, client: Client, action: str, topic: str) -> bool:
        if self.authority.open_publish if action == PUBLISH else self.authority.open_subscribe:
            return True
        decided = self.asking.decide(client, action, topic)
        if decided is None:
            raise Undecided
        return decided > 0

    def may_open(self, client: Client, vhost: str) -> bool:
        """Whether this client may open the virtual host; each operation in it is checked separately."""
        bound = self.authority.namespace_of(client.identity)
        return (not bound or bound == vhost) and self.asking.may_enter(client, vhost)

    def exchange_topic(self, exchange: str, key: str, *, pattern: bool = False) -> str:
        if exchange == "" and not pattern:
            return queue_topic(key)
        if exchange == MQTT_EXCHANGE:
            return self._key(key, pattern=pattern)
        return f"$exchange/{exchange}/{self._key(key, pattern=pattern)}"

    def decide_publish(self, client: Client, exchange: str, key: str) -> int | None:
        """As Asking.decide, for the hot path, which keeps the content until the decision."""
        if self.authority.open_publish:
            return 1
        return self.asking.decide(client, PUBLISH, self.exchange_topic(exchange, key))

    def may_publish(self, client: Client, exchange: str, key: str) -> bool:
        return self._may(client, PUBLISH, self.exchange_topic(exchange, key))

    def may_bind(self, client: Client, source: str, key: str) -> bool:
        return self._may(client, SUBSCRIBE, self.exchange_topic(source, key, pattern=True))

    def may_use_queue(self, client: Client, queue: str) -> bool:
        return self._may(client, SUBSCRIBE, queue_topic(queue))

    def may_use_exchange(self, client: Client, exchange: str) -> bool:
        return self._may(client, PUBLISH, f"$exchange/{exchange}")
