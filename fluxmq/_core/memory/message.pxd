"""The bytes of one application message, and their ownership.

    body_t   pointers to topic, properties and payload; borrowed or owned, depending on the struct that contains it
    pub_t    a message while it is being published: borrows from the read buffer, copied to a msg_t on first need
    msg_t    a message that must outlive its turn: counted, immutable
    blob_t   a payload too large to copy: counted, immutable; msg_t and outbound chunks point into it
    origin_t by what a node knows a message that it has had already (hub/origins.pxd)
    once_t   what is known of a message that may come again, or is for some only, while it is published
    ids_t    the subscription identifiers that one delivery carries, and the share group it came through: counted,
             immutable

All counts are plain integers: one loop, one thread, one node.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.debug cimport live_t

cdef enum:
    # A payload of this size or more is referenced (blob_t, an iovec of its own), a smaller one is copied into each
    # outbound buffer. The limit is an estimate: no benchmark compares a copy with an iovec and a counted reference.
    BLOB_BYTES_MIN = 4096

cdef struct blob_t:
    uint32_t refs
    uint32_t size
    uint8_t* data           # size bytes, behind this struct

cdef enum:
    FORMAT_MQTT = 0         # topic: a topic name; properties: MQTT 5 wire bytes that are forwarded unchanged, without
                            # alias, expiry or subscription identifier
    FORMAT_AMQP091 = 1      # topic: u8 length of the exchange's name, that name, the routing key; properties: the
                            # property flags and the property list of the content header, unchanged. Only in queues
    FORMAT_LAST = 1

cdef struct body_t:
    const uint8_t* topic
    const uint8_t* properties
    const uint8_t* payload
    uint32_t topic_length
    uint32_t properties_length
    uint32_t payload_length
    blob_t* blob            # holds the payload; NULL: the payload is wherever topic and properties are
    int64_t expires_at      # steady clock, ms; 0 = never
    uint8_t format          # FORMAT_*

cdef struct msg_t:
    body_t body             # invariant: topic and properties (and payload unless blob) are behind this struct
    uint64_t id             # its number in journal and view; 0 = never journalled
    uint32_t refs
    uint8_t qos
    uint8_t stored          # the view has it: must be deleted there with the last reference

cdef struct origin_t:
    uint64_t name           # of a session's incarnation, or of a will; not 0
    uint64_t use            # 0: unknown
    uint16_t packet_id
    bint spread             # it was given to another node
    bint doubtful           # perhaps another node has published it already

cdef struct once_t:
    origin_t* origin        # what this publish causes is to be known by it; NULL: by none
    void* known             # a Use (hub/origins.pxd): it is for those who have not had it; NULL: nobody has
    uint64_t life           # it is for sessions that were adopted from this life of a node; 0: for all
    void* missed            # list of the numbers of sessions in two places that do not get it here; NULL: none
    void* took              # list of the marks of share groups that this node has it for; NULL: of none

cdef struct pub_t:
    body_t body
    void* source            # the publishing Session (No Local, [MQTT-3.8.3-3]); NULL: the broker itself
    void* topics            # Topics of the namespace that it is published in
    msg_t* owned            # made by pub_own on first need; the publisher drops its reference at the end
    const body_t* amqp      # the message as an AMQP 0-9-1 client published it, for queues. body is its translation, or
                            # only topic and payload if nobody but queues and exchanges gets it. NULL: published by
                            # MQTT
    once_t* once            # NULL: it does not come again, and is for all who want it
    uint64_t passing        # number of the publish, by which a queue detects duplicates; 0: Hub.publish assigns one
    uint8_t qos
    uint8_t retain
    uint8_t refused         # a queue refused it: the MQTT 5 reason code for the answer
    uint8_t from_peer       # not 0: another node forwarded it (PeerInbox.slot); it is not forwarded to peers again

cdef enum:
    # The last identifier of a delivery may be no identifier, but the mark of the share group that it came through
    # (ShareGroup.mark). It has this bit, and is not sent to the client.
    GROUP_MARK = 0x80000000

cdef struct ids_t:
    uint32_t refs
    uint32_t count          # of items
    uint32_t shown          # those of them that are identifiers
    uint32_t* items

cdef inline once_t once_of(origin_t* origin) noexcept:
    cdef once_t once
    once.origin = origin
    once.known = once.missed = once.took = NULL
    once.life = 0
    return once

# The origin of a message that is published; NULL: it has none.
cdef inline origin_t* origin_of(const pub_t* pub) noexcept:
    return NULL if pub == NULL or pub.once == NULL else pub.once.origin

cdef live_t live            # changed under the interpreter's lock only

cdef blob_t* blob_new(size_t size) except NULL
cdef blob_t* blob_copy(const uint8_t* data, size_t size) except NULL
# The same bytes with room for `size`, perhaps elsewhere; only while nobody else holds it. On MemoryError it is as it
# was.
cdef blob_t* blob_resize(blob_t* blob, size_t size) except NULL
cdef void blob_drop(blob_t* blob) noexcept

cdef msg_t* msg_new(const body_t* body, uint8_t qos) except NULL
# Returns the id that the view must forget, or 0.
cdef uint64_t msg_drop(msg_t* msg) noexcept
cdef msg_t* pub_own(pub_t* pub) except NULL

cdef ids_t* ids_new(const uint32_t* items, uint32_t count) except NULL
cdef void ids_drop(ids_t* ids) noexcept


cdef inline void msg_hold(msg_t* msg) noexcept:
    msg.refs += 1

cdef inline void ids_hold(ids_t* ids) noexcept:
    if ids != NULL:
        ids.refs += 1

# The mark of the share group through which a delivery came; 0: through none.
cdef inline uint32_t mark_of(const ids_t* ids) noexcept:
    return ids.items[ids.shown] if ids != NULL and ids.shown < ids.count else 0

cdef inline void blob_hold(blob_t* blob) noexcept:
    if blob != NULL:
        blob.refs += 1

cdef inline void body_borrow(body_t* out, bytes topic, bytes properties, bytes payload, int64_t expires_at,
                             uint8_t format) noexcept:
    """A message of Python's bytes, which must outlive it."""
    memset(out, 0, sizeof(body_t))
    out.topic = <const uint8_t*><const char*>topic
    out.topic_length = <uint32_t>len(topic)
    out.properties = <const uint8_t*><const char*>properties
    out.properties_length = <uint32_t>len(properties)
    out.payload = <const uint8_t*><const char*>payload
    out.payload_length = <uint32_t>len(payload)
    out.expires_at = expires_at
    out.format = format


cdef inline size_t body_bytes(const body_t* body) noexcept:
    return <size_t>body.topic_length + body.properties_length + body.payload_length
