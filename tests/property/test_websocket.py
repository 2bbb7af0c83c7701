"""Frames of WebSocket: what the broker takes from bytes in any pieces is what a naive reading takes from the whole."""
from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given
from oracle import websocket

from fluxmq._core.testing.websocket_probe import unframe

PAYLOADS = st.one_of(st.binary(max_size=20), st.builds(lambda n, byte: bytes((byte,)) * n,
                                                       st.sampled_from([124, 125, 126, 127, 300, 65535, 65536]),
                                                       st.integers(0, 255)))
MASKS = st.binary(min_size=4, max_size=4)
GOOD = st.builds(websocket.build, st.just(websocket.BINARY), PAYLOADS, MASKS)
CONTROL = st.builds(websocket.build, st.sampled_from([websocket.CLOSE, websocket.PING, websocket.PONG]),
                    st.binary(max_size=125), MASKS)
ANY = st.builds(websocket.build, st.integers(0, 15), PAYLOADS, MASKS, fin=st.booleans(),
                rsv=st.sampled_from([0, 0, 0, 1, 4]), masked=st.sampled_from([True, True, True, False]),
                wide=st.sampled_from([0, 0, 126, 127]))
FRAGMENTS = st.lists(PAYLOADS, min_size=2, max_size=4).map(lambda parts: b"".join(
    websocket.build(websocket.CONTINUATION if at else websocket.BINARY, part, b"mask", fin=at == len(parts) - 1)
    for at, part in enumerate(parts)))
STREAMS = st.lists(st.one_of(GOOD, GOOD, FRAGMENTS, CONTROL, ANY), max_size=6).map(b"".join)
STEPS = st.lists(st.integers(1, 200), min_size=1, max_size=5)


def cut(data: bytes, steps: list[int]) -> list[bytes]:
    """In pieces of these lengths, again and again; of a long stream they grow, so that it is not a thousand."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = steps[turn % len(steps)] * (1 + turn // 20)
        pieces.append(data[at:at + size])
        at, turn = at + size, turn + 1
    return pieces


@given(STREAMS, st.integers(0, 40), STEPS)
@example(websocket.build(websocket.BINARY, b"x" * 9, b"abcd", wide=127), 0, [1])
@example(websocket.build(websocket.BINARY, b"", b"abcd") * 2, 0, [1])
@example(websocket.build(websocket.PING, b"p" * 125, b"abcd"), 0, [3])
@example(b"\x82\xff" + b"\xff" * 8 + b"mask", 0, [200])
def test_any_pieces_are_read_as_the_whole_is(stream: bytes, missing: int, steps: list[int]) -> None:
    data = stream[:max(0, len(stream) - missing)]
    pieces = cut(data, steps)
    looked, result, payload, pong, close = unframe(pieces)
    expected = websocket.read(data)
    assert (result, payload, pong, close) == (expected.result, expected.payload, expected.pong, expected.close)
    # The piece that decides it is the last one that is looked at, and no later.
    ends = [sum(map(len, pieces[:at + 1])) for at in range(len(pieces))]
    assert looked == (len(pieces) if not expected.result else next(
        at for at, end in enumerate(ends, 1) if end >= expected.end))


@given(st.binary(max_size=60), STEPS)
def test_garbage_is_read_as_the_naive_reading_does(data: bytes, steps: list[int]) -> None:
    expected = websocket.read(data)
    assert unframe(cut(data, steps))[1:] == (expected.result, expected.payload, expected.pong, expected.close)
