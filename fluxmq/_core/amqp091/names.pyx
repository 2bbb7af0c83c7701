# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Reserved names, and reading of property lists. See amqp091/names.pxd."""
from libc.string cimport memset

from fluxmq._core.wire.primitives cimport peek_u16, peek_u32

NAMES[:] = [
    b"amqp-content-type", b"amqp-content-encoding", b"", b"amqp-delivery-mode", b"amqp-priority",
    b"amqp-correlation-id", b"amqp-reply-to", b"amqp-expiration", b"amqp-message-id", b"amqp-timestamp", b"amqp-type",
    b"amqp-user-id", b"amqp-app-id", b"amqp-cluster-id"]


cdef void name_marks() noexcept:
    global MARK_TOPIC, MARK_CONTENT_TYPE, MARK_RESPONSE_TOPIC, MARK_CORRELATION
    global MARK_PAYLOAD_FORMAT, MARK_USERS, MARK_RETAIN
    MARK_TOPIC = b"x-mqtt-topic"
    MARK_CONTENT_TYPE = b"x-mqtt-content-type"
    MARK_RESPONSE_TOPIC = b"x-mqtt-response-topic"
    MARK_CORRELATION = b"x-mqtt-correlation-data"
    MARK_PAYLOAD_FORMAT = b"x-mqtt-payload-format"
    MARK_USERS = b"x-mqtt-user-properties"
    MARK_RETAIN = b"x-mqtt-retain"


name_marks()


cdef void props_read(const uint8_t* at, uint32_t length, props_t* props) noexcept nogil:
    """The list was checked on arrival; an invalid property and all behind it are absent."""
    cdef const uint8_t* end = at + length
    cdef uint32_t flags, i, n
    memset(props, 0, sizeof(props_t))
    if length < 2:
        return
    flags = peek_u16(at)
    at += 2
    for i in range(<uint32_t>COUNT):
        if not flags >> (15 - i) & 1:
            continue
        if i == HEADERS:
            if end - at < 4:
                return
            n = peek_u32(at)
            at += 4
        elif i == DELIVERY_MODE or i == PRIORITY:
            n = 1
        elif i == TIMESTAMP:
            n = 8
        else:
            if at == end:
                return
            n = at[0]
            at += 1
        if end - at < <ssize_t>n:
            return
        props.of[i].at = at
        props.of[i].n = n
        at += n


cdef int property_of(const uint8_t* name, uint32_t n, bint* encoded) noexcept nogil:
    """The property that a user property `amqp-…` represents, or -1. encoded: in base64.

    Clients cannot set properties that the broker guarantees: the exchange, and user_id, which an AMQP publisher can
    only set to its own name. These stay headers."""
    cdef int i
    cdef uint32_t plain
    for i in range(COUNT):
        if i == HEADERS or i == USER_ID:
            continue
        plain = <uint32_t>strlen(NAMES[i])
        if n < plain or memcmp(name, NAMES[i], plain) != 0:
            continue
        encoded[0] = n == plain + 2 and memcmp(name + plain, b"64", 2) == 0
        if encoded[0]:
            return -1 if i == DELIVERY_MODE or i == PRIORITY or i == TIMESTAMP else i
        # content type and correlation data are MQTT properties
        return i if n == plain and i != CONTENT_TYPE and i != CORRELATION_ID else -1
    return -1


cdef bint is_ours(const uint8_t* name, uint32_t n) noexcept nogil:
    """Whether the name is reserved: such a header would be converted on the way back."""
    cdef bint encoded = 0
    if n < 5:
        return 0
    if name[0] == c"x":
        return begins(name, n, b"x-mqtt-")
    return begins(name, n, b"amqp-") and (begins(name, n, b"amqp-header64") or begins(name, n, b"amqp-is:")
                                          or property_of(name, n, &encoded) >= 0)
