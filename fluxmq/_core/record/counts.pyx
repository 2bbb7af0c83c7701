# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""What a live view draws: the packets of a ring, counted by lane and kind, and latencies in buckets.

    entries ──► RecordRows ──► rows ──► lane of the topic, or of the row that this one answers ──► counts

A lane is a number that the owner of a LaneCounts gives to names; lane 0 has what belongs to none. A queue has a lane
for each partition. A delivery of a queue to MQTT 5 names its partition (property message-id), a publish with a key is
computed as the broker does; all others take the lanes of their queue in turn.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memset

from fluxmq._core.amqp091.consts cimport (
    BASIC_ACK, BASIC_DELIVER, BASIC_GET_OK, BASIC_NACK, BASIC_PUBLISH, BASIC_REJECT, BASIC_RETURN, CHANNEL_CLOSE,
    CONNECTION_CLOSE)
from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.consts cimport CONNACK, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from fluxmq._core.record.columns cimport (
    HAS_ANSWERS, HAS_LATENCY, HAS_PROPERTIES, HAS_REASON, HAS_TOPIC, KIND_HEARTBEAT, KIND_MALFORMED, WAY_IN, WAY_OUT,
    Columns, kind_of_method)
from fluxmq._core.record.rows cimport RecordRows
from fluxmq._core.wire.sizes cimport fit_i32

__all__ = ["BUCKETS", "KINDS", "LANES_MAX", "LaneCounts", "bucket_of", "bucket_us"]

cdef enum:                  # kinds
    SENT = 0                # by a client to the broker
    CONFIRMED = 1
    DELIVERED = 2
    ACKNOWLEDGED = 3
    GIVEN_BACK = 4          # nack, reject, an MQTT acknowledgement with an error
    PINGED = 5
    FAILED = 6
    KIND_COUNT = 7
    NO_KIND = -1

cdef enum:
    LANES = 1024
    REMEMBERED = 1 << 17    # rows whose lane is known when their answer comes
    NAMES_MAX = 65536       # names with a known lane
    BUCKET_COUNT = 208      # eight for each doubling, of µs up to four minutes
    REFUSED = 0x80          # reason codes of MQTT from here on are errors
    AMQP_ERROR = 300        # reply codes of AMQP from here on
    BATCH_ROWS = 16384
    UNRESOLVED = -1

KINDS = ("publish", "confirm", "deliver", "ack", "nack", "ping", "error")
LANES_MAX = LANES
BUCKETS = BUCKET_COUNT

cdef int K_PUBLISH = kind_of_method(BASIC_PUBLISH)
cdef int K_DELIVER = kind_of_method(BASIC_DELIVER)
cdef int K_GET_OK = kind_of_method(BASIC_GET_OK)
cdef int K_RETURN = kind_of_method(BASIC_RETURN)
cdef int K_ACK = kind_of_method(BASIC_ACK)
cdef int K_NACK = kind_of_method(BASIC_NACK)
cdef int K_REJECT = kind_of_method(BASIC_REJECT)
cdef int K_CHANNEL_CLOSE = kind_of_method(CHANNEL_CLOSE)
cdef int K_CONNECTION_CLOSE = kind_of_method(CONNECTION_CLOSE)


cdef int bucket_at(int64_t ns) noexcept nogil:
    """Below 8 µs one bucket for each, then eight for each doubling."""
    cdef uint64_t us = <uint64_t>ns // 1000 if ns > 0 else 0
    cdef int shift = 0
    while us >> shift >= 16:
        shift += 1
    if us < 8:
        return fit_i32(us)
    shift = min(shift * 8 + fit_i32(us >> shift), BUCKET_COUNT - 1)
    return shift


def bucket_of(int64_t ns) -> int:
    """The bucket of a latency."""
    return bucket_at(ns)


def bucket_us(int bucket) -> float:
    """The middle of a bucket, µs."""
    if bucket < 16:
        return bucket + 0.5
    shift = (bucket - 8) // 8
    return ((bucket - shift * 8) + 0.5) * (1 << shift)


# As fluxmq/_core/queue/queue.pxd, which is not for this package; tests/view compares them.
cdef uint32_t hash_key(const uint8_t* key, size_t length) noexcept nogil:
    cdef uint32_t h = 2166136261
    cdef size_t i
    for i in range(length):
        h = (h ^ key[i]) * 16777619
    return h ^ h >> 15


cdef const uint8_t* value_of(const uint8_t* at, const uint8_t* end, const char* name, size_t n,
                             size_t* length) noexcept nogil:
    """The text that follows a name (with its quotes) in JSON, of a pair or of an object; NULL: there is none, or it has
    escapes. The name of a property may stand in a value too: then a lane is wrong in a picture."""
    cdef const uint8_t* to
    while end - at > <ssize_t>n:
        at = <const uint8_t*>memchr(at, c'"', <size_t>(end - at))
        if at == NULL or end - at <= <ssize_t>n:
            return NULL
        if memcmp(at, name, n) == 0:
            at += n
            while at < end and (at[0] == c',' or at[0] == c':'):
                at += 1
            if at == end or at[0] != c'"':
                return NULL
            at += 1
            to = <const uint8_t*>memchr(at, c'"', <size_t>(end - at))
            if to == NULL or memchr(at, c'\\', <size_t>(to - at)) != NULL:
                return NULL
            length[0] = <size_t>(to - at)
            return at
        at += 1
    return NULL


@cython.final
cdef class LaneCounts:
    """Machine. Counts what comes out of a ring.

    lane_of: called with a topic or routing key, and the exchange (None: MQTT), for each new name; returns (the first
    lane, how many lanes it has: partitions of a queue). Raises whatever that does.
    """
    cdef RecordRows source
    cdef object lane_of
    cdef dict names             # (first lane, lanes) by topic, or by (exchange, routing key)
    cdef dict pairs             # the same by numbers of this batch, AMQP
    cdef int32_t* firsts        # first lane of each topic of this batch
    cdef int32_t* widths
    cdef uint32_t resolved      # topics of this batch that have one
    cdef uint32_t room
    cdef uint32_t[LANES][KIND_COUNT] counts
    cdef uint32_t[LANES] turns
    cdef uint32_t[BUCKET_COUNT] confirms
    cdef uint32_t[BUCKET_COUNT] acks
    cdef int32_t top            # highest lane that has counted since the last take
    cdef int32_t[REMEMBERED] lanes
    cdef readonly int64_t counted

    def __cinit__(self, lane_of):
        self.source = RecordRows(payload="size", batch_rows=BATCH_ROWS)
        self.lane_of = lane_of
        self.names = {}
        self.pairs = {}
        self.firsts = self.widths = NULL
        self.room = self.resolved = 0
        self.top = 0
        self.counted = 0
        memset(self.counts, 0, sizeof(self.counts))
        memset(self.turns, 0, sizeof(self.turns))
        memset(self.confirms, 0, sizeof(self.confirms))
        memset(self.acks, 0, sizeof(self.acks))
        memset(self.lanes, 0, sizeof(self.lanes))

    def __dealloc__(self):
        free(self.firsts)
        free(self.widths)

    @property
    def lost_entries(self) -> int:
        """What the broker could not put into the ring, as far as it has said so."""
        return self.source.lost_entries

    @property
    def lost_bytes(self) -> int:
        return self.source.lost_bytes

    @property
    def connections(self) -> int:
        """Connections that are known."""
        return self.source.connections

    def forget(self) -> None:
        """The lanes have changed: names get theirs anew; what waits for an answer has none."""
        self.names.clear()
        memset(self.lanes, 0, sizeof(self.lanes))

    def feed(self, entries: object) -> None:
        """Complete entries, as RingReader.take gives them. Raises CorruptError."""
        cdef Py_ssize_t at = 0, end = len(entries)
        while at < end:
            at = self.source.feed(entries, at)
            self.count()

    def take(self) -> bytes:
        """What was counted since the last call: for each lane up to the last that counted, a u32 for each of KINDS."""
        cdef size_t size = (<size_t>self.top + 1) * sizeof(self.counts[0])
        taken = (<const char*>self.counts)[:size]
        memset(self.counts, 0, size)
        self.top = 0
        return taken

    def take_latencies(self) -> tuple[bytes, bytes]:
        """Of confirms and of acknowledgements since the last call, a u32 for each bucket."""
        taken = ((<const char*>self.confirms)[:sizeof(self.confirms)], (<const char*>self.acks)[:sizeof(self.acks)])
        memset(self.confirms, 0, sizeof(self.confirms))
        memset(self.acks, 0, sizeof(self.acks))
        return taken

    cdef int begin_batch(self) except -1:
        cdef Columns rows = self.source.recording.columns
        cdef uint32_t i, count = rows.topics.count
        cdef int32_t* grown
        if count > self.room:
            grown = <int32_t*>realloc(self.firsts, count * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError()
            self.firsts = grown
            grown = <int32_t*>realloc(self.widths, count * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError()
            self.widths = grown
            self.room = count
        for i in range(count):
            self.firsts[i] = UNRESOLVED
        self.pairs.clear()
        return 0

    cdef tuple lanes_of(self, object name, bytes topic, bytes exchange):
        found = self.names.get(name)
        if found is None:
            first, width = self.lane_of(topic, exchange)
            if not 0 <= first < LANES or width < 1 or first + width > LANES:
                raise UsageError(f"lanes are 0 to {LANES - 1}, not {width} from {first} on")
            if len(self.names) >= NAMES_MAX:
                self.names.clear()
            found = self.names[name] = (first, width)
        return <tuple>found

    cdef tuple named(self, Columns rows, size_t i):
        """The lanes of a row of AMQP."""
        cdef uint32_t topic = <uint32_t>rows.topic_names[i], exchange = <uint32_t>rows.exchange_names[i]
        pair = <uint64_t>exchange << 32 | topic
        found = self.pairs.get(pair)
        if found is None:
            key = (<const char*>rows.topics.data.data + rows.topics.offsets[topic])[
                :rows.topics.offsets[topic + 1] - rows.topics.offsets[topic]]
            name = (<const char*>rows.exchanges.data.data + rows.exchanges.offsets[exchange])[
                :rows.exchanges.offsets[exchange + 1] - rows.exchanges.offsets[exchange]]
            found = self.pairs[pair] = self.lanes_of((name, key), key, name)
        return <tuple>found

    cdef int32_t lane_at(self, Columns rows, size_t i) except -1:
        """The lane of a row with a topic."""
        cdef uint32_t topic = <uint32_t>rows.topic_names[i]
        cdef int32_t first, width, at = -1
        cdef const uint8_t* text
        cdef const uint8_t* start
        cdef size_t n = 0, k
        if rows.protocols[i]:
            first, width = self.named(rows, i)
        else:
            if self.firsts[topic] == UNRESOLVED:
                name = (<const char*>rows.topics.data.data + rows.topics.offsets[topic])[
                    :rows.topics.offsets[topic + 1] - rows.topics.offsets[topic]]
                self.firsts[topic], self.widths[topic] = self.lanes_of(name, name, None)
            first = self.firsts[topic]
            width = self.widths[topic]
        if width == 1:
            return first
        if rows.has[i] & HAS_PROPERTIES:
            start = rows.properties.data.data + rows.properties.offsets[i]
            if rows.directions[i] == WAY_OUT or self.command_at(rows, topic):
                text = value_of(start, rows.properties.data.data + rows.properties.offsets[i + 1], b'"message-id"', 12,
                                &n)
                if text != NULL and n and n < 18:
                    at = 0
                    for k in range(n):
                        if not c'0' <= text[k] <= c'9':
                            break
                        at = at * 10 + text[k] - c'0' if at < 100000 else at
            else:
                text = value_of(start, rows.properties.data.data + rows.properties.offsets[i + 1], b'"partition-key"',
                                15, &n)
                if text != NULL:
                    at = <int32_t>(hash_key(text, n) % <uint32_t>width)
        if not 0 <= at < width:
            at = <int32_t>(self.turns[first] % <uint32_t>width)
            self.turns[first] += 1
        return first + at

    cdef int command_at(self, Columns rows, uint32_t topic) noexcept:
        """The kind of a publish that is an order to a queue: $queue/NAME/$ack and so on; 0: it is none."""
        cdef const uint8_t* at = rows.topics.data.data + rows.topics.offsets[topic]
        cdef const uint8_t* end = rows.topics.data.data + rows.topics.offsets[topic + 1]
        if end - at < 12 or memcmp(at, b"$queue/", 7) != 0:
            return 0
        if memcmp(end - 5, b"/$ack", 5) == 0 or (end - at > 15 and memcmp(end - 8, b"/$commit", 8) == 0):
            return ACKNOWLEDGED
        if memcmp(end - 6, b"/$nack", 6) == 0 or (end - at > 15 and memcmp(end - 8, b"/$reject", 8) == 0):
            return GIVEN_BACK
        return 0

    cdef inline void note(self, int32_t lane, int kind) noexcept:
        self.counts[lane][kind] += 1
        if lane > self.top:
            self.top = lane

    cdef int count(self) except -1:
        """The rows of the batch, which is empty then."""
        cdef Columns rows = self.source.recording.columns
        cdef size_t i
        cdef int32_t lane
        cdef int kind, what, direction
        cdef uint32_t has
        cdef int64_t seq, ago
        cdef bint wrong
        self.begin_batch()
        for i in range(rows.rows):
            kind = rows.kinds[i]
            has = rows.has[i]
            direction = rows.directions[i]
            seq = rows.first + <int64_t>i
            lane = 0
            what = NO_KIND
            if has & HAS_TOPIC:
                lane = self.lane_at(rows, i)
            elif has & HAS_ANSWERS:
                ago = seq - rows.answers[i]
                if 0 < ago < REMEMBERED:
                    lane = self.lanes[rows.answers[i] & (REMEMBERED - 1)]
            self.lanes[seq & (REMEMBERED - 1)] = lane
            if kind == PUBLISH:
                what = DELIVERED if direction == WAY_OUT else SENT
                if direction == WAY_IN and has & HAS_TOPIC:
                    what = self.command_at(rows, <uint32_t>rows.topic_names[i]) or SENT
            elif PUBACK <= kind <= PUBCOMP:
                wrong = (has & HAS_REASON) != 0 and rows.reasons[i] >= REFUSED
                if kind != PUBREL and (kind != PUBREC or wrong):
                    if direction == WAY_OUT:
                        what = FAILED if wrong else CONFIRMED
                    else:
                        what = GIVEN_BACK if wrong else ACKNOWLEDGED
            elif kind == K_PUBLISH:
                what = SENT
            elif kind == K_DELIVER or kind == K_GET_OK:
                what = DELIVERED
            elif kind == K_ACK:
                what = CONFIRMED if direction == WAY_OUT else ACKNOWLEDGED
            elif kind == K_NACK or kind == K_REJECT:
                what = FAILED if direction == WAY_OUT else GIVEN_BACK
            elif kind == K_RETURN or kind == KIND_MALFORMED:
                what = FAILED
            elif kind == PINGREQ or (kind == KIND_HEARTBEAT and direction == WAY_IN):
                what = PINGED
            elif kind == CONNACK or kind == DISCONNECT:
                # CONNACK of 3.1.1 has codes of its own, all but 0 are refusals.
                if has & HAS_REASON and (rows.reasons[i] >= REFUSED or (kind == CONNACK and rows.reasons[i])):
                    what = FAILED
            elif (kind == K_CHANNEL_CLOSE or kind == K_CONNECTION_CLOSE) and has & HAS_REASON:
                if rows.reasons[i] >= AMQP_ERROR:
                    what = FAILED
            if what == NO_KIND:
                continue
            self.note(lane, what)
            if has & HAS_LATENCY:
                if what == CONFIRMED:
                    self.confirms[bucket_at(rows.latencies[i])] += 1
                elif what == ACKNOWLEDGED:
                    self.acks[bucket_at(rows.latencies[i])] += 1
        self.counted += <int64_t>rows.rows
        rows.begin()
        return 0
