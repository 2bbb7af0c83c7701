"""Dead letters, with every library: where they go, and what x-death says of how they came there."""
from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from amqp091.clients.base import Channel, Connection, Message

Name = Callable[[str], str]


def dying(channel: Channel, name: Name, key: str | None = None, **arguments: Any) -> tuple[str, str]:
    """A queue whose dead letters go by a direct exchange to another: (its name, the other's)."""
    arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.exchange_declare(name("dlx"), "topic", auto_delete=True)
    dead = channel.queue_declare(exclusive=True).name
    channel.queue_bind(dead, name("dlx"), "#")
    arguments["x-dead-letter-exchange"] = name("dlx")
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    return channel.queue_declare(exclusive=True, arguments=arguments).name, dead


def receive_dead(channel: Channel, queue: str) -> Message:
    channel.consume(queue, no_ack=True)
    return channel.receive()


def text(value: Any) -> Any:
    """As text: some libraries give long strings as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [text(item) for item in value]
    return {text(key): text(item) for key, item in value.items()} if isinstance(value, dict) else value


def deaths(message: Message) -> list[dict[str, Any]]:
    """x-death without its times, which must be there."""
    found = text(message.headers["x-death"])
    for death in found:
        time = death.pop("time")
        # each library has its own idea of a timestamp; amqplib makes a table of it
        assert isinstance(time, datetime | int | dict), time
    return found


def test_rejected(channel: Channel, name: Name) -> None:
    """A message that its consumer rejects for good goes to the dead-letter exchange, with its own routing key."""
    queue, dead = dying(channel, name)
    channel.publish("", queue, b"bad", {"message_id": "m", "headers": {"mine": "kept"}})
    held = channel.get(queue, no_ack=False)
    assert held is not None
    channel.reject(held.tag, requeue=False)
    message = receive_dead(channel, dead)
    assert (message.body, message.exchange, message.key, message.redelivered) == (b"bad", name("dlx"), queue, False)
    assert message.properties["message_id"] == "m" and text(message.headers)["mine"] == "kept"
    assert deaths(message) == [{"reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue],
                                "count": 1}]
    headers = text(message.headers)
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"], headers["x-first-death-exchange"]) == \
        ("rejected", queue, "")


@pytest.mark.needs("nack")
def test_nacked(channel: Channel, name: Name) -> None:
    """nack without requeue is a rejection too, of many at once in their order."""
    queue, dead = dying(channel, name)
    for number in range(3):
        channel.publish("", queue, b"%d" % number)
        assert channel.get(queue, no_ack=False) is not None
    channel.nack(3, multiple=True, requeue=False)
    channel.consume(dead, no_ack=True)
    messages = channel.receive_all(3)
    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    assert all(deaths(message)[0]["reason"] == "rejected" for message in messages)


def test_with_a_routing_key_of_the_queue(channel: Channel, name: Name) -> None:
    """`x-dead-letter-routing-key` takes the place of the message's; x-death still has the first."""
    queue, dead = dying(channel, name, key="dead.letters")
    channel.exchange_declare(name("x"), "direct", auto_delete=True)
    channel.queue_bind(queue, name("x"), "alive")
    channel.publish(name("x"), "alive", b"x")
    held = channel.get(queue, no_ack=False)
    assert held is not None
    channel.reject(held.tag, requeue=False)
    message = receive_dead(channel, dead)
    assert message.key == "dead.letters"
    assert deaths(message) == [{"reason": "rejected", "queue": queue, "exchange": name("x"), "routing-keys": ["alive"],
                                "count": 1}]


def test_expired_in_the_queue(channel: Channel, name: Name) -> None:
    """A message whose time in the queue is over goes there by itself, also when nobody consumes."""
    queue, dead = dying(channel, name, x_message_ttl=30)
    channel.publish("", queue, b"late")
    message = receive_dead(channel, dead)
    assert message.body == b"late"
    assert deaths(message) == [{"reason": "expired", "queue": queue, "exchange": "", "routing-keys": [queue],
                                "count": 1}]


def test_expired_though_it_claims_to_have_died_without_end(channel: Channel, name: Name) -> None:
    """What a publisher wrote into x-death keeps no message alive, and no clock from going on."""
    queue, dead = dying(channel, name, x_message_ttl=30)
    channel.publish("", queue, b"late", {"headers": {"x-death": [{"queue": queue, "reason": "expired",
                                                                  "count": (1 << 63) - 1}]}})
    assert receive_dead(channel, dead).body == b"late"
    channel.publish("", queue, b"the next")
    assert receive_dead(channel, dead).body == b"the next"


def test_expired_by_its_own_expiration(channel: Channel, name: Name) -> None:
    """A message with `expiration` loses it when it dies, so that it does not expire again; x-death has what it was."""
    queue, dead = dying(channel, name)
    channel.publish("", queue, b"late", {"expiration": "30"})
    message = receive_dead(channel, dead)
    assert "expiration" not in message.properties
    assert deaths(message) == [{"reason": "expired", "queue": queue, "exchange": "", "routing-keys": [queue],
                                "count": 1, "original-expiration": "30"}]


def test_dropped_for_length(channel: Channel, name: Name) -> None:
    """What a full queue drops at its head are dead letters too."""
    queue, dead = dying(channel, name, x_max_length=1)
    for number in range(3):
        channel.publish("", queue, b"%d" % number)
    channel.consume(dead, no_ack=True)
    messages = channel.receive_all(2)
    assert [message.body for message in messages] == [b"0", b"1"]
    assert deaths(messages[0]) == [{"reason": "maxlen", "queue": queue, "exchange": "", "routing-keys": [queue],
                                    "count": 1}]


def test_refused_for_length(connection: Connection, name: Name) -> None:
    """`reject-publish` refuses and that is all; `reject-publish-dlx` makes a dead letter of what it refuses."""
    channel = connection.channel(confirms=True)
    plain, dead = dying(channel, name, x_max_length=1, x_overflow="reject-publish")
    assert channel.publish("", plain, b"fits") and not channel.publish("", plain, b"does not")
    other = channel.queue_declare(exclusive=True, arguments={
        "x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": name("dlx")}).name
    assert channel.publish("", other, b"fits") and not channel.publish("", other, b"dies")
    message = receive_dead(channel, dead)
    assert message.body == b"dies" and deaths(message)[0]["reason"] == "maxlen"


def test_to_a_queue_by_the_default_exchange(channel: Channel, name: Name) -> None:
    """The usual way: dead-letter exchange "", routing key the name of another queue."""
    dead = channel.queue_declare(exclusive=True).name
    queue = channel.queue_declare(exclusive=True, arguments={
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 0}).name
    channel.publish("", queue, b"x")
    message = receive_dead(channel, dead)
    assert (message.body, message.exchange, message.key) == (b"x", "", dead)


def test_retry_by_a_waiting_room(channel: Channel, name: Name) -> None:
    """The well-known retry: work rejects into a queue with a time to live, which dead-letters back into work. x-death
    counts, one entry for each queue and reason, the latest first; the first death stays what it was."""
    work, wait = name("work"), name("wait")
    channel.queue_declare(work, exclusive=True, arguments={"x-dead-letter-exchange": "",
                                                           "x-dead-letter-routing-key": wait})
    channel.queue_declare(wait, exclusive=True, arguments={"x-dead-letter-exchange": "",
                                                           "x-dead-letter-routing-key": work, "x-message-ttl": 20})
    channel.publish("", work, b"try me")
    channel.consume(work)
    for count in range(4):
        message = channel.receive()
        assert message.redelivered is False
        if count:
            assert deaths(message) == [
                {"reason": "expired", "queue": wait, "exchange": "", "routing-keys": [wait], "count": count},
                {"reason": "rejected", "queue": work, "exchange": "", "routing-keys": [work], "count": count}]
            headers = text(message.headers)
            assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == ("rejected", work)
        channel.reject(message.tag, requeue=False)


def test_a_cycle_without_a_rejection_ends(connection: Connection, name: Name) -> None:
    """A message that would go round for ever by expiring alone is dropped when it is back."""
    channel = connection.channel(confirms=True)
    witness = channel.queue_declare(exclusive=True).name
    channel.exchange_declare(name("round"), "fanout", auto_delete=True)
    queue = channel.queue_declare(exclusive=True, arguments={"x-dead-letter-exchange": name("round"),
                                                             "x-message-ttl": 20}).name
    channel.queue_bind(queue, name("round"))
    channel.queue_bind(witness, name("round"))
    channel.publish("", queue, b"dizzy")
    message = receive_dead(channel, witness)
    assert deaths(message)[0]["count"] == 1
    assert channel.queue_declare(queue, passive=True).messages == 0
    channel.publish(name("round"), "", b"next")
    assert channel.receive().body == b"next"


def test_without_the_exchange_they_are_dropped(connection: Connection, name: Name) -> None:
    """A dead-letter exchange need not exist; what goes to one that does not is gone, and nothing else happens."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True, arguments={"x-dead-letter-exchange": name("missing")}).name
    channel.publish("", queue, b"x")
    held = channel.get(queue, no_ack=False)
    assert held is not None
    channel.reject(held.tag, requeue=False)
    assert channel.queue_declare(queue, passive=True).messages == 0


def test_neither_purging_nor_deleting_makes_dead_letters(connection: Connection, name: Name) -> None:
    """Who purges or deletes a queue means it."""
    channel = connection.channel(confirms=True)
    queue, dead = dying(channel, name)
    channel.publish("", queue, b"purged")
    assert channel.queue_purge(queue) == 1
    channel.publish("", queue, b"deleted")
    assert channel.queue_delete(queue) == 1
    channel.publish(name("dlx"), "k", b"marker")
    assert channel.get_all(dead) == [b"marker"]
