"""What the access list says about AMQP: exchanges and queues as topics, asked of the same Authority as for MQTT.

    Basic.Publish to the default exchange       publish to `$queue/<routing key>`
    Basic.Publish to amq.topic of "/"           publish to the topic that the routing key is
    Basic.Publish to any other exchange         publish to `$exchange/<exchange>/<routing key as topic>`
    Basic.Consume, Basic.Get, purge             subscribe to `$queue/<queue>`
    bind, unbind                                subscribe to what is bound: the filter that the key is (amq.topic of
                                                "/"), or `$exchange/<source>/<key as filter>`
    declare, delete of a queue                  subscribe to `$queue/<queue>`
    declare, delete of an exchange; messages    publish to `$exchange/<exchange>`
    go there by themselves (alternate, dead
    letters, bound to another exchange)

In a virtual host other than "/" all of these begin with `$vhost/<virtual host>/`, and to open it takes publish or
subscribe to `$vhost/<virtual host>` itself, which a rule for `$vhost/<virtual host>/#` gives, too. "/" is open to all.
"""
from __future__ import annotations

from fluxmq.engine.ports_access import Authority

__all__ = ["Permissions", "unbroken"]

MQTT_EXCHANGE = "amq.topic"
AS_TOPIC = str.maketrans("./", "/.")
LINE_ENDS = str.maketrans("", "", "\r\n")
AS_FILTER = str.maketrans("./*", "/.+")


def unbroken(name: str) -> str:
    """Without line ends, which no exchange or queue has in its name (RabbitMQ takes them out, and so does the engine):
    the access list is asked about the name that is meant."""
    return name.translate(LINE_ENDS)


class Permissions:
    """authority: the node's."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority

    @staticmethod
    def _prefix(vhost: str) -> str:
        return "" if vhost == "/" else f"$vhost/{vhost}/"

    @staticmethod
    def _key(key: str, *, pattern: bool) -> str:
        return key.translate(AS_FILTER if pattern else AS_TOPIC)

    def may_open(self, identity: str | None, client_id: str, vhost: str) -> bool:
        """Whether this client may open the virtual host; what it may do there is asked again for each thing."""
        authority, topic = self.authority, f"$vhost/{vhost}"
        return (vhost == "/" or authority.open_publish or authority.open_subscribe
                or authority.may_publish(identity, client_id, topic)
                or authority.may_subscribe(identity, client_id, topic))

    def exchange_topic(self, vhost: str, exchange: str, key: str, *, pattern: bool = False) -> str:
        if exchange == "" and not pattern:
            return f"{self._prefix(vhost)}$queue/{key}"
        if exchange == MQTT_EXCHANGE and vhost == "/":
            return self._key(key, pattern=pattern)
        return f"{self._prefix(vhost)}$exchange/{exchange}/{self._key(key, pattern=pattern)}"

    def may_publish(self, identity: str | None, client_id: str, vhost: str, exchange: str, key: str) -> bool:
        return self.authority.open_publish or self.authority.may_publish(
            identity, client_id, self.exchange_topic(vhost, exchange, key))

    def may_bind(self, identity: str | None, client_id: str, vhost: str, source: str, key: str) -> bool:
        return self.authority.open_subscribe or self.authority.may_subscribe(
            identity, client_id, self.exchange_topic(vhost, source, key, pattern=True))

    def may_use_queue(self, identity: str | None, client_id: str, vhost: str, queue: str) -> bool:
        return self.authority.open_subscribe or self.authority.may_subscribe(
            identity, client_id, f"{self._prefix(vhost)}$queue/{queue}")

    def may_use_exchange(self, identity: str | None, client_id: str, vhost: str, exchange: str) -> bool:
        return self.authority.open_publish or self.authority.may_publish(
            identity, client_id, f"{self._prefix(vhost)}$exchange/{exchange}")
