# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Messages in memory: allocation and counting. See memory/message.pxd for what each struct is."""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from fluxmq._core.debug cimport count_live, ensure
from fluxmq._core.wire.sizes cimport fit_u32


cdef blob_t* blob_new(size_t size) except NULL:
    cdef uint32_t bytes = fit_u32(size)
    cdef blob_t* blob = <blob_t*>malloc(sizeof(blob_t) + size)
    if blob == NULL:
        raise MemoryError()
    count_live(live.blobs, 1)
    blob.refs = 1
    blob.size = bytes
    blob.data = <uint8_t*>blob + sizeof(blob_t)
    return blob


cdef blob_t* blob_copy(const uint8_t* data, size_t size) except NULL:
    cdef blob_t* blob = blob_new(size)
    memcpy(blob.data, data, size)
    return blob


cdef blob_t* blob_resize(blob_t* blob, size_t size) except NULL:
    cdef uint32_t bytes = fit_u32(size)
    ensure(blob.refs == 1)
    cdef blob_t* moved = <blob_t*>realloc(blob, sizeof(blob_t) + size)
    if moved == NULL:
        raise MemoryError()
    moved.size = bytes
    moved.data = <uint8_t*>moved + sizeof(blob_t)
    return moved


cdef void blob_drop(blob_t* blob) noexcept:
    if blob == NULL:
        return
    ensure(blob.refs > 0)
    blob.refs -= 1
    if blob.refs == 0:
        count_live(live.blobs, -1)
        free(blob)


cdef msg_t* msg_new(const body_t* body, uint8_t qos) except NULL:
    """Copies topic and properties, and the payload unless it is in a blob. If most of the blob is something else (the
    properties of a packet, which are copied), the payload is copied too, so that the blob can be freed."""
    cdef size_t size = sizeof(msg_t) + body.topic_length + body.properties_length
    cdef bint carried = body.blob != NULL and body.payload_length >= body.blob.size >> 1
    if not carried:
        size += body.payload_length
    cdef msg_t* msg = <msg_t*>malloc(size)
    if msg == NULL:
        raise MemoryError()
    count_live(live.messages, 1)
    cdef uint8_t* at = <uint8_t*>msg + sizeof(msg_t)
    msg.body = body[0]
    memcpy(at, body.topic, body.topic_length)
    msg.body.topic = at
    at += body.topic_length
    if body.properties_length:
        memcpy(at, body.properties, body.properties_length)
    msg.body.properties = at
    at += body.properties_length
    if not carried:
        if body.payload_length:
            memcpy(at, body.payload, body.payload_length)
        msg.body.payload = at
        msg.body.blob = NULL
    else:
        blob_hold(body.blob)
    msg.id = 0
    msg.refs = 1
    msg.qos = qos
    msg.stored = 0
    return msg


cdef uint64_t msg_drop(msg_t* msg) noexcept:
    ensure(msg.refs > 0)
    msg.refs -= 1
    if msg.refs:
        return 0
    count_live(live.messages, -1)
    cdef uint64_t forget = msg.id if msg.stored else 0
    blob_drop(msg.body.blob)
    free(msg)
    return forget


cdef msg_t* pub_own(pub_t* pub) except NULL:
    """The counted message of a publish, made on first use; callers take their own reference with msg_hold."""
    if pub.owned == NULL:
        pub.owned = msg_new(&pub.body, pub.qos)
    return pub.owned


cdef ids_t* ids_new(const uint32_t* items, uint32_t count) except NULL:
    cdef ids_t* ids = <ids_t*>malloc(sizeof(ids_t) + count * sizeof(uint32_t))
    if ids == NULL:
        raise MemoryError()
    count_live(live.identifiers, 1)
    ids.refs = 1
    ids.count = count
    ids.shown = count - (1 if count and items[count - 1] >= <uint32_t>GROUP_MARK else 0)
    ids.items = <uint32_t*>(<uint8_t*>ids + sizeof(ids_t))
    memcpy(ids.items, items, count * sizeof(uint32_t))
    return ids


cdef void ids_drop(ids_t* ids) noexcept:
    if ids == NULL:
        return
    ensure(ids.refs > 0)
    ids.refs -= 1
    if ids.refs == 0:
        count_live(live.identifiers, -1)
        free(ids)
