"""The frames of an HTTP/2 connection between two nodes (RFC 9113) on which gRPC sends messages: DATA and the windows
are read and written here, everything else is passed on as it came.

    bytes read ──► feed ─┬─ DATA ──► gRPC's prefix ──► field 1 ──► (MESSAGE, stream, its bytes)
                         │                        └─► anything else ──► (OTHER_MESSAGE, stream, all of it)
                         ├─ WINDOW_UPDATE ──► what waits for a window goes out
                         └─ HEADERS, SETTINGS, RST_STREAM, PING, GOAWAY … ──► (CONTROL, 0, the frame), for a library
    send, put ──► outgoing ──► take

The library (cluster/rpc/connection) never sees DATA and windows; so that it knows when the other end of a stream has
finished, an empty DATA frame with END_STREAM is passed on behind what the last one had. And feed ends behind the
headers of a new stream: its DATA often comes with them, and is read when the library has opened it.

A message of gRPC is a flag (compressed: refused), its length in four bytes, and as many bytes. All messages of
proto/cluster.proto but CallRequest have one field of bytes, number 1: such a one is taken out while it is read, and put
around what is sent.

Windows (section 5.2) are fixed: WINDOW_BYTES for the connection and for each stream, given back when half is read. What
is sent beyond the other end's waits in its stream, in order.

What a peer may cost before it has sent anything useful is bounded: frames other than DATA and empty ones count, up to
CONTROL_MAX and one for each KiB of DATA in either direction, until renew(); those of a call that was answered are
given back (served). A block of headers has at most
HEADERS_BYTES_MAX. A message gets its memory as it comes. What is over a limit, or against the RFC, is the last event:
(BROKEN, code, why).
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    FRAME_HEAD_BYTES = 9
    CONTROL_FRAME_BYTES_MAX = 16384     # RFC 9113 section 4.2: what every end must accept
    HEADERS_BYTES_MAX = 16384           # of a block of headers, compressed
    SETTINGS_BYTES_MAX = 192            # 32 of them; the RFC has six
    AT_ONCE_BYTES = 1048576             # a message up to this size gets all its memory with its first byte
    STREAM_MAX = 2147483647

cdef enum message_phase:
    PHASE_PREFIX            # gRPC's flag and length
    PHASE_ENVELOPE          # tag and length of field 1
    PHASE_BODY
    PHASE_SKIP              # the rest of the stream does not matter

cdef class Http2Stream:
    """One stream. Made by Http2Frames.open."""
    cdef readonly uint32_t number
    cdef readonly size_t queued         # bytes that wait for a window
    cdef public size_t message_bytes_max
    cdef int64_t receive_window
    cdef uint32_t consumed              # read since the window was given back last
    cdef int64_t send_window
    cdef list waiting                   # bytes, from `first` on
    cdef size_t first
    cdef size_t first_at                # what of the first has left
    # the message that comes
    cdef message_phase phase
    cdef bint other                     # it is not field 1 alone
    cdef uint8_t[8] head
    cdef uint32_t head_length
    cdef size_t size                    # of the message; from PHASE_BODY on of what is gathered
    cdef bytes body                     # None: it is not begun, or gathers in `grown`
    cdef uint8_t* grown
    cdef size_t room
    cdef size_t filled

cdef class Http2Frames:
    """One end of a connection."""
    cdef readonly bint broken
    cdef readonly uint64_t bytes_in
    cdef dict streams                   # number -> Http2Stream
    cdef uint32_t newest                # the highest number that was opened
    cdef list events
    cdef list outgoing
    cdef readonly size_t outgoing_bytes
    # the frame that comes
    cdef uint8_t[9] head
    cdef uint32_t head_length
    cdef uint8_t kind
    cdef uint8_t flags
    cdef uint32_t length
    cdef uint32_t left                  # of its payload
    cdef bint in_frame
    cdef bint stopped                   # headers of a new stream are complete
    cdef bytes held                     # what stands behind them, from held_at on; None: nothing
    cdef size_t held_at
    cdef bint pad_unread
    cdef uint32_t padding
    cdef Http2Stream stream             # of a DATA frame; None: it is closed
    cdef bytearray gathered             # of a frame of another kind
    cdef uint32_t preface_left          # bytes of the client's preface that are to come
    cdef uint32_t headers_of            # stream whose block of headers is not complete; 0: none
    cdef uint32_t headers_bytes
    # windows
    cdef int64_t receive_window
    cdef uint32_t consumed
    cdef int64_t send_window
    cdef int64_t initial_window         # of new streams at the other end
    cdef uint32_t frame_bytes_max       # what the other end accepts
    # what the peer may still cost
    cdef int64_t allowance
    cdef uint64_t credited              # bytes of DATA that are no KiB yet

    cdef int begin_frame(self) except -1
    cdef int end_frame(self) except -1
    cdef int begin_data(self, uint32_t number) except -1
    cdef int take_payload(self, const uint8_t* at, size_t n) except -1
    cdef int window_update(self, uint32_t number, uint32_t by) except -1
    cdef int finish_stream(self, Http2Stream stream) except -1
    cdef int give_back(self, Http2Stream stream, uint32_t n) except -1
    cdef int receive(self, Http2Stream stream, const uint8_t* at, size_t n) except -1
    cdef int begin_message(self, Http2Stream stream) except -1
    cdef int begin_body(self, Http2Stream stream, bint other) except -1
    cdef const uint8_t* fill(self, Http2Stream stream, const uint8_t* at, const uint8_t* end) except NULL
    cdef int finish_message(self, Http2Stream stream) except -1
    cdef int refuse(self, Http2Stream stream, str why) except -1
    cdef int skip(self, Http2Stream stream) except -1
    cdef int fail(self, uint32_t code, str why) except -1
    cdef int credit(self, size_t n) except -1
    cdef int spend(self) except -1
    cdef int pump(self, Http2Stream stream) except -1
    cdef int emit(self, bytes data) except -1
