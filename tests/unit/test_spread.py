"""A publish to thousands of queues, and the end of thousands of connections, go over several rounds of the poller.
Shown by counts of what was handled, not by time."""
from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp091_values import method_of
from kit.certs import issue, make_ca
from unit.test_amqp091_connection import Bench as AmqpBench
from unit.test_amqp091_connection import publish
from unit.test_connection import Bench, accepting

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.net.amqp091_connection import PROTOCOL_HEADER, AmqpConnection
from fluxmq._core.queue.queue import Queue
from fluxmq.model.queues import QueueSpec

# As memory/node.pxd and net/amqp091_connection.pyx have them.
WORK_PUT, WORK_COLD, WORK_ROUND, WORK_SHARE_MAX = 200, 800, 262_144, 65_536
SHARE_QUEUES = WORK_SHARE_MAX // WORK_PUT + 1
MANY, FEWER = 3000, 1200
EVENTS_MAX = 512    # net/poller.pyx
CONNECT = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02c%d"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class Fan(AmqpBench):
    """`fan` leads to many queues; two connections, of which the first publishes on two channels."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.queues: list[Queue] = []
        fan = self.exchanges.exchanges[b"fan"]
        for number in range(count):
            name = b"q%d" % number
            self.queues.append(self.queue(name))
            self.exchanges.bind(fan, self.exchanges.queues[name], b"")
        theirs, self.other = socket.socketpair()
        theirs.setblocking(False)
        self.poller.adopt(AmqpConnection(self.hub, theirs.detach(), self.poller.epoll, self.handler))
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1), m.ConfirmSelect().frame(1), m.ChannelOpen().frame(2),
                  m.ConfirmSelect().frame(2))
        self.other.sendall(PROTOCOL_HEADER + m.ChannelOpen().frame(1))
        self.turn()
        self.handler.methods.clear()

    def had(self) -> int:
        return sum(self.counts())

    def counts(self) -> list[int]:
        return [queue.logs[0].messages_in for queue in self.queues]

    def confirmed(self) -> list[int]:
        """Channels of the Basic.Acks that have come."""
        return [number for kind, number, payload in self.frames()
                if kind == 1 and isinstance(method_of(payload), m.BasicAck)]

    def turn_once(self) -> int:
        """How many queues got a message in a round."""
        before = self.had()
        self.poller.turn()
        return self.had() - before

    def turn_until(self, count: int) -> int:
        """How many rounds it took until so many messages were in queues."""
        for rounds in range(1000):
            if self.had() == count:
                return rounds
            assert self.turn_once() <= 2 * SHARE_QUEUES
        raise AssertionError(f"{self.had()} messages, not {count}")


@pytest.fixture
def fan(request: pytest.FixtureRequest) -> Iterator[Fan]:
    made = Fan(getattr(request, "param", MANY))
    yield made
    assert not made.handler.crashes
    made.connection.abort()
    made.turn()
    for client in (made.client, made.other):
        client.close()


def in_one_frame(payload: bytes, **properties: Any) -> bytes:
    return publish("fan", "", payload, part=max(1, len(payload)), **properties)


@pytest.mark.parametrize("content", [
    pytest.param(in_one_frame(b""), id="no body"),
    pytest.param(in_one_frame(b"one"), id="one frame"),
    pytest.param(publish("fan", "", b"x" * 900, part=100), id="nine frames"),
    pytest.param(publish("fan", "", b"one", headers={"CC": ["a", "b"]}), id="copies"),
])
def test_a_publish_to_thousands_of_queues_takes_several_rounds(fan: Fan, content: bytes) -> None:
    """Each has it once, somebody else's publish does not wait, and what is behind it does."""
    fan.client.sendall(content + m.BasicQos(prefetch_count=7).frame(1) + content)
    assert 0 < fan.turn_once() <= SHARE_QUEUES
    fan.other.sendall(publish("", "q2999", b"mine") + m.BasicQos(prefetch_count=8).frame(1))
    fan.poller.turn()
    assert fan.queues[2999].logs[0].messages_in == 1, "only the bystander's"
    qos = [method.prefetch_count for _, method in fan.handler.methods if isinstance(method, m.BasicQos)]
    assert qos == [8]
    assert fan.methods() == []
    rounds = fan.turn_until(2 * MANY + 1)
    assert rounds >= MANY // SHARE_QUEUES
    assert fan.counts() == [2] * (MANY - 1) + [3]
    fan.turn()
    acks = [(method.delivery_tag, method.multiple) for method in fan.methods() if isinstance(method, m.BasicAck)]
    assert acks in ([(1, False), (2, False)], [(2, True)])
    assert fan.hub.counters()["messages_received"][1] == 3


@pytest.mark.parametrize("fan", [FEWER], indirect=True)
def test_a_body_in_memory_of_its_own_takes_several_rounds(fan: Fan) -> None:
    """Its frame does not come in one read."""
    fan.connection.frame_max = fan.connection.packet_bytes_max = 1 << 20
    content = in_one_frame(b"y" * 66_000)
    fan.client.sendall(content[:1000])
    fan.poller.turn()
    fan.client.sendall(content[1000:])
    assert 0 < fan.turn_once() <= SHARE_QUEUES
    fan.client.sendall(in_one_frame(b"behind"))
    rounds = fan.turn_until(2 * FEWER)
    assert rounds >= 2
    assert fan.counts() == [2] * FEWER
    assert not fan.handler.errors and not fan.handler.channel_errors


def test_a_queue_that_refuses_in_the_first_round_is_in_the_answer(fan: Fan) -> None:
    fan.queues[0].damage = "its disk"
    fan.client.sendall(in_one_frame(b"x") + in_one_frame(b"y"))
    fan.turn_until(2 * MANY - 2)
    fan.turn()
    answers = fan.methods()
    assert all(isinstance(method, m.BasicNack) for method in answers) and answers
    assert fan.counts() == [0] + [2] * (MANY - 1)


def test_what_another_line_refuses_is_in_the_answer(fan: Fan) -> None:
    """Of a queue amidst the route, whose position another line gives up, and of the last, which it commits."""
    line = fan.hub.commits.open_line("group 7")
    exchange = fan.exchanges.declare(b"both", b"fanout")
    again = fan.queues[:MANY // 2]
    for queue in again:
        fan.exchanges.remove_queue(queue.name)
    first, last = (fan.manager.declare(QueueSpec(name=name, type="classic"), line)[0] for name in ("first", "last"))
    for queue in [first, *again, last]:     # the order in which a route has them
        fan.exchanges.add_queue(queue.name, queue)
    for queue in [*fan.queues, first, last]:
        fan.exchanges.bind(exchange, fan.exchanges.queues[queue.name], b"")
    if position := line.submit()[0]:
        line.commit(position)
    fan.client.sendall(publish("both", "", b"x") + publish("", "q7", b"y"))
    positions = []
    for _ in range(30):
        fan.poller.turn()
        if position := line.submit()[0]:
            positions.append(position)
    assert fan.had() == MANY + 1 and positions
    assert fan.methods() == [m.BasicAck(delivery_tag=2)]
    line.give_up("no leader", positions[0])
    for position in positions[1:]:
        line.commit(position)
    fan.turn()
    assert fan.methods() == [m.BasicNack(delivery_tag=1, requeue=False)]


@pytest.mark.parametrize("fan", [FEWER], indirect=True)
def test_what_is_behind_a_publish_in_the_same_record_of_tls(fan: Fan, tmp_path: Path) -> None:
    """One read of TLS may bring a large frame and what follows it."""
    certificate, key = issue(make_ca(tmp_path), "localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    theirs, ours = socket.socketpair()
    for side in (theirs, ours):
        side.setblocking(False)
    secure = server.wrap_socket(theirs, server_side=True, do_handshake_on_connect=False)
    fan.poller.adopt(AmqpConnection(fan.hub, secure.fileno(), fan.poller.epoll, fan.handler, secure))
    client = trusting.wrap_socket(ours, do_handshake_on_connect=False)
    for _ in range(50):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        fan.poller.turn()
    client.sendall(PROTOCOL_HEADER + m.ChannelOpen().frame(1))
    fan.turn()
    connection = next(one for one in fan.poller.connections if one.secure)
    connection.frame_max = connection.packet_bytes_max = 1 << 20     # type: ignore[attr-defined]
    sent = memoryview(in_one_frame(b"y" * 66_000) + publish("", "q7", b"behind") * 900)
    for _ in range(300):
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
            if sent:
                sent = sent[client.send(sent[:20_000]):]
        fan.poller.turn()
    assert not sent and fan.counts() == [901 if number == 7 else 1 for number in range(FEWER)]
    assert not fan.handler.errors and not fan.handler.channel_errors
    client.close()


def test_a_queue_that_is_deleted_meanwhile_gets_nothing(fan: Fan) -> None:
    fan.client.sendall(in_one_frame(b"x"))
    assert fan.turn_once() < MANY
    gone = fan.queues.pop()
    fan.manager.delete(gone.address)
    fan.exchanges.remove_queue(gone.name)
    fan.turn_until(MANY - 1)
    fan.turn()
    assert gone.logs[0].messages_in == 0
    assert isinstance(fan.methods()[0], m.BasicAck)


def test_a_channel_that_ends_meanwhile_ends_its_publish_and_no_other(fan: Fan) -> None:
    """The rest is not confirmed, so the publisher does not count on it. The next publish goes to all."""
    fan.client.sendall(in_one_frame(b"x") + publish("fan", "", b"other", channel=2))
    fan.turn_once()
    fan.connection.channels[1].begin_closing()
    before = fan.had()
    assert before < MANY
    fan.turn_until(before + MANY)
    assert min(fan.counts()) == 1 and max(fan.counts()) == 2
    fan.turn()
    assert fan.confirmed() == [2]


def test_a_connection_that_ends_in_the_middle(fan: Fan) -> None:
    """It is handled to its end, as everything that has arrived."""
    fan.client.sendall(in_one_frame(b"x"))
    fan.turn_once()
    fan.client.shutdown(socket.SHUT_WR)
    fan.turn_until(MANY)
    for _ in range(10):
        fan.poller.turn()
    assert fan.handler.ended == 1


def test_a_transaction_is_one_piece(fan: Fan) -> None:
    fan.connection.open_channel(3)
    fan.client.sendall(m.TxSelect().frame(3) + publish("fan", "", b"x", channel=3) + m.TxCommit().frame(3))
    counts = [fan.turn_once() for _ in range(5)]
    assert sorted(counts) == [0, 0, 0, 0, MANY]


# ---------------------------------------------------------------- many that go at once

@pytest.fixture
def bench() -> Iterator[Bench]:
    with accepting() as made:
        yield made


def test_the_end_of_many_connections_goes_over_several_rounds(bench: Bench) -> None:
    """With a bystander's answer in each. None is forgotten, however few rounds the poller is given for itself."""
    connections = []
    for number in range(900):
        client, connection = bench.connect()
        client.sendall(CONNECT % (number % 10))
        connections.append((client, connection))
        if number % 50 == 49:
            bench.turn_until(lambda: all(connection.open for _, connection in connections))
    bystander, _ = connections.pop()
    for client, _ in connections:
        client.close()
    ended = bench.handler.ended
    assert ended == 0
    most = rounds = 0
    while bench.handler.ended < len(connections):
        bystander.sendall(PINGREQ)
        before = bench.handler.ended
        bench.poller.turn()
        assert bystander.recv(10) == PINGRESP
        most, rounds = max(most, bench.handler.ended - before), rounds + 1
        assert rounds < 1000
    assert most <= WORK_ROUND // WORK_COLD + 2
    assert rounds >= len(connections) * WORK_COLD // WORK_ROUND
    assert all(connection.ended for _, connection in connections)


def test_more_connections_than_one_wait_reports_share_the_work_of_one_round(bench: Bench) -> None:
    """The last of those that are ready has its answer behind the work of two rounds, not of one for each wait."""
    connections = [bench.connect() for _ in range(3 * EVENTS_MAX + 100)]
    for at in range(0, len(connections), 100):
        for client, _ in connections[at:at + 100]:
            client.sendall(CONNECT % 1)
        bench.turn_until(lambda upto=at: all(  # type: ignore[misc]
            connection.open for _, connection in connections[upto:upto + 100]))
    for _ in range(5):
        bench.poller.turn()             # until epoll has forgotten them
    bystander, watching = connections.pop()
    for client, _ in connections:
        client.close()
    bystander.sendall(PINGREQ)
    turns = 0
    while bench.hub.counters()["packets_received"][12] == 0:
        bench.poller.turn()
        turns += 1
    assert bystander.recv(10) == PINGRESP
    assert turns <= 5
    assert bench.handler.ended <= 2 * (WORK_ROUND // WORK_COLD + 2)
    bench.turn_until(lambda: bench.handler.ended == len(connections))
    assert watching.open


def test_one_that_left_ends_although_others_use_up_every_round(bench: Bench) -> None:
    """Each of them less than its share, so that all are served before who waits for a round with room."""
    busy = [bench.connect() for _ in range(100)]
    leaver, leaving = bench.connect()
    for client, _ in [*busy, (leaver, leaving)]:
        client.sendall(CONNECT % 1)
    bench.turn_until(lambda: leaving.open and all(connection.open for _, connection in busy))
    bench.handler.packets.clear()
    packets = b"\xf0\x04abcd" * 4
    assert len(busy) * 4 * WORK_COLD > WORK_ROUND
    ended = []
    for rounds in range(4):
        for client, _ in busy:
            client.sendall(packets)
        if rounds == 0:
            leaver.close()
        bench.poller.turn()
        assert len(bench.handler.packets) == 4 * len(busy) * (rounds + 1), "these never wait"
        ended.append(leaving.ended)
    assert ended in ([False, True, True, True], [True] * 4)
