"""One connection of the generator: what it is, its buffers, and its way to the socket (plain, WebSocket, TLS, both).

Header only. Output is gathered in `out` and leaves with one send per turn; input is read into a buffer that all
connections share, and only what is left of an incomplete packet is kept in `part`.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from bench.load.system cimport EAGAIN, EINTR, MSG_DONTWAIT, MSG_NOSIGNAL, load_errno, recv, send

cdef enum Role:
    ROLE_PUBLISHER = 1
    ROLE_SUBSCRIBER = 2
    ROLE_CHURN = 3          # subscribes and unsubscribes elsewhere

cdef enum State:
    STATE_CONNECTING = 0    # CONNECT is sent
    STATE_SUBSCRIBING = 1   # SUBSCRIBE is sent
    STATE_READY = 2
    STATE_CLOSED = 3        # the broker closed it

cdef enum:
    RECV_NOTHING = -1
    RECV_ERROR = -2
    WS_CONTROL_MAX = 125    # RFC 6455 section 5.5
    WS_HEADER_MAX = 14

cdef struct Message:
    uint64_t head           # run tag, publisher, sequence number: see engine.pyx
    uint64_t sent_at        # CLOCK_MONOTONIC, ns
    uint16_t packet_id
    uint8_t qos
    bint readable           # the payload had room for head and sent_at

cdef struct WebSocket:
    uint64_t left           # payload bytes of the current frame that are still to come
    uint8_t header[WS_HEADER_MAX]
    uint32_t header_size    # bytes of an incomplete header
    uint8_t opcode
    uint8_t control[WS_CONTROL_MAX]
    uint32_t control_size
    bint closed             # a Close frame came
    uint64_t random         # xorshift state for masking keys; never 0

cdef struct Peer:
    int fd
    uint32_t number         # index among all connections, the tag in epoll
    uint32_t index          # index within its role
    Role role
    State state
    bint is_ws
    void* tls               # borrowed ssl.SSLSocket, or NULL
    # output: bytes out[out_at:out_end] are to be sent
    uint8_t* out
    size_t out_at
    size_t out_end
    size_t out_room
    bint dirty              # in the engine's list of connections to flush
    bint blocked            # the socket is full: EPOLLOUT is asked for
    # input
    uint8_t* part
    size_t part_size
    size_t part_room
    uint64_t skip           # bytes of a large PUBLISH still to come; `large` is delivered when they are there
    bint discards           # the last PUBLISH was one whose payload the kernel drops
    Message large
    WebSocket ws
    # publisher
    uint8_t* template       # a whole PUBLISH; packet id, sequence, time and fresh topic are patched into each copy
    size_t template_size
    size_t id_at            # offsets into the template; 0: has none
    size_t head_at
    size_t fresh_at
    uint64_t next           # sequence number of the next message
    uint64_t base           # every message below is delivered to all that expect it
    uint32_t* missing       # [number & missing_mask]: deliveries still expected of messages base … next - 1
    uint64_t missing_mask
    uint64_t* acks          # [packet id]: when the unacknowledged message was sent, ns; 0: the id is free
    uint32_t acks_max       # packet ids 1 … acks_max are used
    uint32_t acks_next
    uint32_t unacked
    bint queued             # in the engine's list of publishers that may send
    # subscriber
    uint8_t* unreleased     # QoS 2: bit per packet id between PUBREC and PUBREL
    uint16_t subscribe_id
    # churn
    uint64_t churn_next

cdef inline void peer_free(Peer* p) noexcept nogil:
    free(p.out)
    free(p.part)
    free(p.template)
    free(p.missing)
    free(p.acks)
    free(p.unreleased)

cdef inline size_t peer_pending(const Peer* p) noexcept nogil:
    return p.out_end - p.out_at

cdef inline uint8_t* peer_room(Peer* p, size_t size) noexcept nogil:
    """Room for `size` more bytes at out + out_end; NULL without memory."""
    cdef uint8_t* grown
    cdef size_t room
    if p.out_room - p.out_end >= size:
        return p.out + p.out_end
    if p.out_at > 0:
        memmove(p.out, p.out + p.out_at, p.out_end - p.out_at)
        p.out_end -= p.out_at
        p.out_at = 0
    if p.out_room - p.out_end < size:
        room = (p.out_end + size) * 2 + 1024
        grown = <uint8_t*>realloc(p.out, room)
        if grown == NULL:
            return NULL
        p.out = grown
        p.out_room = room
    return p.out + p.out_end

cdef inline uint32_t ws_mask(WebSocket* ws) noexcept nogil:
    ws.random ^= ws.random << 13
    ws.random ^= ws.random >> 7
    ws.random ^= ws.random << 17
    return <uint32_t>(ws.random >> 16)

cdef inline size_t ws_header_size(size_t size) noexcept nogil:
    return 6 if size < 126 else (8 if size < 65536 else 14)

cdef inline void ws_seal(WebSocket* ws, uint8_t* frame, size_t header, size_t size, uint8_t opcode) noexcept nogil:
    """Make a masked frame of the `size` bytes that stand at frame + header (RFC 6455 section 5.2)."""
    cdef uint32_t key = ws_mask(ws)
    cdef uint64_t wide = key | <uint64_t>key << 32
    cdef uint64_t word
    cdef size_t i = 0
    cdef uint8_t* body = frame + header
    frame[0] = 0x80 | opcode
    if header == 6:
        frame[1] = 0x80 | <uint8_t>size
    elif header == 8:
        frame[1] = 0x80 | 126
        frame[2] = <uint8_t>(size >> 8)
        frame[3] = <uint8_t>size
    else:
        frame[1] = 0x80 | 127
        for i in range(8):
            frame[2 + i] = <uint8_t>(<uint64_t>size >> (56 - 8 * i))
        i = 0
    memcpy(body - 4, &key, 4)
    while i + 8 <= size:
        memcpy(&word, body + i, 8)
        word ^= wide
        memcpy(body + i, &word, 8)
        i += 8
    while i < size:
        body[i] ^= <uint8_t>(wide >> (8 * (i & 7)))
        i += 1

cdef inline int peer_put(Peer* p, const uint8_t* packet, size_t size) noexcept nogil:
    """Queue one packet, over WebSocket as one frame; -1 without memory."""
    cdef size_t header = ws_header_size(size) if p.is_ws else 0
    cdef uint8_t* at = peer_room(p, header + size)
    if at == NULL:
        return -1
    memcpy(at + header, packet, size)
    if p.is_ws:
        ws_seal(&p.ws, at, header, size, 2)
    p.out_end += header + size
    return 0

cdef inline ssize_t tls_send(Peer* p) noexcept with gil:
    cdef object sock = <object>p.tls
    try:
        return sock.send(PyMemoryView_FromMemory(<char*>p.out + p.out_at, p.out_end - p.out_at, PyBUF_READ))
    except BlockingIOError:
        return RECV_NOTHING
    except OSError as error:
        # SSLWantReadError and SSLWantWriteError are OSErrors, and mean: not now.
        return RECV_NOTHING if type(error).__name__.startswith("SSLWant") else RECV_ERROR

cdef inline ssize_t tls_recv(Peer* p, uint8_t* target, size_t room) noexcept with gil:
    """As much as there is. A record is at most 16 KiB; a short read is taken for the end of what has arrived."""
    cdef object sock = <object>p.tls
    cdef ssize_t total = 0
    cdef ssize_t got
    while room - total > 0:
        try:
            got = sock.recv_into(PyMemoryView_FromMemory(<char*>target + total, room - total, PyBUF_WRITE))
        except OSError as error:
            if type(error).__name__.startswith("SSLWant"):
                return total if total > 0 else RECV_NOTHING
            return total if total > 0 else RECV_ERROR
        if got == 0:
            return total
        total += got
        if got < 8192 and not sock.pending():
            break
    return total

cdef inline int peer_flush(Peer* p) noexcept nogil:
    """0: nothing is left to send; 1: the socket is full; -1: it is broken."""
    cdef ssize_t sent
    while p.out_at < p.out_end:
        if p.tls != NULL:
            sent = tls_send(p)
            if sent == RECV_NOTHING:
                return 1
            if sent < 0:
                return -1
        else:
            sent = send(p.fd, p.out + p.out_at, p.out_end - p.out_at, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if load_errno() == EINTR:
                    continue
                return 1 if load_errno() == EAGAIN else -1
        p.out_at += sent
        if p.tls == NULL and p.out_at < p.out_end:
            return 1
    p.out_at = 0
    p.out_end = 0
    return 0

cdef inline int ws_header_need(const uint8_t* h, uint32_t have) noexcept nogil:
    """Size of the frame header of which `have` bytes are at h; servers do not mask (RFC 6455 section 5.1)."""
    if have < 2:
        return 2
    if (h[1] & 0x7F) == 126:
        return 4
    return 10 if (h[1] & 0x7F) == 127 else 2

cdef inline void ws_control(Peer* p) noexcept nogil:
    cdef uint8_t* at
    if p.ws.opcode == 8:
        p.ws.closed = 1
    elif p.ws.opcode == 9:
        at = peer_room(p, WS_CONTROL_MAX + 6)
        if at != NULL:
            memcpy(at + 6, p.ws.control, p.ws.control_size)
            ws_seal(&p.ws, at, 6, p.ws.control_size, 10)
            p.out_end += 6 + p.ws.control_size

cdef inline size_t ws_unframe(Peer* p, uint8_t* data, size_t size) noexcept nogil:
    """Take the frame headers out of data, in place; the number of payload bytes that remain at its start."""
    cdef WebSocket* ws = &p.ws
    cdef size_t at = 0
    cdef size_t kept = 0
    cdef size_t take
    cdef int i
    while at < size or (ws.left == 0 and ws.opcode >= 8):
        if ws.left == 0 and ws.opcode >= 8:
            ws_control(p)
            ws.opcode = 0
            continue
        if ws.left == 0:
            ws.header[ws.header_size] = data[at]
            ws.header_size += 1
            at += 1
            if <int>ws.header_size < ws_header_need(ws.header, ws.header_size):
                continue
            ws.left = ws.header[1] & 0x7F
            if ws.left >= 126:
                ws.left = 0
                for i in range(2, <int>ws.header_size):
                    ws.left = ws.left << 8 | ws.header[i]
            ws.opcode = ws.header[0] & 0x0F
            ws.header_size = 0
            ws.control_size = 0
            continue
        take = size - at
        if take > ws.left:
            take = ws.left
        if ws.opcode >= 8:
            for i in range(<int>take):
                if ws.control_size < WS_CONTROL_MAX:
                    ws.control[ws.control_size] = data[at + i]
                    ws.control_size += 1
        else:
            memmove(data + kept, data + at, take)
            kept += take
        at += take
        ws.left -= take
    return kept

cdef inline ssize_t peer_recv(Peer* p, uint8_t* target, size_t room) noexcept nogil:
    """Bytes of MQTT read into target; 0 at the end of the stream; RECV_NOTHING or RECV_ERROR."""
    cdef ssize_t got
    if p.tls != NULL:
        got = tls_recv(p, target, room)
    else:
        got = recv(p.fd, target, room, MSG_DONTWAIT)
        if got < 0:
            return RECV_NOTHING if load_errno() == EAGAIN or load_errno() == EINTR else RECV_ERROR
    if got > 0 and p.is_ws:
        got = <ssize_t>ws_unframe(p, target, <size_t>got)
        if p.ws.closed:
            return 0 if got == 0 else got
        return got if got > 0 else RECV_NOTHING
    return got

cdef inline int peer_keep(Peer* p, const uint8_t* rest, size_t size) noexcept nogil:
    """Keep what is left of an incomplete packet; -1 without memory."""
    cdef uint8_t* grown
    if size > p.part_room:
        grown = <uint8_t*>realloc(p.part, size * 2)
        if grown == NULL:
            return -1
        p.part = grown
        p.part_room = size * 2
    if size > 0:
        memcpy(p.part, rest, size)
    p.part_size = size
    return 0
