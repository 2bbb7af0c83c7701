# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Converts messages of MQTT 5 to AMQP 0-9-1, and in both directions for Python. See bridge/translate.pxd.

The conversion back must give the original message. That is tested for each message with user properties that have a
meaning here: if the result differs, x-mqtt-user-properties is added.
"""
from binascii import a2b_base64

from libc.stdint cimport uint16_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, memset, strlen

from fluxmq._core.amqp091.names cimport (
    CONTENT_TYPE, CORRELATION_ID, COUNT, DELIVERY_MODE, EXPIRATION, HEADERS, MARK_CONTENT_TYPE, MARK_CORRELATION,
    MARK_PAYLOAD_FORMAT, MARK_RESPONSE_TOPIC, MARK_TOPIC, MARK_USERS, MQTT_CONTENT_TYPE, MQTT_CORRELATION_DATA,
    MQTT_PAYLOAD_FORMAT, MQTT_RESPONSE_TOPIC, MQTT_USER_PROPERTY, PRIORITY, REPLY_TO, TIMESTAMP, begins, is_ours, named,
    property_of, props_t,
)
from fluxmq._core.amqp091.topics cimport (
    ADDRESS_BYTES_MAX, SHORTSTR_MAX, TOPIC_BYTES_MAX, address_of_topic, is_queue, reply_address, reply_topic, same,
    slice_t,
)
from fluxmq._core.amqp091.values cimport (
    entry_t, entry_valid, put_entry, read_decimal, room_free, room_more, room_put, text_value,
)
from fluxmq._core.bridge.to_mqtt cimport to_mqtt
from fluxmq._core.memory.message cimport FORMAT_AMQP091, FORMAT_MQTT
from fluxmq._core.wire.primitives cimport Cursor, put_u8, put_u16, put_u32, put_u64, take_bytes16, take_u8
from fluxmq._core.wire.sizes cimport fit_u32, fit_u8
from fluxmq._core.wire.text cimport text_valid

__all__ = ["amqp_to_mqtt", "mqtt_to_amqp"]

cdef enum:
    NAMES_MAX = 64              # up to this number of headers, names are compared one by one; beyond, by a set
    NUMBER_BYTES = 24

cdef struct mqtt_t:             # of a PUBLISH
    slice_t payload_format
    slice_t content_type
    slice_t response_topic
    slice_t correlation
    uint32_t users
    bint ours                   # a user property has a meaning here
    bint listed                 # headers cannot represent all of them

cdef room_t trial               # for the conversion back, while to_amqp tests it


cdef bint next_user(Cursor* c, slice_t* name, slice_t* value) noexcept nogil:
    """Finds the next user property, skipping other properties. 0: there is none."""
    cdef uint8_t identifier = 0
    cdef uint16_t n = 0
    cdef uint16_t m = 0
    while take_u8(c, &identifier):
        if identifier == MQTT_PAYLOAD_FORMAT and c.at < c.end:
            c.at += 1
        elif not take_bytes16(c, &name.at, &n):
            return 0
        elif identifier == MQTT_USER_PROPERTY:
            name.n = n
            if not take_bytes16(c, &value.at, &m):
                return 0
            value.n = m
            return 1
    return 0


cdef inline Cursor cursor_of(const body_t* mqtt) noexcept nogil:
    cdef Cursor c
    c.at = mqtt.properties
    c.end = c.at + mqtt.properties_length
    return c


cdef int mqtt_read(const body_t* mqtt, mqtt_t* out) except -1:
    """Reads the properties of a PUBLISH, which were validated on receipt."""
    cdef Cursor c = cursor_of(mqtt)
    cdef Cursor users = c
    cdef uint8_t identifier = 0
    cdef slice_t name
    cdef slice_t* target
    cdef uint16_t n = 0
    memset(out, 0, sizeof(mqtt_t))
    while take_u8(&c, &identifier):
        if identifier == MQTT_PAYLOAD_FORMAT and c.at < c.end:
            out.payload_format.at = c.at
            c.at += 1
            continue
        if not take_bytes16(&c, &name.at, &n):
            break
        if identifier == MQTT_USER_PROPERTY:
            if not take_bytes16(&c, &name.at, &n):
                break
            out.users += 1
        target = (&out.content_type if identifier == MQTT_CONTENT_TYPE else
                  &out.response_topic if identifier == MQTT_RESPONSE_TOPIC else
                  &out.correlation if identifier == MQTT_CORRELATION_DATA else NULL)
        if target != NULL:
            target.at = name.at
            target.n = n
    return read_names(users, out) if out.users else 0


cdef int read_names(Cursor c, mqtt_t* out) except -1:
    """Checks whether headers can represent the user properties unchanged."""
    cdef slice_t name
    cdef slice_t value
    cdef slice_t[NAMES_MAX] seen
    cdef uint32_t count = 0
    cdef uint32_t i
    cdef set more = set() if out.users > NAMES_MAX else None
    while next_user(&c, &name, &value):
        if is_ours(name.at, name.n):
            out.ours = 1
            # the parts of one entry have one name
            out.listed = out.listed or name.at[0] == c"x"
            if begins(name.at, name.n, b"amqp-header64"):
                continue
        out.listed = out.listed or name.n == 0 or name.n > SHORTSTR_MAX
        if more is not None:
            more.add((<const char*>name.at)[:name.n])
        else:
            for i in range(count):
                if same(&seen[i], &name):
                    out.listed = 1
                    break
            seen[count] = name
        count += 1
    if more is not None and <uint32_t>len(more) != count:
        out.listed = 1
    return 0


cdef bytes base64_of(const slice_t* text):
    try:
        return a2b_base64((<const char*>text.at)[:text.n], strict_mode=True)
    except ValueError:
        return None


cdef bint take_property(const body_t* mqtt, const mqtt_t* read, int number, bint encoded, const slice_t* value,
                        uint8_t* numbers, props_t* props, list kept) except -1:
    """Reads a user property that is a property of AMQP. 0: its value is not valid for that, so it stays a user
    property."""
    cdef uint64_t n = 0
    cdef bytes raw
    cdef slice_t found = value[0]
    cdef uint8_t[TOPIC_BYTES_MAX] reply
    if props.of[number].at != NULL and number != CORRELATION_ID:
        return 0
    if number == DELIVERY_MODE or number == PRIORITY:
        if not read_decimal(value.at, value.n, 255, &n):
            return 0
        numbers[number] = fit_u8(n)
        props.of[number].at = &numbers[number]
        props.of[number].n = 1
        return 1
    if number == TIMESTAMP:
        if not read_decimal(value.at, value.n, 0xFFFFFFFFFFFFFFFF, &n):
            return 0
        put_u64(numbers + 16, n)
        props.of[TIMESTAMP].at = numbers + 16
        props.of[TIMESTAMP].n = 8
        return 1
    if encoded:
        raw = base64_of(value)
        if raw is None:
            return 0
        found.at = <const uint8_t*><const char*>raw
        found.n = <uint32_t>len(raw)
        if text_valid(found.at, found.n):
            return 0
        kept.append(raw)
    if (found.n > SHORTSTR_MAX or (number == EXPIRATION and mqtt.expires_at)
            or (number == CONTENT_TYPE and read.content_type.at != NULL)
            or (number == REPLY_TO and (read.response_topic.at != NULL or reply_topic(&found, reply)))
            or (number == CORRELATION_ID and (read.correlation.at == NULL
                                              or not same(&read.correlation, &found)))):
        return 0
    props.of[number] = found
    return 1


cdef int take_properties(const body_t* mqtt, const mqtt_t* read, uint8_t* numbers, props_t* props, list kept) except -1:
    cdef Cursor c = cursor_of(mqtt)
    cdef slice_t name
    cdef slice_t value
    cdef bint encoded = 0
    cdef int number
    while next_user(&c, &name, &value):
        number = property_of(name.at, name.n, &encoded)
        if number >= 0:
            take_property(mqtt, read, number, encoded, &value, numbers, props, kept)
    return 0


cdef inline int put_mark(room_t* out, const char* name, uint8_t kind, const void* value, uint32_t n) except -1:
    cdef entry_t e
    e.name = <const uint8_t*>name
    e.name_length = fit_u8(strlen(name))
    e.kind = kind
    e.value = <const uint8_t*>value
    e.size = n
    return put_entry(out, &e)


cdef int write_table(room_t* out, const body_t* mqtt, const mqtt_t* read, const props_t* props, bint listed) except -1:
    """Writes the headers without their length."""
    cdef uint8_t[4] number
    if mqtt.topic_length > SHORTSTR_MAX and not is_queue(mqtt.topic, mqtt.topic_length):
        put_mark(out, MARK_TOPIC, c"S", mqtt.topic, mqtt.topic_length)
    if read.payload_format.at != NULL:
        put_u32(number, read.payload_format.at[0])
        put_mark(out, MARK_PAYLOAD_FORMAT, c"I", number, 4)
    if read.content_type.at != NULL and props.of[CONTENT_TYPE].at == NULL:
        put_mark(out, MARK_CONTENT_TYPE, c"S", read.content_type.at, read.content_type.n)
    if read.response_topic.at != NULL and props.of[REPLY_TO].at == NULL:
        put_mark(out, MARK_RESPONSE_TOPIC, c"S", read.response_topic.at, read.response_topic.n)
    if read.correlation.at != NULL and props.of[CORRELATION_ID].at == NULL:
        put_mark(out, MARK_CORRELATION, c"x", read.correlation.at, read.correlation.n)
    if read.users:
        write_headers(out, mqtt, props, listed)
        if listed:
            write_list(out, mqtt)
    return 0


cdef bint is_taken(const props_t* props, const slice_t* name, const slice_t* value) except -1:
    """Whether a user property was converted to a property of AMQP, or repeats one that was."""
    cdef bint encoded = 0
    cdef int number = property_of(name.at, name.n, &encoded)
    cdef const slice_t* found
    if number < 0 or props.of[number].at == NULL:
        return 0
    found = &props.of[number]
    if number == DELIVERY_MODE or number == PRIORITY or number == TIMESTAMP:
        return 1
    return base64_of(value) == (<const char*>found.at)[:found.n] if encoded else found.at == value.at


cdef int write_headers(room_t* out, const body_t* mqtt, const props_t* props, bint listed) except -1:
    cdef Cursor c = cursor_of(mqtt)
    cdef Cursor ahead
    cdef slice_t name
    cdef slice_t value
    cdef slice_t next_name
    cdef slice_t code
    cdef slice_t[NAMES_MAX] seen
    cdef uint32_t count = 0
    cdef set more = set()
    cdef bytes pieces = b""
    cdef size_t start
    while next_user(&c, &name, &value):
        if begins(name.at, name.n, b"amqp-header64"):
            pieces = write_piece(out, &name, &value, pieces)
            continue
        if name.n == 0 or name.n > SHORTSTR_MAX or begins(name.at, name.n, b"x-mqtt-") or is_taken(props, &name,
                                                                                                   &value):
            continue
        if listed and is_repeated(&name, seen, &count, more):
            continue
        start = out.used
        room_put(out, &name.n, 1)           # little-endian: the low byte
        out.data[start] = fit_u8(name.n)
        room_put(out, name.at, name.n)
        ahead = c
        if (next_user(&ahead, &next_name, &code) and next_name.n == name.n + 8
                and begins(next_name.at, next_name.n, b"amqp-is:")
                and memcmp(next_name.at + 8, name.at, name.n) == 0
                and text_value(out, code.at, code.n, value.at, value.n)):
            c = ahead
            continue
        put_long(out, &value)
    return 0


cdef inline int put_long(room_t* out, const slice_t* value) except -1:
    cdef uint8_t* at = room_more(out, 5 + <size_t>value.n)
    at = put_u32(put_u8(at, c"S"), value.n)
    if value.n:
        memcpy(at, value.at, value.n)
    out.used += 5 + <size_t>value.n
    return 0


cdef bint is_repeated(const slice_t* name, slice_t* seen, uint32_t* count, set more) except -1:
    cdef uint32_t i
    cdef bytes text
    if count[0] < NAMES_MAX and not more:
        for i in range(count[0]):
            if same(&seen[i], name):
                return 1
        seen[count[0]] = name[0]
        count[0] += 1
        return 0
    if not more:
        for i in range(count[0]):
            more.add((<const char*>seen[i].at)[:seen[i].n])
    text = (<const char*>name.at)[:name.n]
    if text in more:
        return 1
    more.add(text)
    return 0


cdef bytes write_piece(room_t* out, const slice_t* name, const slice_t* value, bytes before):
    """Writes an entry when its last piece is there. Returns the pieces still waiting for it."""
    cdef bytes entry = base64_of(value)
    cdef const uint8_t* at
    if entry is None:
        return b""
    if before:
        entry = before + entry
    if named(name.at, name.n, b"amqp-header64+"):
        return entry
    at = <const uint8_t*><const char*>entry
    if entry_valid(at, at + len(entry)):
        room_put(out, at, len(entry))
    return b""


cdef int write_list(room_t* out, const body_t* mqtt) except -1:
    cdef Cursor c = cursor_of(mqtt)
    cdef slice_t name
    cdef slice_t value
    cdef size_t start
    put_mark(out, MARK_USERS, c"A", NULL, 0)
    start = out.used
    while next_user(&c, &name, &value):
        put_long(out, &name)
        put_long(out, &value)
    put_u32(out.data + start - 4, fit_u32(out.used - start))
    return 0


cdef int build(const body_t* mqtt, const mqtt_t* read, uint8_t qos, int64_t now_ms, room_t* room, body_t* amqp,
               bint listed) except -1:
    cdef props_t props
    cdef uint8_t[24] numbers            # by property; the timestamp follows them
    cdef uint8_t[TOPIC_BYTES_MAX] reply
    cdef char[NUMBER_BYTES] expiration
    cdef list kept = []
    cdef uint32_t address, flags, i
    cdef size_t start
    memset(&props, 0, sizeof(props))
    room.used = 0
    address = address_of_topic(mqtt.topic, mqtt.topic_length, room_more(room, ADDRESS_BYTES_MAX + 2))
    room.used = address + 2
    if read.content_type.at != NULL and read.content_type.n <= SHORTSTR_MAX:
        props.of[CONTENT_TYPE] = read.content_type
    if (read.correlation.at != NULL and read.correlation.n <= SHORTSTR_MAX
            and text_valid(read.correlation.at, read.correlation.n)):
        props.of[CORRELATION_ID] = read.correlation
    if read.response_topic.at != NULL:
        props.of[REPLY_TO].n = reply_address(&read.response_topic, reply)
        if props.of[REPLY_TO].n:
            props.of[REPLY_TO].at = reply
    if mqtt.expires_at:
        snprintf(expiration, NUMBER_BYTES, b"%lld",
                 <long long>(mqtt.expires_at - now_ms if mqtt.expires_at > now_ms else 0))
        props.of[EXPIRATION].at = <const uint8_t*>expiration
        props.of[EXPIRATION].n = <uint32_t>strlen(expiration)
    if read.ours:
        take_properties(mqtt, read, numbers, &props, kept)
    if props.of[DELIVERY_MODE].at == NULL and qos:
        numbers[DELIVERY_MODE] = 2
        props.of[DELIVERY_MODE].at = &numbers[DELIVERY_MODE]
        props.of[DELIVERY_MODE].n = 1
    flags = 0
    for i in range(<uint32_t>COUNT):
        if i == HEADERS:
            start = room.used
            room_more(room, 4)
            room.used += 4
            write_table(room, mqtt, read, &props, listed)
            if room.used == start + 4:
                room.used = start
                continue
            put_u32(room.data + start, fit_u32(room.used - start - 4))
        elif props.of[i].at == NULL:
            continue
        elif i == DELIVERY_MODE or i == PRIORITY or i == TIMESTAMP:
            room_put(room, props.of[i].at, props.of[i].n)
        else:
            numbers[0] = fit_u8(props.of[i].n)
            room_put(room, numbers, 1)
            room_put(room, props.of[i].at, props.of[i].n)
        flags |= 1 << (15 - i)
    put_u16(room.data + address, <uint16_t>flags)
    amqp[0] = mqtt[0]
    amqp.format = FORMAT_AMQP091
    amqp.topic = room.data
    amqp.topic_length = address
    amqp.properties = room.data + address
    amqp.properties_length = fit_u32(room.used - address)
    return 0


cdef bint same_users(const body_t* one, const body_t* other) noexcept nogil:
    cdef Cursor a = cursor_of(one)
    cdef Cursor b = cursor_of(other)
    cdef slice_t name
    cdef slice_t value
    cdef slice_t other_name
    cdef slice_t other_value
    while next_user(&a, &name, &value):
        if not (next_user(&b, &other_name, &other_value) and same(&name, &other_name)
                and same(&value, &other_value)):
            return 0
    return not next_user(&b, &other_name, &other_value)


cdef int to_amqp(const body_t* mqtt, uint8_t qos, int64_t now_ms, room_t* room, body_t* amqp) except -1:
    cdef mqtt_t read
    cdef body_t back
    cdef bint retain = 0
    mqtt_read(mqtt, &read)
    build(mqtt, &read, qos, now_ms, room, amqp, read.listed)
    if read.ours and not read.listed:
        to_mqtt(amqp, &trial, &back, &qos, &retain)
        if not same_users(mqtt, &back):
            build(mqtt, &read, qos, now_ms, room, amqp, 1)
    return 0


# ---------------------------------------------------------------- for tests and cold uses

cdef inline void fill(body_t* body, bytes topic, bytes properties, int64_t expires_at, uint8_t format) noexcept:
    memset(body, 0, sizeof(body_t))
    body.topic = <const uint8_t*><const char*>topic
    body.topic_length = <uint32_t>len(topic)
    body.properties = <const uint8_t*><const char*>properties
    body.properties_length = <uint32_t>len(properties)
    body.expires_at = expires_at
    body.format = format


cdef inline tuple parts(const body_t* body):
    return ((<const char*>body.topic)[:body.topic_length], (<const char*>body.properties)[:body.properties_length])


def amqp_to_mqtt(bytes address not None, bytes properties not None,
                 int64_t expires_at=0) -> tuple[bytes, bytes, int, bool]:
    """(topic, MQTT 5 properties, QoS, whether to retain it) of a message in the form of FORMAT_AMQP091.

    The topic is empty if none is possible. properties: with their flags in front; unreadable ones count as none.
    """
    cdef room_t room
    cdef body_t amqp
    cdef body_t mqtt
    cdef uint8_t qos = 0
    cdef bint retain = 0
    memset(&room, 0, sizeof(room))
    fill(&amqp, address, properties, expires_at, FORMAT_AMQP091)
    try:
        to_mqtt(&amqp, &room, &mqtt, &qos, &retain)
        return (*parts(&mqtt), qos, retain)
    finally:
        room_free(&room)


def mqtt_to_amqp(bytes topic not None, bytes properties not None, int qos=0, int64_t expires_at=0,
                 int64_t now_ms=0) -> tuple[bytes, bytes]:
    """(address, properties) in the form of FORMAT_AMQP091. expires_at, now_ms: of the same clock, ms; 0 = never."""
    cdef room_t room
    cdef body_t mqtt
    cdef body_t amqp
    memset(&room, 0, sizeof(room))
    fill(&mqtt, topic, properties, expires_at, FORMAT_MQTT)
    try:
        to_amqp(&mqtt, <uint8_t>qos, now_ms, &room, &amqp)
        return parts(&amqp)
    finally:
        room_free(&room)
