"""A queue that is made anew in place while the node runs (engine/queues/recovery/snapshot.rebuild): its clients stay,
and have everything again that they had not settled."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.client import Client
from kit.node import Node
from oracle.mqtt import Puback, Publish

from fluxmq._core.errors import CorruptError
from fluxmq.engine.queues.recovery.snapshot import digest, read_snapshot, rebuild, snapshot

PERSISTENT = {"delivery_mode": 2}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0",
                          "queues": '[{"name": "q", "retry": {"max_retries": 0}}, {"name": "other"},'
                                    ' {"name": "s", "type": "stream"}]'})
    yield one
    one.stop()


def of(server: Any, name: bytes) -> tuple[Any, Any]:
    return server.queues.manager, server.queues.manager.queues[b"/", name]


def take_snapshot(node: Node, name: bytes = b"q") -> bytes:
    return node.call(lambda server: snapshot(*of(server, name)))


def make_anew(node: Node, raw: bytes, name: bytes = b"q") -> None:
    node.call(lambda server: rebuild(*of(server, name), read_snapshot(raw)))


def mqtt(node: Node) -> Client:
    client = Client(node.address, 5)
    client.connect(clean_start=True)
    return client


def put(client: Client, queue: str, *payloads: bytes) -> None:
    for payload in payloads:
        client.publish(f"$queue/{queue}", payload, 1, expect=0)


def test_an_mqtt_consumer_has_again_what_it_had_not_settled(node: Node) -> None:
    consumer, producer = mqtt(node), mqtt(node)
    consumer.subscribe("$queue/q", qos=1)
    put(producer, "q", b"1", b"2", b"3")
    first = consumer.expect(Publish, payload=b"1")
    consumer.send(Puback(packet_id=first.packet_id))
    in_hand = [consumer.expect(Publish, payload=payload) for payload in (b"2", b"3")]
    consumer.expect_quiet()
    before = node.call(lambda server: digest(*of(server, b"q")))
    raw = take_snapshot(node)
    make_anew(node, raw)
    again = [consumer.expect(Publish, payload=payload) for payload in (b"2", b"3")]
    for packet in in_hand:          # what it still says of the first ones changes nothing
        consumer.send(Puback(packet_id=packet.packet_id))
    consumer.expect_quiet()
    assert node.call(lambda server: of(server, b"q")[1].queue.waiting) == 2
    for packet in again:
        consumer.send(Puback(packet_id=packet.packet_id))
    put(producer, "q", b"4")
    consumer.receive(payload=b"4")
    consumer.expect_quiet()
    assert node.call(lambda server: of(server, b"q")[1].queue.waiting) == 0
    assert before != node.call(lambda server: digest(*of(server, b"q")))


def test_an_amqp_consumer_and_bindings_stay(node: Node) -> None:
    wire, producer = Wire(node.listens("amqp091.plain")).login(), mqtt(node)
    wire.open_channel(1)
    wire.call(1, "queue.declare", queue="a", durable=True)
    wire.call(1, "queue.bind", queue="a", exchange="amq.topic", routing_key="x.#")
    wire.call(1, "basic.qos", prefetch_count=2)
    wire.call(1, "basic.consume", queue="a", consumer_tag="c")
    for body in (b"1", b"2", b"3"):
        wire.publish(1, "", "a", body, PERSISTENT)
    tags = [wire.expect_content(1).arguments["delivery_tag"] for _ in range(2)]
    assert wire.nothing_waits()
    raw = take_snapshot(node, b"a")
    make_anew(node, raw, b"a")
    wire.send(1, "basic.ack", delivery_tag=tags[1], multiple=True)
    found = []
    for _ in range(3):
        content = wire.expect_content(1)
        found.append((content.body, content.arguments["redelivered"]))
        wire.send(1, "basic.ack", delivery_tag=content.arguments["delivery_tag"])
    assert sorted(found) == [(b"1", True), (b"2", True), (b"3", False)]
    producer.publish("x/y", b"bound", 1)
    assert wire.expect_content(1).body == b"bound"
    wire.close()


def test_others_go_on_meanwhile(node: Node) -> None:
    consumer, other, producer = mqtt(node), mqtt(node), mqtt(node)
    consumer.subscribe("$queue/q", qos=1)
    other.subscribe("$queue/other", qos=1)
    put(producer, "q", b"1", b"2")
    consumer.receive(payload=b"1")
    consumer.expect(Publish, payload=b"2")
    put(producer, "other", b"o1")
    held = other.expect(Publish, payload=b"o1")
    raw = take_snapshot(node)
    put(producer, "q", b"3")        # came later: the older state knows nothing of it
    consumer.expect(Publish, payload=b"3")
    make_anew(node, raw)
    consumer.receive(payload=b"2")
    consumer.expect_quiet()
    other.send(Puback(packet_id=held.packet_id))
    put(producer, "other", b"o2")
    other.receive(payload=b"o2")


def test_a_stream_s_reader_goes_on(node: Node) -> None:
    reader, producer = mqtt(node), mqtt(node)
    reader.subscribe("$queue/s", qos=1)
    put(producer, "s", b"1", b"2")
    for payload in (b"1", b"2"):
        reader.receive(payload=payload)
    make_anew(node, take_snapshot(node, b"s"), b"s")
    put(producer, "s", b"3")
    reader.receive(payload=b"3")
    reader.expect_quiet()


@pytest.mark.parametrize("raw", [b"", b"\x90", b"garbage", bytes(100)])
def test_what_is_no_snapshot_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError, match="no snapshot"):
        read_snapshot(raw)


def test_a_snapshot_of_another_queue_is_refused_and_nothing_changes(node: Node) -> None:
    producer = mqtt(node)
    put(producer, "q", b"1")
    before = node.call(lambda server: digest(*of(server, b"q")))
    with pytest.raises(CorruptError, match="the snapshot is of queue"):
        make_anew(node, take_snapshot(node, b"other"))
    assert node.call(lambda server: digest(*of(server, b"q"))) == before
