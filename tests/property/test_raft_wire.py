"""Frames of the stream between replicas (_core/raft/wire): what is written is read again, by a naive reading too, what
is urgent stands in front, and what is spoilt is refused."""
from __future__ import annotations

from random import Random

import pytest
from fuzz.fuzzing import mutate
from hypothesis import given
from hypothesis import strategies as st
from kit.exact import exact
from oracle import raft as oracle
from property.test_raft_messages import messages, u32, u64

from fluxmq._core.errors import CorruptError
from fluxmq._core.raft.messages import Entry, Message, MessageKind, encode_message
from fluxmq._core.raft.wire import decode_frame, encode_frames, encode_replicas, frame_bytes, is_urgent

VOTES = (MessageKind.VOTE, MessageKind.VOTED, MessageKind.PRE_VOTE, MessageKind.PRE_VOTED, MessageKind.CAMPAIGN)
HEARTBEATS = (MessageKind.HEARTBEAT, MessageKind.ALIVE)
LARGE = 1 << 20
heartbeats = st.builds(Message, st.sampled_from(HEARTBEATS), u32, u64, sender=u32, commit=u64)
others = messages.filter(lambda message: message.kind not in HEARTBEATS)
outs = st.lists(st.tuples(st.integers(1, 3) | u64, heartbeats | others), max_size=20)


def urgency(message: Message) -> int:
    return 0 if message.kind in VOTES else 1 if message.kind in HEARTBEATS else 2


def fields(message: Message) -> oracle.Read:
    *numbers, entries = message.astuple()
    assert isinstance(entries, list)
    return (*numbers, [entry.astuple() for entry in entries])


def packed(out: list[tuple[int, Message]], most: int) -> None:
    """Votes first, then heartbeats, then the rest, each in the order in which it was given; and in no more frames than
    they need."""
    frames = encode_frames(out, most)
    read = [decode_frame(exact(frame)) for frame in frames]
    found = [one for inside, _ in read for one in inside]
    assert found == sorted(out, key=lambda one: urgency(one[1]))
    assert all(replicas is None for _, replicas in read)
    for frame, (inside, _) in zip(frames, read, strict=True):
        assert len(frame) <= most or len(inside) == 1
        assert oracle.read(frame) == ([(group, fields(message)) for group, message in inside], None)
        assert sum(frame_bytes(message) for _, message in inside) <= len(frame) - 5
    for (former, _), frame, (later, _) in zip(read, frames, read[1:], strict=False):
        first = later[0][1]
        head = 9 if urgency(first) == 1 and urgency(former[-1][1]) != 1 else 0
        assert len(frame) + frame_bytes(first) + head > most, "there was room in the frame before"


@given(out=outs, most=st.sampled_from([1, 40, 100, 500, 2000, LARGE]) | st.integers(1, 600))
def test_what_is_written_is_read_again(out: list[tuple[int, Message]], most: int) -> None:
    packed(out, most)


def test_frames_of_every_size_are_filled() -> None:
    vote, rest = Message(MessageKind.VOTE, 1, 2, sender=2), Message(MessageKind.APPENDED, 1, 2, sender=2, index=5)
    row = Message(MessageKind.ALIVE, 1, 2, sender=2)
    for most in range(1, 600):
        packed([(group, message) for group in range(6) for message in (rest, row, vote, row)], most)


@given(message=heartbeats | others)
def test_urgent_are_votes_and_heartbeats(message: Message) -> None:
    assert is_urgent(message) == (urgency(message) < 2)


@given(out=outs.filter(bool), body=st.none() | st.binary(max_size=40), seed=st.integers(0, 1 << 32),
       times=st.integers(1, 3))
def test_what_is_spoilt_is_refused(out: list[tuple[int, Message]], body: bytes | None, seed: int, times: int) -> None:
    [frame] = encode_frames(out, LARGE) if body is None else [encode_replicas(body)]
    rng, spoilt = Random(seed), bytearray(frame)
    for _ in range(times):
        mutate(rng, spoilt, bytes(range(12)))
    try:
        found = decode_frame(exact(bytes(spoilt)))
    except CorruptError:
        return
    assert found == decode_frame(frame)     # it was spoilt by what stood there, or entries of the same bytes exchanged


def test_heartbeats_of_all_groups_are_one_record() -> None:
    out = [(group, Message(MessageKind.HEARTBEAT, 2, 7, sender=1, commit=group)) for group in range(1000)]
    [frame] = encode_frames(out, LARGE)
    assert frame[1:5] == b"\x00\x00\x00\x01" and len(frame) == 5 + 9 + 1000 * 33
    assert decode_frame(exact(frame)) == (out, None)


def test_a_message_that_is_too_large_is_alone() -> None:
    small = Message(MessageKind.APPENDED, 1, 2, sender=2, index=5)
    large = Message(MessageKind.APPEND, 2, 2, sender=1, entries=[Entry(2, 1, bytes(5000))])
    frames = encode_frames([(1, small), (1, large), (2, small), (3, small)], 1000)
    assert [[group for group, _ in decode_frame(frame)[0]] for frame in frames] == [[1], [1], [2, 3]]
    assert [len(frame) > 1000 for frame in frames] == [False, True, False]


@given(body=st.binary(max_size=300))
def test_what_is_said_of_replicas(body: bytes) -> None:
    frame = encode_replicas(body)
    assert decode_frame(exact(frame)) == ([], body)
    assert oracle.read(frame) == ([], body)


ONE = oracle.record(1, bytes(8) + encode_message(Message(MessageKind.VOTE, 1)), 74)
SAID = oracle.record(3, b"x")


@pytest.mark.parametrize(("spoilt", "why"), [
    (b"", "no frame"),
    (oracle.frame()[:4], "no frame"),
    (b"\x02" + oracle.frame(ONE)[1:], "no frame"),
    (oracle.frame(ONE) + b"x", "longer than it says"),
    (oracle.frame(ONE)[:-1], "cut off"),
    (oracle.frame(b"\x01\x00\x00"), "cut off"),
    (oracle.frame(oracle.record(4, b"")), "of kind 4"),
    (oracle.frame(oracle.record(0, b"")), "of kind 0"),
    (oracle.frame(SAID, SAID), "says again"),
    (oracle.frame(SAID[:-1] + b"y"), "not what was sent"),
    (oracle.frame(ONE[:16] + b"\x05" + ONE[17:]), "not what was sent"),
    (oracle.frame(oracle.record(1, b"")), "message of a frame is cut off"),
    (oracle.frame(oracle.record(1, bytes(73))), "message of a frame is cut off"),
    (oracle.frame(oracle.record(1, bytes(74))), "no message"),
    (oracle.frame(oracle.record(1, ONE[9:] + b"x", 74)), "longer than it says"),
    (oracle.frame(oracle.record(2, b"")), "heartbeats are cut off"),
    (oracle.frame(oracle.record(2, bytes(34))), "heartbeats are cut off"),
    (oracle.frame(oracle.record(2, b"\x03" + bytes(32) + b"\x05" + bytes(32))), "heartbeat is of kind 5")])
def test_what_is_no_frame(spoilt: bytes, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        decode_frame(exact(spoilt))
    with pytest.raises(oracle.Malformed):
        oracle.read(spoilt)


def test_a_frame_may_say_both_and_nothing() -> None:
    assert decode_frame(exact(oracle.frame(SAID, ONE))) == ([(0, Message(MessageKind.VOTE, 1))], b"x")
    assert decode_frame(exact(oracle.frame())) == ([], None)
