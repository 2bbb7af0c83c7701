"""The AMQP 0-9-1 codec in nanoseconds: methods and properties as values, and what reads them in place.

    pytest bench/micro/bench_amqp091.py                            measure
    pytest bench/micro/bench_amqp091.py --benchmark-disable        smoke: each body once

Values (decode_method, encode, frame, decode_properties) are what cold methods, the client and tests see. The way of a
message stands on properties_read and table_find, measured over LOOPS calls inside C.
"""
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq._core.amqp091.fields import Integer, Timestamp, decode_table, encode_table
from fluxmq._core.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicPublish,
    ConnectionStartOk,
    Method,
    QueueDeclare,
    decode_method,
)
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.testing import amqp091 as amqp091_testing

Benchmark = Callable[..., Any]
LOOPS = 1_000

METHODS: dict[str, Method] = {
    "basic.publish": BasicPublish(exchange="amq.topic", routing_key="plant.hall-03.line-7"),
    "basic.deliver": BasicDeliver(consumer_tag="ctag1.5f1a20c1e2d84b0e", delivery_tag=4711, exchange="amq.topic",
                                  routing_key="plant.hall-03.line-7"),
    "basic.ack": BasicAck(delivery_tag=4711, multiple=True),
    "queue.declare": QueueDeclare(queue="orders", durable=True, arguments={
        "x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-queue-type": "classic"}),
    "connection.start-ok": ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US",
                                             client_properties={
                                                 "product": "bench", "version": "1", "capabilities": {
                                                     "publisher_confirms": True, "basic.nack": True,
                                                     "connection.blocked": True, "consumer_cancel_notify": True}}),
}
DEATH = {"count": Integer(3, "l"), "exchange": "", "queue": "orders", "reason": "rejected",
         "routing-keys": ["orders"], "time": Timestamp(1_700_000_000)}
PROPERTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "persistent": {"delivery_mode": 2},
    "content-type-4-headers": {"content_type": "application/json", "delivery_mode": 2, "headers": {
        "device": "d-17", "site": "hamburg", "attempt": 1, "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-01"}},
    "request-with-x-death": {"content_type": "application/json", "delivery_mode": 2, "correlation_id": "c-1",
                             "reply_to": "amq.gen-1", "message_id": "m-1", "timestamp": 1_700_000_000,
                             "headers": {"x-death": [DEATH, DEATH], "x-first-death-queue": "orders"}},
}
HEADERS = PROPERTIES["content-type-4-headers"]["headers"]


@pytest.mark.parametrize("name", METHODS)
def test_decode_method(benchmark: Benchmark, name: str) -> None:
    wire = METHODS[name].encode()
    assert benchmark(decode_method, wire) == METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_frame(benchmark: Benchmark, name: str) -> None:
    assert benchmark(METHODS[name].frame, 1)[-1] == 0xCE


@pytest.mark.parametrize("name", PROPERTIES)
def test_decode_properties(benchmark: Benchmark, name: str) -> None:
    assert benchmark(decode_properties, encode_properties(PROPERTIES[name])) == PROPERTIES[name]


@pytest.mark.parametrize("name", PROPERTIES)
def test_encode_properties(benchmark: Benchmark, name: str) -> None:
    assert decode_properties(benchmark(encode_properties, PROPERTIES[name])) == PROPERTIES[name]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_read_x1000(benchmark: Benchmark, name: str) -> None:
    assert benchmark(amqp091_testing.read_properties_many, encode_properties(PROPERTIES[name]), LOOPS) == 0


def test_table_find_the_last_of_4_x1000(benchmark: Benchmark) -> None:
    assert benchmark(amqp091_testing.find_many, encode_table(HEADERS), b"trace", LOOPS) == LOOPS


def test_decode_table_of_4(benchmark: Benchmark) -> None:
    assert benchmark(decode_table, encode_table(HEADERS)) == HEADERS
