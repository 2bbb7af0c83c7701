"""Mutation fuzzer of the frames between nodes. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_peer.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes a valid frame and spoils it in a few places. Allowed outcomes: what the naive reading finds too,
which written again is the same bytes; or a ProtocolError where that refuses as well. Whatever else happens is written
to regressions/peer/ as a file, which the tests replay from then on.
"""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer, mutate
from kit import amqp091_values
from kit.exact import exact
from kit.mqtt_packets import random_properties, text
from oracle import amqp091, peer

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.props import encode_properties
from fluxmq._core.testing.codec import scan
from fluxmq._core.testing.frames_probe import decode, encode

PUBLISH = 3
FIRST_LENGTH = 44           # where the length of the first record is
# Bytes that mean something: kinds, flags, lengths at the edges, wildcards, the borders of UTF-8.
SPICE = bytes((*range(22), 32, 40, 48, 0x7F, 0x80, 0xC2, 0xED, 0xF0, 0xFF)) + b"+#/"


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    rng = Random(seed << 32 | iteration)
    records = [random_record(rng) for _ in range(rng.choice((0, 1, 1, 2, 5)))]
    header = {"version": 1, "flags": rng.randrange(4), "age_s": rng.choice((0, 3)), "records": len(records),
              "epoch": rng.getrandbits(64), "to_epoch": 7, "sequence": rng.choice((0, 1, 1, rng.getrandbits(64)))}
    data = bytearray(peer.build(header, records))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        mutate(rng, data, SPICE, rng.choice((None, FIRST_LENGTH)))
    return [(0, bytes(data))]


def random_record(rng: Random) -> peer.Record:
    kind = rng.choice((*range(1, 21), 2, 2, 4, 9, 9, 10, 16, 16))
    if kind > 8:
        return random_of_queue(rng, kind)
    name, filter_ = text(rng, 1).encode(), rng.choice((b"#", b"a/+/b", text(rng, 1).encode()))
    if kind == 1:
        return kind, rng.choice((1, 2, rng.getrandbits(32))), name
    if kind == 4:
        return kind, 1, rng.randrange(3), rng.choice((b"", name)), filter_, rng.randrange(2)
    if kind in (5, 6):
        return (5,) if kind == 5 else (6, rng.randbytes(rng.randrange(20)))
    if kind == 8:
        return kind, rng.getrandbits(64), rng.getrandbits(16), rng.getrandbits(64)
    origin = random_origin(rng)
    one = (kind, 1, rng.choice((0, 1, 2, 4, 5, 6)), rng.choice((-1, 0, 5000)), name, mqtt_properties(rng),
           rng.randbytes(rng.choice((0, 1, 20, 300))))
    if kind == 3:
        return *one, text(rng, 1).encode(), filter_, *origin
    return (*one, *origin) if kind == 2 else (*one, rng.getrandbits(64), *origin)


def mqtt_properties(rng: Random) -> bytes:
    wire = encode_properties(random_properties(rng, PUBLISH), PUBLISH)
    found = scan(wire[1 if wire[0] < 0x80 else 2:])
    return found["forward"] if isinstance(found, dict) else b""


def random_origin(rng: Random) -> peer.Record:
    return rng.choice(((), ((rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(16)),)))


def random_of_queue(rng: Random, kind: int) -> peer.Record:
    number, long, data = rng.choice((1, 2, rng.getrandbits(32))), rng.getrandbits(64), rng.randbytes(rng.randrange(20))
    if kind == 10:
        return (kind, number, rng.randrange(4) | rng.choice((0, 16)), rng.choice((0, 1, 65535)), 0, long >> 1,
                rng.choice((1, 2, 1 << 20)), rng.choice((-1, 0, 5000)), rng.choice((b"", text(rng, 1).encode())))
    if kind in (11, 13):
        return kind, number, rng.randrange(2)
    if kind in (12, 14):
        return kind, number, long, rng.choice((0, 1, rng.getrandbits(16))), data
    if kind in (15, 19):
        position = rng.choice((long, number | rng.choice((0, 1, 2)) << 48))
        return (kind, position) if kind == 19 else (kind, position, rng.randrange(2))
    if kind == 17:
        return kind, number, rng.randrange(4), long
    if kind == 18:
        return kind, number, data
    if kind == 20:
        return kind, long, rng.choice((1, 0x80, 0x97)), rng.choice((b"", text(rng, 1).encode())), rng.randrange(2)
    content: tuple[int, bytes, bytes]
    if rng.randrange(2):
        exchange = rng.choice((b"", b"amq.topic", b"e" * 255))
        content = (1, bytes((len(exchange),)) + exchange + rng.choice((b"", b"k.1", b"\xff")),
                   amqp091.build_properties(amqp091_values.random_properties(rng)))
    else:
        content = 0, rng.choice((b"", text(rng, 1).encode())), mqtt_properties(rng)
    payload = rng.randbytes(rng.choice((0, 1, 20, 300)))
    if kind == 9:
        return (kind, long, rng.randrange(3), content[0],
                rng.choice((0, number)) | rng.choice((0, 1, 2)) << 48, rng.choice((-1, 0, 5000)),
                *content[1:], payload, *random_origin(rng))
    message = peer.log_message(long, content[0], rng.randrange(3), *content[1:], payload, rng.getrandbits(62), 0,
                               rng.randrange(256))
    return kind, number, rng.choice((0, 1, 65535)), rng.randrange(4), rng.choice((0, 1, 5000)), message, long, *content


def check(kind: int, data: bytes, seen: Counter[str]) -> None:
    """Raises what must not happen."""
    try:
        header, records = decode(exact(data))
    except ProtocolError as error:
        assert 0x80 <= error.reason <= 0xFF and error.text
        seen[f"refused 0x{error.reason:02X}"] += 1
        try:
            _, records = peer.read(data)
        except peer.Malformed:
            return
        # The naive reading does not look into properties of MQTT.
        assert not all(map(forwarded, peer.mqtt_properties(records)))
        seen["refused properties"] += 1
        return
    assert (header, records) == peer.read(data)
    assert encode(header, records) == data
    seen.update(f"record {record[0]}" for record in records)
    seen["frame"] += 1


def forwarded(properties: bytes) -> bool:
    found = scan(properties)
    return isinstance(found, dict) and found["forward"] == properties


FUZZER = Fuzzer("peer", "Mutation fuzzer of the frames between nodes.", make_inputs, check)

if __name__ == "__main__":
    FUZZER.main()
