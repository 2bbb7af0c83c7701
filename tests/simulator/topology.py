"""AMQP's exchanges and queues of one virtual host, as the clients of a history declare, bind and use them."""
from __future__ import annotations

from typing import Any

from simulator.amqp_client import AmqpClient
from simulator.judge import QueueBook
from simulator.world import World

__all__ = ["Topology"]

EXCHANGES = {"d": "direct", "f": "fanout", "t": "topic", "h": "headers"}
QUEUES: dict[str, dict[str, Any]] = {
    "dead": {},
    "q1": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "q2": {"x-queue-type": "quorum"},
}
# (queue, exchange, key, arguments)
BINDINGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("q1", "d", "one", {}), ("q2", "d", "two", {}), ("q1", "f", "", {}), ("q2", "f", "", {}), ("q2", "t", "a.*", {}),
    ("q1", "t", "#.z", {}), ("q1", "h", "", {"x-match": "all", "colour": "red"}),
)
# (exchange, key, headers) of publishes; "" reaches a queue by its name
PUBLISHES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "q1", {}), ("", "q1", {}), ("", "q2", {}), ("d", "one", {}), ("d", "two", {}), ("f", "", {}), ("t", "a.b", {}),
    ("t", "a.z", {}), ("h", "", {"colour": "red"}), ("h", "", {"colour": "blue"}),
)


def leads(exchange: str, key: str, headers: dict[str, Any], binding: tuple[str, str, str, dict[str, Any]]) -> bool:
    """Whether what is published so goes by this binding."""
    _, source, bound, arguments = binding
    if source != exchange:
        return False
    if exchange == "d":
        return key == bound
    if exchange == "t":
        return (bound == "a.*" and key.startswith("a.")) or (bound == "#.z" and key.endswith("z"))
    if exchange == "h":
        return headers.get("colour") == arguments.get("colour")
    return True


class Topology:
    """What is known of one virtual host. A thing is in `asked` when somebody asked for it, in `there` when somebody was
    told that it is there."""

    def __init__(self, vhost: str, world: World) -> None:
        self.vhost, self.world = vhost, world
        self.asked: set[Any] = set()
        self.there: set[Any] = set()

    def key(self, queue: str) -> str:
        return f"{self.vhost}|{queue}"

    def declare_some(self, client: AmqpClient) -> None:
        """The next few things that are not known to be there."""
        chance = self.world.chance
        for _ in range(chance.choice((1, 3, 6))):
            self._queue(client, chance.choice(("dead", "q1", "q2")))
            if chance.random() < 0.5:
                exchange = chance.choice(list(EXCHANGES))
                self.asked.add(exchange)
                client.exchange(exchange, EXCHANGES[exchange],
                                lambda name=exchange: self.there.add(name))     # type: ignore[misc]
            bindings = [one for one in BINDINGS if one[1] in self.there and self.key(one[0]) in self.there]
            if bindings:
                binding = chance.choice(bindings)
                queue, exchange, key, arguments = binding
                at = BINDINGS.index(binding)
                self.asked.add(at)
                client.bind(queue, exchange, key, arguments, lambda at=at: self.there.add(at))      # type: ignore[misc]

    def _queue(self, client: AmqpClient, queue: str) -> None:
        if queue == "q1":       # its dead letters have a place from the beginning
            self._queue(client, "dead")
        key = self.key(queue)
        book = QueueBook(key, "classic", self.key("dead") if queue == "q1" else "")
        client.declare(queue, QUEUES[queue], book, lambda: self.there.add(key))
        self.asked.add(key)

    def publish(self, client: AmqpClient) -> None:
        chance, books = self.world.chance, self.world.books
        exchange, key, headers = chance.choice(PUBLISHES)
        if exchange and exchange not in self.there:
            return
        if exchange:
            ways = [(at, one[0]) for at, one in enumerate(BINDINGS) if leads(exchange, key, headers, one)]
            certain = {self.key(queue) for at, queue in ways if at in self.there}
            perhaps = {self.key(queue) for _, queue in ways}     # it may be bound by the time it is read
        else:
            certain = {self.key(key)} & self.there
            perhaps = {self.key(key)}
        message = books.new(client.name, namespace=self.vhost, qos=1, places=frozenset(certain),
                            perhaps=frozenset(perhaps), unique=True)
        client.publish(message, exchange, key, headers)

    def consume(self, client: AmqpClient) -> None:
        chance = self.world.chance
        known = [queue for queue in ("q1", "q2", "dead") if self.key(queue) in self.there]
        if not known:
            return
        queue = chance.choice(known)
        if chance.random() < 0.4:
            client.get(queue)
        elif queue not in client.consuming.values():
            client.consume(queue, chance.choice((1, 3, 50)))
