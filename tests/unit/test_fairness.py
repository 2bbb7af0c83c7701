"""A round of the poller is divided: whoever sends more than a share waits for its turn, everybody else is answered in
the round in which it asks. Shown by counts of what was handled, not by time."""
from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.test_amqp091_connection import Bench as AmqpBench
from unit.test_amqp091_connection import publish
from unit.test_connection import UPGRADE, Bench, accepting, arrived, masked

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.net.amqp091_connection import PROTOCOL_HEADER, AmqpConnection
from fluxmq._core.net.connection import Connection

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
# As memory/node.pxd has them.
WORK_RETAIN, WORK_COLD, WORK_ROUND, WORK_SHARE_MAX, WORK_SHARE_MIN = 200, 800, 262_144, 65_536, 4096
SHARE_PACKETS = WORK_SHARE_MAX // WORK_COLD + 1
ROUND_PACKETS = WORK_ROUND // WORK_COLD
READ_BYTES_MIN = 8192
CONNECT = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"


def cold(number: int) -> bytes:
    """A packet for the handler, with a number in it."""
    return b"\xf0\x04" + struct.pack(">I", number)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with accepting() as made:
        yield made


def opened(bench: Bench, **more: int) -> tuple[socket.socket, Connection]:
    client, connection = bench.connect(server_buffer=1 << 20, **more)
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.handler.packets.clear()
    return client, connection


def send(client: socket.socket, connection: Connection, data: bytes) -> None:
    """Until all of it has arrived."""
    client.sendall(data)
    while arrived(connection) < len(data):
        pass


def numbers(bench: Bench) -> list[int]:
    return [struct.unpack(">I", body)[0] for _, body in bench.handler.packets]


def test_a_flood_of_cold_packets_has_a_share_of_a_round_and_a_bystander_his_answer(bench: Bench) -> None:
    flooder, flooding = opened(bench)
    bystander, watching = opened(bench)
    send(flooder, flooding, b"".join(cold(number) for number in range(5000)))
    for _ in range(3):
        send(bystander, watching, PINGREQ)
        before = len(bench.handler.packets)
        bench.poller.turn()
        assert 0 < len(bench.handler.packets) - before <= SHARE_PACKETS
        assert bystander.recv(10) == PINGRESP
    bench.turn_until(lambda: len(bench.handler.packets) == 5000)
    assert numbers(bench) == list(range(5000)), "each once, in order, however many rounds it took"
    assert not flooding.paused


def test_a_round_has_an_end_however_many_flood(bench: Bench) -> None:
    floods = [opened(bench) for _ in range(20)]
    bystander, watching = opened(bench)
    for at, (client, connection) in enumerate(floods):
        send(client, connection, b"".join(cold(at * 1000 + number) for number in range(1000)))
    rounds = 0
    while len(bench.handler.packets) < 20_000:
        send(bystander, watching, PINGREQ)
        before = len(bench.handler.packets)
        bench.poller.turn()
        rounds += 1
        # Who comes for the first time has a share at once, the others until the round has done enough.
        assert len(bench.handler.packets) - before <= 2 * ROUND_PACKETS + SHARE_PACKETS
        assert bystander.recv(10) == PINGRESP
        done = [0] * 20
        for number in numbers(bench):
            done[number // 1000] += 1
        if max(done) < 1000:
            assert max(done) - min(done) <= 2 * SHARE_PACKETS, "all have the same share"
    by_client = [[number for number in numbers(bench) if number // 1000 == at] for at in range(20)]
    assert by_client == [list(range(at * 1000, at * 1000 + 1000)) for at in range(20)]
    assert rounds >= 20_000 // (2 * ROUND_PACKETS + SHARE_PACKETS)


def test_who_floods_is_read_in_small_pieces(bench: Bench) -> None:
    """What waits for its turn waits in the kernel, or a thousand floods would hold 256 KiB each."""
    client, connection = opened(bench)
    client.setblocking(False)
    rest = memoryview(b"".join(cold(number) for number in range(150_000)))
    pieces = []
    while len(bench.handler.packets) < 150_000:
        with contextlib.suppress(BlockingIOError):
            rest = rest[client.send(rest):]
        before = bench.hub.counters()["bytes_received"]
        bench.poller.turn()
        if bench.hub.counters()["bytes_received"] != before:
            pieces.append(bench.hub.counters()["bytes_received"] - before)
    client.settimeout(10)
    assert len(pieces) > 8 and max(pieces[6:]) <= READ_BYTES_MIN
    # One that sends less than its share has whole reads again.
    bench.handler.packets.clear()
    for number in range(10):
        send(client, connection, cold(number))
        bench.turn_until(lambda wanted=number + 1: len(bench.handler.packets) == wanted)  # type: ignore[misc]
    assert not connection.greedy


def test_a_flood_of_publishes_to_many_is_counted_by_deliveries(bench: Bench) -> None:
    sessions = [bench.hub.new_session(b"s%d" % number, 0) for number in range(3000)]
    for session in sessions:
        bench.hub.subscribe(session, b"t", 0, 0)
    bench.poller.linger_ms = 0
    client, connection = opened(bench)
    bystander, watching = opened(bench)
    send(client, connection, b"\x30\x04\x00\x01tx" * 1000)
    send(bystander, watching, PINGREQ)
    bench.poller.turn()
    received = bench.hub.counters()["messages_received"][0]
    assert 0 < received <= WORK_SHARE_MAX // 9000 + 1
    assert bystander.recv(10) == PINGRESP
    bench.turn_until(lambda: bench.hub.counters()["messages_received"][0] == 1000)
    for session in sessions:
        bench.hub.unsubscribe(session, b"t")


def test_a_flood_of_retained_messages_is_counted_by_what_a_change_costs(bench: Bench) -> None:
    bench.poller.linger_ms = 0
    client, connection = opened(bench)
    bystander, watching = opened(bench)
    changes = [b"\x31\x06\x00\x03%03dx" % number for number in range(900)]
    send(client, connection, b"".join(changes))
    send(bystander, watching, PINGREQ)
    bench.poller.turn()
    assert 0 < bench.hub.counters()["retained"] <= WORK_SHARE_MAX // WORK_RETAIN + 1
    assert bystander.recv(10) == PINGRESP
    bench.turn_until(lambda: bench.hub.counters()["retained"] == len(changes))


def test_what_waits_for_its_turn_is_no_silence(bench: Bench) -> None:
    client, connection = opened(bench)
    connection.keep_alive_ms = 10
    send(client, connection, b"".join(cold(number) for number in range(2000)))
    bench.poller.turn()
    assert len(bench.handler.packets) < 2000
    bench.hub.set_clock(bench.hub.now_ms + 100_000, bench.hub.mono_ms + 100_000)
    assert connection.tick() == ""
    bench.turn_until(lambda: len(bench.handler.packets) == 2000)
    assert connection.tick() == ""


def test_a_pause_in_the_middle_of_a_flood_keeps_the_order(bench: Bench) -> None:
    client, connection = opened(bench)
    send(client, connection, b"".join(cold(number) for number in range(3000)))
    for _ in range(4):
        bench.poller.turn()
        connection.pause()
        had = len(bench.handler.packets)
        bench.poller.turn()
        bench.poller.turn()
        assert len(bench.handler.packets) == had
        connection.resume()
    bench.turn_until(lambda: len(bench.handler.packets) == 3000)
    assert numbers(bench) == list(range(3000))


def test_a_peer_that_floods_and_leaves_is_handled_to_the_end(bench: Bench) -> None:
    client, connection = opened(bench)
    send(client, connection, b"".join(cold(number) for number in range(1000)) + b"\x30\x03\x00")
    client.shutdown(socket.SHUT_WR)
    bench.turn_until(lambda: connection.ended)
    assert numbers(bench) == list(range(1000))
    assert bench.handler.ended == 1


def test_an_error_in_the_middle_of_what_waited(bench: Bench) -> None:
    client, connection = opened(bench)
    send(client, connection, b"".join(cold(number) for number in range(500)) + b"\xc0\x01x" + cold(9))
    bench.turn_until(lambda: connection.ended)
    assert numbers(bench) == list(range(500))
    assert len(bench.handler.errors) == 1
    bench.turn_until(lambda: connection.fd not in bench.poller.connections or client.recv(1) == b"")


def test_a_flood_over_websocket(bench: Bench) -> None:
    client, connection = bench.connect(websocket=True, server_buffer=1 << 20)
    client.sendall(UPGRADE)
    bench.poller.turn()
    client.sendall(masked(2, CONNECT))
    bench.turn_until(lambda: connection.open)
    bench.handler.packets.clear()
    packets = b"".join(cold(number) for number in range(2000))
    frames = b"".join(masked(2, packets[at:at + 1001]) for at in range(0, len(packets), 1001))
    send(client, connection, frames + masked(8, b"\x03\xe8"))
    bench.poller.turn()
    assert 0 < len(bench.handler.packets) <= 2 * SHARE_PACKETS
    bench.turn_until(lambda: connection.ended)
    assert numbers(bench) == list(range(2000)), "its Close came behind them"


def test_a_flood_over_tls(bench: Bench, tmp_path: Path) -> None:
    client, connection = bench.connect_tls(tmp_path)
    client.sendall(CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.handler.packets.clear()
    packets = b"".join(cold(number) for number in range(8000))
    client.sendall(packets)
    most = 0
    while len(bench.handler.packets) < 8000:
        before = len(bench.handler.packets)
        bench.poller.turn()
        most = max(most, len(bench.handler.packets) - before)
    assert most <= 2 * SHARE_PACKETS
    assert numbers(bench) == list(range(8000))


def test_a_large_packet_behind_a_flood(bench: Bench) -> None:
    client, connection = opened(bench)
    connection.packet_bytes_max = 1 << 20
    large = b"\xf0\x80\x80\x20" + b"x" * (1 << 19)
    packets = b"".join(cold(number) for number in range(300))
    client.sendall(packets)
    bench.poller.turn()
    client.settimeout(None)
    client.setblocking(False)
    rest = memoryview(large + packets)

    def sent() -> bool:
        nonlocal rest
        if rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[client.send(rest):]
        return len(bench.handler.packets) == 601

    bench.turn_until(sent)
    bodies = [body for _, body in bench.handler.packets]
    assert bodies[300] == b"x" * (1 << 19)
    assert [struct.unpack(">I", body)[0] for body in bodies[:300] + bodies[301:]] == list(range(300)) * 2


# ---------------------------------------------------------------- AMQP 0-9-1

def test_a_flood_of_methods() -> None:
    bench = AmqpBench()
    bench.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1))
    bench.handler.methods.clear()
    bench.client.setblocking(True)
    bench.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    bench.client.sendall(b"".join(m.BasicQos(prefetch_count=number).frame(1) for number in range(2000)))
    most = 0
    while len(bench.handler.methods) < 2000:
        before = len(bench.handler.methods)
        bench.poller.turn()
        most = max(most, len(bench.handler.methods) - before)
    assert most <= SHARE_PACKETS
    counts = [method.prefetch_count for _, method in bench.handler.methods if isinstance(method, m.BasicQos)]
    assert counts == list(range(2000))
    bench.client.close()


@pytest.mark.parametrize(("answer", "cost"), [(m.BasicAck, 4), (m.BasicNack, 75)])
def test_one_method_that_settles_thousands_takes_several_rounds(answer: type[m.BasicAck | m.BasicNack],
                                                                cost: int) -> None:
    """What is delivered meanwhile is not settled by it, and what the client sends behind it waits."""
    count = 40_000 if answer is m.BasicAck else 4000
    bench = AmqpBench()
    bench.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1))
    queue = bench.queue(b"q")
    member = bench.consume(queue)
    seen = 0

    def deliver(more: int) -> None:
        nonlocal seen
        for _ in range(0, more, 100):
            bench.send(publish("", "q", b"x") * 100)
            seen += len(bench.methods())

    deliver(count)
    assert member.held == seen == count
    theirs, other = socket.socketpair()
    theirs.setblocking(False)
    bench.poller.adopt(AmqpConnection(bench.hub, theirs.detach(), bench.poller.epoll, bench.handler))
    other.sendall(PROTOCOL_HEADER + m.ChannelOpen().frame(1))
    bench.turn()
    method = {"requeue": False} if answer is m.BasicNack else {}
    bench.handler.methods.clear()
    # Tag 0: all that was sent until now.
    bench.client.sendall(answer(delivery_tag=0, multiple=True, **method).frame(1) + m.BasicQos().frame(1))
    rounds = 0
    while not any(isinstance(method, m.BasicQos) for _, method in bench.handler.methods):
        before = member.held
        bench.poller.turn()
        rounds += 1
        if rounds == 1:
            other.sendall(publish("", "q", b"late"))
        assert before - member.held <= WORK_SHARE_MAX // cost + 1
    assert rounds >= count * cost // WORK_SHARE_MAX
    assert member.held == 1, "what came meanwhile"
    bench.turn()
    assert len(bench.methods()) == 1
    for client in (bench.client, other):
        client.close()
