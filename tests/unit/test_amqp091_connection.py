"""The compiled AMQP 0-9-1 connection driven by hand: a real socket, a real Poller, a handler of the test's own."""
from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp091_values import method_of
from oracle.amqp091 import Malformed

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.errors import ProtocolError
from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_channel import Channel, ChannelMember
from fluxmq._core.net.amqp091_connection import PROTOCOL_HEADER, AmqpConnection, Bodies
from fluxmq._core.net.poller import Poller
from fluxmq._core.queue.queue import Queue
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec

HEADER, BODY, HEARTBEAT = 2, 3, 8


class Handler:
    """What the edge would be: opens everything at once, remembers the rest."""

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges
        self.methods: list[tuple[int, m.Method]] = []
        self.errors: list[tuple[int, str]] = []
        self.channel_errors: list[tuple[int, int, str]] = []
        self.crashes: list[BaseException] = []
        self.ended = 0
        self.held_up = 0

    def on_greeting(self, connection: AmqpConnection) -> None:
        connection.tune(4096, 10, 0)
        connection.accept(self.exchanges, "/")

    def on_method(self, connection: AmqpConnection, number: int, payload: bytes) -> None:
        try:
            method = method_of(payload)
        except Malformed as error:
            raise ProtocolError(502, str(error)) from None
        self.methods.append((number, method))
        if isinstance(method, m.ChannelOpen):
            connection.open_channel(number)
        elif isinstance(method, m.ConfirmSelect):
            connection.channels[number].confirming = True
        elif isinstance(method, m.TxSelect):
            connection.channels[number].select_tx()
        elif isinstance(method, m.TxCommit):
            connection.commit(connection.channels[number])

    def on_channel_error(self, connection: AmqpConnection, number: int, code: int, text: str, method: int) -> None:
        self.channel_errors.append((number, code, text))
        connection.channels[number].begin_closing()

    def on_error(self, connection: AmqpConnection, code: int, text: str) -> None:
        self.errors.append((code, text))

    def on_crash(self, connection: AmqpConnection, error: BaseException) -> None:
        self.crashes.append(error)

    def on_end(self, connection: AmqpConnection) -> None:
        self.ended += 1

    def on_late(self, connection: AmqpConnection, why: str) -> None:
        pass

    def on_bodies(self, connection: AmqpConnection) -> None:
        self.held_up += 1
        connection.pause()

    def may_publish(self, connection: AmqpConnection, exchange: bytes, key: bytes) -> bool:
        return key != b"forbidden"


class Bench:
    def __init__(self) -> None:
        self.hub = Hub(None)
        self.hub.open_publish = True
        self.hub.set_limits(buffer_high=1 << 20, buffer_low=1 << 18)
        self.poller = Poller(self.hub, 0)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.exchanges = Exchanges()
        self.exchanges.declare(b"", b"direct")
        self.exchanges.declare(b"fan", b"fanout")
        self.handler = Handler(self.exchanges)
        self.received = b""
        ours, self.client = socket.socketpair()
        for side in (ours, self.client):
            side.setblocking(False)
        self.connection = AmqpConnection(self.hub, ours.detach(), self.poller.epoll, self.handler)
        self.bodies = self.connection.bodies = Bodies(1 << 20)
        self.poller.adopt(self.connection)

    def queue(self, name: bytes, **spec: Any) -> Queue:
        queue = self.manager.declare(QueueSpec(name=name.decode(), type="ephemeral", **spec))[0]
        self.manager.group(queue, b"default")
        self.exchanges.add_queue(name, queue)
        return queue

    def send(self, *parts: bytes) -> None:
        self.client.sendall(b"".join(parts))
        self.turn()

    def turn(self) -> None:
        for _ in range(3):
            self.poller.turn()

    def frames(self) -> list[tuple[int, int, bytes]]:
        """(type, channel, payload) of everything that has come."""
        self.turn()
        try:
            while data := self.client.recv(1 << 16):
                self.received += data
                self.turn()
        except BlockingIOError:
            pass
        found = []
        while len(self.received) >= 8:
            size = int.from_bytes(self.received[3:7], "big")
            assert self.received[7 + size] == 0xCE
            found.append((self.received[0], int.from_bytes(self.received[1:3], "big"), self.received[7:7 + size]))
            self.received = self.received[8 + size:]
        return found

    def methods(self) -> list[m.Method]:
        return [method_of(payload) for kind, _, payload in self.frames() if kind == 1]

    def consume(self, queue: Queue, tag: bytes = b"c", number: int = 1, **options: Any) -> ChannelMember:
        channel: Channel = self.connection.channels[number]
        member = ChannelMember(channel, queue, tag, **options)
        group = self.manager.states[queue].groups[b"default", b""]
        group.join(member)
        channel.consumers.append(member)
        queue.notify()
        self.turn()
        return member


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + bytes([end])


def publish(exchange: str, key: str, payload: bytes, channel: int = 1, mandatory: bool = False, part: int = 4088,
            size: int | None = None, **properties: Any) -> bytes:
    header = (60 << 16).to_bytes(4, "big") + (len(payload) if size is None else size).to_bytes(8, "big")
    return b"".join([
        m.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory).frame(channel),
        frame(HEADER, channel, header + encode_properties(properties)),
        *(frame(BODY, channel, payload[at:at + part]) for at in range(0, len(payload), part))])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1))
    yield bench
    assert not bench.handler.crashes
    bench.connection.abort()
    bench.turn()
    bench.client.close()


def test_another_protocol_header_is_answered_with_ours() -> None:
    bench = Bench()
    bench.send(b"AMQP\x01\x01\x00\x0a")
    assert bench.client.recv(100) == PROTOCOL_HEADER
    assert bench.connection.ended


@pytest.mark.parametrize("chunk", [1, 3, 100, 5000])
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 20000])
def test_what_is_published_is_delivered_byte_for_byte(bench: Bench, size: int, chunk: int) -> None:
    queue = bench.queue(b"q")
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    data = publish("", "q", payload, content_type="text/plain", headers={"n": 7, "deep": {"a": [1, "two"]}},
                   delivery_mode=2)
    for at in range(0, len(data), chunk):
        bench.send(data[at:at + chunk])
    assert queue.depth == 1
    bench.consume(queue)
    kinds = bench.frames()
    deliver = method_of(kinds[0][2])
    assert deliver == m.BasicDeliver(consumer_tag="c", delivery_tag=1, exchange="", routing_key="q")
    assert kinds[1][2] == (60 << 16).to_bytes(4, "big") + size.to_bytes(8, "big") + encode_properties({
        "content_type": "text/plain", "headers": {"n": 7, "deep": {"a": [1, "two"]}}, "delivery_mode": 2})
    assert b"".join(part for kind, _, part in kinds if kind == BODY) == payload
    assert all(len(part) <= 4088 for _, _, part in kinds)


def test_contents_of_two_channels_may_interleave(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(m.ChannelOpen().frame(2))
    one = publish("", "q", b"1" * 10, 1, part=4)
    two = publish("", "q", b"2" * 10, 2, part=4)
    parts: list[list[bytes]] = [[], []]
    for which, data in enumerate((one, two)):
        while data:
            n = 8 + int.from_bytes(data[3:7], "big")
            parts[which].append(data[:n])
            data = data[n:]
    for a, b in zip(*parts, strict=True):
        bench.send(a)
        bench.send(b)
    bench.consume(queue)
    assert [payload for kind, _, payload in bench.frames() if kind == BODY] == [b"1" * 10, b"2" * 10]


def test_a_body_takes_what_has_come_of_it(bench: Bench) -> None:
    """And not what its header promises; all of it is given back, however it ends."""
    bench.queue(b"q")
    bench.send(m.ChannelOpen().frame(2), m.ChannelOpen().frame(3))
    whole = publish("", "q", bytes(500_000))
    for channel in (1, 2, 3):
        bench.send(publish("", "q", bytes(10_000), channel=channel, size=1 << 20))
    assert 30_000 <= bench.bodies.held < 80_000
    assert bench.connection.publishing
    bench.send(m.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0).frame(1))
    bench.connection.close_channel(1, False)
    bench.connection.close_channel(2, False)
    assert 10_000 <= bench.bodies.held < 30_000
    bench.connection.close_channel(3, False)
    assert bench.bodies.held == 0
    assert not bench.connection.publishing
    bench.send(m.ChannelOpen().frame(1))
    for at in range(0, len(whole), 100_000):
        bench.send(whole[at:at + 100_000])
    assert bench.bodies.held == 0


def test_too_many_bytes_of_bodies_are_told_of(bench: Bench) -> None:
    """Of one message after the other, until who receives it is favoured; a message of one frame asks nobody."""
    queue = bench.queue(b"q")
    bench.bodies.held_max = 50_000
    whole = publish("", "q", bytes(100_000))
    bench.send(whole[:30_000])
    assert bench.handler.held_up == 0
    bench.send(whole[30_000:60_000])
    assert bench.handler.held_up == 1
    bench.send(whole[60_000:90_000])
    assert queue.depth == 0
    bench.connection.favoured = True
    bench.connection.resume()
    bench.send(whole[90_000:])
    assert (bench.handler.held_up, queue.depth) == (1, 1)
    assert bench.bodies.held == 0
    bench.bodies.held_max = 0
    bench.connection.favoured = False
    bench.send(publish("", "q", bytes(4000)))
    assert (bench.handler.held_up, queue.depth) == (1, 2)


def test_acknowledgements(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(*(publish("", "q", b"%d" % n) for n in range(10)))
    member = bench.consume(queue, prefetch=5)
    assert len(bench.methods()) == 5
    bench.send(m.BasicAck(delivery_tag=2, multiple=False).frame(1))
    assert [d.delivery_tag for d in bench.methods()] == [6]
    bench.send(m.BasicAck(delivery_tag=4, multiple=True).frame(1))
    assert [d.delivery_tag for d in bench.methods()] == [7, 8, 9]
    bench.send(m.BasicReject(delivery_tag=5, requeue=True).frame(1))
    again = bench.frames()
    assert method_of(again[0][2]).redelivered and again[2][2] == b"4"     # in its place, at once
    bench.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=False).frame(1))
    assert [d.delivery_tag for d in bench.methods()] == [11]
    bench.send(m.BasicAck(delivery_tag=11).frame(1))
    assert queue.waiting == 0 and member.held == 0
    bench.send(m.BasicAck(delivery_tag=11).frame(1))
    assert bench.handler.channel_errors == [(1, 406, "unknown delivery tag 11")]


def test_the_prefetch_of_a_channel_is_shared(bench: Bench) -> None:
    one, two = bench.queue(b"one"), bench.queue(b"two")
    bench.send(*(publish("", name, b"x") for name in ("one", "two") for _ in range(5)))
    bench.connection.channels[1].prefetch_all = 3
    bench.consume(one, b"1")
    bench.consume(two, b"2")
    assert [d.consumer_tag for d in bench.methods()] == ["1", "1", "1"]
    bench.send(m.BasicAck(delivery_tag=3, multiple=True).frame(1))
    assert sorted(d.consumer_tag for d in bench.methods()) == ["1", "2", "2"]


def test_without_acknowledgements_a_message_goes_when_it_is_sent(bench: Bench) -> None:
    queue = bench.queue(b"q")
    member = bench.consume(queue, no_ack=True)
    bench.send(*(publish("", "q", b"x") for _ in range(50)))
    assert len(bench.methods()) == 50
    assert queue.waiting == 0 and member.held == 0


def test_confirms_returns_and_refusals(bench: Bench) -> None:
    queue = bench.queue(b"q")
    queue.set_limits(messages_max=2)
    bench.exchanges.bind(bench.exchanges.exchanges[b"fan"], bench.exchanges.queues[b"q"], b"")
    bench.send(m.ConfirmSelect().frame(1))
    bench.send(publish("fan", "", b"1"), publish("", "q", b"2"))
    assert bench.methods() == [m.BasicAck(delivery_tag=2, multiple=True)]
    bench.send(publish("", "q", b"3"))
    assert bench.methods() == [m.BasicNack(delivery_tag=3, multiple=False, requeue=False)]
    bench.send(publish("", "nobody", b"4", mandatory=True))
    found = bench.frames()
    assert method_of(found[0][2]) == m.BasicReturn(reply_code=312, reply_text="NO_ROUTE", exchange="",
                                                         routing_key="nobody")
    assert found[2][2] == b"4"
    assert method_of(found[3][2]).delivery_tag == 4


def test_a_transaction_is_all_or_nothing(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(m.TxSelect().frame(1), publish("", "q", b"1"), publish("", "q", b"2"))
    assert queue.depth == 0
    bench.send(m.TxCommit().frame(1))
    assert queue.depth == 2
    bench.consume(queue)
    bench.frames()
    bench.send(m.BasicAck(delivery_tag=2, multiple=True).frame(1))
    assert queue.waiting == 2
    bench.connection.channels[1].rollback()
    bench.send(m.TxCommit().frame(1))
    assert queue.waiting == 2


def test_who_leaves_gives_back(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(*(publish("", "q", b"%d" % n) for n in range(4)))
    member = bench.consume(queue, b"first")
    assert len(bench.methods()) == 4
    bench.send(m.BasicAck(delivery_tag=2).frame(1))
    member.group.leave(member)
    bench.connection.channels[1].consumers.remove(member)
    bench.consume(queue, b"second")
    found = bench.frames()
    assert [payload for kind, _, payload in found if kind == BODY] == [b"0", b"2", b"3"]
    assert all(method_of(payload).redelivered for kind, _, payload in found if kind == 1)


def test_one_delivery_that_is_never_settled_keeps_nothing_but_itself(bench: Bench) -> None:
    """Whatever is settled behind it: the channel remembers as many deliveries as are not, not all since the oldest."""
    chance = random.Random(1)
    queue = bench.queue(b"q")
    bench.consume(queue)
    channel: Channel = bench.connection.channels[1]
    held: dict[int, bytes] = {}
    for turn in range(300):
        bodies = [b"%d.%d" % (turn, n) for n in range(20)]
        bench.send(*(publish("", "q", body) for body in bodies))
        tags = [method_of(payload).delivery_tag for kind, _, payload in bench.frames() if kind == 1]
        assert len(tags) == 20
        held |= dict(zip(tags, bodies, strict=True))
        # A few stay for ever, some for a while.
        settled = [tag for tag in held if tag % 997 and chance.random() < 0.8]
        for tag in settled:
            del held[tag]
        bench.send(*(m.BasicAck(delivery_tag=tag).frame(1) for tag in settled))
        assert channel.unacknowledged == len(held) and channel.first == min(held, default=channel.next)
    assert channel.next == 6001 and bench.handler.channel_errors == []
    assert channel.ring_room <= 128
    upto = sorted(held)[len(held) // 2]
    bench.send(m.BasicAck(delivery_tag=upto, multiple=True).frame(1))
    left = {tag: body for tag, body in held.items() if tag > upto}
    assert channel.unacknowledged == len(left)
    bench.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=True).frame(1))
    again = [payload for kind, _, payload in bench.frames() if kind == BODY]
    assert again == [left[tag] for tag in sorted(left)] and bench.handler.channel_errors == []
    bench.send(m.BasicAck(delivery_tag=997).frame(1))
    assert len(bench.handler.channel_errors) == 1       # it has been settled


def test_consumers_of_one_channel_leave_in_any_order(bench: Bench) -> None:
    """What each has lies between what the others have; it is that, and only that, which comes again."""
    queue = bench.queue(b"q")
    members = {tag: bench.consume(queue, tag.encode()) for tag in "abc"}
    channel: Channel = bench.connection.channels[1]
    bench.send(*(publish("", "q", b"%d" % n) for n in range(60)))
    had: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for one in bench.methods():
        assert isinstance(one, m.BasicDeliver)
        had[one.consumer_tag].append(one.delivery_tag)
    assert [len(tags) for tags in had.values()] == [20, 20, 20] and max(had["a"]) > min(had["c"])
    for member in members.values():
        member.cancel()                         # what one gives back is not for another to take
    for tag, left in (("b", 40), ("c", 20)):
        channel.consumers.remove(members[tag])
        members[tag].group.leave(members[tag])
        assert channel.unacknowledged == left
    bench.send(*(m.BasicAck(delivery_tag=tag).frame(1) for tag in had["a"]))
    assert (channel.unacknowledged, bench.handler.channel_errors) == (0, [])
    bench.send(m.BasicAck(delivery_tag=had["b"][0]).frame(1), m.BasicAck(delivery_tag=60, multiple=True).frame(1))
    assert (channel.first, bench.handler.channel_errors) == (61, [])        # what was lost may be acknowledged, once
    bench.consume(queue, b"d")
    again = [one for one in bench.methods() if isinstance(one, m.BasicDeliver)]
    assert len(again) == 40 and all(one.redelivered for one in again)


@pytest.mark.parametrize(("sent", "code"), [
    (frame(1, 0, b"\x00"), 502), (frame(7, 0, b""), 501), (frame(HEARTBEAT, 1, b""), 501),
    (frame(1, 1, m.BasicAck(delivery_tag=1).encode(), end=0), 501),
    (frame(1, 1, m.BasicAck(delivery_tag=1).encode() + b"x"), 502),
    (frame(HEADER, 1, bytes(14)), 505), (frame(BODY, 1, b"x"), 505), (frame(HEADER, 0, bytes(14)), 505),
    (m.BasicPublish().frame(1) + m.BasicPublish().frame(1), 505),
    (m.BasicPublish().frame(1) + frame(HEADER, 1, b"\x00\x32" + bytes(12)), 505),
    (publish("", "q", b"12345", size=4), 505), (m.BasicPublish(immediate=True).frame(1), 540),
    (m.BasicAck(delivery_tag=1).frame(3), 504),
    (b"".join(m.ChannelOpen().frame(number) for number in range(100, 110)), 530), (m.ChannelOpen().frame(1), 504),
    (b"\x01\x00\x01\x7f\xff\xff\xff", 501), (b"\x01\x00\x01\x7f\xff\xff\xffx", 501),
    (m.BasicPublish().frame(1) + frame(HEADER, 1, (60 << 16).to_bytes(4, "big") + bytes(8) + b"\x80\x00\x05ab"), 502),
], ids=[str(number) for number in range(18)])
def test_what_ends_the_connection(sent: bytes, code: int) -> None:
    bench = Bench()
    bench.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1), sent)
    assert [error[0] for error in bench.handler.errors] == ([code] if code else [])
    assert not bench.handler.crashes


def test_what_ends_the_channel(bench: Bench) -> None:
    bench.send(publish("nowhere", "k", b"x"), publish("", "q", b"ignored"))
    assert bench.handler.channel_errors == [(1, 404, "no exchange 'nowhere' in vhost '/'")]
    bench.exchanges.declare(b"inner", b"fanout", internal=True)
    bench.send(m.ChannelOpen().frame(4), publish("inner", "k", b"x", 4))
    assert bench.handler.channel_errors[1] == (4, 403, "cannot publish to internal exchange 'inner' in vhost '/'")
    bench.hub.open_publish = False
    bench.send(m.ChannelOpen().frame(2), publish("", "forbidden", b"x", 2))
    assert bench.handler.channel_errors[2][1] == 403
    bench.send(m.ChannelOpen().frame(3), publish("", "q", b"", 3, size=2 << 20))
    assert bench.handler.channel_errors[3][1] == 406
    assert bench.connection.open


def test_heartbeats(bench: Bench) -> None:
    bench.connection.tune(4096, 10, 2)
    assert [bench.connection.heartbeat_s, bench.connection.tick()] == [2, ""]
    bench.send(frame(HEARTBEAT, 0, b""))
    assert bench.connection.open


def test_garbage_raises_nothing(tmp_path: Path) -> None:
    rng = random.Random(7)
    valid = PROTOCOL_HEADER + m.ChannelOpen().frame(1) + publish("", "q", b"hello", headers={"a": 1})
    for _ in range(500):
        bench = Bench()
        bench.queue(b"q")
        data = bytearray(valid)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        bench.send(bytes(data))
        assert not bench.handler.crashes
        bench.connection.abort()
        bench.client.close()
