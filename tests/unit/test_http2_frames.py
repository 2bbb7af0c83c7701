"""Frames of HTTP/2 with messages of gRPC (peer/http2): each event, each refusal, windows, limits and memory."""
from __future__ import annotations

import gc
import resource
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.exact import SANITIZED, exact
from kit.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    SETTINGS,
    data,
    field_1,
    frame,
    frames,
    message,
    settings,
    window_update,
)

from fluxmq._core.errors import UsageError
from fluxmq._core.peer.http2 import (
    BAD_MESSAGE,
    BROKEN,
    CONTROL,
    CONTROL_MAX,
    FRAME_BYTES_MAX,
    MESSAGE,
    OTHER_MESSAGE,
    WINDOW_BYTES,
    Http2Frames,
)

PRIORITY, RST_STREAM, PUSH_PROMISE, PING, GOAWAY = 2, 3, 5, 6, 7
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, ENHANCE_YOUR_CALM = 1, 3, 6, 11
FIRST_WINDOW, FIRST_FRAME, LARGEST_WINDOW = 65535, 16384, (1 << 31) - 1
MIB = 1 << 20
LIMIT = 1000        # of a message, unless a test says otherwise
EVERYTHING = 1 << 30

Event = tuple[Any, ...]


def opened(message_bytes_max: int = LIMIT, streams: int = 1) -> tuple[Any, ...]:
    """The end of a client, and its streams 1, 3, 5 …; all bytes of its own have left."""
    machine = Http2Frames(False)
    machine.begin()
    found = [machine.open(2 * at + 1, message_bytes_max) for at in range(streams)]
    machine.take()
    return machine, *found


def feed(machine: Http2Frames, *pieces: bytes) -> list[Event]:
    return [event for piece in pieces for event in machine.feed(exact(piece))]


def bytewise(what: bytes) -> list[bytes]:
    return [what[at:at + 1] for at in range(len(what))]


def why_broken(machine: Http2Frames, *pieces: bytes) -> tuple[int, str]:
    """The pieces break it, and that is the last event."""
    events = feed(machine, *pieces)
    assert [event[0] for event in events].count(BROKEN) == 1
    kind, code, why = events[-1]
    assert kind == BROKEN and machine.broken and not machine.more
    assert feed(machine, settings(), PREFACE, data(1, message(b"")), b"x" * 100) == []
    return code, why


def sent(machine: Http2Frames) -> list[tuple[int, int]]:
    """(stream, bytes) of the DATA frames that leave."""
    found = frames(machine.take())
    assert all((kind, flags) == (DATA, 0) for kind, flags, _, _ in found)
    return [(stream, len(payload)) for _, _, stream, payload in found]


def given_back(machine: Http2Frames) -> list[tuple[int, int]]:
    """(stream, bytes) of the windows that leave, and nothing else does."""
    found = frames(machine.take())
    assert all((kind, flags, len(payload)) == (8, 0, 4) for kind, flags, _, payload in found)
    return [(stream, int.from_bytes(payload)) for _, _, stream, payload in found]


def cut(stream: int, raw: bytes, size: int) -> Iterator[bytes]:
    """DATA frames of this size."""
    for at in range(0, len(raw), size):
        yield data(stream, raw[at:at + size])


# ── the preface ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_takes_the_preface_in_any_two_pieces() -> None:
    for at in range(len(PREFACE) + 1):
        machine = Http2Frames(True)
        assert feed(machine, PREFACE[:at], PREFACE[at:] + settings()) == [(CONTROL, 0, PREFACE),
                                                                          (CONTROL, 0, settings())]
    assert feed(Http2Frames(True), *bytewise(PREFACE)) == [(CONTROL, 0, PREFACE)]


def test_a_wrong_byte_of_the_preface_is_the_end_wherever_it_is() -> None:
    for at in range(len(PREFACE)):
        wrong = PREFACE[:at] + bytes((PREFACE[at] ^ 1,)) + PREFACE[at + 1:]
        for pieces in ([wrong], bytewise(wrong), [wrong[:at], wrong[at:]]):
            code, why = why_broken(Http2Frames(True), *pieces)
            assert (code, why) == (PROTOCOL_ERROR, "no HTTP/2: it does not begin with the preface of a client")


def test_what_speaks_http_1_or_tls_to_a_server_is_told_that_it_is_no_http_2() -> None:
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/1.1"):
        assert why_broken(Http2Frames(True), words)[0] == PROTOCOL_ERROR


def test_a_client_awaits_no_preface() -> None:
    assert feed(Http2Frames(False), settings()) == [(CONTROL, 0, settings())]


# ── what is passed on ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, 10, 255])
@pytest.mark.parametrize("size", [0, 1, 8, 16384])
def test_other_frames_are_passed_on_as_they_came(kind: int, size: int) -> None:
    if kind == SETTINGS:
        size = min(size, 192)
    machine, _ = opened()
    if kind == SETTINGS:
        size = min(size, 192)
    whole = frame(kind, END_HEADERS, 0x80000001, bytes(range(256)) * 64)[:9 + size]
    whole = size.to_bytes(3) + whole[3:]
    assert feed(machine, whole) == [(CONTROL, 0, whole)]
    assert feed(machine, *bytewise(whole)) == [(CONTROL, 0, whole)]
    assert machine.bytes_in == 2 * len(whole)


def test_settings_have_at_most_192_bytes() -> None:
    machine, _ = opened()
    code, why = why_broken(machine, frame(SETTINGS, 0, 0, bytes(193))[:9])
    assert (code, why) == (ENHANCE_YOUR_CALM, "a SETTINGS frame of 193 bytes")


def test_a_call_that_is_broken_off_costs_what_it_was_given() -> None:
    machine, _ = opened()
    for _ in range(125):
        feed(machine, frame(PING, 0, 0, bytes(8)) * 8)
        machine.served()
    assert not machine.broken
    for _ in range(125):
        machine.unserved()
    assert why_broken(machine, frame(PING, 0, 0, bytes(8)))[0] == ENHANCE_YOUR_CALM


def test_what_a_call_has_cost_is_given_back_when_it_was_answered() -> None:
    """Up to what a period allows, and no more."""
    machine, _ = opened()
    for _ in range(1000):
        feed(machine, *[frame(PING, 0, 0, bytes(8))] * 8)
        machine.served()
    for _ in range(1000):
        machine.served()
    feed(machine, frame(PING, 0, 0, bytes(8)) * 1000)
    assert not machine.broken
    assert why_broken(machine, frame(PING, 0, 0, bytes(8)))[0] == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("kind", [HEADERS, PRIORITY, RST_STREAM, PING, GOAWAY, 255])
def test_other_frames_have_at_most_16384_bytes(kind: int) -> None:
    machine, _ = opened()
    code, why = why_broken(machine, frame(kind, 0, 1, bytes(16385))[:9])
    assert (code, why) == (FRAME_SIZE_ERROR, f"a frame of kind {kind} of 16385 bytes")


def test_settings_are_few() -> None:
    """Each costs the library some time, also one that it does not know."""
    machine, _ = opened()
    assert why_broken(machine, frame(SETTINGS, 0, 0, bytes(198))) == (
        ENHANCE_YOUR_CALM, "a SETTINGS frame of 198 bytes")


def test_a_push_promise_is_refused() -> None:
    machine, _ = opened()
    assert why_broken(machine, frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)))[0] == PROTOCOL_ERROR


def test_what_the_library_sends_leaves_behind_what_was_sent_before() -> None:
    machine, stream = opened()
    machine.send(stream, b"a")
    machine.put(b"")
    machine.put(settings())
    machine.send(stream, b"b")
    assert machine.outgoing_bytes == 2 * (9 + 5 + 3) + 9
    assert machine.take() == data(1, message(field_1(b"a"))) + settings() + data(1, message(field_1(b"b")))
    assert machine.take() == b"" and machine.outgoing_bytes == 0


# ── blocks of headers ────────────────────────────────────────────────────────────────────────────────────────


def test_a_block_of_headers_in_several_frames_is_passed_on_frame_by_frame() -> None:
    machine, _ = opened()
    block = [frame(HEADERS, 0, 1, b"a"), frame(CONTINUATION, 0, 1, b"b"), frame(CONTINUATION, END_HEADERS, 1, b"c")]
    assert feed(machine, b"".join(block)) == [(CONTROL, 0, one) for one in block]
    assert feed(machine, settings()) == [(CONTROL, 0, settings())]


@pytest.mark.parametrize("other", [
    settings(), data(1, b"x"), window_update(1, 1), frame(HEADERS, END_HEADERS, 1), frame(RST_STREAM, 0, 1, bytes(4)),
    frame(CONTINUATION, END_HEADERS, 3), frame(CONTINUATION, END_HEADERS, 0)], ids=lambda value: value[3:9].hex())
def test_nothing_stands_within_a_block_of_headers(other: bytes) -> None:
    machine, *_ = opened(streams=2)
    code, why = why_broken(machine, frame(HEADERS, 0, 1, b"a") + other)
    assert (code, why) == (PROTOCOL_ERROR, "another frame within a block of headers")


def test_a_continuation_follows_headers_that_are_not_complete() -> None:
    for before in (b"", frame(HEADERS, END_HEADERS, 1), frame(HEADERS, 0, 1) + frame(CONTINUATION, END_HEADERS, 1)):
        machine, _ = opened()
        code, why = why_broken(machine, before + frame(CONTINUATION, END_HEADERS, 1))
        assert (code, why) == (PROTOCOL_ERROR, "a CONTINUATION behind nothing")


def test_a_block_of_headers_has_at_most_16384_bytes() -> None:
    machine, _ = opened()
    half = bytes(8192)
    for _ in range(2):      # each block by itself
        feed(machine, frame(HEADERS, 0, 1, half), frame(CONTINUATION, END_HEADERS, 1, half))
    assert not machine.broken
    code, why = why_broken(machine, frame(HEADERS, 0, 1, half), frame(CONTINUATION, 0, 1, half),
                           frame(CONTINUATION, END_HEADERS, 1, b"x")[:9])
    assert (code, why) == (ENHANCE_YOUR_CALM, "a block of headers of 16385 bytes")


# ── a stream begins ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("headers", [[frame(HEADERS, END_HEADERS, 1, b"h")],
                                     [frame(HEADERS, 0, 1, b"h"), frame(CONTINUATION, END_HEADERS, 1, b"i")]],
                         ids=["one frame", "two"])
def test_what_comes_with_the_headers_of_a_new_stream_is_read_when_it_is_open(headers: list[bytes]) -> None:
    """A request is often one write: headers, a window, its message, its end."""
    machine = Http2Frames(True)
    machine.begin()
    behind = window_update(1, 5) + data(1, message(field_1(b"abc")), END_STREAM)
    assert feed(machine, PREFACE + b"".join(headers) + behind) == [(CONTROL, 0, PREFACE),
                                                                   *((CONTROL, 0, one) for one in headers)]
    assert machine.more
    machine.open(1, LIMIT)
    assert feed(machine, b"") == [(MESSAGE, 1, b"abc"), (CONTROL, 0, data(1, b"", END_STREAM))]
    assert not machine.more and feed(machine, b"") == []


def test_what_is_read_later_stands_behind_what_came_with_the_headers() -> None:
    machine = Http2Frames(False)
    request = data(1, message(field_1(b"abc")))
    feed(machine, frame(HEADERS, END_HEADERS, 1) + request[:11])
    machine.open(1, LIMIT)
    assert machine.more and feed(machine, request[11:] + settings()) == [(MESSAGE, 1, b"abc"),
                                                                          (CONTROL, 0, settings())]
    assert machine.bytes_in == 9 + len(request) + 9


def test_each_new_stream_is_opened_before_the_next_is_read() -> None:
    machine = Http2Frames(False)
    count = 100
    everything = b"".join(frame(HEADERS, END_HEADERS, 2 * at + 1) + data(2 * at + 1, message(b""))
                          for at in range(count))
    events, waits = feed(machine, everything), []
    for at in range(count):
        waits.append(machine.more)
        machine.open(2 * at + 1, LIMIT)
        events += feed(machine, b"")
    assert waits == [True] * count and not machine.more
    assert [event[:2] for event in events] == [
        event for at in range(count) for event in ((CONTROL, 0), (MESSAGE, 2 * at + 1))]


def test_nothing_waits_behind_headers_that_are_the_last_bytes_or_of_a_known_stream() -> None:
    machine = Http2Frames(False)
    feed(machine, frame(HEADERS, END_HEADERS, 1))
    assert not machine.more
    machine.open(1, LIMIT)
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1)
    assert feed(machine, trailers + settings()) == [(CONTROL, 0, trailers), (CONTROL, 0, settings())]
    assert not machine.more


def test_a_stream_is_opened_once_and_their_numbers_grow() -> None:
    machine = Http2Frames(True)
    assert machine.open(5, LIMIT).number == 5
    for number in (0, 1, 4, 5, 1 << 31):
        with pytest.raises(UsageError, match=f"stream {number} behind 5"):
            machine.open(number, LIMIT)
    assert machine.open(LARGEST_WINDOW, LIMIT).message_bytes_max == LIMIT


# ── DATA ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [0, 3, 0x7FFFFFFF])
def test_data_of_a_stream_that_was_never_open(number: int) -> None:
    machine, _ = opened()
    code, why = why_broken(machine, data(number, b"x"))
    assert (code, why) == (PROTOCOL_ERROR, f"DATA of stream {number}, which is not open")


def test_data_of_a_closed_stream_is_dropped_and_its_window_is_given_back_to_the_connection() -> None:
    machine, first, second = opened(EVERYTHING, 2)
    machine.close(first)
    assert feed(machine, *cut(1, bytes(WINDOW_BYTES // 2), MIB)) == []
    assert given_back(machine) == [(0, WINDOW_BYTES // 2)]
    assert feed(machine, data(second.number, message(field_1(b"x")))) == [(MESSAGE, 3, b"x")]


def test_a_frame_of_data_has_at_most_1_mib() -> None:
    machine, _ = opened(EVERYTHING)
    assert feed(machine, data(1, bytes(FRAME_BYTES_MAX))) == [(MESSAGE, 1, b"")] * (FRAME_BYTES_MAX // 5)
    code, why = why_broken(machine, (FRAME_BYTES_MAX + 1).to_bytes(3) + data(1)[3:])
    assert (code, why) == (FRAME_SIZE_ERROR, f"a DATA frame of {FRAME_BYTES_MAX + 1} bytes")


@pytest.mark.parametrize("pad", [0, 1, 8, 255])
def test_padding_is_no_part_of_a_message_wherever_the_frame_is_cut(pad: int) -> None:
    whole = data(1, message(field_1(b"abc")) + message(b"")[:3], pad=pad) + data(1, message(b"")[3:], pad=pad)
    for at in range(len(whole)):
        machine, _ = opened()
        assert feed(machine, whole[:at], whole[at:]) == [(MESSAGE, 1, b"abc"), (MESSAGE, 1, b"")]
    machine, _ = opened()
    assert feed(machine, *bytewise(whole)) == [(MESSAGE, 1, b"abc"), (MESSAGE, 1, b"")]


def test_a_frame_may_be_nothing_but_padding() -> None:
    machine, _ = opened()
    assert feed(machine, *(data(1, b"", pad=pad) for pad in (0, 1, 255))) == []
    assert feed(machine, *bytewise(data(1, b"", pad=9))) == []
    assert feed(machine, data(1, message(b"x"), pad=0)) == [(OTHER_MESSAGE, 1, b"x")]


@pytest.mark.parametrize(("length", "pad"), [(1, 1), (1, 255), (9, 9), (254, 255), (255, 255)])
def test_padding_that_is_longer_than_its_frame(length: int, pad: int) -> None:
    for pieces in (lambda whole: [whole], bytewise):
        machine, _ = opened()
        code, why = why_broken(machine, *pieces(frame(DATA, PADDED, 1, bytes((pad,)) + bytes(length - 1))))
        assert (code, why) == (PROTOCOL_ERROR, "a DATA frame with more padding than it has bytes")


def test_a_padded_frame_has_at_least_the_length_of_its_padding() -> None:
    machine, _ = opened()
    code, why = why_broken(machine, frame(DATA, PADDED, 1))
    assert (code, why) == (PROTOCOL_ERROR, "a padded DATA frame of 0 bytes")


# ── messages that come ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 16383, 16384, 70_000])
@pytest.mark.parametrize("length_bytes", [0, 5], ids=["short", "as long as it may be"])
def test_field_1_is_taken_out(length: int, length_bytes: int) -> None:
    machine, _ = opened(EVERYTHING)
    value = bytes(range(256)) * (length // 256 + 1)
    whole = data(1, message(field_1(value[:length], length_bytes)))
    assert feed(machine, whole) == [(MESSAGE, 1, value[:length])]
    assert feed(machine, whole[:9], *bytewise(whole[9:50]), whole[50:]) == [(MESSAGE, 1, value[:length])]


@pytest.mark.parametrize("raw", [
    b"\x0a", b"\x0a\x80", b"\x0a\x80\x80\x80\x80", b"\x0a\x80\x80\x80\x80\x80", b"\x0a\x80\x80\x80\x80\x80\x00",
    b"\x0a\x02a", b"\x0a\x01ab", b"\x0a\x00x", b"\x0a\xff\xff\xff\xff\x7fx", b"\x0a\xff\xff\xff\xff\xff\x7fx",
    field_1(b"a") + field_1(b"b"), field_1(b"method") + b"\x12\x04body", b"\x12\x04body", b"\x08\x01", b"\x0b\x0c",
    b"\0", b"\x8a\x01", b"\x12", b"x" * 1000], ids=lambda raw: raw[:12].hex())
def test_anything_but_field_1_alone_is_handed_over_whole(raw: bytes) -> None:
    for pieces in (lambda whole: [whole], bytewise):
        machine, _ = opened()
        assert feed(machine, *pieces(data(1, message(raw) + message(field_1(b"next"))))) == [
            (OTHER_MESSAGE, 1, raw), (MESSAGE, 1, b"next")]


def test_an_empty_message_is_an_empty_field() -> None:
    machine, _ = opened()
    assert feed(machine, data(1, message(b"") + message(b"x") + message(b"") + message(field_1(b"")))) == [
        (MESSAGE, 1, b""), (OTHER_MESSAGE, 1, b"x"), (MESSAGE, 1, b""), (MESSAGE, 1, b"")]


def test_messages_lie_in_frames_as_they_like() -> None:
    bodies = [b"a", b"", b"b" * 300, b"c" * 999]
    raw = b"".join(message(field_1(body)) for body in bodies)
    for size in (1, 2, 7, 100, len(raw)):
        machine, _ = opened()
        assert feed(machine, b"".join(cut(1, raw, size))) == [(MESSAGE, 1, body) for body in bodies]


def test_streams_have_messages_of_their_own() -> None:
    machine, *_ = opened(streams=3)
    raw = {number: message(field_1(b"of %d" % number)) for number in (1, 3, 5)}
    events = feed(machine, *(data(number, raw[number][at:at + 1]) for at in range(len(raw[1])) for number in raw))
    assert events == [(MESSAGE, number, b"of %d" % number) for number in raw]


@pytest.mark.parametrize("length", [MIB - 1, MIB, MIB + 1, 2 * MIB, 9 * MIB + 5])
@pytest.mark.parametrize("whole", [False, True], ids=["field 1", "other"])
def test_messages_around_and_above_what_gets_its_memory_at_once(length: int, whole: bool) -> None:
    machine, _ = opened(EVERYTHING)
    value = bytes(range(251)) * (length // 251 + 1)
    raw = value[:length] if whole else field_1(value[:length])
    events: list[Event] = []
    for one in cut(1, message(raw) + message(b""), 300_000):
        events += feed(machine, one[:100_003], one[100_003:])
    assert events == [(OTHER_MESSAGE if whole else MESSAGE, 1, value[:length]), (MESSAGE, 1, b"")]


def test_a_message_that_is_as_large_as_its_limit() -> None:
    """The limit is one of field 1: the bytes around it do not count, however many they are."""
    for length_bytes in range(2, 6):
        machine, _ = opened(LIMIT)
        assert feed(machine, data(1, message(field_1(bytes(LIMIT), length_bytes)))) == [(MESSAGE, 1, bytes(LIMIT))]
    machine, _ = opened(LIMIT)
    assert feed(machine, data(1, message(b"x" * (LIMIT + 6)))) == [(OTHER_MESSAGE, 1, b"x" * (LIMIT + 6))]
    machine, _ = opened(0)
    assert feed(machine, data(1, message(b"") + message(field_1(b"")))) == [(MESSAGE, 1, b"")] * 2


def test_a_message_over_the_limit_is_refused_by_its_prefix() -> None:
    machine, *_ = opened(streams=2)
    assert feed(machine, data(1, message(field_1(b"before")) + message(bytes(LIMIT + 7))[:5])) == [
        (MESSAGE, 1, b"before"), (BAD_MESSAGE, 1, f"a message of {LIMIT + 7} bytes, over {LIMIT}")]
    # What else comes of this stream does not matter, and the others go on.
    assert feed(machine, data(1, b"anything"), data(3, message(field_1(b"b")))) == [(MESSAGE, 3, b"b")]


def test_a_limit_may_change_while_the_stream_is_open() -> None:
    machine, stream = opened(10)
    stream.message_bytes_max = LIMIT
    assert feed(machine, data(1, message(field_1(bytes(LIMIT))))) == [(MESSAGE, 1, bytes(LIMIT))]


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compressed_message_is_refused(flag: int) -> None:
    machine, _ = opened()
    assert feed(machine, data(1, message(b"x" * 20, flag) + message(b""))) == [
        (BAD_MESSAGE, 1, "a compressed message, although no compression was agreed on")]
    assert not machine.broken


def test_the_windows_of_a_refused_stream_are_given_back() -> None:
    machine, _ = opened()
    feed(machine, data(1, message(b"", 1)))
    assert feed(machine, *cut(1, bytes(WINDOW_BYTES // 2 - 5), MIB)) == []
    assert given_back(machine) == [(0, WINDOW_BYTES // 2), (1, WINDOW_BYTES // 2)]


# ── the other end finishes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pad", [None, 0, 7])
def test_the_library_is_told_of_the_end_behind_the_last_message(pad: int | None) -> None:
    for last in (b"", message(field_1(b"last"))):
        machine, _ = opened()
        events = feed(machine, *bytewise(data(1, last, END_STREAM, pad)))
        assert events == [*([(MESSAGE, 1, b"last")] if last else []), (CONTROL, 0, data(1, b"", END_STREAM))]


@pytest.mark.parametrize("came", [1, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("how", ["with data", "behind it", "trailers"])
def test_an_end_within_a_message(came: int, how: str) -> None:
    machine, _ = opened()
    part, end = message(field_1(b"abc"))[:came], data(1, b"", END_STREAM)
    if how == "trailers":
        end = frame(HEADERS, END_HEADERS | END_STREAM, 1)
    events = feed(machine, data(1, part, END_STREAM)) if how == "with data" else feed(machine, data(1, part), end)
    assert events == [(BAD_MESSAGE, 1, "it ends within a message"), (CONTROL, 0, end)]


def test_the_end_of_a_refused_stream_is_passed_on_and_nothing_is_refused_again() -> None:
    machine, _ = opened()
    feed(machine, data(1, message(b"", 1)))
    assert feed(machine, data(1, b"\0", END_STREAM)) == [(CONTROL, 0, data(1, b"", END_STREAM))]


@pytest.mark.parametrize("end", [data(1, b"", END_STREAM), frame(HEADERS, END_HEADERS | END_STREAM, 1)],
                         ids=["data", "trailers"])
def test_nothing_behind_the_end_of_a_stream_is_a_message(end: bytes) -> None:
    machine, _ = opened()
    late = data(1, message(field_1(b"late")))
    assert feed(machine, end + late) == [(CONTROL, 0, end)]
    # A second end is for the library to judge.
    assert feed(machine, data(1, b"x", END_STREAM)) == [(CONTROL, 0, data(1, b"", END_STREAM))]


# ── windows of this end ──────────────────────────────────────────────────────────────────────────────────────


def test_the_window_of_the_connection_is_widened_at_the_beginning() -> None:
    machine = Http2Frames(True)
    machine.begin()
    assert machine.take() == window_update(0, WINDOW_BYTES - FIRST_WINDOW)


def test_windows_are_given_back_when_half_is_read_padding_with_them() -> None:
    machine, *_ = opened(EVERYTHING, 2)
    step = 65536
    for _ in range(WINDOW_BYTES // 2 // step):
        assert given_back(machine) == []
        feed(machine, data(1, bytes(step - 101), pad=100))
    assert given_back(machine) == [(0, WINDOW_BYTES // 2), (1, WINDOW_BYTES // 2)]
    # Two streams take from one window of the connection, each from its own.
    for number in (1, 3):
        feed(machine, data(number, bytes(MIB)))
    assert given_back(machine) == [(0, WINDOW_BYTES // 2)]


def test_the_window_of_a_stream_is_not_given_back_when_it_has_ended() -> None:
    machine, _ = opened(EVERYTHING)
    feed(machine, data(1, bytes(MIB)), data(1, bytes(MIB), END_STREAM))
    assert given_back(machine) == [(0, WINDOW_BYTES // 2)]


def test_more_data_than_the_window_of_the_connection_has_room_for() -> None:
    machine = Http2Frames(False)        # nothing was widened
    machine.open(1, EVERYTHING)
    feed(machine, data(1, bytes(FIRST_WINDOW)))
    code, why = why_broken(machine, data(1, b"x")[:9])
    assert (code, why) == (FLOW_CONTROL_ERROR, "more DATA than the window has room for")


def test_more_data_than_the_window_of_a_stream_has_room_for() -> None:
    """What is read is given back, so only one that goes on behind its end comes so far."""
    machine, _ = opened(EVERYTHING)
    late = data(1, bytes(MIB), END_STREAM)
    feed(machine, *[late] * (WINDOW_BYTES // MIB))
    code, why = why_broken(machine, late)
    assert (code, why) == (FLOW_CONTROL_ERROR, "more DATA than the window has room for")


# ── sending, and windows of the other end ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16376, 16377, 16383, 16384, 50_000])
def test_a_message_that_is_sent_has_prefix_and_envelope(length: int) -> None:
    machine, stream = opened()
    value = bytes(range(256)) * 200
    machine.send(stream, value[:length])
    assert stream.queued == 0
    written = frames(machine.take())
    assert all((kind, flags, number) == (DATA, 0, 1) and 0 < len(payload) <= FIRST_FRAME
               for kind, flags, number, payload in written)
    assert b"".join(payload for *_, payload in written) == message(field_1(value[:length]) if length else b"")


@pytest.mark.parametrize("length", [(1 << 21) - 1, 1 << 21, 9 * MIB])
def test_large_messages_are_sent_in_frames_that_the_other_end_accepts(length: int) -> None:
    machine, stream = opened()
    value = bytes(range(251)) * (length // 251 + 1)
    for accepted, largest in ((16384, 16384), (20_000, 20_000), (MIB, MIB), (MIB + 1, MIB), ((1 << 24) - 1, MIB)):
        assert machine.settings(LARGEST_WINDOW, accepted) == ""
        feed(machine, window_update(0, 10 * MIB))
        machine.send(stream, value[:length])
        payloads = [payload for *_, payload in frames(machine.take())]
        assert stream.queued == 0 and max(map(len, payloads)) == largest
        assert b"".join(payloads) == message(field_1(value[:length]))
        machine.close(stream)
        stream = machine.open(stream.number + 2, LIMIT)


def test_frames_of_less_than_16384_bytes_are_no_setting() -> None:
    machine, _ = opened()
    assert machine.settings(FIRST_WINDOW, 16383) == "a maximum of frames below 16384"


def test_what_has_no_room_in_the_window_of_the_connection_waits_for_it_alone() -> None:
    machine, stream = opened()
    machine.settings(MIB, FIRST_FRAME)
    machine.send(stream, bytes(FIRST_WINDOW))
    assert sum(size for _, size in sent(machine)) == FIRST_WINDOW
    assert stream.queued == 9               # prefix and envelope
    assert feed(machine, window_update(1, 1000)) == [] and machine.take() == b""
    assert feed(machine, window_update(0, 4)) == [] and sent(machine) == [(1, 4)]
    assert feed(machine, window_update(0, 1000)) == [] and sent(machine) == [(1, 5)]
    assert stream.queued == 0


def test_what_has_no_room_in_the_window_of_its_stream_waits_for_it_alone() -> None:
    machine, first, second = opened(streams=2)
    feed(machine, window_update(0, MIB))
    machine.send(first, bytes(FIRST_WINDOW))
    assert sum(size for _, size in sent(machine)) == FIRST_WINDOW and first.queued == 9
    for other in (window_update(0, 1000), window_update(3, 1000)):
        assert feed(machine, other) == [] and machine.take() == b""
    machine.send(second, b"x")
    assert sent(machine) == [(3, 8)]        # the other stream goes on
    # The first bit is reserved.
    assert feed(machine, window_update(1, 0x80000000 | 9)) == [] and sent(machine) == [(1, 9)]


def test_a_window_that_is_exactly_as_large_as_a_message() -> None:
    machine, stream = opened()
    machine.settings(105 + 2, FIRST_FRAME)
    machine.send(stream, bytes(100))
    assert sent(machine) == [(1, 107)] and stream.queued == 0
    machine.send(stream, b"")
    assert stream.queued == 5
    feed(machine, window_update(1, 5))
    assert machine.take() == data(1, message(b""))


def test_what_waits_is_not_overtaken_by_what_would_fit() -> None:
    machine, stream = opened()
    machine.settings(10, FIRST_FRAME)
    machine.send(stream, b"a" * 100)
    assert sent(machine) == [(1, 10)]
    machine.send(stream, b"")
    feed(machine, window_update(1, 8))
    machine.send(stream, b"b")
    feed(machine, window_update(1, 1000))
    assert feed(opened()[0], data(1, message(field_1(b"a" * 100))[:10]), machine.take()) == [
        (MESSAGE, 1, b"a" * 100), (MESSAGE, 1, b""), (MESSAGE, 1, b"b")]


@pytest.mark.parametrize("step", [1, 7, 8, 100, 10_000])
def test_many_messages_that_wait_leave_in_order(step: int) -> None:
    machine, stream = opened()
    other, _ = opened()
    machine.settings(0, FIRST_FRAME)
    bodies = [b"%d" % number for number in range(300)]
    whole = sum(len(message(field_1(body))) for body in bodies)
    for body in bodies:
        machine.send(stream, body)
    assert stream.queued == whole and machine.take() == b""
    events: list[Event] = []
    for _ in range(0, whole, step):
        machine.renew()
        feed(machine, window_update(1, step))
        events += feed(other, machine.take())
    assert events == [(MESSAGE, 1, body) for body in bodies]
    assert stream.queued == 0 and machine.outgoing_bytes == 0


def test_settings_that_shrink_windows_below_what_is_in_use_stop_a_stream_until_that_is_given_back() -> None:
    machine, first, second = opened(streams=2)
    machine.send(first, bytes(40_000))      # 40 009 of 65 535
    machine.take()
    assert machine.settings(10_000, FIRST_FRAME) == ""      # −30 009 for the first stream
    machine.send(first, b"abc")
    machine.send(second, b"abc")
    assert sent(machine) == [(3, 10)] and first.queued == 10
    assert feed(machine, window_update(1, 30_008)) == [] and machine.take() == b""      # −1
    assert feed(machine, window_update(1, 1)) == [] and machine.take() == b""           # 0
    assert feed(machine, window_update(1, 3)) == [] and sent(machine) == [(1, 3)]
    assert machine.settings(10_006, FIRST_FRAME) == "" and sent(machine) == [(1, 6)]
    assert machine.settings(LARGEST_WINDOW, FIRST_FRAME) == "" and sent(machine) == [(1, 1)]


def test_a_new_stream_has_the_window_of_the_last_settings() -> None:
    machine, _ = opened()
    machine.settings(3, FIRST_FRAME)
    machine.send(machine.open(7, LIMIT), b"abc")
    assert sent(machine) == [(7, 3)]


def test_settings_that_widen_a_window_over_its_maximum() -> None:
    machine, _ = opened()
    assert machine.settings(LARGEST_WINDOW, FIRST_FRAME) == ""
    assert machine.settings(FIRST_WINDOW, FIRST_FRAME) == ""
    assert feed(machine, window_update(1, 1)) == []
    assert machine.settings(LARGEST_WINDOW, FIRST_FRAME) == "a window over 2^31 - 1"


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("by", [0, 0x80000000])
def test_a_window_update_by_0(number: int, by: int) -> None:
    machine, _ = opened()
    assert why_broken(machine, window_update(number, by)) == (PROTOCOL_ERROR, "a WINDOW_UPDATE by 0")


@pytest.mark.parametrize("number", [0, 1])
def test_a_window_update_beyond_the_maximum(number: int) -> None:
    machine, _ = opened()
    assert feed(machine, window_update(number, LARGEST_WINDOW - FIRST_WINDOW)) == []
    code, why = why_broken(machine, window_update(number, 1))
    assert (code, why) == (FLOW_CONTROL_ERROR, "a window over 2^31 - 1")


@pytest.mark.parametrize("size", [0, 3, 5, 16385])
def test_a_window_update_has_four_bytes(size: int) -> None:
    machine, _ = opened()
    assert why_broken(machine, size.to_bytes(3) + window_update(1, 1)[3:9])[0] == FRAME_SIZE_ERROR


def test_a_window_update_in_pieces_becomes_no_event() -> None:
    machine, stream = opened()
    machine.settings(0, FIRST_FRAME)
    machine.send(stream, b"abc")
    assert feed(machine, *bytewise(window_update(1, 100))) == [] and sent(machine) == [(1, 10)]


def test_windows_of_closed_streams_are_ignored_and_of_others_refused() -> None:
    machine, first, second = opened(streams=2)
    machine.close(first)
    assert feed(machine, window_update(1, LARGEST_WINDOW), window_update(1, LARGEST_WINDOW)) == []
    assert feed(machine, window_update(second.number, 1)) == []
    code, why = why_broken(machine, window_update(5, 1))
    assert (code, why) == (PROTOCOL_ERROR, "a WINDOW_UPDATE of stream 5, which is not open")


# ── what a peer may cost ─────────────────────────────────────────────────────────────────────────────────────


CHEAP = {"settings": settings(), "ping": frame(PING, 0, 0, bytes(8)), "window": window_update(0, 1),
         "window of a stream": window_update(3, 1), "unknown": frame(99, 0, 0),
         "headers": frame(HEADERS, END_HEADERS, 1), "empty": data(3),
         "empty, of a closed stream": data(1), "window of a closed stream": window_update(1, 1)}


@pytest.mark.parametrize("name", CHEAP)
def test_frames_that_carry_nothing_are_counted_until_time_passes(name: str) -> None:
    machine, first, _ = opened(streams=2)
    machine.close(first)
    for _ in range(3):
        machine.renew()
        feed(machine, CHEAP[name] * CONTROL_MAX)
        assert not machine.broken
    code, why = why_broken(machine, CHEAP[name])
    assert (code, why) == (ENHANCE_YOUR_CALM, f"more than {CONTROL_MAX} frames that carry nothing")


def test_data_of_a_closed_stream_counts_though_it_has_bytes() -> None:
    machine, stream = opened()
    machine.close(stream)
    feed(machine, data(1, bytes(100)) * CONTROL_MAX)
    assert not machine.broken
    assert why_broken(machine, data(1, bytes(100)) * (CONTROL_MAX // 9))[0] == ENHANCE_YOUR_CALM


def test_continuations_are_counted() -> None:
    machine, _ = opened()
    feed(machine, frame(HEADERS, 0, 1), frame(CONTINUATION, 0, 1) * (CONTROL_MAX - 1))
    assert why_broken(machine, frame(CONTINUATION, 0, 1)[:9])[0] == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("size", [1, 100, 1023, 1024, 1500, 16384])
def test_each_kib_of_data_that_comes_allows_one_more_in_frames_of_any_size(size: int) -> None:
    machine, _ = opened(EVERYTHING)
    feed(machine, settings() * CONTROL_MAX, *[data(1, bytes(size))] * (32768 // size))
    allowed = 32768 // size * size >> 10
    feed(machine, settings() * allowed)
    assert not machine.broken
    assert why_broken(machine, settings())[0] == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("size", [0, 100, 1016, 20_000])
def test_each_kib_of_data_that_leaves_allows_one_more_in_frames_of_any_size(size: int) -> None:
    machine, stream = opened()
    whole = len(message(field_1(bytes(size)) if size else b""))
    count = 60_000 // whole
    for _ in range(count):
        machine.send(stream, bytes(size))
    assert stream.queued == 0
    feed(machine, settings() * (CONTROL_MAX + (count * whole >> 10)))
    assert not machine.broken
    assert why_broken(machine, settings())[0] == ENHANCE_YOUR_CALM


def test_what_waits_allows_nothing_before_it_leaves() -> None:
    machine, stream = opened()
    machine.settings(0, FIRST_FRAME)
    machine.send(stream, bytes(20_000))
    feed(machine, settings() * CONTROL_MAX)
    assert why_broken(machine, window_update(1, 20_000))[0] == ENHANCE_YOUR_CALM


def test_one_frame_that_is_wrong_twice_breaks_it_once() -> None:
    """One too many of a closed stream, and over the window of the connection."""
    machine = Http2Frames(False)
    machine.close(machine.open(1, LIMIT))
    feed(machine, settings() * CONTROL_MAX)
    assert why_broken(machine, (FIRST_WINDOW + 1).to_bytes(3) + data(1)[3:])[0] == ENHANCE_YOUR_CALM


def test_a_broken_connection_may_still_be_written_to_and_closed() -> None:
    machine, stream = opened()
    why_broken(machine, window_update(0, 0))
    machine.send(stream, b"x")
    machine.put(settings())
    machine.close(stream)
    assert machine.take() == data(1, message(field_1(b"x"))) + settings()
    assert machine.bytes_in > 13            # what is not read is counted


# ── a stream is closed ───────────────────────────────────────────────────────────────────────────────────────


def test_what_waits_in_a_stream_that_is_closed_never_leaves() -> None:
    machine, stream = opened()
    machine.settings(5, FIRST_FRAME)
    machine.send(stream, b"abc")
    assert sent(machine) == [(1, 5)] and stream.queued == 5
    machine.close(stream)
    assert stream.queued == 0
    machine.send(stream, b"more")
    machine.settings(1000, FIRST_FRAME)
    feed(machine, window_update(0, 1000), window_update(1, 1000))
    assert machine.take() == b"" and stream.queued == 0
    machine.close(stream)                   # again


@pytest.mark.parametrize("came", [1, 5, 6, 7, 9])
def test_the_rest_of_a_message_of_a_stream_that_is_closed_is_no_event(came: int) -> None:
    machine, stream, _ = opened(streams=2)
    whole = message(field_1(b"abc"))
    feed(machine, data(1, whole[:came]))
    machine.close(stream)
    assert feed(machine, data(1, whole[came:]), data(1, b"", END_STREAM), data(3, whole)) == [(MESSAGE, 3, b"abc")]


@pytest.mark.parametrize("pad", [None, 9])
def test_a_stream_may_be_closed_within_a_frame_that_comes(pad: int | None) -> None:
    body = message(field_1(b"abc"))
    whole = data(1, body * 2, END_STREAM, pad)
    for at in range(len(whole)):
        machine, stream, _ = opened(streams=2)
        before = feed(machine, whole[:at])
        machine.close(stream)
        after = feed(machine, whole[at:], data(3, body))
        assert (MESSAGE, 1, b"abc") not in after and (CONTROL, 0, data(1, b"", END_STREAM)) not in after
        assert before in ([], [(MESSAGE, 1, b"abc")], [(MESSAGE, 1, b"abc")] * 2) and after == [(MESSAGE, 3, b"abc")]


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────


def reserved_bytes() -> int:
    """Of the address space of this process, whether anything was written there or not."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_a_message_gets_memory_as_it_comes_whatever_it_claims() -> None:
    claimed, count = 200 * MIB, 20
    machine, *_ = opened(EVERYTHING, count)
    before = reserved_bytes()
    for at in range(count):
        feed(machine, data(2 * at + 1, message(field_1(b""))[:1] + (claimed + 5).to_bytes(4)
                           + b"\x0a\x80\x80\x80\x64" + bytes(10)))
    assert not machine.broken
    assert reserved_bytes() - before < claimed
    for _ in range(5):
        feed(machine, *(data(2 * at + 1, bytes(MIB // 2)) for at in range(count)))
    assert not machine.broken
    assert reserved_bytes() - before < 2 * claimed


def test_a_message_that_claims_at_most_1_mib_gets_it_with_its_first_byte(traced: None) -> None:
    machine, _ = opened(EVERYTHING)
    feed(machine, data(1, message(bytes(MIB))[:5]))
    assert tracemalloc.get_traced_memory()[0] < 100_000
    feed(machine, data(1, b"x"))
    assert MIB < tracemalloc.get_traced_memory()[0] < MIB + 100_000


@pytest.mark.parametrize("how", ["closed", "ended", "trailers"])
def test_a_message_that_is_not_completed_keeps_no_memory_though_its_stream_is_kept(how: str, traced: None) -> None:
    machine, stream = opened(EVERYTHING)
    feed(machine, data(1, message(field_1(bytes(MIB - 100)))[:1000]))
    assert tracemalloc.get_traced_memory()[0] > MIB - 100
    if how == "closed":
        machine.close(stream)
    else:
        feed(machine, data(1, b"", END_STREAM) if how == "ended" else frame(HEADERS, END_STREAM | END_HEADERS, 1))
    assert tracemalloc.get_traced_memory()[0] < 100_000


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps for a while what was given back")
@pytest.mark.parametrize("closed", [False, True], ids=["ended", "closed"])
def test_large_messages_that_are_not_completed_keep_no_memory_though_their_streams_are_kept(closed: bool) -> None:
    machine, *kept = opened(EVERYTHING, 40)
    before = reserved_bytes()
    for stream in kept:
        feed(machine, *cut(stream.number, message(field_1(bytes(9 * MIB)))[:8 * MIB], MIB))
        if closed:
            machine.close(stream)
        else:
            feed(machine, data(stream.number, b"", END_STREAM))
    assert reserved_bytes() - before < 100 * MIB        # of 320


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps for a while what was given back")
def test_nothing_of_a_connection_is_left_with_large_messages_in_it() -> None:
    before = reserved_bytes()
    for _ in range(40):
        machine, _ = opened(EVERYTHING)
        feed(machine, *cut(1, message(field_1(bytes(9 * MIB)))[:8 * MIB], MIB))
    assert reserved_bytes() - before < 100 * MIB        # of 320


def test_nothing_refers_to_a_stream_that_is_closed_nor_to_its_messages() -> None:
    machine, stream = opened()
    referred = sys.getrefcount(stream) - 1              # by the machine, too
    whole = data(1, message(field_1(b"a" * 500)))
    (_, _, body), = feed(machine, whole)
    assert sys.getrefcount(body) == sys.getrefcount(bytes(500))     # by nobody else
    feed(machine, whole[:100])
    machine.close(stream)
    feed(machine, whole[100:])
    assert sys.getrefcount(stream) == referred


def test_nothing_that_was_sent_is_kept_when_it_has_left(traced: None) -> None:
    machine, stream = opened()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        machine.renew()
        machine.send(stream, bytes(100_000))
        while stream.queued:
            machine.take()
            feed(machine, window_update(0, 20_000), window_update(1, 20_000))
        machine.take()
    assert tracemalloc.get_traced_memory()[0] - before < 100_000


def test_what_waits_behind_new_headers_is_kept_no_longer_than_it_waits(traced: None) -> None:
    machine = Http2Frames(False)
    before = tracemalloc.get_traced_memory()[0]
    feed(machine, frame(HEADERS, END_HEADERS, 1) + data(1, message(bytes(900))) * 50)
    machine.close(machine.open(1, LIMIT))
    assert machine.more and tracemalloc.get_traced_memory()[0] - before > 45_000
    assert feed(machine, b"") == []
    assert tracemalloc.get_traced_memory()[0] - before < 10_000
