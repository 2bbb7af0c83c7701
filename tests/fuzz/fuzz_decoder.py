"""Mutation fuzzer of the MQTT decoder. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_decoder.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes a stream of valid packets, spoils it in a few places, cuts it anywhere and feeds it to a Decoder.
Allowed outcomes: packets, None, ProtocolError with a reason of 0x80 or more. And every accepted packet, written again,
reads back as itself; the scan of PUBLISH properties agrees with the list. Whatever else happens is written to
regressions/decoder/ as a file, which the tests replay from then on.
"""
import sys
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer
from fuzz.fuzzing import mutate as mutate_with
from kit.exact import exact
from kit.mqtt_packets import VERSIONS, random_packet, random_properties

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.decode import Decoder, decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.props import decode_properties, encode_properties
from fluxmq._core.testing import codec as codec_testing

# Bytes that mean something: lengths at the edges, flags, property identifiers, the borders of UTF-8.
SPICE = bytes((0, 1, 2, 3, 4, 8, 9, 0x0B, 0x10, 0x11, 0x15, 0x16, 0x1F, 0x21, 0x23, 0x26, 0x27, 0x2A, 0x30, 0x3D, 0x62,
               0x7F, 0x80, 0x82, 0xA2, 0xC0, 0xC2, 0xED, 0xF0, 0xF4, 0xFF)) + b"+#/$"

PROPERTIES = 0xFF       # in place of a version: the bytes are the properties of a PUBLISH


def mutate(rng: Random, data: bytearray) -> None:
    mutate_with(rng, data, SPICE, 1)        # the second byte is the Remaining Length


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    return [make_input(seed, iteration), (PROPERTIES, spoilt_properties(seed, iteration))]


def make_input(seed: int, iteration: int) -> tuple[int, bytes]:
    """The version to decode with (0 = from CONNECT) and the bytes."""
    rng = Random(seed << 32 | iteration)
    version = rng.choice(VERSIONS)
    packets = [random_packet(rng, version, 1 if rng.random() < 0.3 else None)]
    packets += [random_packet(rng, version) for _ in range(rng.choice((0, 0, 1, 2)))]
    data = bytearray()
    for packet in packets:
        wire = bytearray(encode_packet(packet, version))
        # Long payloads hide what is interesting: keep the front.
        data += wire[:400] if len(wire) > 400 and rng.random() < 0.9 else wire
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        mutate(rng, data)
    return (0 if packets[0].packet_type == 1 and rng.random() < 0.7 else version), bytes(data)


def check(version: int, data: bytes, seen: Counter[str]) -> None:
    """Decode the stream and everything that may be asked of the result. Raises what must not happen."""
    if version == PROPERTIES:
        check_scan(data)
        return
    rng = Random(len(data))
    decoder = Decoder(version)
    at = 0
    try:
        while at < len(data):
            step = rng.choice((1, 2, 7, 64, len(data)))
            decoder.feed(data[at:at + step])
            at += step
            while (packet := decoder.next_packet()) is not None:
                seen[type(packet).__name__] += 1
                again = Decoder(decoder.version)
                again.feed(encode_packet(packet, 0 if packet.packet_type == 1 else decoder.version))
                assert again.next_packet() == packet, packet
                repr(packet)
    except ProtocolError as error:
        assert 0x80 <= error.reason <= 0xFF, error.reason
        assert error.text
        seen[f"refused 0x{error.reason:02X}"] += 1
    check_bodies(version, data)
    check_scan(data[:200])


def check_bodies(version: int, data: bytes) -> None:
    """Each packet of the stream by itself, and what there is of one that was cut, in memory that ends where it does."""
    at = 0
    while at < len(data):
        _, length, size = codec_testing.take("varint", exact(data[at + 1:at + 5]))
        body = data[at + 1 + size:at + 1 + size + (length if size else len(data))]
        try:
            decode_packet(data[at], exact(body), version)
        except ProtocolError as error:
            assert 0x80 <= error.reason <= 0xFF, error.reason
        at += 1 + size + len(body)


def check_scan(bare: bytes) -> None:
    bare = exact(bare)
    found = codec_testing.scan(bare)
    try:
        decode_properties(exact(codec_testing.put("varint", len(bare)) + bare), 3)
    except ProtocolError as error:
        assert found == error.reason, (found, error)
    else:
        assert isinstance(found, dict), found


def spoilt_properties(seed: int, iteration: int) -> bytes:
    rng = Random(seed << 33 | iteration)
    wire = encode_properties(random_properties(rng, 3))
    data = bytearray(wire[codec_testing.take("varint", wire)[2]:])
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        mutate(rng, data)
    return bytes(data)


FUZZER = Fuzzer("decoder", "Mutation fuzzer of the MQTT decoder.", make_inputs, check, kinds=(PROPERTIES,))

if __name__ == "__main__":
    FUZZER.main()
