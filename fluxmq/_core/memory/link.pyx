# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Outbound buffers: append, encode PUBLISH, frames of WebSocket, one sendmsg(2) per flush. See memory/link.pxd.

One of ring 0's socket handles: it makes the system call and removes the bytes that the socket accepted.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.debug cimport count_live, ensure
from fluxmq._core.memory.message cimport BLOB_BYTES_MIN, blob_drop, blob_hold, live
from fluxmq._core.memory.tap cimport READERS, TAP_MQTT, TAP_OUT, tap_begin, tap_commit, tap_now, tap_t
from fluxmq._core.wire.primitives cimport peek_u16, peek_u64, put_u16, put_u32, put_u64, put_varint, varint_size
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32, fit_u8

cdef extern from "<sys/socket.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t send(int fd, const void* data, size_t n, int flags)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef enum:
    CHUNK_KINDS = 3
    CHUNK_BLOB = 3
    CHUNK_EXACT = 4             # larger than any pool: its own allocation
    FRAME_BINARY = 0x82         # FIN, opcode 2
    FRAME_PLAIN_BYTES = 126     # a length from here on takes two further bytes, from the next on eight
    FRAME_SHORT_BYTES = 65536
    IOV_MAX_USED = 64
    POOL_MAX = 256              # chunks kept per size; 256 x 64 KiB = 16 MiB at most
    EXPIRY_PROPERTY = 0x02
    SUBSCRIPTION_ID_PROPERTY = 0x0B
    TOPIC_ALIAS_PROPERTY = 0x23
    LEFT_S_MAX = 0xFFFFFFFF     # of a Message Expiry Interval, MQTT 5.0 section 3.3.2.3.3; a queue's may be longer
    ALIAS_TOPIC_BYTES_MAX = 1024    # longer topics get no alias: 64 of 64 KiB would take 4 MiB per connection

# Small first: an idle connection that got one PINGRESP must not hold 64 KiB.
cdef uint32_t[3] CHUNK_BYTES
CHUNK_BYTES[:] = [1024, 8192, 65536]
cdef chunk_t* pool[3]
cdef int[3] pooled


cdef inline void tapped_upto(chunk_t* chunk, uint32_t at) noexcept:
    """No reader gets bytes before it."""
    cdef int reader
    for reader in range(READERS):
        chunk.tapped[reader] = at


cdef chunk_t* chunk_take(uint8_t kind, uint32_t exact) noexcept:
    cdef chunk_t* chunk
    cdef uint32_t size
    if kind < CHUNK_KINDS and pool[kind] != NULL:
        chunk = pool[kind]
        pool[kind] = chunk.next
        pooled[kind] -= 1
    else:
        size = CHUNK_BYTES[kind] if kind < CHUNK_KINDS else exact
        chunk = <chunk_t*>malloc(sizeof(chunk_t) + size)
        if chunk == NULL:
            return NULL
        chunk.capacity = size
        chunk.data = <uint8_t*>chunk + sizeof(chunk_t)
        chunk.kind = kind
        chunk.blob = NULL
    count_live(live.chunks, 1)
    chunk.next = NULL
    chunk.start = chunk.end = 0
    tapped_upto(chunk, 0)
    return chunk


cdef void chunk_give(chunk_t* chunk) noexcept:
    count_live(live.chunks, -1)
    if chunk.blob != NULL:
        blob_drop(chunk.blob)
        free(chunk)
    elif chunk.kind < CHUNK_KINDS and pooled[chunk.kind] < POOL_MAX:
        chunk.next = pool[chunk.kind]
        pool[chunk.kind] = chunk
        pooled[chunk.kind] += 1
    else:
        free(chunk)


cdef void chunk_append(link_t* link, chunk_t* chunk) noexcept:
    if link.tail == NULL:
        link.head = chunk
        if not link.pending:
            link.progress_ms = link.node.mono_ms
    else:
        link.tail.next = chunk
    link.tail = chunk


cdef link_t* link_new(node_t* node, int fd) except NULL:
    cdef link_t* link = <link_t*>calloc(1, sizeof(link_t))
    if link == NULL:
        raise MemoryError()
    count_live(live.links, 1)
    link.refs = 1
    link.open = 1
    link.fd = fd
    link.node = node
    link.version = 0
    node.numbers += 1
    link.number = node.numbers
    link.protocol = TAP_MQTT
    link.packet_size_max = 0xFFFFFFFF
    link.high = 8 << 20
    link.low = 1 << 20
    return link


cdef void link_drop(link_t* link) noexcept:
    ensure(link.refs > 0)
    link.refs -= 1
    if link.refs == 0:
        count_live(live.links, -1)
        link_close(link)
        if link.order != NULL:
            free(link.order.newest)
            free(link.order)
        free(link)


cdef void link_close(link_t* link) noexcept:
    """Drops all unsent bytes; from now on appends are no-ops."""
    cdef chunk_t* chunk = link.head
    cdef chunk_t* following
    cdef int i
    link.open = 0
    while chunk != NULL:
        following = chunk.next
        chunk_give(chunk)
        chunk = following
    link.head = link.tail = NULL
    link.pending = 0
    if link.aliases != NULL:
        for i in range(1 << link.alias_mask_bits):
            free(link.aliases[i].topic)
        free(link.aliases)
        link.aliases = NULL


cdef int link_set_aliases(link_t* link, uint16_t alias_max) except -1:
    """Makes the table of outbound topic aliases: the largest power of two that the client allows, [MQTT-3.1.2-26]."""
    cdef uint8_t bits = 0
    if alias_max == 0:
        return 0
    while (2 << bits) <= alias_max:
        bits += 1
    link.aliases = <alias_t*>calloc(1 << bits, sizeof(alias_t))
    if link.aliases == NULL:
        raise MemoryError()
    link.alias_mask_bits = bits
    return 0


cdef inline uint32_t frame_header_bytes(uint64_t length) noexcept:
    return 2 if length < FRAME_PLAIN_BYTES else 4 if length < FRAME_SHORT_BYTES else 10


cdef inline uint32_t put_frame_header(uint8_t* at, uint64_t length) noexcept:
    at[0] = FRAME_BINARY
    if length < FRAME_PLAIN_BYTES:
        at[1] = fit_u8(length)
    elif length < FRAME_SHORT_BYTES:
        at[1] = 126
        put_u16(at + 2, fit_u16(length))
    else:
        at[1] = 127
        put_u64(at + 2, length)
    return frame_header_bytes(length)


cdef uint8_t* room_in_new_chunk(link_t* link, uint32_t n) noexcept:
    cdef chunk_t* tail = link.tail
    cdef uint8_t kind = 0
    if tail != NULL and tail.blob == NULL:
        kind = <uint8_t>(tail.kind + 1) if tail.kind + 1 < CHUNK_KINDS else CHUNK_KINDS - 1
    while kind < CHUNK_KINDS and CHUNK_BYTES[kind] < n:
        kind += 1
    if kind == CHUNK_KINDS:
        kind = CHUNK_EXACT
    tail = chunk_take(kind, n)
    if tail == NULL:
        return NULL
    chunk_append(link, tail)
    return tail.data


cdef inline uint8_t* room(link_t* link, uint32_t n) noexcept:
    """For n contiguous bytes, frames among them."""
    cdef chunk_t* tail = link.tail
    if tail != NULL and tail.blob == NULL and tail.capacity - tail.end >= n:
        return tail.data + tail.end
    return room_in_new_chunk(link, n)


cdef inline uint8_t* framed_room(link_t* link, uint32_t n, uint64_t length) noexcept:
    """As link_room, of the first n bytes of a packet whose others, up to `length`, come in a chunk of their own."""
    cdef uint32_t header
    cdef uint8_t* at
    if not link.websocket:
        return room(link, n)
    header = frame_header_bytes(length)
    at = room(link, n + header)
    return at + header if at != NULL else NULL


cdef inline void framed_commit(link_t* link, uint32_t n, uint64_t length) noexcept:
    if link.websocket:
        n += put_frame_header(link.tail.data + link.tail.end, length)
    link.tail.end += n
    link.pending += n
    link_mark(link)


cdef uint8_t* link_room(link_t* link, uint32_t n) noexcept:
    return framed_room(link, n, n)


cdef void link_commit(link_t* link, uint32_t n) noexcept:
    framed_commit(link, n, n)


cdef int link_write(link_t* link, const uint8_t* data, uint32_t n) noexcept:
    if not link.open:
        return 0
    cdef uint8_t* at = link_room(link, n)
    if at == NULL:
        return -1
    memcpy(at, data, n)
    link_commit(link, n)
    return 0


cdef int link_write_run(link_t* link, const uint8_t* data, uint32_t n) noexcept:
    cdef const uint8_t* end = data + n
    cdef const uint8_t* body
    cdef uint8_t* at
    cdef uint32_t remaining, shift
    if not link.websocket or not link.open:
        return link_write(link, data, n)
    while data != end:
        remaining = data[1] & 0x7F
        shift = 0
        body = data + 2
        while body[-1] & 0x80:
            shift += 7
            remaining |= <uint32_t>(body[0] & 0x7F) << shift
            body += 1
        remaining += fit_u32(body - data)
        at = framed_room(link, remaining, remaining)
        if at == NULL:
            return -1
        memcpy(at, data, remaining)
        framed_commit(link, remaining, remaining)
        data += remaining
    return 0


cdef int link_ack(link_t* link, uint8_t packet_type, uint16_t packet_id, uint8_t reason) noexcept:
    """PUBACK, PUBREC, PUBREL, PUBCOMP. The reason is left out when it is 0, MQTT 5.0 section 3.4.2.1, and in 3.1.1."""
    if not link.open:
        return 0
    cdef uint8_t* at = link_room(link, 5)
    if at == NULL:
        return -1
    at[0] = <uint8_t>(packet_type << 4 | (2 if packet_type == 6 else 0))
    put_u16(at + 2, packet_id)
    link.node.counters.packets_sent[packet_type] += 1
    if reason and link.version == 5:
        at[1] = 3
        at[4] = reason
        link_commit(link, 5)
    else:
        at[1] = 2
        link_commit(link, 4)
    return 0


cdef inline uint32_t alias_slot(link_t* link, const uint8_t* topic, uint32_t length) noexcept:
    cdef uint32_t h = 2166136261
    cdef uint32_t i
    for i in range(length):
        h = (h ^ topic[i]) * 16777619
    return (h ^ h >> 15) & ((1 << link.alias_mask_bits) - 1)


cdef bint alias_known(link_t* link, uint32_t slot, const body_t* body) noexcept:
    cdef alias_t* alias = &link.aliases[slot]
    return (alias.topic != NULL and alias.length == body.topic_length
            and memcmp(alias.topic, body.topic, alias.length) == 0)


cdef int alias_learn(link_t* link, uint32_t slot, const body_t* body) noexcept:
    cdef alias_t* alias = &link.aliases[slot]
    cdef uint8_t* copy = <uint8_t*>malloc(body.topic_length)
    if copy == NULL:
        return -1
    free(alias.topic)
    memcpy(copy, body.topic, body.topic_length)
    alias.topic = copy
    alias.length = <uint16_t>body.topic_length
    return 0


cdef int64_t link_publish(link_t* link, const body_t* body, uint8_t first, uint16_t packet_id,
                          const ids_t* ids) noexcept:
    cdef bint v5 = link.version == 5
    cdef bint qos = (first & 0x06) != 0
    cdef bint referenced = body.blob != NULL and body.payload_length >= BLOB_BYTES_MIN
    cdef uint32_t topic_length = body.topic_length
    cdef uint32_t properties = 0
    cdef uint32_t slot = 0
    cdef uint32_t alias = 0
    cdef uint32_t left = 0
    cdef uint64_t remaining
    cdef uint64_t total
    cdef uint32_t copied
    cdef uint32_t i
    cdef bint known = 0
    cdef uint8_t* at
    cdef chunk_t* chunk = NULL
    if not link.open:
        return 1
    if v5:
        properties = body.properties_length
        if body.expires_at:
            # A message sent again may be past its expiry: its delivery had begun (MQTT 5.0 section 3.3.2.3.3).
            if body.expires_at > link.node.steady_ms:
                left = <uint32_t>min((body.expires_at - link.node.steady_ms + 999) // 1000, <int64_t>LEFT_S_MAX)
            properties += 5
        if ids != NULL:
            for i in range(ids.shown):
                properties += 1 + varint_size(ids.items[i])
        if link.aliases != NULL and 3 < topic_length <= ALIAS_TOPIC_BYTES_MAX:
            slot = alias_slot(link, body.topic, topic_length)
            alias = slot + 1
            known = alias_known(link, slot, body)
            if known:
                topic_length = 0
            properties += 3
    remaining = 2 + <uint64_t>topic_length + (2 if qos else 0) + body.payload_length
    if v5:
        remaining += varint_size(properties) + properties
    if remaining > 268435455:
        return 0
    total = 1 + varint_size(fit_u32(remaining)) + remaining
    if total > link.packet_size_max:
        return 0
    if alias and not known and alias_learn(link, slot, body) < 0:
        return -1
    copied = fit_u32(total - (body.payload_length if referenced else 0))
    if referenced:                  # allocate before anything is written: half a packet would corrupt the stream
        chunk = <chunk_t*>malloc(sizeof(chunk_t))
        if chunk == NULL:
            return -1
    at = framed_room(link, copied, total)
    if at == NULL:
        free(chunk)
        return -1
    at[0] = first
    at = put_varint(at + 1, fit_u32(remaining))
    at = put_u16(at, <uint16_t>topic_length)
    if topic_length:
        memcpy(at, body.topic, topic_length)
        at += topic_length
    if qos:
        at = put_u16(at, packet_id)
    if v5:
        at = put_varint(at, properties)
        if body.expires_at:
            at[0] = EXPIRY_PROPERTY
            at = put_u32(at + 1, left)
        if ids != NULL:
            for i in range(ids.shown):
                at[0] = SUBSCRIPTION_ID_PROPERTY
                at = put_varint(at + 1, ids.items[i])
        if alias:
            at[0] = TOPIC_ALIAS_PROPERTY
            at = put_u16(at + 1, <uint16_t>alias)
        if body.properties_length:
            memcpy(at, body.properties, body.properties_length)
            at += body.properties_length
    if not referenced:
        if body.payload_length:
            memcpy(at, body.payload, body.payload_length)
        link_commit(link, copied)
        return <int64_t>total
    framed_commit(link, copied, total)
    count_live(live.chunks, 1)
    memset(chunk, 0, sizeof(chunk_t))
    chunk.kind = CHUNK_BLOB
    chunk.blob = body.blob
    blob_hold(body.blob)
    chunk.data = <uint8_t*>body.payload
    chunk.end = chunk.capacity = body.payload_length
    chunk_append(link, chunk)
    link.pending += body.payload_length
    return <int64_t>total


cdef int link_control_frame(link_t* link, uint8_t opcode, const uint8_t* data, uint8_t n) noexcept:
    """Appends a Close, Ping or Pong of at most 125 bytes behind pending bytes."""
    cdef uint8_t* at
    if not link.open:
        return 0
    if link.node.tap != NULL:
        link_tap(link)
    at = room(link, <uint32_t>2 + n)
    if at == NULL:
        return -1
    at[0] = <uint8_t>(0x80 | opcode)
    at[1] = n
    memcpy(at + 2, data, n)
    link.tail.end += <uint32_t>2 + n
    tapped_upto(link.tail, link.tail.end)       # control frames are not recorded
    link.pending += 2 + n
    link_mark(link)
    return 0


cdef size_t packets_in(const link_t* link, const chunk_t* chunk, uint32_t at, uint32_t end, uint32_t since,
                       uint8_t* into) noexcept:
    """Number of bytes of packets that a chunk has between `since` and `end`; copied to `into` unless that is NULL.
    at: before `since`, where a frame or a packet begins."""
    cdef size_t n = 0
    cdef uint64_t length
    cdef uint32_t stop
    cdef bint data
    while at < end:
        data = 1
        stop = end
        if link.websocket and chunk.blob == NULL:       # a blob is what is left of the frame before
            data = chunk.data[at] == FRAME_BINARY
            length = chunk.data[at + 1]
            if length == 126:
                length = peek_u16(&chunk.data[at + 2])
            elif length == 127:
                length = peek_u64(&chunk.data[at + 2])
            at += frame_header_bytes(length)
            if length < end - at:
                stop = at + fit_u32(length)
        at = max(at, since)
        if data and at < stop:
            if into != NULL:
                memcpy(into + n, chunk.data + at, stop - at)
            n += stop - at
        at = stop
    return n


cdef size_t untapped(const link_t* link, const chunk_t* chunk, int reader, uint8_t* into) noexcept:
    return packets_in(link, chunk, chunk.tapped[reader], chunk.end, 0, into)


cdef void tap_chunks(tap_t* tap, link_t* link, chunk_t* chunk, const chunk_t* end, size_t n,
                     int64_t now) noexcept:
    """Records the n bytes from `chunk` on, up to `end`, that are not recorded yet, as one entry."""
    cdef uint8_t* into = tap_begin(tap, TAP_OUT, link.protocol, 0, link.number, now, n)
    while chunk != end:
        if into != NULL:
            into += untapped(link, chunk, tap.reader, into)
        chunk.tapped[tap.reader] = chunk.end
        chunk = chunk.next
    if into != NULL:
        tap_commit(tap)


cdef void tap_run(tap_t* tap, link_t* link, int64_t* now) noexcept:
    """Every chunk of own bytes begins with a packet (link_room), so a long run may be cut there. now: 0: not
    read yet."""
    cdef chunk_t* chunk = link.head
    cdef chunk_t* first
    cdef size_t n = 0
    cdef size_t here
    cdef int reader = tap.reader
    while chunk != NULL and chunk.tapped[reader] == chunk.end:
        chunk = chunk.next
    if chunk == NULL:
        return
    if now[0] == 0:
        now[0] = tap_now()
    first = chunk
    while chunk != NULL:
        here = untapped(link, chunk, reader, NULL)
        if n and chunk.blob == NULL and n + here > tap.cut:
            tap_chunks(tap, link, first, chunk, n, now[0])
            first = chunk
            n = 0
        n += here
        chunk = chunk.next
    tap_chunks(tap, link, first, NULL, n, now[0])


cdef void link_tap(link_t* link) noexcept:
    cdef tap_t* tap = <tap_t*>link.node.tap
    cdef int64_t now = 0
    while tap != NULL:
        if link.recording[tap.reader] == tap.number:
            tap_run(tap, link, &now)
        tap = tap.next


cdef void link_tap_begin(link_t* link, const tap_t* tap) noexcept:
    cdef chunk_t* chunk = link.head
    link.recording[tap.reader] = tap.number
    while chunk != NULL:
        chunk.tapped[tap.reader] = chunk.end
        chunk = chunk.next


cdef void link_tap_skip(link_t* link) noexcept:
    cdef chunk_t* chunk = link.head
    while chunk != NULL:
        tapped_upto(chunk, chunk.end)
        chunk = chunk.next


cdef size_t link_tap_unsent(const link_t* link, int reader) noexcept:
    cdef const chunk_t* chunk = link.head
    cdef size_t n = 0
    while chunk != NULL:
        # From the chunk's beginning, which may have been sent: a frame begins there.
        n += packets_in(link, chunk, 0, chunk.tapped[reader], chunk.start, NULL)
        chunk = chunk.next
    return n


cdef void link_sent(link_t* link, size_t n) noexcept:
    """n bytes were sent: frees the chunks that are sent completely."""
    cdef chunk_t* chunk
    cdef size_t here
    link.pending -= n
    link.node.counters.bytes_sent += n
    link.progress_ms = link.node.mono_ms
    while link.head != NULL:
        chunk = link.head
        here = chunk.end - chunk.start
        if n < here:
            chunk.start += fit_u32(n)
            return
        n -= here
        link.head = chunk.next
        if link.head == NULL:
            link.tail = NULL
        chunk_give(chunk)


cdef int link_flush(link_t* link) noexcept:
    cdef iovec[IOV_MAX_USED] vectors
    cdef msghdr message
    cdef chunk_t* chunk
    cdef ssize_t sent
    cdef size_t offered
    cdef int n
    while link.head != NULL:
        chunk = link.head
        if chunk.next == NULL:
            offered = chunk.end - chunk.start
            sent = send(link.fd, chunk.data + chunk.start, offered, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            n = 0
            offered = 0
            while chunk != NULL and n < IOV_MAX_USED:
                vectors[n].iov_base = chunk.data + chunk.start
                vectors[n].iov_len = chunk.end - chunk.start
                offered += vectors[n].iov_len
                n += 1
                chunk = chunk.next
            memset(&message, 0, sizeof(message))
            message.msg_iov = vectors
            message.msg_iovlen = n
            sent = sendmsg(link.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        link.node.counters.flushes += 1
        if sent < 0:
            if errno == EINTR:
                continue
            return 1 if errno == EAGAIN else -1
        link_sent(link, sent)
        if <size_t>sent < offered:
            return 1
    return 0
