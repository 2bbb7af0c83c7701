# cython: language_level=3
"""Addresses of AMQP 0-9-1 as topics of MQTT, and back; binding keys of amq.topic as topic filters.

    amq.topic, routing key      the topic with `.` and `/` exchanged, one to one
    default exchange, <name>    `$queue/<name>`, when the name can be one level of a topic
    another exchange            the topic of its routing key; a user property names the exchange

    binding key                 `.` and `/` likewise, the word `*` is the level `+`, the word `#` stays. `#` before the
                                end has no equal filter: then a wider one, and `levels_match` decides
"""
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    SHORTSTR_MAX = 255
    ADDRESS_BYTES_MAX = 266     # of what address_of_topic writes
    TOPIC_BYTES_MAX = 262       # of what topic_of and reply_topic write

cdef struct slice_t:
    const uint8_t* at           # NULL: absent
    uint32_t n

cdef inline bint same(const slice_t* one, const slice_t* other) noexcept nogil:
    cdef uint32_t i
    if one.n != other.n:
        return 0
    for i in range(one.n):
        if one.at[i] != other.at[i]:
            return 0
    return 1

# Exchange and routing key of an address as FORMAT_AMQP091 writes it. 0: it is not one.
cdef bint split_address(const uint8_t* address, uint32_t length, slice_t* exchange, slice_t* key) noexcept nogil
# The topic of such an address. Returns its length; 0: there is none: the key is empty, not UTF-8, or has a wildcard.
cdef uint32_t topic_of(const uint8_t* address, uint32_t length, uint8_t* out) noexcept nogil
# Writes the address; of a long topic the routing key is the first 255 bytes, in whole characters.
cdef uint32_t address_of_topic(const uint8_t* topic, uint32_t n, uint8_t* out) noexcept nogil
# Whether a topic is the address of a queue, `$queue/<name>`, whose name is a routing key.
cdef bint is_queue(const uint8_t* topic, uint32_t n) noexcept nogil
# reply_to as a response topic: the queue of that name, or of `amq.topic/<routing key>` the topic. 0: neither.
cdef uint32_t reply_topic(const slice_t* reply_to, uint8_t* out) noexcept nogil
# A key of the default exchange that reply_topic understands as a topic, as an address of amq.topic; returns its bytes,
# at most ADDRESS_BYTES_MAX. 0: it is a queue's name like any other.
cdef uint32_t reply_route(const uint8_t* key, uint32_t n, uint8_t* out) noexcept nogil
# A response topic as reply_to, at most 255 bytes. 0: it is longer.
cdef uint32_t reply_address(const slice_t* topic, uint8_t* out) noexcept nogil
