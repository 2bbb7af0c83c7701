# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""What the broker reads of messages; each format's names for it. See envelope/envelope.pxd."""
cimport cython
from libc.stdint cimport uint16_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memset, strlen

from fluxmq._core.amqp091.edit import with_headers

from fluxmq._core.amqp091.names cimport (
    CONTENT_TYPE, COUNT, DELIVERY_MODE, EXPIRATION, HEADERS, MQTT_CONTENT_TYPE, MQTT_CORRELATION_DATA,
    MQTT_PAYLOAD_FORMAT, MQTT_RESPONSE_TOPIC, MQTT_USER_PROPERTY, NAMES, PRIORITY, TIMESTAMP, props_read,
)
from fluxmq._core.amqp091.topics cimport split_address, topic_of
from fluxmq._core.amqp091.values cimport entry_t, next_entry, read_integer, room_more, value_text
from fluxmq._core.memory.message cimport FORMAT_AMQP091
from fluxmq._core.mqtt.consts cimport REASON_IMPLEMENTATION_SPECIFIC_ERROR
from fluxmq._core.wire.primitives cimport Cursor, take_bytes16, take_u8
from fluxmq._core.wire.sizes cimport fit_u32, fit_u8

__all__ = ["Envelope", "FORMAT_AMQP091", "FORMAT_MQTT"]

globals().update(FORMAT_MQTT=FORMAT_MQTT, FORMAT_AMQP091=FORMAT_AMQP091)

cdef enum:
    EXPIRY = 0x02
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


cdef int read_options(const body_t* body, const node_t* node, options_t* options) noexcept nogil:
    memset(options, 0, sizeof(options_t))
    return read_amqp(body, node, options) if body.format == FORMAT_AMQP091 else read_mqtt(body, node, options)


cdef int read_mqtt(const body_t* body, const node_t* node, options_t* options) noexcept nogil:
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
        if identifier != MQTT_USER_PROPERTY:
            skip = property_bytes(identifier)
            if skip:
                c.at += skip
            elif not take_bytes16(&c, &key, &n):
                return BAD
            continue
        if not take_bytes16(&c, &key, &n) or not take_bytes16(&c, &value, &m):
            return BAD
        if is_key(key, n, b"partition-key", 13):
            options.key = value
            options.key_length = m
        elif is_key(key, n, b"producer-id", 11):
            options.producer = value
            options.producer_length = m
        elif is_key(key, n, b"producer-sequence", 17):
            if not read_number(value, m, &options.sequence):
                return BAD
            options.has_sequence = 1
        elif is_key(key, n, b"priority", 8) or is_key(key, n, b"amqp-priority", 13):
            if not read_number(value, m, &number) or number > 255:
                return BAD
            options.priority = fit_u8(number)
        elif is_key(key, n, b"x-delay", 7):
            if not read_number(value, m, &number):
                return BAD
            options.not_before = node.steady_ms + <int64_t>number if number else 0
        elif is_key(key, n, b"not-before", 10):
            if not read_number(value, m, &number):
                return BAD
            options.not_before = steady_of(node, <int64_t>number)
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


cdef int read_amqp(const body_t* body, const node_t* node, options_t* options) noexcept nogil:
    cdef props_t props
    cdef entry_t e
    cdef uint64_t number = 0
    cdef const uint8_t* at
    cdef const uint8_t* end
    props_read(body.properties, body.properties_length, &props)
    if props.of[PRIORITY].at != NULL:
        options.priority = props.of[PRIORITY].at[0]
    if props.of[EXPIRATION].at != NULL and read_number(props.of[EXPIRATION].at, props.of[EXPIRATION].n, &number):
        options.has_lifetime = 1
        options.lifetime_ms = <int64_t>number
    at = props.of[HEADERS].at
    end = at + props.of[HEADERS].n
    while at != NULL and next_entry(&at, end, &e):
        if e.kind == c"S" and is_key(e.name, e.name_length, b"partition-key", 13):
            options.key = e.value
            options.key_length = e.size
        elif e.kind == c"S" and is_key(e.name, e.name_length, b"producer-id", 11):
            options.producer = e.value
            options.producer_length = e.size
        elif is_key(e.name, e.name_length, b"producer-sequence", 17):
            options.has_sequence = number_of(&e, &options.sequence)
        elif is_key(e.name, e.name_length, b"x-delay", 7):
            if number_of(&e, &number):
                options.not_before = node.steady_ms + <int64_t>number if number else 0
        elif is_key(e.name, e.name_length, b"not-before", 10):
            if number_of(&e, &number):
                options.not_before = steady_of(node, <int64_t>number)
    return 0


# ---------------------------------------------------------------- topic, format

FORMAT_NAMES[:] = [b"mqtt", b"amqp091"]       # by FORMAT_*


cdef void foreign_topic(body_t* body, uint8_t* room) noexcept nogil:
    body.topic_length = topic_of(body.topic, body.topic_length, room)
    body.topic = room


# ---------------------------------------------------------------- properties, one after the other

cdef room_t text_room               # text made of the value of the field that was read last


cdef void fields_of(const body_t* body, fields_t* fields) noexcept nogil:
    memset(fields, 0, sizeof(fields_t))
    fields.format = body.format
    fields.malformed = -1
    if body.format == FORMAT_MQTT:
        fields.at = body.properties
        fields.end = fields.at + body.properties_length
        return
    fields.next = -2
    split_address(body.topic, body.topic_length, &fields.exchange, &fields.routing_key)
    props_read(body.properties, body.properties_length, &fields.props)
    fields.at = fields.props.of[HEADERS].at
    fields.end = fields.at + fields.props.of[HEADERS].n


cdef bint next_field(fields_t* fields, field_t* field) except -1:
    memset(field, 0, sizeof(field_t))
    return next_of_mqtt(fields, field) if fields.format == FORMAT_MQTT else next_of_amqp(fields, field)


cdef inline void name_field(field_t* field, uint8_t key, const char* name, const uint8_t* value, size_t n) noexcept:
    field.key = key
    field.name = <const uint8_t*>name
    field.name_length = <uint32_t>strlen(name)
    field.value = value
    field.length = fit_u32(n)


cdef bint next_of_mqtt(fields_t* fields, field_t* field) except -1:
    """They were validated when they came."""
    cdef const uint8_t* at = fields.at
    cdef const uint8_t* value
    cdef size_t length
    cdef uint8_t identifier
    field.is_text = 1
    while at < fields.end and at[0] == EXPIRY and fields.end - at >= 5:
        at += 5
    fields.at = at
    if at >= fields.end:
        return 0
    identifier = at[0]
    at += 1
    if identifier == MQTT_PAYLOAD_FORMAT and at < fields.end:
        name_field(field, KEY_OTHER, b"payload-format-indicator", NULL, 0)
        field.is_number = 1
        field.number = at[0]
        fields.at = at + 1
        return 1
    if identifier not in (MQTT_CONTENT_TYPE, MQTT_RESPONSE_TOPIC, MQTT_CORRELATION_DATA, MQTT_USER_PROPERTY) \
            or fields.end - at < 2:
        fields.malformed = identifier
        return 0
    length = at[0] << 8 | at[1]
    value = at + 2
    at = value + length
    fields.malformed = -2
    if <size_t>(fields.end - value) < length:
        return 0
    if identifier == MQTT_USER_PROPERTY:
        field.name = value
        field.name_length = fit_u32(length)
        if fields.end - at < 2:
            return 0
        length = at[0] << 8 | at[1]
        value = at + 2
        if <size_t>(fields.end - value) < length:
            return 0
        at = value + length
        field.value = value
        field.length = fit_u32(length)
    elif identifier == MQTT_CONTENT_TYPE:
        name_field(field, KEY_CONTENT_TYPE, b"content-type", value, length)
    elif identifier == MQTT_RESPONSE_TOPIC:
        name_field(field, KEY_OTHER, b"response-topic", value, length)
    else:
        hexed(value, length)
        name_field(field, KEY_OTHER, b"correlation-data", text_room.data, 2 * length)
    fields.malformed = -1
    fields.at = at
    return 1


cdef int hexed(const uint8_t* at, size_t n) except -1:
    cdef size_t i
    text_room.used = 0
    room_more(&text_room, 2 * n + 1)
    for i in range(n):
        snprintf(<char*>text_room.data + 2 * i, 3, b"%02x", at[i])
    return 0


cdef bint next_of_amqp(fields_t* fields, field_t* field) except -1:
    cdef entry_t entry
    cdef char[3] code
    cdef uint32_t i
    cdef int number = fields.next
    fields.next += 1
    if number == -2:
        name_field(field, KEY_OTHER, b"exchange", fields.exchange.at, fields.exchange.n)
        return 1
    if number == -1:
        name_field(field, KEY_OTHER, b"routing-key", fields.routing_key.at, fields.routing_key.n)
        return 1
    while number < COUNT and (number == HEADERS or fields.props.of[number].at == NULL):
        number += 1
    fields.next = number + 1
    if number < COUNT:
        name_field(field, KEY_CONTENT_TYPE if number == CONTENT_TYPE else
                   KEY_PRIORITY if number == PRIORITY else KEY_OTHER,
                   NAMES[number] + 5, fields.props.of[number].at, fields.props.of[number].n)     # without `amqp-`
        if number == DELIVERY_MODE or number == PRIORITY or number == TIMESTAMP:
            field.is_number = 1
            for i in range(field.length):
                field.number = field.number << 8 | field.value[i]
        return 1
    if fields.at == NULL or not next_entry(&fields.at, fields.end, &entry):
        return 0
    text_room.used = 0
    room_more(&text_room, 1)
    value_text(&text_room, &entry, code)
    field.name = entry.name
    field.name_length = entry.name_length
    field.value = text_room.data
    field.length = fit_u32(text_room.used)
    return 1


# ---------------------------------------------------------------- as MQTT has it

# One per process: what a converter makes is copied before the next message is.
cdef room_t converted
cdef uint8_t[TOPIC_ROOM] topic_room


cdef int convert_to_mqtt(body_t* body, bint v5) except -1:
    cdef body_t given = body[0]
    cdef uint8_t qos
    cdef bint retain
    if v5:
        return converters[body.format](&given, &converted, body, &qos, &retain)
    foreign_topic(body, topic_room)
    return 0


# ---------------------------------------------------------------- for the cold half

cdef node_t NO_CLOCK                # of whoever does not ask about time


@cython.final
cdef class Envelope:
    """Value. A message's format, its topic or address, and its properties. Headers are what FORMAT_MQTT calls user
    properties; of other formats their values are text."""

    def __init__(self, int format, bytes topic not None, bytes properties not None):
        self.format = format
        self.topic = topic
        self.properties = properties

    cdef body_t body(self) noexcept:
        cdef body_t body
        memset(&body, 0, sizeof(body))
        body.format = <uint8_t>self.format
        body.topic = <const uint8_t*><const char*>self.topic
        body.topic_length = <uint32_t>len(self.topic)
        body.properties = <const uint8_t*><const char*>self.properties
        body.properties_length = <uint32_t>len(self.properties)
        return body

    def headers(self) -> list[tuple[bytes, bytes]]:
        """(name, value) of each, in order."""
        cdef body_t body = self.body()
        cdef fields_t fields
        cdef field_t field
        found = []
        fields_of(&body, &fields)
        while next_field(&fields, &field):
            if field.key == KEY_HEADER:
                found.append(((<const char*>field.name)[:field.name_length],
                              (<const char*>field.value)[:field.length]))
        return found

    def get(self, bytes name not None, bytes default=None) -> bytes | None:
        """The last header of that name: a publisher may have said anything before the broker did."""
        return dict(self.headers()).get(name, default)

    def named(self) -> dict[str, str | int]:
        """All but headers, by their names with dashes. What is no UTF-8 is shown as well as it can be."""
        cdef body_t body = self.body()
        cdef fields_t fields
        cdef field_t field
        found = {}
        fields_of(&body, &fields)
        while next_field(&fields, &field):
            if field.key != KEY_HEADER:
                found[(<const char*>field.name)[:field.name_length].decode()] = (
                    field.number if field.is_number else
                    (<const char*>field.value)[:field.length].decode("utf-8", "backslashreplace"))
        return found

    def topic_name(self) -> bytes:
        """The topic; b"": it has none."""
        cdef body_t body = self.body()
        cdef uint8_t[TOPIC_ROOM] room
        read_topic(&body, room)
        return (<const char*>body.topic)[:body.topic_length]

    def moved_to(self, bytes topic not None) -> bytes:
        """Its topic in a queue to which the broker moves it. An address of AMQP stays: it says where a message was
        published, and names no queue."""
        return topic if self.format == FORMAT_MQTT else self.topic

    def priority(self) -> int:
        """As its publisher asked; 0: it did not."""
        cdef body_t body = self.body()
        cdef options_t options
        read_options(&body, &NO_CLOCK, &options)
        return options.priority

    def partition_key(self) -> bytes:
        """As its publisher asked; b"": it did not."""
        cdef body_t body = self.body()
        cdef options_t options
        read_options(&body, &NO_CLOCK, &options)
        return (<const char*>options.key)[:options.key_length] if options.key != NULL else b""

    def with_headers(self, list pairs not None, bytes without=b"") -> bytes:
        """The properties with these headers behind their own, and without those whose names begin with `without`.

        pairs: (name, value), bytes; of AMQP names have at most 255."""
        cdef body_t body
        cdef fields_t fields
        cdef field_t field
        cdef const uint8_t* start
        if self.format == FORMAT_AMQP091:
            return with_headers(self.properties, pairs, without)
        body = self.body()
        kept = []
        fields_of(&body, &fields)
        start = fields.at
        while next_field(&fields, &field):
            if not without or field.key != KEY_HEADER or not (
                    (<const char*>field.name)[:field.name_length].startswith(without)):
                kept.append((<const char*>start)[:fields.at - start])
            start = fields.at
        kept.append((<const char*>start)[:fields.end - start])
        for name, value in pairs:
            name, value = name[:65535], value[:65535]
            kept.append(b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value)
        return b"".join(kept)
