# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Converts messages of AMQP 0-9-1 to MQTT 5. bridge/translate.pxd has the rules, docs/interop.md the table."""
from binascii import b2a_base64

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, memset, strlen

from fluxmq._core.amqp091.names cimport (
    CONTENT_TYPE, CORRELATION_ID, COUNT, DELIVERY_MODE, EXPIRATION, HEADERS, MARK_CONTENT_TYPE, MARK_CORRELATION,
    MARK_PAYLOAD_FORMAT, MARK_RESPONSE_TOPIC, MARK_RETAIN, MARK_TOPIC, MARK_USERS, MQTT_CONTENT_TYPE,
    MQTT_CORRELATION_DATA, MQTT_PAYLOAD_FORMAT, MQTT_RESPONSE_TOPIC, MQTT_USER_PROPERTY, NAMES, PRIORITY, REPLY_TO,
    STRING_MAX, TIMESTAMP, begins, is_ours, named, props_read, props_t,
)
from fluxmq._core.amqp091.topics cimport (
    ADDRESS_BYTES_MAX, SHORTSTR_MAX, TOPIC_BYTES_MAX, address_of_topic, reply_topic, slice_t, split_address, topic_of,
)
from fluxmq._core.amqp091.values cimport (
    entry_t, next_entry, next_item, put_entry, read_decimal, room_more, room_put, value_text,
)
from fluxmq._core.envelope.envelope cimport converters
from fluxmq._core.memory.message cimport FORMAT_AMQP091, FORMAT_MQTT
from fluxmq._core.wire.primitives cimport peek_u32, put_bytes16, put_u8, put_u16
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32
from fluxmq._core.wire.text cimport TEXT_OK, text_valid, topic_valid

cdef enum:
    PIECE_BYTES = 49149         # of an entry, in 65 532 characters of base64
    NUMBER_BYTES = 24
    LIFETIME_MS_MAX = 0xFFFFFFFF

cdef struct mqtt_headers_t:     # headers with values from MQTT; name NULL: there is none
    entry_t topic
    entry_t content_type
    entry_t response_topic
    entry_t correlation
    entry_t payload_format
    entry_t users
    entry_t retain


cdef void read_mqtt_hints(const body_t* amqp, mqtt_hints_t* hints) noexcept nogil:
    cdef props_t props
    cdef entry_t entry
    cdef const uint8_t* at
    cdef uint64_t lifetime = 0
    props_read(amqp.properties, amqp.properties_length, &props)
    hints.qos = props.of[DELIVERY_MODE].at != NULL and props.of[DELIVERY_MODE].at[0] == 2
    hints.retain = 0
    hints.lifetime_ms = -1
    if props.of[EXPIRATION].at != NULL and read_decimal(props.of[EXPIRATION].at, props.of[EXPIRATION].n,
                                                        LIFETIME_MS_MAX, &lifetime):
        hints.lifetime_ms = <int64_t>lifetime
    at = props.of[HEADERS].at
    while at != NULL and next_entry(&at, props.of[HEADERS].at + props.of[HEADERS].n, &entry):
        if entry.kind == c"t" and named(entry.name, entry.name_length, MARK_RETAIN):
            hints.retain = entry.value[0] != 0


cdef bint is_pairs(const entry_t* mark) noexcept nogil:
    """Whether x-mqtt-user-properties has a form that MQTT can represent."""
    cdef const uint8_t* at = mark.value
    cdef entry_t item
    cdef uint32_t count = 0
    while next_item(&at, mark.value + mark.size, &item):
        if item.kind != c"S" or item.size > STRING_MAX or not text_valid(item.value, item.size):
            return 0
        count += 1
    return at == mark.value + mark.size and count % 2 == 0


cdef void find_mqtt_headers(const body_t* amqp, const props_t* props, mqtt_headers_t* known) noexcept nogil:
    """Finds headers that still fit the message: a client may have copied them from another one."""
    cdef const uint8_t* at = props.of[HEADERS].at
    cdef const uint8_t* end = at + props.of[HEADERS].n
    cdef uint8_t[ADDRESS_BYTES_MAX] address
    cdef entry_t e
    cdef bint text
    memset(known, 0, sizeof(mqtt_headers_t))
    while at != NULL and next_entry(&at, end, &e):
        if not begins(e.name, e.name_length, b"x-mqtt-"):
            continue
        text = e.kind == c"S" and e.size <= STRING_MAX and text_valid(e.value, e.size)
        if text and named(e.name, e.name_length, MARK_TOPIC):
            if (topic_valid(e.value, e.size, 0) == TEXT_OK and e.size > SHORTSTR_MAX
                    and address_of_topic(e.value, e.size, address) == amqp.topic_length
                    and memcmp(address, amqp.topic, amqp.topic_length) == 0):
                known.topic = e
        elif text and named(e.name, e.name_length, MARK_CONTENT_TYPE):
            if props.of[CONTENT_TYPE].at == NULL:
                known.content_type = e
        elif text and named(e.name, e.name_length, MARK_RESPONSE_TOPIC):
            if props.of[REPLY_TO].at == NULL and topic_valid(e.value, e.size, 0) == TEXT_OK:
                known.response_topic = e
        elif e.kind == c"x" and e.size <= STRING_MAX and named(e.name, e.name_length, MARK_CORRELATION):
            if props.of[CORRELATION_ID].at == NULL:
                known.correlation = e
        elif e.kind == c"I" and peek_u32(e.value) <= 1 and named(e.name, e.name_length, MARK_PAYLOAD_FORMAT):
            known.payload_format = e
        elif e.kind == c"A" and named(e.name, e.name_length, MARK_USERS):
            if is_pairs(&e):
                known.users = e
        elif e.kind == c"t" and named(e.name, e.name_length, MARK_RETAIN):
            known.retain = e


cdef inline bint is_mqtt_header(const mqtt_headers_t* known, const entry_t* e) noexcept nogil:
    cdef const uint8_t* name = e.name
    return (name == known.topic.name or name == known.content_type.name or name == known.response_topic.name
            or name == known.correlation.name or name == known.payload_format.name or name == known.users.name
            or name == known.retain.name)



cdef inline int put_string(room_t* out, uint8_t identifier, const void* text, uint32_t n) except -1:
    cdef uint8_t* at = room_more(out, 3 + <size_t>n)
    put_bytes16(put_u8(at, identifier), text, <unsigned short>n)
    out.used += 3 + <size_t>n
    return 0


cdef inline int put_user(room_t* out, const void* name, uint32_t n, const void* value, uint32_t m) except -1:
    cdef uint8_t* at = room_more(out, 5 + <size_t>n + m)
    put_bytes16(put_bytes16(put_u8(at, MQTT_USER_PROPERTY), name, <unsigned short>n), value, <unsigned short>m)
    out.used += 5 + <size_t>n + m
    return 0


cdef int put_text(room_t* out, const char* name, const slice_t* value) except -1:
    """Writes a short string under its name, or, if MQTT cannot carry it, in base64 under its name and `64`."""
    cdef bytes text, encoded
    if text_valid(value.at, value.n):
        return put_user(out, name, <uint32_t>strlen(name), value.at, value.n)
    text = b2a_base64((<const char*>value.at)[:value.n], newline=False)
    encoded = name + b"64"
    return put_user(out, <const char*>encoded, <uint32_t>len(encoded), <const char*>text, <uint32_t>len(text))


cdef int put_number(room_t* out, const char* name, const slice_t* value) except -1:
    cdef char[NUMBER_BYTES] text
    cdef unsigned long long number = 0
    cdef uint32_t i
    for i in range(value.n):
        number = number << 8 | value.at[i]
    snprintf(text, NUMBER_BYTES, b"%llu", number)
    return put_user(out, name, <uint32_t>strlen(name), text, <uint32_t>strlen(text))


cdef bint lists(const mqtt_headers_t* known, const uint8_t* name, uint32_t n) noexcept nogil:
    """Whether x-mqtt-user-properties contains this name."""
    cdef const uint8_t* at = known.users.value
    cdef entry_t item
    cdef bint is_name = 1
    while known.users.name != NULL and next_item(&at, known.users.value + known.users.size, &item):
        if is_name and item.size == n and memcmp(item.value, name, n) == 0:
            return 1
        is_name = not is_name
    return 0


cdef int put_address(room_t* out, const body_t* amqp, const uint8_t* topic, uint32_t length) except -1:
    """Writes what the topic does not contain of exchange and routing key."""
    cdef slice_t exchange
    cdef slice_t key
    cdef uint8_t[ADDRESS_BYTES_MAX] address
    if not split_address(amqp.topic, amqp.topic_length, &exchange, &key):
        return 0
    if (length and address_of_topic(topic, length, address) == amqp.topic_length
            and memcmp(address, amqp.topic, amqp.topic_length) == 0):
        return 0
    put_text(out, b"amqp-exchange", &exchange)
    return 0 if length else put_text(out, b"amqp-routing-key", &key)


cdef int put_properties(room_t* out, const body_t* amqp, const props_t* props, const mqtt_headers_t* known) except -1:
    """Writes user properties for what MQTT has no property for."""
    cdef uint8_t[TOPIC_BYTES_MAX] reply
    cdef const slice_t* value
    cdef bytes name64
    cdef uint32_t n
    cdef int i
    for i in range(COUNT):
        value = &props.of[i]
        if value.at == NULL or i == HEADERS:
            continue
        if (i == CONTENT_TYPE or i == CORRELATION_ID) and text_valid(value.at, value.n):
            continue
        if i == REPLY_TO and reply_topic(value, reply):
            continue
        if i == EXPIRATION and amqp.expires_at:
            continue
        if i == DELIVERY_MODE and value.at[0] == 2:
            continue                    # given by the QoS
        if known.users.name != NULL:
            n = <uint32_t>strlen(NAMES[i])
            name64 = NAMES[i] + b"64"
            if (lists(known, <const uint8_t*>NAMES[i], n)
                    or lists(known, <const uint8_t*><const char*>name64, n + 2)):
                continue
        if i == DELIVERY_MODE or i == PRIORITY or i == TIMESTAMP:
            put_number(out, NAMES[i], value)
        else:
            put_text(out, NAMES[i], value)
    return 0


cdef int put_header(room_t* out, const entry_t* e) except -1:
    """Writes one header: its text and its type code, or all of it in base64."""
    cdef size_t start = out.used
    cdef char[3] code
    cdef char[8 + 256] name
    cdef size_t n
    cdef int code_length
    if text_valid(e.name, e.name_length) and not is_ours(e.name, e.name_length):
        n = 5 + <size_t>e.name_length
        put_bytes16(put_u8(room_more(out, n), MQTT_USER_PROPERTY), e.name, e.name_length)
        out.used += n
        code_length = value_text(out, e, code)
        n = out.used - start - n
        if n <= STRING_MAX:
            put_u16(out.data + start + 3 + e.name_length, fit_u16(n))
            if code_length:
                memcpy(name, b"amqp-is:", 8)
                memcpy(name + 8, e.name, e.name_length)
                put_user(out, name, 8 + <uint32_t>e.name_length, code, code_length)
            return 0
        out.used = start
    return put_pieces(out, e)


cdef int put_pieces(room_t* out, const entry_t* e) except -1:
    cdef size_t start = out.used
    cdef size_t at = 0
    cdef bytes entry, text
    put_entry(out, e)
    entry = (<const char*>out.data + start)[:out.used - start]
    out.used = start
    while at < <size_t>len(entry):
        text = b2a_base64(entry[at:at + PIECE_BYTES], newline=False)
        at += PIECE_BYTES
        put_user(out, b"amqp-header64+", 14 if at < <size_t>len(entry) else 13, <const char*>text, <uint32_t>len(text))
    return 0


cdef int put_headers(room_t* out, const props_t* props, const mqtt_headers_t* known) except -1:
    cdef const uint8_t* at = props.of[HEADERS].at
    cdef const uint8_t* end = at + props.of[HEADERS].n
    cdef entry_t e
    cdef bint listed = known.users.name != NULL
    while at != NULL and next_entry(&at, end, &e):
        if e.name == known.users.name:
            listed = 0                  # entries behind it were added later
        elif is_mqtt_header(known, &e) or listed or lists(known, e.name, e.name_length):
            continue
        else:
            put_header(out, &e)
    return 0


cdef int put_list(room_t* out, const mqtt_headers_t* known) except -1:
    cdef const uint8_t* at = known.users.value
    cdef entry_t name
    cdef entry_t value
    while (known.users.name != NULL and next_item(&at, known.users.value + known.users.size, &name)
           and next_item(&at, known.users.value + known.users.size, &value)):
        put_user(out, name.value, name.size, value.value, value.size)
    return 0


cdef int to_mqtt(const body_t* amqp, room_t* room, body_t* mqtt, uint8_t* qos, bint* retain) except -1:
    cdef props_t props
    cdef mqtt_headers_t known
    cdef uint8_t[TOPIC_BYTES_MAX] topic
    cdef uint8_t* format
    cdef const slice_t* value
    cdef uint32_t n
    cdef uint32_t length = topic_of(amqp.topic, amqp.topic_length, topic)
    room.used = 0
    props_read(amqp.properties, amqp.properties_length, &props)
    find_mqtt_headers(amqp, &props, &known)
    if known.topic.name != NULL:
        room_put(room, known.topic.value, known.topic.size)
        length = known.topic.size
    else:
        room_put(room, topic, length)
    if known.payload_format.name != NULL:
        format = room_more(room, 2)
        format[0] = MQTT_PAYLOAD_FORMAT
        format[1] = known.payload_format.value[3]
        room.used += 2
    value = &props.of[CONTENT_TYPE]
    if known.content_type.name != NULL:
        put_string(room, MQTT_CONTENT_TYPE, known.content_type.value, known.content_type.size)
    elif value.at != NULL and text_valid(value.at, value.n):
        put_string(room, MQTT_CONTENT_TYPE, value.at, value.n)
    value = &props.of[REPLY_TO]
    if known.response_topic.name != NULL:
        put_string(room, MQTT_RESPONSE_TOPIC, known.response_topic.value, known.response_topic.size)
    elif value.at != NULL:
        n = reply_topic(value, topic)
        if n:
            put_string(room, MQTT_RESPONSE_TOPIC, topic, n)
    value = &props.of[CORRELATION_ID]
    if known.correlation.name != NULL:
        put_string(room, MQTT_CORRELATION_DATA, known.correlation.value, known.correlation.size)
    elif value.at != NULL:
        put_string(room, MQTT_CORRELATION_DATA, value.at, value.n)
    if known.users.name != NULL:
        put_list(room, &known)
    memcpy(topic, room.data, length if length < TOPIC_BYTES_MAX else TOPIC_BYTES_MAX)
    if known.topic.name == NULL:
        put_address(room, amqp, topic, length)
    put_properties(room, amqp, &props, &known)
    put_headers(room, &props, &known)
    mqtt[0] = amqp[0]
    mqtt.format = FORMAT_MQTT
    mqtt.topic = room.data
    mqtt.topic_length = length
    mqtt.properties = room.data + length
    mqtt.properties_length = fit_u32(room.used - length)
    qos[0] = props.of[DELIVERY_MODE].at != NULL and props.of[DELIVERY_MODE].at[0] == 2
    retain[0] = known.retain.name != NULL and known.retain.value[0] != 0
    return 0


converters[FORMAT_AMQP091] = to_mqtt
