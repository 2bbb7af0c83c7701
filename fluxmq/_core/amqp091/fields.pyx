# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""AMQP 0-9-1 fields. amqp091/fields.pxd draws a table and lists the letters.

Values become plain Python objects, or subclasses where a plain object would lose the wire type:

    t        bool                               I        int, −2³¹ to 2³¹ − 1
    S        str (surrogates stand for          l        int, when it would not fit I
             bytes that are not UTF-8)          d        float
    x        bytes                              D        decimal.Decimal
    A F V    list, dict, None                   T        Timestamp
    f        Float32                            others   Integer with its letter; also l when it would fit I, and a
                                                         t that is neither 0 nor 1

Integer, Timestamp and Float32 behave as plain numbers; only encode_table uses their types. So encode_table writes the
result of decode_table in the same bytes, with one exception: if a table has a name twice, the first counts, here as in
table_find.
"""
from decimal import Decimal

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from fluxmq._core.amqp091.consts cimport REPLY_SYNTAX_ERROR
from fluxmq._core.wire.primitives cimport Cursor, peek_u16, peek_u32, peek_u64, put_u32, take_u8
from fluxmq._core.wire.sizes cimport fit_u32, fit_u8, low_u32, low_u8

from fluxmq._core.errors import ProtocolError, UsageError

cdef enum:
    NOT_THERE = -1          # fewer bytes than the value needs
    NO_KIND = -2            # unknown letter
    WRITER_ROOM = 256       # most methods and property lists are smaller

_RANGES = {
    "b": (-1 << 7, (1 << 7) - 1), "B": (0, (1 << 8) - 1),
    "s": (-1 << 15, (1 << 15) - 1), "u": (0, (1 << 16) - 1), "U": (-1 << 15, (1 << 15) - 1),
    "I": (-1 << 31, (1 << 31) - 1), "i": (0, (1 << 32) - 1),
    "l": (-1 << 63, (1 << 63) - 1), "L": (-1 << 63, (1 << 63) - 1),
    "t": (0, (1 << 8) - 1), "T": (0, (1 << 64) - 1),
}
cdef double FLOAT32_MAX = 3.4028234663852886e+38


class Integer(int):
    """Value. An int that knows its type on the wire: `kind`, one of the letters b B s u U I i l L, or t."""

    def __new__(cls, value: int, kind: str) -> "Integer":
        if kind not in _RANGES or kind == "T":
            raise UsageError(f"there is no integer type {kind!r}")
        low, high = _RANGES[kind]
        if not low <= value <= high:
            raise UsageError(f"type {kind} holds {low} to {high}, not {value}")
        self = int.__new__(cls, value)
        self.kind = kind
        return self

    def __getnewargs__(self) -> tuple[int, str]:
        return int(self), self.kind

    def __repr__(self) -> str:
        return f"Integer({int(self)}, {self.kind!r})"

    __str__ = int.__repr__


class Timestamp(int):
    """Value. Seconds since 1970, UTC."""

    __slots__ = ()

    def __new__(cls, value: int) -> "Timestamp":
        if not 0 <= value < 1 << 64:
            raise UsageError(f"a timestamp is 0 to 2^64 - 1 seconds, not {value}")
        return int.__new__(cls, value)

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"

    __str__ = int.__repr__


class Float32(float):
    """Value. A float of 32 bits on the wire."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float32({float(self)!r})"

    __str__ = float.__repr__


# ── in C ─────────────────────────────────────────────────────────────────────────────────────────────────────


cdef inline int fixed_size(uint8_t kind) noexcept nogil:
    """Size of a value behind its letter; NOT_THERE: it has its own length."""
    if kind == c'S' or kind == c'x' or kind == c'A' or kind == c'F':
        return NOT_THERE
    elif kind == c't' or kind == c'b' or kind == c'B':
        return 1
    elif kind == c's' or kind == c'u' or kind == c'U':
        return 2
    elif kind == c'I' or kind == c'i' or kind == c'f':
        return 4
    elif kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        return 8
    elif kind == c'D':
        return 5
    elif kind == c'V':
        return 0
    return NO_KIND


cdef inline int take_value(Cursor* c, uint8_t* kind, const uint8_t** value, uint32_t* length) noexcept nogil:
    """Takes a letter and its value, borrowed. Returns 0, or NOT_THERE or NO_KIND and an undefined cursor."""
    cdef int size
    if not take_u8(c, kind):
        return NOT_THERE
    size = fixed_size(kind[0])
    if size == NOT_THERE:
        return 0 if take_longstr(c, value, length) else NOT_THERE
    if size < 0:
        return size
    if c.end - c.at < size:
        return NOT_THERE
    value[0] = c.at
    length[0] = <uint32_t>size
    c.at += size
    return 0


cdef int array_check(const uint8_t* at, const uint8_t* end, uint32_t depth, bint named) noexcept nogil:
    """As table_check; without names it is an array. take_value does not look into nested values, so recursion reads no
    byte twice."""
    cdef Cursor c
    cdef uint8_t kind = 0
    cdef const uint8_t* value = NULL
    cdef uint32_t length = 0
    cdef int reply
    c.at = at
    c.end = end
    while c.at != c.end:
        if named and not take_shortstr(&c, &value, &length):
            return REPLY_SYNTAX_ERROR
        if take_value(&c, &kind, &value, &length) != 0:
            return REPLY_SYNTAX_ERROR
        if kind == c'F' or kind == c'A':
            if depth == 0:
                return REPLY_SYNTAX_ERROR
            reply = array_check(value, value + length, depth - 1, kind == c'F')
            if reply != 0:
                return reply
    return 0


cdef int table_check(const uint8_t* at, const uint8_t* end, uint32_t depth) noexcept nogil:
    return array_check(at, end, depth, 1)


cdef bint table_find(const uint8_t* table, uint32_t length, const char* key, uint32_t key_length, uint8_t* kind,
                     const uint8_t** value, uint32_t* value_length) noexcept nogil:
    cdef Cursor c
    cdef const uint8_t* name = NULL
    cdef uint32_t n = 0
    c.at = table
    c.end = table + length
    while take_shortstr(&c, &name, &n):
        if take_value(&c, kind, value, value_length) != 0:
            return 0
        if n == key_length and memcmp(name, key, n) == 0:
            return 1
    return 0


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────


cdef int syntax_error(str text) except -1:
    raise ProtocolError(REPLY_SYNTAX_ERROR, text)


cdef inline str text_of(const uint8_t* at, uint32_t n):
    return PyUnicode_DecodeUTF8(<const char*>at, n, "surrogateescape")


cdef uint64_t read_number(Cursor* c, int size, str what) except? 0:
    cdef uint64_t value = 0
    cdef int i
    if c.end - c.at < size:
        syntax_error(f"the frame ends before {what}")
    for i in range(size):
        value = value << 8 | c.at[i]
    c.at += size
    return value


cdef str read_shortstr(Cursor* c, str what):
    cdef const uint8_t* at = NULL
    cdef uint32_t n = 0
    if not take_shortstr(c, &at, &n):
        syntax_error(f"the frame ends before or within {what}")
    return text_of(at, n)


cdef bytes read_longstr(Cursor* c, str what):
    cdef const uint8_t* at = NULL
    cdef uint32_t n = 0
    if not take_longstr(c, &at, &n):
        syntax_error(f"the frame ends before or within {what}")
    return PyBytes_FromStringAndSize(<const char*>at, n)


cdef str read_longtext(Cursor* c, str what):
    cdef const uint8_t* at = NULL
    cdef uint32_t n = 0
    if not take_longstr(c, &at, &n):
        syntax_error(f"the frame ends before or within {what}")
    return text_of(at, n)


cdef dict read_table(Cursor* c, str what):
    cdef const uint8_t* at = NULL
    cdef uint32_t n = 0
    if not take_longstr(c, &at, &n):
        syntax_error(f"the frame ends before or within the table {what}")
    return table_of(at, at + n, TABLE_DEPTH_MAX, what)


cdef int expect_end(Cursor* c, str what) except -1:
    if c.at != c.end:
        syntax_error(f"{c.end - c.at} bytes too many after {what}")
    return 0


cdef dict table_of(const uint8_t* at, const uint8_t* end, uint32_t depth, str what):
    cdef Cursor c
    cdef const uint8_t* text = NULL
    cdef uint32_t n = 0
    cdef dict found = {}
    cdef str name
    c.at = at
    c.end = end
    while c.at != c.end:
        if not take_shortstr(&c, &text, &n):
            syntax_error(f"the table {what} ends within a name")
        name = text_of(text, n)
        value = value_of(&c, depth, what, name)
        if name not in found:
            found[name] = value
    return found


cdef list array_of(const uint8_t* at, const uint8_t* end, uint32_t depth, str what, str name):
    cdef Cursor c
    cdef list found = []
    c.at = at
    c.end = end
    while c.at != c.end:
        found.append(value_of(&c, depth, what, name))
    return found


cdef object value_of(Cursor* c, uint32_t depth, str what, str name):
    """what: the table; name: of the value in it, for errors."""
    cdef uint8_t kind = 0
    cdef const uint8_t* at = NULL
    cdef uint32_t n = 0
    cdef int taken = take_value(c, &kind, &at, &n)
    if taken == NO_KIND:
        syntax_error(f"{name!r} in the table {what} has a value of unknown type {chr(kind)!r}")
    if taken != 0:
        syntax_error(f"the table {what} ends within the value of {name!r}")
    if kind == c'S':
        return text_of(at, n)
    elif kind == c'x':
        return PyBytes_FromStringAndSize(<const char*>at, n)
    elif kind == c'V':
        return None
    elif kind == c'F' or kind == c'A':
        if depth == 0:
            syntax_error(f"{name!r} in the table {what} is nested more than {TABLE_DEPTH_MAX} deep")
        if kind == c'F':
            return table_of(at, at + n, depth - 1, what)
        return array_of(at, at + n, depth - 1, what, name)
    return number_of(kind, at)


cdef object number_of(uint8_t kind, const uint8_t* at):
    cdef int64_t number
    if kind == c't':
        return at[0] == 1 if at[0] <= 1 else Integer(at[0], "t")
    elif kind == c'I':
        return <int32_t>peek_u32(at)
    elif kind == c'l' or kind == c'L':
        number = <int64_t>peek_u64(at)
        if kind == c'l' and number != <int32_t>number:      # low bits: they are all there is unless it is longer
            return number
        return Integer(number, chr(kind))
    elif kind == c'd':
        return double_of(peek_u64(at))
    elif kind == c'f':
        return Float32(widened(peek_u32(at)))
    elif kind == c'T':
        return Timestamp(peek_u64(at))
    elif kind == c'D':
        number = <int32_t>peek_u32(at + 1)
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -<int>at[0]))
    elif kind == c'b':
        number = <int8_t>at[0]
    elif kind == c'B':
        number = at[0]
    elif kind == c's' or kind == c'U':
        number = <int16_t>peek_u16(at)
    elif kind == c'u':
        number = peek_u16(at)
    else:
        number = peek_u32(at)
    return Integer(number, chr(kind))


cdef inline double double_of(uint64_t bits) noexcept nogil:
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef double widened(uint32_t bits) noexcept nogil:
    """A float of 32 bits as a double. NaN is converted by hand: the processor would make a signalling one quiet."""
    cdef float value
    if bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF:
        return double_of(<uint64_t>(bits >> 31) << 63 | <uint64_t>0x7FF << 52 | <uint64_t>(bits & 0x7FFFFF) << 29)
    memcpy(&value, &bits, 4)
    return value


cdef uint32_t narrowed(double value) noexcept nogil:
    cdef uint64_t bits
    cdef uint32_t out
    cdef float single
    if value == value:
        single = <float>value
        memcpy(&out, &single, 4)
        return out
    memcpy(&bits, &value, 8)
    out = low_u32(bits >> 29) & 0x7FFFFF
    return low_u32(bits >> 63) << 31 | 0x7F800000 | (out if out else 0x400000)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────


cdef int writer_open(writer_t* w) except -1:
    w.used = 0
    w.room = WRITER_ROOM
    w.data = <uint8_t*>malloc(WRITER_ROOM)
    if w.data == NULL:
        raise MemoryError
    return 0


cdef void writer_close(writer_t* w) noexcept:
    free(w.data)
    w.data = NULL


cdef bytes writer_bytes(writer_t* w):
    return PyBytes_FromStringAndSize(<const char*>w.data, <ssize_t>w.used)


cdef uint8_t* writer_more(writer_t* w, size_t more) except NULL:
    cdef size_t room = w.room
    cdef uint8_t* data
    if w.room - w.used < more:
        while room - w.used < more:
            room *= 2
        data = <uint8_t*>realloc(w.data, room)
        if data == NULL:
            raise MemoryError
        w.data = data
        w.room = room
    w.used += more
    return w.data + w.used - more


cdef int write_number(writer_t* w, uint64_t value, int size) except -1:
    cdef uint8_t* p = writer_more(w, <size_t>size)
    cdef int i
    for i in range(size):
        p[i] = low_u8(value >> (8 * (size - 1 - i)))
    return 0


cdef bytes octets_of(str value, str what):
    if value is None:
        raise UsageError(f"{what} must be a str, not None")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds a surrogate that stands for no byte") from None


cdef int write_shortstr(writer_t* w, str value, str what) except -1:
    cdef bytes octets = octets_of(value, what)
    if len(octets) > 255:
        raise UsageError(f"{what} has {len(octets)} bytes; the wire carries at most 255")
    put_shortstr(writer_more(w, <size_t>len(octets) + 1), <const char*>octets, fit_u8(len(octets)))
    return 0


cdef int write_longstr(writer_t* w, bytes value, str what) except -1:
    cdef uint8_t* p
    if value is None:
        raise UsageError(f"{what} must be bytes, not None")
    if len(value) > 0xFFFFFFFF:
        raise UsageError(f"{what} has {len(value)} bytes; the wire carries at most 2^32 - 1")
    p = put_u32(writer_more(w, <size_t>len(value) + 4), <uint32_t>len(value))
    memcpy(p, <const char*>value, <size_t>len(value))
    return 0


cdef int write_longtext(writer_t* w, str value, str what) except -1:
    return write_longstr(w, octets_of(value, what), what)


cdef int write_table(writer_t* w, dict value, str what) except -1:
    return write_nested(w, value, TABLE_DEPTH_MAX, what)


cdef int write_nested(writer_t* w, object value, uint32_t depth, str what) except -1:
    """A dict as a table, or a list or tuple as an array: length, then content."""
    cdef size_t start
    if value is None:
        raise UsageError(f"the table {what} must be a dict, not None")
    writer_more(w, 4)
    start = w.used
    if isinstance(value, dict):
        write_pairs(w, <dict>value, depth, what)
    else:
        for item in value:
            write_value(w, item, depth, what)
    if w.used - start > 0xFFFFFFFF:
        raise UsageError(f"the table {what} has more than 2^32 - 1 bytes")
    put_u32(w.data + start - 4, fit_u32(w.used - start))
    return 0


cdef int write_pairs(writer_t* w, dict table, uint32_t depth, str what) except -1:
    for name, value in table.items():
        if not isinstance(name, str):
            raise UsageError(f"a name in the table {what} must be a str, not {name!r}")
        write_shortstr(w, name, "a name in a table")
        write_value(w, value, depth, name)
    return 0


cdef int write_kind(writer_t* w, uint8_t kind, uint64_t value, int size) except -1:
    writer_more(w, 1)[0] = kind
    return write_number(w, value, size)


cdef int write_value(writer_t* w, object value, uint32_t depth, str what) except -1:
    cdef double number
    cdef uint64_t bits
    if isinstance(value, str):
        writer_more(w, 1)[0] = c'S'
        write_longtext(w, value, what)
    elif value is None:
        writer_more(w, 1)[0] = c'V'
    elif value is True or value is False:
        write_kind(w, c't', value is True, 1)
    elif isinstance(value, int):
        write_integer(w, value, what)
    elif isinstance(value, float):
        number = value
        memcpy(&bits, &number, 8)
        if not isinstance(value, Float32):
            write_kind(w, c'd', bits, 8)
        elif FLOAT32_MAX < abs(number) < float("inf"):
            raise UsageError(f"{what} must fit a float of 32 bits, not be {number!r}")
        else:
            write_kind(w, c'f', narrowed(number), 4)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        writer_more(w, 1)[0] = c'x'
        write_longstr(w, bytes(value), what)
    elif isinstance(value, (dict, list, tuple)):
        if depth == 0:
            raise UsageError(f"{what} is nested more than {TABLE_DEPTH_MAX} deep")
        writer_more(w, 1)[0] = c'F' if isinstance(value, dict) else c'A'
        write_nested(w, value, depth - 1, what)
    elif isinstance(value, Decimal):
        write_decimal(w, value, what)
    else:
        raise UsageError(f"{what} is a {type(value).__name__}, which no table carries")
    return 0


cdef int write_integer(writer_t* w, object value, str what) except -1:
    cdef str kind
    cdef uint8_t letter
    if isinstance(value, Timestamp):
        kind = "T"
    elif isinstance(value, Integer):
        kind = value.kind
    elif -0x80000000 <= value <= 0x7FFFFFFF:
        kind = "I"
    elif -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        kind = "l"
    else:
        raise UsageError(f"{what} must fit 64 bits with a sign, not be {value}")
    letter = <uint8_t>ord(kind)
    return write_kind(w, letter, <uint64_t>(value & 0xFFFFFFFFFFFFFFFF), fixed_size(letter))


cdef int write_decimal(writer_t* w, object value, str what) except -1:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise UsageError(f"{what} must be a finite number, not {value}")
    if exponent > 10 or exponent < -255:
        raise UsageError(f"{what} must be a decimal of 32 bits with 0 to 255 places, not {value}")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise UsageError(f"{what} must be a decimal of 32 bits with 0 to 255 places, not {value}")
    writer_more(w, 1)[0] = c'D'
    write_number(w, <uint64_t>max(-exponent, 0), 1)
    return write_number(w, <uint64_t>(number & 0xFFFFFFFF), 4)


# ── for Python ───────────────────────────────────────────────────────────────────────────────────────────────


def decode_table(bytes table not None) -> dict[str, object]:
    """The entries of a field table, in order. table: its bytes without the length.

    Raises ProtocolError 502: truncated, wrong length, unknown type, nested too deep.
    """
    cdef const uint8_t* at = <const uint8_t*><const char*>table
    return table_of(at, at + len(table), TABLE_DEPTH_MAX, "of arguments")


def encode_table(dict table not None) -> bytes:
    """The bytes of a field table, without its length; decode_table reads them back.

    Raises UsageError if a value has an unsupported type or does not fit.
    """
    cdef writer_t w
    writer_open(&w)
    try:
        write_pairs(&w, table, TABLE_DEPTH_MAX, "of arguments")
        return writer_bytes(&w)
    finally:
        writer_close(&w)


def plain(value: object) -> object:
    """A table or a value of it without wire types: Integer and Timestamp become int, Float32 float. For code that does
    not accept subclasses, such as msgspec."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (Integer, Timestamp)):
        return int(value)
    return float(value) if isinstance(value, Float32) else value
