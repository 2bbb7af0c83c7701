"""Publishing, with every library: what is returned, confirmed, refused, and where it goes."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp091.clients.base import AmqpError, Channel, Connection, Publication
from kit.watch import wait_until

Name = Callable[[str], str]


def test_mandatory_without_a_queue_comes_back(connection: Connection, name: Name) -> None:
    """Who publishes with `mandatory` to where no queue is gets the message back: 312 NO_ROUTE, and its confirm is an
    ack."""
    channel = connection.channel(confirms=True)
    channel.exchange_declare(name("x"), "direct", auto_delete=True)
    assert channel.publish(name("x"), "nobody", b"come back", {"message_id": "m"}, mandatory=True) is True
    returned = channel.returned()
    assert returned.code == 312 and "NO_ROUTE" in returned.text
    assert channel.publish("", name("missing"), b"and from the default exchange", mandatory=True) is True
    assert channel.returned().code == 312


@pytest.mark.needs("returned_body")
def test_what_is_returned_is_what_was_sent(connection: Connection, client, name: Name) -> None:
    """The returned message has its exchange, routing key and body; also without confirms (where aio-pika drops it)."""
    channel = connection.channel(confirms=client.name == "aiopika")
    channel.exchange_declare(name("x"), "topic", auto_delete=True)
    channel.publish(name("x"), "a.b", b"body", mandatory=True)
    returned = channel.returned()
    assert (returned.exchange, returned.key, returned.body) == (name("x"), "a.b", b"body")


def test_mandatory_with_a_queue_does_not(connection: Connection, name: Name) -> None:
    """With a queue that takes it, nothing comes back."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True).name
    assert channel.publish("", queue, b"kept", mandatory=True)
    assert channel.publish("", name("missing"), b"marker", mandatory=True)
    returned = channel.returned()
    assert returned.body in (b"marker", b"")        # one library does not show it
    assert channel.get_all(queue) == [b"kept"]


def test_what_goes_nowhere_is_confirmed(connection: Connection, name: Name) -> None:
    """Without `mandatory`, a message that no queue wants is dropped, and confirmed as if it were not."""
    assert connection.channel(confirms=True).publish("", name("missing"), b"gone") is True


def test_an_exchange_that_is_not_there_closes_the_channel_alone(connection: Connection, name: Name) -> None:
    """Publishing to an exchange that does not exist costs the channel (404), not the connection."""
    channel, other = connection.channel(), connection.channel()
    channel.publish(name("missing"), "k", b"x")
    refused = channel.closed()
    assert refused.code == 404 and f"no exchange '{name('missing')}' in vhost '/'" in refused.text
    assert other.queue_declare(exclusive=True).messages == 0


@pytest.mark.needs("internal")
def test_an_internal_exchange_takes_no_publish(connection: Connection, name: Name) -> None:
    """An `internal` exchange gets messages from other exchanges only: 403 for who publishes to it."""
    channel, other = connection.channel(), connection.channel()
    channel.exchange_declare(name("inner"), "fanout", internal=True)
    channel.exchange_declare(name("outer"), "fanout", auto_delete=True)
    channel.exchange_bind(name("inner"), name("outer"))
    queue = channel.queue_declare(exclusive=True).name
    channel.queue_bind(queue, name("inner"))
    channel.publish(name("outer"), "k", b"by way of the outer one")
    assert channel.get_all(queue) == [b"by way of the outer one"]
    channel.publish(name("inner"), "k", b"x")
    assert channel.closed().code == 403
    other.exchange_delete(name("inner"))


@pytest.mark.parametrize("size", [0, 1, 131072 - 9, 131072 - 8, 131072 - 7, 2 * (131072 - 8), 10_000_000])
def test_bodies_of_every_size(connection: Connection, name: Name, size: int) -> None:
    """Empty, of one byte, at the edges of a frame, and of ten megabytes: the body comes as it was sent."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True).name
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert channel.publish("", queue, body)
    message = channel.get(queue)
    assert message is not None and message.body == body


def test_reject_publish_is_a_nack(connection: Connection, name: Name) -> None:
    """A queue that is full and refuses (`x-overflow: reject-publish`) makes the confirm a nack; the rest stays as it
    is."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}).name
    assert [channel.publish("", queue, body) for body in (b"1", b"2")] == [True, True]
    assert channel.publish("", queue, b"3") is False
    assert channel.get(queue).body == b"1"      # type: ignore[union-attr]
    assert channel.publish("", queue, b"4") is True
    assert channel.get_all(queue) == [b"2", b"4"]


@pytest.mark.needs("publish_all")
def test_confirms_of_many_queues(connection: Connection, name: Name) -> None:
    """Acks and nacks belong to their messages, however they are mixed."""
    channel = connection.channel(confirms=True)
    channel.queue_declare(name("full"), arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_declare(name("open"))
    channel.publish("", name("full"), b"first")
    outcomes = channel.publish_all([Publication("", name("full" if number % 3 == 0 else "open"), b"%d" % number)
                                    for number in range(30)])
    assert outcomes == [number % 3 != 0 for number in range(30)]
    assert channel.queue_delete(name("open")) == 20
    assert channel.queue_delete(name("full")) == 1


def test_max_length_drops_the_oldest(channel: Channel, name: Name) -> None:
    """A queue with `x-max-length` keeps the newest, when it says nothing else."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-max-length": 3}).name
    for number in range(6):
        channel.publish("", queue, b"%d" % number)
    assert channel.get_all(queue) == [b"3", b"4", b"5"]


def test_max_length_counts_what_is_ready(channel: Channel, name: Name) -> None:
    """Messages that a consumer holds do not count for `x-max-length`."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-max-length": 2}).name
    for number in range(2):
        channel.publish("", queue, b"%d" % number)
    channel.consume(queue)
    held = channel.receive_all(2)
    channel.qos(1)
    for number in range(2, 4):
        channel.publish("", queue, b"%d" % number)
    assert [message.body for message in held + channel.receive_all(2)] == [b"0", b"1", b"2", b"3"]


def test_max_length_bytes(channel: Channel, name: Name) -> None:
    """`x-max-length-bytes` counts bodies."""
    queue = channel.queue_declare(exclusive=True, arguments={"x-max-length-bytes": 10}).name
    for number in range(4):
        channel.publish("", queue, b"%d234" % number)
    assert channel.get_all(queue) == [b"2234", b"3234"]


def test_copies_by_header(channel: Channel, name: Name) -> None:
    """`CC` and `BCC` are further routing keys; receivers do not see BCC. A queue met twice has the message once."""
    queues = [channel.queue_declare(exclusive=True).name for _ in range(3)]
    channel.publish("", queues[0], b"x", {"headers": {"CC": [queues[1], queues[0]], "BCC": [queues[2]], "k": 1}})
    for queue in queues:
        message = channel.get(queue)
        assert message is not None and channel.get(queue) is None
        assert message.headers == {"CC": [queues[1], queues[0]], "k": 1}
        assert message.key == queues[0]


@pytest.mark.needs("raw_expiration")
def test_an_expiration_that_is_no_number_is_refused(connection: Connection, name: Name) -> None:
    """`expiration` is milliseconds in digits; anything else closes the channel with 406, when it is published."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).name
    channel.publish("", queue, b"x", {"expiration": "soon"})
    assert channel.closed().code == 406
    assert connection.channel().queue_declare(queue, passive=True).messages == 0


def test_a_false_user_id_is_refused(connection: Connection, name: Name) -> None:
    """`user_id` is who is connected, or 406; so a receiver can trust it."""
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).name
    channel.publish("", queue, b"x", {"user_id": "guest"})
    message = channel.get(queue)
    assert message is not None and message.properties["user_id"] == "guest"
    channel.publish("", queue, b"x", {"user_id": "somebody"})
    assert channel.closed().code == 406


def test_publishing_from_two_channels_keeps_the_order_of_each(connection: Connection, name: Name) -> None:
    """What one channel publishes stays in order, however the two are mixed."""
    channels = [connection.channel(confirms=True) for _ in range(2)]
    queue = channels[0].queue_declare(exclusive=True).name
    for number in range(20):
        channels[number % 2].publish("", queue, b"%d" % number)
    wait_until(lambda: channels[0].queue_declare(queue, passive=True).messages == 20)
    found = [int(body) for body in channels[0].get_all(queue)]
    assert [number for number in found if number % 2 == 0] == list(range(0, 20, 2))
    assert [number for number in found if number % 2 == 1] == list(range(1, 20, 2))


@pytest.mark.needs("mode_switch")
def test_confirms_and_transactions_exclude_each_other(connection: Connection, name: Name) -> None:
    """A channel with confirms cannot become transactional: 406."""
    channel = connection.channel(confirms=True)
    with pytest.raises(AmqpError) as refused:
        channel.tx_select()
    assert refused.value.code == 406
