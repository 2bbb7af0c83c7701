"""Frames of HTTP/2 with messages of gRPC (peer/http2): `h2` as the other end understands what the machine sends, and
the machine what h2 does; two machines do as a model of their windows; and whatever bytes come, in any pieces, become
what a naive reading makes of the whole."""
from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fuzz.fuzzing import mutate
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
)
from h2.settings import SettingCodes, Settings
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from kit.exact import exact
from kit.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    data,
    field_1,
    frame,
    frames,
    headers,
    message,
    window_update,
)
from oracle import http2 as oracle

from fluxmq._core.peer.http2 import (
    BAD_MESSAGE,
    BROKEN,
    CONTROL,
    FRAME_BYTES_MAX,
    MESSAGE,
    OTHER_MESSAGE,
    WINDOW_BYTES,
    Http2Frames,
    Http2Stream,
)

LIMIT = 5000            # of a message
EVERYTHING = 1 << 30
FIRST_WINDOW, FIRST_FRAME, LARGEST_WINDOW = 65535, 16384, (1 << 31) - 1
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/s/m"), (":authority", "x")]
randoms = st.integers(0, 1 << 32).map(Random)
# What a run of CI plays, and the soak. Examples are drawn from one number: there is nothing to shrink.
FEW = settings(max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])
MANY = settings(FEW, max_examples=200)
LONG = settings(FEW, max_examples=100_000)

Event = tuple[Any, ...]


def pieces(rng: Random, whole: bytes) -> list[bytes]:
    """In pieces of about one length, many or few."""
    mean, found, at = rng.choice((1, 3, 20, 500, 20_000)), [], 0
    mean = max(mean, len(whole) // 400)
    while at < len(whole):
        size = rng.randint(1, 2 * mean)
        found.append(whole[at:at + size])
        at += size
    return found


def body(rng: Random) -> bytes:
    """Of a message: mostly small, some beside the lengths at which something changes."""
    return rng.randbytes(rng.choice((0, 1, rng.randrange(300), 122, 123, 127, 128, 16370 + rng.randrange(20),
                                     rng.randrange(60_000), rng.randrange(200_000))))


# ── h2 at the other end ──────────────────────────────────────────────────────────────────────────────────────


class Ours:
    """The machine, and a library for everything that it passes on, as cluster/rpc/connection has one."""

    def __init__(self, server: bool) -> None:
        self.machine = Http2Frames(server)
        self.library = H2Connection(H2Configuration(client_side=not server))
        self.library.local_settings = Settings(client=not server, initial_values={
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES, SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX})
        self.streams: dict[int, Http2Stream] = {}
        self.came: dict[int, list[tuple[bool, bytes]]] = {}
        self.ended: set[int] = set()
        self.library.initiate_connection()
        self.write()
        self.machine.begin()

    def write(self) -> None:
        self.machine.put(self.library.data_to_send())

    def opened(self, number: int) -> None:
        self.streams[number] = self.machine.open(number, EVERYTHING)
        self.came[number] = []

    def feed(self, read: bytes) -> None:
        while True:
            for kind, number, what in self.machine.feed(exact(read)):
                if kind == CONTROL:
                    self.control(what)
                else:
                    assert kind in (MESSAGE, OTHER_MESSAGE), what
                    assert number not in self.ended
                    self.came[number].append((kind == OTHER_MESSAGE, what))
            self.write()
            if not self.machine.more:
                return
            read = b""

    def control(self, what: bytes) -> None:
        events = self.library.receive_data(what)
        self.write()        # settings are acknowledged before anything leaves that only they allow
        for event in events:
            if isinstance(event, RequestReceived):
                assert event.stream_id is not None
                self.opened(event.stream_id)
                self.library.send_headers(event.stream_id, [(":status", "200")])
            elif isinstance(event, RemoteSettingsChanged):
                now = self.library.remote_settings
                assert not self.machine.settings(now.initial_window_size, now.max_frame_size)
            elif isinstance(event, StreamEnded):
                assert event.stream_id is not None
                self.ended.add(event.stream_id)


class Theirs:
    """h2, whole. owed: what was read and is not yet given back. unsent: what it has still to send of a stream.
    unacknowledged: settings; h2 takes an acknowledgement for one of all that are under way, so only one is."""

    def __init__(self, client: bool, rng: Random) -> None:
        self.rng = rng
        self.library = H2Connection(H2Configuration(client_side=client))
        self.library.initiate_connection()
        self.unacknowledged = 1
        self.read, self.awaited = b"", 0 if client else len(PREFACE)
        self.came: dict[int, bytes] = {}
        self.unsent: dict[int, bytes] = {}
        self.owed: dict[int, int] = {}
        self.begun: set[int] = set()

    def feed(self, read: bytes) -> None:
        """Frame by frame: what h2 allows with settings that are acknowledged, it takes with its next read only."""
        self.read += read
        while len(self.read) >= (size := self.awaited or 9 + int.from_bytes(self.read[:3])):
            self.frame(self.read[:size])
            self.read, self.awaited = self.read[size:], 0

    def frame(self, whole: bytes) -> None:
        for event in self.library.receive_data(whole):
            if isinstance(event, DataReceived):
                assert event.stream_id is not None and event.data is not None
                assert event.flow_controlled_length is not None
                self.came[event.stream_id] += event.data
                self.owed[event.stream_id] += event.flow_controlled_length
            elif isinstance(event, RequestReceived):
                assert event.stream_id is not None
                self.library.send_headers(event.stream_id, [(":status", "200")])
                self.begun.add(event.stream_id)
            elif isinstance(event, ResponseReceived):
                assert event.stream_id in self.came
            elif isinstance(event, SettingsAcknowledged):
                self.unacknowledged -= 1

    def opened(self, number: int) -> None:
        self.came[number], self.unsent[number], self.owed[number] = b"", b"", 0

    def give_back(self, number: int, most: int) -> None:
        by = min(most, self.owed[number])
        self.owed[number] -= by
        if by:
            self.library.acknowledge_received_data(by, number)

    def send(self, number: int, most: int) -> bool:
        """A DATA frame of what waits, perhaps padded. Whether there was room for any."""
        if number not in self.begun or not self.unsent[number]:
            return False
        room = min(self.library.local_flow_control_window(number), self.library.max_outbound_frame_size, most)
        pad = self.rng.choice((None, None, 0, 1, 255))
        size = min(len(self.unsent[number]), room - (0 if pad is None else pad + 1))
        if size <= 0:
            return False
        self.library.send_data(number, self.unsent[number][:size], pad_length=pad)
        self.unsent[number] = self.unsent[number][size:]
        return True

    def disturb(self) -> None:
        """Something that has nothing to do with messages."""
        match self.rng.randrange(4):
            case 0:
                self.library.ping(self.rng.randbytes(8))
            case 1:
                self.library.increment_flow_control_window(self.rng.choice((1, 1000, 100_000)))
            case 2:
                self.settings(self.rng.choice((0, 1, 100, 5000, 65535, 1 << 20)))
            case 3 if self.begun:
                self.library.increment_flow_control_window(self.rng.choice((1, 1000)), self.rng.choice([*self.begun]))


    def settings(self, initial_window: int) -> None:
        if not self.unacknowledged:
            self.unacknowledged += 1
            self.library.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: initial_window,
                                          SettingCodes.MAX_FRAME_SIZE: self.rng.choice((16384, 30_000, 1 << 20))})


def with_h2(server: bool, rng: Random) -> None:
    """Streams with messages both ways. server: the machine is the one that is called."""
    ours, theirs = Ours(server), Theirs(server, rng)
    numbers = [2 * at + 1 for at in range(rng.choice((1, 1, 3)))]
    sent: dict[int, list[bytes]] = {number: [] for number in numbers}
    told: dict[int, list[tuple[bool, bytes]]] = {number: [] for number in numbers}
    waiting = {"ours": b"", "theirs": b""}

    def carry() -> None:
        waiting["ours"] += ours.machine.take()
        waiting["theirs"] += theirs.library.data_to_send()
        for name, end in (("ours", theirs), ("theirs", ours)):
            some = waiting[name][:rng.choice((1, 9, 100, 10_000, len(waiting[name])))]
            waiting[name] = waiting[name][len(some):]
            for piece in pieces(rng, some):
                end.feed(piece)

    for number in numbers:
        theirs.opened(number)
        if server:
            theirs.library.send_headers(number, REQUEST)
            theirs.begun.add(number)
        else:
            ours.library.send_headers(number, REQUEST)
            ours.write()
            ours.opened(number)
    for _ in range(rng.randrange(5, 60)):
        number = rng.choice(numbers)
        match rng.randrange(6):
            case 0 if number in ours.streams:
                what = body(rng)
                sent[number].append(what)
                ours.machine.send(ours.streams[number], what)
            case 1:
                what = body(rng)
                other = rng.random() < 0.2
                raw = what if other else field_1(what, rng.randrange(6))
                told[number].append((other and oracle.envelope(what) is None,
                                     what if not other else oracle.envelope(what) or what))
                theirs.unsent[number] += message(raw)
            case 2:
                theirs.give_back(number, rng.choice((1, 100, 10_000, 1 << 20)))
            case 3:
                theirs.disturb()
            case 4:
                theirs.send(number, rng.choice((1, 10, 1000, 1 << 20)))
            case 5:
                carry()
        ours.machine.renew()
    # The rest, until neither has anything to say.
    while True:
        ours.machine.renew()
        moved = [theirs.send(number, 1 << 20) for number in numbers]
        for number in numbers:
            theirs.give_back(number, 1 << 20)
            if number in theirs.begun and number in ours.streams and ours.streams[number].queued:
                # Of a window below zero h2 gives back nothing until half of it is read.
                theirs.library.increment_flow_control_window(10_000, number)
                theirs.library.increment_flow_control_window(10_000)
                moved.append(True)
        carry()
        if not any(moved) and not any(waiting.values()) and not any(theirs.owed.values()) \
                and not ours.machine.outgoing_bytes:
            waiting["theirs"] += theirs.library.data_to_send()      # it gives everything once
            if not waiting["theirs"]:
                break
    for number in numbers:
        assert not theirs.unsent[number] and ours.streams[number].queued == 0
        theirs.library.send_data(number, b"", end_stream=True, pad_length=rng.choice((None, 0, 5)))
    while read := theirs.library.data_to_send():
        ours.feed(read)
    assert ours.ended == set(numbers) and not ours.machine.broken
    assert ours.came == told
    for number in numbers:
        assert theirs.came[number] == b"".join(message(field_1(one) if one else b"") for one in sent[number])


by_both = pytest.mark.parametrize("server", [False, True], ids=["a client", "a server"])


@by_both
@FEW
@given(rng=randoms)
def test_h2_and_the_machine_understand_each_other(server: bool, rng: Random) -> None:
    with_h2(server, rng)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@by_both
@settings(LONG, max_examples=5000)
@given(rng=randoms)
def test_h2_and_the_machine_understand_each_other_for_long(server: bool, rng: Random) -> None:
    with_h2(server, rng)


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────


class Windows:
    """A machine that sends, one that receives, and what the first may have in flight. What the second gives back does
    not reach the first: the test gives, as it likes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.sender, self.receiver = Http2Frames(False), Http2Frames(False)
        self.receiver.begin()
        self.connection, self.initial, self.frame_bytes_max = FIRST_WINDOW, FIRST_WINDOW, FIRST_FRAME
        self.windows: dict[int, int] = {}
        self.streams: dict[int, tuple[Http2Stream, Http2Stream]] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.unsent: dict[int, int] = {}            # bytes that the machine has not let go
        self.came: dict[int, list[bytes]] = {}
        self.newest = -1

    def open(self) -> None:
        self.newest += self.rng.choice((2, 4))
        self.streams[self.newest] = (self.sender.open(self.newest, 0), self.receiver.open(self.newest, EVERYTHING))
        self.windows[self.newest], self.unsent[self.newest] = self.initial, 0
        self.sent[self.newest], self.came[self.newest] = [], []

    def close(self, number: int) -> None:
        """At the sender; what has left still comes."""
        self.sender.close(self.streams.pop(number)[0])
        del self.windows[number], self.unsent[number]

    def send(self, number: int) -> None:
        what = body(self.rng)
        self.sent[number].append(what)
        self.unsent[number] += len(message(field_1(what) if what else b""))
        self.sender.send(self.streams[number][0], what)

    def give(self, number: int, by: int) -> None:
        if number:
            self.windows[number] += by
        else:
            self.connection += by
        for piece in pieces(self.rng, window_update(number, by)):
            assert self.sender.feed(exact(piece)) == []

    def settings(self, initial: int, frame_bytes_max: int) -> None:
        for number in self.windows:
            self.windows[number] += initial - self.initial
        self.initial, self.frame_bytes_max = initial, frame_bytes_max
        assert self.sender.settings(initial, frame_bytes_max) == ""

    def check(self) -> None:
        """What has left is no more than the windows allow, and no less."""
        written = self.sender.take()
        for kind, flags, number, payload in frames(written):
            assert (kind, flags) == (DATA, 0) and 0 < len(payload) <= self.frame_bytes_max
            self.connection -= len(payload)
            self.windows[number] -= len(payload)
            self.unsent[number] -= len(payload)
            assert self.connection >= 0 and self.windows[number] >= 0
        for number, (stream, _) in self.streams.items():
            assert stream.queued == self.unsent[number]
            assert not stream.queued or self.connection == 0 or self.windows[number] <= 0
        for piece in pieces(self.rng, written):
            for kind, number, what in self.receiver.feed(exact(piece)):
                assert kind == MESSAGE
                self.came[number].append(what)
        assert not self.receiver.broken


def windows(rng: Random) -> None:
    world = Windows(rng)
    world.open()
    for _ in range(rng.randrange(10, 100)):
        number = rng.choice([*world.streams])
        by = rng.choice((1, 10, 1000, 20_000, 300_000))
        match rng.randrange(8):
            case 0 if len(world.streams) < 5:
                world.open()
            case 1 if len(world.streams) > 1 and rng.random() < 0.3:
                world.close(number)
            case 2:
                world.settings(rng.choice((0, 1, 100, 20_000, FIRST_WINDOW, 300_000)), rng.choice((16384, 50_000)))
            case 3:
                world.give(number, by)
            case 4:
                world.give(0, by)
            case _:
                world.send(number)
        world.check()
    # All windows are given back: everything that is open arrives.
    world.sender.renew()
    world.settings(max(world.initial, 1000), FIRST_FRAME)
    world.check()
    for number in world.streams:
        if (missing := world.unsent[number] - world.windows[number]) > 0:
            world.give(number, missing)
            world.check()
    if any(world.unsent.values()):
        world.give(0, sum(world.unsent.values()))
        world.check()
    for number, came in world.came.items():
        if number in world.streams:
            assert came == world.sent[number] and world.streams[number][0].queued == 0
        else:
            assert came == world.sent[number][:len(came)]


@MANY
@given(rng=randoms)
def test_what_is_sent_arrives_once_and_in_order_and_as_soon_as_windows_allow(rng: Random) -> None:
    windows(rng)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@LONG
@given(rng=randoms)
def test_what_is_sent_arrives_once_and_in_order_for_long(rng: Random) -> None:
    windows(rng)


@settings(FEW, max_examples=15)
@given(rng=randoms)
def test_two_machines_never_stand_still_on_windows_of_their_own(rng: Random) -> None:
    """Both ways, each with the windows that the other gives back: several times as much as they hold."""
    ends = Http2Frames(False), Http2Frames(False)
    streams: tuple[list[Http2Stream], ...] = [], []
    for end, of_end in zip(ends, streams, strict=True):
        end.begin()
        end.settings(WINDOW_BYTES, rng.choice((16384, FRAME_BYTES_MAX)))
        of_end += [end.open(number, EVERYTHING) for number in (1, 3)]
    what = rng.randbytes(1 << 20)
    sent: tuple[list[Event], ...] = [], []
    came: tuple[list[Event], ...] = [], []
    total, flown = 12 * WINDOW_BYTES // 4, [0, 0]
    while min(flown) < total or any(end.outgoing_bytes for end in ends):
        for at, end in enumerate(ends):
            if flown[at] < total:
                stream, size = rng.choice(streams[at]), rng.choice((0, 1000, 100_000, 1_000_000))
                end.send(stream, what[:size])
                sent[at].append((MESSAGE, stream.number, what[:size]))
                flown[at] += size
            if rng.random() < 0.7 or min(flown) >= total:
                for piece in [whole[i:i + 300_000] for whole in [end.take()] for i in range(0, len(whole), 300_000)]:
                    came[1 - at].extend(ends[1 - at].feed(exact(piece)))
    for at in (0, 1):
        for number in (1, 3):
            assert [event for event in came[1 - at] if event[1] == number] == [
                event for event in sent[at] if event[1] == number]
        assert all(stream.queued == 0 for stream in streams[at])


# ── any bytes ────────────────────────────────────────────────────────────────────────────────────────────────


def conversation(rng: Random) -> bytes:
    """What a peer may send, mostly right."""
    found, newest = [], -1
    for _ in range(rng.randrange(1, 12)):
        if newest < 0 or rng.random() < 0.2:
            newest += 2
            block = headers()
            at = rng.randrange(len(block))
            found.append(rng.choice((
                frame(HEADERS, END_HEADERS, newest, block),
                frame(HEADERS, 0, newest, block[:at]) + frame(CONTINUATION, END_HEADERS, newest, block[at:]))))
        number = rng.randrange(1, newest + 1, 2)
        match rng.randrange(10):
            case 0:
                found.append(frame(rng.choice((2, 3, SETTINGS, 6, 7, 10)), rng.randrange(2), rng.choice((0, number)),
                                   rng.randbytes(rng.choice((0, 4, 6, 8)))))
            case 1:
                found.append(window_update(rng.choice((0, number)), rng.choice((1, 1000, LARGEST_WINDOW - 65535))))
            case 2:
                found.append(rng.choice((data(number, b"", END_STREAM),
                                         frame(HEADERS, END_HEADERS | END_STREAM, number))))
            case _:
                raw = b"".join(of_grpc(rng) for _ in range(rng.choice((1, 1, 3))))
                while raw:
                    size = rng.choice((1, 5, 6, 100, len(raw)))
                    found.append(data(number, raw[:size], rng.choice((0, 0, 0, 0, END_STREAM)),
                                      rng.choice((None, None, 0, 3))))
                    raw = raw[size:]
    return b"".join(found)


def of_grpc(rng: Random) -> bytes:
    what = rng.randbytes(rng.choice((0, 1, 2, 3, 120, 130, 300, LIMIT - 3, LIMIT, LIMIT + 4, LIMIT + 7)))
    raw = rng.choice((what, what, field_1(what), field_1(what), field_1(what, rng.randrange(2, 8)),
                      b"\x0a" + what, field_1(what[:100]) + what))
    return message(raw, rng.choice((0, 0, 0, 0, 0, 0, 1)))


SPICE = bytes((*range(14), 0x0A, 0x40, 0x7F, 0x80, 0xFF))


def spoil(rng: Random, whole: bytes) -> bytes:
    spoilt = bytearray(whole)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        mutate(rng, spoilt, SPICE)
    return bytes(spoilt)


def outcome(server: bool, parts: list[bytes]) -> tuple[list[Event], list[tuple[int, int]]]:
    """What the machine makes of them, as the oracle says it."""
    machine, found, newest = Http2Frames(server), list[Event](), 0
    machine.begin()
    machine.take()
    for part in parts:
        events = machine.feed(exact(part))
        while events:
            for kind, number, what in events:
                assert not found or found[-1][0] != "broken"
                if kind == CONTROL:
                    assert number == 0
                    found.append(("control", what))
                    of = int.from_bytes(what[5:9]) & LARGEST_WINDOW
                    if what != PREFACE and what[3] in (HEADERS, CONTINUATION) and what[4] & END_HEADERS and of > newest:
                        assert what is events[-1][2]
                        machine.open(newest := of, LIMIT)
                elif kind in (BAD_MESSAGE, BROKEN):
                    assert what
                    found.append(("bad" if kind == BAD_MESSAGE else "broken", number))
                else:
                    found.append(("message" if kind == MESSAGE else "other", number, what))
            events = machine.feed(b"") if machine.more else []
        assert not machine.more
    broken = bool(found) and found[-1][0] == "broken"
    assert machine.broken == broken
    if broken:
        assert machine.feed(PREFACE + data(1, message(b""))) == []
    given = frames(machine.take())
    assert all(kind == WINDOW_UPDATE for kind, *_ in given)
    return found, [(number, int.from_bytes(payload)) for _, _, number, payload in given]


def any_bytes(server: bool, whole: bytes, rng: Random) -> list[Event]:
    expected = oracle.read(whole, server, LIMIT)
    for parts in ([whole], pieces(rng, whole), [whole[at:at + 1] for at in range(min(len(whole), 4000))]
                  + ([whole[4000:]] if len(whole) > 4000 else [])):
        assert outcome(server, parts) == (expected.events, expected.given)
    return expected.events


@by_both
@MANY
@given(rng=randoms)
def test_any_pieces_are_read_as_a_naive_reading_does_the_whole(server: bool, rng: Random) -> None:
    any_bytes(server, PREFACE * server + conversation(rng), rng)


@by_both
@settings(MANY, max_examples=400)
@given(rng=randoms)
def test_what_is_spoilt_is_read_as_a_naive_reading_does(server: bool, rng: Random) -> None:
    any_bytes(server, spoil(rng, PREFACE * server + conversation(rng)), rng)


@by_both
@given(whole=st.binary(max_size=80), rng=randoms)
@example(b"\0\0\0\1\4\0\0\0\1" + b"\0\0\1\0\x08\0\0\0\1\0", Random(1))
def test_garbage(server: bool, whole: bytes, rng: Random) -> None:
    any_bytes(server, whole, rng)
    any_bytes(server, PREFACE * server + frame(HEADERS, END_HEADERS, 1) + whole, rng)
    any_bytes(server, PREFACE * server + frame(HEADERS, END_HEADERS, 1) + data(1, whole), rng)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@by_both
@settings(FEW, max_examples=250_000)    # some 21 frames each: 10 million with both
@given(rng=randoms)
def test_what_is_spoilt_is_read_as_a_naive_reading_does_for_long(server: bool, rng: Random) -> None:
    any_bytes(server, spoil(rng, PREFACE * server + conversation(rng)), rng)


def test_every_kind_of_event_is_among_what_is_spoilt() -> None:
    seen = set()
    for seed in range(300):
        rng = Random(seed)
        events = any_bytes(False, spoil(rng, conversation(rng)), rng)
        seen |= {event[0] if event[0] != "broken" else event for event in events}
    assert seen >= {"control", "message", "other", "bad", ("broken", 1), ("broken", 3), ("broken", 6)}
