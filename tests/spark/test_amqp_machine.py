"""The AMQP client of the replay without a socket: frames in and out, and what a channel remembers of its deliveries."""
from __future__ import annotations

from typing import Any

import pytest
from oracle.amqp091 import (
    BODY,
    HEADER,
    METHOD,
    Frame,
    decode_header,
    decode_method,
    encode_frame,
    encode_header,
    encode_method,
)

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.client.amqp091_machine import AmqpLogin, AmqpMachine, AmqpRefused
from fluxmq._core.errors import ProtocolError
from fluxmq.spark.player.amqp_channel import AmqpChannel
from fluxmq.spark.player.amqp_operations import copy_of_key, copy_of_queue, own_names, read_method, wire_content


class Heard:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *what: self.told.append((name, *what))


def said(machine: AmqpMachine) -> list[Frame]:
    """The frames that it wrote."""
    data, machine.out = bytes(machine.out), bytearray()
    frames = []
    while data:
        if data[:4] == b"AMQP":
            data = data[8:]
            continue
        size = int.from_bytes(data[3:7], "big")
        frames.append(Frame(data[0], int.from_bytes(data[1:3], "big"), data[7:7 + size]))
        data = data[8 + size:]
    return frames


def names(machine: AmqpMachine) -> list[str]:
    return [decode_method(frame.payload)[0] for frame in said(machine)]


def method(channel: int, name: str, **arguments: Any) -> bytes:
    return encode_frame(METHOD, channel, encode_method(name, **arguments))


def logged_in(frame_max: int = 4096) -> tuple[AmqpMachine, Heard]:
    heard = Heard()
    machine = AmqpMachine(AmqpLogin("u", "p", "/v", "test", "me"), heard)
    machine.feed(method(0, "connection.start", version_major=0, version_minor=9, mechanisms="AMQPLAIN PLAIN",
                        locales="en_US"))
    machine.feed(method(0, "connection.tune", channel_max=10, frame_max=frame_max, heartbeat=60))
    machine.feed(method(0, "connection.open-ok"))
    return machine, heard


def test_it_logs_in() -> None:
    machine, _ = logged_in()
    found = [decode_method(frame.payload) for frame in said(machine)]
    assert [name for name, _ in found] == ["connection.start-ok", "connection.tune-ok", "connection.open"]
    assert found[0][1]["response"] == b"\0u\0p" and found[2][1]["virtual_host"] == "/v"
    assert found[1][1] == {"channel_max": 10, "frame_max": 4096, "heartbeat": 0}
    assert machine.open


def test_a_body_is_cut_and_put_together_whatever_the_pieces() -> None:
    machine, heard = logged_in()
    said(machine)
    body = bytes(range(256)) * 40
    machine.publish(3, m.BasicPublish(exchange="e", routing_key="k"), b"\0\0", body)
    frames = said(machine)
    assert [frame.kind for frame in frames] == [METHOD, HEADER, BODY, BODY, BODY]
    assert decode_header(frames[1].payload)[0] == len(body)
    assert all(len(frame.payload) <= 4088 for frame in frames)
    assert b"".join(frame.payload for frame in frames[2:]) == body
    data = method(3, "basic.deliver", consumer_tag="c", delivery_tag=7, exchange="e", routing_key="k")
    data += encode_frame(HEADER, 3, encode_header(len(body), {}))
    data += b"".join(encode_frame(BODY, 3, body[at:at + 3000]) for at in range(0, len(body), 3000))
    for at in range(0, len(data), 777):
        machine.feed(data[at:at + 777])
    ((name, message),) = heard.told
    assert name == "on_delivery" and (message.channel, message.method.delivery_tag) == (3, 7) and message.body == body


def test_answers_come_in_order_and_a_closed_channel_says_why() -> None:
    machine, heard = logged_in()
    said(machine)
    got: list[tuple[Any, Any]] = []
    for name in ("a", "b", "c"):
        machine.call(1, m.QueueDeclare(queue=name), lambda answer, why: got.append((answer, why)))
    machine.feed(method(1, "queue.declare-ok", queue="a", message_count=4))
    machine.feed(method(1, "channel.close", reply_code=406, reply_text="no", class_id=50, method_id=10))
    assert got[0][0].message_count == 4
    assert [(answer, why.code, str(why)) for answer, why in got[1:]] == [(None, 406, "no")] * 2
    assert names(machine)[-1] == "channel.close-ok"
    assert heard.told[-1][:2] == ("on_channel_closed", 1)


def test_the_end_of_the_connection_is_told_to_all_that_wait() -> None:
    machine, heard = logged_in()
    got: list[AmqpRefused | None] = []
    machine.call(1, m.TxSelect(), lambda _answer, why: got.append(why))
    machine.feed(method(0, "connection.close", reply_code=320, reply_text="bye", class_id=0, method_id=0))
    assert [why.code for why in got if why] == [320] and heard.told[-1][0] == "on_closed"
    assert machine.closed and not machine.open


@pytest.mark.parametrize("data", [b"AMQP\0\0\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n",
                                  encode_frame(METHOD, 1, encode_method("tx.select-ok")),
                                  encode_frame(BODY, 1, b"x")])
def test_what_is_no_amqp_is_refused(data: bytes) -> None:
    machine, _ = logged_in()
    with pytest.raises(ProtocolError):
        machine.feed(data)


def tags(methods: list[Any]) -> list[tuple[str, int, bool]]:
    return [(one.name, one.delivery_tag, getattr(one, "multiple", False)) for one in methods]


def test_acknowledgements_find_their_delivery_by_rank() -> None:
    channel = AmqpChannel(1, known=True)
    assert not channel.arrived(1, True) and not channel.arrived(2, True) and not channel.arrived(3, True)
    assert tags(channel.settle(2, "basic.reject", {"requeue": False})) == [("basic.reject", 2, False)]
    assert channel.settle(2, "basic.ack", {}) == []                     # it has been
    assert channel.settle(5, "basic.nack", {"requeue": True}) == []     # it has not come
    assert tags(channel.settle(4, "basic.ack", {"multiple": True})) == [("basic.ack", 3, True)]
    assert tags(channel.arrived(4, True)) == [("basic.ack", 4, False)]
    (late,) = channel.arrived(5, True)
    assert isinstance(late, m.BasicNack) and late.delivery_tag == 5 and late.requeue
    assert channel.arrived(6, False) == [] and channel.arrived(7, True) == []
    assert tags(channel.settle(0, "basic.ack", {"multiple": True})) == [("basic.ack", 7, False)]
    assert channel.arrived(8, True) == [] and tags(channel.release()) == [("basic.ack", 8, False)]
    assert tags(channel.arrived(9, True)) == [("basic.ack", 9, False)] and not channel.promised


def test_a_channel_in_place_of_another_counts_on() -> None:
    channel = AmqpChannel(1, known=True)
    channel.arrived(1, True)
    channel.setup["qos"] = m.BasicQos(prefetch_count=2)
    assert list(channel.reopened()) == ["qos"] and not channel.setup
    assert channel.settle(1, "basic.ack", {}) == []                     # the server has it back
    assert channel.arrived(1, True) == []
    assert tags(channel.settle(2, "basic.ack", {})) == [("basic.ack", 1, False)]


def test_confirms_are_of_one_or_of_all_before() -> None:
    channel = AmqpChannel(1, known=True)
    channel.pending = {1: 10, 2: 11, 3: 12, 4: 13}
    channel.returned = {11: 312}
    assert channel.confirmed(3, False, 128) == [(3, 128)]
    assert channel.confirmed(2, True, 0) == [(1, 0), (2, 312)]
    assert channel.confirmed(0, True, 0) == [(4, 0)] and not channel.pending and channel.confirmed(9, False, 0) == []


def test_names_of_copies() -> None:
    assert [copy_of_queue(name, 2) for name in ("q", "", "amq.gen-x", "amq.rabbitmq.reply-to")] == [
        "~2.q", "", "~2.gen-x", "amq.rabbitmq.reply-to"]
    assert [copy_of_key(exchange, "k", 1) for exchange in ("", "own", "amq.topic", "amq.fanout")] == [
        "~1.k", "k", "~1.k", "k"]
    made = read_method("queue.declare", '{"queue": "q", "durable": true, "no_wait": true, "arguments": '
                       '{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 5}}', 1)
    assert (made.queue, made.durable, made.no_wait) == ("~1.q", True, False)
    assert made.arguments == {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "~1.dead", "x-max-length": 5}
    assert own_names("queue.declare", '{"queue": ""}') and not own_names("queue.declare", '{"queue": "q"}')
    assert read_method("queue.declare", '{"queue": ""}', 0, queue="amq.gen-7").queue == "gen-7"
    _, found = decode_header(b"\0\x3c\0\0" + bytes(8) + wire_content(
        '{"reply_to": "r", "user_id": "them", "headers": {"CC": ["a"]}}', "", 1, "us"))
    assert (found["reply_to"], found["user_id"]) == ("~1.r", "us")
    assert found["headers"]["CC"] == ["~1.a"]
