"""What MQTT clients of a history publish: to topics, retained, to queues, as producers; wills."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.judge import Message
from simulator.mqtt_client import MqttClient
from simulator.wills import WillBook

if TYPE_CHECKING:
    from simulator.history import History

__all__ = ["Publishing"]

TOPICS = ("t/a", "t/b", "t/c", "g/x/a", "g/x/a", "g/y/b")    # t/c is captured into the queue `w`; g/… only shares match
RETAINED = ("r/one", "r/two")
LIFETIMES_S = (0, 0, 0, 0, 0, 0, 1, 2)


class Publishing:
    """Steps of History."""

    def _new(self: History, client: MqttClient, **what: Any) -> Message:
        return self.world.books.new(client.name, namespace=client.namespace, **what)

    def _lives(self: History, client: MqttClient, message: Message) -> None:
        if client.version == 5:
            message.lifetime_s = self.chance.choice(LIFETIMES_S)

    def _publish(self: History) -> None:
        client, chance = self._some_mqtt(), self.chance
        if client is None:
            return
        for _ in range(chance.choice((1, 1, 2, 4))):
            if chance.random() < 0.25:
                topic = f"{chance.choice(RETAINED)}/{client.client_id}"
                message = self._new(client, topic=topic, qos=chance.choice((0, 1, 2)), retain=True,
                                    empty=chance.random() < 0.15)
            else:
                topic = chance.choice(TOPICS)
                places = frozenset({client.queue("w").key} if topic == "t/c" else ())
                message = self._new(client, topic=topic, qos=chance.choice((0, 1, 1, 2)), places=places)
            message.unique = message.qos == 2 and client.kept
            self._lives(client, message)
            client.publish(message, topic)

    def _publish_queue(self: History) -> None:
        client, chance = self._some_mqtt(), self.chance
        if client is None:
            return
        for _ in range(chance.choice((1, 1, 3, 6))):
            queue = chance.choice(("w", "w", "few", "s", "e"))
            user: list[tuple[str, str]] = []
            message = self._new(client, topic=f"$queue/{queue}", qos=chance.choice((1, 1, 2)),
                                places=frozenset({client.queue(queue).key}))
            message.unique = message.qos == 2 and client.kept
            if client.version == 5 and chance.random() < 0.3:
                client.sequence += 1
                user += [("producer-id", client.client_id), ("producer-sequence", str(client.sequence))]
                message.unique = True
                self.produced.append((message, f"$queue/{queue}", user))
            if client.version == 5 and queue in ("w", "few") and chance.random() < 0.2:
                delay = chance.choice((100, 700, 3000))
                user.append(("x-delay", str(delay)))
                message.not_before_ms = self.world.clock.mono_ms + delay
            if client.version == 5 and chance.random() < 0.5:
                message.partition_key = chance.choice(("a", "b", "c"))
                user.append(("partition-key", message.partition_key))
            if client.version == 5 and queue == "w" and self.priority_max:
                message.priority = chance.randint(0, self.priority_max)
                user.append(("priority", str(message.priority)))
            self._lives(client, message)
            client.publish(message, f"$queue/{queue}", user=user)

    def _repeat(self: History) -> None:
        """A producer that does not know whether it arrived publishes it again."""
        client = self._some_mqtt()
        known = [one for one in self.produced if client is not None and one[0].namespace == client.namespace]
        if client is None or client.version != 5 or not known:
            return
        message, topic, user = self.chance.choice(known)
        client.publish(message, topic, user=user)

    def _will(self: History, client: MqttClient) -> WillBook | None:
        chance = self.chance
        if chance.random() < 0.5:
            return None
        message = self._new(client, topic=chance.choice(("t/a", "t/b", "g/x/a")), qos=chance.choice((1, 2)))
        message.publisher += f" will {message.number}"      # it has no place in the order of what the client publishes
        return WillBook(message, chance.choice((0, 0, 1)) if client.version == 5 else 0)
