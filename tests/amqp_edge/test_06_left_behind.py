"""A thousand clients later nothing of them is left: no connection, channel, content, consumer, queue, exchange, whether
they said goodbye or were cut off in the middle of something."""
from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import Wire
from kit.node import Node
from kit.watch import grown
from oracle.amqp091 import BODY, HEADER, METHOD, encode_frame, encode_header, encode_method

from fluxmq._core.exchange.exchange import Exchange, Exchanges, Route
from fluxmq._core.net.amqp091_channel import Channel, ChannelMember, ChannelReader
from fluxmq._core.net.amqp091_connection import AmqpConnection, Content
from fluxmq._core.queue.cursor import Cursor
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import live_objects
from fluxmq.edge.amqp091.channel_state import ChannelState, Consumer
from fluxmq.edge.amqp091.client import Client
from fluxmq.engine.queues.state import QueueState

pytestmark = pytest.mark.usefixtures("few_to_collect")
CLIENTS = 1000
ROUND = 50
PATIENCE_SECONDS = 90.0             # only a failing test waits for it
PERSISTENT = {"delivery_mode": 2}
# By class, not by name: storage has a Log, too, which comes when a checkpoint writes segments of a queue that stays.
COUNTED = {AmqpConnection, Channel, ChannelMember, ChannelReader, ChannelState, Client, Consumer, Content, Cursor,
           Exchange, Exchanges, Group, Log, Queue, QueueState, Route}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path, {"server.amqp091.plain.addr": "127.0.0.1:0"})
    yield one
    one.stop()


def census() -> dict[str, int]:
    """Of all objects of the process: those that clients make."""
    for _ in range(3):
        gc.collect()
    return dict(Counter(type(found).__name__ for found in gc.get_objects() if type(found) in COUNTED))


def connect(node: Node) -> Wire:
    wire = Wire(next(bound[0] for path, _, bound in node.server.listeners.opened if "amqp091" in path)).login()
    wire.open_channel(1)
    return wire


# ── how they end. Each takes an open connection of which the broker has heard everything ─────────────────────


def in_order(wire: Wire, number: int) -> None:
    wire.call(1, "exchange.declare", exchange=f"x{number}", type=("fanout", "topic", "headers")[number % 3])
    wire.call(1, "queue.declare", queue=f"q{number}", arguments={"x-max-priority": number % 3})
    wire.call(1, "queue.bind", queue=f"q{number}", exchange=f"x{number}", routing_key="a.*")
    wire.call(1, "basic.consume", queue=f"q{number}", consumer_tag="c")
    wire.publish(1, "", f"q{number}", b"x")
    wire.send(1, "basic.ack", delivery_tag=wire.expect_content(1).arguments["delivery_tag"])
    wire.call(1, "basic.cancel", consumer_tag="c")
    wire.call(1, "queue.delete", queue=f"q{number}")
    wire.call(1, "exchange.delete", exchange=f"x{number}")
    wire.call(1, "channel.close", reply_code=200, reply_text="bye")
    wire.close()


def in_a_content(wire: Wire, number: int) -> None:
    wire.send_raw(encode_frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="kept"))
                  + encode_frame(HEADER, 1, encode_header(400_000, {"headers": {"a": "b" * (number % 9)}}))
                  + encode_frame(BODY, 1, bytes(100_000)))


def in_a_frame(wire: Wire, number: int) -> None:
    wire.send_raw(encode_frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="kept"))
                  + encode_frame(HEADER, 1, encode_header(120_000))
                  + encode_frame(BODY, 1, bytes(120_000))[:-number - 1])


def in_a_transaction(wire: Wire, number: int) -> None:
    wire.call(1, "tx.select")
    wire.call(1, "basic.qos", prefetch_count=1)
    wire.call(1, "basic.consume", queue="kept")
    tag = wire.expect_content(1).arguments["delivery_tag"]
    wire.publish(1, "", "kept", bytes(1000), PERSISTENT)
    wire.send(1, "basic.ack", delivery_tag=tag)


def with_what_is_not_settled(wire: Wire, number: int) -> None:
    wire.call(1, "basic.qos", prefetch_count=2)
    for tag in "abc":
        wire.call(1, "basic.consume", queue="kept", consumer_tag=tag)
    wire.expect_content(1)
    wire.call(1, "basic.cancel", consumer_tag="a")
    wire.send(1, "basic.get", queue="kept")


def with_what_is_exclusive(wire: Wire, number: int) -> None:
    wire.call(1, "exchange.declare", exchange=f"x{number}", type="direct", auto_delete=True)
    wire.call(1, "queue.declare", queue=f"mine{number}", exclusive=True, arguments={"x-message-ttl": 60_000})
    wire.call(1, "queue.bind", queue=f"mine{number}", exchange=f"x{number}", routing_key="k")
    wire.publish(1, f"x{number}", "k", bytes(100))
    wire.call(1, "basic.consume", queue=f"mine{number}")


def with_confirms_that_wait(wire: Wire, number: int) -> None:
    wire.call(1, "confirm.select")
    wire.send_raw(wire.encode_publish(1, "", "kept", bytes(500), PERSISTENT) * 5)


def with_an_error(wire: Wire, number: int) -> None:
    wire.call(1, "basic.consume", queue="kept")
    wire.send(1, "queue.declare", queue="nope", passive=True)
    wire.send_raw(encode_frame(9, 1, b"x"))


WAYS = [in_order, in_a_content, in_a_frame, in_a_transaction, with_what_is_not_settled, with_what_is_exclusive,
        with_confirms_that_wait, with_an_error]


def left(node: Node, queues: int) -> dict[str, int]:
    """A census when all connections are gone, all queues but so many, and nothing goes any more."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    before: dict[str, int] = {}
    while True:
        # Routes to queues that are no more are forgotten by the hundred; what the clock looks at, by the next tick;
        # what waits for the disk, when that has it.
        open_ = node.call(lambda server: [exchanges.let_go() for exchanges in server.amqp091.exchanges.vhosts.values()]
                          and len(server.amqp091.clients.open) + server.hub.commits.waiting)
        found = census()
        if not open_ and found["Queue"] <= queues and found == before:
            return found
        assert time.monotonic() < deadline, (open_, found)
        before = found
        time.sleep(0.05)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_is_left(node: Node, way: Callable[[Wire, int], None]) -> None:
    wire = connect(node)
    wire.call(1, "queue.declare", queue="kept", durable=True, arguments={"x-max-length": 1000})
    for _ in range(500):
        wire.publish(1, "", "kept", bytes(100), PERSISTENT)
    wire.close()
    queues = census()["Queue"]      # a node of another test may still be there

    def clients(first: int, count: int) -> None:
        for start in range(first, first + count, ROUND):
            wires = [connect(node) for _ in range(ROUND)]
            for number, one in enumerate(wires, start):
                way(one, number)
            for one in wires:
                one.drop()

    clients(0, ROUND)               # what is made once, and kept, is there now
    before, counted = left(node, queues), live_objects()
    clients(ROUND, CLIENTS // len(WAYS) // ROUND * ROUND + ROUND)
    node.wait(lambda server: server.keeper.checkpoint())        # a broker's comes when nothing happens for a while
    assert not grown(before, left(node, queues))
    after = live_objects()
    for name in ("links", "messages"):
        assert after.get(name, 0) <= counted.get(name, 0), name


def test_a_channel_that_outlives_its_queues(node: Node) -> None:
    """It asked them, consumed from them, cancelled with messages in hand; they were deleted. It keeps nothing of it."""
    wire, other = connect(node), connect(node)
    other.call(1, "confirm.select")

    before = census()
    for number in range(ROUND):
        stream = number % 3 == 0
        other.call(1, "queue.declare", queue=f"q{number}", durable=stream,
                   arguments={"x-queue-type": "stream"} if stream else {})
        for _ in range(3):
            other.publish(1, "", f"q{number}", b"x")
        wire.call(1, "basic.consume", queue=f"q{number}", consumer_tag="c", arguments={
            "x-stream-offset": "first"} if stream else {})
        last = [wire.expect_content(1) for _ in range(3)][-1].arguments["delivery_tag"]
        if not stream:
            assert wire.get(1, f"q{number}", no_ack=number % 2 == 0) is None
        if number % 2:
            wire.call(1, "basic.cancel", consumer_tag="c")
        other.call(1, "queue.delete", queue=f"q{number}")
        if not number % 2:
            wire.expect(1, "basic.cancel")
        wire.send(1, "basic.ack", delivery_tag=last, multiple=True)
    wire.call(1, "basic.qos", prefetch_count=0)     # the acknowledgements have been read
    kinds = {kind.__name__ for kind in COUNTED - {Route}}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        node.call(lambda server: [exchanges.let_go() for exchanges in server.amqp091.exchanges.vhosts.values()])
        found = census()
        if all(found.get(kind, 0) <= before.get(kind, 0) for kind in kinds):
            break
        assert time.monotonic() < deadline, (before, found)
        time.sleep(0.05)                # the clock forgets what it had to look at with its next tick
    wire.drop()
    other.drop()
