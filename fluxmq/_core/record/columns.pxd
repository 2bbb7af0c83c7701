# cython: language_level=3
"""The rows of a recording as columns in Arrow's buffers: one batch at a time, no Python object per row.

A column with few distinct values is dictionary-encoded; its words begin anew with every batch. A row has one bit per
column; where the bit is clear, the value is undefined.
"""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.amqp091.values cimport room_t

cdef enum:              # bits of row_t.has
    HAS_CLIENT = 1 << 0
    HAS_PROTOCOL = 1 << 1
    HAS_VERSION = 1 << 2
    HAS_DIRECTION = 1 << 3
    HAS_CHANNEL = 1 << 4
    HAS_PACKET_ID = 1 << 5
    HAS_TOPIC = 1 << 6
    HAS_EXCHANGE = 1 << 7
    HAS_QOS = 1 << 8
    HAS_RETAIN = 1 << 9
    HAS_DUP = 1 << 10
    HAS_REASON = 1 << 11
    HAS_PROPERTIES = 1 << 12
    HAS_DETAIL = 1 << 13
    HAS_PAYLOAD = 1 << 14
    HAS_DIGEST = 1 << 15
    HAS_SIZE = 1 << 16
    HAS_BYTES = 1 << 17
    HAS_ANSWERS = 1 << 18
    HAS_LATENCY = 1 << 19

cdef enum:              # row_t.direction
    WAY_IN = 0
    WAY_OUT = 1

cdef enum:              # row_t.kind: 1 to 15 are the packet types of MQTT; methods of AMQP follow KIND_METHODS
    KIND_OPENED = 16
    KIND_ACCEPTED = 17
    KIND_CLOSED = 18
    KIND_LOST = 19
    KIND_MALFORMED = 20
    KIND_PROTOCOL_HEADER = 21
    KIND_HEARTBEAT = 22
    KIND_METHODS = 23

cdef struct text_t:
    const uint8_t* at
    size_t n

cdef struct row_t:
    uint32_t has
    int8_t protocol         # 0: mqtt, 1: amqp091
    int8_t version
    int8_t direction
    int8_t qos
    int8_t retain
    int8_t dup
    int32_t kind
    int32_t client          # index in Columns.clients
    int32_t topic           # in Columns.topics
    int32_t exchange        # in Columns.exchanges
    int32_t channel
    int32_t reason
    int64_t time
    int64_t connection
    int64_t packet_id
    int64_t digest
    int64_t size
    int64_t bytes
    int64_t answers
    int64_t latency
    text_t properties       # add() copies all three
    text_t detail
    text_t payload

cdef struct strings_t:      # one column of strings: offsets[i] to offsets[i + 1] in data
    int32_t* offsets
    room_t data

# Machine. Distinct byte strings, numbered from 0 in order of insertion.
cdef class Words:
    cdef room_t data
    cdef int32_t* offsets       # count + 1
    cdef uint32_t count
    cdef uint32_t room          # of offsets
    cdef uint32_t* slots        # word + 1; 0 = free
    cdef uint64_t* hashes       # of each slot
    cdef uint32_t mask

    cdef int32_t find(self, const uint8_t* at, size_t n) noexcept       # -1: not there
    cdef int32_t add(self, const uint8_t* at, size_t n) except -1       # must not be present
    cdef int32_t index(self, const uint8_t* at, size_t n) except -1     # find or add
    cdef void clear(self) noexcept
    cdef void place(self, uint64_t hashed, uint32_t entry) noexcept
    cdef int rehash(self) except -1
    cdef tuple taken(self)                                              # (count, offsets, data)

cdef class Columns:
    cdef int64_t first          # seq of row 0 of this batch
    cdef size_t rows            # in this batch
    cdef size_t room
    cdef uint64_t batch         # changes when the words begin anew
    cdef uint32_t any           # bits that some row has
    cdef uint32_t all           # bits that every row has
    cdef uint32_t* has
    cdef int64_t* times
    cdef int64_t* connections
    cdef int64_t* packet_ids
    cdef int64_t* digests
    cdef int64_t* sizes
    cdef int64_t* bytes
    cdef int64_t* answers
    cdef int64_t* latencies
    cdef int32_t* kinds
    cdef int32_t* client_ids
    cdef int32_t* topic_names
    cdef int32_t* exchange_names
    cdef int32_t* channels
    cdef int32_t* reasons
    cdef int8_t* protocols
    cdef int8_t* versions
    cdef int8_t* directions
    cdef int8_t* qoses
    cdef int8_t* retains
    cdef int8_t* dups
    cdef strings_t properties
    cdef strings_t details
    cdef strings_t payloads
    cdef Words clients
    cdef Words topics
    cdef Words exchanges

    cdef void arrays(self, void*** out) noexcept
    cdef int enlarge(self, size_t room) except -1
    cdef bytes validity(self, uint32_t bit)
    cdef tuple numbers(self, uint32_t bit, const void* values, size_t size)
    cdef tuple flags(self, uint32_t bit, const int8_t* values)
    cdef tuple strings(self, uint32_t bit, strings_t* column)
    cdef tuple words(self, uint32_t bit, const int32_t* values, Words words)
    cdef tuple few(self, uint32_t bit, const int8_t* values, Words words)
    cdef bytes numbered(self)

    cdef int64_t add(self, const row_t* row) except -1      # returns its seq
    cdef size_t held(self) noexcept                         # bytes of strings and words
    cdef dict taken(self)                                   # buffers by column; begins a new batch
    cdef void begin(self) noexcept                          # a new batch; what this one has is dropped

cdef int kind_of_method(uint32_t code) noexcept             # code: class << 16 | method; -1: unknown
cdef str kind_name(int kind)                                # None: not a kind
