# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""See bridge/publish_properties.pxd. Names and texts are RabbitMQ's, because clients compare them."""
from fluxmq._core.amqp091.properties import decode_properties, encode_properties
from fluxmq._core.amqp091.topics import DIRECT_REPLY_TO
from fluxmq._core.errors import ProtocolError

from fluxmq._core.amqp091.consts cimport REPLY_PRECONDITION_FAILED
from fluxmq._core.amqp091.fields cimport table_find
from fluxmq._core.amqp091.properties cimport octets_t
from libc.stdint cimport uint8_t, uint32_t

cdef bytes REPLY_TO = DIRECT_REPLY_TO

cdef enum:
    EXPIRATION_DIGITS_MAX = 15


cdef bytes bytes_of(octets_t text):
    return (<const char*>text.at)[:text.length]


cdef bytes properties_of(const body_t* body):
    return (<const char*>body.properties)[:body.properties_length]


cdef bytes check_properties(const body_t* body, const amqp_properties_t* properties, bytes user, bytes reply_to):
    cdef bytes value
    if properties.flags & PROPERTY_EXPIRATION:
        value = bytes_of(properties.expiration)
        if not value.isdigit() or len(value) > EXPIRATION_DIGITS_MAX:
            raise ProtocolError(REPLY_PRECONDITION_FAILED, f"invalid expiration '{shown(value)}': it is a number of "
                                                           f"milliseconds")
    if properties.flags & PROPERTY_USER_ID and user is not None:
        value = bytes_of(properties.user_id)
        if value != user:
            raise ProtocolError(REPLY_PRECONDITION_FAILED, f"user_id property set to '{shown(value)}' but "
                                                           f"authenticated user was '{shown(user)}'")
    if properties.flags & PROPERTY_REPLY_TO and bytes_of(properties.reply_to) == REPLY_TO:
        if reply_to is None:
            raise ProtocolError(REPLY_PRECONDITION_FAILED, "fast reply consumer does not exist")
        found = decode_properties(properties_of(body))
        found["reply_to"] = reply_to.decode("utf-8", "surrogateescape")
        return encode_properties(found)
    return None


cdef bint has_copies(const amqp_properties_t* properties) noexcept:
    cdef uint8_t kind = 0
    cdef const uint8_t* value = NULL
    cdef uint32_t length = 0
    return (table_find(properties.headers.at, properties.headers.length, b"CC", 2, &kind, &value, &length)
            or table_find(properties.headers.at, properties.headers.length, b"BCC", 3, &kind, &value, &length))


cdef tuple copy_keys(const body_t* body):
    found = decode_properties(properties_of(body))
    headers = found["headers"]
    keys = []
    for name in ("CC", "BCC"):
        listed = headers.get(name, [])
        if not isinstance(listed, list) or not all(isinstance(key, (str, bytes)) for key in listed):
            raise ProtocolError(REPLY_PRECONDITION_FAILED, f"invalid value of header '{name}': it is a list of routing "
                                                           f"keys")
        keys += [key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape") for key in listed]
    if "BCC" in headers:
        del headers["BCC"]
        return keys, encode_properties(found)
    return keys, properties_of(body)


cdef str shown(bytes name):
    return name.decode("utf-8", "replace")
