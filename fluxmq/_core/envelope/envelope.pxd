"""The envelope of a message: what the broker itself reads of it, whatever protocol it came by.

A message is tagged by its format (FORMAT_* of memory/message.pxd). What each format calls the things that queues,
sessions and the engine read is known here alone; what turns one format into the other (bridge/, hub/amqp091_bridge,
amqp091/topics) knows the names as well. See docs/internals/messages.md.

    topic               MQTT: the topic. AMQP 0-9-1: the topic that exchange and routing key are (amqp091/topics.pxd)
    a header by name    a user property; a header, its value as text (amqp091/values.pxd)
    other properties    by the protocol's names, of which KEY_* have a meaning here

What a publisher asks of a queue:

    partition-key       messages of one key are in one partition, in order
    priority            0 to 255; of a queue with fewer levels the highest is the most. AMQP: the property
    expiration          AMQP: milliseconds that it may be in the queue. MQTT has Message Expiry Interval
    x-delay             milliseconds; not before that
    not-before          the same as a point in time, milliseconds since the epoch
    producer-id, producer-sequence      a pair is appended once, however often it is published

An MQTT client that asks for what makes no sense is refused; of AMQP, where others give headers their meaning, such a
header is one like any other.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.amqp091.names cimport props_t
from fluxmq._core.amqp091.topics cimport slice_t
from fluxmq._core.amqp091.values cimport room_t
from fluxmq._core.memory.message cimport FORMAT_MQTT, body_t
from fluxmq._core.memory.node cimport node_t

cdef struct options_t:
    const uint8_t* key          # partition-key; NULL: none
    const uint8_t* producer     # producer-id; NULL: none
    uint64_t sequence           # producer-sequence
    int64_t not_before          # x-delay, not-before: steady clock, ms; 0: at once
    uint32_t key_length
    uint32_t producer_length
    int64_t lifetime_ms         # AMQP's expiration, if has_lifetime: from when it is in the queue
    uint8_t has_lifetime
    uint8_t priority            # 0 … 255
    uint8_t has_sequence
    uint8_t forced              # it must be kept: no limit refuses it

# Borrowed from the body, of either format. 0, or the MQTT 5 reason code to refuse it with. A point in time that
# somebody names is one of the wall clock as it is now: from here on it is a delay like others.
cdef int read_options(const body_t* body, const node_t* node, options_t* options) noexcept nogil

# ---------------------------------------------------------------- topic, format

cdef enum:
    TOPIC_ROOM = 262            # of foreign_topic

ctypedef const char* format_name_t
cdef format_name_t[2] FORMAT_NAMES

# The topic is read: of another format than MQTT's it is written to `room`. Its length is 0 where there is none.
cdef inline void read_topic(body_t* body, uint8_t* room) noexcept nogil:
    if body.format != FORMAT_MQTT:
        foreign_topic(body, room)

cdef void foreign_topic(body_t* body, uint8_t* room) noexcept nogil

# ---------------------------------------------------------------- properties, one after the other

cdef enum:
    KEY_HEADER = 0              # user property, header
    KEY_OTHER = 1
    KEY_CONTENT_TYPE = 2
    KEY_PRIORITY = 3

cdef struct field_t:            # borrowed, until the next one is read, of whatever message
    const uint8_t* name
    const uint8_t* value
    uint64_t number             # the value, if it is_number
    uint32_t name_length
    uint32_t length
    uint8_t key                 # KEY_*
    uint8_t is_number
    uint8_t is_text             # it is UTF-8, and was checked when it came

cdef struct fields_t:
    const uint8_t* at           # of MQTT's properties, or of the header table
    const uint8_t* end
    slice_t exchange
    slice_t routing_key
    props_t props
    int next                    # of AMQP's properties; below 0 those of the address
    uint8_t format
    int malformed           # a property of MQTT that none in a queue has; -2: one ends behind all; -1: none

cdef void fields_of(const body_t* body, fields_t* fields) noexcept nogil
# 0: there is none, or what is there cannot be read (`malformed`).
cdef bint next_field(fields_t* fields, field_t* field) except -1

# ---------------------------------------------------------------- as MQTT has it

# Topic and properties in the room, as bridge/to_mqtt.pxd says. The bridge sets the converter of each format.
ctypedef int (*to_mqtt_t)(const body_t* body, room_t* room, body_t* mqtt, uint8_t* qos, bint* retain) except -1
cdef to_mqtt_t[2] converters

# A message of another format becomes one of FORMAT_MQTT, until the next does; for 3.1.1 only its topic counts.
cdef inline int as_mqtt(body_t* body, bint v5) except -1:
    return 0 if body.format == FORMAT_MQTT else convert_to_mqtt(body, v5)

cdef int convert_to_mqtt(body_t* body, bint v5) except -1

# ---------------------------------------------------------------- for the cold half

cdef class Envelope:
    cdef readonly int format    # FORMAT_*
    cdef readonly bytes topic
    cdef readonly bytes properties
    cdef body_t body(self) noexcept
