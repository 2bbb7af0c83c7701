# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""The inbound half of RFC 6455 for a server; the outbound half is in memory/link. See net/websocket.pxd."""
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memmove

from fluxmq._core.memory.link cimport link_control_frame
from fluxmq._core.wire.primitives cimport VARINT_MAX, peek_u16, peek_u64, put_u16
from fluxmq._core.wire.sizes cimport fit_u8

cdef enum:
    FRAME_BYTES_MAX = VARINT_MAX + 5    # the largest MQTT packet; a frame of several may have as much

cdef enum:
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


cdef void unmask(uint8_t* data, size_t n, const uint8_t* mask, uint8_t phase) noexcept nogil:
    """RFC 6455 section 5.3. First rotates the mask to the phase at which the data begins, so that eight bytes can be
    unmasked at a time."""
    cdef uint8_t[8] turned
    cdef uint64_t wide, word
    cdef size_t i = 0
    cdef int k
    for k in range(8):
        turned[k] = mask[(phase + k) & 3]
    memcpy(&wide, turned, 8)
    while i + 8 <= n:
        memcpy(&word, data + i, 8)
        word ^= wide
        memcpy(data + i, &word, 8)
        i += 8
    while i < n:
        data[i] ^= turned[i & 7]
        i += 1


cdef int give_up(ws_t* ws, uint16_t code, int result) noexcept:
    ws.close_due = 1
    ws.close_have = 2
    put_u16(ws.close, code)
    return result


cdef int control_done(ws_t* ws) noexcept:
    if ws.opcode == PING:
        ws.pong_due = 1
        ws.pong_have = ws.control_have
        memcpy(ws.pong, ws.control, ws.control_have)
    elif ws.opcode == CLOSE:
        ws.close_due = 1
        ws.close_have = 2 if ws.control_have >= 2 else 0
        memcpy(ws.close, ws.control, ws.close_have)
        return WS_CLOSED
    return WS_OK


cdef void ws_answer(ws_t* ws, link_t* link, bint closing) noexcept:
    # Each control frame takes a chunk, so no Pong is made while the link is blocked.
    if ws.pong_due and not link.blocked:
        ws.pong_due = 0
        link_control_frame(link, PONG, ws.pong, ws.pong_have)
    if closing and ws.close_due:
        ws.close_due = 0
        link_control_frame(link, CLOSE, ws.close, ws.close_have)


cdef int header_done(ws_t* ws) noexcept:
    """Checks a complete header and prepares for the payload."""
    cdef uint8_t opcode = ws.header[0] & 0x0F
    cdef bint fin = (ws.header[0] & 0x80) != 0
    cdef uint8_t short_length = ws.header[1] & 0x7F
    cdef uint64_t length = short_length
    cdef uint8_t mask_at = 2
    if short_length == 126:
        length = peek_u16(ws.header + 2)
        mask_at = 4
    elif short_length == 127:
        length = peek_u64(ws.header + 2)
        mask_at = 10
    memcpy(ws.mask, ws.header + mask_at, 4)
    ws.header_have = 0
    ws.left = length
    ws.phase = 0
    ws.opcode = opcode
    if opcode >= CLOSE:
        if opcode > PONG or not fin or length > 125:
            return give_up(ws, 1002, WS_BAD)
        ws.control_have = 0
        return control_done(ws) if length == 0 else WS_OK
    if opcode == TEXT:
        return give_up(ws, 1003, WS_TEXT)
    if opcode > BINARY or (opcode == BINARY) == (ws.message != 0) or length >> 63:
        return give_up(ws, 1002, WS_BAD)
    if length > FRAME_BYTES_MAX:
        return give_up(ws, 1009, WS_BAD)
    ws.message = not fin
    return WS_OK


cdef int take_header(ws_t* ws, const uint8_t* data, size_t n, size_t* at) noexcept:
    """Moves header bytes over until the header is complete or the data ends."""
    cdef uint8_t need
    while at[0] < n:
        ws.header[ws.header_have] = data[at[0]]
        ws.header_have += 1
        at[0] += 1
        if ws.header_have < 2:
            continue
        if ws.header[0] & 0x70 or not ws.header[1] & 0x80:     # reserved bits, or not masked (section 5.1)
            return give_up(ws, 1002, WS_BAD)
        need = 6
        if (ws.header[1] & 0x7F) == 126:
            need = 8
        elif (ws.header[1] & 0x7F) == 127:
            need = 14
        if ws.header_have == need:
            return header_done(ws)
    return WS_OK


cdef inline void move_unmasked(uint8_t* to, const uint8_t* source, size_t n, const uint8_t* mask) noexcept nogil:
    """Moves a whole payload to the front and unmasks it in one pass. to < source, so each word is read before it is
    overwritten."""
    cdef uint8_t[4] own
    cdef uint32_t key
    cdef uint64_t wide, word
    cdef uint32_t half
    cdef size_t i = 0
    memcpy(own, mask, 4)                # the payload overwrites the mask
    memcpy(&key, own, 4)
    wide = <uint64_t>key << 32 | key
    while i + 8 <= n:
        memcpy(&word, source + i, 8)
        word ^= wide
        memcpy(to + i, &word, 8)
        i += 8
    if i + 4 <= n:
        memcpy(&half, source + i, 4)
        half ^= key
        memcpy(to + i, &half, 4)
        i += 4
    while i < n:
        to[i] = source[i] ^ own[i & 3]
        i += 1


cdef inline size_t take_whole_frames(ws_t* ws, uint8_t* data, size_t n, size_t at, size_t* out) noexcept nogil:
    """Fast path for complete, unfragmented binary frames with short headers, which nearly all frames are. Returns the
    position of the first other frame."""
    cdef size_t header, length
    while n - at > 6 and data[at] == 0x82 and data[at + 1] & 0x80:
        length = data[at + 1] & 0x7F
        header = 6
        if length == 126:
            length = peek_u16(data + at + 2)
            header = 8
        if length == 127 or n - at < header + length:
            break
        move_unmasked(data + out[0], data + at + header, length, data + at + header - 4)
        out[0] += length
        at += header + length
    return at


cdef int ws_unframe(ws_t* ws, uint8_t* data, size_t n, size_t* out) noexcept:
    cdef size_t at = 0
    cdef size_t take
    cdef int result
    out[0] = 0
    while at < n:
        if ws.left == 0:
            if ws.header_have == 0 and ws.message == 0:
                at = take_whole_frames(ws, data, n, at, out)
                if at == n:
                    break
            result = take_header(ws, data, n, &at)
            if result != WS_OK:
                return result
            continue
        take = n - at
        if take > ws.left:
            take = <size_t>ws.left
        unmask(data + at, take, ws.mask, ws.phase)
        ws.phase = <uint8_t>((ws.phase + take) & 3)
        ws.left -= take
        if ws.opcode >= CLOSE:
            memcpy(ws.control + ws.control_have, data + at, take)
            ws.control_have += fit_u8(take)
            if ws.left == 0:
                result = control_done(ws)
                if result != WS_OK:
                    return result
        else:
            memmove(data + out[0], data + at, take)
            out[0] += take
        at += take
    return WS_OK
