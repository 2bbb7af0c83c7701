# cython: language_level=3
"""The 14 properties of a basic content header (section 4.2.6.1), read in place.

    0       2           4           12                   behind the flags: the properties whose bits are set, the
    +-------+-----------+-----------+-------+---- - -    highest bit first; bits 1 and 0 have no property
    | class | weight, 0 | body size | flags | list
    +-------+-----------+-----------+-------+---- - -

The "properties" of a message are flags and list, from byte 12 on.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef struct octets_t:
    const uint8_t* at       # borrowed from the input
    uint32_t length

# A member is valid only if its bit (PROPERTY_* of amqp091/consts) is set in flags; others are zero. After an error all
# are undefined.
cdef struct amqp_properties_t:
    uint16_t flags
    uint8_t delivery_mode   # 1: transient, 2: persistent; not checked
    uint8_t priority
    uint64_t timestamp      # seconds since 1970
    octets_t content_type
    octets_t content_encoding
    octets_t headers        # the table without its length, checked
    octets_t correlation_id
    octets_t reply_to
    octets_t expiration     # milliseconds in decimal digits; not checked
    octets_t message_id
    octets_t type
    octets_t user_id
    octets_t app_id
    octets_t cluster_id

# 0, or the reply code of the error (502). at..end: exactly flags and list. Pointers are valid as long as the bytes.
cdef int properties_read(const uint8_t* at, const uint8_t* end, amqp_properties_t* out) noexcept nogil
