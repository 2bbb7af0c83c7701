"""What one end of HTTP/2 makes of bytes that carry messages of gRPC (RFC 9113 sections 4 to 6), naively: one frame
after the other, from bytes that are all there.

Every stream is opened by its headers, with the same limit of messages, and never closed.
"""
from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Reading", "envelope", "read"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PUSH_PROMISE, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 5, 8, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, ENHANCE_YOUR_CALM = 1, 3, 6, 11
WINDOW, LARGEST_WINDOW, LARGEST_DATA, LARGEST_OTHER, LARGEST_HEADERS = 4 << 20, (1 << 31) - 1, 1 << 20, 16384, 16384
LARGEST_SETTINGS = 192          # 32 of them
FRAMES_FREE = 1000          # frames that carry nothing; one more for each KiB of DATA
ENVELOPE_BYTES_MAX = 6

Event = tuple[object, ...]


@dataclass
class Window:
    """room: what the other end may send. unread: what was read and is not given back. ours: what this end may send."""

    room: int = WINDOW
    unread: int = 0
    ours: int = 65535


@dataclass
class Stream(Window):
    raw: bytes = b""        # what is no message yet
    over: bool = False      # ended, or refused


@dataclass
class Reading:
    """events: ("control", frame), ("message" or "other", stream, bytes), ("bad", stream), ("broken", code). given: what
    was given back, (stream, bytes)."""

    message_bytes_max: int
    events: list[Event] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)
    streams: dict[int, Stream] = field(default_factory=dict)
    connection: Window = field(default_factory=Window)
    newest: int = 0
    spent: int = 0
    carried: int = 0
    headers_of: int = 0
    headers_bytes: int = 0

    def begin(self, kind: int, flags: int, number: int, length: int) -> int:
        """The head of a frame. Returns a code, or 0."""
        stream = self.streams.get(number)
        if self.headers_of and (kind, number) != (CONTINUATION, self.headers_of):
            return PROTOCOL_ERROR
        if kind == DATA:
            if number == 0 or number > self.newest:
                return PROTOCOL_ERROR
            if length > LARGEST_DATA:
                return FRAME_SIZE_ERROR
            if flags & PADDED and not length:
                return PROTOCOL_ERROR
        if kind != DATA or not length or stream is None:
            self.spent += 1
            if self.spent > FRAMES_FREE + self.carried // 1024:
                return ENHANCE_YOUR_CALM
        if kind == DATA:
            self.carried += length
            for window in filter(None, (self.connection, stream)):
                window.room -= length
                if window.room < 0:
                    return FLOW_CONTROL_ERROR
            return 0
        if kind == SETTINGS and length > LARGEST_SETTINGS:
            return ENHANCE_YOUR_CALM
        if length > LARGEST_OTHER or (kind == WINDOW_UPDATE and length != 4):
            return FRAME_SIZE_ERROR
        if kind == PUSH_PROMISE or (kind == CONTINUATION and not self.headers_of):
            return PROTOCOL_ERROR
        if kind in (HEADERS, CONTINUATION):
            self.headers_bytes = length + (self.headers_bytes if kind == CONTINUATION else 0)
            if self.headers_bytes > LARGEST_HEADERS:
                return ENHANCE_YOUR_CALM
            self.headers_of = 0 if flags & END_HEADERS else number
        return 0

    def data(self, flags: int, number: int, length: int, frame: bytes) -> int:
        """What has come of a DATA frame, perhaps not all."""
        stream, came = self.streams.get(number), frame[9:]
        body = came
        if flags & PADDED and came:
            if came[0] >= length:
                return PROTOCOL_ERROR
            body = came[1:length - came[0]]
        if stream is not None and not stream.over:
            stream.raw += body
            self.messages(number, stream)
        if len(came) < length:
            return 0
        self.give_back(0, self.connection, length)
        if stream is not None and flags & END_STREAM:
            self.end(number, stream)
            self.events.append(("control", bytes((0, 0, 0, DATA, END_STREAM)) + frame[5:9]))
        elif stream is not None:
            self.give_back(number, stream, length)
        return 0

    def messages(self, number: int, stream: Stream) -> None:
        while len(stream.raw) >= 5:
            size = int.from_bytes(stream.raw[1:5])
            if stream.raw[0] or size > self.message_bytes_max + ENVELOPE_BYTES_MAX:
                stream.over = True
                self.events.append(("bad", number))
                return
            if len(stream.raw) < 5 + size:
                return
            message, stream.raw = stream.raw[5:5 + size], stream.raw[5 + size:]
            inside = envelope(message)
            self.events.append(("other", number, message) if inside is None else ("message", number, inside))

    def end(self, number: int, stream: Stream) -> None:
        if stream.raw and not stream.over:
            self.events.append(("bad", number))
        stream.over = True

    def give_back(self, number: int, window: Window, length: int) -> None:
        window.unread += length
        if window.unread >= WINDOW // 2:
            self.given.append((number, window.unread))
            window.room += window.unread
            window.unread = 0

    def other(self, kind: int, flags: int, number: int, frame: bytes) -> int:
        """A frame of another kind, whole."""
        if kind == WINDOW_UPDATE:
            by = int.from_bytes(frame[9:]) & LARGEST_WINDOW
            window = self.streams.get(number) if number else self.connection
            if by == 0 or number > self.newest:
                return PROTOCOL_ERROR
            if window is not None:
                window.ours += by
                if window.ours > LARGEST_WINDOW:
                    return FLOW_CONTROL_ERROR
            return 0
        if kind == HEADERS and flags & END_STREAM and number in self.streams:
            self.end(number, self.streams[number])
        self.events.append(("control", frame))
        if kind in (HEADERS, CONTINUATION) and not self.headers_of and number > self.newest:
            self.newest = number
            self.streams[number] = Stream()
        return 0


def envelope(message: bytes) -> bytes | None:
    """What is in field 1, of at most five bytes of length; None: the message is not field 1 alone."""
    if not message:
        return b""
    length = 0
    for at, byte in enumerate(message[1:ENVELOPE_BYTES_MAX]):
        length |= (byte & 127) << 7 * at
        if byte < 128:
            inside = message[at + 2:]
            return inside if message[0] == 0x0A and length == len(inside) else None
    return None


def read(data: bytes, server: bool, message_bytes_max: int) -> Reading:
    found = Reading(message_bytes_max)
    at = 0
    if server:
        at = len(PREFACE)
        if data[:at] != PREFACE[:len(data)]:
            found.events.append(("broken", PROTOCOL_ERROR))
            return found
        if len(data) >= at:
            found.events.append(("control", PREFACE))
    while len(data) - at >= 9:
        length, kind, flags = int.from_bytes(data[at:at + 3]), data[at + 3], data[at + 4]
        number = int.from_bytes(data[at + 5:at + 9]) & 0x7FFFFFFF
        frame = data[at:at + 9 + length]
        code = found.begin(kind, flags, number, length)
        if not code and kind == DATA:
            code = found.data(flags, number, length, frame)
        elif not code and len(frame) == 9 + length:
            code = found.other(kind, flags, number, frame)
        if code:
            found.events.append(("broken", code))
            return found
        at += 9 + length
    return found
