"""What a message to another node costs: put into a frame here, taken out and routed there.

    pytest bench/micro/bench_peer.py --benchmark-columns=min,median,rounds

QoS 0, a topic of 16 bytes, payloads of 64 and 256; extra_info has the nanoseconds per message.

    publish   a connection parses PUBLISH and one session of this node gets it: what a message costs without peers
    forward   the same, and the one who wants it is another node: parse, route, append to the frame, make the frame
    encode    of that, PeerOutbox alone: append and make the frame
    decode    PeerInbox: all records checked and applied, and nobody wants the topic
    deliver   the same, and one session gets it

publish and deliver encode a PUBLISH for the session's link, whose bytes are thrown away. A turn has 500 messages, and
its frame is acknowledged at once. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
import socket
from typing import Any

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.inbox import PeerInbox
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.testing.hub_probe import HubProbe
from fluxmq._core.testing.peer_probe import forward_many, open_connection, parse_many
from fluxmq.bench.micro.timing import note_nanoseconds

MESSAGES = 2_000 if os.environ.get("FLUXMQ_BENCH_SMOKE") == "1" else 50_000
TURN = 500                  # packets of one read
TOPIC = b"plant/7/dev/0042"
ROUNDS = 10


class Nobody:
    """The handler of an inbox that gets messages only."""

    def on_applied(self, sequence: int) -> None: ...
    def on_interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int,
                    durable: bool) -> None: ...
    def on_interest_end(self) -> None: ...
    def on_control(self, data: bytes) -> None: ...
    def on_group_message(self, *what: object) -> None: ...
    def on_attach(self, number: int, queue: int, data: bytes) -> None: ...
    def on_detach(self, number: int, rests: bool) -> None: ...
    def on_call(self, number: int, queue: int, data: bytes) -> None: ...
    def on_result(self, number: int, data: bytes) -> None: ...
    def on_refused(self, sequence: int, why: str) -> None: ...


def outbox_of(hub: Hub) -> tuple[PeerOutbox, list[bytes]]:
    frames: list[bytes] = []
    outbox = PeerOutbox(hub, "b", 1, 1 << 30)
    outbox.attach(frames.append, 2, 0)
    return outbox, frames


def end_turn(outbox: PeerOutbox, frames: list[bytes]) -> None:
    """The other node has everything."""
    outbox.on_idle()
    outbox.acknowledged(outbox.newest_sequence)
    frames.clear()


def measure(benchmark: Any, run: Any, setup: Any = None) -> None:
    benchmark.pedantic(run, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_message", MESSAGES)


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("what", ["publish", "forward"])
def test_connection(benchmark: Any, what: str, size: int) -> None:
    probe = HubProbe(1, 5)          # of another version than the publisher, so that packets are not passed on unread
    packet = b"\x30" + bytes([*length(2 + len(TOPIC) + size)]) + b"\0\x10" + TOPIC + b"x" * size
    near, far = socket.socketpair()
    with near, far:
        connection = open_connection(probe.hub, far.detach())
        outbox, frames = outbox_of(probe.hub)
        if what == "publish":
            probe.subscribe(0, TOPIC)
        else:
            probe.hub.targets.add_peer(outbox, TOPIC)
        packets = packet * TURN

        def turns() -> None:
            for _ in range(MESSAGES // TURN):
                parse_many(connection, packets, 1, probe.sessions[0])
                end_turn(outbox, frames)

        measure(benchmark, turns)
        assert (outbox.records > 0) == (what == "forward")
        connection.abort()


def length(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 0x7F | 0x80, n >> 7])


@pytest.mark.parametrize("size", [64, 256])
def test_encode(benchmark: Any, size: int) -> None:
    outbox, frames = outbox_of(Hub(None))
    payload = b"x" * size

    def turns() -> None:
        for _ in range(MESSAGES // TURN):
            forward_many(outbox, TOPIC, payload, 0, TURN)
            end_turn(outbox, frames)

    measure(benchmark, turns)


@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("what", ["decode", "deliver"])
def test_decode(benchmark: Any, what: str, size: int) -> None:
    outbox, frames = outbox_of(Hub(None))
    outbox.on_idle()
    forward_many(outbox, TOPIC, b"x" * size, 0, MESSAGES)
    outbox.cut()
    while len(frames) <= outbox.newest_sequence:
        outbox.on_idle()
    probe = HubProbe(1)
    if what == "deliver":
        probe.subscribe(0, TOPIC)

    def inbox() -> tuple[tuple[PeerInbox], dict[str, Any]]:
        return (PeerInbox(probe.hub, "a", 1, 2, Nobody()),), {}

    def apply(inbox: PeerInbox) -> None:
        for frame in frames:
            inbox.apply(frame)
            if what == "deliver":
                probe.take(0)

    measure(benchmark, apply, inbox)
