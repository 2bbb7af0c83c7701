# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""State of a recording. See record/state.pxd."""
cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from msgspec.json import encode as json_encode

from fluxmq._core.amqp091.values cimport room_free, room_more, room_put
from fluxmq._core.record.columns cimport (
    HAS_BYTES, HAS_CHANNEL, HAS_CLIENT, HAS_DETAIL, HAS_DIGEST, HAS_DIRECTION, HAS_PAYLOAD, HAS_PROTOCOL, HAS_SIZE,
    HAS_VERSION,
    KIND_MALFORMED, Columns, Words, row_t)
from fluxmq._core.record.pending cimport LEFT_OUT, pending_free
from fluxmq._core.wire.xxh64 cimport xxh64_of

cdef enum:
    KNOWN_MAX = 65536       # topics with cached verdict
    KNOWN_BYTES_MAX = 1 << 24       # bytes of their names
    INVALID_MAX = 1000      # directions with invalid packets that are listed; the others are counted together


cdef bint matches(const uint8_t* filter, const uint8_t* filter_end, const uint8_t* topic,
                  const uint8_t* topic_end) noexcept nogil:
    """Whether a topic filter matches a topic name, section 4.7 of MQTT 5.0; `#` only at the end."""
    if topic != topic_end and topic[0] == c'$' and filter != filter_end and (filter[0] == c'+' or filter[0] == c'#'):
        return 0            # [MQTT-4.7.2-1]
    while filter != filter_end:
        if filter[0] == c'#':
            return 1
        if filter[0] == c'+':
            filter += 1
            while topic != topic_end and topic[0] != c'/':
                topic += 1
        else:
            while filter != filter_end and filter[0] != c'/':
                if topic == topic_end or topic[0] != filter[0]:
                    return 0
                filter += 1
                topic += 1
            if topic != topic_end and topic[0] != c'/':
                return 0
        # Both are at the end of a level.
        if filter == filter_end:
            return topic == topic_end
        if topic == topic_end:
            return filter_end - filter == 2 and filter[1] == c'#'       # a/# matches a
        filter += 1
        topic += 1
        if filter == filter_end:
            return topic == topic_end       # both end with an empty level
    return topic == topic_end


@cython.final
cdef class TopicChoice:
    """Machine. filters: of MQTT, valid."""

    def __cinit__(self, filters):
        self.filters = [filter.encode() for filter in filters]
        self.known = Words()
        memset(&self.verdicts, 0, sizeof(self.verdicts))
        memset(&self.turned, 0, sizeof(self.turned))

    def __dealloc__(self):
        room_free(&self.verdicts)
        room_free(&self.turned)

    cdef bint wanted(self, const uint8_t* at, size_t n, bint routing_key) except -1:
        cdef int32_t word
        cdef size_t i
        cdef uint8_t verdict = 0
        cdef bytes filter
        cdef uint8_t* turned
        if routing_key:
            turned = room_more(&self.turned, n + 1)
            for i in range(n):
                turned[i] = c'/' if at[i] == c'.' else at[i]
            at = turned
        word = self.known.find(at, n)
        if word >= 0:
            return self.verdicts.data[word]
        for filter in self.filters:
            if matches(<const uint8_t*><const char*>filter, <const uint8_t*><const char*>filter + len(filter),
                       at, at + n):
                verdict = 1
                break
        if self.known.count >= KNOWN_MAX or self.known.data.used + n > KNOWN_BYTES_MAX:
            self.known.clear()
            self.verdicts.used = 0
        self.known.add(at, n)
        room_put(&self.verdicts, &verdict, 1)
        return verdict


@cython.final
cdef class Recording:
    """Machine. Selection and current batch."""

    def __cinit__(self):
        self.columns = Columns()
        self.invalid = {}
        memset(&self.scratch, 0, sizeof(self.scratch))
        memset(&self.text, 0, sizeof(self.text))

    def __dealloc__(self):
        room_free(&self.scratch)
        room_free(&self.text)


@cython.final
cdef class Peer:
    """Machine. State of a connection."""

    def __cinit__(self):
        memset(&self.pending, 0, sizeof(self.pending))
        self.kept = 1
        self.channel_number = -1

    def __dealloc__(self):
        pending_free(&self.pending)

    cdef void forget(self) noexcept:
        pending_free(&self.pending)
        self.pings = self.pongs = 0
        self.aliases_in = self.aliases_out = None
        self.channels = None
        self.channel = None
        self.channel_number = -1


cdef int row_begin(Recording recording, Peer peer, row_t* row, int64_t time, int32_t kind) except -1:
    memset(row, 0, sizeof(row_t))
    row.has = HAS_PROTOCOL
    row.time = time
    row.kind = kind
    row.connection = peer.number
    row.protocol = peer.protocol
    if peer.version:
        row.has |= HAS_VERSION
        row.version = peer.version
    if peer.client is not None and peer.kept:
        if peer.client_batch != recording.columns.batch:
            peer.client_batch = recording.columns.batch
            peer.client_index = recording.columns.clients.index(<const uint8_t*><const char*>peer.client,
                                                                <size_t>len(peer.client))
        row.has |= HAS_CLIENT
        row.client = peer.client_index
    return 0


cdef int64_t row_end(Recording recording, Peer peer, row_t* row, bint wanted) except? -1:
    if not wanted or not peer.kept:
        recording.filtered += 1
        return LEFT_OUT
    return recording.columns.add(row)


cdef int row_packet(Recording recording, Peer peer, row_t* row, int64_t time, int32_t kind, int direction,
                    int64_t size) except -1:
    row_begin(recording, peer, row, time, kind)
    row.has |= HAS_DIRECTION | HAS_BYTES
    row.direction = <int8_t>direction
    row.bytes = size
    return 0


cdef list invalid_of(Recording recording, Peer peer, int direction):
    """The counts of that direction, or of all that are not listed."""
    key = (peer.number, direction)
    if key not in recording.invalid and len(recording.invalid) >= INVALID_MAX:
        key = (0, direction)
    return recording.invalid.setdefault(key, [0, 0, 0, 0])


cdef int row_malformed(Recording recording, Peer peer, int64_t time, int direction, size_t size, str why, str packet,
                       int channel, bint goes_on) except -1:
    cdef row_t row
    cdef dict found = {"reason": why}
    cdef bytes detail
    cdef list counts
    if packet is not None:
        found["packet"] = packet
    found["went_on"] = bool(goes_on)
    detail = json_of(found)
    row_packet(recording, peer, &row, time, KIND_MALFORMED, direction, <int64_t>size)
    row.has |= HAS_DETAIL
    row.detail.at = <const uint8_t*><const char*>detail
    row.detail.n = <size_t>len(detail)
    if channel >= 0:
        row.has |= HAS_CHANNEL
        row.channel = channel
    row_end(recording, peer, &row, 1)
    if recording.go_on and peer.kept:
        counts = invalid_of(recording, peer, direction)
        counts[0 if goes_on else 2] += 1
    if not goes_on:
        peer.broken[direction] = 1
    return count_undecoded(recording, peer, direction, size, goes_on)


cdef int count_undecoded(Recording recording, Peer peer, int direction, size_t size, bint passed) except -1:
    cdef list counts
    recording.undecoded += size
    if recording.go_on and peer.kept:
        counts = invalid_of(recording, peer, direction)
        counts[1 if passed else 3] += size
    return 0


cdef int row_payload(Recording recording, row_t* row, const uint8_t* at, size_t n) noexcept:
    row.has |= HAS_SIZE
    row.size = <int64_t>n
    if recording.payload != PAYLOAD_SIZE:
        row.has |= HAS_DIGEST
        row.digest = <int64_t>xxh64_of(at, n, 0)
    if recording.payload == PAYLOAD_FULL:
        row.has |= HAS_PAYLOAD
        row.payload.at = at
        row.payload.n = n
    return 0


cdef bytes json_of(object value):
    return json_encode(value)
