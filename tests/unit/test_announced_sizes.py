"""What a header announces is held against the limit before anything is done with it: wherever the header ends in a
read, and wherever a share of a round ends (net/transport.pxd, admit). And memory follows what has arrived."""
from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.test_amqp091_connection import Bench as AmqpBench
from unit.test_connection import UPGRADE, Bench, accepting, masked
from unit.test_fairness import CONNECT, PINGREQ, PINGRESP, SHARE_PACKETS, cold

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.net.amqp091_connection import PROTOCOL_HEADER
from fluxmq._core.net.connection import Connection
from fluxmq.model.limits import PACKET_BYTES_MAX

AROUND_A_SHARE = range(SHARE_PACKETS - 2, SHARE_PACKETS + 2)
FRAME_ERROR, PACKET_TOO_LARGE = 501, 0x95
UNTUNED = 32_768                # FRAME_MAX_UNTUNED of net/amqp091_connection.pyx
MIB = 1 << 20


@pytest.fixture
def bench() -> Iterator[Bench]:
    with accepting() as made:
        yield made


def sent(bench: AmqpBench, data: bytes) -> None:
    """In one read of the broker's."""
    bench.client.setblocking(True)
    bench.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    bench.client.sendall(data)
    bench.turn()


# ---------------------------------------------------------------- AMQP 0-9-1

@pytest.mark.parametrize("announced", [4097, 200_000, 1 << 31, 0xFFFF_FFF8, 0xFFFF_FFFF])
def test_a_frame_over_frame_max_where_a_share_ends(announced: int) -> None:
    for methods in AROUND_A_SHARE:
        bench = AmqpBench()
        bench.send(PROTOCOL_HEADER, m.ChannelOpen().frame(1))
        flood = m.BasicQos(prefetch_count=1).frame(1) * methods
        sent(bench, flood + struct.pack(">BHI", 1, 1, announced) + b"A" * 2000)
        assert bench.handler.errors == [(FRAME_ERROR, f"a frame of {announced + 8} bytes is over frame_max 4096")]
        assert len(bench.handler.methods) == 1 + methods
        assert not bench.handler.crashes
        bench.client.close()


def test_before_it_is_known_a_peer_has_smaller_frames() -> None:
    bench = AmqpBench()
    bench.handler.on_greeting = lambda connection: None     # type: ignore[method-assign]
    bench.send(PROTOCOL_HEADER, struct.pack(">BHI", 1, 0, UNTUNED), b"x" * (UNTUNED - 1))
    assert not bench.handler.errors
    other = AmqpBench()
    other.handler.on_greeting = lambda connection: None     # type: ignore[method-assign]
    other.send(PROTOCOL_HEADER, struct.pack(">BHI", 1, 0, UNTUNED + 1))
    assert other.handler.errors == [(FRAME_ERROR, "a frame of 32777 bytes is over frame_max 32768, in the handshake")]
    for one in (bench, other):
        one.client.close()


def test_seven_bytes_of_a_protocol_header_announce_nothing() -> None:
    bench = AmqpBench()
    bench.send(PROTOCOL_HEADER[:7])
    bench.send(PROTOCOL_HEADER[7:], m.ChannelOpen().frame(1))
    assert [type(method) for _, method in bench.handler.methods] == [m.ChannelOpen]
    bench.client.close()


# ---------------------------------------------------------------- MQTT

def opened(bench: Bench, *, websocket: bool = False) -> tuple[socket.socket, Connection]:
    client, connection = bench.connect(server_buffer=1 << 20, websocket=websocket)
    client.sendall(UPGRADE + masked(2, CONNECT) if websocket else CONNECT)
    bench.turn_until(lambda: connection.open)
    bench.handler.packets.clear()
    return client, connection


@pytest.mark.parametrize("length", [b"\x81\x80\x40", b"\xff\xff\xff\x7f"])      # one byte over a MiB; the most there is
def test_a_packet_over_the_limit_where_a_share_ends(bench: Bench, length: bytes) -> None:
    for packets in AROUND_A_SHARE:
        client, connection = opened(bench)
        connection.packet_bytes_max = MIB
        client.sendall(b"".join(cold(number) for number in range(packets)) + b"\x30" + length + b"A" * 2000)
        bench.turn_until(lambda connection=connection: connection.ended)        # type: ignore[misc]
        reason, text = bench.handler.errors.pop()
        assert reason == PACKET_TOO_LARGE
        assert text.endswith("is over the limit of 1048576 (broker.max_message_size)")
        assert not bench.handler.errors


def test_a_connect_that_announces_too_much(bench: Bench) -> None:
    client, connection = bench.connect()
    client.sendall(b"\x10\xff\xff\xff\x7f")
    bench.turn_until(lambda: connection.ended)
    assert bench.handler.errors == [(PACKET_TOO_LARGE, "a packet of 268435460 bytes is over the limit of 393216 "
                                                       "(the most that a CONNECT has)")]


# ---------------------------------------------------------------- memory

def address_space() -> int:
    """Of this process, bytes: also what was reserved and never touched."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


@pytest.mark.parametrize("websocket", [False, True])
def test_a_packet_that_is_only_announced_takes_no_memory(bench: Bench, websocket: bool) -> None:
    begun = b"\x32\xf0\xff\xff\x7e" + b"\x00\x01t\x00\x01"          # a PUBLISH of 254 MiB, and its first bytes
    before = address_space()
    connections = []
    for _ in range(16):
        client, connection = opened(bench, websocket=websocket)
        connection.packet_bytes_max = 256 * MIB
        client.sendall(masked(2, begun) if websocket else begun)
        connections.append(connection)
    for _ in range(3):
        bench.poller.turn()
    assert not any(connection.ended for connection in connections)
    assert address_space() - before < 64 * MIB


@pytest.mark.parametrize("size", [65_536 + 5, 262_144, 262_145, 3 * 262_144 + 1, 2 * MIB])
def test_a_large_packet_arrives_whole_however_its_memory_grows(bench: Bench, size: int) -> None:
    client, connection = opened(bench)
    connection.packet_bytes_max = 4 * MIB
    body = bytes(at * 7 % 251 for at in range(size - 5))
    remaining, length = len(body), bytearray()
    while remaining or len(length) < 4:
        length.append(remaining & 127 | (128 if len(length) < 3 else 0))
        remaining >>= 7
    client.settimeout(None)
    client.setblocking(False)
    if length[-1] == 0:
        length = length[:-1]
        length[-1] &= 127
    rest = memoryview(b"\xf0" + bytes(length) + body + cold(7))

    def arrived() -> bool:
        nonlocal rest
        if rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[client.send(rest):]
        return len(bench.handler.packets) == 2

    bench.turn_until(arrived)
    assert [len(body) for _, body in bench.handler.packets] == [len(body), 4]
    assert bench.handler.packets[0][1] == body


# ---------------------------------------------------------------- WebSocket

@pytest.mark.parametrize("opcode", [2, 0], ids=["first", "continuation"])
def test_a_websocket_frame_larger_than_any_packet(bench: Bench, opcode: int) -> None:
    """RFC 6455 section 7.4.1: 1009. One with several packets may be larger than each of them [MQTT-6.0.0-2]."""
    begun = b"" if opcode else masked(2, PINGREQ, fin=False)
    for length in (PACKET_BYTES_MAX, PACKET_BYTES_MAX + 1, 1 << 62):
        client, connection = opened(bench, websocket=True)
        client.sendall(begun + bytes((0x80 | opcode, 0xFF)) + struct.pack(">Q", length) + bytes(4) + PINGREQ)
        for _ in range(3):
            bench.poller.turn()
        assert connection.ended == (length > PACKET_BYTES_MAX)
        answer = client.recv(1 << 16)
        assert answer.endswith(b"\x88\x02" + struct.pack(">H", 1009) if connection.ended else PINGRESP)
