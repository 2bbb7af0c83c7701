"""AMQP 0-9-1 in octets, against octets written down by hand from the specification."""
from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.bench.load.amqp_frames import (
    BODY,
    HEARTBEAT,
    METHOD,
    Arguments,
    FrameError,
    close_reason,
    connection_close,
    encode_table,
    frame,
    longstr,
    method,
    publication,
    shortstr,
    take_frames,
)


def test_a_method_frame() -> None:
    # channel.open on channel 1, with its empty reserved string
    assert method(1, 20, 10, shortstr("")) == bytes.fromhex("01 0001 00000005 0014 000a 00 ce")


def test_connection_close() -> None:
    assert connection_close() == bytes.fromhex("01 0000 0000000f 000a 0032 00c8 04") + b"done" + bytes(4) + b"\xce"


@pytest.mark.parametrize(("value", "encoded"), [
    ({}, "00000000"), ({"a": True}, "00000004 01 61 74 01"), ({"a": -2}, "0000000b 01 61 6c fffffffffffffffe"),
    ({"a": "xy"}, "00000009 01 61 53 00000002 78 79"), ({"a": {"b": False}}, "0000000b 01 61 46 00000004 01 62 74 00"),
])
def test_tables(value: dict[str, Any], encoded: str) -> None:
    assert encode_table(value) == bytes.fromhex(encoded)
    assert Arguments(encode_table(value)).table() == value


def test_tables_hold_nothing_else() -> None:
    with pytest.raises(TypeError, match="x: a table holds no float"):
        encode_table({"x": 1.5})


@pytest.mark.parametrize(("encoded", "value"), [
    (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xfe", -2), (b"u\xff\xfe", 65534), (b"I\xff\xff\xff\xfd", -3),
    (b"i\x00\x00\x00\x05", 5), (b"T" + struct.pack(">Q", 7), 7), (b"f" + struct.pack(">f", 0.5), 0.5),
    (b"d" + struct.pack(">d", -2.25), -2.25), (b"D\x02\x00\x00\x01\x41", 3.21),
    (b"x" + longstr(b"\x00\x01"), b"\x00\x01"),
    (b"A" + longstr(b"t\x01V"), [True, None]), (b"V", None),
])
def test_values_of_a_broker(encoded: bytes, value: Any) -> None:
    reader = Arguments(encoded + b"rest")
    assert reader.value() == value
    assert reader.octets(4) == b"rest"


def test_what_is_cut_short_or_unknown_is_refused() -> None:
    for raw in (b"", b"\x05abc", b"\xff"):
        with pytest.raises(FrameError, match="too early"):
            Arguments(raw).shortstr()
    with pytest.raises(FrameError, match="too early"):
        Arguments(longstr(b"\x01a")).table()
    with pytest.raises(FrameError, match="unknown type 'Z'"):
        Arguments(b"Z").value()
    with pytest.raises(ValueError, match="at most 255 octets, not 256"):
        shortstr("é" * 128)


def test_close_reason() -> None:
    assert close_reason(struct.pack(">H", 404) + shortstr("NOT_FOUND - no queue") + bytes(4)) \
        == "404 NOT_FOUND - no queue"


@pytest.mark.parametrize(("size", "frame_max", "bodies"), [
    (1, 4096, 1), (4088, 4096, 1), (4089, 4096, 2), (10_000, 4096, 3), (1024, 131072, 1)])
def test_a_publication_is_a_method_a_header_and_bodies(size: int, frame_max: int, bodies: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    packet, payload_at = publication("ex", "key", payload, persistent=True, frame_max=frame_max)
    assert packet[payload_at:payload_at + min(size, 16)] == payload[:16]
    buffer = bytearray(packet)
    publish, header, *rest = take_frames(buffer)
    assert buffer == b""
    assert publish.method == (60, 40)
    assert publish.payload == b"\x00\x00\x02ex\x03key\x00"
    assert header.payload == struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)
    assert len(rest) == bodies
    assert all(one.kind == BODY and one.channel == 1 and len(one.payload) + 8 <= frame_max for one in rest)
    assert b"".join(one.payload for one in rest) == payload


def test_transient_messages_say_so() -> None:
    packet, payload_at = publication("", "q", b"p", persistent=False, frame_max=4096)
    assert packet[payload_at - 9:payload_at - 7] == b"\x01\xce"     # the delivery mode, and the end of the header frame


FRAMES = st.lists(st.tuples(st.sampled_from([METHOD, BODY, HEARTBEAT]), st.integers(0, 3), st.binary(min_size=4,
                                                                                                   max_size=40)))


@given(FRAMES, st.lists(st.integers(1, 60), min_size=1))
def test_frames_arrive_in_any_pieces(frames: list[tuple[int, int, bytes]], pieces: list[int]) -> None:
    stream = b"".join(frame(*one) for one in frames)
    buffer = bytearray()
    found = []
    at = number = 0
    while at < len(stream):
        step = pieces[number % len(pieces)]
        buffer += stream[at:at + step]
        at, number = at + step, number + 1
        found += list(take_frames(buffer))
    assert not buffer
    assert [(one.kind, one.channel, (struct.pack(">HH", *one.method) if one.method else b"") + one.payload)
            for one in found] == frames


@pytest.mark.parametrize(("raw", "text"), [
    (b"HTTP/1.1", "0x48"), (frame(METHOD, 0, b"abcd")[:-1] + b"\xcd", "0xCE"), (frame(METHOD, 0, b"abc"), "too short")])
def test_octets_that_are_no_frames(raw: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        list(take_frames(bytearray(raw)))


@given(st.binary(max_size=60))
def test_garbage_raises_nothing_else(raw: bytes) -> None:
    for read in (lambda: list(take_frames(bytearray(raw))), lambda: [Arguments(raw).table()],
                 lambda: [close_reason(raw)]):
        try:
            assert isinstance(read(), list)
        except FrameError as error:
            assert str(error)
