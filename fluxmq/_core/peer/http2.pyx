# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Frames of HTTP/2 with messages of gRPC. See peer/http2.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.errors import UsageError
from fluxmq._core.wire.primitives cimport peek_u32, put_u32
from fluxmq._core.wire.sizes cimport fit_u8, fit_u32, low_u8

__all__ = ["BAD_MESSAGE", "BROKEN", "CONTROL", "CONTROL_MAX", "FRAME_BYTES_MAX", "MESSAGE", "OTHER_MESSAGE",
           "WINDOW_BYTES", "Http2Frames", "Http2Stream"]

CONTROL, MESSAGE, OTHER_MESSAGE, BAD_MESSAGE, BROKEN = range(5)     # of events

# What the other end of a stream may send before it is read. At 1 GB/s, which is more than one core carries, it is the
# traffic of 4 ms; over 50 ms of distance it allows 80 MB/s.
WINDOW_BYTES = 4 << 20
FRAME_BYTES_MAX = 1 << 20       # of a DATA frame to this end
CONTROL_MAX = 1000

cdef enum:
    WINDOW = 4194304
    ACCEPTED = 1048576
    ALLOWANCE = 1000
    CALL_FRAMES = 8             # that a call may need: HEADERS, an empty DATA, windows, a PING
    WINDOW_MAX = 2147483647     # RFC 9113 section 6.9.1
    FIRST_WINDOW = 65535        # section 6.9.2
    FIRST_FRAME = 16384         # section 6.5.2

cdef enum:                      # RFC 9113 section 6
    DATA = 0
    HEADERS = 1
    SETTINGS = 4
    PUSH_PROMISE = 5
    WINDOW_UPDATE = 8
    CONTINUATION = 9

cdef enum:
    END_STREAM = 1
    END_HEADERS = 4
    PADDED = 8

cdef enum:                      # section 7
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    ENHANCE_YOUR_CALM = 11

cdef enum:
    PREFIX_BYTES = 5            # of a message of gRPC
    FIELD_1 = 0x0A              # tag of field 1, of bytes
    ENVELOPE_BYTES_MAX = 6      # that, and a length below 2^35

cdef bytes PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


cdef uint8_t* put_frame(uint8_t* at, uint32_t length, uint8_t kind, uint8_t flags, uint32_t number) noexcept:
    at[0] = <uint8_t>(length >> 16)
    at[1] = <uint8_t>(length >> 8)
    at[2] = <uint8_t>length
    at[3] = kind
    at[4] = flags
    return put_u32(at + 5, number)


cdef inline size_t envelope_bytes(size_t n) noexcept:
    """Of the tag and length in front of a field; an empty field is left out."""
    cdef size_t found = 1
    if n == 0:
        return 0
    while True:
        found += 1
        n >>= 7
        if n == 0:
            return found


cdef uint8_t* put_message_head(uint8_t* at, size_t n) noexcept:
    """gRPC's prefix and the envelope of a field 1 of n bytes."""
    cdef size_t envelope = envelope_bytes(n)
    at[0] = 0
    at = put_u32(at + 1, fit_u32(envelope + n))
    if envelope:
        at[0] = FIELD_1
        at += 1
        while n > 0x7F:
            at[0] = low_u8(n & 0x7F | 0x80)
            at += 1
            n >>= 7
        at[0] = fit_u8(n)
        at += 1
    return at


@cython.final
cdef class Http2Stream:
    """Machine. A stream of a connection; Http2Frames does everything with it.

    message_bytes_max: of a message that comes. queued: bytes that were sent and wait for a window.
    """

    def __dealloc__(self):
        free(self.grown)


@cython.final
cdef class Http2Frames:
    """Machine. One end of an HTTP/2 connection: what feed() is given becomes events; what is sent is in take().

    server: the other end begins with the preface of a client.
    """

    def __cinit__(self, bint server):
        self.streams = {}
        self.outgoing = []
        self.events = []
        self.gathered = bytearray()
        self.preface_left = <uint32_t>len(PREFACE) if server else 0
        self.receive_window = FIRST_WINDOW
        self.send_window = self.initial_window = FIRST_WINDOW
        self.frame_bytes_max = FIRST_FRAME
        self.allowance = ALLOWANCE

    # ---------------------------------------------------------------- the connection

    def begin(self):
        """Widens the window of the connection, behind the settings that the library has sent."""
        cdef uint32_t by = WINDOW - FIRST_WINDOW
        self.receive_window += by
        self.put_window_update(0, by)

    def put_window_update(self, uint32_t number, uint32_t by):
        cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEAD_BYTES + 4)
        put_u32(put_frame(<uint8_t*>PyBytes_AS_STRING(frame), 4, WINDOW_UPDATE, 0, number), by)
        self.emit(frame)

    def renew(self):
        """Some time has passed: the peer may cost as much again."""
        self.allowance = ALLOWANCE

    def served(self):
        """A call of the peer has begun, or was answered: its frames have brought something."""
        if self.allowance < ALLOWANCE:
            self.allowance = min(<int64_t>ALLOWANCE, self.allowance + CALL_FRAMES)

    def unserved(self):
        """A call that has begun was broken off by the peer: that does not count any more."""
        self.allowance -= CALL_FRAMES

    def settings(self, int64_t initial_window, uint32_t frame_bytes_max) -> str:
        """The other end's settings, RFC 9113 section 6.5.2: windows of its streams change with them, and what has room
        now leaves at once. So put() the acknowledgement before: from that on the other end must accept it. Returns what
        is wrong with them, or ""."""
        cdef Http2Stream stream
        cdef int64_t by = initial_window - self.initial_window
        if frame_bytes_max < FIRST_FRAME:
            return "a maximum of frames below 16384"
        self.frame_bytes_max = min(frame_bytes_max, <uint32_t>ACCEPTED)
        self.initial_window = initial_window
        for stream in self.streams.values():
            stream.send_window += by
            if stream.send_window > WINDOW_MAX:
                return "a window over 2^31 - 1"
            self.pump(stream)
        return ""

    def open(self, uint32_t number, size_t message_bytes_max) -> Http2Stream:
        """A stream that the library has opened, or was told of. Raises UsageError for one that was open before."""
        cdef Http2Stream stream
        if number <= self.newest or number > STREAM_MAX:
            raise UsageError(f"stream {number} behind {self.newest}")
        stream = Http2Stream.__new__(Http2Stream)
        stream.number = self.newest = number
        stream.message_bytes_max = message_bytes_max
        stream.receive_window = WINDOW
        stream.send_window = self.initial_window
        stream.waiting = []
        self.streams[number] = stream
        return stream

    def close(self, Http2Stream stream not None):
        """Nothing of it is sent any more, or becomes an event."""
        self.streams.pop(stream.number, None)
        self.skip(stream)
        stream.waiting = []
        stream.first = stream.first_at = stream.queued = 0

    def take(self) -> bytes:
        """What is to be written, in order."""
        cdef list found = self.outgoing
        if len(found) == 0:
            return b""
        self.outgoing = []
        self.outgoing_bytes = 0
        return found[0] if len(found) == 1 else b"".join(found)

    def put(self, bytes data not None):
        """What the library sends: it leaves behind what was sent so far."""
        if data:
            self.emit(data)

    cdef int emit(self, bytes data) except -1:
        self.outgoing.append(data)
        self.outgoing_bytes += <size_t>len(data)
        return 0

    # ---------------------------------------------------------------- sending

    def send(self, Http2Stream stream not None, bytes data not None):
        """A message whose field 1 this is. What has no room in the windows waits, in order (Http2Stream.queued). Does
        nothing on a stream that is closed."""
        cdef size_t n = <size_t>len(data)
        cdef size_t whole = PREFIX_BYTES + envelope_bytes(n) + n
        cdef bint at_once = (stream.queued == 0 and <int64_t>whole <= min(stream.send_window, self.send_window)
                             and whole <= self.frame_bytes_max)
        cdef bytes frame
        cdef uint8_t* at
        if stream.number not in self.streams:
            return
        frame = PyBytes_FromStringAndSize(NULL, whole + (FRAME_HEAD_BYTES if at_once else 0))
        at = <uint8_t*>PyBytes_AS_STRING(frame)
        if at_once:
            at = put_frame(at, fit_u32(whole), DATA, 0, stream.number)
        memcpy(put_message_head(at, n), <const char*>data, n)
        if at_once:
            stream.send_window -= whole
            self.send_window -= whole
            self.credit(whole)
            self.emit(frame)
            return
        stream.waiting.append(frame)
        stream.queued += whole
        self.pump(stream)

    cdef int pump(self, Http2Stream stream) except -1:
        """Sends what waits, as far as the windows go."""
        cdef bytes first, frame
        cdef int64_t n
        while stream.queued:
            first = stream.waiting[stream.first]
            n = min(<int64_t>(<size_t>len(first) - stream.first_at), <int64_t>self.frame_bytes_max)
            n = min(n, min(stream.send_window, self.send_window))
            if n <= 0:
                return 0
            frame = PyBytes_FromStringAndSize(NULL, FRAME_HEAD_BYTES + n)
            memcpy(put_frame(<uint8_t*>PyBytes_AS_STRING(frame), fit_u32(n), DATA, 0, stream.number),
                   PyBytes_AS_STRING(first) + stream.first_at, n)
            self.emit(frame)
            stream.send_window -= n
            self.send_window -= n
            self.credit(n)
            stream.queued -= n
            stream.first_at += n
            if stream.first_at == <size_t>len(first):
                stream.waiting[stream.first] = None
                stream.first += 1
                stream.first_at = 0
                # No more stay than leave: what waits is not moved again and again.
                if 2 * stream.first >= <size_t>len(stream.waiting):
                    del stream.waiting[:stream.first]
                    stream.first = 0
        return 0

    # ---------------------------------------------------------------- frames that come

    @property
    def more(self) -> bool:
        return self.held is not None

    def feed(self, bytes data not None) -> list:
        """What was read. Returns events, (kind, number of a stream or code, …), in order: see peer/http2.pxd. After
        BROKEN nothing is read any more.

        Headers of a stream that was never open are the last event: what stands behind them may be of that stream. If
        anything does (`more`), feed(b"") reads on, once the stream is open; an unwanted one is opened and closed."""
        cdef bytes whole = data
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef size_t n
        cdef list events
        self.bytes_in += <uint64_t>len(data)
        n = 0
        if self.held is not None and data:
            whole = self.held[self.held_at:] + data
        elif self.held is not None:
            whole = self.held
            n = self.held_at
        self.held = None
        self.stopped = False
        at = <const uint8_t*><const char*>whole + n
        end = <const uint8_t*><const char*>whole + len(whole)
        while at < end and not self.broken and not self.stopped:
            if self.preface_left:
                n = min(<size_t>self.preface_left, <size_t>(end - at))
                if memcmp(<const char*>PREFACE + len(PREFACE) - self.preface_left, at, n) != 0:
                    self.fail(PROTOCOL_ERROR, "no HTTP/2: it does not begin with the preface of a client")
                    break
                self.preface_left -= fit_u32(n)
                if self.preface_left == 0:
                    self.events.append((CONTROL, 0, PREFACE))
            elif not self.in_frame:
                n = min(<size_t>(FRAME_HEAD_BYTES - self.head_length), <size_t>(end - at))
                memcpy(self.head + self.head_length, at, n)
                self.head_length += fit_u32(n)
                if self.head_length == FRAME_HEAD_BYTES:
                    self.head_length = 0
                    self.begin_frame()
                    if self.in_frame and self.left == 0:
                        self.end_frame()
            else:
                n = min(<size_t>self.left, <size_t>(end - at))
                self.take_payload(at, n)
                self.left -= fit_u32(n)
                if self.left == 0 and not self.broken:
                    self.end_frame()
            at += n
        if self.stopped and at < end:
            self.held = whole
            self.held_at = <size_t>(at - <const uint8_t*><const char*>whole)
        events = self.events
        self.events = []
        return events

    cdef int begin_frame(self) except -1:
        cdef uint32_t number = peek_u32(self.head + 5) & STREAM_MAX
        self.length = <uint32_t>self.head[0] << 16 | <uint32_t>self.head[1] << 8 | self.head[2]
        self.kind = self.head[3]
        self.flags = self.head[4]
        self.left = self.length
        self.in_frame = True
        if self.headers_of and (self.kind != CONTINUATION or number != self.headers_of):
            return self.fail(PROTOCOL_ERROR, "another frame within a block of headers")
        if self.kind == DATA:
            return self.begin_data(number)
        if self.spend():
            return 0
        if self.kind == SETTINGS and self.length > SETTINGS_BYTES_MAX:
            return self.fail(ENHANCE_YOUR_CALM, f"a SETTINGS frame of {self.length} bytes")
        if self.length > CONTROL_FRAME_BYTES_MAX:
            return self.fail(FRAME_SIZE_ERROR, f"a frame of kind {self.kind} of {self.length} bytes")
        if self.kind == WINDOW_UPDATE:
            if self.length != 4:
                return self.fail(FRAME_SIZE_ERROR, f"a WINDOW_UPDATE of {self.length} bytes")
        elif self.kind == HEADERS or self.kind == CONTINUATION:
            if self.kind == HEADERS:
                self.headers_bytes = 0
            elif self.headers_of == 0:
                return self.fail(PROTOCOL_ERROR, "a CONTINUATION behind nothing")
            self.headers_bytes += self.length
            if self.headers_bytes > HEADERS_BYTES_MAX:
                return self.fail(ENHANCE_YOUR_CALM, f"a block of headers of {self.headers_bytes} bytes")
            self.headers_of = 0 if self.flags & END_HEADERS else number
        elif self.kind == PUSH_PROMISE:
            return self.fail(PROTOCOL_ERROR, "a PUSH_PROMISE, although it was told not to push")
        self.gathered.clear()
        if self.kind != WINDOW_UPDATE:
            self.gathered += self.head[:FRAME_HEAD_BYTES]
        return 0

    cdef int begin_data(self, uint32_t number) except -1:
        self.stream = self.streams.get(number)
        self.pad_unread = self.flags & PADDED != 0
        self.padding = 0
        if number == 0 or self.stream is None and number > self.newest:
            return self.fail(PROTOCOL_ERROR, f"DATA of stream {number}, which is not open")
        if self.length > ACCEPTED:
            return self.fail(FRAME_SIZE_ERROR, f"a DATA frame of {self.length} bytes")
        if self.pad_unread and self.length == 0:
            return self.fail(PROTOCOL_ERROR, "a padded DATA frame of 0 bytes")
        if (self.length == 0 or self.stream is None) and self.spend():
            return 0
        self.receive_window -= self.length
        self.credit(self.length)
        if self.stream is not None:
            self.stream.receive_window -= self.length
        if self.receive_window < 0 or self.stream is not None and self.stream.receive_window < 0:
            return self.fail(FLOW_CONTROL_ERROR, "more DATA than the window has room for")
        return 0

    cdef int take_payload(self, const uint8_t* at, size_t n) except -1:
        cdef size_t useful
        if self.kind != DATA:
            self.gathered += at[:n]
            return 0
        if self.pad_unread:
            self.pad_unread = False
            self.padding = at[0]
            if self.padding >= self.length:
                return self.fail(PROTOCOL_ERROR, "a DATA frame with more padding than it has bytes")
            if n == 1:
                return 0
            self.left -= 1              # the rest is as if the frame had been shorter
            self.take_payload(at + 1, n - 1)
            self.left += 1
            return 0
        if self.stream is None or self.left <= self.padding:
            return 0
        useful = min(n, <size_t>(self.left - self.padding))
        return self.receive(self.stream, at, useful)

    cdef int end_frame(self) except -1:
        cdef Http2Stream stream = self.stream
        cdef uint32_t number = peek_u32(self.head + 5) & STREAM_MAX
        self.in_frame = False
        if self.kind != DATA:
            if self.kind == WINDOW_UPDATE:
                return self.window_update(number, peek_u32(<const uint8_t*><const char*>self.gathered) & WINDOW_MAX)
            if self.kind == HEADERS and self.flags & END_STREAM:
                stream = self.streams.get(number)
                if stream is not None:
                    self.finish_stream(stream)
            if (self.kind == HEADERS or self.kind == CONTINUATION) and self.headers_of == 0:
                self.stopped = number > self.newest
            self.events.append((CONTROL, 0, bytes(self.gathered)))
            return 0
        self.stream = None
        self.consumed += self.length
        if self.consumed >= WINDOW // 2:
            self.receive_window += self.consumed
            self.put_window_update(0, self.consumed)
            self.consumed = 0
        if stream is None or stream.number not in self.streams:
            return 0
        if self.flags & END_STREAM:
            self.finish_stream(stream)
            self.gathered.clear()
            self.gathered += b"\0\0\0\0\x01" + self.head[5:FRAME_HEAD_BYTES]
            self.events.append((CONTROL, 0, bytes(self.gathered)))
            return 0
        return self.give_back(stream, self.length)

    cdef int finish_stream(self, Http2Stream stream) except -1:
        """The other end has sent all of it."""
        if stream.phase != PHASE_SKIP and (stream.phase != PHASE_PREFIX or stream.head_length):
            return self.refuse(stream, "it ends within a message")
        return self.skip(stream)

    cdef int give_back(self, Http2Stream stream, uint32_t n) except -1:
        stream.consumed += n
        if stream.consumed >= WINDOW // 2:
            stream.receive_window += stream.consumed
            self.put_window_update(stream.number, stream.consumed)
            stream.consumed = 0
        return 0

    cdef int window_update(self, uint32_t number, uint32_t by) except -1:
        cdef Http2Stream stream
        if by == 0:
            return self.fail(PROTOCOL_ERROR, "a WINDOW_UPDATE by 0")
        if number == 0:
            self.send_window += by
            if self.send_window > WINDOW_MAX:
                return self.fail(FLOW_CONTROL_ERROR, "a window over 2^31 - 1")
            for stream in self.streams.values():
                self.pump(stream)
            return 0
        stream = self.streams.get(number)
        if stream is None:
            return self.fail(PROTOCOL_ERROR, f"a WINDOW_UPDATE of stream {number}, which is not open") \
                if number > self.newest else 0
        stream.send_window += by
        if stream.send_window > WINDOW_MAX:
            return self.fail(FLOW_CONTROL_ERROR, "a window over 2^31 - 1")
        return self.pump(stream)

    cdef int credit(self, size_t n) except -1:
        """Bytes of DATA came or left: what is no KiB yet counts with the next."""
        n += self.credited
        self.allowance += n >> 10
        self.credited = n & 1023
        return 0

    cdef int spend(self) except -1:
        """A frame that brings nothing by itself. Whether that was one too many."""
        self.allowance -= 1
        if self.allowance < 0:
            self.fail(ENHANCE_YOUR_CALM, f"more than {CONTROL_MAX} frames that carry nothing")
        return self.broken

    cdef int fail(self, uint32_t code, str why) except -1:
        self.broken = True
        self.in_frame = False
        self.events.append((BROKEN, code, why))
        return 0

    # ---------------------------------------------------------------- messages that come

    cdef int receive(self, Http2Stream stream, const uint8_t* at, size_t n) except -1:
        cdef const uint8_t* end = at + n
        cdef size_t took
        while at < end:
            if stream.phase == PHASE_PREFIX:
                took = min(<size_t>(PREFIX_BYTES - stream.head_length), <size_t>(end - at))
                memcpy(stream.head + stream.head_length, at, took)
                stream.head_length += fit_u32(took)
                at += took
                if stream.head_length == PREFIX_BYTES:
                    self.begin_message(stream)
            elif stream.phase == PHASE_ENVELOPE:
                stream.head[stream.head_length] = at[0]
                stream.head_length += 1
                at += 1
                self.begin_body(stream, False)
            elif stream.phase == PHASE_BODY:
                at = self.fill(stream, at, end)
            else:
                return 0
        return 0

    cdef int begin_message(self, Http2Stream stream) except -1:
        """Its prefix is complete."""
        stream.size = peek_u32(stream.head + 1)
        stream.head_length = 0
        if stream.head[0]:
            return self.refuse(stream, "a compressed message, although no compression was agreed on")
        if stream.size > stream.message_bytes_max + ENVELOPE_BYTES_MAX:
            return self.refuse(stream, f"a message of {stream.size} bytes, over {stream.message_bytes_max}")
        stream.phase = PHASE_ENVELOPE
        if stream.size == 0:
            stream.phase = PHASE_BODY
            stream.other = False
            stream.body = b""
            return self.finish_message(stream)
        return 0

    cdef int begin_body(self, Http2Stream stream, bint other) except -1:
        """One byte more of the envelope is there: whether it is complete, or no such envelope (`other`)."""
        cdef uint64_t inner = 0
        cdef uint32_t i
        cdef uint8_t last = stream.head[stream.head_length - 1]
        if stream.head[0] != FIELD_1:
            other = True
        elif stream.head_length > 1 and last < 0x80:
            for i in range(1, stream.head_length):
                inner |= <uint64_t>(stream.head[i] & 0x7F) << (7 * (i - 1))
            other = inner + stream.head_length != stream.size
            if not other:
                stream.size = inner
        elif stream.head_length == ENVELOPE_BYTES_MAX or stream.head_length == stream.size:
            other = True
        else:
            return 0
        stream.phase = PHASE_BODY
        stream.other = other
        stream.filled = 0
        stream.body = None
        i = stream.head_length
        stream.head_length = 0
        if other:
            self.fill(stream, stream.head, stream.head + i)
        elif inner == 0:
            stream.body = b""
            self.finish_message(stream)
        return 0

    cdef const uint8_t* fill(self, Http2Stream stream, const uint8_t* at, const uint8_t* end) except NULL:
        """Takes bytes of the message; returns where the next one's begin."""
        cdef size_t n = min(stream.size - stream.filled, <size_t>(end - at))
        cdef uint8_t* grown
        cdef size_t room
        if stream.size <= AT_ONCE_BYTES:
            if stream.body is None:
                stream.body = PyBytes_FromStringAndSize(NULL, stream.size)
            memcpy(PyBytes_AS_STRING(stream.body) + stream.filled, at, n)
        else:
            if stream.filled + n > stream.room:
                room = min(stream.size, max(2 * stream.room, max(<size_t>AT_ONCE_BYTES, stream.filled + n)))
                grown = <uint8_t*>realloc(stream.grown, room)
                if grown == NULL:
                    raise MemoryError()
                stream.grown = grown
                stream.room = room
            memcpy(stream.grown + stream.filled, at, n)
        stream.filled += n
        if stream.filled == stream.size:
            if stream.size > AT_ONCE_BYTES:
                stream.body = PyBytes_FromStringAndSize(<const char*>stream.grown, stream.size)
                free(stream.grown)
                stream.grown = NULL
                stream.room = 0
            self.finish_message(stream)
        return at + n

    cdef int finish_message(self, Http2Stream stream) except -1:
        self.events.append((OTHER_MESSAGE if stream.other else MESSAGE, stream.number, stream.body))
        stream.body = None
        stream.phase = PHASE_PREFIX
        stream.filled = 0
        return 0

    cdef int refuse(self, Http2Stream stream, str why) except -1:
        self.skip(stream)
        self.events.append((BAD_MESSAGE, stream.number, why))
        return 0

    cdef int skip(self, Http2Stream stream) except -1:
        """What still comes does not matter, nor what has come of a message."""
        stream.phase = PHASE_SKIP
        stream.body = None
        free(stream.grown)
        stream.grown = NULL
        stream.room = 0
        return 0
