"""Frames of a stream between two nodes: layout, writers, and a checked reader. All integers are little-endian.

    frame    header, records                                                      the field of Frame in cluster.proto
    header   ┌─────────┬───────┬─────────┬─────────┬───────┬──────────┬──────────┬──────────────┐
             │ version │ flags │ age     │ records │ epoch │ to epoch │ sequence │ acknowledged │
             │ u8 = 1  │ u8    │ u16, s  │ u32     │ u64   │ u64      │ u64      │ u64          │
             └─────────┴───────┴─────────┴─────────┴───────┴──────────┴──────────┴──────────────┘
    record   ┌──────┬───────┬─────┬────────┬─────────────────────────────────────────────────────┐
             │ kind │ flags │ a   │ length │ by kind                                             │
             │ u8   │ u8    │ u16 │ u32    │ `length` bytes                                      │
             └──────┴───────┴─────┴────────┴─────────────────────────────────────────────────────┘

    1 NAMESPACE      u32 number, name                   numbers are defined in order, from 1, before their first use
    2 MESSAGE        u32 namespace, u32 properties length, u32 payload length, [i64 ms until it expires],
                     [u64 name, u64 use, u16 packet id: hub/origins.pxd], [u64 version, u64 life:
                     hub/retained_store.pxd], topic, properties, payload            a: topic length.
                     flags: QoS (bits 0, 1), retain (2), expires (3), origin (4), version (5)
    3 GROUP_MESSAGE  u16 length of the group's name, u16 length of its filter, both, then as MESSAGE
    4 INTEREST       u32 namespace, u32 count, group's name, filter             a: length of the group's name; count 0:
                                                                                the sender wants it no more. flags:
                                                                                durable (1)
    5 INTEREST_END                                      the sender's interest is whole
    6 CONTROL        bytes of the cold half
    7 DIRECTED       u64 life, then as MESSAGE          only for sessions adopted from this life of a node
    8 RELEASE        u64 name, u64 use                  a: packet id. An origin is over; use 0: all of that packet id
   21 RETAINED       u32 size of the payload, then as MESSAGE, with a version: a change of a retained message, for a
                     node that has not said that it wants the topic. flags: absent (6): the payload is not here; state
                     (7): it was published before

Of queues, which are named by the number that a cluster gives each (docs/internals/cluster-queues.md). Those to the
owner of a queue:

    9 PUBLISH        u64 queue, u48 position (0: nobody waits for it), u16 channel, u32 properties length,
                     u32 payload length, [i64 ms until it expires], [origin], topic, properties, payload
                     a: topic length.
                     flags: QoS (bits 0, 1), quiet (2): a refusal is only counted, expires (3), origin (4), FORMAT_*
                     (5), forced (6): a dead letter, which is taken as it is, whatever the limits
    10 SETTLE        u32 member, u32 log, u64 first offset, u32 count (1 to RUN_MAX: queue/group.pxd), i64 ms (at least
                     BACKOFF_DEFAULT: queue/relay.pxd), reason       a: deliveries.
                     flags: what becomes of them (VERB_*: bits 0 to 3), counts (4): the delivery counts
    11 CREDIT        u32 member, u32 how many messages it may hold
    12 ATTACH        u32 member, u64 queue, MessagePack      a: channel
    13 DETACH        u32 member                         flags: rests (bit 0): it keeps what it holds
    14 CALL          u32 number, u64 queue, MessagePack      a: channel
    15 BARRIER       u48 position, u16 channel          tell when all before it in the channel is committed. flags:
                                                        awaited (0): and refuse it if that was given up

and those from the owner:

    16 DELIVERY      u32 member, u32 log, the message as a log has it (queue/log.pxd), its expiry as what is left of it
                     (0: never)                         a: deliveries
    17 WITHDRAW      u32 member, u32 log, u64 offset    the member does not hold it any more
    18 RESULT        u32 number, MessagePack            the answer to a CALL, or to the ATTACH of this member
    19 COMMITTED     u48 position, u16 channel          all up to it is committed, but what was refused before
    20 REFUSED       u48 position, u16 channel, text    a: the reason, not 0. flags: undone (0): of a barrier; what was
                                                        settled before it was given up

A channel is what its sender waits for by itself (channel.pxd); positions are those of a channel. 0: of queues that the
owner's journal commits.

What is left until a message expires, and the ms of a SETTLE, are less than 2^52. The message of a PUBLISH or DELIVERY
has topic and properties as its format says (memory/message.pxd); one in MQTT's may have no topic. Texts are UTF-8.

Flags of a frame:

    BEGIN   the first frame of a connection: `sequence` is the number behind which its numbered frames begin. It has
            NAMESPACE records only, all of the sender's, so that frames sent again are understood by a receiver that
            restarted
    AGAIN   may have been sent to a former life of the addressee: its messages of QoS 0 are skipped
    AWAITED somebody waits until it is acknowledged, so that should be soon. From version 6 of streams on. What waits
            for queues has answers of its own

A frame with sequence 0 only acknowledges, if it is not BEGIN. age: for how long its first record waited in the sender.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport body_t, origin_t
from fluxmq._core.wire.primitives cimport Cursor

cdef enum:
    FRAME_VERSION = 1
    FRAME_HEADER_BYTES = 40
    FRAME_BEGIN = 1
    FRAME_AGAIN = 2
    FRAME_AWAITED = 4

cdef enum:
    PEER_NAMESPACE = 1
    PEER_MESSAGE = 2
    PEER_GROUP_MESSAGE = 3
    PEER_INTEREST = 4
    PEER_INTEREST_END = 5
    PEER_CONTROL = 6
    PEER_DIRECTED = 7
    PEER_RELEASE = 8
    PEER_PUBLISH = 9
    PEER_SETTLE = 10
    PEER_CREDIT = 11
    PEER_ATTACH = 12
    PEER_DETACH = 13
    PEER_CALL = 14
    PEER_BARRIER = 15
    PEER_DELIVERY = 16
    PEER_WITHDRAW = 17
    PEER_RESULT = 18
    PEER_COMMITTED = 19
    PEER_REFUSED = 20
    PEER_RETAINED = 21

cdef enum:                          # flags of a message
    PEER_QOS = 3
    PEER_RETAIN = 4
    PEER_EXPIRES = 8
    PEER_ORIGIN = 16
    PEER_VERSION = 32
    PEER_ABSENT = 64                # of RETAINED; so is the next
    PEER_STATE = 128

cdef enum:                          # flags of an interest
    PEER_DURABLE = 1                # of a session that outlives its node

cdef enum:                          # flags of a publish to a queue
    PEER_QUIET = 4                  # a refusal is counted, and not told
    PEER_FORMAT_SHIFT = 5           # one bit
    PEER_FORCED = 64
    PEER_REPEATED = 128             # perhaps it was published before

cdef enum:                          # flags of a settlement
    PEER_VERB = 15
    PEER_COUNTS = 16

cdef enum:                          # flags of DETACH
    PEER_RESTS = 1

cdef enum:                          # flags of BARRIER
    PEER_AWAITED = 1

cdef enum:                          # flags of REFUSED
    PEER_UNDONE = 1

cdef enum:
    POSITION_BITS = 48              # the channel is in the bits above
    CHANNEL_MAX = 65535

# As somebody who refuses a position later names it (PeerInbox.asked).
cdef inline uint64_t with_channel(uint16_t channel, uint64_t position) noexcept nogil:
    return position | <uint64_t>channel << POSITION_BITS

cdef inline uint64_t position_in(uint64_t both) noexcept nogil:
    return both & ((<uint64_t>1 << POSITION_BITS) - 1)

cdef inline uint16_t channel_in(uint64_t both) noexcept nogil:
    return <uint16_t>(both >> POSITION_BITS)        # fits: 16 bits are left

cdef struct frame_t:                # a header
    uint8_t version
    uint8_t flags
    uint16_t age_s
    uint32_t records
    uint64_t epoch
    uint64_t to_epoch
    uint64_t sequence
    uint64_t acknowledged

cdef struct span_t:
    const uint8_t* at
    uint32_t length

cdef inline bytes taken(const span_t* span):     # a copy
    return PyBytes_FromStringAndSize(<const char*>span.at, span.length)

cdef struct peer_record_t:          # borrows from the frame
    uint8_t kind
    uint8_t flags
    uint32_t namespace              # number
    uint32_t count                  # INTEREST; RETAINED: size
    span_t name                     # of the namespace; of the group, empty: none
    span_t filter
    span_t topic
    span_t properties
    span_t payload                  # of CONTROL: all of it
    int64_t left_ms                 # until it expires; -1: never
    uint64_t life                   # DIRECTED; of a version
    uint64_t version                # of a MESSAGE, RETAINED; 0: none
    uint64_t origin                 # of a message, RELEASE: name; 0: none
    uint64_t use
    uint16_t packet_id
    # of queues
    uint8_t format
    uint16_t deliveries             # of REFUSED: the reason
    uint32_t member                 # of CALL, RESULT: its number
    uint32_t log
    uint16_t channel                # of PUBLISH, ATTACH, CALL, BARRIER, COMMITTED, REFUSED
    uint64_t queue
    uint64_t position
    uint64_t offset                 # of SETTLE: the first of `count`
    int64_t ms

cdef struct checks_t:               # what the last checked message had: the same bytes need no second check
    span_t topic
    span_t properties

# ---- writers. Each returns the end of what it wrote; the caller has made room for as many bytes as the size says.

cdef uint8_t* put_header(uint8_t* at, const frame_t* frame) noexcept nogil
cdef void read_header(const uint8_t* at, frame_t* frame) noexcept nogil

cdef size_t namespace_bytes(size_t name) noexcept nogil
cdef uint8_t* put_namespace(uint8_t* at, uint32_t number, const uint8_t* name, uint32_t length) noexcept nogil
cdef size_t message_bytes(const body_t* body) noexcept nogil    # at most
cdef enum:
    ORIGIN_BYTES = 18               # of a message with an origin more than message_bytes
    VERSION_BYTES = 16              # the same of one with a version
    SIZE_BYTES = 4                  # and of RETAINED

cdef struct version_t:
    uint64_t number
    uint64_t life

# flags: QoS and retain. left_ms: -1 = never. origin, version: NULL = none. At most 4 GiB; the topic has at most 65 535
# bytes.
cdef uint8_t* put_message(uint8_t* at, uint32_t namespace, const body_t* body, uint8_t flags, int64_t left_ms,
                          const origin_t* origin, const version_t* version) noexcept nogil
# flags: also absent and state. size: of the payload, which body does not have if it is absent.
cdef uint8_t* put_retained(uint8_t* at, uint32_t namespace, const body_t* body, uint8_t flags, int64_t left_ms,
                           const origin_t* origin, const version_t* version, uint32_t size) noexcept nogil
cdef enum:
    RELEASE_BYTES = 24              # the whole record
cdef uint8_t* put_release(uint8_t* at, uint64_t name, uint16_t packet_id, uint64_t use) noexcept nogil
cdef size_t group_bytes(size_t group, size_t filter) noexcept nogil     # more than message_bytes
cdef uint8_t* put_group_message(uint8_t* at, uint32_t namespace, const uint8_t* group, uint16_t group_length,
                                const uint8_t* filter, uint16_t filter_length, const body_t* body, uint8_t flags,
                                int64_t left_ms, const origin_t* origin) noexcept nogil
cdef size_t interest_bytes(size_t group, size_t filter) noexcept nogil
cdef uint8_t* put_interest(uint8_t* at, uint32_t namespace, uint32_t count, uint8_t flags, const uint8_t* group,
                           uint16_t group_length, const uint8_t* filter, uint32_t filter_length) noexcept nogil
cdef enum:
    LIFE_BYTES = 8                  # of a directed message more than message_bytes
cdef uint8_t* put_directed(uint8_t* at, uint64_t life, uint32_t namespace, const body_t* body, uint8_t flags,
                           int64_t left_ms, const origin_t* origin) noexcept nogil
cdef size_t control_bytes(size_t data) noexcept nogil
cdef uint8_t* put_control(uint8_t* at, uint8_t kind, const uint8_t* data, uint32_t length) noexcept nogil

# A message for a queue is at most this long, without an origin.
cdef size_t publish_bytes(const body_t* body) noexcept nogil
# position: with_channel; so in put_position and put_refused.
cdef uint8_t* put_publish(uint8_t* at, uint64_t queue, uint64_t position, const body_t* body, uint8_t flags,
                          int64_t left_ms, const origin_t* origin) noexcept nogil
cdef enum:
    SETTLE_BYTES = 36               # the whole record, without its reason
    SETTLE_COUNT_AT = 24            # of its count in it
cdef uint8_t* put_settle(uint8_t* at, uint32_t member, uint8_t flags, uint16_t deliveries, uint32_t log, uint64_t first,
                         uint32_t count, int64_t ms, const uint8_t* reason, uint32_t reason_length) noexcept nogil
cdef enum:
    DELIVERY_BYTES = 16             # without the message
# record: size bytes; left_ms: 0 = never expires.
cdef uint8_t* put_delivery(uint8_t* at, uint32_t member, uint16_t deliveries, uint32_t log, const uint8_t* record,
                           uint32_t size, int64_t left_ms) noexcept nogil
cdef enum:
    SMALL_BYTES = 24                # of any of the following without its bytes, at most
cdef uint8_t* put_credit(uint8_t* at, uint32_t member, uint32_t limit) noexcept nogil
cdef uint8_t* put_detach(uint8_t* at, uint32_t member, bint rests) noexcept nogil
cdef uint8_t* put_withdraw(uint8_t* at, uint32_t member, uint32_t log, uint64_t offset) noexcept nogil
cdef uint8_t* put_position(uint8_t* at, uint8_t kind, uint8_t flags,
                           uint64_t position) noexcept nogil    # BARRIER, COMMITTED
cdef enum:
    CALL_BYTES = 20                 # without its bytes
cdef uint8_t* put_call(uint8_t* at, uint8_t kind, uint16_t channel, uint32_t number, uint64_t queue,
                       const uint8_t* data, uint32_t length) noexcept nogil     # ATTACH, CALL
cdef uint8_t* put_result(uint8_t* at, uint32_t number, const uint8_t* data, uint32_t length) noexcept nogil
cdef uint8_t* put_refused(uint8_t* at, uint8_t flags, uint64_t position, uint16_t reason, const uint8_t* text,
                          uint32_t length) noexcept nogil

# ---- the reader. Both raise ProtocolError and nothing else (MemoryError), and read nothing behind the frame.

# The header, and the records as a Cursor.
cdef int open_frame(const uint8_t* at, size_t length, frame_t* frame, Cursor* records) except -1
# The next record. 0: there is none. checks: the message is checked too; NULL: that was done before.
cdef int next_record(Cursor* records, peer_record_t* record, checks_t* checks) except -1
