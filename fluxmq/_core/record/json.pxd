# cython: language_level=3
"""Properties of messages as JSON, written without Python objects on the hot path; on the cold path, values of the
codecs as objects that msgspec can encode.

    MQTT    by the names of the specification, `_` between words; binary data as base64; subscription_identifier and
            user_property, which may repeat, are lists, the latter of pairs
    AMQP    likewise; headers as an object
"""
from libc.stdint cimport uint8_t, uint32_t

from fluxmq._core.amqp091.properties cimport amqp_properties_t
from fluxmq._core.amqp091.values cimport room_t

# A string in quotes. Invalid UTF-8 becomes U+FFFD.
cdef int put_json(room_t* out, const uint8_t* at, size_t n) except -1

# The properties at..end of a PUBLISH, without their length, which scan_publish_props has validated.
cdef int put_publish_properties(room_t* out, const uint8_t* at, const uint8_t* end) except -1

# All properties that properties_read has found.
cdef int put_content_properties(room_t* out, const amqp_properties_t* found) except -1

# None: there are none. Without Authentication Data.
cdef dict properties_of(list properties)
# A value of decode_table, or a field of a method.
cdef object plain_value(object value)
