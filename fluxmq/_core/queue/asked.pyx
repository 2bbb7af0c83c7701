# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""What publishers ask of queues. See queue/asked.pxd."""
from libc.stdint cimport uint16_t
from libc.string cimport memcmp, memset

from fluxmq._core.amqp091.names cimport EXPIRATION, HEADERS, PRIORITY, props_read, props_t
from fluxmq._core.amqp091.values cimport entry_t, next_entry, read_integer
from fluxmq._core.memory.message cimport FORMAT_AMQP091
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.mqtt.consts cimport REASON_IMPLEMENTATION_SPECIFIC_ERROR
from fluxmq._core.wire.primitives cimport Cursor, take_bytes16, take_u8

cdef enum:
    USER_PROPERTY = 0x26
    NUMBER_MAX = 999999999999999999     # as many digits as read_number takes
    BAD = REASON_IMPLEMENTATION_SPECIFIC_ERROR


cdef inline bint is_key(const uint8_t* key, uint32_t length, const char* name, uint32_t n) noexcept nogil:
    return length == n and memcmp(key, name, n) == 0


cdef bint read_number(const uint8_t* text, uint32_t length, uint64_t* out) noexcept nogil:
    """Decimal digits, at most 18 of them."""
    cdef uint64_t value = 0
    cdef uint32_t i
    if length == 0 or length > 18:
        return 0
    for i in range(length):
        if text[i] < 48 or text[i] > 57:
            return 0
        value = value * 10 + text[i] - 48
    out[0] = value
    return 1


cdef inline uint32_t property_bytes(uint8_t identifier) noexcept nogil:
    """Of the fixed-size properties that a PUBLISH may forward, MQTT 5.0 section 2.2.2.2; 0: length-prefixed."""
    if identifier == 0x01:
        return 1
    return 4 if identifier == 0x02 else 0


cdef inline int64_t steady_of(const node_t* node, int64_t wall_ms) noexcept nogil:
    """What has passed already, or was never, is 0: at once."""
    return max(wall_ms - node.wall_lead, 0) if wall_ms else 0


cdef int read_asked(const body_t* body, const node_t* node, asked_t* asked) noexcept nogil:
    memset(asked, 0, sizeof(asked_t))
    return read_amqp(body, node, asked) if body.format == FORMAT_AMQP091 else read_mqtt(body, node, asked)


cdef int read_mqtt(const body_t* body, const node_t* node, asked_t* asked) noexcept nogil:
    """0, or the reason to refuse: a property that is meant for us and makes no sense."""
    cdef Cursor c
    cdef uint8_t identifier = 0
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef uint16_t n = 0
    cdef uint16_t m = 0
    cdef uint64_t number = 0
    cdef uint32_t skip
    c.at = body.properties
    c.end = c.at + body.properties_length
    while take_u8(&c, &identifier):
        if identifier != USER_PROPERTY:
            skip = property_bytes(identifier)
            if skip:
                c.at += skip
            elif not take_bytes16(&c, &key, &n):
                return BAD
            continue
        if not take_bytes16(&c, &key, &n) or not take_bytes16(&c, &value, &m):
            return BAD
        if is_key(key, n, b"partition-key", 13):
            asked.key = value
            asked.key_length = m
        elif is_key(key, n, b"producer-id", 11):
            asked.producer = value
            asked.producer_length = m
        elif is_key(key, n, b"producer-sequence", 17):
            if not read_number(value, m, &asked.sequence):
                return BAD
            asked.has_sequence = 1
        elif is_key(key, n, b"priority", 8) or is_key(key, n, b"amqp-priority", 13):
            if not read_number(value, m, &number) or number > 255:
                return BAD
            asked.priority = <uint8_t>number
        elif is_key(key, n, b"x-delay", 7):
            if not read_number(value, m, &number):
                return BAD
            asked.not_before = node.steady_ms + <int64_t>number if number else 0
        elif is_key(key, n, b"not-before", 10):
            if not read_number(value, m, &number):
                return BAD
            asked.not_before = steady_of(node, <int64_t>number)
    return 0


cdef inline bint number_of(const entry_t* entry, uint64_t* out) noexcept nogil:
    """Of any integer type, or in digits."""
    cdef int64_t value = 0
    if entry.kind == c"S":
        return read_number(entry.value, entry.size, out)
    if not read_integer(entry, &value) or value < 0 or value > <int64_t>NUMBER_MAX:
        return 0
    out[0] = <uint64_t>value
    return 1


cdef int read_amqp(const body_t* body, const node_t* node, asked_t* asked) noexcept nogil:
    cdef props_t props
    cdef entry_t e
    cdef uint64_t number = 0
    cdef const uint8_t* at
    cdef const uint8_t* end
    props_read(body.properties, body.properties_length, &props)
    if props.of[PRIORITY].at != NULL:
        asked.priority = props.of[PRIORITY].at[0]
    if props.of[EXPIRATION].at != NULL and read_number(props.of[EXPIRATION].at, props.of[EXPIRATION].n, &number):
        asked.has_lifetime = 1
        asked.lifetime_ms = <int64_t>number
    at = props.of[HEADERS].at
    end = at + props.of[HEADERS].n
    while at != NULL and next_entry(&at, end, &e):
        if e.kind == c"S" and is_key(e.name, e.name_length, b"partition-key", 13):
            asked.key = e.value
            asked.key_length = e.size
        elif e.kind == c"S" and is_key(e.name, e.name_length, b"producer-id", 11):
            asked.producer = e.value
            asked.producer_length = e.size
        elif is_key(e.name, e.name_length, b"producer-sequence", 17):
            asked.has_sequence = number_of(&e, &asked.sequence)
        elif is_key(e.name, e.name_length, b"x-delay", 7):
            if number_of(&e, &number):
                asked.not_before = node.steady_ms + <int64_t>number if number else 0
        elif is_key(e.name, e.name_length, b"not-before", 10):
            if number_of(&e, &number):
                asked.not_before = steady_of(node, <int64_t>number)
    return 0
