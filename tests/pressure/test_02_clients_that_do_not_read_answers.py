"""What the broker owes a client that sends and never reads: bounded, because such a client is no longer read.

The sender writes until the broker takes no more; then nothing may have grown far beyond the high water mark, others
are served, and when it reads at last every answer is there.
"""
from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import TIMEOUT, Client
from kit.watch import Memory
from kit.websocket import PING, WebSocket
from oracle.mqtt import Pingreq, Publish

MIB = 1 << 20
HIGH = 256 * 1024
BOUNDS = {"session.send_buffer_high": HIGH, "session.send_buffer_low": 64 * 1024, "broker.sys_interval": 0}
SLACK = 24 * MIB
SENT_BYTES_MAX = 96 * MIB       # what kernels keep for two sockets is far less

Connect = Callable[..., Client]
Start = Callable[..., Broker]


def send_until_refused(raw: socket.socket, block: bytes) -> tuple[int, bytes]:
    """Writes block after block until the kernel takes no more for a while; returns how many were begun, and what is
    left of the last one."""
    raw.settimeout(0.5)
    sent = at = 0
    with contextlib.suppress(TimeoutError):
        while sent * len(block) < SENT_BYTES_MAX:
            at += raw.send(block[at:])
            if at == len(block):
                sent, at = sent + 1, 0
    raw.settimeout(TIMEOUT)
    return (sent + 1, block[at:]) if at else (sent, b"")


BLOCKS: dict[str, tuple[bytes, int, int]] = {
    # name: (block, answers to one block, bytes of one answer)
    "pingreq": (Pingreq().encode() * 5000, 5000, 2),
    "qos 1": (b"".join(Publish(topic="t", qos=1, packet_id=number + 1).encode() for number in range(1000)), 1000, 5),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_answers_that_nobody_reads(start_broker: Start, connect: Connect, kind: str) -> None:
    block, answers, size = BLOCKS[kind]
    broker = start_broker(BOUNDS)
    deaf = connect(broker, "deaf", receive_buffer=4096)
    other = connect(broker, "other")
    other.subscribe("u", qos=1)
    memory = Memory(broker)
    raw = deaf.transport
    assert isinstance(raw, socket.socket)
    sent, unfinished = send_until_refused(raw, block)
    assert sent * len(block) < SENT_BYTES_MAX, "it is read although its answers pile up"
    assert memory.grown < SLACK
    other.publish("u", b"x", 1)
    other.receive("u", b"x")
    # It reads at last: while it does, the broker goes on reading too.
    wanted, got = sent * answers * size, 0
    raw.setblocking(False)
    poll = select.poll()        # select() takes no descriptor above 1023
    while got < wanted:
        poll.register(raw, select.POLLIN | (select.POLLOUT if unfinished else 0))
        ready = dict(poll.poll(10_000)).get(raw.fileno(), 0)
        assert ready, f"{wanted - got} bytes of answers never came"
        if ready & select.POLLIN:
            got += len(raw.recv(MIB))
        if ready & select.POLLOUT:
            unfinished = unfinished[raw.send(unfinished):]
    raw.setblocking(True)
    raw.settimeout(TIMEOUT)
    deaf.expect_quiet()


def test_pings_of_websocket(start_broker: Start, connect: Connect) -> None:
    """RFC 6455 section 5.5.3 lets the latest of several be answered alone, so that they cost next to nothing."""
    broker = start_broker(BOUNDS)
    socket_ = WebSocket.open(broker.websocket)
    deaf = Client(socket_)
    deaf.connect("deaf")
    memory = Memory(broker)
    for _ in range(200):
        socket_.raw.sendall((bytes([0x80 | PING, 0x80]) + bytes(4)) * 10_000)
    assert memory.grown < SLACK
    other = connect(broker)
    other.expect_quiet()
