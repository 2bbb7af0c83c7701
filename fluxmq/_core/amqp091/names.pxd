# cython: language_level=3
"""Names of properties of an AMQP content header, and of the user properties and headers that carry what the other
protocol cannot express."""
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, strlen

from fluxmq._core.amqp091.topics cimport slice_t

cdef enum:      # the 14 properties of a content header in their order; the flag of each is 1 << (15 - number)
    CONTENT_TYPE = 0
    CONTENT_ENCODING = 1
    HEADERS = 2
    DELIVERY_MODE = 3
    PRIORITY = 4
    CORRELATION_ID = 5
    REPLY_TO = 6
    EXPIRATION = 7
    MESSAGE_ID = 8
    TIMESTAMP = 9
    TYPE = 10
    USER_ID = 11
    APP_ID = 12
    CLUSTER_ID = 13
    COUNT = 14

cdef enum:
    MQTT_PAYLOAD_FORMAT = 0x01
    MQTT_CONTENT_TYPE = 0x03
    MQTT_RESPONSE_TOPIC = 0x08
    MQTT_CORRELATION_DATA = 0x09
    MQTT_USER_PROPERTY = 0x26
    STRING_MAX = 65535

cdef struct props_t:            # of a content header; HEADERS: the table without its length, TIMESTAMP: its 8 bytes
    slice_t[14] of

# User properties for what MQTT cannot express, by number. Suffix `64`: base64, for text that MQTT cannot carry.
ctypedef const char* text_t
cdef text_t[14] NAMES
# Headers for what AMQP cannot express, with their types.
cdef const char* MARK_TOPIC                 # S
cdef const char* MARK_CONTENT_TYPE          # S
cdef const char* MARK_RESPONSE_TOPIC        # S
cdef const char* MARK_CORRELATION           # x
cdef const char* MARK_PAYLOAD_FORMAT        # I
cdef const char* MARK_USERS                 # A of S
cdef const char* MARK_RETAIN                # t, read only

cdef inline bint named(const uint8_t* at, uint32_t n, const char* name) noexcept nogil:
    return n == strlen(name) and memcmp(at, name, n) == 0


cdef inline bint begins(const uint8_t* at, uint32_t n, const char* prefix) noexcept nogil:
    return n >= strlen(prefix) and memcmp(at, prefix, strlen(prefix)) == 0

# The property list of a content header, flags in front. An invalid property and all behind it are absent.
cdef void props_read(const uint8_t* at, uint32_t length, props_t* props) noexcept nogil
# The property that a user property `amqp-…` represents, or -1. encoded: in base64.
cdef int property_of(const uint8_t* name, uint32_t n, bint* encoded) noexcept nogil
# Whether the name is reserved: such a header would be converted on the way back.
cdef bint is_ours(const uint8_t* name, uint32_t n) noexcept nogil
