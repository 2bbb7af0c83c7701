"""Consumers that take and do not settle: each stands still at its own limit, and the others of the queue go on."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest
from kit.amqp_wire import Refused, Wire
from kit.broker import Broker, free_port
from kit.client import Client
from kit.watch import a_handful, metric, wait_until
from oracle.mqtt import Publish

from fluxmq.model.mqtt import ReasonCode

Start = Callable[..., Broker]
TOLD = "a consumer gets nothing more until it settles what it has"


@pytest.fixture
def amqp(start_broker: Start) -> Iterator[Callable[..., tuple[Broker, Callable[[], Wire]]]]:
    """A broker with these settings, and what connects to it, with channel 1 open."""
    opened: list[Wire] = []

    def start(**settings: object) -> tuple[Broker, Callable[[], Wire]]:
        port = free_port()
        broker = start_broker({"server.amqp091.plain.addr": f"127.0.0.1:{port}"}
                              | {key.replace("__", "."): value for key, value in settings.items()})

        def connect() -> Wire:
            wire = Wire(("127.0.0.1", port))
            opened.append(wire)
            wire.login()
            wire.open_channel()
            return wire

        return broker, connect

    yield start
    for wire in opened:
        wire.drop()


def fill(wire: Wire, queue: str, first: int, count: int) -> None:
    """Confirmed."""
    wire.send_raw(b"".join(wire.encode_publish(1, "", queue, b"%d" % number, {"delivery_mode": 2})
                           for number in range(first, first + count)))
    wire.call(1, "queue.declare", queue=queue, passive=True)    # the answer comes behind all of them


def bodies(wire: Wire, count: int) -> list[int]:
    return [int(wire.expect_content(1).body) for _ in range(count)]


@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
def test_the_others_go_on_and_the_operator_is_told(amqp: Callable[..., tuple[Broker, Callable[[], Wire]]],
                                                   storage: str) -> None:
    broker, connect = amqp(queue_manager__max_unsettled_per_consumer=50, storage__type=storage,
                           server__admin_socket="admin.sock")
    greedy, publisher = connect(), connect()
    greedy.call(1, "queue.declare", queue="q", durable=True)
    greedy.call(1, "basic.consume", queue="q", consumer_tag="all-of-it")
    fill(publisher, "q", 0, 200)
    assert bodies(greedy, 50) == list(range(50))
    assert greedy.nothing_waits()

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", publisher.socket.getpeername()[1]))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    got = []
    for method, _, body in channel.consume("q"):
        got.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(got) == 150:
            fill(publisher, "q", 200, 100)
        if len(got) == 250:
            break
    assert got == list(range(50, 300))

    wait_until(lambda: TOLD in broker.stderr())
    lines = [line for line in broker.stderr().splitlines() if TOLD in line]
    assert len(lines) <= a_handful(lines)
    for said in ("queue=q", "unsettled=50", "consumer_tag=all-of-it", "client_id=", "prefetch"):
        assert said in lines[0]
    assert metric(broker, "fluxmq_queues_consumers_limited") == 1
    assert metric(broker, "fluxmq_queues_claims") >= 50

    greedy.send(1, "basic.ack", delivery_tag=50, multiple=True)
    fill(publisher, "q", 300, 120)
    connection.close()
    more = bodies(greedy, 50)
    assert greedy.nothing_waits()
    assert min(more) >= 300
    assert metric(broker, "fluxmq_queues_consumers_limited") == 1
    greedy.drop()
    wait_until(lambda: metric(broker, "fluxmq_queues_consumers_limited") == 0)


def test_one_connection_with_many_consumers_leaves_room_for_others(
        amqp: Callable[..., tuple[Broker, Callable[[], Wire]]]) -> None:
    """However many consumers it opens, and whatever each of them may have: all of its own together are at most half."""
    broker, connect = amqp(queue_manager__max_unsettled=2000)
    greedy, other, publisher = connect(), connect(), connect()
    greedy.call(1, "queue.declare", queue="q", durable=True)
    for _ in range(40):
        greedy.call(1, "basic.consume", queue="q", no_ack=False)
    fill(publisher, "q", 0, 3000)
    found = bodies(greedy, 1000)
    assert greedy.nothing_waits()
    assert metric(broker, "fluxmq_queues_claims") == 1000
    assert metric(broker, "fluxmq_queues_consumers_limited") == 40

    other.call(1, "basic.consume", queue="q")
    theirs = bodies(other, 500)
    assert other.nothing_waits()
    for _ in range(3):
        other.send(1, "basic.ack", delivery_tag=0, multiple=True)
        theirs += bodies(other, 500)
    assert found == list(range(1000)) and theirs == list(range(1000, 3000))
    other.send(1, "basic.ack", delivery_tag=0, multiple=True)
    greedy.drop()
    # What was returned counts as well, so that it gets as much at once as is free; then on as it settles.
    again: list[int] = []
    while len(again) < 1000:
        again += bodies(other, 1)
        other.send(1, "basic.ack", delivery_tag=0, multiple=True)
    assert again == list(range(1000))
    wait_until(lambda: metric(broker, "fluxmq_queues_claims") == 0)


def test_who_gets_and_gets_and_acknowledges_nothing_is_told(
        amqp: Callable[..., tuple[Broker, Callable[[], Wire]]]) -> None:
    _, connect = amqp(queue_manager__max_unsettled_per_consumer=20)
    wire = connect()
    wire.call(1, "queue.declare", queue="q")
    fill(wire, "q", 0, 30)
    assert [int(wire.get(1, "q", no_ack=False).body) for _ in range(20)] == list(range(20))   # type: ignore[union-attr]
    with pytest.raises(Refused, match="20 messages were got and not acknowledged") as refused:
        wire.get(1, "q", no_ack=False)
    assert refused.value.code == 406
    wire.open_channel()
    assert [int(wire.get(1, "q").body) for _ in range(30)] == list(range(30))      # type: ignore[union-attr]


@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
def test_mqtt_consumers_too(start_broker: Start, connect: Callable[..., Client], storage: str) -> None:
    broker = start_broker({"queue_manager.max_unsettled_per_consumer": 5, "queues": "[{name: q}]",
                           "storage.type": storage})
    greedy, other, publisher = (connect(broker, role) for role in ("greedy", "other", "pub"))
    greedy.subscribe("$queue/q", qos=1, properties=[("user_property", ("visibility-timeout", "86400"))])
    for number in range(10):
        publisher.publish("$queue/q", b"%d" % number, 1, expect=ReasonCode.SUCCESS)
    assert [int(greedy.expect(Publish).payload) for _ in range(5)] == list(range(5))
    greedy.expect_quiet()
    other.subscribe("$queue/q", qos=1)
    for number in range(5, 10):
        assert int(other.expect(Publish).payload) == number
    assert metric(broker, "fluxmq_queues_consumers_limited") == 2
    wait_until(lambda: sum(TOLD in line for line in broker.stderr().splitlines()) == 2)
