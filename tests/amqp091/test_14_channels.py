"""How programs number, close and reopen channels: as each library does it by itself."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp091.clients.aio import AioConnection
from amqp091.clients.base import AmqpError, Connection, Publication


def test_more_channels_than_channel_max_one_after_the_other(connection: Connection) -> None:
    """aiormq never uses a number twice; channel_max, 2047, is about how many are open. Others need not go so far."""
    kept = connection.channel()
    for _ in range(2060 if isinstance(connection, AioConnection) else 100):
        connection.channel().close()
    assert kept.queue_declare(exclusive=True).messages == 0


def test_publish_and_close_in_one_breath(connection: Connection, name: Callable[[str], str]) -> None:
    """What is not durable, or not routable, is confirmed at once; no confirm comes behind channel.close-ok, which would
    end the whole connection of amqplib. The next channel may have the number of the last."""
    kept = connection.channel()
    kept.queue_declare(name("q"), exclusive=True)
    for _ in range(20):
        connection.channel(confirms=True).publish_and_close(
            [Publication("", name("q") if number % 2 else name("nowhere"), b"x") for number in range(10)])
    assert kept.queue_declare(name("q"), exclusive=True).messages == 100


def test_a_channel_that_the_broker_closes_behind_publishes(connection: Connection, name: Callable[[str], str]) -> None:
    """A new channel works at once, and what was published is there."""
    for _ in range(5):
        channel = connection.channel(confirms=True)
        channel.queue_declare(name("q"), durable=True)
        for _ in range(10):
            assert channel.publish("", name("q"), b"x")
        with pytest.raises(AmqpError):
            channel.queue_purge(name("missing"))
    last = connection.channel()
    assert last.queue_declare(name("q"), durable=True).messages == 50
    last.queue_delete(name("q"))


def test_a_connection_that_is_closed_behind_publishes(connect: Callable[..., Connection], connection: Connection,
                                                      name: Callable[[str], str]) -> None:
    """connection.close with a channel open that publishes without confirms: all has arrived when close-ok comes."""
    kept = connection.channel()
    kept.queue_declare(name("q"), durable=True)
    other = connect()
    channel = other.channel()
    for _ in range(50):
        channel.publish("", name("q"), b"x")
    other.close()
    assert kept.queue_declare(name("q"), durable=True).messages == 50
    kept.queue_delete(name("q"))
