# cython: language_level=3
"""Properties of messages as JSON, written without a Python object where a message may have them; and, for what is cold,
values of the codecs as what msgspec can encode.

    MQTT    by the names of the specification, `_` between words; binary data as base64; subscription_identifier and
            user_property, which may repeat, are lists, the latter of pairs
    AMQP    likewise; headers as an object
"""
from libc.stdint cimport uint8_t, uint32_t

from fluxmq._core.amqp091.properties cimport amqp_properties_t
from fluxmq._core.amqp091.values cimport room_t

# A string in quotes. What is not UTF-8 becomes U+FFFD.
cdef int put_json(room_t* out, const uint8_t* at, size_t n) except -1

# The properties at..end of a PUBLISH, without their length, that scan_publish_props has found valid.
cdef int put_publish_properties(room_t* out, const uint8_t* at, const uint8_t* end) except -1

# All that properties_read has found.
cdef int put_content_properties(room_t* out, const amqp_properties_t* found) except -1

# None when there are none; never Authentication Data.
cdef dict properties_of(list properties)
# A value of decode_table, or a field of a method.
cdef object plain_value(object value)
