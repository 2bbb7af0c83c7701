# cython: language_level=3
"""Big-endian reads and writes over borrowed bytes: the data types of MQTT 5.0 section 1.5 below the level of text.

Header only: every module that cimports it inlines it, so there is no .pyx. Nothing here allocates, raises or
needs the GIL. Bytes are assembled one by one, so no read is unaligned and no byte order is assumed.

Readers: 1 = read and advanced; 0 = fewer bytes than the value needs, cursor untouched. The caller decides whether 0
means "wait" (a stream) or "malformed" (the body of a complete packet).
Writers return the advanced pointer; the caller has made room, at most 4 bytes for a varint.

    Variable Byte Integer: 7 bits a byte, least significant first, the top bit says that another byte follows.
    At most 4 bytes, hence at most 268 435 455, and never longer than the value needs [MQTT-1.5.5-1].
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    VARINT_MAX = 268435455


cdef struct Cursor:
    const uint8_t* at     # next unread byte; invariant: at <= end
    const uint8_t* end    # one past the last readable byte


cdef inline bint take_u8(Cursor* c, uint8_t* out) noexcept nogil:
    if c.at == c.end:
        return 0
    out[0] = c.at[0]
    c.at += 1
    return 1


cdef inline uint16_t peek_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] << 8 | at[1])


cdef inline uint32_t peek_u32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t peek_u64(const uint8_t* at) noexcept nogil:
    return <uint64_t>peek_u32(at) << 32 | peek_u32(at + 4)


cdef inline bint take_u16(Cursor* c, uint16_t* out) noexcept nogil:
    if c.end - c.at < 2:
        return 0
    out[0] = peek_u16(c.at)
    c.at += 2
    return 1


cdef inline bint take_u32(Cursor* c, uint32_t* out) noexcept nogil:
    if c.end - c.at < 4:
        return 0
    out[0] = peek_u32(c.at)
    c.at += 4
    return 1


cdef inline bint take_u64(Cursor* c, uint64_t* out) noexcept nogil:
    if c.end - c.at < 8:
        return 0
    out[0] = peek_u64(c.at)
    c.at += 8
    return 1


cdef inline int take_varint(Cursor* c, uint32_t* out) noexcept nogil:
    """1 and 0 as above; -1 = malformed: a fifth byte, or more bytes than the value needs."""
    cdef uint32_t value = 0
    cdef int i
    if c.at == c.end:
        return 0
    if c.at[0] < 0x80:
        out[0] = c.at[0]
        c.at += 1
        return 1
    for i in range(4):
        if c.at + i == c.end:
            return 0
        value |= <uint32_t>(c.at[i] & 0x7F) << (7 * i)
        if c.at[i] < 0x80:
            if c.at[i] == 0:    # i > 0 here: the last byte adds nothing
                return -1
            out[0] = value
            c.at += i + 1
            return 1
    return -1


cdef inline bint take_bytes16(Cursor* c, const uint8_t** out, uint16_t* n) noexcept nogil:
    """Two bytes of length, then that many bytes, borrowed: `out` points into the cursor's memory."""
    cdef uint16_t length
    if c.end - c.at < 2:
        return 0
    length = peek_u16(c.at)
    if c.end - c.at - 2 < length:
        return 0
    out[0] = c.at + 2
    n[0] = length
    c.at += 2 + length
    return 1


cdef inline uint8_t* put_u8(uint8_t* p, uint8_t value) noexcept nogil:
    p[0] = value
    return p + 1


cdef inline uint8_t* put_u16(uint8_t* p, uint16_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 8)
    p[1] = <uint8_t>value
    return p + 2


cdef inline uint8_t* put_u32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value
    return p + 4


cdef inline uint8_t* put_u64(uint8_t* p, uint64_t value) noexcept nogil:
    return put_u32(put_u32(p, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t* put_varint(uint8_t* p, uint32_t value) noexcept nogil:
    """value <= VARINT_MAX."""
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t* put_bytes16(uint8_t* p, const void* source, uint16_t n) noexcept nogil:
    p = put_u16(p, n)
    if n:
        memcpy(p, source, n)
    return p + n


cdef inline uint8_t varint_size(uint32_t value) noexcept nogil:
    """Bytes that put_varint writes; 1 to 4."""
    if value < 0x80:
        return 1
    if value < 0x4000:
        return 2
    return 3 if value < 0x200000 else 4
