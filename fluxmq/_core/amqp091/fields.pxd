# cython: language_level=3
"""AMQP 0-9-1 fields: strings, numbers and field tables, in C over borrowed bytes and as Python values.

    table    pairs without gaps: u8 length, that many bytes of name; a letter; a value as long as its letter says
    array    letter, value, without gaps

In this codec, the bytes of a table exclude its length (u32, before it on the wire).

    t bool, 1 byte         b B  i8 u8        f d  float, double     S longstr: u32 length, bytes    V nothing
    T timestamp, u64, s    s u  i16 u16      D    u8 places, i32    x byte array: the same
                           I i  i32 u32                             A array:      the same
                           l    i64                                 F table:      the same
                           U L  i16 i64: the specification's letters for `s` and `l`

The letters are those of RabbitMQ and its clients, which differ from the specification.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fluxmq._core.wire.primitives cimport Cursor, peek_u32

cdef enum:
    # Nesting depth of tables and arrays below the outermost. Clients use two or three; each level needs a C stack
    # frame.
    TABLE_DEPTH_MAX = 128

# ── in C, over borrowed bytes ────────────────────────────────────────────────────────────────────────────────

# 0, or the reply code of the error (502). at..end: exactly the table. depth: permitted levels below it; TABLE_DEPTH_MAX
# for one from a peer. Reads every byte once.
cdef int table_check(const uint8_t* at, const uint8_t* end, uint32_t depth) noexcept nogil

# The first entry of that name: 1, its letter, its bytes (for S, x, A, F those behind its length); 0: not present.
# The table may be unchecked: nothing beyond its length is read, and an invalid entry ends the search.
cdef bint table_find(const uint8_t* table, uint32_t length, const char* key, uint32_t key_length, uint8_t* kind,
                     const uint8_t** value, uint32_t* value_length) noexcept nogil


cdef inline bint take_shortstr(Cursor* c, const uint8_t** out, uint32_t* n) noexcept nogil:
    """One byte of length, then that many bytes, borrowed."""
    if c.at == c.end or c.end - c.at - 1 < c.at[0]:
        return 0
    n[0] = c.at[0]
    out[0] = c.at + 1
    c.at += 1 + n[0]
    return 1


cdef inline bint take_longstr(Cursor* c, const uint8_t** out, uint32_t* n) noexcept nogil:
    """Four bytes of length, then that many bytes, borrowed."""
    cdef uint32_t length
    if c.end - c.at < 4:
        return 0
    length = peek_u32(c.at)
    if c.end - c.at - 4 < <ssize_t>length:
        return 0
    n[0] = length
    out[0] = c.at + 4
    c.at += 4 + <size_t>length
    return 1


cdef inline uint8_t* put_shortstr(uint8_t* p, const void* source, uint8_t n) noexcept nogil:
    p[0] = n
    if n:
        memcpy(p + 1, source, n)
    return p + 1 + n


# ── as Python values ─────────────────────────────────────────────────────────────────────────────────────────

# Readers take one value of a complete payload, so a short read raises ProtocolError 502; `what` names the
# field in the error.
cdef int syntax_error(str text) except -1                   # always raises
cdef uint64_t read_number(Cursor* c, int size, str what) except? 0      # size: 1, 2, 4 or 8 bytes
cdef str read_shortstr(Cursor* c, str what)                 # UTF-8; other bytes become surrogates
cdef bytes read_longstr(Cursor* c, str what)
cdef str read_longtext(Cursor* c, str what)
cdef dict read_table(Cursor* c, str what)                   # its length, then it
cdef int expect_end(Cursor* c, str what) except -1

# Writers append to a growing buffer and raise UsageError if a value does not fit.
cdef struct writer_t:
    uint8_t* data           # `used` bytes of `room` are written
    size_t used
    size_t room

cdef int writer_open(writer_t* w) except -1                 # writer_close must follow, also after an error
cdef void writer_close(writer_t* w) noexcept
cdef bytes writer_bytes(writer_t* w)
cdef uint8_t* writer_more(writer_t* w, size_t more) except NULL         # reserves bytes, which the caller fills
cdef int write_number(writer_t* w, uint64_t value, int size) except -1
cdef int write_shortstr(writer_t* w, str value, str what) except -1
cdef int write_longstr(writer_t* w, bytes value, str what) except -1
cdef int write_longtext(writer_t* w, str value, str what) except -1
cdef int write_table(writer_t* w, dict value, str what) except -1       # its length, then it
