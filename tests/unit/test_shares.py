"""What one client asks for at once is done in shares of a turn: channels and connections that end with many consumers
or exclusive queues, SUBSCRIBE and UNSUBSCRIBE of many filters. Little is done at once."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client as MqttClient
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import V5, V311, Pingreq, Pingresp, Suback, Subscribe, Unsuback, Unsubscribe
from unit.amqp_world import bytes_in_order
from unit.test_amqp091_connection import Bench

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.net.amqp091_connection import PROTOCOL_HEADER, AmqpConnection
from fluxmq.access.authority import Authority
from fluxmq.app.server import Server
from fluxmq.edge.amqp091.channel import ChannelMethods
from fluxmq.edge.amqp091.client import HOLD_CHANNEL, Client
from fluxmq.edge.asking import Asking
from fluxmq.edge.shares import STEPS_MAX, Shares
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.relays import Relays

MANY = 2 * STEPS_MAX + 100


class Later:
    """Calls that were put off to the next turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, _seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> bool:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        return bool(calls)


def counted(done: list[str], name: str, count: int) -> Iterator[None]:
    for _ in range(count):
        done.append(name)
        yield


def test_a_turn_has_one_share_for_all_that_leaves() -> None:
    later, done, sizes = Later(), list[str](), [0]
    departures = Shares(later)
    assert departures.begin(counted(done, "a", 10))
    assert not departures.begin(counted(done, "b", STEPS_MAX))
    assert not departures.begin(counted(done, "c", STEPS_MAX))
    sizes.append(len(done))
    while later.turn():
        assert len(later.calls) <= 1
        sizes.append(len(done))
    assert done == ["a"] * 10 + ["b"] * STEPS_MAX + ["c"] * STEPS_MAX, "one after the other"
    assert max(after - before for before, after in pairwise(sizes)) <= STEPS_MAX
    assert departures.begin(counted(done, "d", 10)), "a new turn, a new share"


def test_what_ends_something_else_and_what_breaks_do_not_stop_the_others() -> None:
    later, done = Later(), list[str]()
    departures = Shares(later)

    def nested() -> Iterator[None]:
        assert not departures.begin(counted(done, "inner", 2))
        done.append("outer")
        yield

    def broken() -> Iterator[None]:
        raise OSError("broken")
        yield

    assert departures.begin(nested())
    assert done == ["outer", "inner", "inner"]
    with pytest.raises(OSError, match="broken"):
        departures.begin(broken())
    departures.begin(counted(done, "after", 2 * STEPS_MAX))
    departures.finish()
    assert done.count("after") == 2 * STEPS_MAX


class Edge(Bench):
    """A connection with the real methods of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.later = Later()
        self.queues = AmqpQueues(self.manager, bytes_in_order(), None)
        self.left = 0
        exchanges: Any = None  # of nobody here
        self.methods_ = ChannelMethods(self.hub, exchanges, self.queues, Asking(Authority(), lambda *told: None),
                                       Relays(), later=self.later, consumer_timeout_ms=0, on_log=lambda *told: None)
        self.edge = Client(self.connection, 1, "test")
        self.edge.vhost = "/"
        self.handler.on_method = self.on_method  # type: ignore[method-assign]
        self.handler.on_end = lambda connection: self.methods_.on_end(self.edge)  # type: ignore[method-assign]
        left, self.queues.left = self.queues.left, self.count_left  # type: ignore[method-assign]
        self.really_left = left
        self.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1))

    def count_left(self, *what: Any) -> None:
        self.left += 1
        self.really_left(*what)

    def on_method(self, connection: AmqpConnection, number: int, payload: bytes) -> None:
        self.methods_.on_method(self.edge, number, payload)

    def declare(self, count: int, **how: Any) -> list[bytes]:
        names = [b"q%d" % number for number in range(count)]
        for name in names:
            self.queues.declare(b"/", name, **{"passive": False, "durable": False, "exclusive_owner": None,
                                               "auto_delete": False, "owner": self.edge, "arguments": {}} | how)
        return names

    def consume(self, names: list[bytes]) -> None:  # type: ignore[override]
        for at in range(0, len(names), 100):
            self.send(*(m.BasicConsume(queue=name.decode(), consumer_tag=name.decode(), no_wait=True).frame(1)
                        for name in names[at:at + 100]))

    def consumers(self, names: list[bytes]) -> int:
        return sum(self.queues.counts(queue)[2] for name in names if (queue := self.queues.get(b"/", name)))

    def shares(self) -> list[int]:
        """How many left in each of the turns to come."""
        found, before = [], self.left
        while self.later.turn():
            self.turn()
            found.append(self.left - before)
            before = self.left
        return found


@pytest.fixture
def edge() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    assert not edge.handler.crashes
    edge.connection.abort()
    edge.client.close()


def test_consumers_of_a_connection_that_ends_leave_in_shares(edge: Edge) -> None:
    names = edge.declare(MANY)
    edge.queues.declare(b"/", b"s", passive=False, durable=True, exclusive_owner=None, auto_delete=False,
                        owner=edge.edge, arguments={"x-queue-type": "stream"})
    edge.consume([*names, b"s"])
    assert edge.consumers(names) == MANY
    edge.connection.abort()
    assert edge.left == STEPS_MAX and edge.consumers(names) == MANY - STEPS_MAX
    for name in (names[-1], b"s"):                          # two that have not left yet
        assert edge.queues.delete(b"/", name, None) == 0
    assert max(edge.shares()) <= STEPS_MAX
    assert edge.consumers(names) == 0 and edge.left == MANY - 1


def test_a_channel_is_closed_when_all_have_left_and_nothing_overtakes_that(edge: Edge) -> None:
    names = edge.declare(MANY)
    edge.consume(names)
    edge.frames()
    edge.send(m.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0).frame(1), m.ChannelOpen().frame(1))
    assert edge.edge.holds & HOLD_CHANNEL and edge.methods() == []
    assert max(edge.shares()) <= STEPS_MAX and edge.consumers(names) == 0
    assert not edge.edge.holds and edge.methods() == [m.ChannelCloseOk(), m.ChannelOpenOk()]
    edge.consume(names[:3])
    edge.send(m.ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0).frame(1))
    assert edge.methods() == [m.ChannelCloseOk()], "few leave at once"
    assert edge.consumers(names) == 0


def test_a_connection_that_ends_while_its_channel_does(edge: Edge) -> None:
    names = edge.declare(MANY)
    edge.consume(names)
    edge.frames()
    edge.methods_.on_channel_error(edge.edge, 1, 406, "why", 0)
    assert edge.methods() == []
    edge.connection.abort()
    assert max(edge.shares()) <= STEPS_MAX
    assert edge.consumers(names) == 0


def test_exclusive_queues_of_a_connection_that_ends_go_in_shares(edge: Edge) -> None:
    names = edge.declare(MANY, exclusive_owner=edge.edge)
    edge.connection.abort()
    sizes = [MANY, len(edge.manager.queues)]
    edge.manager.delete(next(iter(edge.manager.queues)))
    while edge.later.turn():
        sizes.append(len(edge.manager.queues))
    assert sizes[-1] == 0 and not any(edge.queues.get(b"/", name) for name in names)
    assert max(before - after for before, after in pairwise(sizes)) <= STEPS_MAX + 1


# ── filters of MQTT ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def by_hand(node: Node) -> Later:
    """From now on the shares of the MQTT listener come when the test says so."""
    later = Later()

    def take_over(server: Server) -> None:
        for _, listener, _ in server.listeners.opened:
            listener.front.shares = Shares(later)  # type: ignore[attr-defined]

    node.call(take_over)
    return later


def subscribed(node: Node) -> int:
    return node.call(lambda server: sum(len(one.subscriptions) for one in server.broker.sessions.values()))


FILTERS = [f"many/{number}" for number in range(MANY)]


@pytest.mark.parametrize("version", [V311, V5])
def test_many_filters_are_taken_in_shares_and_answered_in_order(node: Node, version: int) -> None:
    later, client, other = by_hand(node), MqttClient(node.address, version), MqttClient(node.address, version)
    client.connect("c")
    other.connect("other")
    wanted = [(one, 1) for one in FILTERS]
    for packet, left, answer in ((Subscribe(packet_id=1, filters=wanted), MANY, Suback),
                                 (Unsubscribe(packet_id=2, filters=FILTERS), 0, Unsuback)):
        client.send(packet, Pingreq())
        wait_until(lambda: later.calls)
        had = subscribed(node)
        while later.calls:
            other.send(Pingreq())
            other.expect(Pingresp)
            now = subscribed(node)
            assert abs(now - had) <= STEPS_MAX
            had = now
            node.call(lambda server: later.turn())
        assert had == left
        assert client.expect(answer).packet_id == packet.packet_id
        client.expect(Pingresp)
    client.close()
    other.close()


def test_what_is_retained_under_many_filters_comes_behind_the_answer(node: Node) -> None:
    client = MqttClient(node.address, V5)
    client.connect("c")
    for name in (FILTERS[3], FILTERS[-1]):
        client.publish(name, b"kept", qos=1, retain=True)
    client.send(Subscribe(packet_id=1, filters=[(one, 0) for one in FILTERS]))
    client.expect(Suback)
    client.receive(FILTERS[3])
    client.receive(FILTERS[-1])
    client.close()


def test_few_filters_are_taken_at_once(node: Node) -> None:
    later, client = by_hand(node), MqttClient(node.address, V5)
    client.connect("c")
    client.send(Subscribe(packet_id=1, filters=[(one, 1) for one in FILTERS[:100]]))
    client.expect(Suback)
    assert not later.calls
    client.close()


def test_a_session_that_is_taken_over_meanwhile_gets_no_more(node: Node) -> None:
    later, client = by_hand(node), MqttClient(node.address, V5)
    client.connect("c", clean_start=True)
    client.send(Subscribe(packet_id=1, filters=[(one, 1) for one in FILTERS]))
    wait_until(lambda: later.calls)
    second = MqttClient(node.address, V5)
    second.connect("c", clean_start=True)
    while node.call(lambda server: later.turn()):
        pass
    assert subscribed(node) == 0
    second.send(Subscribe(packet_id=1, filters=[("x", 1)]))
    second.expect(Suback)
    second.close()
    client.close()
