"""Tx.Select: what would be refused is refused when it is asked for; a commit does all of the rest, or says so."""
from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from select import EPOLLIN

import pytest
from unit.test_amqp091_connection import Bench, Handler, publish
from unit.test_queue_relay import Pair

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.exchange.exchange import Exchanges
from fluxmq._core.net.amqp091_connection import AmqpConnection
from fluxmq.model.queues import QueueSpec


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench()
    one.send(b"AMQP\x00\x00\x09\x01", m.ChannelOpen().frame(1), m.TxSelect().frame(1))
    yield one
    assert not one.handler.crashes
    one.connection.abort()
    one.client.close()


def ack(tag: int, multiple: bool = False) -> bytes:
    return m.BasicAck(delivery_tag=tag, multiple=multiple).frame(1)


COMMIT = m.TxCommit().frame(1)


def test_an_exchange_that_is_not_there_is_told_at_the_publish(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(publish("", "q", b"1"), publish("nope", "q", b"2"))
    assert [code for _, code, _ in bench.handler.channel_errors] == [404]
    bench.send(COMMIT)
    assert queue.depth == 0


def test_an_exchange_that_was_deleted_since_takes_nothing_else_with_it(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(publish("", "q", b"1"), publish("fan", "", b"2", mandatory=True), publish("", "q", b"3"))
    bench.exchanges.delete(b"fan")
    bench.send(COMMIT)
    assert queue.depth == 2
    assert not bench.handler.channel_errors
    returned = [found for found in bench.methods() if isinstance(found, m.BasicReturn)]
    assert [(one.reply_code, one.exchange) for one in returned] == [(312, "fan")]


def test_an_unknown_tag_is_told_when_it_is_acknowledged(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(*(publish("", "q", b"%d" % n) for n in range(3)), COMMIT)
    bench.consume(queue)
    bench.send(ack(1), ack(1))
    assert [(code, text) for _, code, text in bench.handler.channel_errors] == [(406, "unknown delivery tag 1")]
    assert queue.waiting == 3


@pytest.mark.parametrize("asked", [(1, False), (2, True), (0, True)])
def test_what_was_rolled_back_can_be_acknowledged_again(bench: Bench, asked: tuple[int, bool]) -> None:
    queue = bench.queue(b"q")
    bench.send(*(publish("", "q", b"%d" % n) for n in range(3)), COMMIT)
    bench.consume(queue)
    for _ in range(2):
        bench.send(ack(*asked))
        bench.connection.channels[1].rollback()
    bench.send(COMMIT)
    assert queue.waiting == 3
    bench.send(ack(*asked), COMMIT)
    assert queue.waiting == 3 - (asked[0] or 3)
    assert not bench.handler.channel_errors


def test_multiple_means_what_was_delivered_then(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(publish("", "q", b"1"), COMMIT)
    bench.consume(queue)
    bench.send(ack(0, True), publish("", "q", b"2"), COMMIT)
    assert queue.waiting == 1
    bench.send(ack(0, True), COMMIT)
    assert queue.waiting == 0


def test_recover_leaves_what_the_transaction_has(bench: Bench) -> None:
    queue = bench.queue(b"q")
    bench.send(publish("", "q", b"1"), publish("", "q", b"2"), COMMIT)
    bench.consume(queue)
    bench.send(ack(1))
    bench.connection.channels[1].recover()
    bench.turn()
    bench.send(COMMIT)
    assert queue.waiting == 1


def test_a_consumer_whose_messages_are_gone_does_not_stop_a_commit(bench: Bench) -> None:
    one, other = bench.queue(b"q"), bench.queue(b"r")
    bench.send(publish("", "q", b"1"), publish("", "r", b"2"), COMMIT)
    bench.consume(one)
    bench.consume(other, b"d")
    bench.send(ack(0, True))
    bench.manager.delete((b"/", b"q"))
    bench.send(publish("", "r", b"3"), COMMIT)
    assert other.waiting == 1
    assert not bench.handler.channel_errors


def test_a_queue_that_is_full_is_told(bench: Bench) -> None:
    queue = bench.queue(b"q")
    queue.set_limits(messages_max=1)
    bench.send(publish("", "q", b"1"), publish("", "q", b"2"), COMMIT)
    assert [(code, text) for _, code, text in bench.handler.channel_errors] == [(406, "partial tx completion")]
    assert queue.depth == 1


def test_a_transaction_has_an_end(bench: Bench) -> None:
    """256 MiB: what a batch of the journal holds is not far."""
    bench.bodies.message_max = 1 << 30
    bench.hub.set_limits(buffer_high=1 << 40)
    bench.connection.tune(1 << 27, 10, 0)
    assert not bench.handler.errors
    bench.queue(b"q")
    part = publish("", "q", bytes(40 << 20), part=40 << 20)
    for _ in range(7):
        at = 0
        while at < len(part) and not bench.handler.errors:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                at += bench.client.send(part[at:at + (1 << 20)])
            bench.turn()
    assert [code for code, _ in bench.handler.errors] == [506]


def test_a_transaction_is_counted_for_each_queue_that_gets_it(bench: Bench) -> None:
    fan = bench.exchanges.exchanges[b"fan"]
    for number in range(400):
        bench.queue(b"q%d" % number)
        bench.exchanges.bind(fan, bench.exchanges.queues[b"q%d" % number], b"")
    message = publish("fan", "", bytes(100_000))        # 40 MB for all of them, of 268
    for _ in range(6):
        bench.send(message)
    assert not bench.handler.errors
    bench.send(message)
    assert [code for code, *_ in bench.handler.errors] == [506]


# ---------------------------------------------------------------- of several nodes


class AtRelay:
    """A connection of node a, which has queue `mine`; node b has queue `q`, which captures the topics t/#."""

    def __init__(self) -> None:
        self.pair = pair = Pair(type="ephemeral", topics=("t/#",))
        self.exchanges = Exchanges()
        self.exchanges.declare(b"", b"direct")
        self.exchanges.declare(b"amq.topic", b"topic", mqtt=True)
        self.mine = pair.a.manager.declare(QueueSpec(name="mine", type="ephemeral"))[0]
        for queue in (self.mine, pair.queue):
            self.exchanges.add_queue(queue.name, queue)
        pair.a.hub.open_publish = True
        pair.a.hub.nodes.append(pair.a.to("b"))
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.handler = Handler(self.exchanges)
        self.connection = AmqpConnection(pair.a.hub, ours.detach(), pair.a.poller.epoll, self.handler)
        pair.a.poller.adopt(self.connection)
        self.send(b"AMQP\x00\x00\x09\x01", m.ChannelOpen().frame(1), m.TxSelect().frame(1))

    def send(self, *parts: bytes) -> None:
        self.client.sendall(b"".join(parts))
        self.pair.a.poller.play([(self.connection, EPOLLIN)], False)
        self.pair.run()

    @property
    def depths(self) -> tuple[int, int]:
        return self.mine.depth, self.pair.state.queue.depth

    def end(self) -> None:
        assert not self.handler.crashes
        self.connection.abort()
        self.client.close()
        self.pair.end()


@pytest.fixture
def at_relay() -> Iterator[AtRelay]:
    one = AtRelay()
    yield one
    one.end()


def copies(exchange: str, key: str, name: str, *keys: str) -> bytes:
    return publish(exchange, key, b"1", headers={name: [*keys]})


@pytest.mark.parametrize("publishes", [
    [copies("", "mine", "CC", "q")], [copies("", "nobody", "BCC", "mine", "q")],
    [publish("amq.topic", "t.x", b"1"), publish("", "mine", b"2")],
    [copies("amq.topic", "u.x", "CC", "t.x"), publish("", "mine", b"2")]])
def test_queues_of_two_nodes_are_refused_before_anything_is_done(at_relay: AtRelay, publishes: list[bytes]) -> None:
    at_relay.send(*publishes, COMMIT)
    assert [code for code, _ in at_relay.handler.errors] == [540]
    assert at_relay.handler.errors[0][1].endswith("several nodes: b, this one")
    assert at_relay.depths == (0, 0)


@pytest.mark.parametrize("publishes", [
    [copies("", "q", "CC", "q")], [copies("", "nobody", "BCC", "q")], [publish("amq.topic", "t.x", b"1")],
    [copies("amq.topic", "u.x", "CC", "t.x")]])
def test_queues_of_another_node_alone_get_all_of_it(at_relay: AtRelay, publishes: list[bytes]) -> None:
    at_relay.send(*publishes, publish("", "q", b"2"), COMMIT)
    assert not at_relay.handler.errors
    assert at_relay.depths == (0, 2)
