# cython: language_level=3
"""The properties of MQTT 5.0 (section 2.2.2): the table, one hot scan for PUBLISH, lists for everything else."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport realloc

from fluxmq._core.wire.primitives cimport Cursor


cdef struct publish_props_t:
    uint32_t topic_alias          # 0 = absent; a 0 on the wire is refused with 0x94
    bint has_expiry
    uint32_t expiry_s             # Message Expiry Interval, seconds
    uint8_t has_subscription_id   # number seen, at most 255; the caller refuses any from a client with 0x82
    const uint8_t* forward        # forwarded to subscribers unaltered: payload format, content type, response topic,
                                  # correlation data, user properties; wire bytes in their order. Points into the
                                  # input if they are contiguous, else into scratch.
    uint32_t forward_length
    uint32_t user_properties      # number
    uint8_t payload_format        # 0 or 1

# Reads the property bytes at..end of a PUBLISH (without their length) and validates all of them: identifiers, types,
# UTF-8, duplicates, values, no wildcard in the response topic. `scratch` has room for end - at bytes and is written
# only when the bytes to forward are not contiguous. Returns 0, or the reason code to answer with:
# 0x81 cannot be parsed or not a property of PUBLISH, 0x82 duplicate or forbidden value, 0x94 topic alias 0.
# `out` is complete only when the result is 0.
cdef int scan_publish_props(const uint8_t* at, const uint8_t* end, publish_props_t* out,
                            uint8_t* scratch) noexcept nogil

cdef struct scratch_t:          # for scan_publish_props; each module that calls it keeps one, which only grows
    uint8_t* data
    size_t room

# Room for n bytes, until the next call.
cdef inline uint8_t* scratch_for(scratch_t* scratch, size_t n) except NULL:
    cdef uint8_t* grown
    if n > scratch.room or scratch.data == NULL:
        grown = <uint8_t*>realloc(scratch.data, n + 4096)
        if grown == NULL:
            raise MemoryError()
        scratch.data = grown
        scratch.room = n + 4096
    return scratch.data

# Reads length and properties at the cursor. `where` is a packet type or WILL.
# ProtocolError as above, its text naming the property.
cdef list read_properties(Cursor* c, int where)

# Length and properties as wire bytes. UsageError if a property does not belong to `where` or does not fit.
cdef bytes write_properties(list properties, int where)
