"""Properties of the MQTT codec: it reads and writes what a naive one does (tests/oracle/mqtt.py), whatever the cuts,
and raises only ProtocolError."""
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.exact import exact
from kit.mqtt_packets import KINDS, VERSIONS, random_packet, random_properties
from kit.oracle_packets import named, wire_of
from oracle import mqtt as oracle

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.decode import Decoder, decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Packet
from fluxmq._core.mqtt.props import decode_properties, encode_properties, property_table
from fluxmq._core.testing import codec as codec_testing

randoms = st.randoms(use_true_random=False)
versions = st.sampled_from(VERSIONS)
FORWARDED = (0x01, 0x03, 0x08, 0x09, 0x26)


def body_of(wire: bytes) -> bytes:
    at = 1
    while wire[at] & 0x80:
        at += 1
    return wire[at + 1:]


def drain(decoder: Decoder) -> list[Packet]:
    found = []
    while (packet := decoder.next_packet()) is not None:
        found.append(packet)
    return found


def outcome(decoder: Decoder, chunks: list[bytes]) -> tuple[list[Packet], int | None]:
    """The packets before the end or the first error, and its reason."""
    found: list[Packet] = []
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            while (packet := decoder.next_packet()) is not None:
                found.append(packet)
    except ProtocolError as error:
        return found, error.reason
    return found, None


def cut(rng: Random, wire: bytes) -> list[bytes]:
    marks = sorted(rng.randint(0, len(wire)) for _ in range(rng.randint(0, 12)))
    return [wire[a:b] for a, b in zip([0, *marks], [*marks, len(wire)], strict=True)]


@pytest.mark.parametrize(("kind", "version"), [(kind, version) for kind in KINDS for version in VERSIONS
                                               if kind != 15 or version == 5])
def test_every_packet_is_read_and_written_as_the_oracle_writes_it(kind: int, version: int) -> None:
    @settings(max_examples=40, deadline=None)
    @given(randoms)
    def check(rng: Random) -> None:
        packet = random_packet(rng, version, kind)
        wire = wire_of(packet, version)
        assert encode_packet(packet, version) == wire
        assert decode_packet(wire[0], exact(body_of(wire)), version) == packet
        decoder = Decoder(version)
        decoder.feed(wire)
        assert drain(decoder) == [packet]
        # One encoding only: what was read is written in the same bytes.
        assert encode_packet(decode_packet(wire[0], memoryview(body_of(wire)), version), version) == wire

    check()


@settings(max_examples=80, deadline=None)
@given(randoms, versions)
def test_any_chunking_gives_the_same_packets(rng: Random, version: int) -> None:
    packets = [random_packet(rng, version, 1)] + [random_packet(rng, version) for _ in range(rng.randint(0, 5))]
    wire = b"".join(wire_of(packet, version) for packet in packets)
    for chunks in (cut(rng, wire), [wire[i:i + 1] for i in range(min(len(wire), 400))] + [wire[400:]]):
        decoder = Decoder()
        assert outcome(decoder, chunks) == (packets, None)
        assert decoder.version == version


@settings(max_examples=80, deadline=None)
@given(randoms, versions)
def test_a_truncated_stream_never_raises_and_loses_only_the_last_packet(rng: Random, version: int) -> None:
    packets = [random_packet(rng, version) for _ in range(rng.randint(1, 3))]
    wires = [wire_of(packet, version) for packet in packets]
    short = b"".join(wires)[:-rng.randint(1, len(wires[-1]))]
    decoder = Decoder(version)
    decoder.feed(short)
    assert drain(decoder) == packets[:-1]


@settings(max_examples=150, deadline=None)
@given(randoms, versions)
def test_a_truncated_body_is_refused_or_another_packet(rng: Random, version: int) -> None:
    wire = wire_of(random_packet(rng, version), version)
    body = body_of(wire)
    for end in range(min(len(body), 60)):
        try:
            again = decode_packet(wire[0], exact(body[:end]), version)
        except ProtocolError as error:
            assert error.reason in (0x81, 0x82, 0x84, 0x85)
        else:
            assert encode_packet(again, version)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from((0, *VERSIONS)))
def test_garbage_raises_only_protocol_errors(first: int, body: bytes, version: int) -> None:
    try:
        packet = decode_packet(first, exact(body), version)
    except ProtocolError as error:
        assert 0x80 <= error.reason <= 0xFF
        assert error.text
    else:
        assert packet.packet_type == first >> 4


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.sampled_from((0, *VERSIONS)), randoms)
def test_garbage_streams_end_alike_however_they_are_cut(data: bytes, version: int, rng: Random) -> None:
    assert outcome(Decoder(version), [data]) == outcome(Decoder(version), cut(rng, data))


@settings(max_examples=300, deadline=None)
@given(randoms, versions)
def test_mutated_packets_raise_only_protocol_errors(rng: Random, version: int) -> None:
    wire = bytearray(wire_of(random_packet(rng, version), version))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(wire) - 1)
        wire[at] = rng.choice((wire[at] ^ (1 << rng.randint(0, 7)), 0, 0xFF, rng.randint(0, 255)))
    for packet in outcome(Decoder(version), [bytes(wire)])[0]:
        # What is accepted can be written again, and that reads as the same packet.
        again = Decoder(version)
        again.feed(encode_packet(packet, 0 if packet.packet_type == 1 else version))
        assert drain(again) == [packet]


@settings(max_examples=200, deadline=None)
@given(randoms, st.integers(1, 16).filter(lambda kind: kind not in (12, 13)))
def test_properties_are_read_and_written_in_order(rng: Random, where: int) -> None:
    properties = random_properties(rng, where)
    wire = oracle.encode_properties(named(properties))
    assert encode_properties(properties, where) == wire
    assert decode_properties(wire, where) == properties


@settings(max_examples=300, deadline=None)
@given(randoms)
def test_the_hot_scan_agrees_with_the_list(rng: Random) -> None:
    properties = random_properties(rng, 3)
    wire = oracle.encode_properties(named(properties))
    bare = wire[varint_length(wire):]
    seen = codec_testing.scan(bare)
    assert isinstance(seen, dict)
    values = dict(properties)
    assert seen["topic_alias"] == values.get(0x23, 0)
    assert seen["expiry_s"] == values.get(0x02)
    assert seen["payload_format"] == values.get(0x01, 0)
    assert seen["subscription_ids"] == sum(entry[0] == 0x0B for entry in properties)
    assert seen["user_properties"] == sum(entry[0] == 0x26 for entry in properties)
    travels = [entry[0] in FORWARDED for entry in properties]
    forwarded = oracle.encode_properties(named([entry for entry in properties if entry[0] in FORWARDED]))
    assert seen["forward"] == forwarded[varint_length(forwarded):]
    runs = sum(now and not before for now, before in zip(travels, [False, *travels], strict=False))
    assert seen["in_place"] == (runs <= 1)


@settings(max_examples=400, deadline=None)
@given(randoms, st.binary(max_size=40))
def test_the_hot_scan_refuses_what_the_list_refuses(rng: Random, garbage: bytes) -> None:
    bare = bytearray(oracle.encode_properties(named(random_properties(rng, 3))))
    bare = bare[varint_length(bytes(bare)):] or bytearray(garbage)
    for _ in range(rng.randint(0, 3)):
        if bare:
            bare[rng.randint(0, len(bare) - 1)] = rng.randint(0, 255)
    bare = bare[:rng.randint(0, len(bare))] if rng.randint(0, 1) else bare
    seen = codec_testing.scan(bytes(bare))
    try:
        decode_properties(codec_testing.put("varint", len(bare)) + bytes(bare), 3)
    except ProtocolError as error:
        assert seen == error.reason
    else:
        assert isinstance(seen, dict)


def varint_length(wire: bytes) -> int:
    return codec_testing.take("varint", wire)[2]


@given(st.integers(0, 268435455), st.binary(max_size=4))
def test_varints(value: int, tail: bytes) -> None:
    wire = oracle.varint(value)
    assert codec_testing.put("varint", value) == wire
    assert codec_testing.take("varint", wire + tail) == (1, value, len(wire))
    for end in range(len(wire)):
        assert codec_testing.take("varint", wire[:end])[0::2] == (0, 0)


@given(st.binary(min_size=1, max_size=6))
def test_a_varint_has_one_encoding(data: bytes) -> None:
    result, value, size = codec_testing.take("varint", data)
    if result == 1:
        assert isinstance(value, int)
        assert codec_testing.put("varint", value) == data[:size]
    else:
        assert size == 0


def test_the_property_table_names_each_identifier_once() -> None:
    table = property_table()
    assert len({row[0] for row in table}) == len({row[1] for row in table}) == len(table) == 27
    assert {row[1]: (row[0], row[3]) for row in table} == {
        name: (number, frozenset(16 if one == "will" else one for one in where))
        for name, (number, _, where) in oracle.PROPERTIES.items()}
