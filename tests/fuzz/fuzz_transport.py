"""Mutation fuzzer of whole connections: MQTT, MQTT over WebSocket, AMQP 0-9-1. Deterministic: a seed and an iteration
number are an input.

    python tests/fuzz/fuzz_transport.py [--seconds S | --iterations N] [--seed K] [--out DIR]

The node is that of the simulator: production code from the bytes of a connection to the calls of the disk. Each
iteration takes what a client sends from its first byte on, puts headers into it that announce sizes at the edges of
every limit, and spoils it in a few places. It is played to a node of its own four times:

    whole       in one read, with a share that holds all of it
    by packet   in one read, with a share that ends behind each packet: every limit of a turn there is
    by byte     in pieces that end anywhere, headers and the bytes of lengths included
    both        such pieces, such shares

Allowed outcomes: no crash of a handler, no error of the disk; and the connection ends by the same error, or goes on,
wherever it was cut. The rest is for the sanitizers (tox -e sanitize). Whatever else happens is written to
regressions/transport/ as a file, which the tests replay from then on.
"""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer, mutate
from kit.mqtt_packets import random_packet
from oracle import websocket
from oracle.amqp091 import BODY, HEADER, METHOD, PROTOCOL, encode_frame, encode_header, encode_method
from simulator.disk import Disk
from simulator.node import Clock, Node, Options, Pipe

from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Connect, Publish

MQTT, WEBSOCKET, AMQP = range(3)
SPICE = bytes((0, 1, 2, 3, 4, 5, 10, 20, 0x30, 0x32, 40, 60, 0x7E, 0x7F, 0x80, 0x82, 85, 90, 0xCE, 0xFE, 0xFF))
FROM_CLIENT = (3, 3, 3, 3, 4, 5, 6, 7, 8, 8, 10, 12, 12)
UPGRADE = (b"GET /mqtt HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
           b"Sec-WebSocket-Protocol: mqtt\r\n\r\n")
# Around what a packet may have in memory of its own (65 536), in a read (262 144), by each limit, by its field.
MQTT_SIZES = (0, 1, 127, 128, 16_383, 16_384, 65_530, 65_536, 65_537, 262_144, 393_216, 393_217, (1 << 20) + 65_531,
              (1 << 20) + 65_536, 2_097_151, 2_097_152, 268_435_455)
FRAME_SIZES = (0, 1, 4088, 4096, 4097, 32_768, 32_769, 65_527, 65_528, 131_064, 131_072, 131_073, 262_144, 1 << 20,
               0x7FFF_FFF8, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFF7, 0xFFFF_FFF8, 0xFFFF_FFFE, 0xFFFF_FFFF)
BODY_SIZES = (0, 1, 5, 4096, 65_536, 1 << 20, (1 << 24) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, (1 << 64) - 1)
FOLLOWS = (0, 1, 7, 100, 2000, 5000)        # bytes that arrive behind a header that announces more
TURNS_MAX = 4000
# Whether an acknowledgement is right depends on what the broker had sent by then, and so on its turns.
OF_WHAT_WAS_SENT = ("packet identifier", "delivery tag")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def some(rng: Random) -> bytes:
    return b"A" * rng.choice(FOLLOWS)


def mqtt_stream(rng: Random) -> bytearray:
    version = rng.choice((4, 5))
    parts = [encode_packet(Connect(client_id=f"c{rng.randrange(3)}", protocol_level=version, clean_start=True), 0)]
    for _ in range(rng.choice((1, 3, 10, 40))):
        packet = random_packet(rng, version, rng.choice(FROM_CLIENT))
        if rng.random() < 0.3:              # runs of one topic have a path of their own
            packet = Publish(topic="t", payload=b"x" * rng.randrange(40))
        parts.append(encode_packet(packet, version))
    if rng.random() < 0.8:
        at = rng.choice((0, len(parts), rng.randrange(len(parts) + 1)))
        parts.insert(at, bytes((rng.choice((0x10, 0x30, 0x32, 0x82, 0xF0)),)) + varint(rng.choice(MQTT_SIZES))
                     + some(rng))
    return bytearray(b"".join(parts))


def websocket_stream(rng: Random) -> bytearray:
    data, out = mqtt_stream(rng), bytearray()
    while data:
        size = rng.choice((1, 5, 40, 200, 70_000))
        out += websocket.build(websocket.BINARY, bytes(data[:size]), rng.randbytes(4))
        del data[:size]
        if rng.random() < 0.1:
            out += websocket.build(rng.choice((websocket.PING, websocket.PONG)), rng.randbytes(rng.choice((0, 9, 125))),
                                   rng.randbytes(4))
        if rng.random() < 0.05:             # a header that announces anything
            out += bytes((rng.choice((0x82, 0x02, 0x80, 0x89)), 0xFF)) + rng.choice(
                (0, 126, 65_536, 268_435_460, 268_435_461, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)).to_bytes(8)
    return bytearray(UPGRADE) + out


def method(name: str, channel: int = 1, **arguments: Any) -> bytes:
    return encode_frame(METHOD, channel, encode_method(name, **arguments))


def publish(rng: Random) -> bytes:
    size = rng.choice((0, 1, 100, 5000))
    frames = [method("basic.publish", exchange=rng.choice(("", "amq.topic")), routing_key=rng.choice(("q", "none")),
                     mandatory=rng.random() < 0.2),
              encode_frame(HEADER, 1, encode_header(rng.choice((size, size, size, *BODY_SIZES)), {"delivery_mode": 2}))]
    body = rng.randbytes(size)
    while body:
        step = rng.choice((1, 1000, 4088))
        frames.append(encode_frame(BODY, 1, body[:step]))
        body = body[step:]
    return b"".join(frames)


def amqp_stream(rng: Random) -> bytearray:
    parts = [PROTOCOL,
             method("connection.start-ok", 0, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"),
             method("connection.tune-ok", 0, channel_max=10, frame_max=rng.choice((4096, 131_072)), heartbeat=0),
             method("connection.open", 0, virtual_host="/"), method("channel.open")]
    opened = len(parts)
    makes: list[Callable[[], bytes]] = [
        lambda: method("basic.qos", prefetch_count=rng.randrange(9)), lambda: method("queue.declare", queue="q"),
        lambda: method("basic.consume", queue="q", consumer_tag=f"t{rng.randrange(3)}"), lambda: publish(rng),
        lambda: method("basic.get", queue="q"), lambda: method("confirm.select"),
        lambda: method("basic.ack", delivery_tag=rng.randrange(4), multiple=rng.random() < 0.5),
        lambda: encode_frame(8, 0, b"")]
    for _ in range(rng.choice((1, 3, 10, 40))):
        parts.append(rng.choice((makes[0], makes[3], *makes))())
    if rng.random() < 0.8:
        at = rng.choice((1, opened, len(parts), rng.randrange(1, len(parts) + 1)))
        parts.insert(at, bytes((rng.choice((1, 2, 3, 8)), 0, rng.choice((0, 1, 2))))
                     + rng.choice(FRAME_SIZES).to_bytes(4) + some(rng))
    return bytearray(b"".join(parts))


STREAMS = {MQTT: mqtt_stream, WEBSOCKET: websocket_stream, AMQP: amqp_stream}


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    rng = Random(f"{seed}/{iteration}")
    kind = rng.choice((MQTT, MQTT, WEBSOCKET, AMQP, AMQP, AMQP))
    data = STREAMS[kind](rng)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        mutate(rng, data, SPICE)
    return [(kind, bytes(data))]


# ── playing it ───────────────────────────────────────────────────────────────────────────────────────────────


def pieces(data: bytes, rng: Random | None) -> list[bytes]:
    if rng is None:
        return [data]
    cuts = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(min(40, len(data))))})
    return [data[one:other] for one, other in pairwise(cuts)]


def play(kind: int, parts: list[bytes], share: int | None) -> tuple[list[str], bool]:
    """What the broker said of the connection, and whether it ended it. share: of a round, in units of work."""
    said: list[str] = []

    def told(level: str, text: str, fields: dict[str, Any]) -> None:
        if level in ("warning", "error"):
            said.append(f"{fields.get('reason', '')} {text}")

    node = Node(Disk(Random(1)), Clock(), Options(virtual_hosts=("/",)), Random(1), told)
    node.start()
    if share is not None:
        node.poller.share_max = share
    pipe = node.accept_amqp() if kind == AMQP else node.accept_mqtt(websocket=kind == WEBSOCKET)
    for part in parts:
        pipe.to_broker += part
        run(node, pipe)
    assert not node.crashes, node.crashes
    assert node.failed is None, node.failed
    ended = pipe.broker_closed or pipe not in node.pipes.values()
    node.hub.end()
    node.forget_routes()
    return said, ended


def run(node: Node, pipe: Pipe) -> None:
    """Until nothing is left to do."""
    for _ in range(TURNS_MAX):
        before = len(pipe.to_broker)
        node.turn()
        wrote = node.write_journal()
        if not (node.woken or wrote or node.journal_speaks or len(pipe.to_broker) != before):
            return
    raise AssertionError("the node does not come to rest")


def check(kind: int, data: bytes, seen: Counter[str]) -> None:
    rng = Random(data)
    said, ended = play(kind, [data], None)
    for name, parts, share in (("by packet", [data], 1), ("by byte", pieces(data, rng), None),
                               ("both", pieces(data, rng), 1)):
        again = play(kind, parts, share)
        if not any(word in line for line in said + again[0] for word in OF_WHAT_WAS_SENT):
            assert again == (said, ended), f"{name}: {again}, and whole: {(said, ended)}"
    seen[("mqtt", "websocket", "amqp")[kind]] += 1
    for line in said:
        seen[" ".join(word for word in line.split() if not any(c.isdigit() for c in word[2:]))[:60]] += 1


FUZZER = Fuzzer("transport", "Mutation fuzzer of whole connections.", make_inputs, check, 20_261_128)

if __name__ == "__main__":
    FUZZER.main()
