"""What RabbitMQ's tutorials 1 to 7 teach, with every library: who has learnt AMQP there finds it working here."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp091.clients.base import Channel, Connection, Publication

Name = Callable[[str], str]
Connect = Callable[..., Connection]


def test_1_hello_world(connect: Connect, name: Name) -> None:
    """One program sends "Hello World!" to a queue by its name, another prints it."""
    sender, receiver = connect().channel(), connect().channel()
    sender.queue_declare(name("hello"))
    receiver.queue_declare(name("hello"))
    sender.publish("", name("hello"), b"Hello World!")
    receiver.consume(name("hello"), no_ack=True)
    message = receiver.receive()
    assert (message.body, message.exchange, message.key) == (b"Hello World!", "", name("hello"))
    assert not message.redelivered
    assert receiver.queue_delete(name("hello")) == 0


def test_2_work_queue_round_robin(connect: Connect, name: Name) -> None:
    """Two workers get every second task, in the order in which they began to consume."""
    boss, first, second = connect().channel(), connect().channel(), connect().channel()
    boss.queue_declare(name("task"), auto_delete=True)
    first.consume(name("task"), no_ack=True)
    second.consume(name("task"), no_ack=True)
    for number in range(6):
        boss.publish("", name("task"), b"%d" % number)
    assert [message.body for message in first.receive_all(3)] == [b"0", b"2", b"4"]
    assert [message.body for message in second.receive_all(3)] == [b"1", b"3", b"5"]


def test_2_fair_dispatch(connect: Connect, name: Name) -> None:
    """With prefetch 1 the worker that is busy gets no further task; the other does all the rest."""
    boss, busy, quick = connect().channel(confirms=True), connect().channel(), connect().channel()
    boss.queue_declare(name("task"), auto_delete=True)
    for worker in (busy, quick):
        worker.qos(1)
        worker.consume(name("task"))
    for number in range(5):
        boss.publish("", name("task"), b"%d" % number, {"delivery_mode": 2})
    held = busy.receive()
    done = []
    for _ in range(4):
        task = quick.receive()
        done.append(task.body)
        quick.ack(task.tag)
    assert (held.body, done) == (b"0", [b"1", b"2", b"3", b"4"])
    busy.ack(held.tag)


def test_2_a_worker_that_dies_loses_nothing(connect: Connect, name: Name) -> None:
    """What a worker had not acknowledged when its connection broke goes to the other, marked as redelivered."""
    boss, other = connect().channel(), connect().channel()
    boss.queue_declare(name("task"))
    victim = connect()
    worker = victim.channel()
    worker.consume(name("task"))
    boss.publish("", name("task"), b"precious")
    assert worker.receive().body == b"precious"
    victim.dropped = True
    victim.drop()
    other.consume(name("task"))
    message = other.receive()
    assert (message.body, message.redelivered) == (b"precious", True)
    other.ack(message.tag)
    other.queue_delete(name("task"))


def test_3_publish_subscribe(connect: Connect, name: Name) -> None:
    """Everything that is published to a fanout exchange comes to each program that listens, and to none that came
    late."""
    emitter = connect().channel(confirms=True)
    emitter.exchange_declare(name("logs"), "fanout")
    emitter.publish(name("logs"), "", b"nobody hears")
    listeners = [connect().channel() for _ in range(2)]
    for listener in listeners:
        listener.exchange_declare(name("logs"), "fanout")
        queue = listener.queue_declare(exclusive=True).name
        assert queue
        listener.queue_bind(queue, name("logs"))
        listener.consume(queue, no_ack=True)
    emitter.publish(name("logs"), "ignored", b"info: hello")
    for listener in listeners:
        message = listener.receive()
        assert (message.body, message.exchange, message.key) == (b"info: hello", name("logs"), "ignored")
    emitter.exchange_delete(name("logs"))


def test_4_routing(connect: Connect, name: Name) -> None:
    """A direct exchange gives a queue what has one of the keys that it was bound with, and nothing else."""
    emitter, errors, everything = (connect().channel() for _ in range(3))
    emitter.exchange_declare(name("direct"), "direct")
    for listener, keys in ((errors, ["error"]), (everything, ["info", "warning", "error"])):
        queue = listener.queue_declare(exclusive=True).name
        for key in keys:
            listener.queue_bind(queue, name("direct"), key)
        listener.consume(queue, no_ack=True)
    for key in ("info", "error", "debug", "warning"):
        emitter.publish(name("direct"), key, key.encode())
    assert [message.body for message in everything.receive_all(3)] == [b"info", b"error", b"warning"]
    assert errors.receive().key == "error"
    emitter.publish(name("direct"), "error", b"last")
    assert errors.receive().body == b"last"
    emitter.exchange_delete(name("direct"))


TOPICS = [              # a queue's bindings, and the routing keys of what it gets
    (["#"], ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy.pink.rabbit",
             "quick.brown.fox", "orange", "quick.orange.new.rabbit", "lazy.orange.new.rabbit", ""]),
    (["*.orange.*"], ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"]),
    (["*.*.rabbit", "lazy.#"], ["quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy.pink.rabbit",
                                "lazy.orange.new.rabbit"]),
    (["*"], ["orange"]),
    (["#.rabbit"], ["quick.orange.rabbit", "lazy.pink.rabbit", "quick.orange.new.rabbit", "lazy.orange.new.rabbit"]),
    (["lazy.#.rabbit"], ["lazy.pink.rabbit", "lazy.orange.new.rabbit"]),
    (["*.#.fox"], ["quick.orange.fox", "lazy.brown.fox", "quick.brown.fox"]),
]


def test_5_topics(channel: Channel, name: Name) -> None:
    """`*` is one word of a routing key, `#` is any number of them; a message comes once however many bindings match.
    The empty routing key has no word at all."""
    keys = ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy.pink.rabbit",
            "quick.brown.fox", "orange", "quick.orange.new.rabbit", "lazy.orange.new.rabbit", ""]
    channel.exchange_declare(name("topic"), "topic", auto_delete=True)
    queues = [channel.queue_declare(exclusive=True).name for _ in TOPICS]
    for queue, (bindings, _) in zip(queues, TOPICS, strict=True):
        for binding in bindings:
            channel.queue_bind(queue, name("topic"), binding)
    for key in keys:
        channel.publish(name("topic"), key, key.encode())
    for queue, (bindings, wanted) in zip(queues, TOPICS, strict=True):
        assert channel.get_all(queue) == [key.encode() for key in wanted], bindings


def test_6_rpc(connect: Connect, name: Name) -> None:
    """A server answers to the queue in `reply_to`, the client knows the answer by `correlation_id`."""
    server, asker = connect().channel(), connect().channel()
    server.queue_declare(name("rpc"), auto_delete=True)
    server.qos(1)
    server.consume(name("rpc"))
    answers = asker.queue_declare(exclusive=True).name
    asker.consume(answers, no_ack=True)
    for number in (6, 7):
        asker.publish("", name("rpc"), b"%d" % number, {"reply_to": answers, "correlation_id": f"c{number}"})
    for _ in range(2):
        asked = server.receive()
        server.publish("", asked.properties["reply_to"], b"%d" % (int(asked.body) ** 2),
                       {"correlation_id": asked.properties["correlation_id"]})
        server.ack(asked.tag)
    assert {message.properties["correlation_id"]: message.body for message in asker.receive_all(2)} == \
        {"c6": b"36", "c7": b"49"}


def test_6_direct_reply_to(connect: Connect, name: Name) -> None:
    """The same without a queue for the answers: the client consumes from amq.rabbitmq.reply-to and names that in
    `reply_to`; the server sees an address of its own for it, and who answers needs to know nothing."""
    server, asker = connect().channel(), connect().channel()
    server.queue_declare(name("rpc"), auto_delete=True)
    server.consume(name("rpc"), no_ack=True)
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    asker.publish("", name("rpc"), b"question", {"reply_to": "amq.rabbitmq.reply-to", "correlation_id": "1"})
    asked = server.receive()
    address = asked.properties["reply_to"]
    assert address.startswith("amq.rabbitmq.reply-to.") and asked.properties["correlation_id"] == "1"
    server.publish("", address, b"answer", {"correlation_id": "1"})
    answer = asker.receive()
    assert (answer.body, answer.key, answer.properties["correlation_id"]) == (b"answer", address, "1")


def test_7_confirms_one_by_one(connection: Connection, name: Name) -> None:
    """The publisher waits for the confirm of each message; what is confirmed is in the queue."""
    channel = connection.channel(confirms=True)
    queue = channel.queue_declare(exclusive=True).name
    for number in range(10):
        assert channel.publish("", queue, b"%d" % number)
        assert channel.queue_declare(queue, passive=True).messages == number + 1


@pytest.mark.needs("publish_all")
def test_7_confirms_in_batches_and_asynchronously(connection: Connection, name: Name) -> None:
    """The publisher sends a batch and then waits for all of its confirms; order and number are right."""
    channel = connection.channel(confirms=True)
    channel.queue_declare(name("q"), durable=True)
    for batch in range(3):
        outcomes = channel.publish_all([Publication("", name("q"), b"%d" % (batch * 100 + number), {"delivery_mode": 2})
                                        for number in range(100)])
        assert outcomes == [True] * 100
    assert channel.get_all(name("q")) == [b"%d" % number for number in range(300)]
    channel.queue_delete(name("q"))
