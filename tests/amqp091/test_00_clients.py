"""What every scenario stands on: the libraries connect, say what they were told, and hear why they are refused."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from amqp091.clients.base import AmqpError, Channel, Connection, Where


def test_it_connects_as_guest_and_sees_what_the_broker_can(connection: Connection) -> None:
    """A user connects without configuring anything; the library finds every extension that RabbitMQ announces."""
    for name in ("publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
                 "connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos",
                 "direct_reply_to"):
        assert connection.capabilities[name] is True, name


def test_an_unknown_virtual_host_is_refused(connect: Callable[..., Connection], where: Where) -> None:
    """A user who mistypes the virtual host is told so."""
    with pytest.raises(AmqpError) as refused:
        connect(replace(where, vhost="nowhere"))
    # aio-pika and amqplib do not say what the broker said
    assert refused.value.code in (530, 0)


def test_errors_have_the_code_and_the_text_of_the_broker(channel: Channel, name: Callable[[str], str]) -> None:
    """A user who asks for a queue that is not there reads NOT_FOUND and the name of the queue."""
    with pytest.raises(AmqpError) as refused:
        channel.queue_declare(name("q"), passive=True)
    assert refused.value.code == 404
    assert f"no queue '{name('q')}' in vhost '/'" in refused.value.text


def test_a_connection_has_many_channels(connection: Connection, name: Callable[[str], str]) -> None:
    """Channels of one connection work side by side, and the end of one is not the end of another."""
    first, second = connection.channel(), connection.channel()
    first.queue_declare(name("q"), exclusive=True)
    second.publish("", name("q"), b"from the second")
    second.close()
    first.consume(name("q"), no_ack=True)
    assert first.receive().body == b"from the second"


def test_a_channel_that_is_closed_by_the_broker_leaves_the_connection(connection: Connection,
                                                                      name: Callable[[str], str]) -> None:
    """After an error on a channel, a user opens another on the same connection."""
    with pytest.raises(AmqpError):
        connection.channel().queue_purge(name("missing"))
    assert connection.channel().queue_declare(name("q"), exclusive=True).messages == 0
